"""Histories and logs written by hand, for the checker's tests.

A `Story` is a history with a clock that the test moves, and a list of records for each node.
"""

from __future__ import annotations

from typing import Any

from hastore.status import PutMessageStatus
from hastore_scenarios.judge.checker import Checker, LogRecord, Verdict
from hastore_scenarios.judge.history import EventKind, History, Operation

SIZE = 100


class Story:
    """A master a and, unless ``slave`` is false, a slave b that is in step at 1.0 s."""

    def __init__(
        self, *, role: str = "SYNC_MASTER", flush: str = "ASYNC_FLUSH", slave: bool = True
    ) -> None:
        self.time_s = 0.0
        self.history = History(now_s=lambda: self.time_s, wall_ms=lambda: 0)
        self.logs: dict[str, list[LogRecord]] = {"a": []}
        self.start_master("a", role=role, flush=flush)
        if slave:
            self.logs["b"] = []
            self.start_slave("b", "a")
            self.at(1.0)
            self.event(EventKind.HEALTHY, "b")

    def at(self, time_s: float) -> None:
        """Advance the clock to ``time_s``."""
        assert time_s >= self.time_s
        self.time_s = time_s

    def event(self, kind: EventKind, node: str | None = None, took_s: float = 0.0, **details: Any):
        """Record an event that took ``took_s``."""
        begun_s = self.time_s
        self.time_s += took_s
        self.history.event(kind, node, begun_s=begun_s, **details)

    def start_master(
        self,
        node: str,
        *,
        role: str = "SYNC_MASTER",
        flush: str = "ASYNC_FLUSH",
        log_end: int | None = None,
    ) -> None:
        """Start a master with a slave timeout of 1 s and a lag limit of 1000 bytes."""
        self.event(
            EventKind.START_MASTER,
            node,
            role=role,
            flush=flush,
            slave_timeout_ms=1_000,
            sync_flush_timeout_ms=2_000,
            ha_slave_fallbehind_max=1_000,
            log_end=log_end,
        )

    def start_slave(self, node: str, master: str, *, log_end: int | None = 0) -> None:
        """Start a slave of ``master``."""
        self.event(EventKind.START_SLAVE, node, master=master, log_end=log_end, flows=True)

    def put(
        self,
        status: PutMessageStatus | None,
        *,
        node: str = "a",
        took_s: float = 0.01,
        wait: bool = True,
        logs: str | None = None,
        sent_count: int = 1,
    ) -> Operation:
        """Add a put that is answered with ``status`` (None: never) and stored in ``logs``.

        ``logs`` None means every log if the message counts as stored, and no log otherwise.
        """
        op = len(self.history.operations)
        operation = self.history.invoke(
            node=node,
            process="p",
            topic="T",
            queue_id=0,
            key=f"K{op}",
            body_size=10,
            body_crc=op,
            wait=wait,
        )
        operation.sent_count = sent_count
        stored = status is None or status.stored
        if logs is None:
            logs = "".join(self.logs) if stored else ""
        log = self.logs[node]
        offset = log[-1].next_offset if log else 0
        queue_offset = len(log)
        for name in logs:
            self.append(name, operation, offset, queue_offset)
        self.time_s += took_s
        if status is not None:
            self.history.complete(
                operation,
                status,
                physic_offset=offset if stored else None,
                next_offset=offset + SIZE if stored else None,
                queue_offset=queue_offset if stored else None,
            )
        return operation

    def append(
        self, node: str, operation: Operation, physic_offset: int, queue_offset: int, **changes: Any
    ) -> None:
        """Append a put's record to a node's log; ``changes`` replace its fields."""
        record = LogRecord(
            physic_offset=physic_offset,
            next_offset=physic_offset + SIZE,
            topic="T",
            queue_id=0,
            queue_offset=queue_offset,
            key=operation.key,
            body_crc=operation.body_crc,
        )
        self.logs[node].append(record._replace(**changes))

    def end(self, slave: str | None = None, *, max_offset: int = 0, master_max_offset: int = 0):
        """End the story; ``slave``, if given, was waited for and is at ``max_offset``."""
        if slave is not None:
            self.event(
                EventKind.CAUGHT_UP,
                slave,
                max_offset=max_offset,
                master_max_offset=master_max_offset,
            )
        self.event(EventKind.END)

    def checker(self) -> Checker:
        """Return a checker that has read all logs."""
        checker = Checker(self.history)
        for node, records in self.logs.items():
            checker.read_log(node, records)
        return checker

    def broken(self) -> dict[str, int]:
        """Return the broken rules, each with its count of violations."""
        return broken(self.checker().verdict())


class GroupStory(Story):
    """A replica group of a, b and c in epoch 1, whose master is a; all three are in step."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self.history = History(now_s=lambda: self.time_s, wall_ms=lambda: 0)
        self.logs = {"a": [], "b": [], "c": []}
        self.follow("b", "a", epoch=1)
        self.follow("c", "a", epoch=1)
        self.lead("a", epoch=1)
        self.at(1.0)
        self.event(EventKind.HEALTHY, "b")
        self.event(EventKind.HEALTHY, "c")

    def lead(
        self,
        node: str,
        *,
        epoch: int,
        copies_min: int = 2,
        least: int = 1,
        role: str = "SYNC_MASTER",
        is_all: bool = True,
        group: str = "g",
    ) -> None:
        """Let a node become the master of an epoch, at the end of its log."""
        log = self.logs[node]
        self.event(
            EventKind.START_MASTER,
            node,
            role=role,
            flush="ASYNC_FLUSH",
            slave_timeout_ms=1_000,
            sync_flush_timeout_ms=2_000,
            ha_slave_fallbehind_max=1_000,
            group=group,
            epoch=epoch,
            epoch_start=log[-1].next_offset if log else 0,
            copies_min=copies_min,
            min_in_sync_replicas=least,
            is_all=is_all,
        )

    def follow(self, node: str, master: str | None, *, epoch: int, group: str = "g") -> None:
        """Let a node follow another, or nobody."""
        self.event(
            EventKind.START_SLAVE,
            node,
            group=group,
            master=master,
            epoch=epoch,
            flows=True,
            log_end=None,
        )

    def hand_over(self, master: str, *, epoch: int, followers: str, copies_min: int = 2) -> None:
        """Let a node be promoted, and others follow it."""
        for node in followers:
            self.follow(node, master, epoch=epoch)
        self.lead(master, epoch=epoch, copies_min=copies_min)

    def add_group(self) -> None:
        """Add another group, of d and e, whose master is d; both are in step."""
        self.logs |= {"d": [], "e": []}
        self.follow("e", "d", epoch=1, group="other")
        self.lead("d", epoch=1, group="other")
        self.at(self.time_s + 1.0)
        self.event(EventKind.HEALTHY, "e")

    def settle(self, *slaves: str) -> None:
        """End the story, with these nodes at their master's end."""
        for node in slaves:
            self.event(EventKind.CAUGHT_UP, node, max_offset=1, master_max_offset=1)
        self.end()


def broken(verdict: Verdict) -> dict[str, int]:
    """Return a verdict's broken rules, each with its count of violations."""
    return {rule: count for rule, count in verdict.counts.items() if count}
