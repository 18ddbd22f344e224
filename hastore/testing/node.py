"""One node of a test: its addresses, its directory, and the actions on it.

All public methods block until their action has taken effect.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeVar, final

import attrs
import trio

from hastore.env.real import real_env
from hastore.errors import ConfigError
from hastore.message import Message
from hastore.status import BrokerRole, FlushDiskType
from hastore.testing.free_port import FreePort
from hastore.testing.group_member import ROLE_WITHIN_S, GroupMember
from hastore.testing.node_settings import HOST, NodeStart, one_of
from hastore.testing.questions import (
    check_body,
    read_all,
    read_into,
    send_all,
)
from hastore.testing.runner import NodeDiedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.client.send_result import SendResult
    from hastore.env.interface import Disk
    from hastore.message import StoredMessage
    from hastore.testing.group import ReplicaGroup
    from hastore.testing.loop_thread import LoopThread
    from hastore.testing.runner import NodeRunner

T = TypeVar("T")
_PROMOTIONS = itertools.count(1)


@final
@attrs.define(eq=False, kw_only=True)
class ClusterNode(GroupMember):
    """A node of a cluster, on a directory (``data``) and ports of its own.

    ``group`` None: a master or a slave that speaks the classic protocol.

    Actions raise NodeDiedError if the node does not run or ends meanwhile, LoopClosedError after
    the end of the cluster, and TimeoutError if what they wait for does not happen in time.
    """

    name: str
    data: Path
    role: BrokerRole
    flush: FlushDiskType
    config: dict[str, Any]
    master: ClusterNode | None
    group: ReplicaGroup[ClusterNode] | None = None
    node_id: int = 0  # in its group, from 1 on
    promotion: int = attrs.field(default=0, init=False)  # a later one has a higher number
    _loop: LoopThread
    _make_runner: Callable[[], NodeRunner]
    _runner: NodeRunner | None = attrs.field(default=None, init=False)
    _is_paused: bool = attrs.field(default=False, init=False)
    _port: FreePort = attrs.field(factory=FreePort, init=False)
    _ha_port: FreePort = attrs.field(factory=FreePort, init=False)

    # -- state

    @property
    def address(self) -> tuple[str, int]:
        """The client address, the same after each restart."""
        return HOST, self._port.number

    @property
    def ha_address(self) -> tuple[str, int]:
        """The HA address while it is a master, the same after each restart."""
        return HOST, self._ha_port.number

    @property
    def endpoint(self) -> str:
        """``address`` as ``host:port``, for clients of RocketMQ and for ``hastore --addr``."""
        return f"{HOST}:{self._port.number}"

    @property
    def is_master(self) -> bool:
        """Whether it was last made a master; a frozen one does not know what it was made."""
        return self.role is not BrokerRole.SLAVE

    @property
    def is_running(self) -> bool:
        """Whether it runs; a frozen node does."""
        return self._runner is not None and self._runner.is_running

    @property
    def is_reachable(self) -> bool:
        """Whether it runs and is not frozen."""
        return self.is_running and not self._is_paused

    @property
    def death(self) -> str | None:
        """Why it ended by itself; None if it did not."""
        return None if self._runner is None else self._runner.death

    # -- messages

    def put(self, topic: str, body: bytes, **fields: Any) -> SendResult:
        """Send one message and return its outcome; ``fields`` are those of ``hastore.Message``.

        Raises UnknownOutcomeError if no answer came: the message may be stored, once.
        """
        return self.put_many([Message(topic, body, **fields)])[0]

    def put_many(self, messages: Iterable[Message]) -> list[SendResult]:
        """Send messages, 64 in flight, and return their outcomes in the same order."""
        every = list(messages)
        for message in every:
            check_body(message.body)
        return self._loop.call(lambda: send_all(self.address, every))

    def consume(
        self,
        topic: str,
        count: int | None = None,
        *,
        group: str | None = None,
        tags: str = "*",
        within_s: float = 60.0,
    ) -> list[StoredMessage]:
        """Return the messages of a topic in the order of the log, on a master or a slave.

        ``count`` None: all messages that this node has confirmed by now; else the next ``count``.
        ``group``: from the group's offset on, which then moves on.  Raises TimeoutError if there
        are fewer after ``within_s``.
        """
        return self._loop.call(
            lambda: self._consume(topic, count, group=group, tags=tags, within_s=within_s)
        )

    # -- control

    def stop(self) -> None:
        """Stop the node cleanly, as SIGTERM does."""
        self._loop.call(self.stopped)

    def kill(self) -> None:
        """Crash the node; a process by SIGKILL."""
        self._loop.call(self.killed)

    def restart(self) -> None:
        """Start the node again in the same role, on its log and ports; stop it first if it runs.

        In a replica group: as a slave of the group's master; as a master of the next epoch if
        nobody has been promoted since.
        """

        async def act() -> None:
            await self.stopped()
            if self.group is not None and self.is_master:
                await self.group.promote(self, within_s=ROLE_WITHIN_S)
            else:
                await self.started()

        self._loop.call(act)

    def promote(
        self,
        role: BrokerRole | str | None = None,
        *,
        members: Iterable[ClusterNode] | None = None,
        force: bool = False,
        within_s: float = ROLE_WITHIN_S,
    ) -> ClusterNode:
        """Make the node a master on its log, and return it.

        A classic node is stopped first; ``role`` None: that of the master that it followed.  In a
        replica group the node begins the next epoch, the others follow it, and its SyncStateSet
        has acknowledged its log when this returns.  ``members`` None: the set begins with the
        nodes of the former one that run.  ``force``: with any, also with a node outside the set,
        which may lose acknowledged messages; without it that raises NotInSetError.  Nodes that have
        those messages do not follow before their directory is removed; the set begins without them.
        """
        group = self.group
        if group is not None:
            if role is not None:
                raise ConfigError(
                    "the nodes of a replica group have one role as masters",
                    hint="start_group(role=...) names it",
                )
            chosen = None if members is None else list(members)
            self._loop.call(
                lambda: group.promote(self, members=chosen, force=force, within_s=within_s)
            )
            return self
        if force or members is not None:
            raise ConfigError(
                "members and force are for the nodes of a replica group", hint="use start_group()"
            )
        wanted = BrokerRole.SYNC_MASTER if self.master is None else self.master.role
        if role is not None:
            wanted = one_of(BrokerRole, role, "role")
        assert wanted is not BrokerRole.SLAVE, "follow(master) makes it a slave"

        async def act() -> None:
            await self.stopped()
            self.role, self.master = wanted, None
            self.promotion = next(_PROMOTIONS)
            await self.started()

        self._loop.call(act)
        return self

    def follow(self, master: ClusterNode) -> ClusterNode:
        """Make the node a slave of ``master``, and return it; a classic node is stopped first.

        In a replica group ``master`` is the group's master.
        """
        group = self.group
        if group is not None:
            if group.master is not master or master is self:
                raise ConfigError(
                    f"{master.name} is not another node that is the group's master",
                    hint=f"{master.name}.promote() makes it the master",
                )
            return self.demote()

        async def act() -> None:
            await self.stopped()
            self.role, self.master = BrokerRole.SLAVE, master
            await self.started()

        self._loop.call(act)
        return self

    def demote(self) -> ClusterNode:
        """Let a node of a replica group follow the group's master, and return it.

        If it is the master itself, the group has none until a node is promoted.
        """
        group = self.group
        if group is None:
            raise ConfigError(f"{self.name} is in no replica group", hint="follow(master)")
        self._loop.call(lambda: group.demote(self))
        return self

    def pause(self) -> None:
        """Freeze the node (SIGSTOP); its connections stay open.  Only a node that is a process."""

        async def act() -> None:
            await self._running().pause()
            self._is_paused = True

        self._loop.call(act)

    def resume(self, *, rejoin: bool = True) -> None:
        """Let the node run on (SIGCONT); in a replica group it follows the master of today.

        ``rejoin`` False: nobody tells it.  A former master takes itself for the master then.
        """
        group = self.group

        async def act() -> None:
            await self._running().resume()
            self._is_paused = False
            if group is not None and rejoin:
                await group.resumed(self)

        self._loop.call(act)

    # -- status

    def status(self) -> NodeStatus:
        """Return the node's status."""
        return self._loop.call(self.asked)

    def wait_until(
        self, condition: Callable[[NodeStatus], bool], what: str = "", *, within_s: float = 60.0
    ) -> NodeStatus:
        """Ask for the status until ``condition`` holds; return it.  TimeoutError names ``what``."""
        return self._loop.call(lambda: self.waited(condition, what, within_s=within_s))

    def wait_caught_up(self, *, within_s: float = 60.0) -> None:
        """Wait until a slave has stored, and can serve, all that its master has now.

        On a master: wait until all its running slaves have acknowledged its log.
        """
        self._loop.call(lambda: self._caught_up(within_s))

    # -- in the loop

    async def started(self) -> None:
        """Start the node."""
        assert not self.is_running, f"{self.name} runs already"
        runner = self._make_runner()
        group = self.group
        settings = NodeStart(
            name=self.name,
            data_dir=str(self.data),
            role=self.role if group is None else group.role,
            flush=self.flush,
            port=self._port.number,
            ha_port=self._ha_port.number,
            master_ha_port=None if self.master is None else self.master.ha_address[1],
            config=self.config,
            node_id=None if group is None else self.node_id,
            client_ports=() if group is None else tuple(n.address[1] for n in group.nodes),
        )
        self._runner, self._is_paused = runner, False
        await runner.start(settings)

    async def stopped(self) -> None:
        """Stop the node if it runs."""
        if self._runner is not None:
            await self._runner.stop()

    async def killed(self) -> None:
        """Kill the node if it runs."""
        if self._runner is not None:
            await self._runner.kill()

    async def closed(self) -> None:
        """End the node in the quickest way, and release its ports."""
        if self._runner is not None:
            await self._runner.end()
        self._port.release()
        self._ha_port.release()

    # -- as a member of its group

    @property
    def disk(self) -> Disk:
        """The disk of its directory."""
        return real_env().disk

    @property
    def data_path(self) -> Path:
        """``data``."""
        return self.data

    def clients_at(self) -> tuple[str, int]:
        """Return the client address.  Raises NodeDiedError if it does not run."""
        self._running()
        return self.address

    def slaves_at(self) -> tuple[str, int]:
        """Return the HA address."""
        return self.ha_address

    async def lead(self, epoch: int, members: frozenset[int]) -> None:
        """Become the master of an epoch, with this SyncStateSet; return once it serves."""
        self.promotion = next(_PROMOTIONS)
        await super().lead(epoch, members)

    async def _caught_up(self, within_s: float) -> None:
        if self.group is not None and self.is_master:
            await self.group.caught_up(within_s)
            return
        if self.master is None:
            await self.acknowledged(within_s)
            return
        end = (await self.master.asked()).max_offset
        await self.caught_up_with(end, is_readable=True, within_s=within_s)

    async def acknowledged(self, within_s: float, count: int | None = None) -> None:
        """Wait until ``count`` slaves (None: all that are connected) have acknowledged the log."""
        end = (await self.asked()).max_offset

        def is_there(status: NodeStatus) -> bool:
            acks = [row.ack_offset for row in status.slaves]
            in_step = [ack for ack in acks if ack is not None and ack >= end]
            wanted = len(status.slaves) if count is None else count
            return len(in_step) >= wanted

        await self.waited(is_there, f"slaves have acknowledged offset {end}", within_s=within_s)

    async def _consume(
        self, topic: str, count: int | None, *, group: str | None, tags: str, within_s: float
    ) -> list[StoredMessage]:
        if count is None:
            await self.waited(
                lambda status: status.dispatch_behind_bytes == 0,
                "all that is confirmed can be read",
                within_s=within_s,
            )
            return await read_all(self.address, topic, group=group, tags=tags)
        found: list[StoredMessage] = []
        with trio.move_on_after(within_s):
            await read_into(found, self.address, topic, count, group=group, tags=tags)
        if len(found) < count:
            msg = f"{self.name}: {len(found)} of {count} messages of {topic} within {within_s:g} s"
            raise TimeoutError(msg)
        return sorted(found, key=lambda message: message.physic_offset)

    def _running(self) -> NodeRunner:
        if self._runner is None or not self._runner.is_running:
            because = f": {self.death}" if self.death else ""
            raise NodeDiedError(f"{self.name} does not run{because}", hint="restart() starts it")
        return self._runner
