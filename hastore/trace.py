"""Logging: structlog events (a name and pairs) through the standard ``logging``.

``logger("ha")`` returns a logger bound to a part of the system.  As a library hastore configures
nothing: events go to the standard logger ``hastore``, which is silent below WARNING by default.
``hastore_cli.app.log_output`` sets up the console and JSON outputs of the commands.
"""

from __future__ import annotations

import logging
from typing import Any, Final, cast

import structlog

AUDIT_LOGGER: Final = "hastore.audit"
THIS_NODE: Final = "this node"  # who has changed something without a request: by a file


def logger(part: str, *, name: str = "hastore") -> structlog.stdlib.BoundLogger:
    """Return the logger of one part of the system, such as ``store`` or ``ha``.

    ``name`` is the standard logger that its events go to.
    """
    wrapped: Any = structlog.wrap_logger(
        logging.getLogger(name),
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


_audit_log = logger("audit", name=AUDIT_LOGGER)


def audit(
    action: str,
    *,
    who: str,
    outcome: str,
    peer: str | None = None,
    what: object = None,
    reason: str | None = None,
) -> None:
    """Record a change, or a change that was refused, in the audit log (docs/observability.md).

    ``who`` is an access key or a user, ``peer`` the address that it came from, ``what`` the thing
    that changes, ``outcome`` done, refused, failed or unknown.
    """
    _audit_log.info(
        "audit", action=action, who=who, peer=peer, what=what, outcome=outcome, reason=reason
    )
