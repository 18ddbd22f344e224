"""Compares an unverified log with its master's, piece by piece, until all of it is equal.

::

    a piece of 4 MiB    its SHA-256 here and there: LOG_DIGEST
      if they differ    its bytes, a MiB at a time: LOG_BYTES; they must have that SHA-256
                        the master's records are checked where the logs differ
                        our bytes there are copied to trimmed/
                        the master's are written in place, and synced
                        units of consume queues that were blank are put
    all pieces equal    blank units of the unverified range are put: a killed run had not
                        log, queues: flushed
                        identity.json: verified          from now on the node may be elected

Only a member that a repair has left unverified compares: others have copied each byte from their
masters.  What is appended after the link came into step is this master's.  A master of another
group or epoch does not answer, nor does one whose own log is not verified.

A master's log may be damaged, too, and ours may have the last intact copy of a record.  Where a
record of the master is damaged, nothing of that piece is written, the master is told where, and
the node stays unverified.  A filler of the master's is intact: an operator has accepted that log as
the group's, so it replaces a message of ours.

It waits for one answer after the other, and reads and writes the disk in a worker thread, so the
slave replicates and serves meanwhile.  Killed at any point, the node is unverified still, and the
next run begins again.

Invariants: no intact record is replaced by a damaged one.  ``unverified`` is removed only after
each byte of the log, from where the master's log begins up to its end when the link came into step,
was equal to the master's, and is on the disk, with the units of the messages that a repair had
filled.
"""

from __future__ import annotations

import hashlib
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NoReturn, final

import attrs
import trio

from hastore.broker.groups.slave_synchronize import (
    INTERVAL_S,
    RETRY_MAX_S,
    LinkChangedError,
    check_answer,
    open_masters_port,
)
from hastore.broker.port.admin_processors import (
    BYTES_SIZE_MAX,
    DIGEST_SIZE_MAX,
    EPOCH,
    GROUP,
    SUSPECT,
)
from hastore.concurrency.tcp import describe
from hastore.errors import FlushFailedError, HastoreError, LogDamagedError, ProtocolError
from hastore.store.log.store_directory import TRIMMED_DIR
from hastore.store.log_rewrite import (
    BadRecord,
    MoreNeeded,
    WrittenRecord,
    first_damage,
    record_before,
    rewrite,
    written_records,
)
from hastore.store.queue.confirmed_records import ConfirmedRecords
from hastore.store.record.delay_levels import DelayLevels
from hastore.store.recovery import trim
from hastore.store.recovery.trim import Range
from hastore.store.tools.group_log import GroupLog
from hastore.store.tools.repair.filler import FILLER_TOPIC
from hastore.trace import logger
from hastore.wire.liberal_json import loads_object
from hastore.wire.remoting_codes import RequestCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hastore.config import SlaveConfig
    from hastore.dispatch.reput_message_service import ReputMessageService
    from hastore.env.interface import Env
    from hastore.ha.autoswitch_framing import AutoswitchFraming
    from hastore.ha.client_port_link import ClientPortLink
    from hastore.store.message_store import MessageStore
    from hastore.store.node_identity import NodeIdentity
    from hastore.tls.tls_contexts import TlsContexts
    from hastore.wire.remoting_command import RemotingCommand

_UNITS_READ_SIZE: Final = 16 << 20  # of the log at a time, to put the units of its messages
_UNITS_MAX: Final = 1_000  # put at a time, while nothing else runs
_NO_MASTER: Final = "it follows no master now"
_OLD_VERSION: Final = "the master is of an older version, which answers no comparison"

_log = logger("broker")


