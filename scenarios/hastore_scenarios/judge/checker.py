"""The checker: compares what a history promised with the logs at the end of a run.

Pure and streaming: the caller passes the history, then each log's records in order, then the
results of comparing and verifying the directories; one pass over each log, a few bytes per message.

It finds (each a ``Rule``):

    acknowledged lost     PUT_OK, and not in the surviving master's log
    not replicated        PUT_OK under SYNC_MASTER, and in no slave's log
    stored not there      a status that means "stored", and not in the answering master's log
    rejected but there    a status that means "not stored", and in a log
    wrong place           an answer's offsets are not those of the message
    duplicate             one UNIQ_KEY twice in a log, though it was sent once
    never sent            a message in a log that was never sent, or with another body; or in
                          the log of another group than it was sent to
    queue offset gap      queue offsets that do not count up by one
    diverged bytes        different bytes at one offset, where two logs must agree
    damaged               a log in which `log verify` finds damage
    false ok              PUT_OK under SYNC_MASTER while no slave could acknowledge
    false unavailable     SLAVE_NOT_AVAILABLE while a slave was healthy all along
    impossible status     a status that this role, flush type or WAIT=false excludes
    answered too early    a timeout status before the timeout, unless a lease is over
    not caught up         a connected slave that did not reach its master's end
    acknowledged cut      a message that was PUT_OK, among those that a node of a group has cut

In a replica group there are several masters, one after the other and at times side by side, each
with an epoch.  There a PUT_OK message must be in the log with which each later epoch begins, also
if it was answered after that: a master that was replaced, and does not know it, acknowledges
nothing that its successor lacks.  It must be in the log of every node that is in step at the end,
and on as many nodes as the answering master needed.  A message that is only stored may be cut; so
may one that was PUT_OK with a number as in_sync_replicas: a later master may be none of its nodes.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import attrs

from hastore.status import BrokerRole, FlushDiskType, PutMessageStatus
from hastore_scenarios.judge.account import Account, MasterTerm
from hastore_scenarios.judge.epoch_lines import holds
from hastore_scenarios.judge.history import History, Operation, Outcome
from hastore_scenarios.judge.loss import Loss, measure_loss

if TYPE_CHECKING:
    from collections.abc import Iterable

VIOLATIONS_KEPT_MAX: Final = 100

# A producer's clock starts before the request is sent and stops after the answer is read, so a
# timeout can only look longer than it was; a millisecond is for rounding.
_CLOCK_SLACK_S: Final = 0.001

# What a put is told that was decided just then, and one that waited as the master stepped down.
_LEASE_IS_OVER: Final = "lease is over"

# Bytes of the fixed fields, the topic and the properties of a world's message.
_RECORD_OVERHEAD_MAX: Final = 1024


class Rule(enum.Enum):
    """What the checker finds; see the module's docstring."""

    ACKNOWLEDGED_LOST = "acknowledged lost"
    NOT_REPLICATED = "not replicated"
    STORED_NOT_THERE = "stored not there"
    REJECTED_BUT_THERE = "rejected but there"
    WRONG_PLACE = "wrong place"
    DUPLICATE = "duplicate"
    NEVER_SENT = "never sent"
    QUEUE_OFFSET_GAP = "queue offset gap"
    DIVERGED_BYTES = "diverged bytes"
    DAMAGED = "damaged"
    FALSE_OK = "false ok"
    FALSE_UNAVAILABLE = "false unavailable"
    IMPOSSIBLE_STATUS = "impossible status"
    ANSWERED_TOO_EARLY = "answered too early"
    NOT_CAUGHT_UP = "not caught up"
    ACKNOWLEDGED_CUT = "acknowledged cut"


class LogRecord(NamedTuple):
    """The fields of a record that the checker needs; ``key`` is its UNIQ_KEY, None without one."""

    physic_offset: int
    next_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    key: str | None
    body_crc: int


@attrs.frozen
class Violation:
    """One broken rule, as a sentence."""

    rule: Rule
    text: str

    def __str__(self) -> str:
        return f"{self.rule.value}: {self.text}"


