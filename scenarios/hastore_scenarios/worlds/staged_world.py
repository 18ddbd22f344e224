"""The base of all worlds: puts, waiting, expectations, and the end of a story.

At its end every world is a directory of the same layout, for the checker, `hastore log` and people
who examine a failed run::

    directory/  a/  a.log   b/  b.log   history.jsonl
"""

from __future__ import annotations

import abc
import contextlib
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.client.consumer import Consumer
from hastore.concurrency.tcp import send_all
from hastore.errors import HastoreError
from hastore.message import PROPERTY_UNIQ_KEY
from hastore_scenarios.judge.history import EventKind, History, Operation
from hastore_scenarios.story.world import (
    STORY_TOPIC,
    LinkMode,
    Node,
    ScenarioFailed,
    Tally,
    describe_seen,
)
from hastore_scenarios.worlds.cluster import N, in_step
from hastore_scenarios.worlds.elected_groups import ElectedGroups
from hastore_scenarios.worlds.put_stream import PutStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.env.interface import Env
    from hastore_scenarios.judge.checker import Verdict
    from hastore_scenarios.story.world import Condition

CATCH_UP_WITHIN_S: Final = 120.0
_ASK_AGAIN_S: Final = (0.005, 0.1)
_SMALL_BODY_SIZE: Final = 100
_READ_SIZE: Final = 64 * 1024


