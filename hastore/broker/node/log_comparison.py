"""Compares an unverified log with its master's, piece by piece, until all of it is equal.

::

    a piece of 4 MiB    its SHA-256 here and there: LOG_DIGEST
      if they differ    its bytes, a MiB at a time: LOG_BYTES
                        what differs is written in place, and synced
                        units of consume queues that were blank are put
    all pieces equal    log, queues: flushed
                        identity.json: verified          from now on the node may be elected

Only a member that a repair has left unverified compares: others have copied each byte from their
masters.  What is appended after the link came into step is this master's.  A master of another
epoch does not answer, nor does one whose own log is not verified.

It waits for one answer after the other, and reads and writes the disk in a worker thread, so the
slave replicates and serves meanwhile.  Killed at any point, the node is unverified still.

Invariant: ``unverified`` is removed only after each byte of the log, from where the master's log
begins up to its end when the link came into step, was equal to the master's, and is on the disk.
"""

from __future__ import annotations

import hashlib
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
from hastore.broker.port.admin_processors import BYTES_SIZE_MAX, DIGEST_SIZE_MAX, EPOCH
from hastore.concurrency.tcp import describe
from hastore.errors import FlushFailedError, HastoreError, ProtocolError
from hastore.store.log_rewrite import WrittenRecord, rewrite, written_records
from hastore.store.record.delay_levels import DelayLevels
from hastore.store.recovery.trim import Range
from hastore.store.tools.group_log import GroupLog
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

_NO_MASTER: Final = "it follows no master now"

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
            masters = await self._masters_log(port)
            begin = max(log.min_offset, masters.min_offset)
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

    async def _masters_log(self, port: ClientPortLink) -> GroupLog:
        answer = await port.ask(RequestCode.GROUP_LOG)
        check_answer(answer)
        return GroupLog.from_json(loads_object(answer.body, "what a master says of its log"))

    # -- a piece ---------------------------------------------------------------------------------

    async def _compare_piece(self, port: ClientPortLink, piece: Range, epoch: int) -> None:
        """Make a piece of the log equal to the master's, durably."""
        own = await self.env.offload.run(lambda: hashlib.sha256(self._read(piece)).hexdigest())
        fields = {"from": str(piece.start), "to": str(piece.stop), EPOCH: str(epoch)}
        answer = await port.ask(RequestCode.LOG_DIGEST, fields)
        check_answer(answer)
        theirs = loads_object(answer.body, "the digest").get("sha256")
        if not isinstance(theirs, str):
            msg = "the master is of an older version, which gives no digests to compare with"
            raise ProtocolError(msg, hint="start it with this version")
        if own == theirs:
            return
        sha256 = hashlib.sha256()
        for start in range(piece.start, piece.stop, BYTES_SIZE_MAX):
            part = Range(start, min(start + BYTES_SIZE_MAX, piece.stop))
            data = await self._fetch(port, part, epoch)
            sha256.update(data)
            await self._take(part, data)
        if sha256.hexdigest() != theirs:
            msg = f"the master's bytes from {piece.start} to {piece.stop} have not its own digest"
            raise ProtocolError(msg, hint="its disk may be failing: hastore log verify, there")

    async def _fetch(self, port: ClientPortLink, part: Range, epoch: int) -> bytes:
        fields = {"from": str(part.start), "to": str(part.stop), EPOCH: str(epoch)}
        answer = await port.ask(RequestCode.LOG_BYTES, fields)
        check_answer(answer)
        if len(answer.body) != part.stop - part.start:
            msg = f"the master sent {len(answer.body)} bytes from {part.start} on"
            raise ProtocolError(msg, hint="it is asked again")
        return answer.body

    async def _take(self, part: Range, data: bytes) -> None:
        """Write what differs in a part, and put the units of its records."""
        records = await self.env.offload.run(lambda: self._rewrite(part, data))
        if records is not None:
            self.reput.log_rewritten(records)

    def _rewrite(self, part: Range, data: bytes) -> list[WrittenRecord] | None:
        """Write what differs; return the records there, None if nothing differs.  Blocks."""
        own = self._read(part)
        if own == data:
            return None
        store = self.message_store
        disk, data_dir, file_size = self.env.disk, store.commit_log.path, store.commit_log.file_size
        delay_levels = DelayLevels.parse(store.config.message_delay_level)
        records: list[WrittenRecord] = []
        for start, stop in _pieces_by_file(part, file_size):
            first, last = start - part.start, stop - part.start
            while first < last and own[first] == data[first]:
                first += 1
            while last > first and own[last - 1] == data[last - 1]:
                last -= 1
            if first == last:
                continue
            where = Range(part.start + first, part.start + last)
            mapped_file = store.commit_log.mapped_file_queue.find_mapped_file_by_offset(where.start)
            if mapped_file is None:
                _raise_expired()
            rewrite(disk, mapped_file, where.start, data[first:last])
            self.rewritten += last - first
            _log.warning("log_rewritten", physic_offset=where.start, size=last - first)
            records += written_records(disk, data_dir, file_size, where, delay_levels)
        return records

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


def _pieces_by_file(part: Range, file_size: int) -> list[tuple[int, int]]:
    """Return the parts of a range that lie in one file each."""
    next_file = part.start - part.start % file_size + file_size
    borders = [part.start, *range(next_file, part.stop, file_size), part.stop]
    return list(pairwise(borders))
