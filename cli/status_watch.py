"""Ask a node for its status, once or again and again, and print it.

On a terminal the table is redrawn in place; elsewhere each look is printed behind the last.  A node
that does not answer is no reason to stop watching: that is when one watches.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, final

import attrs
import click
import trio
from rich.live import Live
from rich.text import Text

from cli.error_report import collapsed
from cli.interrupts import interruptible
from cli.node_address import fetch_status
from cli.status_table import StatusTable
from cli.terminal import make_console, one_line, say_error
from hastore.errors import HastoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from hastore.broker.node_status import NodeStatus


@final
@attrs.define(eq=False)
class StatusPrinter:
    """Prints statuses to stdout in the form that was asked for."""

    as_json: bool
    one_line: bool
    console: Console = attrs.field(factory=make_console, init=False)
    live: Live | None = attrs.field(default=None, init=False)
    _last: tuple[float, int] | None = attrs.field(default=None, init=False)
    _is_first: bool = attrs.field(default=True, init=False)

    def show(self, status: NodeStatus) -> None:
        """Print one status."""
        if self.as_json:
            click.echo(json.dumps(status.to_dict(), indent=None if self.one_line else 2))
            return
        table = StatusTable(grouped=self.console.is_terminal, width=self.console.width)
        picture = table.render(status, written_bytes_per_s=self._written_per_s(status))
        if self.live is not None:
            self.live.update(picture, refresh=True)
            return
        if not self._is_first:
            self.console.print()
        self._is_first = False
        self.console.print(picture)

    def show_error(self, error: HastoreError) -> None:
        """Say that there is no status this time."""
        self._last = None
        if self.live is None:
            say_error(str(error), error.hint)
            return
        self.live.update(Text(f"error: {one_line(str(error))}", style="red"), refresh=True)

    def _written_per_s(self, status: NodeStatus) -> float | None:
        """How fast the log has grown since the last look."""
        now = trio.current_time()
        last, self._last = self._last, (now, status.max_offset)
        if last is None or now <= last[0]:
            return None
        return max(0, status.max_offset - last[1]) / (now - last[0])


async def show_once(address: tuple[str, int], printer: StatusPrinter) -> None:
    """Print one status; raises where there is none."""
    printer.show(await fetch_status(address))


async def watch_status(
    find_address: Callable[[], tuple[str, int]], period_s: float, printer: StatusPrinter
) -> int:
    """Print a status every ``period_s`` until a signal, and give 128 + its number."""
    live = None
    if printer.console.is_terminal and not printer.as_json:
        live = Live(console=printer.console, auto_refresh=False)
        live.start()
        printer.live = live
    try:
        async with interruptible() as interruption:
            with interruption.scope:
                next_look = trio.current_time()
                while True:
                    await _look(find_address, printer)
                    next_look = max(next_look + period_s, trio.current_time())
                    await trio.sleep_until(next_look)
    finally:
        if live is not None:
            live.stop()
    assert interruption.exit_code is not None
    return interruption.exit_code


async def _look(find_address: Callable[[], tuple[str, int]], printer: StatusPrinter) -> None:
    try:
        with collapsed():
            # Looked up each time: a node that was started again may have another port.
            found = await fetch_status(find_address())
    except HastoreError as error:
        printer.show_error(error)
    else:
        printer.show(found)
