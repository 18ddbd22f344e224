"""Commands whose help ends with examples, and groups that import a command when it is called."""

from __future__ import annotations

import difflib
import gc
import importlib
from typing import TYPE_CHECKING, Any, final

import rich_click as click

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich_click import RichContext
    from rich_click.rich_help_formatter import RichHelpFormatter


def output_option(*choices: str) -> Callable[..., Callable[..., Any]]:
    """Return the option ``-o``; without ``choices`` it takes ``table`` and ``json``."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(choices or ("table", "json"), case_sensitive=False),
        default="table",
        show_default=True,
    )


class ExampleCommand(click.RichCommand):
    """A command whose help ends with examples; a line that starts with ``#`` is a remark."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; every UsageError gets its context, so that the next step can name the command."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_epilog(  # type: ignore[override]
        self, ctx: RichContext, formatter: RichHelpFormatter
    ) -> None:
        """Write the examples, then the epilog."""
        write_examples(self.examples, formatter)
        super().format_epilog(ctx, formatter)


def write_examples(examples: Sequence[str], formatter: RichHelpFormatter) -> None:
    """Write the lines unchanged: not wrapped into one paragraph, without markup."""
    if not examples:
        return
    from rich.padding import Padding
    from rich.text import Text

    text = Text("Examples:", style="bold")
    for line in examples:
        text.append(f"\n  {line}", style="dim" if line.startswith("#") else "not bold cyan")
    formatter.write(Padding(text, (0, 1, 1, 1)))


@final
class LazyGroup(click.RichGroup):
    """``lazy`` maps a command's name to ``("module of hastore_cli:attribute", "summary")``."""

    def __init__(
        self,
        *args: Any,
        lazy: dict[str, tuple[str, str]] | None = None,
        examples: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = lazy or {}
        self._examples = examples
        self._listing = False

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which they were declared."""
        return [*self._lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command; for a group's help a stand-in with its summary."""
        found = self._lazy.get(cmd_name)
        if found is None:
            return super().get_command(ctx, cmd_name)
        place, summary = found
        if self._listing:
            return click.RichCommand(name=cmd_name, help=summary)
        module, _, attribute = place.partition(":")
        command = getattr(importlib.import_module(f"hastore_cli.{module}"), attribute)
        assert isinstance(command, click.Command), place
        gc.enable()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; the error for an unknown name suggests the nearest one."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            guess = f"; did you mean {near[0]}?" if near else ""
            ctx.fail(f"No such command '{args[0]}'{guess}")
        return super().resolve_command(ctx, args)

    def format_options(  # type: ignore[override]
        self, ctx: RichContext, formatter: RichHelpFormatter
    ) -> None:
        """Write options and commands without importing the commands."""
        self._listing = True
        try:
            super().format_options(ctx, formatter)
        finally:
            self._listing = False

    def format_epilog(  # type: ignore[override]
        self, ctx: RichContext, formatter: RichHelpFormatter
    ) -> None:
        """Write the examples, then the epilog."""
        write_examples(self._examples, formatter)
        super().format_epilog(ctx, formatter)
