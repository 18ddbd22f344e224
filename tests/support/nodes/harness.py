"""Masters, slaves and raw peers on loopback, for the tests of the HA services."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import trio

from hastore.concurrency.tcp import bound_address, connect
from hastore.config import MasterConfig, SlaveConfig, StoreConfig
from hastore.env.interface import DiskFile, Env
from hastore.env.real import real_env
from hastore.message import Message
from hastore.status import BrokerRole, FlushDiskType
from hastore.wire.ha_frames import HEADER, HEADER_SIZE, REPORT
from tests.patience import WITHIN_S
from tests.support.nodes.configs import ANY_PORT, QUICK

Address = tuple[str, int]
FILE_SIZE = 64 * 1024


def master_config(data_dir: str | Path, **changes: Any) -> MasterConfig:
    store = StoreConfig(
        data_dir=str(data_dir),
        mapped_file_size=changes.pop("file_size", FILE_SIZE),
        **changes.pop("store", {}),
    )
    config = MasterConfig(
        store=store,
        role=BrokerRole.SYNC_MASTER,
        listen=None,
        ha_listen=ANY_PORT,
        ha=QUICK,
    )
    return attrs.evolve(config, **changes)


def slave_config(data_dir: str | Path, master: Address, **changes: Any) -> SlaveConfig:
    store = StoreConfig(
        data_dir=str(data_dir),
        mapped_file_size=changes.pop("file_size", FILE_SIZE),
        **changes.pop("store", {}),
    )
    config = SlaveConfig(store=store, master=master, listen=None, ha=QUICK)
    return attrs.evolve(config, **changes)


def messages(count: int, size: int = 200, topic: str = "orders") -> list[Message]:
    return [
        Message(topic, bytes([65 + i % 26]) * size, properties={"KEYS": f"k{i}"}, queue_id=i % 4)
        for i in range(count)
    ]


def log_bytes(data_dir: str | Path, end: int | None = None) -> bytes:
    """Return the commit log's bytes up to ``end`` (an offset; the first file starts at 0)."""
    files = sorted(Path(data_dir, "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files)[:end]


@attrs.define
class SentPieces:
    """The ends of the pieces that ``send_file`` sends, and those that were not flushed yet."""

    ends: list[int] = attrs.field(factory=list)
    unflushed: list[int] = attrs.field(factory=list)
    master: Any = None  # the master whose log is sent

    def env(self) -> Env:
        """Return an environment that records them."""
        return attrs.evolve(real_env(), send_file=self._send)

    async def _send(
        self, sock: trio.socket.SocketType, file: DiskFile, position: int, size: int
    ) -> None:
        self.ends.append(position + size)
        if self.ends[-1] > self.master.commit_log.flushed_offset:
            self.unflushed.append(self.ends[-1])
        await real_env().send_file(sock, file, position, size)


def flushed_by(flush: FlushDiskType) -> dict[str, Any]:
    """Return settings of a store with flush type ``flush`` that never flushes by time."""
    return {
        "flush_disk_type": flush,
        "flush_interval_ms": 600_000,
        "flush_thorough_interval_ms": 600_000,
    }


@attrs.define
class RawSlave:
    """A peer on the HA port that sends exactly what a test wants."""

    sock: trio.socket.SocketType
    received: bytearray = attrs.field(factory=bytearray)

    async def report(self, *offsets: int) -> None:
        await self.sock.send(b"".join(REPORT.pack(offset) for offset in offsets))

    async def frame(self) -> tuple[int, bytes | None] | None:
        """Receive one frame: (offset, body); None at the end of the stream."""
        header = await self._exactly(HEADER_SIZE)
        if header is None:
            return None
        offset, size = HEADER.unpack(header)
        return offset, await self._exactly(size)

    async def closed_by_master(self) -> None:
        """Read until the master closes."""
        with trio.fail_after(WITHIN_S):
            try:
                while await self.sock.recv(65536):
                    pass
            except OSError:
                pass

    async def _exactly(self, size: int) -> bytes | None:
        data = bytearray()
        with trio.fail_after(WITHIN_S):
            while len(data) < size:
                more = await self.sock.recv(size - len(data))
                if not more:
                    return None
                data += more
        return bytes(data)


@contextlib.asynccontextmanager
async def raw_slave(master: Any) -> AsyncIterator[RawSlave]:
    sock = await connect(master.ha_address, 5)
    try:
        yield RawSlave(sock)
    finally:
        sock.close()


@attrs.define
class RawMaster:
    """A listener that plays a master: it accepts the connections of one slave.

    Connections left open are closed at the end; otherwise a failing test would make others fail.
    """

    listener: trio.socket.SocketType
    socks: list[trio.socket.SocketType] = attrs.field(factory=list)

    @property
    def address(self) -> Address:
        return bound_address(self.listener)

    async def accept(self) -> trio.socket.SocketType:
        with trio.fail_after(WITHIN_S):
            sock, _ = await self.listener.accept()
        self.socks.append(sock)
        return sock


async def read_report(sock: trio.socket.SocketType) -> int | None:
    data = b""
    with trio.fail_after(WITHIN_S):
        while len(data) < 8:
            more = await sock.recv(8 - len(data))
            if not more:
                return None
            data += more
    (offset,) = REPORT.unpack(data)
    return int(offset)


@contextlib.asynccontextmanager
async def raw_master() -> AsyncIterator[RawMaster]:
    listener = trio.socket.socket()
    await listener.bind(ANY_PORT)
    listener.listen()
    master = RawMaster(listener)
    try:
        yield master
    finally:
        for sock in (listener, *master.socks):
            sock.close()