class StagedWorld(ElectedGroups[N]):
    """A `World` without the way its nodes run.

    ``key_prefix`` distinguishes the messages of this world from those of others; ``env`` is the
    producers' environment, None for the real one.
    """

    def __init__(
        self,
        directory: Path,
        nursery: trio.Nursery,
        history: History,
        *,
        key_prefix: int,
        env: Env | None = None,
    ) -> None:
        super().__init__(directory, nursery, history)
        self._key_prefix = key_prefix
        self._env = env
        self._peers: list[TcpPeer] = []

    # -- puts

    async def put(
        self, node: Node, body: bytes = b"", *, topic: str = STORY_TOPIC, wait: bool = True
    ) -> Operation:
        """Send one message and wait for its answer."""
        stream = self._stream(self._node(node))
        return await stream.put(body or None, _SMALL_BODY_SIZE, topic=topic, wait=wait)

    async def put_many(
        self,
        node: Node,
        count: int,
        *,
        size: int = 1024,
        in_flight: int = 64,
        topic: str = STORY_TOPIC,
        wait: bool = True,
    ) -> Tally:
        """Send ``count`` messages and wait for all answers."""
        stream = self._stream(self._node(node))
        return Tally(
            await stream.put_many(count, size, in_flight=in_flight, topic=topic, wait=wait)
        )

    @contextlib.asynccontextmanager
    async def load(
        self,
        node: Node,
        *,
        size: int = 1024,
        in_flight: int = 16,
        topic: str = STORY_TOPIC,
        wait: bool = True,
        every_ms: int = 0,
    ) -> AsyncIterator[Tally]:
        """Put without pause for the length of the block."""
        stream = self._stream(self._node(node))
        operations: list[Operation] = []
        stopped = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: stream.put_until(
                    lambda: stopped,
                    size,
                    operations,
                    in_flight=in_flight,
                    topic=topic,
                    wait=wait,
                    every_s=every_ms / 1000,
                )
            )
            try:
                yield Tally(operations)
            finally:
                stopped = True

    @contextlib.asynccontextmanager
    async def group_load(
        self,
        *,
        of: Node | None = None,
        every_ms: int = 5,
        size: int = 1024,
        in_flight: int = 16,
        topic: str = STORY_TOPIC,
        wait: bool = True,
    ) -> AsyncIterator[Tally]:
        """Put to the master of the moment of a node's group, for the length of the block."""
        operations: list[Operation] = []
        stopped = False

        async def put_to(stream: PutStream) -> None:
            await stream.put_until(
                lambda: stopped,
                size,
                operations,
                in_flight=in_flight,
                topic=topic,
                wait=wait,
                every_s=every_ms / 1000,
            )

        async def put_to_masters() -> None:
            while not stopped:
                # Puts that a former master has not answered are recorded when it does.
                await self.while_master(lambda node: put_to(self._stream(node)), of=of)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(put_to_masters)
            try:
                yield Tally(operations)
            finally:
                stopped = True

    # -- waiting

    async def wait_until(
        self, node: Node, what: str, condition: Condition, *, within_s: float = 60.0
    ) -> NodeStatus:
        """Ask for the status until ``condition`` holds; return it.  Raises ScenarioFailed."""

        async def holds(status: NodeStatus) -> bool:
            return condition(status)

        return await self._wait_until(node, what, holds, within_s)

    async def _wait_until(
        self, node: Node, what: str, holds: Callable[[NodeStatus], Awaitable[bool]], within_s: float
    ) -> NodeStatus:
        own = self._node(node)
        status: NodeStatus | None = None
        problem = "never asked"
        pause_s = _ASK_AGAIN_S[0]
        with trio.move_on_after(within_s):
            while True:
                self._check_not_dead(own)
                try:
                    status = await self.status(own)
                    if await holds(status):
                        return status
                    problem = "last seen: " + _in_short(status)
                except (HastoreError, OSError) as error:
                    problem = f"no answer: {error}"
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _ASK_AGAIN_S[1])
        raise ScenarioFailed(f"{own.name}: not within {within_s:g} s: {what}; {problem}")

    async def _wait_in_step(self, slave: N, *, within_s: float) -> None:
        own = slave
        assert own.master is not None, f"{own.name} is not a slave"

        async def healthy(status: NodeStatus) -> bool:
            assert own.master is not None
            group = status.sync_state
            if own.group is not None and (group is None or own.node_id not in group.members):
                return False
            shown = self._nodes_in_step(own.master, status)
            return own in shown and await self._is_linked(own, status)

        self._check_not_dead(own)
        await self._wait_until(own.master, f"{own.name} is in step", healthy, within_s)

    async def dial_ha(self, master: Node) -> TcpPeer:
        """Connect to the HA port as an unidentified peer."""
        peer = await TcpPeer.connect(self._node(master).ha_address())
        self._peers.append(peer)
        return peer

    async def consumed(self, *nodes: Node, topic: str = STORY_TOPIC) -> Counter[str]:
        """Read a topic to its end as a consumer that is given these nodes; count UNIQ_KEYs."""
        addresses = [self._running(node).clients_at() for node in nodes]
        found: Counter[str] = Counter()
        async with Consumer.connect(addresses, env=self._env) as consumer:
            async for message in consumer.messages(topic, until_end=True):
                found[message.properties[PROPERTY_UNIQ_KEY]] += 1
        return found

    # -- the timeline

    def say(self, text: str) -> None:
        """Add a sentence to the timeline."""
        self.history.event(EventKind.SAY, text=text)

    def expect(self, truth: object, text: str, **seen: object) -> None:
        """Add an expectation to the timeline.  Raises ScenarioFailed if ``truth`` is false."""
        expected = f"{text} ({describe_seen(seen)})" if seen else text
        self.history.event(
            EventKind.EXPECT, text=("as expected: " if truth else "NOT AS EXPECTED: ") + expected
        )
        if not truth:
            raise ScenarioFailed(f"expected: {expected}")

    # -- the end of a story

    async def settle(self) -> None:
        """End all faults and wait until every connected slave has caught up."""
        for node in self.nodes.values():
            if node.is_running and node.is_paused:
                await self.resume(node)
            if node.disk_fault is not None:
                self.disk(node).heal()
            self._heal_link(node)
        await self._rejoin_all()
        for node in self.nodes.values():
            master = node.master
            if master is None or not node.is_running or not master.is_running:
                continue
            status = await self._await_end_of(node, master)
            if status is None:
                continue
            self.history.event(
                EventKind.CAUGHT_UP,
                node.name,
                f"{node.name}: ends at {status[0]}, its master {master.name} at {status[1]}",
                max_offset=status[0],
                master_max_offset=status[1],
            )
        self.history.event(EventKind.END, text="the story is over")

    @abc.abstractmethod
    async def judge(self) -> Verdict:
        """Stop all nodes and let the checker compare their logs with the history."""

    @abc.abstractmethod
    def _heal_link(self, node: N) -> None:
        """Heal the link to its master, if it has a fault."""

    async def _stop_all(self) -> None:
        """Stop all nodes that run, slaves first."""
        for node in sorted(self.nodes.values(), key=lambda node: node.is_master):
            if node.is_running:
                await self.stop(node)

    async def _await_end_of(self, slave: N, master: Any) -> tuple[int, int] | None:
        """Return both log ends once they are equal, or as they are after CATCH_UP_WITHIN_S.

        None for a node of a group that is not in step: equal ends would prove nothing.
        """
        ends = (-1, -1)

        def even(status: NodeStatus) -> bool:
            nonlocal ends
            ends = (status.max_offset, ends[1])
            return ends[0] == ends[1] or _gave_up(status)

        ends = (-1, (await self.status(master)).max_offset)
        if slave.group is not None:
            try:
                await slave.caught_up_with(ends[1], is_readable=False, within_s=CATCH_UP_WITHIN_S)
            except (TimeoutError, HastoreError) as error:
                self.say(f"{slave.name} is not in step with {master.name}: {error}")
                return None
            return (await self.status(slave)).max_offset, ends[1]
        with contextlib.suppress(ScenarioFailed):
            await self.wait_until(slave, "caught up", even, within_s=CATCH_UP_WITHIN_S)
        return ends

    # -- inside

    def _in_step_by_host(self, master: N, status: NodeStatus) -> list[N]:
        """Return the slaves in step of a world in which each node has a host of its own."""
        hosts = {address.rpartition(":")[0] for address in in_step(status)}
        found = []
        for node in self.nodes.values():
            address = node.address()
            if (
                node.master is master
                and address is not None
                and not node.is_paused
                and node.link_mode is LinkMode.OPEN
                and address[0] in hosts
            ):
                found.append(node)
        return found

    def _stream(self, node: N) -> PutStream:
        if node.stream is None:
            node.stream = PutStream(
                node.name,
                self.history,
                self._nursery,
                node.address,
                self._key_prefix,
                env=self._env,
            )
        return node.stream


