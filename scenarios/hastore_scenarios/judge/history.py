"""The history of a run: every put with its call and its answer, and every action on the nodes.

One JSON object a line, in the order of time.  The checker needs only this and the logs, so a
failing run can be checked again later.

    {"type": "invoke", "op": 3, "time_s": 1.25, "wall_ms": …, "node": "a", "process": "p0",
     "topic": "T", "queue_id": 0, "key": "…", "body_size": 10, "body_crc": …, "wait": true}
    {"type": "ok" | "fail" | "unknown", "op": 3, "time_s": 1.26, "wall_ms": …, "status": "PUT_OK",
     "physic_offset": 0, "next_offset": 131, "queue_offset": 0, "message_id": "…", "error": null}
    {"type": "event", "time_s": 2.0, "done_s": 2.01, "wall_ms": …, "kind": "kill", "node": "a", …}

A put is *ok* if its answer is PUT_OK, *fail* if the message is certainly not in the log, otherwise
*unknown*: stored with a weaker answer than asked for, or the link broke.  ``time_s`` is monotonic,
counted from the world's start; ``wall_ms`` is for people.

Invariant: an operation is invoked once and completed at most once; times never fall.
"""

from __future__ import annotations

import enum
import json
from collections import Counter
from typing import IO, TYPE_CHECKING, Any, Final, final

import attrs

from hastore.status import PutMessageStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


class Outcome(enum.Enum):
    """What a producer can conclude from an answer."""

    OK = "ok"
    FAIL = "fail"
    UNKNOWN = "unknown"


class EventKind(enum.Enum):
    """An action on a cluster, or an observation of it."""

    START_MASTER = "start-master"
    START_SLAVE = "start-slave"
    STOP = "stop"
    KILL = "kill"
    PAUSE = "pause"
    RESUME = "resume"
    EXIT = "exit"  # a node ended by itself
    LINK = "link"  # the network between a slave and its master was changed
    DISK = "disk"  # a disk fault began or ended
    COORDINATOR = "coordinator"  # something was done to it, or asked of it
    HEALTHY = "healthy"  # a slave was seen connected and in step
    CAUGHT_UP = "caught-up"
    SAY = "say"
    EXPECT = "expect"
    END = "end"  # the story is over: faults have ended, slaves have caught up; nodes stop next


# The ``fault`` of a DISK event: that ends a disk's faults, and those that last until then.
DISK_HEALED: Final = "heal"
LASTING_DISK_FAULTS: Final = frozenset({"full", "slow", "fail-sync"})

# Statuses after which the message is certainly in no log.  UNKNOWN_ERROR is not among them: after a
# failed fsync, the message may or may not be there.
NEVER_STORED: Final = frozenset(
    {
        PutMessageStatus.SERVICE_NOT_AVAILABLE,
        PutMessageStatus.CREATE_MAPPED_FILE_FAILED,
        PutMessageStatus.MESSAGE_ILLEGAL,
        PutMessageStatus.PROPERTIES_SIZE_EXCEEDED,
        PutMessageStatus.OS_PAGE_CACHE_BUSY,
        PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH,
    }
)


def outcome_of(status: PutMessageStatus) -> Outcome:
    """Return the outcome that a status means."""
    if status is PutMessageStatus.PUT_OK:
        return Outcome.OK
    if status in NEVER_STORED:
        return Outcome.FAIL
    return Outcome.UNKNOWN


@attrs.define(eq=False, kw_only=True)
class Operation:
    """One put: its call, and its answer once there is one.

    ``key`` is the message's UNIQ_KEY, unique in the history.  ``outcome`` is None until the answer
    or its loss.  ``error`` says why there is no status.
    """

    op: int
    node: str
    process: str
    topic: str
    queue_id: int
    key: str
    body_size: int
    body_crc: int
    wait: bool
    invoked_s: float
    invoked_wall_ms: int
    # How often it was sent without being refused: so many copies of it the logs may have.
    sent_count: int = 1
    at_least_once: bool = False  # without an answer it is sent again
    outcome: Outcome | None = None
    status: PutMessageStatus | None = None
    completed_s: float | None = None
    physic_offset: int | None = None
    next_offset: int | None = None
    queue_offset: int | None = None
    message_id: str | None = None
    error: str | None = None

    @property
    def label(self) -> str:
        """The status, or NO_ANSWER or NOT_SENT without one."""
        if self.status is not None:
            return self.status.value
        return "NO_ANSWER" if self.outcome is not Outcome.FAIL else "NOT_SENT"

    @property
    def ended_s(self) -> float:
        """``completed_s`` of a put that has ended."""
        assert self.completed_s is not None
        return self.completed_s


@attrs.frozen(kw_only=True)
class Event:
    """An action on a node, or an observation.

    It began at ``time_s`` and had certainly taken effect by ``done_s``: a process may run for a
    moment after SIGSTOP is sent.  ``details`` holds JSON values only.
    """

    kind: EventKind
    time_s: float
    done_s: float
    wall_ms: int
    node: str | None = None
    text: str = ""
    details: Mapping[str, Any] = attrs.field(factory=dict)


