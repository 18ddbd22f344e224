"""Slaves that were refused because their logs differ from ours: refused for good.

The classic protocol carries a peer's address and where its log ends, and nothing else.  A slave
that once reported an end beyond ours holds another log.  It is sent nothing, so it keeps reporting
that offset; once our log has grown past it, the report looks like that of a slave which lags.  So
the pair is remembered; so is that of a slave which a promoted master does not know
(``ServedSlaves``).  Both tables survive restarts in the file ``DIR/refused_slaves.json``::

    {
      "schema": "hastore.refused-slaves/1",
      "refused": [
        {"address": "10.0.0.7", "offset": 5242880, "master_end": 1048576, "because": "ahead",
         "time_ms": 1763823972000}
      ],
      "promotion": {"start": 1048576, "time_ms": 1763823972000},
      "served": [{"address": "10.0.0.8", "ack_offset": 2097152, "time_ms": 1763823980000}],
      "is_slave": true
    }

``offset`` is what the slave reported, ``master_end`` where the master's log ended then, or
``because`` of a promotion, when that began.  ``is_slave``: the directory is a classic slave's; the
next opening by a master is a promotion.  The last three keys may be missing.

Limits keep hostile peers from filling the table: an offset that our log could not reach in years is
not remembered (port scans report those), nor one that came with other bytes (a client's request;
see ``ReadSocketService``).  One peer has ``PER_PEER_MAX`` places, all together ``REFUSALS_MAX``.
Nothing is evicted; places become free when the log's front expires, because a slave at a deleted
offset is refused anyway.

The file is replaced atomically in a worker thread soon after the table has changed; a clean stop
waits for that.  A master killed within those milliseconds has not remembered the refusal, which is
harmless: the slave comes again, and is ahead unless the log has grown past its end by then.  A
slave's place among the served ones, and a promotion, are written before they count.  An operator
who removes the file while the master runs allows all slaves again, until the next promotion: its
existence is checked when a remembered pair reports, and before each write.

Invariants: ``master_end`` < ``offset``; no limit is exceeded; addresses are normalized; reading
raises nothing and changes nothing; an unreadable file is named in a warning and renamed to
``.torn`` before it is replaced; changes that could not be written still count, and are written
once the disk takes them.
"""

from __future__ import annotations

import enum
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.concurrency.peers import one_spelling, peer_key
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import DiskError, ProtocolError
from hastore.ha.served_slaves import Admission, ServedSlaves
from hastore.store.json_file import TORN_SUFFIX
from hastore.trace import logger
from hastore.wire.ha_frames import FIRST_OFFSET_MIN
from hastore.wire.liberal_json import loads_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hastore.env.interface import Disk, Env
    from hastore.ha.served_slaves import ServedLink

FILE_NAME: Final = "refused_slaves.json"
RETRY_S: Final = 1.0  # after a write that the disk has refused
SCHEMA: Final = "hastore.refused-slaves/1"
PER_PEER_MAX: Final = 32  # a peer: an IPv4 address, or the /64 of an IPv6 address
REFUSALS_MAX: Final = 1_024
# 64 PiB: two years at 1 GiB/s.  Text, TLS and most other bytes sent to a wrong port read as offsets
# further ahead than that.
AHEAD_MAX: Final = 1 << 56
_OFFSET_MAX: Final = (1 << 63) - 1

_log = logger("ha")


class RefusalOutcome(enum.Enum):
    """The outcome of remembering a refusal."""

    REMEMBERED = "remembered"
    KNOWN = "known"
    ABSURD = "absurd"  # no log ends at that offset
    FULL = "full"


class RefusedBecause(enum.Enum):
    """Why a slave's log cannot be ours."""

    AHEAD = "ahead"  # it ended beyond ours
    PROMOTION = "promotion"  # it ended beyond a promotion's start, and not by our bytes


@attrs.frozen(kw_only=True)
class RefusedSlave:
    """A slave that reported ``offset`` when the master's log ended at ``master_end``.

    Because of a promotion: after our log had ended there at the promotion.
    """

    address: str
    offset: int  # > master_end, in bytes
    master_end: int  # exclusive
    time_ms: int  # wall clock
    because: RefusedBecause = RefusedBecause.AHEAD

    def to_json(self) -> dict[str, Any]:
        """Return the row of the file."""
        return {**attrs.asdict(self), "because": self.because.value}


