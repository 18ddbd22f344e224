"""A node that is told its role by requests, as any program would tell it.

What drives a node of a replica group of a test, whatever runs it: tasks, a process, a simulated
host.  The node answers a request before its store is open in the new role, so its status says when
that is so.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any, Final, Self

import trio

from hastore.concurrency.tcp import describe
from hastore.errors import HastoreError, RequestFailedError, UnreachableError
from hastore.status import BrokerRole
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.testing.questions import ASK_AGAIN_S, ask_status, change_role
from hastore.testing.runner import NodeDiedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.env.interface import Disk
    from hastore.testing.group import ReplicaGroup

ROLE_WITHIN_S: Final = 120.0  # usually less than a second
_GIVEN_UP: Final = frozenset({"diverged", "failed"})
_TRIES_MAX: Final = 5  # of a request that is answered with an error


class GroupMember(abc.ABC):
    """What a ``Member`` of a `ReplicaGroup` does; ``group`` None: it is a classic node."""

    name: str
    node_id: int  # its place in the group, from 1 on
    role: BrokerRole  # that it was given last
    master: Self | None  # that it follows
    group: ReplicaGroup[Any] | None

    # -- what runs it ----------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def disk(self) -> Disk:
        """The disk of its directory."""

    @property
    @abc.abstractmethod
    def data_path(self) -> Path:
        """Its directory on that disk."""

    @property
    @abc.abstractmethod
    def is_reachable(self) -> bool:
        """Whether it runs and is not frozen."""

    @abc.abstractmethod
    def clients_at(self) -> tuple[str, int]:
        """Return its client address.  Raises HastoreError if it does not run."""

    @abc.abstractmethod
    def slaves_at(self) -> tuple[str, int]:
        """Return its HA address, also of a node that does not run."""

    # -- questions -------------------------------------------------------------------------------

    async def asked(self) -> NodeStatus:
        """Return its status."""
        return await ask_status(self.clients_at())

    async def waited(
        self, condition: Callable[[NodeStatus], bool], what: str, *, within_s: float
    ) -> NodeStatus:
        """Ask for the status until ``condition`` holds; return it.  Raises TimeoutError."""
        seen = "it did not answer"
        with trio.move_on_after(within_s):
            for pause_s in _pauses():
                try:
                    status = await self.asked()
                except NodeDiedError:
                    raise
                except HastoreError as error:
                    seen = str(error)
                else:
                    if condition(status):
                        return status
                    seen = _in_short(status)
                await trio.sleep(pause_s)
        wanted = f"{self.name}: not within {within_s:g} s" + (f": {what}" if what else "")
        raise TimeoutError(f"{wanted}; {seen}")

    async def caught_up_with(self, end: int, *, is_readable: bool, within_s: float) -> None:
        """Wait until it has its master's log up to ``end``; ``is_readable``: and can serve it."""

        def is_there(status: NodeStatus) -> bool:
            link = status.master_link
            if link is not None and link.state in _GIVEN_UP:
                msg = f"{self.name} will not follow: {link.state}, {link.reason}"
                raise NodeDiedError(msg, hint=link.hint)
            if is_readable and self.group is not None and (status.confirm_offset or 0) < end:
                return False
            return has_caught_up(status, end)

        await self.waited(is_there, f"it has caught up with offset {end}", within_s=within_s)

    # -- roles -----------------------------------------------------------------------------------

    async def lead(self, epoch: int, members: frozenset[int]) -> None:
        """Become the master of an epoch, with this SyncStateSet; return once it serves."""
        assert self.group is not None, "only a group has epochs"
        await self._told(epoch, self, members)
        self.role, self.master = self.group.role, None
        path = f"{self.data_path}/{EPOCH_FILE}"
        await self.waited(
            lambda _status: EpochFile(self.disk, path).load().last_epoch == epoch,
            f"epoch {epoch} begins",
            within_s=ROLE_WITHIN_S,
        )
        # Who answers now has opened the store in that epoch.
        await self.waited(
            lambda status: status.role == self.role.value and status.state == "serving",
            f"it is master of epoch {epoch}",
            within_s=ROLE_WITHIN_S,
        )

    async def trail(self, master: Self | None, epoch: int) -> None:
        """Follow the master of an epoch (None: nobody) now, if it runs, and after each start."""
        self.role, self.master = BrokerRole.SLAVE, master
        if not self.is_reachable:
            return

        def follows(status: NodeStatus, whom: Self | None) -> bool:
            link, address = status.master_link, "-" if whom is None else describe(whom.slaves_at())
            has_seen = status.seen_epoch is not None and status.seen_epoch >= epoch
            return has_seen and link is not None and link.address == address

        # It may be opening its store, and answer later.
        now = await self.waited(lambda _status: True, "it answers", within_s=ROLE_WITHIN_S)
        if follows(now, master):
            return
        # A master that does not answer cannot say where its HA port is.
        whom = master if master is not None and master.is_reachable else None
        await self._told(epoch, whom, None)
        await self.waited(
            lambda status: follows(status, whom),
            f"it follows {'nobody' if whom is None else whom.name} in epoch {epoch}",
            within_s=ROLE_WITHIN_S,
        )

    async def _told(self, epoch: int, master: Self | None, members: frozenset[int] | None) -> None:
        """Tell the node who is master; again if it, or the master, was just opening its store."""
        with trio.move_on_after(ROLE_WITHIN_S):
            for tries, pause_s in enumerate(_pauses(), 1):
                try:
                    await change_role(
                        self.clients_at(),
                        epoch=epoch,
                        master_id=None if master is None else master.node_id,
                        master_address=None if master is None else master.clients_at(),
                        members=members,
                    )
                except (RequestFailedError, UnreachableError) as error:
                    if isinstance(error, RequestFailedError) and tries >= _TRIES_MAX:
                        raise
                    await trio.sleep(pause_s)
                else:
                    return
        raise TimeoutError(f"{self.name} did not answer within {ROLE_WITHIN_S:g} s")


def has_caught_up(status: NodeStatus, end: int) -> bool:
    """Return whether a slave has its master's log up to ``end``, compared and dispatched.

    Its own end is no proof: it may be that of another log, of which nothing was compared yet.
    What it reports on a link is.
    """
    link = status.master_link
    if link is None or link.state != "streaming" or link.reported_offset is None:
        return False
    return min(link.reported_offset, status.max_offset) >= end and not status.dispatch_behind_bytes


def _pauses() -> Iterable[float]:
    """Yield the seconds to wait between two questions, for ever."""
    pause_s = ASK_AGAIN_S[0]
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, ASK_AGAIN_S[1])


def _in_short(status: NodeStatus) -> str:
    text = f"last seen: {status.role} {status.state} at {status.max_offset}"
    if status.master_link is not None:
        text += f", link {status.master_link.state} ({status.master_link.reason})"
    return text + "".join(f", slave {row.state} at {row.ack_offset}" for row in status.slaves)
