"""Random histories with puts of every outcome, matching logs, and simple counts of both.

A world has a master, its slaves, perhaps a second independent master, puts of all statuses, perhaps
a failover, expired files and wiped disks.  Its logs are not always right: messages are missing,
duplicated or damaged, have other bodies, or were never sent.
"""

from collections import Counter
from typing import NamedTuple

from hastore.pipeline.rpo.rules import ALIKE, PutTally
from hastore.status import PutMessageStatus
from hastore.store.record.record_check import body_crc32
from hastore_scenarios.judge.checker import Checker, LogRecord
from hastore_scenarios.judge.history import EventKind, History, Outcome
from tests.support.store.log_builder import LogBuilder

STATUSES = (
    *([PutMessageStatus.PUT_OK] * 6),
    PutMessageStatus.SLAVE_NOT_AVAILABLE,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.MESSAGE_ILLEGAL,
    PutMessageStatus.SERVICE_NOT_AVAILABLE,
    PutMessageStatus.UNKNOWN_ERROR,
    None,  # never answered
    "lost",  # the link broke
    "unsent",
)


class Held(NamedTuple):
    """A record of a log, intact or not."""

    key: str | None
    body: bytes
    is_sound: bool = True


class RpoWorld:
    """One history and its logs, both drawn from ``random``; names begin with ``prefix``."""

    def __init__(self, random, *, puts=12, prefix="", sink=None, trouble=0.25):
        self.random = random
        self.trouble = trouble
        self.prefix = prefix
        self.time_s = 0.0
        self.history = History(
            now_s=lambda: self.time_s, wall_ms=lambda: int(self.time_s * 1000), sink=sink
        )
        self.logs = {}
        self.master = self.start_master("a")
        if random.random() < 0.3:
            self.start_master("d", log_end=0)
        for name in "bc"[: random.randint(0, 2)]:
            self.start_slave(name, self.master)
        has_slave = f"{prefix}b" in self.logs
        failover = random.randrange(puts) if has_slave and random.random() < 0.6 else puts
        for number in range(puts):
            if number == failover:
                self.fail_over()
            if random.random() < trouble / 5:
                least = random.randrange(0, (number + 1) * 100, 50)
                self.event(EventKind.DISK, self.master, fault="expire", min_offset=least)
            self.put(number)
        for node in self.logs:
            if self.is_in_trouble():
                self.logs[node].append(Held(random.choice([None, f"{prefix}unknown"]), b"x"))
        self.event(EventKind.END)

    # -- the events

    def is_in_trouble(self):
        return self.random.random() < self.trouble

    def event(self, kind, node=None, **details):
        self.time_s += 0.01
        self.history.event(kind, node, **details)

    def start_master(self, name, *, log_end=None):
        node = self.prefix + name
        self.logs.setdefault(node, [])
        self.event(
            EventKind.START_MASTER,
            node,
            role=self.random.choice(["SYNC_MASTER", "SYNC_MASTER", "ASYNC_MASTER"]),
            flush="ASYNC_FLUSH",
            slave_timeout_ms=1_000,
            sync_flush_timeout_ms=2_000,
            ha_slave_fallbehind_max=1_000,
            log_end=log_end,
        )
        return node

    def start_slave(self, name, master, *, log_end=0):
        node = self.prefix + name
        self.logs.setdefault(node, [])
        self.event(EventKind.START_SLAVE, node, master=master, log_end=log_end, flows=True)

    def fail_over(self):
        self.event(EventKind.KILL, self.master)
        is_wiped = self.random.random() < 0.5
        if is_wiped:
            self.event(EventKind.DISK, self.master, fault="wipe")
        self.event(EventKind.STOP, self.prefix + "b")
        others = [name for name in "d" if self.prefix + name in self.logs]
        if others and self.random.random() < 0.5:
            self.master = self.prefix + others[0]
        else:
            self.master = self.start_master("b", log_end=0)
        if is_wiped:
            self.start_slave("a", self.master, log_end=None)
        if self.prefix + "c" in self.logs:
            self.start_slave("c", self.master)

    def put(self, number):
        """Send a message, answer it, and append it to logs, not always the right ones."""
        random = self.random
        key = f"{self.prefix}K{number}"
        body = key.encode() * 3
        operation = self.history.invoke(
            node=self.master,
            process="p",
            topic=random.choice(["T", "%RETRY%ü"]),
            queue_id=0,
            key=key,
            body_size=len(body),
            body_crc=body_crc32(body),
            wait=random.random() < 0.8,
        )
        operation.sent_count = 2 if self.is_in_trouble() else 1
        self.time_s += 0.25
        status = random.choice(STATUSES)
        if status == "lost":
            self.history.lose(operation, "the link broke", sent=True)
        elif status == "unsent":
            self.history.lose(operation, "connection refused", sent=False)
        elif status is not None:
            self.history.complete(operation, status, physic_offset=number * 100)
        is_stored = operation.outcome is not Outcome.FAIL and status is not None
        if random.random() < self.trouble / 2:
            is_stored = False  # in no log
        for log in self.logs.values():
            count = int(is_stored)
            if self.is_in_trouble():
                count = random.randint(0, 3)
            for _ in range(count):
                is_sound = not self.is_in_trouble()
                sent = b"another" if self.is_in_trouble() else body
                log.append(Held(key, sent, is_sound))
        return operation

    # -- the expected counts, by simple code

    def checker_counts(self):
        """Return how often each rule is broken, according to the checker."""
        checker = Checker(self.history)
        for node, log in self.logs.items():
            checker.read_log(node, (_record(held) for held in log if held.is_sound))
        return checker.verdict().counts

    def foreign(self):
        """Return how many intact records have no key, or one that was never sent."""
        keys = {operation.key for operation in self.history.operations}
        return sum(
            held.is_sound and held.key not in keys for log in self.logs.values() for held in log
        )

    def tallies(self, survivors):
        """Count puts like ``rpo_tables.tally``."""
        crcs = {operation.key: operation.body_crc for operation in self.history.operations}
        copies, others = Counter(), Counter()
        for node in survivors:
            for held in self.logs.get(node, []):
                if held.is_sound and held.key in crcs:
                    is_same = body_crc32(held.body) == crcs[held.key]
                    (copies if is_same else others)[held.key, node] += 1
        puts, extra, altered = Counter(), Counter(), Counter()
        for put in self.history.operations:
            own = [copies[put.key, node] for node in survivors]
            more = sum(max(count - put.sent_count, 0) for count in own)
            term = self.term_of(put)
            same = (
                put.node,
                (put.outcome or Outcome.UNKNOWN).value,
                put.label,
                put.wait and term.role.value == "SYNC_MASTER",
                "".join(str(int(count > 0)) for count in own),
                more > 0,
                *self.removals(put),
            )
            puts[same] += 1
            extra[same] += more
            altered[same] += sum(others[put.key, node] for node in survivors)
        return [
            PutTally(
                **dict(zip(ALIKE, same, strict=True)),
                puts=count,
                extra=extra[same],
                altered=altered[same],
            )
            for same, count in puts.items()
        ]

    def removals(self, put):
        """Return whether a message expired, whether its log was wiped, and the master's number."""
        events = [event for event in self.history.events if event.node == put.node]
        least = [event.details["min_offset"] for event in events if "min_offset" in event.details]
        expired = (put.physic_offset or 0) < (least or [0])[-1] and put.physic_offset is not None
        wiped = any(
            event.details.get("fault") == "wipe" and put.invoked_s < event.done_s
            for event in events
        )
        began = sum(
            event.kind is EventKind.START_MASTER and event.time_s <= put.invoked_s
            for event in self.history.events
        )
        return expired, wiped, began if wiped else 0

    def term_of(self, put):
        return Checker(self.history).account.term_at(put.node, put.invoked_s)

    # -- on a disk

    def write_logs(self, folder):
        """Write a store for each node; return the directories by node."""
        return {node: self._write_log(folder / node, log) for node, log in self.logs.items()}

    def _write_log(self, path, log):
        builder = LogBuilder()
        for held in log:
            raw = b"" if held.key is None else f"UNIQ_KEY\x01{held.key}\x02".encode()
            builder.add(held.body, properties_raw=raw)
        if not log:
            (path / "commitlog").mkdir(parents=True)
            return path
        for held, offset in zip(log, builder.offsets, strict=True):
            if not held.is_sound:
                builder.data[offset + 88] ^= 1  # the first byte of the body
        return builder.write(path)


def _record(held):
    return LogRecord(
        physic_offset=0,
        next_offset=1,
        topic="T",
        queue_id=0,
        queue_offset=0,
        key=held.key,
        body_crc=body_crc32(held.body),
    )
