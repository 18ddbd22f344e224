"""Which epochs the log of each node of a replica group may have, from the world's events alone.

::

    a   (1, 0)                        killed with a tail of epoch 1
    b   (1, 0) (2, 4096)              master of epoch 2 from offset 4096 on
    a   (1, 0), or what b has         since it was told to follow b: it cuts its tail when it can

A line is a list of (epoch, start offset).  A node that follows another has its own line until it
has cut and copied, and the other's afterwards; nobody saw when that was.  So a node has one or more
lines, one of which is right, and two logs must agree where all their lines do.  A node that was
seen in step shares its master's: then the two must agree everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

Line = tuple[tuple[int, int], ...]
FOREVER = float("inf")


@final
@attrs.frozen(eq=False)
class _Lines:
    """The lines that a log may have; the same object means the same log."""

    lines: frozenset[Line] = frozenset({()})


@final
@attrs.define(eq=False)
class EpochLines:
    """The lines of all nodes of groups, as events change them."""

    _of: dict[str, _Lines] = attrs.field(factory=dict)

    def led(self, node: str, epoch: int, start: int, followers: Sequence[str]) -> frozenset[Line]:
        """Take a new master, from whose log's end on it writes; return the lines it may have.

        Its followers may copy it from now on.
        """
        known = self._of.get(node, _Lines()).lines
        # An empty log ends at 0.
        possible = {line for line in known if line or not start} or known
        self._of[node] = _Lines(
            frozenset(
                (*(entry for entry in line if entry[1] < start), (epoch, start))
                for line in possible
            )
        )
        for follower in followers:
            self.trailed(follower, node)
        return self._of[node].lines

    def trailed(self, node: str, master: str) -> None:
        """Take a node that may cut its log, and copy its master's, from now on."""
        own, masters = self._of.get(node, _Lines()), self._of.get(master)
        if masters is not None and own is not masters:
            self._of[node] = _Lines(own.lines | masters.lines)

    def in_step(self, node: str, master: str) -> None:
        """Take a node that was seen with all that its master has."""
        self._of[node] = self._of[master]

    def agree_up_to(self, left: str, right: str) -> float:
        """Return the offset below which two logs must be equal (infinite: everywhere)."""
        of_left, of_right = self._of.get(left, _Lines()), self._of.get(right, _Lines())
        if of_left is of_right:
            return FOREVER
        return min(
            agreement(left_line, right_line)
            for left_line in of_left.lines
            for right_line in of_right.lines
        )


def holds(line: Line, epoch: int, offset: int) -> bool:
    """Return whether a log of this line has what a master of ``epoch`` wrote at ``offset``."""
    ends = [*(start for _, start in line[1:]), FOREVER]
    return any(entry == epoch and offset < end for (entry, _), end in zip(line, ends, strict=True))


def agreement(left_line: Line, right_line: Line) -> float:
    """Return the offset below which logs of two lines are equal (infinite: everywhere)."""
    for (left_term, left_start), (right_term, right_start) in zip(
        left_line, right_line, strict=False
    ):
        if left_term != right_term:
            return min(left_start, right_start)
    if len(left_line) == len(right_line):
        return FOREVER
    longer = max(left_line, right_line, key=len)
    return longer[min(len(left_line), len(right_line))][1]