@attrs.frozen(kw_only=True)
class Verdict:
    """What the checker found: ``counts`` has every rule, ``violations`` the first few.

    ``loss`` counts the lost messages, whether or not their loss breaks a promise.
    """

    operations: int
    records: int
    counts: dict[str, int]
    violations: tuple[Violation, ...]
    loss: Loss | None = None

    @property
    def ok(self) -> bool:
        """Whether no rule was broken."""
        return not self.violations

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "ok": self.ok,
            "operations": self.operations,
            "records": self.records,
            "rules": self.counts,
            "violations": [
                {"rule": violation.rule.value, "text": violation.text}
                for violation in self.violations
            ],
            "rpo": None if self.loss is None else self.loss.to_dict(),
        }


@final
class Checker:
    """Checks one history.  Call ``read_log`` for every node, then ``verdict``."""

    def __init__(self, history: History) -> None:
        self._operations = history.operations
        self._by_key = {operation.key: operation for operation in history.operations}
        assert len(self._by_key) == len(history.operations), "a key is sent by one operation"
        self.account = Account.of(history.events)
        self._present: dict[str, bytearray] = {}
        self._records = 0
        self._counts = dict.fromkeys(Rule, 0)
        self._violations: list[Violation] = []

    # -- the logs

    def read_log(self, node: str, records: Iterable[LogRecord]) -> None:
        """Check a node's records, which come in the order of their offsets."""
        present = self._present[node] = bytearray(len(self._operations))
        own_terms = any(term.node == node for term in self.account.terms)
        queues: dict[tuple[str, int], int] = {}
        for record in records:
            self._records += 1
            queue = (record.topic, record.queue_id)
            expected = queues.get(queue)
            if expected is not None and record.queue_offset != expected:
                self._broken(
                    Rule.QUEUE_OFFSET_GAP,
                    f"{node} at {record.physic_offset}: {record.topic}/{record.queue_id} has"
                    f" {record.queue_offset} where {expected} follows",
                )
            queues[queue] = record.queue_offset + 1
            operation = None if record.key is None else self._by_key.get(record.key)
            fault = self._never_sent_because(node, record, operation)
            if fault is not None:
                self._broken(
                    Rule.NEVER_SENT,
                    f"{node} at {record.physic_offset}: key {record.key}{fault}",
                )
            if operation is None or fault is not None:
                continue
            present[operation.op] += 1
            is_unknown = operation.at_least_once and operation.outcome is None
            if present[operation.op] > operation.sent_count and not is_unknown:
                self._broken(
                    Rule.DUPLICATE,
                    f"{node} at {record.physic_offset}: {_name(operation)} is there"
                    f" {present[operation.op]} times, sent {operation.sent_count}",
                )
            if present[operation.op] == 1 and own_terms:
                self._check_place(node, record, operation)

    def _never_sent_because(
        self, node: str, record: LogRecord, operation: Operation | None
    ) -> str | None:
        """Return why a record is none of what was sent to a node's log; None if it is."""
        if operation is None:
            return ""
        if operation.body_crc != record.body_crc:
            return f" of {_name(operation)}, another body"
        if not self.account.is_same_log(node, operation.node):
            return f" of {_name(operation)}, sent to {operation.node} of another group"
        return None

    def read_cut(self, node: str, keys: Iterable[str]) -> None:
        """Check the messages that a node has cut off its log, by their UNIQ_KEYs."""
        for key in keys:
            operation = self._by_key.get(key)
            if operation is None or operation.outcome is not Outcome.OK:
                continue
            if operation.sent_count > 1:
                continue  # another copy may be the one that was answered
            term = self.account.group_term_of(operation)
            if operation.wait if term is None else _promised(operation, term):
                self._broken(Rule.ACKNOWLEDGED_CUT, f"{node} has cut off {_name(operation)}")

    def damaged(self, node: str, damage: str) -> None:
        """Record the damage that `log verify` found in a log."""
        self._broken(Rule.DAMAGED, f"{node}: {damage}")

    def compared(self, left: str, right: str, first_difference: int) -> None:
        """Check the first offset at which two logs have different bytes."""
        limit = self.account.must_agree_up_to(left, right)
        if first_difference < limit:
            self._broken(
                Rule.DIVERGED_BYTES, f"{left} and {right} differ at offset {first_difference}"
            )

    # -- the verdict

    def verdict(self) -> Verdict:
        """Check every operation and the end of the run; return everything found."""
        answers = sorted(
            (operation.completed_s, operation.node, _acknowledged_by(operation))
            for operation in self._operations
            if operation.status is PutMessageStatus.PUT_OK
            and operation.wait
            and operation.completed_s is not None
            and operation.physic_offset is not None
        )
        acknowledged_up_to: dict[str, int] = {}
        answer = 0
        for operation in self._operations:  # in the order of their calls
            while answer < len(answers) and answers[answer][0] <= operation.invoked_s:
                _, node, next_offset = answers[answer]
                acknowledged_up_to[node] = max(acknowledged_up_to.get(node, 0), next_offset)
                answer += 1
            term = self.account.group_term_of(operation) or self.account.term_at(
                operation.node, operation.invoked_s
            )
            assert term is not None, f"{_name(operation)} was sent to a node that is not a master"
            self._check_presence(operation, term)
            if operation.status is not None and operation.completed_s is not None:
                self._check_status(operation, term, acknowledged_up_to.get(operation.node, 0))
        self._check_end()
        return Verdict(
            operations=len(self._operations),
            records=self._records,
            counts={rule.value: count for rule, count in self._counts.items()},
            violations=tuple(self._violations),
            loss=measure_loss(self._operations, self.account, self._present),
        )

    def _check_place(self, node: str, record: LogRecord, operation: Operation) -> None:
        """Check that an answer's offsets are the record's in the log of the answering master."""
        if operation.node != node or operation.physic_offset is None or operation.sent_count > 1:
            return
        answered = (operation.physic_offset, operation.queue_offset)
        if operation.next_offset is not None and operation.next_offset != record.next_offset:
            answered = (operation.physic_offset, None)
        if answered != (record.physic_offset, record.queue_offset):
            self._broken(
                Rule.WRONG_PLACE,
                f"{_name(operation)}: answered {operation.physic_offset}…{operation.next_offset}"
                f" #{operation.queue_offset}, {node} has it at"
                f" {record.physic_offset}…{record.next_offset} #{record.queue_offset}",
            )

    def _check_presence(self, operation: Operation, term: MasterTerm) -> None:
        """Check that the message is in the logs that its outcome demands, and in no other."""
        own = self._present.get(operation.node)
        in_own = own is not None and own[operation.op] > 0
        if operation.outcome is Outcome.FAIL:
            for node, present in self._present.items():
                if present[operation.op]:
                    self._broken(Rule.REJECTED_BUT_THERE, f"{_name(operation)} is in {node}'s log")
            return
        if operation.status is None or not operation.status.stored or self._has_expired(operation):
            return
        if term.epoch is not None:
            self._check_presence_in_group(operation, term, in_own=in_own)
            return
        node = operation.node
        if not in_own and not self.account.was_wiped(operation.invoked_s, node, node):
            rule = (
                Rule.ACKNOWLEDGED_LOST if operation.outcome is Outcome.OK else Rule.STORED_NOT_THERE
            )
            self._broken(rule, f"{_name(operation)} is not in {operation.node}'s log")
        if operation.outcome is not Outcome.OK or not _replicated(operation, term):
            return
        survivor = self.account.successor_of(operation.node)
        if (
            survivor is not None
            and not self._present[survivor][operation.op]
            and not self.account.was_wiped(operation.invoked_s, operation.node, survivor)
        ):
            self._broken(
                Rule.ACKNOWLEDGED_LOST,
                f"{_name(operation)}, answered by {operation.node}, is not in the log of"
                f" {survivor}, the last master",
            )
        slaves = self.account.followed.get(operation.node, set())
        if not any(self._present[slave][operation.op] for slave in slaves):
            self._broken(
                Rule.NOT_REPLICATED, f"{_name(operation)} is in no slave's log ({sorted(slaves)})"
            )

    def _check_presence_in_group(
        self, operation: Operation, term: MasterTerm, *, in_own: bool
    ) -> None:
        """Check a stored message against the epochs, and the logs at the end."""
        offset, epoch = operation.physic_offset, term.epoch
        assert epoch is not None
        lacking, may_lack = None, False
        for later in self.account.later_terms(term):
            has = [offset is None or holds(line, epoch, offset) for line in later.lines]
            lacking = lacking or (None if any(has) else later)
            may_lack = may_lack or not all(has)
        is_ok = operation.outcome is Outcome.OK
        is_promised = is_ok and _promised(operation, term)
        node = operation.node
        if (
            not in_own
            and not may_lack
            and not self.account.was_wiped(operation.invoked_s, node, node)
        ):
            rule = Rule.ACKNOWLEDGED_LOST if is_promised else Rule.STORED_NOT_THERE
            self._broken(rule, f"{_name(operation)} is not in {operation.node}'s log")
            return
        if is_promised:
            self._check_later_logs(operation, term, lacking)
        if is_promised or (is_ok and _replicated(operation, term) and not may_lack):
            self._check_copies(operation, term)

    def _check_later_logs(
        self, operation: Operation, term: MasterTerm, lacking: MasterTerm | None
    ) -> None:
        """Check that later masters have the message, and the nodes in step at the end."""
        absent = [
            node
            for node in sorted(self.account.in_step_at_end(self.account.groups[term.node]))
            if not self._present[node][operation.op]
        ]
        if lacking is not None:
            self._broken(
                Rule.ACKNOWLEDGED_LOST,
                f"{_name(operation)} at {operation.physic_offset}, answered by {operation.node} in"
                f" epoch {term.epoch}: {lacking.node} became master of epoch {lacking.epoch} at"
                f" {lacking.epoch_start}, without it",
            )
        elif absent:
            self._broken(
                Rule.ACKNOWLEDGED_LOST,
                f"{_name(operation)}, answered by {operation.node}, is not in the logs of {absent}",
            )

    def _check_copies(self, operation: Operation, term: MasterTerm) -> None:
        """Check that as many nodes have the message as its master needed."""
        copies = sum(
            present[operation.op] > 0
            for node, present in self._present.items()
            if node in self.account.groups and self.account.is_same_group(node, operation.node)
        )
        if copies < term.copies_min:
            self._broken(
                Rule.NOT_REPLICATED,
                f"{_name(operation)} is in {copies} logs, and {operation.node} needed"
                f" {term.copies_min}",
            )

    def _has_expired(self, operation: Operation) -> bool:
        """Whether the message has expired on the master that answered."""
        begin = self.account.expired.get(operation.node, 0)
        return operation.physic_offset is not None and operation.physic_offset < begin

    def _check_status(
        self, operation: Operation, term: MasterTerm, acknowledged_up_to: int
    ) -> None:
        """Check that the status can be true.

        ``acknowledged_up_to``: the offset that a slave was known to have before the call.
        """
        status = operation.status
        assert operation.completed_s is not None
        if not _possible(operation, term):
            self._broken(
                Rule.IMPOSSIBLE_STATUS,
                f"{_name(operation)} under {term.role.value} with {term.flush.value}"
                + ("" if operation.wait else " and WAIT=false"),
            )
            return
        begin_s, end_s = operation.invoked_s, operation.completed_s
        timeout_s = {
            PutMessageStatus.FLUSH_SLAVE_TIMEOUT: term.slave_timeout_s,
            PutMessageStatus.FLUSH_DISK_TIMEOUT: term.sync_flush_timeout_s,
        }.get(status or PutMessageStatus.PUT_OK)
        if (
            timeout_s is not None
            and end_s - begin_s < timeout_s - _CLOCK_SLACK_S
            and not term.was_disturbed(begin_s, end_s)
            and _LEASE_IS_OVER not in (operation.error or "")  # it could not be told to be safe
        ):
            self._broken(
                Rule.ANSWERED_TOO_EARLY,
                f"{_name(operation)} after {end_s - begin_s:.3f} s of {timeout_s:g} s",
            )
        if term.epoch is not None:
            if status is PutMessageStatus.PUT_OK and _replicated(operation, term):
                self._check_acks_in_group(operation, term, begin_s, end_s)
        elif status is PutMessageStatus.PUT_OK and _replicated(operation, term):
            if self.account.who_could_acknowledge(operation.node, begin_s, end_s) is None:
                self._broken(
                    Rule.FALSE_OK,
                    f"{_name(operation)} at {end_s:.3f} s: no slave of {operation.node} ran,"
                    " unfrozen and connected",
                )
        elif status is PutMessageStatus.SLAVE_NOT_AVAILABLE:
            slave = self.account.who_was_healthy(operation.node, begin_s, end_s)
            unacknowledged = _end_at_most(operation) - acknowledged_up_to
            if slave is not None and unacknowledged < term.fallbehind_max:
                self._broken(
                    Rule.FALSE_UNAVAILABLE,
                    f"{_name(operation)} at {begin_s:.3f}…{end_s:.3f} s: {slave} was healthy and"
                    f" at most {unacknowledged} bytes behind",
                )

    def _check_acks_in_group(
        self, operation: Operation, term: MasterTerm, begin_s: float, end_s: float
    ) -> None:
        """Check that as many nodes as PUT_OK needed could acknowledge."""
        could = self.account.how_many_could_acknowledge(operation.node, begin_s, end_s)
        if could < term.copies_min - 1:
            self._broken(
                Rule.FALSE_OK,
                f"{_name(operation)} at {end_s:.3f} s: {could} nodes that follow"
                f" {operation.node} ran unfrozen, of the {term.copies_min - 1} that it needed",
            )

    def _check_end(self) -> None:
        """Check that every slave that was connected at the end had reached its master's end."""
        for slave, master in self.account.up_at_end.items():
            event = self.account.caught_up.get(slave)
            if event is None:
                self._broken(Rule.NOT_CAUGHT_UP, f"{slave} was connected to {master} at the end")
            elif event.details["max_offset"] != event.details["master_max_offset"]:
                self._broken(
                    Rule.NOT_CAUGHT_UP,
                    f"{slave} ended at {event.details['max_offset']}, its master {master} at"
                    f" {event.details['master_max_offset']}",
                )

    def _broken(self, rule: Rule, text: str) -> None:
        self._counts[rule] += 1
        if len(self._violations) < VIOLATIONS_KEPT_MAX:
            self._violations.append(Violation(rule, text))


