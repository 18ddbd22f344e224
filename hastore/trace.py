"""Logging: structlog events (a name and pairs) through the standard ``logging``.

``logger("ha")`` returns a logger bound to a part of the system.  As a library hastore configures
nothing: events go to the standard logger ``hastore``, which is silent below WARNING by default.
``hastore_cli.app.logging_setup`` sets up the console and JSON outputs of the commands.
"""

from __future__ import annotations

import logging
from typing import Any, cast

import structlog


def logger(part: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of one part of the system, such as ``store`` or ``ha``."""
    wrapped: Any = structlog.wrap_logger(
        logging.getLogger("hastore"),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.add_log_level,
            structlog.contextvars.merge_contextvars,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return cast("structlog.stdlib.BoundLogger", wrapped.bind(part=part))