def _gave_up(status: NodeStatus) -> bool:
    """Whether a slave will not connect again: its log has diverged, or cannot be written."""
    link = status.master_link
    return link is not None and link.state in {"diverged", "failed"}


def _in_short(status: NodeStatus) -> str:
    text = f"{status.role} {status.state} at {status.max_offset}"
    if status.master_link is not None:
        text += f", link {status.master_link.state}"
        text += f" ({status.master_link.reason})" if status.master_link.reason else ""
    for row in status.slaves:
        text += f", slave {row.address} {row.state} at {row.ack_offset}"
    return text


@final
@attrs.define(eq=False)
class TcpPeer:
    """One raw connection to the HA port: a port scanner, a web client, a fuzzer."""

    sock: trio.socket.SocketType

    @classmethod
    async def connect(cls, address: tuple[str, int]) -> TcpPeer:
        """Connect to ``address``.  Raises OSError."""
        sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            await sock.connect(address)
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    async def send(self, data: bytes) -> None:
        """Send all of ``data``, unless the other side closes the connection."""
        with contextlib.suppress(OSError):
            await send_all(self.sock, data)

    async def read_to_end(self, within_s: float = 5.0) -> bytes:
        """Return the bytes received until the other side closes, or until the time is over."""
        received = bytearray()
        with trio.move_on_after(within_s), contextlib.suppress(OSError):
            while data := await self.sock.recv(_READ_SIZE):
                received += data
        return bytes(received)

    async def close(self) -> None:
        """Close the connection."""
        self.sock.close()
        await trio.lowlevel.checkpoint()
