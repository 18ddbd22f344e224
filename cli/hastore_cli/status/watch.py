"""Ask nodes for their status, once or repeatedly, and print it.

On a terminal the table is redrawn in place; elsewhere each status is printed after the last one.  A
node that does not answer does not end the watch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio
from rich.console import Group
from rich.live import Live
from rich.text import Text

from hastore.broker.observe.node_status import NodeStatus
from hastore.errors import HastoreError
from hastore_cli.app.error_report import collapsed
from hastore_cli.app.interrupts import interruptible
from hastore_cli.app.output import echo_json
from hastore_cli.app.terminal import make_console, one_line, say_error
from hastore_cli.node.address import find_node, next_steps_of
from hastore_cli.node.client import gather
from hastore_cli.status.table import StatusColumns, StatusTable, merge, worth_a_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console


CLUSTER_SCHEMA: Final = "hastore.cluster-status/1"
_EXIT_UNREACHABLE: Final = 3

# The statuses, and the errors of the nodes that did not answer.
Looked = tuple[list[NodeStatus], list[HastoreError]]


@final
@attrs.define(eq=False)
class StatusPrinter:
    """Prints statuses to stdout as tables or JSON."""

    as_json: bool
    one_line: bool
    extended: bool = False
    console: Console = attrs.field(factory=make_console, init=False)
    live: Live | None = attrs.field(default=None, init=False)
    _columns: dict[str, StatusColumns] = attrs.field(factory=dict, init=False)  # by data_dir
    _is_first: bool = attrs.field(default=True, init=False)

    def show(
        self, statuses: Sequence[NodeStatus], asked: int, errors: Sequence[HastoreError] = ()
    ) -> None:
        """Print the statuses of those of the ``asked`` nodes that answered."""
        merged = merge(statuses)
        if self.as_json:
            self._show_json(merged, asked)
            return
        pictures = [self._table_of(each) for each in worth_a_table(merged)]
        if self.live is not None:
            self.live.update(Group(*pictures, *map(_error_line, errors)), refresh=True)
            return
        for picture in pictures:
            if not self._is_first:
                self.console.print()
            self._is_first = False
            self.console.print(picture)

    def _table_of(self, status: NodeStatus) -> Group:
        """Return a node's table, with the same columns as before."""
        columns = self._columns.setdefault(status.data_dir, StatusColumns())
        table = StatusTable(
            grouped=self.console.is_terminal, width=self.console.width, columns=columns
        )
        return table.render(status, extended=self.extended)

    def _show_json(self, statuses: Sequence[NodeStatus], asked: int) -> None:
        found: dict[str, Any]
        if asked == 1:
            (status,) = statuses
            found = status.to_dict()
        else:
            found = {"schema": CLUSTER_SCHEMA, "nodes": [each.to_dict() for each in statuses]}
        echo_json(found, indent=None if self.one_line else 2)

    def show_errors(self, errors: Sequence[HastoreError]) -> None:
        """Print the errors of nodes without a status."""
        if self.live is not None:
            self.live.update(Group(*map(_error_line, errors)), refresh=True)
            return
        for error in errors:
            say_error(str(error), error.hint)


def _error_line(error: HastoreError) -> Text:
    return Text(f"error: {one_line(str(error))}", style="red")


async def look(addrs: Sequence[str]) -> Looked:
    """Ask all nodes, each by its current address: a restarted node may have another port."""

    async def ask(addr: str) -> NodeStatus | HastoreError:
        try:
            with next_steps_of(addr), collapsed():
                return await find_node(addr).status()
        except HastoreError as error:
            return error

    found = await gather(ask, addrs)
    return (
        [each for each in found if not isinstance(each, HastoreError)],
        [each for each in found if isinstance(each, HastoreError)],
    )


async def show_once(addrs: Sequence[str], printer: StatusPrinter) -> int:
    """Print the statuses and return the exit code.  Raises HastoreError if there is none."""
    statuses, errors = await look(addrs)
    if not statuses:
        raise errors[0]
    printer.show(statuses, len(addrs))
    printer.show_errors(errors)
    return _EXIT_UNREACHABLE if errors else 0


async def watch_status(addrs: Sequence[str], period_s: float, printer: StatusPrinter) -> int:
    """Print statuses every ``period_s`` until a signal; return 128 + its number."""
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
                    statuses, errors = await look(addrs)
                    if errors and (live is None or not statuses):
                        printer.show_errors(errors)
                    if statuses:
                        printer.show(statuses, len(addrs), errors)
                    next_look = max(next_look + period_s, trio.current_time())
                    await trio.sleep_until(next_look)
    finally:
        if live is not None:
            live.stop()
    assert interruption.exit_code is not None
    return interruption.exit_code
