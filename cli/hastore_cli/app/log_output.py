"""Log records go to stderr: as sentences on a terminal, as JSON lines elsewhere.

With ``--log-format console`` off a terminal, a record is a line of its name and pairs.

hastore logs structlog events to the stdlib logger ``hastore`` (``hastore.trace``); this is the one
place that gives that logger a handler.  ``hastore.log_sentences`` has the sentences.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from hastore.errors import ConfigError
from hastore.log_sentences import next_of, sentence_of
from hastore.setting import Kind, setting
from hastore.trace import AUDIT_LOGGER
from hastore_cli.app.terminal import escaped, folded, one_line, rendered, style

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structlog.typing import EventDict, Processor


LOGGER_NAME: Final = "hastore"
AUDIT_FILE: Final = "HASTORE_AUDIT_FILE"
_LEVEL_COLOURS: Final = {"warning": "yellow", "error": "red", "critical": "red"}


@attrs.frozen(kw_only=True)
class LogConfig:
    """``[log]``: which records are logged, and in which form."""

    format: str = setting(
        "auto",
        "log.format",
        "Lines for people, or JSON; auto: sentences on a terminal, else JSON.",
        kind=Kind.LOG_FORMAT,
        flag="--log-format",
    )
    level: str = setting(
        "info",
        "log.level",
        "Least level that is logged (to stderr).",
        kind=Kind.LOG_LEVEL,
        flag="--log-level",
    )

    def is_json(self, *, stderr_is_terminal: bool) -> bool:
        """Whether records leave as JSON lines."""
        return self.format == "json" or (self.format == "auto" and not stderr_is_terminal)


def set_up_logging(config: LogConfig, *, colour: bool) -> None:
    """Send ``hastore``'s records to stderr in the configured form."""
    import structlog

    pre_chain: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[Processor]
    if config.is_json(stderr_is_terminal=sys.stderr.isatty()):
        renderer = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ]
    elif sys.stderr.isatty():
        renderer = [
            structlog.processors.format_exc_info,
            _escaped_pairs,
            _SentenceRenderer(colour=colour),
        ]
    else:
        # By default it uses rich, if that is installed, and shows the variables of each frame.
        plain = structlog.dev.plain_traceback
        renderer = [
            structlog.processors.format_exc_info,
            _for_people,
            _escaped_pairs,
            structlog.dev.ConsoleRenderer(
                colors=colour, pad_event_to=24, exception_formatter=plain
            ),
        ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=pre_chain,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logger = logging.getLogger(LOGGER_NAME)
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(config.level.upper())
    logging.getLogger(AUDIT_LOGGER).setLevel(logging.INFO)  # whatever the level of the others
    # A closed stderr must not cause tracebacks.
    logging.raiseExceptions = False


@contextlib.contextmanager
def audit_file() -> Iterator[None]:
    """Append a command's audit events to $HASTORE_AUDIT_FILE, if that is set, as JSON lines.

    Raises ConfigError if it cannot be written: then nothing may be changed either.
    """
    path = os.environ.get(AUDIT_FILE)
    if not path:
        yield
        return
    import structlog

    try:
        handler = logging.FileHandler(path)
    except OSError as error:
        raise ConfigError(
            f"${AUDIT_FILE}: {path} cannot be written: {error.strerror}",
            hint="nothing was changed: mend the path, its owner or its mode",
        ) from error
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(default=str),
            ]
        )
    )
    log = logging.getLogger(AUDIT_LOGGER)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        handler.close()


@final
@attrs.frozen
class _SentenceRenderer:
    """Renders ``HH:MM:SS  sentence`` in local time; a warning or an error says that it is one."""

    colour: bool

    def __call__(self, _logger: object, _name: str, event: EventDict) -> str:
        timestamp = dt.datetime.fromisoformat(str(event.pop("timestamp")))
        level = str(event.pop("level", "info"))
        failure = event.pop("exception", None)
        name = str(event.pop("event"))
        word = f"{level}: " if level in _LEVEL_COLOURS else ""
        step = next_of(name, event)
        text = one_line(sentence_of(name, event))
        if self.colour:
            word = style(word, fg=_LEVEL_COLOURS.get(level))
        head = f"{timestamp.astimezone():%H:%M:%S}  {word}"
        lines = [folded(head, text, sys.stderr)]
        if step is not None:
            label = style("next", fg="cyan") if self.colour else "next"
            lines.append(f"          {label}  {one_line(step)}")
        if failure is not None:
            lines.append(str(failure))
        return rendered("\n".join(lines), colour=self.colour, keep="\n\t")


def _escaped_pairs(_logger: object, _name: str, event: EventDict) -> EventDict:
    """Escape the texts of an event, which may be a peer's; a traceback keeps its lines."""
    return {
        escaped(name): _escaped_value(value, keep="\n\t" if name == "exception" else "")
        for name, value in event.items()
    }


def _escaped_value(value: Any, keep: str = "") -> Any:
    match value:
        case str():
            return escaped(value, keep=keep) if keep else one_line(value)
        case list() | tuple():
            return [_escaped_value(one) for one in value]
        case dict():
            return {escaped(str(name)): _escaped_value(one) for name, one in value.items()}
        case None | bool() | int() | float():
            return value
        case _:
            return escaped(str(value))


def _for_people(_logger: object, _name: str, event: EventDict) -> EventDict:
    """Show only the time of day, and put the part before the pairs."""
    timestamp = str(event.pop("timestamp", ""))
    event["timestamp"] = timestamp[11:23]  # HH:MM:SS.mmm of an ISO time (UTC)
    if "part" in event:
        event["logger"] = event.pop("part")
    return event