def _name(operation: Operation) -> str:
    return f"put {operation.op} ({operation.key}, {operation.label})"


def _acknowledged_by(operation: Operation) -> int:
    """Return an offset that a slave has reached if this answer is PUT_OK."""
    return operation.next_offset or operation.physic_offset or 0


def _end_at_most(operation: Operation) -> int:
    """Return an upper bound of the record's end; a remoting answer has only its beginning."""
    if operation.next_offset is not None:
        return operation.next_offset
    return (operation.physic_offset or 0) + operation.body_size + _RECORD_OVERHEAD_MAX


def _replicated(operation: Operation, term: MasterTerm) -> bool:
    """Whether PUT_OK means that a slave has the message, too."""
    return operation.wait and term.role is BrokerRole.SYNC_MASTER


def _promised(operation: Operation, term: MasterTerm) -> bool:
    """Whether PUT_OK means that every later master of the replica group has the message."""
    return _replicated(operation, term) and term.is_all


def _possible(operation: Operation, term: MasterTerm) -> bool:
    """Whether this role, flush type and WAIT property allow this status."""
    match operation.status:
        case PutMessageStatus.FLUSH_SLAVE_TIMEOUT | PutMessageStatus.SLAVE_NOT_AVAILABLE:
            return _replicated(operation, term)
        case PutMessageStatus.FLUSH_DISK_TIMEOUT:
            return operation.wait and term.flush is FlushDiskType.SYNC_FLUSH
        case PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH:
            return term.epoch is not None and term.min_in_sync_replicas > 1
        case _:
            return True
