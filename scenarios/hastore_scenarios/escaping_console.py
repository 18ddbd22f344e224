"""A rich console that escapes every text as it renders it; only its own styles are real."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from rich.console import Console
from rich.segment import Segment

from hastore.printable import escaped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import ConsoleOptions, RenderableType


@final
class EscapingConsole(Console):
    """Texts keep their line ends; what rich sends to control the terminal stays as it is."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of a text, escaped."""
        for text, style, control in super().render(renderable, options):
            shown = text if control else escaped(text, keep="\n")
            yield Segment(shown, style, control)
