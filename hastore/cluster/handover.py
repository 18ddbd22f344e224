"""A switchover, as its master sees it: it takes no puts, and offers its term to the successor.

::

    begun ──▶ puts are held ──▶ all are answered, and the successor has all ──▶ offered
      │                                                                            │
      └────────▶ ended, and puts are taken again ◀── the wish is taken back, with an answer

Offered: ``config`` has the log's end, at which the successor may begin the next epoch.

Invariants: the term is offered once every put that waited is answered; from then on puts are taken
again only after an answer of the coordinator that the wish is gone.  Before, no answer is needed:
a coordinator that refuses all writes, because it is full, would stop the puts for as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.broker.node.master import Master
from hastore.cluster.group_records import GroupConfig
from hastore.cluster.key_value_store import Unchanged
from hastore.cluster.operations import SWITCHOVER_LAG_MAX, lag_text
from hastore.errors import CoordinatorNoSpaceError, CoordinatorRefusedError
from hastore.ha.group_ha_service import GroupHAService
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.broker.node.group_node import GroupNode
    from hastore.cluster.group_watch import GroupWatch
    from hastore.cluster.group_writer import GroupWriter
    from hastore.concurrency.wait_notify_object import WaitNotifyObject

HANDOVER_TICK_S: Final = 0.01  # between two looks at the successor's acks
_HELD: Final = "this master hands over to node {}: ask it"

_log = logger("cluster")


@final
@attrs.define(eq=False, kw_only=True)
class Handover:
    """The handover of one term of a node that is master."""

    node: GroupNode
    watch: GroupWatch
    writer: GroupWriter
    wake: WaitNotifyObject  # something has changed: decide again
    clock: Callable[[], float]
    since: float | None = attrs.field(default=None, init=False)  # None: it hands over to nobody
    # Whether the successor may have been told that it can take over.
    is_ready_sent: bool = attrs.field(default=False, init=False)
    # The revision of a ``config`` whose request for a switchover is to be removed, and why: the
    # coordinator has refused to, and this master takes puts meanwhile.
    _void_due: tuple[int, str] | None = attrs.field(default=None, init=False)

    @property
    def void_due(self) -> str | None:
        """Why the request that is in ``config`` now is not carried out, but removed."""
        due, view = self._void_due, self.watch.view
        return None if due is None or view is None or due[0] != view.config_revision else due[1]

    @property
    def is_offered(self) -> bool:
        """Whether the successor may begin the next epoch at any moment."""
        return self.since is not None and self.is_ready_sent

    async def go_on(self, to_id: int) -> None:
        """Take no puts, then write the log's end once the successor has acknowledged it.

        A successor that lags by more than ``SWITCHOVER_LAG_MAX`` is refused before puts are.
        """
        master = self.node.role_node
        if not isinstance(master, Master) or not isinstance(master.ha_service, GroupHAService):
            return
        service = master.ha_service
        node = service.sync_state_set.acks.get(to_id)
        if self.since is None:
            acked = None if node is None else node.ack_offset
            if acked is not None and master.max_offset - acked > SWITCHOVER_LAG_MAX:
                await self.void(lag_text(to_id, master.max_offset - acked))
                return
            self.since, self.is_ready_sent = self.clock(), False
            master.put_message.hold(_HELD.format(to_id))
            _log.info("handing_over", to=to_id, at=master.max_offset)
        end = master.max_offset
        is_there = node is not None and node.ack_offset == end
        waiting = len(service.group_transfer_service) + master.flush_manager.waiting
        if not is_there or waiting:
            with trio.move_on_after(HANDOVER_TICK_S):
                await self.wake.wait_for_running()
            return
        view = self.watch.known
        wish = view.config.switchover
        if wish is None or wish.to_id != to_id:
            return
        config = attrs.evolve(view.config, switchover=attrs.evolve(wish, ready_end=end))
        may_arrive, self.is_ready_sent = self.is_ready_sent, True
        try:
            await self.writer.write_config(
                config, [Unchanged(self.writer.keys.leader, view.leader_revision)]
            )
        except CoordinatorRefusedError:
            await self.watch.refresh()  # of a full etcd a refusal alone proves nothing
            if self.watch.known.config.switchover == wish:
                self.is_ready_sent = may_arrive  # of an earlier request, which had no answer
            raise
        await self.watch.refresh()

    async def void(self, why: str) -> None:
        """Take the wish back, with an answer; only then take puts again.

        Where that is refused, puts are taken if the successor cannot take over by this request.
        """
        view = self.watch.known
        if view.config.switchover is not None:
            try:
                is_removed = await self._remove(view.config)
            except CoordinatorRefusedError:
                is_offered = self.is_ready_sent or view.config.switchover.ready_end is not None
                if self.since is not None and not is_offered:
                    self._void_due = view.config_revision, why
                    self.take_puts()
                raise
            if not is_removed:
                await self.watch.refresh()
                return
            _log.warning("switchover_void", reason=why)
            await self.watch.refresh()
        self.take_puts()

    async def _remove(self, config: GroupConfig) -> bool:
        """Remove the request from ``config``; return whether that was done."""
        rest = attrs.evolve(config, switchover=None)
        try:
            return await self.writer.write_config(rest, [])
        except CoordinatorNoSpaceError:
            if rest != GroupConfig():
                raise
            return await self.writer.delete_config()  # a full etcd takes that, since 3.4.20, 3.5.7

    def take_puts(self) -> None:
        """Take puts again after a handover that does not come about."""
        self.end()
        master = self.node.role_node
        if isinstance(master, Master):
            master.put_message.hold(None)

    def end(self) -> None:
        """Hand over to nobody: the term is over, or another begins."""
        self.since = None
