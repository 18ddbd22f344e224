"""A replica group's master on real files and loopback, and raw autoswitch slaves.

The master is only the parts that acknowledge: a log, the puts, and GroupHAService.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs
import trio

from hastore.broker.puts.append_sampler import AppendSampler
from hastore.broker.puts.pending_puts import PendingPuts
from hastore.broker.puts.put_message import PutMessage
from hastore.concurrency.decision_log import DecisionLog
from hastore.concurrency.group_commit_request import GroupCommitRequest
from hastore.concurrency.tcp import bound_address, connect, open_listener
from hastore.config import HAConfig, StoreConfig
from hastore.env.interface import Env
from hastore.epoch_history import EpochEntry, EpochHistory
from hastore.ha.group_ha_service import GroupHAService
from hastore.ha.refused_slaves import RefusedSlavesFile
from hastore.ha.set_rules import SetRules
from hastore.ha.sync_state_set import SyncStateSet
from hastore.message import Message
from hastore.store.commit_log import CommitLog
from hastore.store.sync_state_file import SYNC_STATE_FILE, SyncStateFile
from hastore.wire.autoswitch_frames import (
    ANSWER_HEADER,
    ANSWER_HEADER_SIZE,
    FRAME_HEADER_SIZE,
    FrameHeader,
    Handshake,
    HandshakeAnswer,
    encode_report,
)
from tests.patience import WITHIN_S
from tests.support.env.fake_env import RealFiles
from tests.support.nodes.configs import ANY_PORT, QUICK
from tests.support.store.open_log import STORE_HOST, append_data, make_file

FILE_SIZE = 64 * 1024


class NoFlush:
    """Takes the place of the flush manager of an ASYNC_FLUSH master."""

    def notify_appended(self) -> None:
        """Leave it to a timer that never comes."""


@attrs.define(eq=False)
class GroupMaster:
    """The parts, and what they have called back."""

    env: Env
    log: CommitLog
    service: GroupHAService
    puts: PutMessage
    address: tuple[str, int]
    state_file: SyncStateFile

    @property
    def group(self) -> SyncStateSet:
        """The set."""
        return self.service.sync_state_set

    def put(self, body: bytes = b"body") -> GroupCommitRequest:
        """Submit a message."""
        return self.puts.submit(Message("orders", body))

    def append(self, data: bytes) -> None:
        """Append the bytes of another log, file by file."""
        while data:
            end = self.log.max_offset
            size = self.log.file_size - end % self.log.file_size
            append_data(self.log, end, data[:size])
            data = data[size:]
        self.service.notify_appended()


@contextlib.asynccontextmanager
async def group_master(
    data_dir: Path,
    *,
    log: bytes = b"",
    epochs: tuple[tuple[int, int], ...] = ((1, 0),),
    members: set[int] = frozenset({1}),  # type: ignore[assignment]
    ids: set[int] | None = frozenset({1, 2, 3}),  # type: ignore[assignment]
    own_id: int = 1,
    rules: dict[str, Any] | None = None,
    ha: HAConfig = QUICK,
    env: Env | None = None,
    file_size: int = FILE_SIZE,
    begin_offset: int = 0,
    **service: Any,
) -> AsyncIterator[GroupMaster]:
    """Run the master of the last epoch; its log holds ``log``, from ``begin_offset`` on."""
    env = env or RealFiles().env
    data_dir.mkdir(parents=True, exist_ok=True)
    config = StoreConfig(data_dir=str(data_dir), mapped_file_size=file_size)
    commit_log = CommitLog.open(env, config, store_host=STORE_HOST, needs_queue_offsets=True)
    history = EpochHistory(tuple(EpochEntry(*entry) for entry in epochs))
    position = 0
    while position < len(log):
        offset = begin_offset + position
        size = file_size - offset % file_size
        append_data(commit_log, offset, log[position : position + size])
        position += size
    if not log:
        make_file(commit_log)
    group = SyncStateSet(
        rules=SetRules(configured_ids=None if ids is None else frozenset(ids), **(rules or {})),
        own_id=own_id,
        entry=history.entries[-1],
        began=trio.current_time(),
        accepted=frozenset(members),
        min_offset=commit_log.min_offset,
        confirm_offset=min(service.pop("confirm_offset", 0), history.entries[-1].start_offset),
        in_sync_replicas=service.pop("in_sync_replicas", "all"),
    )
    state_file = SyncStateFile(env.disk, f"{data_dir}/{SYNC_STATE_FILE}")
    decisions = DecisionLog(describe=lambda _status, _offset: ha_service.standing())
    ha_service = GroupHAService(
        env,
        commit_log,
        ha,
        RefusedSlavesFile.load(env, str(data_dir)),
        decisions,
        lambda: None,
        sync_state_set=group,
        epochs=history,
        state_file=state_file,
        **service,
    )
    puts = PutMessage(
        commit_log,
        NoFlush(),  # type: ignore[arg-type]
        ha_service,
        config,
        is_sync_master=True,
        pending=PendingPuts(config, None),  # type: ignore[arg-type]
        sampler=AppendSampler(ha_service.end_history),
        decisions=decisions,
        notify_dispatch=lambda: None,
    )
    ha_service.subscribe(puts.set_not_in_sync)
    listener = await open_listener(ANY_PORT, "slaves")
    master = GroupMaster(env, commit_log, ha_service, puts, bound_address(listener), state_file)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ha_service.run, listener)
            yield master
            nursery.cancel_scope.cancel()
    finally:
        listener.close()
        commit_log.close(clean=False)


@attrs.define(eq=False)
class RawNode:
    """A peer on the HA port that speaks autoswitch exactly as a test wants."""

    sock: trio.socket.SocketType
    header: FrameHeader | None = None  # of the last frame

    async def send(self, *parts: bytes) -> None:
        """Send bytes in one write."""
        await self.sock.send(b"".join(parts))

    async def report(self, *offsets: int) -> None:
        """Report."""
        await self.send(*map(encode_report, offsets))

    async def answer(self) -> HandshakeAnswer:
        """Receive the answer to a handshake."""
        return (await self.raw_answer())[0]

    async def raw_answer(self) -> tuple[HandshakeAnswer, bytes]:
        """Receive the answer to a handshake, and its bytes."""
        header = await self.exactly(ANSWER_HEADER_SIZE)
        assert header is not None
        body = await self.exactly(ANSWER_HEADER.unpack(header)[1])
        assert body is not None
        with memoryview(header + body) as data:
            found = HandshakeAnswer.decode(data)
        assert found is not None
        return found[0], header + body

    async def frame(self) -> tuple[FrameHeader, bytes] | None:
        """Receive one frame; None at the end of the stream."""
        data = await self.exactly(FRAME_HEADER_SIZE)
        if data is None:
            return None
        with memoryview(data) as view:
            self.header = FrameHeader.decode(view)
        body = await self.exactly(self.header.body_size)
        return None if body is None else (self.header, body)

    async def bytes_up_to(self, end: int) -> bytes:
        """Receive frames until one ends at ``end``; return their bytes."""
        data = b""
        while True:
            found = await self.frame()
            assert found is not None, "the master has closed"
            header, body = found
            data += body
            assert header.physic_offset is not None
            if header.physic_offset + len(body) >= end:
                return data

    async def begin(self, node_id: int, first_report: int = 0, **flags: bool) -> HandshakeAnswer:
        """Handshake, and report once there is the answer."""
        await self.send(Handshake(node_id=node_id, **flags).encode())
        answer = await self.answer()
        await self.report(first_report)
        return answer

    async def closed(self) -> bytes:
        """Return what the master sends before it closes."""
        data = b""
        with trio.fail_after(WITHIN_S):
            try:
                while more := await self.sock.recv(65536):
                    data += more
            except OSError:
                pass
        return data

    async def exactly(self, size: int) -> bytes | None:
        """Receive ``size`` bytes; None at the end of the stream."""
        data = bytearray()
        with trio.fail_after(WITHIN_S):
            while len(data) < size:
                more = await self.sock.recv(size - len(data))
                if not more:
                    return None
                data += more
        return bytes(data)


@contextlib.asynccontextmanager
async def raw_node(master: GroupMaster) -> AsyncIterator[RawNode]:
    """Connect a raw node."""
    sock = await connect(master.address, 5)
    try:
        yield RawNode(sock)
    finally:
        sock.close()
