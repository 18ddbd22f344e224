"""Which columns of the status table a terminal has room for: whole ones, and the same ones again.

::

    wide enough     node role address state sent written flushed acknowledged lag lag time …
    80 columns           role address state                      acknowledged lag lag time msg/s

A value is never cut: a column that does not fit is left out, the least needed first.  Widths only
grow, and what was left out stays out, so that a table that is drawn again and again stands still.
Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from rich.cells import cell_len
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Row = tuple[str, ...]

COLUMNS: Final = (
    "node", "role", "address", "state", "sent", "written", "flushed", "acknowledged", "lag",
    "lag time", "age", "msg/s", "rate", "eta",
)  # fmt: skip
NOTHING: Final = "-"
# The most needed first.  Where the slaves have names they were asked, too, and have told the rest;
# where two nodes have one name, such as the default one, only the address tells them apart.
_RANKS: Final = (
    "state", "address", "role", "lag", "acknowledged", "msg/s", "lag time", "sent", "rate", "node",
    "age", "flushed", "written", "eta",
)  # fmt: skip
_RANKS_WITH_NAMES: Final = (
    "state", "node", "role", "lag", "acknowledged", "msg/s", "lag time", "flushed", "written",
    "address", "rate", "sent", "age", "eta",
)  # fmt: skip
_RANKS_WITH_ONE_NAME: Final = tuple(
    {"node": "address", "address": "node"}.get(name, name) for name in _RANKS_WITH_NAMES
)
# As wide as what comes there as a rule: these change from look to look.
_USUAL_WIDTHS: Final = {
    "state": len("catching-up"),
    "lag": len("1023.9 MiB"),
    "lag time": len("999.9 ms"),
    "age": len("999.9 ms"),
    "msg/s": len("99 999"),
    "rate": len("1023.9 MiB/s"),
    "eta": len("999.9 s"),
}
_RIGHT: Final = frozenset(
    {"sent", "written", "flushed", "acknowledged", "lag", "lag time", "msg/s", "rate"}
)
_GAP: Final = 2


@final
class StatusColumns:
    """The columns of one table; keep it, and the next picture has the same ones."""

    def __init__(self) -> None:
        self._room: int | None = None
        self._names: tuple[str, ...] = ()
        self._widths = {name: max(len(name), _USUAL_WIDTHS.get(name, 0)) for name in COLUMNS}

    @property
    def left_out(self) -> list[str]:
        """The columns for which there was no room."""
        return [name for name in COLUMNS if name not in self._names]

    def lines(self, rows: Sequence[Row], room: int, styles: dict[str, str]) -> Iterator[Text]:
        """The head and the rows, at most ``room`` wide; ``styles`` are those of states."""
        self._fit(rows, room)
        yield self._line(COLUMNS, "dim")
        for row in rows:
            yield self._line(row, "", styles.get(row[COLUMNS.index("state")], ""))

    def _fit(self, rows: Sequence[Row], room: int) -> None:
        for name, column in zip(COLUMNS, zip(*rows, strict=True), strict=True):
            self._widths[name] = max(self._widths[name], *map(cell_len, column))
        if room != self._room:
            self._names = _ranks(rows)
            self._room = room
        chosen: list[str] = []
        left = room + _GAP
        for name in self._names:
            if self._widths[name] + _GAP <= left:
                left -= self._widths[name] + _GAP
                chosen.append(name)
        self._names = tuple(chosen)

    def _line(self, cells: Sequence[str], style: str, state_style: str = "") -> Text:
        line = Text(style=style)
        for name, cell in zip(COLUMNS, cells, strict=True):
            if name in self._names:
                space = " " * (self._widths[name] - cell_len(cell))
                line.append(space if name in _RIGHT else "")
                line.append(cell, style=state_style if name == "state" else "")
                line.append(("" if name in _RIGHT else space) + " " * _GAP)
        line.rstrip()
        return line


def _ranks(rows: Sequence[Row]) -> tuple[str, ...]:
    """The columns, the most needed first; a slave that was asked has a name."""
    names = [row[0] for row in rows if row[0] != NOTHING]
    if all(row[0] == NOTHING for row in rows[1:]):
        return _RANKS
    return _RANKS_WITH_NAMES if len(set(names)) == len(names) else _RANKS_WITH_ONE_NAME
