"""A master that speaks autoswitch from bytes in memory: as a test says, not as hastore's would."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import trio

import hastore
from hastore.concurrency.tcp import bound_address
from hastore.config import SlaveConfig
from hastore.env.real import real_env
from hastore.epoch_history import EpochEntry, EpochHistory
from hastore.errors import ProtocolError
from hastore.status import BrokerRole, HAProtocol
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.node_identity import NodeIdentity
from hastore.wire.autoswitch_frames import (
    HANDSHAKE_SIZE,
    REPORT_SIZE,
    FrameHeader,
    Handshake,
    HandshakeAnswer,
    decode_report,
)
from tests.support.nodes.configs import ANY_PORT, QUICK
from tests.support.nodes.harness import FILE_SIZE, log_bytes, master_config, messages, slave_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

NODE_ID = 2
GROUP = "g1"
AUTOSWITCH = attrs.evolve(QUICK, protocol=HAProtocol.AUTOSWITCH)


def history(*entries: tuple[int, int]) -> EpochHistory:
    return EpochHistory(tuple(EpochEntry(*entry) for entry in entries))


def member_config(data_dir: str | Path, master: tuple[str, int], **changes: Any) -> SlaveConfig:
    """Return the configuration of node 2 of g1."""
    ha = attrs.evolve(AUTOSWITCH, **changes.pop("ha", {}))
    defaults = {"node_id": NODE_ID, "replica_group": GROUP, "ha": ha}
    return slave_config(data_dir, master, **{**defaults, **changes})


def make_member(
    data_dir: str | Path, epochs: EpochHistory, *, node_id: int = NODE_ID
) -> NodeIdentity:
    """Make a directory with a log that of a node of g1, with these epochs."""
    env = real_env()
    EpochFile(env.disk, f"{data_dir}/{EPOCH_FILE}").store(epochs)
    return NodeIdentity.open(
        env.disk,
        str(data_dir),
        node_id=node_id,
        group=GROUP,
        last_exit_ok=True,
        boot_id=env.boot_id,
        randomness=env.randomness,
        adopt=True,
    )


def epochs_in(data_dir: str | Path) -> EpochHistory:
    return EpochFile(real_env().disk, f"{data_dir}/{EPOCH_FILE}").load()


async def write_log(
    data_dir: str | Path, count: int, topic: str = "orders", size: int = 200
) -> int:
    """Let a master put messages into a directory; return where its log ends."""
    config = master_config(data_dir, role=BrokerRole.ASYNC_MASTER)
    async with hastore.open_master(config) as master:
        for message in messages(count, size, topic):
            await master.put(message)
        return int(master.max_offset)


@attrs.frozen
class Fork:
    """Two directories with a common beginning, and different messages after it."""

    former: Path  # of the former master: the point, then a tail that nobody got
    successor: bytes  # the log of the new master
    point: int
    former_end: int


async def forked(tmp_path: Path, *, tail: int = 10, news: int = 25) -> Fork:
    """Make the history of a failover."""
    former, successor = tmp_path / "former", tmp_path / "successor"
    point = await write_log(former, 30)
    shutil.copytree(former, successor)
    former_end = await write_log(former, tail, "lost")
    end = await write_log(successor, news, "new", 900)
    return Fork(former, log_bytes(successor, end), point, former_end)


@attrs.define
class Connection:
    """One connection of a slave: what it said."""

    sock: trio.socket.SocketType
    handshake: Handshake
    reports: list[int] = attrs.field(factory=list)
    refusal: str | None = None  # of its last report, which ended the link


@attrs.define
class AutoswitchMaster:
    """Answers slaves as RocketMQ 5's master does; ``grew`` must be called after a change."""

    log: bytes
    epochs: EpochHistory
    listener: trio.socket.SocketType
    min_offset: int = 0
    confirm_offset: int | None = None  # None: the log's end, as if all had everything
    batch_size: int = 4_096
    is_java: bool = False  # heartbeat first; a frame at an epoch's end has the next label
    split_answer: bool = False
    has_heartbeats: bool = True
    hold_at: int | None = None  # nothing is sent from here on, until ``grew``
    connections: list[Connection] = attrs.field(factory=list)
    _grown: trio.Event = attrs.field(factory=trio.Event)

    @property
    def address(self) -> tuple[str, int]:
        return bound_address(self.listener)

    def grew(self) -> None:
        self._grown.set()
        self._grown = trio.Event()

    def become(self, log: bytes, *entries: tuple[int, int]) -> None:
        """Be another master from now on: all links end."""
        self.log, self.epochs = log, history(*entries)
        self.drop()

    def drop(self) -> None:
        for connection in self.connections:
            connection.sock.close()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                sock, _ = await self.listener.accept()
                nursery.start_soon(self._serve, sock)

    async def _serve(self, sock: trio.socket.SocketType) -> None:
        with sock, contextlib.suppress(OSError, EOFError, trio.ClosedResourceError):
            connection = Connection(sock, Handshake.decode(await _exactly(sock, HANDSHAKE_SIZE)))
            self.connections.append(connection)
            epochs = self.epochs
            answer = HandshakeAnswer(max_offset=len(self.log), epochs=epochs).encode()
            for piece in [answer[:20], answer[20:]] if self.split_answer else [answer]:
                await _send(sock, piece)
                await trio.lowlevel.checkpoint()
            start = await self._next_report(connection)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_frames, sock, start or self.min_offset, epochs)
                with contextlib.suppress(OSError, EOFError, trio.ClosedResourceError):
                    while True:
                        await self._next_report(connection)
                nursery.cancel_scope.cancel()

    async def _next_report(self, connection: Connection) -> int:
        report = await _exactly(connection.sock, REPORT_SIZE)
        try:
            connection.reports.append(decode_report(report))
        except ProtocolError as error:
            connection.refusal = str(error)
            raise EOFError from error
        return connection.reports[-1]

    async def _send_frames(
        self, sock: trio.socket.SocketType, position: int, epochs: EpochHistory
    ) -> None:
        with contextlib.suppress(OSError, trio.ClosedResourceError):
            is_first = self.is_java
            while True:
                grown = self._grown
                confirm = len(self.log) if self.confirm_offset is None else self.confirm_offset
                if is_first or position >= len(self.log):
                    is_first = False
                    where = position if self.log else None
                    beat = FrameHeader(0, where, epochs.at(position), confirm).encode()
                    await _send(sock, beat if self.has_heartbeats else b"")
                    if position >= len(self.log):
                        await grown.wait()
                    continue
                if position == self.hold_at:
                    await grown.wait()
                writer = epochs.at(position)
                assert writer is not None
                epoch_end = epochs.end_of(writer) or len(self.log)
                file_end = position - position % FILE_SIZE + FILE_SIZE
                end = min(len(self.log), position + self.batch_size, epoch_end, file_end)
                is_at_end = self.is_java and end == epoch_end
                label = epochs.at(end) if is_at_end else writer
                header = FrameHeader(end - position, position, label, confirm)
                await _send(sock, header.encode() + self.log[position:end])
                position = end


async def _send(sock: trio.socket.SocketType, data: bytes) -> None:
    while data:
        data = data[await sock.send(data) :]


async def _exactly(sock: trio.socket.SocketType, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = await sock.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


@contextlib.asynccontextmanager
async def autoswitch_master(
    log: bytes, *entries: tuple[int, int], **options: Any
) -> AsyncIterator[AutoswitchMaster]:
    """Serve a log on a free loopback port during the block."""
    listener = trio.socket.socket()
    await listener.bind(ANY_PORT)
    listener.listen()
    master = AutoswitchMaster(log, history(*entries), listener, **options)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(master.run)
        try:
            yield master
        finally:
            nursery.cancel_scope.cancel()
            listener.close()
