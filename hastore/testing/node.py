"""One node of a test: its addresses, its directory, and the actions on it.

All public methods block until their action has taken effect.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeVar, final

import attrs
import trio

from hastore.errors import HastoreError
from hastore.message import Message
from hastore.status import BrokerRole, FlushDiskType
from hastore.testing.free_port import FreePort
from hastore.testing.node_settings import HOST, NodeStart, one_of
from hastore.testing.questions import (
    ASK_AGAIN_S,
    ask_status,
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
    from hastore.message import StoredMessage
    from hastore.testing.loop_thread import LoopThread
    from hastore.testing.runner import NodeRunner

T = TypeVar("T")
_GIVEN_UP = frozenset({"diverged", "failed"})
_PROMOTIONS = itertools.count(1)


@final
@attrs.define(eq=False, kw_only=True)
class ClusterNode:
    """A master or a slave of a cluster, on a directory (``data``) and ports of its own.

    Actions raise NodeDiedError if the node does not run or ends meanwhile, LoopClosedError after
    the end of the cluster, and TimeoutError if what they wait for does not happen in time.
    """

    name: str
    data: Path
    role: BrokerRole
    flush: FlushDiskType
    config: dict[str, Any]
    master: ClusterNode | None
    promotion: int = attrs.field(default=0, init=False)  # a later one has a higher number
    _loop: LoopThread
    _make_runner: Callable[[], NodeRunner]
    _runner: NodeRunner | None = attrs.field(default=None, init=False)
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
        """Whether it was last started as a master."""
        return self.role is not BrokerRole.SLAVE

    @property
    def is_running(self) -> bool:
        """Whether it runs; a frozen node does."""
        return self._runner is not None and self._runner.is_running

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
        """Start the node again in the same role, on its log and ports; stop it first if it runs."""

        async def act() -> None:
            await self.stopped()
            await self.started()

        self._loop.call(act)

    def promote(self, role: BrokerRole | str | None = None) -> ClusterNode:
        """Make the node a master on its log, and return it; stop it first if it runs.

        ``role`` None: that of the master that it followed.
        """
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
        """Make the node a slave of ``master``, and return it; stop it first if it runs."""

        async def act() -> None:
            await self.stopped()
            self.role, self.master = BrokerRole.SLAVE, master
            await self.started()

        self._loop.call(act)
        return self

    def pause(self) -> None:
        """Freeze the node (SIGSTOP); its connections stay open.  ``hastore_processes`` only."""
        self._loop.call(self._running().pause)

    def resume(self) -> None:
        """Let the node run on (SIGCONT)."""
        self._loop.call(self._running().resume)

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
        settings = NodeStart(
            name=self.name,
            data_dir=str(self.data),
            role=self.role,
            flush=self.flush,
            port=self._port.number,
            ha_port=self._ha_port.number,
            master_ha_port=None if self.master is None else self.master.ha_address[1],
            config=self.config,
        )
        self._runner = runner
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

    async def asked(self) -> NodeStatus:
        """Return its status.  Raises NodeDiedError if it does not run."""
        self._running()
        return await ask_status(self.address)

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

    async def _caught_up(self, within_s: float) -> None:
        if self.master is None:
            await self.acknowledged(within_s)
            return
        end = (await self.master.asked()).max_offset

        def is_there(status: NodeStatus) -> bool:
            link = status.master_link
            if link is not None and link.state in _GIVEN_UP:
                msg = f"{self.name} will not follow: {link.state}, {link.reason}"
                raise NodeDiedError(msg, hint=link.hint)
            return has_caught_up(status, end)

        await self.waited(is_there, f"it has caught up with offset {end}", within_s=within_s)

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
