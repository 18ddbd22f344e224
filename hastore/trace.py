"""The one form of logging: structlog events, a name and pairs, handed to stdlib ``logging``.

``logger("ha")`` gives a logger bound to a part of the system.  As a library hastore configures
nothing: records go to the stdlib logger ``hastore`` (silent below WARNING until somebody sets it
up); the console and JSON outputs are the composition root's (``hastore_cli.app.logging_setup``).
"""

from __future__ import annotations

import logging
from typing import Any, cast

import structlog


def logger(part: str) -> structlog.stdlib.BoundLogger:
    """Return the logger of one part (``store``, ``flush``, ``ha``, ``broker``, ``remoting``)."""
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
