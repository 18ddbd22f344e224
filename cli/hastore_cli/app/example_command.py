"""Commands whose help ends with examples, printed as they would be typed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rich_click as click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich_click import RichContext
    from rich_click.rich_help_formatter import RichHelpFormatter


class ExampleCommand(click.RichCommand):
    """``examples`` are lines to type; a line that starts with ``#`` is a remark."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; every mistake knows whose it is, so that the next step can name the command."""
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
    """Write lines as they stand: no wrapping into one paragraph, no markup."""
    if not examples:
        return
    from rich.padding import Padding
    from rich.text import Text

    text = Text("Examples:", style="bold")
    for line in examples:
        text.append(f"\n  {line}", style="dim" if line.startswith("#") else "not bold cyan")
    formatter.write(Padding(text, (0, 1, 1, 1)))