@final
class RefusedSlaves:
    """The pairs of address and offset that stay refused, oldest first."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], RefusedSlave] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        """Number of pairs."""
        return len(self._rows)

    def __iter__(self) -> Iterator[RefusedSlave]:
        """Iterate over all refusals, oldest first."""
        return iter(self._rows.values())

    def find(self, address: str, offset: int) -> RefusedSlave | None:
        """Return the refusal that a first report of ``offset`` from ``address`` repeats."""
        if not self._rows:
            return None
        return self._rows.get((one_spelling(address), offset))

    def add(self, refused: RefusedSlave) -> RefusalOutcome:
        """Remember a refusal if the limits allow it."""
        refused = attrs.evolve(refused, address=one_spelling(refused.address))
        pair = refused.address, refused.offset
        if pair in self._rows:
            return RefusalOutcome.KNOWN
        if refused.offset - refused.master_end > AHEAD_MAX:
            return RefusalOutcome.ABSURD
        peer = peer_key(refused.address)
        if len(self._rows) >= REFUSALS_MAX or self._counts[peer] >= PER_PEER_MAX:
            return RefusalOutcome.FULL
        self._rows[pair] = refused
        self._counts[peer] += 1
        return RefusalOutcome.REMEMBERED

    def forget(self, address: str, offset: int) -> bool:
        """Forget a pair; return whether it was known."""
        refused = self._rows.pop((one_spelling(address), offset), None)
        if refused is None:
            return False
        self._counts[peer_key(refused.address)] -= 1
        return True

    def forget_before(self, min_offset: int) -> bool:
        """Forget the offsets below ``min_offset``, which are refused anyway; return if any."""
        gone = [refused for refused in self if refused.offset < min_offset]
        for refused in gone:
            self.forget(refused.address, refused.offset)
        return bool(gone)

    def to_json(self) -> dict[str, Any]:
        """Return the file's keys."""
        return {"schema": SCHEMA, "refused": [refused.to_json() for refused in self]}

    @classmethod
    def from_json(cls, value: dict[str, Any], what: str) -> tuple[RefusedSlaves, str | None]:
        """Return the valid rows of a file's content, and what is wrong with the others."""
        table = cls()
        rows = value.get("refused")
        if value.get("schema") != SCHEMA or not isinstance(rows, list):
            return table, f"{what} is not {SCHEMA}"
        wrong = sum(not _take(table, row) for row in rows)
        return table, f"{what}: {wrong} of {len(rows)} rows cannot be used" if wrong else None


def _take(table: RefusedSlaves, row: Any) -> bool:
    """Add a row of a file; return whether it is valid and within the limits."""
    if not isinstance(row, dict) or not isinstance(row.get("address"), str):
        return False
    numbers: list[Any] = [row.get(name) for name in ("offset", "master_end", "time_ms")]
    if any(type(number) is not int or not 0 <= number <= _OFFSET_MAX for number in numbers):
        return False
    offset, master_end, time_ms = numbers
    if master_end >= offset or offset < FIRST_OFFSET_MIN:
        return False
    try:
        because = RefusedBecause(row.get("because", RefusedBecause.AHEAD.value))
    except ValueError:
        return False
    refused = RefusedSlave(
        address=row["address"],
        offset=offset,
        master_end=master_end,
        time_ms=time_ms,
        because=because,
    )
    return table.add(refused) in {RefusalOutcome.REMEMBERED, RefusalOutcome.KNOWN}


