"""The slave's side of replication: connect, report where our log ends, append frames, report.

One connection at a time.  Frames are parsed in place in the double read buffer and copied once,
into the log.  What a read has brought is reported at once, before flush and dispatch are woken (a
SYNC_FLUSH slave reports its flushed offset); the last report is repeated every
``ha_send_heartbeat_interval_ms``.

After a link's end the slave reconnects with back-off and jitter, or gives up until an operator
restarts it: ``hastore.ha.link_step`` decides, ``state`` and ``reason`` show it.  A record that is
damaged in the same way on the master (``DamagedRecords``) is named, and replication continues.

What depends on the protocol is in ``framing``.  Under autoswitch a link begins with a handshake,
and our log may have to be cut: then ``run`` ends with CutNeededError, because the store must be
closed for that.

Invariant: a reported offset is never above our max offset (the flushed offset under SYNC_FLUSH),
and a frame whose append failed is never reported.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Final, TypeVar, assert_never, final

import attrs
import trio

from hastore.concurrency.tcp import bound_address, connect, describe, send_all, tune, unmapped
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.config import NO_MASTER, READ_BUFFER_SIZE
from hastore.errors import (
    BelowConfirmMarkError,
    DiskError,
    DiskFullError,
    DivergedError,
    FileSizeMismatchError,
    FlushFailedError,
    HastoreError,
    LogDamagedError,
    ProtocolError,
    TlsError,
    UnreachableError,
)
from hastore.ha.client_port import MasterPort
from hastore.ha.copy_progress import CopyEvent, CopyProgress, FrameSizes
from hastore.ha.damaged_records import DamagedRecords
from hastore.ha.ha_link import HALink, Received
from hastore.ha.link_step import LinkAction, LinkEvent, LinkStep, event_of
from hastore.ha.slave_appender import FRAMES_PER_TURN_MAX, CutNeededError, SlaveAppender
from hastore.ha.slave_cursor import Frame, FrameVerdict, SlaveCursor
from hastore.ha.slave_framing import ClassicFraming
from hastore.ha.spin import Spin
from hastore.status import FlushDiskType, HAClientState
from hastore.tls.tls_fault import TlsFault
from hastore.trace import logger
from hastore.wire.autoswitch_frames import WRONG_PEER_HINT
from hastore.wire.double_read_buffer import DoubleReadBuffer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hastore.config import SlaveConfig
    from hastore.env.interface import Env
    from hastore.flush.allocate_mapped_file_service import AllocateMappedFileService
    from hastore.flush.flush_manager import FlushManager
    from hastore.ha.client_port import AskClientPort
    from hastore.ha.ha_tls import HATls
    from hastore.ha.slave_framing import SlaveFraming
    from hastore.store.commit_log import CommitLog

T = TypeVar("T")

# Only a whole frame, or this many bytes of one, is a sign of life: if a size was corrupted on the
# way, heartbeats of 12 bytes each would keep us waiting for a frame that never ends.
_TRICKLE_SIZE: Final = 4096
CUT_RETRY_S: Final = 10.0  # after a cut for which there was no room

_REFUSED_HERE_MAX: Final = 16

_log = logger("ha")


class LinkEndedError(Exception):
    """The link has ended and another one follows; the text says why."""


_LINK_ENDS: Final = (
    OSError,
    BelowConfirmMarkError,
    DiskError,
    FileSizeMismatchError,
    LogDamagedError,
    ProtocolError,
    UnreachableError,
    LinkEndedError,
)


@final
@attrs.define(eq=False)
class HAClient:
    """A slave's client of its master's HA port; ``run`` replicates the master's log."""

    env: Env
    config: SlaveConfig
    commit_log: CommitLog
    flush_manager: FlushManager
    allocate_service: AllocateMappedFileService
    notify_dispatch: Callable[[], None] = lambda: None  # called after every append
    last_message_offset: Callable[[], int | None] = lambda: None  # see SlaveAppender
    ask_client_port: AskClientPort | None = None  # see MasterPort
    framing: SlaveFraming = attrs.field(factory=ClassicFraming)
    cut_refused: HastoreError | None = None  # why a cut that is needed was not made
    tls: HATls | None = None  # None: links are plain
    # Called before each link, while the log cannot grow; a DiskError is a link that has ended.
    before_link: Callable[[], Awaitable[None]] | None = None
    # Why there is no healthy link, or what is wrong with the master's log; None if all is well.
    reason: str | None = attrs.field(default=None, init=False)
    error: HastoreError | None = attrs.field(default=None, init=False)  # has ``reason``'s hint
    link: HALink = attrs.field(init=False)  # the newest
    received: Received = attrs.field(factory=Received, init=False)
    buffer: DoubleReadBuffer = attrs.field(init=False)  # of the newest link
    _cursor: SlaveCursor = attrs.field(init=False)
    _appender: SlaveAppender = attrs.field(init=False)
    _damages: DamagedRecords = attrs.field(init=False)
    _master_port: MasterPort = attrs.field(init=False)
    _calls: Env = attrs.field(init=False)  # the socket calls of its links
    _spin: Spin = attrs.field(init=False)
    _report_wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _own_address: tuple[str, int] | None = attrs.field(default=None, init=False)  # of that link
    # The last peers that this node's own HA port has closed since then, newest last.
    _refused_here: deque[tuple[str, int]] = attrs.field(
        factory=lambda: deque(maxlen=_REFUSED_HERE_MAX), init=False
    )
    _copy_progress: CopyProgress = attrs.field(init=False)  # of the newest link
    _copying_wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    # Whether the flushed offset is reported, not the log's end: on a SYNC_FLUSH slave.
    _reports_flushed: bool = attrs.field(init=False)
    _now: Callable[[], float] = attrs.field(init=False)  # trio.current_time, at a third of its cost

    def __attrs_post_init__(self) -> None:
        """Make the parts; all links use the same buffer."""
        self._reports_flushed = self.config.store.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._now = trio.lowlevel.current_clock().current_time
        self.buffer = DoubleReadBuffer(READ_BUFFER_SIZE)
        self._cursor = SlaveCursor(self.config.slave_from, self.framing)
        self._calls, spin_us = self.env, self.config.ha.ha_spin_us
        if self.tls is not None:
            self._calls, spin_us = self.tls.calls, 0
        self._spin = Spin(self._calls.poll, spin_us)
        self.link = HALink(None, self._new_frame_sizes(), None, 0.0, self._calls.send_now)
        self._copy_progress = CopyProgress(0.0)
        self._master_port = MasterPort(self.config, self.commit_log, self.ask_client_port)
        self._damages = DamagedRecords(
            self.env,
            self.commit_log,
            self.config.master,
            self.tls,
            reader=lambda: self.framing.log_reader(),  # noqa: PLW0108 - the framing of that time
        )
        self._appender = SlaveAppender(
            env=self.env,
            commit_log=self.commit_log,
            flush_manager=self.flush_manager,
            allocate_service=self.allocate_service,
            master=self.config.master,
            notify_dispatch=self.notify_dispatch,
            last_message_offset=self.last_message_offset,
            framing=self.framing,
        )

    @property
    def state(self) -> HAClientState:
        """What ``status`` shows of the newest link."""
        return HAClientState.UNASSIGNED if self._is_unassigned else self._cursor.state

    @property
    def _is_unassigned(self) -> bool:
        return self.config.master == NO_MASTER

    @property
    def is_in_step(self) -> bool:
        """Whether the end of our log has matched the master's on the newest link."""
        return self._cursor.step is LinkStep.IN_STEP

    @property
    def live_link(self) -> HALink | None:
        """The link, while it is up and the end of our log has matched the master's on it."""
        is_up = self.is_in_step and self.link.local_address is not None
        return self.link if is_up else None

    def _new_frame_sizes(self) -> FrameSizes:
        return FrameSizes(self.config.ha.ha_transfer_batch_size, self.commit_log.file_size)

    async def run(self) -> None:
        """Replicate until cancelled.

        Raises WrongPortError if ``master`` is no HA port of our protocol or group, FlushFailedError
        if our disk failed, CutNeededError if our log must be cut first.
        """
        if self._is_unassigned:
            self.reason = "nobody has named a master to this node"
            await trio.sleep_forever()
        if isinstance(self.cut_refused, DiskFullError):
            self._cursor.on(LinkEvent.BROKEN)
            self._record_broken(self.cut_refused)
            await trio.sleep(CUT_RETRY_S)
        elif self.cut_refused is not None:
            self._cursor.on(LinkEvent.CUT_REFUSED)
            await self._give_up(self.cut_refused)
        config = self.config.ha
        backoff_ms = config.ha_reconnect_backoff_min_ms
        try:
            while True:
                self._cursor.on(LinkEvent.NEW_LINK)
                end_before = self.commit_log.max_offset
                began = trio.current_time()
                try:
                    await self._follow()
                except FlushFailedError:
                    raise
                except _LINK_ENDS as error:
                    await self._link_ended(error)
                lasted_ms = (trio.current_time() - began) * 1000
                has_grown = self.commit_log.max_offset > end_before
                if has_grown or lasted_ms > config.ha_reconnect_backoff_max_ms:
                    backoff_ms = config.ha_reconnect_backoff_min_ms
                await trio.sleep(backoff_ms * (0.5 + self.env.randomness.random()) / 1000)
                backoff_ms = min(backoff_ms * 2, config.ha_reconnect_backoff_max_ms)
        finally:
            self._cursor.on(LinkEvent.STOPPED)

    def refused_here(self, peer: tuple[str, int]) -> None:
        """Take a peer that this node's own HA port closes: it may be the link to our master."""
        self._refused_here.append(unmapped(peer))

    def _has_reached_itself(self) -> bool:
        return self._own_address is not None and unmapped(self._own_address) in self._refused_here

    async def _link_ended(self, error: Exception) -> None:
        """Act on the error that ended a link; return for another attempt."""
        if self._has_reached_itself():
            self._cursor.on(LinkEvent.BROKEN)
            self._record_broken(
                ProtocolError(
                    f"{describe(self.config.master)} is this node's own HA port: the address of its"
                    " master leads back to it",
                    hint="give the master an address at which other nodes reach it: [listen] ha"
                    " (--ha-listen), or [cluster] advertise (--advertise)",
                )
            )
            return
        event = event_of(error)
        is_broken = event is LinkEvent.BROKEN and not isinstance(error, UnreachableError)
        refused = None
        if isinstance(error, TlsError) and error.fault != TlsFault.CUT:
            is_broken = False  # it says what is wrong
        if is_broken and self.tls is not None:  # first: the port itself takes no question
            refused = await self._master_port.why_refused(self._own_address)
        if is_broken and refused is None:
            await self._check_port()
        match self._cursor.on(event):
            case LinkAction.GIVE_UP | LinkAction.GIVE_UP_DIVERGED:
                assert isinstance(error, HastoreError)
                await self._give_up(error)
            case LinkAction.COMPARE_DAMAGE:
                assert isinstance(error, LogDamagedError)
                await self._compare_damage(error)
            case LinkAction.CALL_BROKEN:
                self._record_broken(LinkEndedError(f"the stream no longer fits this log: {error}"))
            case _:
                if is_broken and self.tls is None:
                    refused = await self._master_port.why_refused(self._own_address)
                self._record_broken(refused or error)

    async def _check_port(self) -> None:
        """Raise WrongPortError if the link broke because the port is no HA port of our protocol."""
        has_read_any = self.received.has_read_any
        if not has_read_any or self.link.reported_offset is None:
            await self._master_port.check_protocol()
        if not has_read_any:
            began = self.link.first_report_time or self.link.connected_time
            await self._master_port.check_closed_link(trio.current_time() - began)

    def _record_broken(self, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self.error = error if isinstance(error, HastoreError) else None
        if self.reason != reason:
            _log.warning("ha_link_broken", master=describe(self.config.master), reason=reason)
        self.reason = reason

    async def _give_up(self, error: HastoreError) -> None:
        """Show ``error`` and make no further attempt: an operator must act."""
        self.reason = str(error)
        self.error = error
        _log.error("ha_gave_up", state=self.state.value, reason=str(error), next=error.hint)
        await trio.sleep_forever()

    # -- one connection --------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Connect and serve the connection until it ends; always raises."""
        self.buffer.clear()
        self._appender.reset()
        self._damages.check()
        if self.allocate_service.last_error is not None:
            await self.allocate_service.wait_for_file()  # without room for a file a link is useless
        if self._reports_flushed:  # the stream resumes at our end, which must be on the disk
            await self.flush_manager.flush_all()
        if self.before_link is not None:
            await self.before_link()
        timeout_s = self.config.ha.ha_connect_timeout_ms / 1000
        self._own_address = None
        self._refused_here.clear()
        sock = await connect(self.config.master, timeout_s)
        try:
            tune(sock)
            self._own_address = bound_address(sock)
            if self.tls is not None:
                sock = await self.tls.connect(sock, self.config.master, timeout_s)
            now = trio.current_time()
            sizes = self._new_frame_sizes()
            link = HALink(
                sock,
                sizes,
                self._own_address,
                now,
                self._calls.send_now,
                self.framing.encode_report,
            )
            self.link = link
            self.received.connections += 1
            await self._master_port.learn_file_size()
            link.frame_sizes = self._new_frame_sizes()
            start = await self.framing.shake_hands(self._exchange, self.commit_log)
            if start is not None:
                self._appender.reset(start)
                link.frame_sizes.epoch_ends = start.epoch_ends
            first_report = self._cursor.first_report(self._appender.position)
            link.queue_report(first_report)
            link.first_report_time = trio.current_time()
            self._copy_progress = CopyProgress(link.first_report_time)
            self._copying_wake = WaitNotifyObject()
            await link.send_reports()
            _log.info("ha_connected", master=describe(self.config.master), at=first_report)
            await self._serve(sock)
        except DivergedError:
            if self._cursor.would(LinkEvent.OTHER_LOG) is LinkAction.GIVE_UP_DIVERGED:
                await self.link.report_diverged()
            raise
        finally:
            self.link.local_address = None
            sock.close()

    async def _exchange(
        self, request: bytes, decode: Callable[[memoryview], tuple[T, int] | None]
    ) -> T:
        """Send the handshake and return the answer.  Raises ProtocolError if none comes in time."""
        sock, buffer, timeout_ms = self.link.sock, self.buffer, self.config.ha.ha_connect_timeout_ms
        assert sock is not None
        why = f"has not answered the handshake within {timeout_ms} ms"
        with trio.move_on_after(timeout_ms / 1000):
            await send_all(sock, request)
            try:
                while True:
                    await self._receive(sock, spin=False)
                    with buffer.view[buffer.dispatch_position : buffer.write_position] as data:
                        found = decode(data)
                    if found is not None:
                        answer, size = found
                        buffer.consume(size)
                        return answer
            except LinkEndedError:
                why = "closed the link at the handshake"
        msg = f"the master {why}: it may speak the classic protocol, or refuse this node"
        raise ProtocolError(msg, hint=WRONG_PEER_HINT)

    async def _serve(self, sock: trio.socket.SocketType) -> None:
        failures: list[Exception] = []

        async def guard(service: Awaitable[None]) -> None:
            try:
                await service
            except (HastoreError, OSError, LinkEndedError, CutNeededError) as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(guard, self._read(sock))
            nursery.start_soon(guard, self._keep_alive())
            nursery.start_soon(guard, self._damages.watch())
            nursery.start_soon(guard, self._log_copying())
            if self._reports_flushed:
                nursery.start_soon(guard, self._report_flushed())
        if failures:
            raise failures[0]

    async def _read(self, sock: trio.socket.SocketType) -> None:
        buffer, link, received, appender = self.buffer, self.link, self.received, self._appender
        current_time, spins = self._now, self._spin.is_on
        header_size = self.framing.header_size
        trickled, counted, expects_more = 0, link.frame_bytes, False
        while True:
            count = await self._receive(sock, spin=expects_more)
            now = current_time()
            frames, trickled = link.frames, trickled + count
            was_comparing, took_s = False, None
            if self._cursor.step is LinkStep.IN_STEP:
                took_s = self._append_and_report(now)
            else:
                was_comparing = appender.is_comparing
            if buffer.unparsed >= header_size:
                frames_before = link.frames
                await self._dispatch()
                if took_s is None or link.frames != frames_before:
                    took_s = current_time() - now
            if took_s is not None:
                received.append_times.observe(took_s)
            if link.frames != frames or buffer.unparsed >= header_size:
                link.heard.set()  # part of a header carries no information
            if link.frames != frames or trickled >= _TRICKLE_SIZE:
                # It may be later than ``now``: silence does not count while we wait for our disk.
                link.last_read_time, trickled = max(link.last_read_time, now), 0
            # A header that is left in the buffer begins an incomplete frame with log bytes: a
            # heartbeat would have been parsed.
            news = link.frame_bytes + (buffer.unparsed if buffer.unparsed >= header_size else 0)
            if link.frames != frames:
                self._report_progress(now, brought_bytes=news != counted)
            expects_more = news != counted and spins
            if news != counted:
                received.flow_monitor.add(news - counted, now)
                received.last_news_time, counted = now, news
            if was_comparing and not appender.is_comparing:
                self._report_wake.wakeup()  # bytes flushed earlier may be reported now
            if link.has_reports():
                await link.send_reports()

    async def _receive(self, sock: trio.socket.SocketType, *, spin: bool) -> int:
        """Receive some bytes into the buffer; ``spin``: more are expected soon."""
        received = self.received
        with self.buffer.free() as room:
            count = await self._spin.receive(sock, room) if spin else None
            if count is None:
                count = await self._calls.receive(sock, room)
            if not received.has_read_any:
                self._master_port.check_first_bytes(room[:count])
                received.has_read_any = count > 0
        if count == 0:
            msg = "the master closed the link"
            if not received.has_read_any:
                msg += " before it sent anything: it may refuse this slave, or speak autoswitch"
            raise LinkEndedError(msg)
        self.buffer.received(count)
        return count

    def _report_progress(self, now: float, *, brought_bytes: bool) -> None:
        """Log that the slave is in step, or wake the task that logs the copy's progress."""
        appender = self._appender
        if appender.is_comparing or appender.is_measuring or self._cursor.warning is not None:
            return
        reached_end = self.link.frame_sizes.reached_end
        news = self._copy_progress.record(now, brought_bytes=brought_bytes, reached_end=reached_end)
        if news is CopyEvent.IN_STEP:
            self._master_port.link_in_step()
            master = describe(self.config.master)
            _log.info("ha_in_step", master=master, at=appender.position)
        elif news is CopyEvent.COPYING:
            self._copying_wake.wakeup()

    async def _log_copying(self) -> None:
        """Log how far the copy is whenever that is due; asks the master where its log ends."""
        end: int | None = 0
        while True:
            await self._copying_wake.wait_for_running()
            if end is not None:  # a master that did not answer is not asked again on this link
                end = await self._master_port.masters_end()
            if self._copy_progress.is_in_step:
                continue
            at = self._appender.position
            rate = self.received.flow_monitor.bytes_per_s(trio.current_time())
            copied, total, left_s = at - self.commit_log.min_offset, None, None
            if end is not None:
                end = max(end, at)
                total = end - self.commit_log.min_offset
                left_s = round((end - at) / rate) if rate else None
            _log.info(
                "ha_copying",
                master=describe(self.config.master),
                at=at,
                end=end,
                copied_bytes=copied,
                total_bytes=total,
                percent=copied * 100 // total if total else None,
                bytes_per_s=round(rate),
                left_s=left_s,
            )

    def _append_and_report(self, now: float) -> float | None:
        """Append the plain frames in the buffer, and report before anything else is done.

        Return the seconds that it took to append them, None if there are none.
        """
        link, received, appender = self.link, self.received, self._appender
        start = appender.position
        appended = appender.append_frames(self.buffer)
        if appended is None:
            return None
        took_s = self._now() - now
        frames, size, size_before = appended
        end = received.master_offset = appender.position
        self.framing.appended(end)
        if not self._reports_flushed:
            link.queue_report(end)
            link.send_at_once(now)
        appender.notify()
        link.frames += frames
        link.frame_bytes += frames * self.framing.header_size + end - start
        if size_before:
            link.frame_sizes.record(end - size, size_before)
        link.frame_sizes.record(end, size)
        return took_s

    async def _dispatch(self) -> None:
        """Append every whole frame in the buffer."""
        buffer, link, cursor, appender = self.buffer, self.link, self._cursor, self._appender
        framing, header_size = self.framing, self.framing.header_size
        for count in itertools.count(1):
            if count % FRAMES_PER_TURN_MAX == 0:
                await trio.lowlevel.checkpoint()
            own_end = appender.position if appender.is_measuring else self.commit_log.max_offset
            found = cursor.next_frame(buffer, appender.position, own_end)
            if found is None:
                return
            verdict, frame = found
            end = self.received.master_offset = frame.physic_offset + frame.size
            is_first = cursor.state is HAClientState.CONNECTING
            if is_first or not frame.size or verdict is not FrameVerdict.APPEND:
                await self._begin(verdict, frame)
            if framing.needs_epochs(frame.physic_offset, frame.size):
                await framing.store_epochs()
            if frame.size:
                link.frame_bytes += header_size + frame.size
                link.frame_sizes.record(end, frame.size)
                with buffer.view[frame.start : frame.start + frame.size] as body:
                    await appender.append(frame.physic_offset, body)
            buffer.consume(header_size + frame.size)
            link.frames += 1
            if framing.appended(appender.position):
                self.notify_dispatch()
            if cursor.step is not LinkStep.IN_STEP and not appender.is_comparing:
                cursor.on(LinkEvent.MATCHED)
            if frame.size and not self._reports_flushed and not appender.is_measuring:
                link.queue_report(appender.position)
            elif not frame.size and framing.answers_heartbeats:
                self._answer_heartbeat()

    def _answer_heartbeat(self) -> None:
        """Repeat the last report, as a sign of life: the master may ask because of our node id.

        Only in step: a first report is repeated later (``_keep_alive``).
        """
        link = self.link
        if self._cursor.step is LinkStep.IN_STEP and not link.has_reports():
            assert link.reported_offset is not None
            link.queue_report(link.reported_offset)

    async def _begin(self, verdict: FrameVerdict, frame: Frame) -> None:
        """Act on the verdict of a link's first frame, or of a heartbeat.

        Raises LinkEndedError if the slave must reconnect with another first report.
        """
        match verdict:
            case FrameVerdict.APPEND:
                self._cursor.on(LinkEvent.FRAME)
                self.error = self._damages.masters_damage or self._cursor.warning
                self.reason = None if self.error is None else str(self.error)
            case FrameVerdict.APPEND_AFTER_ZERO:
                await self._appender.append(0, memoryview(b"\0"))
            case FrameVerdict.ASK_AGAIN:
                msg = "the master took 'last file' for an offset: asking as a RocketMQ slave does"
                raise LinkEndedError(msg)
            case FrameVerdict.ASK_LATER:
                self._appender.begin_later(frame.physic_offset)
                msg = (
                    f"the master asks to compare from {frame.physic_offset} on: it deleted what is"
                    " before, or does not know this slave"
                )
                raise LinkEndedError(msg)
            case _:
                assert_never(verdict)

    def damaged(self, physic_offset: int, what: str) -> None:
        """End the link, because a record of our log is damaged: ``what`` says how."""
        self._damages.add(physic_offset, what)

    async def _compare_damage(self, first: LogDamagedError) -> None:
        """Give up if the master's record is intact; return if its record is the same."""
        if self.error is not first:
            self.reason, self.error = f"{first}; comparing it with the master's record", first
        try:
            if await self._appender.ends_inside(first.physic_offset):
                self._damages.forget(first)
                return
            damage: HastoreError | None = await self._appender.file_end_at(first.physic_offset)
            if damage is None or not await self._damages.is_same_on_master(first.physic_offset):
                damage = await self._damages.compare()
        except (HastoreError, OSError) as error:
            reason = f"{first}; cannot compare it with the master's record: {error}"
            if self.reason != reason:
                master = describe(self.config.master)
                _log.warning("ha_link_broken", master=master, reason=reason)
            self.reason = reason
        else:
            if damage is not None:
                self._cursor.on(LinkEvent.OWN_DAMAGE)
                await self._give_up(damage)

    # -- reports ---------------------------------------------------------------------------------

    def notify_flushed(self) -> None:
        """Report the flushed offset at once; the task sends what the socket does not take.

        Does nothing on an ASYNC_FLUSH slave, and before a link's first report.
        """
        link = self.link
        if not self._reports_flushed or link.reported_offset is None:
            return
        if link.local_address is not None:
            self._queue_flushed()
            link.send_at_once(trio.current_time())
            if link.has_reports():
                self._report_wake.wakeup()

    async def _report_flushed(self) -> None:
        while True:
            await self._report_wake.wait_for_running()
            self._queue_flushed()
            await self.link.send_reports()

    def _queue_flushed(self) -> None:
        """Queue a report of the flushed offset, if it is news."""
        link, offset = self.link, self.flush_manager.flushed_offset
        if self._appender.is_comparing:
            return
        assert link.reported_offset is not None
        if offset > link.reported_offset:
            link.queue_report(offset)

    async def _keep_alive(self) -> None:
        """Repeat the last report on an idle link; raise LinkEndedError if the master is silent.

        A RocketMQ master whose log ends below our first report closes the link at the second one,
        but sends its end in a heartbeat a little more than one interval after the connect.  So the
        second report waits for that, as long as the master does not take us for dead.
        """
        config = self.config.ha
        heartbeat_s = config.ha_send_heartbeat_interval_ms / 1000
        silence_s = config.ha_housekeeping_interval_ms / 1000
        patience_s = max(heartbeat_s, min(2 * heartbeat_s, silence_s * 3 / 4))
        with trio.move_on_at(self.link.last_write_time + min(patience_s, silence_s)):
            await self.link.heard.wait()
        while True:
            await trio.sleep_until(
                min(self.link.last_write_time + heartbeat_s, self.link.last_read_time + silence_s)
            )
            now = trio.current_time()
            if self._appender.is_waiting:
                self.link.last_read_time = now
            if now >= self.link.last_read_time + silence_s:
                msg = f"the master was silent for {config.ha_housekeeping_interval_ms} ms"
                raise LinkEndedError(msg)
            if now >= self.link.last_write_time + heartbeat_s:
                self.link.last_write_time = now  # also while a report is stuck
                assert self.link.reported_offset is not None
                self.link.queue_report(self.link.reported_offset)
                await self.link.send_reports()