@final
@attrs.define(eq=False)
class History:
    """All operations and events of one run, kept in memory and written to ``sink`` as they happen.

    ``now_s`` returns the world's time, ``wall_ms`` the wall clock's.
    """

    now_s: Callable[[], float]
    wall_ms: Callable[[], int]
    sink: IO[str] | None = None
    operations: list[Operation] = attrs.field(factory=list, init=False)
    events: list[Event] = attrs.field(factory=list, init=False)
    on_event: Callable[[Event], None] | None = None

    def invoke(
        self,
        *,
        node: str,
        process: str,
        topic: str,
        queue_id: int,
        key: str,
        body_size: int,
        body_crc: int,
        wait: bool,
    ) -> Operation:
        """Record that a put is about to be sent."""
        operation = Operation(
            op=len(self.operations),
            node=node,
            process=process,
            topic=topic,
            queue_id=queue_id,
            key=key,
            body_size=body_size,
            body_crc=body_crc,
            wait=wait,
            invoked_s=self.now_s(),
            invoked_wall_ms=self.wall_ms(),
        )
        self.operations.append(operation)
        if self.sink is not None:
            self._write(invoke_line(operation))
        return operation

    def complete(
        self,
        operation: Operation,
        status: PutMessageStatus,
        *,
        physic_offset: int | None = None,
        next_offset: int | None = None,
        queue_offset: int | None = None,
        message_id: str | None = None,
    ) -> None:
        """Record the answer."""
        operation.status = status
        operation.physic_offset = physic_offset
        operation.next_offset = next_offset
        operation.queue_offset = queue_offset
        operation.message_id = message_id
        self._complete(operation, outcome_of(status))

    def lose(self, operation: Operation, error: str, *, sent: bool) -> None:
        """Record that there will be no answer; ``sent`` is False if the put never left."""
        operation.error = error
        self._complete(operation, Outcome.UNKNOWN if sent else Outcome.FAIL)

    def _complete(self, operation: Operation, outcome: Outcome) -> None:
        assert operation.outcome is None, "an operation is completed once"
        operation.outcome = outcome
        operation.completed_s = self.now_s()
        if self.sink is not None:
            self._write(complete_line(operation, self.wall_ms()))

    def event(
        self,
        kind: EventKind,
        node: str | None = None,
        text: str = "",
        *,
        begun_s: float | None = None,
        **details: Any,
    ) -> Event:
        """Record an action or an observation; ``begun_s`` None: it took no time."""
        now = self.now_s()
        event = Event(
            kind=kind,
            time_s=now if begun_s is None else begun_s,
            done_s=now,
            wall_ms=self.wall_ms(),
            node=node,
            text=text,
            details=details,
        )
        self.events.append(event)
        if self.sink is not None:
            self._write(event_line(event))
            self.sink.flush()
        if self.on_event is not None:
            self.on_event(event)
        return event

    @property
    def put_counts(self) -> dict[str, int]:
        """Operations by status (or NO_ANSWER, NOT_SENT), most frequent first."""
        return count_labels(operation.label for operation in self.operations)

    def _write(self, line: dict[str, Any]) -> None:
        assert self.sink is not None
        self.sink.write(json.dumps(line, separators=(",", ":")) + "\n")


def count_labels(labels: Iterable[str]) -> dict[str, int]:
    """Return how often each label occurs, the most frequent first."""
    return dict(sorted(Counter(labels).items(), key=lambda item: (-item[1], item[0])))


def invoke_line(operation: Operation) -> dict[str, Any]:
    """Return the line of a put's call."""
    return {
        "type": "invoke",
        "op": operation.op,
        "time_s": round(operation.invoked_s, 6),
        "wall_ms": operation.invoked_wall_ms,
        "node": operation.node,
        "process": operation.process,
        "topic": operation.topic,
        "queue_id": operation.queue_id,
        "key": operation.key,
        "body_size": operation.body_size,
        "body_crc": operation.body_crc,
        "wait": operation.wait,
        **({"at_least_once": True} if operation.at_least_once else {}),
    }


def complete_line(operation: Operation, wall_ms: int) -> dict[str, Any]:
    """Return the line of a put's answer, or of its end without one."""
    assert operation.outcome is not None
    assert operation.completed_s is not None
    return {
        "type": operation.outcome.value,
        "op": operation.op,
        "time_s": round(operation.completed_s, 6),
        "wall_ms": wall_ms,
        "status": None if operation.status is None else operation.status.value,
        "physic_offset": operation.physic_offset,
        "next_offset": operation.next_offset,
        "queue_offset": operation.queue_offset,
        "message_id": operation.message_id,
        "sent_count": operation.sent_count,
        "error": operation.error,
    }


def event_line(event: Event) -> dict[str, Any]:
    """Return the line of an event."""
    return {
        "type": "event",
        "kind": event.kind.value,
        "time_s": round(event.time_s, 6),
        "done_s": round(event.done_s, 6),
        "wall_ms": event.wall_ms,
        "node": event.node,
        "text": event.text,
        "details": dict(event.details),
    }


def load_history(lines: Iterable[str]) -> History:
    """Return the history of these lines, without a last line that a crash cut off.

    Raises ValueError for any other line that is not JSON.
    """
    history = History(now_s=lambda: 0.0, wall_ms=lambda: 0)
    torn: str | None = None
    for text in lines:
        if torn is not None:
            raise ValueError(f"not a line of a history: {torn[:100]}")
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            torn = text
            continue
        _load_line(history, line)
    return history


def _load_line(history: History, line: dict[str, Any]) -> None:
    kind = line.pop("type")
    if kind == "event":
        line["kind"] = EventKind(line["kind"])
        history.events.append(Event(**line))
    elif kind == "invoke":
        line["invoked_s"] = line.pop("time_s")
        line["invoked_wall_ms"] = line.pop("wall_ms")
        history.operations.append(Operation(**line))
    else:
        operation = history.operations[line.pop("op")]
        del line["wall_ms"]
        operation.outcome = Outcome(kind)
        operation.completed_s = line.pop("time_s")
        status = line.pop("status")
        operation.status = None if status is None else PutMessageStatus(status)
        for name, value in line.items():
            setattr(operation, name, value)