@final
@attrs.define(eq=False)
class RefusedSlavesFile:
    """The tables and their file: ``load`` reads it, ``run`` writes it."""

    env: Env
    path: str
    table: RefusedSlaves  # in force, whether it is written yet or not
    served: ServedSlaves = attrs.field(factory=ServedSlaves)  # the same
    is_slave: bool = False  # the directory was a classic slave's last
    is_torn: bool = attrs.field(kw_only=True)  # the file at ``path`` could not be read
    is_there: bool = attrs.field(kw_only=True)  # it was read from ``path``, or written there
    _is_dirty: bool = attrs.field(default=False, init=False)
    _not_written_because: str | None = attrs.field(default=None, init=False)  # last logged
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)
    _one_write: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    @classmethod
    def load(cls, env: Env, data_dir: str) -> RefusedSlavesFile:
        """Read the file in ``data_dir``; blocks."""
        path = f"{data_dir}/{FILE_NAME}"
        value: dict[str, Any] = {"schema": SCHEMA, "refused": []}
        wrong, is_there = None, True
        try:
            is_there = env.disk.exists(path)
            if is_there:
                value = loads_object(env.disk.read_file(path), path)
        except (DiskError, ProtocolError) as error:
            wrong = str(error)
        table, wrong_rows = RefusedSlaves.from_json(value, path)
        served, wrong_served = ServedSlaves(), None
        if value.get("schema") == SCHEMA:
            served, wrong_served = ServedSlaves.from_json(value)
        wrong = wrong or wrong_rows or (None if wrong_served is None else f"{path}: {wrong_served}")
        if wrong is not None:
            kept = len(table) + len(served)
            _log.warning("refused_slaves_unreadable", path=path, reason=wrong, kept=kept)
        is_slave = value.get("is_slave") is True
        return cls(env, path, table, served, is_slave, is_torn=wrong is not None, is_there=is_there)

    # -- the directory's role: these block -------------------------------------------------------

    def begin_slave(self) -> None:
        """Record that the directory is a classic slave's."""
        if not self.is_slave:
            self.is_slave = True
            self._write_now()

    def begin_master(self, log_end: int, *, epoch_start: int | None) -> None:
        """Record a promotion: of a slave's directory, or in a group where its epoch began.

        Its start is durable before the first put, unless the disk refuses the file, which is named.
        """
        start = epoch_start
        is_cut = self.served.start is not None and self.served.start > log_end
        if start is None and (self.is_slave or is_cut):
            start = log_end  # what follows is written by this master, or written again
        is_changed = start is not None and self.served.promote(start, self.env.wall_clock.now_ms())
        if self.is_slave or is_changed:
            self.is_slave = False
            self._write_now()

    def _write_now(self) -> None:
        data, torn = self._encode(), self.is_torn
        try:
            self._replace(self.env.disk, data, torn=torn)
        except DiskError as error:
            self._failed(error)
        else:
            self.is_there, self.is_torn = True, False

    # -- slaves ----------------------------------------------------------------------------------

    def find(self, address: str, offset: int) -> RefusedSlave | None:
        """Return the refusal that a first report repeats, unless the file was removed."""
        refused = self.table.find(address, offset)
        if refused is None or self._was_removed():
            return None
        if self._is_dirty:
            self._wake.wakeup()  # the last write failed
        return refused

    def trust(self, pairs: Iterable[tuple[str, int]]) -> None:
        """Serve slaves that begin at these pairs of address and offset, each once."""
        for address, offset in pairs:
            self.served.trusted.add((one_spelling(address), offset))
            self.forget(address, offset)

    def admit(self, address: str, offset: int) -> Admission:
        """Decide about a first report as ``ServedSlaves.admit``, unless the file was removed."""
        if self.served.start is not None:
            self._was_removed()
        refused = self.find(address, offset)
        admission = self.served.admit(address, offset, is_refused=refused is not None)
        if admission is Admission.COMPARES:
            self.forget(address, offset - 1)
        return admission

    async def hold(self, address: str, offset: int, link: ServedLink) -> None:
        """Return once what a link is to be sent may have been served: once that is on disk."""
        if self.served.hold(address, offset, link, self.env.wall_clock.now_ms()):
            self._is_dirty = True
            await self.flush()

    def release(self, link: ServedLink) -> None:
        """Take the offsets of a link that has ended."""
        if self.served.release(link, self.env.wall_clock.now_ms()):
            self._changed()

    def remember(self, refused: RefusedSlave, min_offset: int) -> RefusalOutcome:
        """Refuse this pair from now on, and forget those below ``min_offset``."""
        self._was_removed()
        is_changed = self.table.forget_before(min_offset)
        outcome = self.table.add(refused)
        if is_changed or outcome is RefusalOutcome.REMEMBERED:
            self._changed()
        elif self._is_dirty:
            self._wake.wakeup()
        return outcome

    def forget(self, address: str, offset: int) -> None:
        """Allow a pair again."""
        if self.table.forget(address, offset):
            self._changed()

    def _changed(self) -> None:
        self._is_dirty = True
        self._wake.wakeup()

    def _was_removed(self) -> bool:
        """Return whether an operator has removed the file; if so, clear the tables."""
        try:
            if not self.is_there or self.env.disk.exists(self.path):
                return False
        except DiskError:
            return False
        _log.warning("refused_slaves_cleared", path=self.path, rows=len(self.table))
        self.table, self.served = RefusedSlaves(), ServedSlaves(trusted=self.served.trusted)
        self.is_there = self.is_torn = self._is_dirty = False
        return True

    # -- the file --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write each change until cancelled; ``flush`` writes what is unwritten then."""
        while True:
            await self._wake.wait_for_running()
            await self.flush()
            if self._is_dirty:
                await trio.sleep(RETRY_S)

    async def flush(self) -> None:
        """Write what has changed, whatever is cancelled meanwhile.

        A disk that refuses it is named, and ``run`` tries again.
        """
        with trio.CancelScope(shield=True):
            async with self._one_write:
                await self._write()

    async def _write(self) -> None:
        if not self._is_dirty:
            return
        self._is_dirty = False
        data, torn = self._encode(), self.is_torn
        if torn:
            self.is_there = False  # _replace renames it
        try:
            await self.env.offload.run(lambda: self._replace(self.env.disk, data, torn=torn))
        except DiskError as error:
            self._failed(error)
        else:
            self.is_there, self.is_torn, self._not_written_because = True, False, None

    def _failed(self, error: DiskError) -> None:
        self._is_dirty = True
        self._wake.wakeup()
        if self._not_written_because != str(error):
            self._not_written_because = str(error)
            _log.warning("refused_slaves_not_written", path=self.path, reason=str(error))

    def _encode(self) -> bytes:
        """Return the file's content."""
        value = {**self.table.to_json(), **self.served.to_json()}
        if self.is_slave:
            value["is_slave"] = True
        return json.dumps(value, indent=1).encode()

    def _replace(self, disk: Disk, data: bytes, *, torn: bool) -> None:
        if torn and disk.exists(self.path):
            disk.rename(self.path, self.path + TORN_SUFFIX)
        disk.write_file(self.path, data)
