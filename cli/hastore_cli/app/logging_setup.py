"""Where log records go: stderr, as sentences on a terminal and as JSON lines otherwise.

With ``--log-format console`` where no terminal is, a record is a line of its name and pairs.

hastore logs structlog events to the stdlib logger ``hastore`` (``hastore.trace``); this is the one
place that gives that logger a handler.
"""

from __future__ import annotations

import datetime as dt
import logging
import sys
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore_cli.app.log_sentences import next_of, sentence_of
from hastore_cli.app.terminal import folded, one_line

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

LOGGER_NAME: Final = "hastore"
_LEVEL_COLOURS: Final = {"warning": "yellow", "error": "red", "critical": "red"}


@attrs.frozen(kw_only=True)
class LogConfig:
    """``format``: auto, console or json; ``level``: debug, info, warning or error."""

    format: str = "auto"
    level: str = "info"

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
        renderer = [structlog.processors.format_exc_info, _SentenceRenderer(colour=colour)]
    else:
        renderer = [_for_people, structlog.dev.ConsoleRenderer(colors=colour, pad_event_to=24)]
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
    # A reader of stderr that has gone away is no reason to print tracebacks about it.
    logging.raiseExceptions = False


@final
@attrs.frozen
class _SentenceRenderer:
    """``HH:MM:SS  sentence`` in local time; a warning or an error says that it is one."""

    colour: bool

    def __call__(self, _logger: object, _name: str, event: EventDict) -> str:
        import click

        timestamp = dt.datetime.fromisoformat(str(event.pop("timestamp")))
        level = str(event.pop("level", "info"))
        failure = event.pop("exception", None)
        name = str(event.pop("event"))
        word = f"{level}: " if level in _LEVEL_COLOURS else ""
        step = next_of(name, event)
        text = one_line(sentence_of(name, event))
        if self.colour:
            word = click.style(word, fg=_LEVEL_COLOURS.get(level))
        head = f"{timestamp.astimezone():%H:%M:%S}  {word}"
        lines = [folded(head, text, sys.stderr)]
        if step is not None:
            label = click.style("next", fg="cyan") if self.colour else "next"
            lines.append(f"          {label}  {one_line(step)}")
        if failure is not None:
            lines.append(str(failure))
        return "\n".join(lines)


def _for_people(_logger: object, _name: str, event: EventDict) -> EventDict:
    """The time of day is enough, and the part stands in front of the pairs."""
    timestamp = str(event.pop("timestamp", ""))
    event["timestamp"] = timestamp[11:23]  # HH:MM:SS.mmm of an ISO time (UTC)
    if "part" in event:
        event["logger"] = event.pop("part")
    return event
