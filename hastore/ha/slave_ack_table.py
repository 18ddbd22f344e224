"""Who has acknowledged what: the slaves connected now, and the highest ack of all time.

Two questions, two answers.  *Has some slave got this message?* is answered by
``push2_slave_max_offset``, which never falls.  *Is there a slave worth waiting for?* is answered by
the slaves that are connected now, never by the ack of one that left (RocketMQ uses the first for
both, so a departed slave makes a laggard look healthy).

Invariant: push2_slave_max_offset never falls and is never above the master's max offset, because
only reports that ``SlaveProgress`` has judged arrive here.
"""

from __future__ import annotations

from typing import final

import attrs


@final
@attrs.define(eq=False)
class SlaveAckTable:
    """Acks by connection id."""

    # The highest ack of all time, in bytes: never falls, and <= the master's max offset.
    push2_slave_max_offset: int = attrs.field(default=0, init=False)
    # The highest report of the slaves connected now, which may be no ack yet and so be above or
    # below ``push2_slave_max_offset``; None where there is none.
    nearest: int | None = attrs.field(default=None, init=False)
    _acks: dict[int, int] = attrs.field(factory=dict, init=False)  # by connection id

    def note_position(self, connection_id: int, ack_offset: int) -> None:
        """Note how near a slave says it is."""
        self._acks[connection_id] = ack_offset
        self.nearest = max(self._acks.values())

    def acknowledge(self, connection_id: int, ack_offset: int) -> bool:
        """Note an ack; whether it raised ``push2_slave_max_offset``."""
        self.note_position(connection_id, ack_offset)
        if ack_offset > self.push2_slave_max_offset:
            self.push2_slave_max_offset = ack_offset
            return True
        return False

    def remove(self, connection_id: int) -> None:
        """Forget a slave that left."""
        self._acks.pop(connection_id, None)
        self.nearest = max(self._acks.values(), default=None)

    @property
    def connected(self) -> int:
        """Number of connected slaves that have reported."""
        return len(self._acks)
