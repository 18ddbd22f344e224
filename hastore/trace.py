"""Logging: structlog events (a name and pairs) through the standard ``logging``.

``logger("ha")`` returns a logger bound to a part of the system.  As a library hastore configures
nothing: events go to the standard logger ``hastore``, which is silent below WARNING by default.
A program's own handlers print them as sentences, or find the pairs in ``record.msg``
(docs/embedding.md).  ``hastore_cli.app.log_output`` sets up the console and JSON outputs of the
commands.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, cast, final

import structlog

from hastore.log_sentences import next_of, sentence_of
from hastore.printable import escaped

if TYPE_CHECKING:
    from structlog.typing import EventDict

AUDIT_LOGGER: Final = "hastore.audit"
THIS_NODE: Final = "this node"  # who has changed something without a request: by a file


@final
class LogEvent(dict[str, Any]):
    """The message of a log record: an event's name and pairs, which reads as a sentence.

    structlog's ProcessorFormatter and formatters that write JSON take the pairs, all others the
    text, which is one line with what is not printable escaped: pairs may come from a peer.
    """

    def __str__(self) -> str:
        pairs = dict(self)
        name = str(pairs.pop("event", ""))
        step = next_of(name, pairs)
        text = sentence_of(name, pairs)
        return escaped(text if step is None else f"{text}; next: {step}")


def _as_record(
    wrapped: logging.Logger, method: str, event: EventDict
) -> tuple[tuple[EventDict], dict[str, dict[str, Any]]]:
    """Return what ``logging`` and structlog's ProcessorFormatter are given for an event."""
    return structlog.stdlib.ProcessorFormatter.wrap_for_formatter(wrapped, method, LogEvent(event))


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
            _as_record,
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
