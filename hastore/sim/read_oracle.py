"""Checks what consumers rely on (P5): only confirmed messages are served, and they stay.

When a message is served, the confirm offset is at its end or beyond; the confirm offset is recorded
each time the master's dispatch asks for it.  A served message keeps its place and its bytes for
ever, unless the mode may lose it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.message import PROPERTY_KEYS
from hastore.sim.violation import ViolationError
from hastore.status import BrokerRole, FlushDiskType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.broker.node.master import Master
    from hastore.message import StoredMessage
    from hastore.sim.cluster import SimCluster


@attrs.frozen
class Served:
    """A message that a consumer has."""

    physic_offset: int
    next_offset: int
    key: str


@final
@attrs.define(eq=False)
class ReadOracle:
    """Records what was confirmed and what was served."""

    cluster: SimCluster
    count: int = 0
    messages: dict[tuple[int, int], Served] = attrs.field(factory=dict)  # queue, queue offset
    confirmed: int = 0  # the highest of any boot
    is_lossy: bool = False  # once a crash may have lost served messages
    # Of each such crash, the number of the boot and the end of what was kept.
    _lost: list[tuple[int, int]] = attrs.field(factory=list)

    def watch(self, master: Master) -> None:
        """Record how far this boot of the master confirms, from its first dispatch on."""
        reput = master.reput_message_service
        self.confirmed = max(self.confirmed, reput.reput_offset)  # its start has confirmed that
        ask = reput.confirm_offset
        reput.confirm_offset = self._recording(ask, master)

    def _recording(self, ask: Callable[[], int], master: Master) -> Callable[[], int]:
        config, log = self.cluster.config, master.commit_log
        is_sync = config.master_flush is FlushDiskType.SYNC_FLUSH
        waits = config.role is BrokerRole.SYNC_MASTER

        def confirm_offset() -> int:
            offset = ask()
            if is_sync and offset > log.flushed_offset:
                detail = f"{offset} is confirmed, but only {log.flushed_offset} flushed"
                raise ViolationError("confirm", detail)
            slaves = master.ha_service
            acknowledged = slaves.ack_table.push2_slave_max_offset
            if waits and offset > acknowledged and slaves.is_slave_ok(log.max_offset):
                detail = f"{offset} is confirmed, but only {acknowledged} acknowledged"
                raise ViolationError("confirm", detail)
            self.confirmed = max(self.confirmed, offset)
            return offset

        return confirm_offset

    def served(
        self, queue_id: int, asked: int, messages: Sequence[StoredMessage], boot: int
    ) -> None:
        """Check what a consumer got for queue offset ``asked`` from ``boot``, or a later boot.

        An answer may be on its way for long, and arrive when its messages are lost.
        """
        kept = min((kept for crashed, kept in self._lost if crashed >= boot), default=None)
        for message in messages:
            self.count += 1
            number = message.queue_offset
            where = f"queue {queue_id} offset {number}"
            if number != asked:
                detail = f"{where} was served, but {asked} was next"
                raise ViolationError("queue order", detail)
            asked += 1
            if message.next_offset > self.confirmed:
                detail = (
                    f"{where} ends at {message.next_offset}, only {self.confirmed} is confirmed"
                )
                raise ViolationError("confirmed reads", detail)
            key = message.properties.get(PROPERTY_KEYS, "")
            if kept is not None and message.next_offset > kept:
                continue
            now = Served(message.physic_offset, message.next_offset, key)
            before = self.messages.setdefault((queue_id, number), now)
            if before != now:
                detail = f"{where} was {before.key} at {before.physic_offset}, now it is {now.key}"
                raise ViolationError("served twice", detail)

    def went_on(self, queue_id: int, asked: int, served: int, next_offset: int) -> None:
        """Check that a consumer is not sent past a message that it did not get."""
        if next_offset > asked + served and not self.is_lossy:
            detail = f"queue {queue_id}: asked for {asked}, got {served}, sent to {next_offset}"
            raise ViolationError("queue order", detail)

    def served_keys(self) -> set[bytes]:
        """Return the keys of all messages that consumers have."""
        return {served.key.encode() for served in self.messages.values()}

    def master_lost(self, kept: int) -> None:
        """Record that everything from ``kept`` on may be lost, even if it was served."""
        lost = [where for where, served in self.messages.items() if served.next_offset > kept]
        for where in lost:
            del self.messages[where]
        self.is_lossy = True
        self._lost.append((self.cluster.master.boots, kept))

    def check_end(self, found: dict[bytes, int]) -> None:
        """Check that served messages are still in the log (``found``: keys, and how often)."""
        for (queue_id, number), served in self.messages.items():
            if not found.get(served.key.encode()):
                detail = f"queue {queue_id} offset {number} ({served.key}) is gone"
                raise ViolationError("served and lost", detail)