@final
@attrs.define(eq=False, kw_only=True)
class LogComparison:
    """The comparison of one open store; ``run`` returns at once if the log is verified."""

    env: Env
    config: SlaveConfig
    message_store: MessageStore
    framing: AutoswitchFraming
    reput: ReputMessageService
    # The HA link while it is up and in step, the same object as long as it lasts; else None.
    live_link: Callable[[], object | None]
    address: tuple[str, int] | None  # of the master's client port; None: it is not known
    flush: Callable[[], Awaitable[None]]  # forces log and consume queues to the disk
    tls: TlsContexts | None = None
    # Why it does not compare now; None while it does.
    reason: str | None = attrs.field(default=_NO_MASTER, init=False)
    rewritten: int = attrs.field(default=0, init=False)  # bytes that were not the master's

    @property
    def identity(self) -> NodeIdentity:
        """The node's."""
        return self.framing.identity

    async def run(self) -> None:
        """Compare whenever the link is in step, until the log is verified, or until cancelled.

        Raises FlushFailedError.
        """
        pause_s = INTERVAL_S
        while self.identity.current.unverified is not None:
            link = self.live_link()
            if link is None:
                self.reason, pause_s = _NO_MASTER, INTERVAL_S
            elif self.address is None:
                self.reason = "its master's client port is not known: [ha] master_client"
            else:
                try:
                    await self._compare(link, self.address)
                    continue
                except LinkChangedError:
                    pause_s = INTERVAL_S
                except FlushFailedError:
                    raise
                except (HastoreError, OSError) as error:
                    self._record(error)
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    def _record(self, error: HastoreError | OSError) -> None:
        """Show why nothing is compared; log each reason once."""
        reason = str(error)
        if reason != self.reason:
            hint = error.hint if isinstance(error, HastoreError) else None
            master = describe(self.config.master)
            _log.warning("log_not_compared", master=master, reason=reason, next=hint)
        self.reason = reason

    # -- one link --------------------------------------------------------------------------------

    async def _compare(self, link: object, address: tuple[str, int]) -> None:
        """Compare the whole log with the master's on one link."""
        log, identity, epoch = self.message_store.commit_log, self.identity, self._epoch()
        unverified, stop = identity.current.unverified, log.max_offset
        assert unverified is not None, "asked before"
        async with open_masters_port(self.env, self.config, address, self.tls) as port:
            begin = await self._begin(port, epoch, stop)
            position = max(min(identity.compared_to, stop), begin)
            _log.info(
                "log_compared_with_master",
                master=describe(self.config.master),
                at=position,
                to=stop,
                reason=unverified.why,
            )
            self.reason = None
            while position < stop:
                end = min(position + DIGEST_SIZE_MAX, stop)
                if end > log.readable_offset:
                    await self.flush()
                self._check_link(link)
                await self._compare_piece(port, Range(position, end), epoch)
                self._check_link(link)
                position = identity.compared_to = end
        await self._put_units(Range(max(unverified.begin, begin), min(unverified.end, stop)))
        await self.flush()
        if await self.env.offload.run(lambda: identity.clear_unverified(unverified)):
            _log.info("log_verified", at=stop, rewritten_bytes=self.rewritten)

    def _epoch(self) -> int:
        epoch = self.framing.masters_epoch
        if epoch is None:
            raise LinkChangedError
        return epoch

    def _check_link(self, link: object) -> None:
        if self.live_link() is not link:
            raise LinkChangedError

    @property
    def _master(self) -> str:
        return describe(self.config.master)

    def _reference(self, epoch: int) -> dict[str, str]:
        """Return the fields of a request that only our group's master of an epoch answers."""
        return {GROUP: self.identity.current.group, EPOCH: str(epoch)}

    async def _begin(self, port: ClientPortLink, epoch: int, stop: int) -> int:
        """Return where both logs have begun.

        Raises ProtocolError unless it is our group's master of that epoch, its log is verified, and
        both logs should be equal from there up to ``stop``, and hold bytes to compare.
        """
        answer = await port.ask(RequestCode.GROUP_LOG, self._reference(epoch))
        check_answer(answer)
        value = loads_object(answer.body, "what a master says of its log")
        if value.get(GROUP) is None:
            raise ProtocolError(_OLD_VERSION, hint="start it with this version")
        answers, named = (value[GROUP], value.get(EPOCH)), describe(port.address)
        hint = f"is {named} its master's client port? [ha] master_client"
        if answers != (self.identity.current.group, epoch):
            msg = f"{named} is the master of another group or epoch: {answers}"
            raise ProtocolError(msg, hint=hint)
        masters = GroupLog.from_json(value)
        point = self.framing.history.consistent_point(stop, masters.epochs, masters.end_offset)
        if point is None or point.offset < stop:
            agreed = 0 if point is None else point.offset
            msg = f"the log of {named} is another one from {agreed} on, by its epochs"
            raise ProtocolError(msg, hint=hint)
        own = self.message_store.commit_log.min_offset
        if masters.min_offset >= stop > own:
            msg = (
                f"the log of {named} begins at {masters.min_offset}, and its own ends at {stop}:"
                " nothing can be compared"
            )
            raise ProtocolError(msg, hint=hint)
        return max(own, masters.min_offset)

    # -- a piece ---------------------------------------------------------------------------------

    async def _compare_piece(self, port: ClientPortLink, piece: Range, epoch: int) -> None:
        """Make a piece of the log equal to the master's, durably.

        Raises LogDamagedError if the master's log is damaged where the two differ.
        """
        own = await self.env.offload.run(lambda: hashlib.sha256(self._read(piece)).hexdigest())
        theirs = await self._digest(port, piece, epoch)
        if own == theirs:
            return
        data = await self._fetch(port, piece, epoch, theirs)
        differing = await self.env.offload.run(lambda: self._differing(piece, data))
        for part in differing:
            bad = await self._masters_damage(port, part, piece, data, epoch)
            if bad is not None:
                await self._ask(port, RequestCode.LOG_DIGEST, part, epoch, bad.physic_offset)
                raise await self.env.offload.run(partial(self._damaged, bad))
        for part in differing:
            masters = data[part.start - piece.start : part.stop - piece.start]
            records = await self.env.offload.run(partial(self._rewrite, part, masters))
            self.reput.log_rewritten(records)

    async def _ask(
        self,
        port: ClientPortLink,
        code: RequestCode,
        part: Range,
        epoch: int,
        suspect: int | None = None,
    ) -> RemotingCommand:
        """Ask about a range.  ``suspect``: a record of the master's log that seems damaged."""
        fields = self._reference(epoch) | {"from": str(part.start), "to": str(part.stop)}
        if suspect is not None:
            fields[SUSPECT] = str(suspect)
        answer = await port.ask(code, fields)
        check_answer(answer)
        return answer

    async def _digest(self, port: ClientPortLink, part: Range, epoch: int) -> str:
        answer = await self._ask(port, RequestCode.LOG_DIGEST, part, epoch)
        theirs = loads_object(answer.body, "the digest").get("sha256")
        if not isinstance(theirs, str):
            raise ProtocolError(_OLD_VERSION, hint="start it with this version")
        return theirs

    async def _fetch(
        self, port: ClientPortLink, part: Range, epoch: int, digest: str | None = None
    ) -> bytes:
        """Return the master's bytes, which have the digest that it has named."""
        if digest is None:
            digest = await self._digest(port, part, epoch)
        data = bytearray()
        for start in range(part.start, part.stop, BYTES_SIZE_MAX):
            asked = Range(start, min(start + BYTES_SIZE_MAX, part.stop))
            answer = await self._ask(port, RequestCode.LOG_BYTES, asked, epoch)
            if len(answer.body) != asked.stop - asked.start:
                msg = f"the master sent {len(answer.body)} bytes from {asked.start} on"
                raise ProtocolError(msg, hint="it is asked again")
            data += answer.body
        if hashlib.sha256(data).hexdigest() != digest:
            msg = (
                f"{self._master}: the bytes from {part.start} to {part.stop} do not have the digest"
                " that it named: its disk may be failing; verify and repair the log there"
            )
            raise ProtocolError(msg, hint="hastore log verify, on the master's machine")
        return bytes(data)

    def _differing(self, piece: Range, data: bytes) -> list[Range]:
        """Return where a piece differs from the master's bytes, at most a range in each file."""
        own, found = self._read(piece), []
        for start, stop in _pieces_by_file(piece, self.message_store.commit_log.file_size):
            first, last = start - piece.start, stop - piece.start
            while first < last and own[first] == data[first]:
                first += 1
            while last > first and own[last - 1] == data[last - 1]:
                last -= 1
            if first < last:
                found.append(Range(piece.start + first, piece.start + last))
        return found

    # -- the master's records --------------------------------------------------------------------

    async def _masters_damage(
        self, port: ClientPortLink, part: Range, piece: Range, data: bytes, epoch: int
    ) -> BadRecord | None:
        """Return the first damaged record of the master's in a range where the logs differ.

        Its last record may go on after the piece, and is read to its end.
        """
        log, disk, offload = self.message_store.commit_log, self.env.disk, self.env.offload
        file_end = part.start - part.start % log.file_size + log.file_size
        begin = await offload.run(lambda: record_before(disk, log.path, log.file_size, part.start))
        masters = data[max(begin - piece.start, 0) : file_end - piece.start]
        if begin < piece.start:  # up to the piece the logs are equal
            masters = await offload.run(lambda: self._read(Range(begin, piece.start))) + masters
        own = await offload.run(lambda: self._read(Range(begin, part.stop)))
        while True:
            found = await offload.run(
                partial(first_damage, own, masters, begin, part.stop, file_end)
            )
            if not isinstance(found, MoreNeeded):
                return found
            start = begin + len(masters)
            more = Range(start, min(found.stop, start + DIGEST_SIZE_MAX))
            masters += await self._fetch(port, more, epoch)

    def _damaged(self, bad: BadRecord) -> LogDamagedError:
        """Return the error for a damaged record of the master's; blocks."""
        log, at = self.message_store.commit_log, bad.physic_offset
        records = self._records(Range(at, at + 1))
        is_ours = any(each.physic_offset == at and not _is_filler(each) for each in records)
        ours = "its own record there is intact" if is_ours else "its own log has no message there"
        return LogDamagedError(
            f"the log of its master {self._master} is damaged at {at} ({bad.kind.value}), and"
            f" {ours}: verify and repair the log on the master's machine",
            path=log.path,
            physic_offset=at,
            hint="hastore log verify on the master's machine; then hastore cluster switchover to"
            " another member, or, with both nodes stopped, hastore log repair MASTER_DIR"
            " --from-replica DIR",
        )

    # -- writing ---------------------------------------------------------------------------------

    def _rewrite(self, part: Range, data: bytes) -> list[WrittenRecord]:
        """Write the master's bytes in place, and keep our own; return the records.  Blocks."""
        store, disk = self.message_store, self.env.disk
        mapped_file = store.commit_log.mapped_file_queue.find_mapped_file_by_offset(part.start)
        if mapped_file is None:
            _raise_expired()
        kept = trim.pieces([part], lambda at, size: self._read(Range(at, at + size)))
        now_ms = self.env.wall_clock.now_ms()
        saved = trim.save(disk, f"{store.commit_log.path}/{TRIMMED_DIR}", now_ms, kept)
        rewrite(disk, mapped_file, part.start, data)
        size = part.stop - part.start
        self.rewritten += size
        _log.warning("log_rewritten", physic_offset=part.start, size=size, saved=saved[0])
        return self._records(part)

    async def _put_units(self, part: Range) -> None:
        """Put the units of a range's messages, where they are blank.

        A run that had rewritten the log was killed before it put them, or before they were on the
        disk: these bytes are equal now.  Only a repair blanks units, and only in what it marks.
        """
        log = self.message_store.commit_log
        confirmed = ConfirmedRecords(self.env.disk, log.path)
        sure = None
        for start in range(part.start, part.stop, _UNITS_READ_SIZE):
            read = Range(start, min(start + _UNITS_READ_SIZE, part.stop))
            for piece in _pieces_by_file(read, log.file_size):
                records = await self.env.offload.run(
                    partial(self._records, Range(*piece), confirmed, sure)
                )
                if records:
                    sure = records[-1].physic_offset + records[-1].size
                for first in range(0, len(records), _UNITS_MAX):
                    self.reput.log_rewritten(records[first : first + _UNITS_MAX])
                    await trio.lowlevel.checkpoint()

    def _records(
        self, part: Range, confirmed: ConfirmedRecords | None = None, sure: int | None = None
    ) -> list[WrittenRecord]:
        """Return our whole messages that overlap a range of one file; blocks."""
        log = self.message_store.commit_log
        delay_levels = DelayLevels.parse(self.message_store.config.message_delay_level)
        return written_records(
            self.env.disk,
            log.path,
            log.file_size,
            part,
            delay_levels,
            confirmed=confirmed,
            sure=sure,
        )

    def _read(self, part: Range) -> bytes:
        """Return our bytes; blocks.  Raises LinkChangedError if they have just expired."""
        log, data = self.message_store.commit_log, bytearray()
        while len(data) < part.stop - part.start:
            start = part.start + len(data)
            more = log.read(start, part.stop - start)
            if not more:
                _raise_expired()
            data += more
        return bytes(data)


def _raise_expired() -> NoReturn:
    raise LinkChangedError  # begin again, where the log begins now


def _is_filler(record: WrittenRecord) -> bool:
    return not record.is_in_queue and FILLER_TOPIC.startswith(record.topic)


def _pieces_by_file(part: Range, file_size: int) -> list[tuple[int, int]]:
    """Return the parts of a range that lie in one file each."""
    next_file = part.start - part.start % file_size + file_size
    borders = [part.start, *range(next_file, part.stop, file_size), part.stop]
    return list(pairwise(borders))
