"""Parameter types for click: parsed texts, numbers in a range, topics and groups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, final

import rich_click as click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from hastore.quantities import (
    parse_duration_ms,
    parse_size,
    parse_whole_number,
    ungrouped,
    without_underscores,
)
from hastore.setting import Kind
from hastore.topic import check_group, check_topic
from hastore_cli.app.terminal import note

if TYPE_CHECKING:
    from collections.abc import Callable


@final
class ParsedType(click.ParamType[Any]):
    """A type from a function that parses text, or raises ValueError with a sentence."""

    def __init__(
        self,
        name: str,
        parse: Callable[[str], object],
        words: tuple[str, ...],
        *,
        is_number: bool = False,
    ) -> None:
        self.name = name
        self._parse = parse
        self._words = words
        self._is_number = is_number

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        """Parse text; a parsed value is returned unchanged."""
        if not isinstance(value, str):
            return value
        if self._is_number:
            value = plain_digits(value, _origin(param, ctx))
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002 - click's signature
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """Complete the words of a choice, a directory or a file."""
        if self.name == Kind.PATH.value:
            return [CompletionItem(incomplete, type="dir")]
        if self.name == Kind.FILE.value:
            return [CompletionItem(incomplete, type="file")]
        typed = incomplete.lower()
        return [CompletionItem(word) for word in self._words if word.lower().startswith(typed)]


@final
class WholeNumber(click.IntRange):
    """A whole number in a range, plain or grouped, as hastore prints it on a terminal."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse text; the error says what a whole number looks like."""
        if isinstance(value, str):
            try:
                value = parse_whole_number(plain_digits(value, _origin(param, ctx)))
            except ValueError as error:
                self.fail(str(error), param, ctx)
        return int(super().convert(value, param, ctx))


@final
class Number(click.FloatRange):
    """A number in a range, plain or grouped; click's own type lets NaN pass the range."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse text; refuse NaN."""
        if isinstance(value, str):
            value = ungrouped(plain_digits(value, _origin(param, ctx)))
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is not a valid number.", param, ctx)
        return number


def plain_digits(text: str, where: str) -> str:
    """Return a text without ``_`` between its digits; say a note, as earlier versions read it."""
    plain = without_underscores(text)
    if plain != text:
        note(f"{where}: write {plain} instead of {text}, which the next version refuses")
    return plain


def _origin(param: click.Parameter | None, ctx: click.Context | None) -> str:
    """Return the flag or the variable that a value comes from."""
    if param is None or param.name is None:
        return "a number"
    source = None if ctx is None else ctx.get_parameter_source(param.name)
    is_variable = source is ParameterSource.ENVIRONMENT and isinstance(param.envvar, str)
    return str(param.envvar) if is_variable else param.opts[0]


def complete_directory(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a directory where the parameter is not a ``click.Path``."""
    return [CompletionItem(incomplete, type="dir")]


def complete_file(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a file where the parameter is not a ``click.Path``."""
    return [CompletionItem(incomplete, type="file")]


SIZE = ParsedType("SIZE", parse_size, (), is_number=True)
DURATION_MS = ParsedType("TIME", parse_duration_ms, ())
TOPIC = ParsedType("TOPIC", check_topic, ())
GROUP = ParsedType("GROUP", check_group, ())
