"""What is healthy: rules about one node's status, in three tables at the end.

Pure: a status and limits in, findings out.  The health pages, ``hastore check``, ``doctor``,
``wait`` and the status table each show some of them, in their own form.

A slave of a SYNC_MASTER is late, so that puts are FLUSH_SLAVE_TIMEOUT, when its lag in time (the
age of the oldest bytes that it has not acknowledged) is longer than a put waits::

    lag ≤ timeout                        in time, even if silent between two heartbeats
    lag > timeout, silent for longer     late
    lag > timeout, soon in time          catching up: just connected, or in time within a timeout
    lag > timeout                        late
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import attrs

from hastore.broker.clock.clock_verdict import NOTICED_MS, TOLERANCE_MS, Trust
from hastore.broker.observe.coordinator_status import NO_SPACE, NO_SPACE_HINT, UNLISTED_HINT
from hastore.broker.observe.node_status import DiskRow
from hastore.quantities import format_duration, format_size, format_span
from hastore.status import HAClientState, PutMessageStatus
from hastore.store.disk_usage import DATA_DIR, disk_name
from hastore.store.log.store_directory import COMMIT_LOG_DIR
from hastore.store.reserve_file import RESERVE_FILE
from hastore.tls.contexts import utc_text

if TYPE_CHECKING:
    from hastore.broker.observe.coordinator_status import CoordinatorStatus
    from hastore.broker.observe.node_status import NodeStatus, PutFailure, SlaveRow
    from hastore.broker.observe.sync_state_status import GroupNodeRow, SyncStateStatus
    from hastore.tls.tls_contexts import TlsStatus

_BEHIND_WARN: Final = 16 << 20  # bytes
_DISK_MARGIN: Final = 10  # percent below the point from which puts are refused
_FREE_INODES_MIN: Final = 100
_REFUSED_FOR_S: Final = 600.0
_REFUSED_MAX: Final = 3
_CUT_WARNED_S: Final = 3_600.0  # for so long a cut is a warning
_PROPOSAL_MAX_S: Final = 5.0  # a change of the SyncStateSet is usually answered within milliseconds
_DAY_S: Final = 86_400.0
_EXPIRY_WARN_S: Final = 30 * _DAY_S  # before a certificate expires
_LIST_WARN_SHARE: Final = 0.1  # of the time for which a list of withdrawn certificates holds
_CONFIRMED_WITHIN_S: Final = 3.0  # where no put waits


_PUT_FAILED_FOR_S: Final = 60.0  # for so long a put that failed is a warning
_UNKNOWN_ERROR: Final = PutMessageStatus.UNKNOWN_ERROR.value
_STORE_HINT: Final = (
    "look at its file systems (df, df -i), quota, descriptors, and owner and mode of its directory"
)


class Level(enum.IntEnum):
    """How bad a finding is; the worst of several is their maximum."""

    OK = 0
    NOTICE = 1  # worth knowing, no alarm
    UNKNOWN = 2  # this node cannot know
    WARNING = 3  # above a limit, or likely to get worse
    FAULT = 4  # the node does its work, but something has to be repaired
    CRITICAL = 5  # the node does not serve, or is above the critical limit


@attrs.frozen
class HealthFinding:
    """What a rule found about a node, and where known the reason and the next step (``hint``)."""

    subject: str
    level: Level
    what: str
    why: str | None = None
    hint: str | None = None

    @property
    def sentence(self) -> str:
        """``what`` and ``why`` as one sentence."""
        return f"{self.what}: {self.why}" if self.why else self.what


@attrs.frozen(kw_only=True)
class Limits:
    """Above which values a finding is a warning, or critical; None: never."""

    warn_lag: int | None = None  # bytes
    crit_lag: int | None = None
    warn_lag_s: float | None = None  # None: how long a put waits for slaves
    crit_lag_s: float | None = None
    min_slaves: int | None = None  # None: as many acks as a put needs
    warn_disk: int | None = None  # percent; from this value on
    crit_disk: int | None = None
    catching_up_counts: bool = True  # a slave that will soon be in time counts as in time

    @classmethod
    def of(cls, status: NodeStatus) -> Limits:
        """Return the limits from the node's own settings."""
        full = None if status.disk_full_ratio is None else round(status.disk_full_ratio * 100)
        lag_max = status.slave_lag_max  # from this lag on a slave is not available
        return cls(
            warn_lag=_BEHIND_WARN,
            crit_lag=None if lag_max is None else lag_max - 1,
            warn_disk=None if full is None else full - _DISK_MARGIN,
            crit_disk=full,
        )


def findings(status: NodeStatus, limits: Limits) -> Iterator[HealthFinding]:
    """Yield the findings of every rule for a node of this role."""
    own = _MASTER_RULES if status.master_link is None else _SLAVE_RULES
    for subject, rule in (own | _NODE_RULES).items():
        for level, what, *more in rule(status, limits):
            yield HealthFinding(subject, level, what, *more)


def faults(status: NodeStatus, *subjects: str, limits: Limits | None = None) -> list[str]:
    """Return the sentences of the critical findings of some subjects."""
    return [
        finding.sentence
        for finding in findings(status, limits or Limits())
        if finding.level is Level.CRITICAL and finding.subject in subjects
    ]


def warn_lag_s(status: NodeStatus, limits: Limits) -> float | None:
    """Return the lag limit in seconds: that of ``limits``, else how long a put waits for slaves."""
    return _put_timeout_s(status) if limits.warn_lag_s is None else limits.warn_lag_s


def slaves_wanted(status: NodeStatus, limits: Limits) -> int:
    """Return how many slaves a master must have."""
    return status.acks_needed if limits.min_slaves is None else limits.min_slaves


# With two ids left one copy is enough, unless the setting says otherwise.
_LOST_NODE: Final = (
    "one that is lost for good: hastore cluster remove ID, or set [ha] min_in_sync_replicas"
)


def name_of(slave: SlaveRow) -> str:
    """Return a slave's name if its own status is known, else its node's id or its address."""
    if slave.name is not None:
        return slave.name
    return slave.address if slave.node_id is None else f"node {slave.node_id}"


# -- a master ------------------------------------------------------------------------------------


def _puts(status: NodeStatus, _: Limits) -> Found:
    if status.puts_refused_because is not None:
        hint = "check its log, and start it again"
        group = status.sync_state
        if group is not None and not group.is_enough:
            hint = "bring back the nodes that are not in the set: hastore status says why they left"
            if group.has_coordinator:
                hint += f"; {_LOST_NODE}"
        elif status.log_is_full:
            hint = f"{_STORE_HINT}; it tries again by itself"
        elif status.state == "serving":
            hint = "make room on its disk, or lower [store] keep; then it takes puts again"
        yield Level.CRITICAL, "puts are refused", status.puts_refused_because, hint
    elif status.state != "serving":
        yield Level.CRITICAL, f"it is {status.state}", None, "check its log"
    elif status.put_failure is not None and _is_failing(status.put_failure):
        failure = status.put_failure
        what = f"puts fail: {failure.count} {failure.status} and none stored since"
        yield Level.CRITICAL, what, failure.reason, f"hastore explain; {_STORE_HINT}"
    elif status.put_failure is not None and status.put_failure.age_s <= _PUT_FAILED_FOR_S:
        failure = status.put_failure
        what = f"taken; {failure.count} failed {format_duration(failure.age_s)} ago"
        why = failure.status if failure.reason is None else f"{failure.status}, {failure.reason}"
        yield Level.WARNING, what, why, "which, and why: hastore explain"
    else:
        yield Level.OK, "taken"


def _is_failing(failure: PutFailure) -> bool:
    """Whether the next put would fail as well, as far as can be known without one."""
    is_old = failure.age_s > _PUT_FAILED_FOR_S
    return not (failure.is_over or (failure.status == _UNKNOWN_ERROR and is_old))


def _slaves(status: NodeStatus, limits: Limits) -> Found:
    group = status.sync_state
    if group is not None:
        yield _acks(status, group)
        if limits.min_slaves is None:
            return
    wanted, number = slaves_wanted(status, limits), len(status.current_followers)
    why = status.slave_unavailable_because
    next_step = f"hastore slave --master {status.ha_address} --data DIR"
    if status.followers:
        next_step = "it catches up: hastore status -w; a gap that stays: hastore doctor"
    if group is not None:
        if number < wanted:
            if not status.followers:
                next_step = "start its other nodes: hastore status names them"
            yield Level.CRITICAL, f"{number} of {wanted} slaves connected", None, next_step
    elif status.acks_needed and why is not None:
        yield Level.CRITICAL, "puts are SLAVE_NOT_AVAILABLE", why, next_step
    elif number < wanted:
        yield Level.CRITICAL, f"{number} of {wanted} slaves connected", why, next_step
    elif _nobody_in_time(status, limits):
        why = f"no slave acknowledges within {format_duration(_put_timeout_s(status) or 0.0)}"
        hint = "the state of the slave: hastore doctor; the puts: hastore explain"
        yield Level.CRITICAL, "puts are FLUSH_SLAVE_TIMEOUT", why, hint
    elif why is not None:
        yield Level.NOTICE, "nothing is replicated", why, next_step
    elif number:
        yield Level.OK, f"{number} connected"


def _acks(status: NodeStatus, group: SyncStateStatus) -> tuple[Level, str, *tuple[str | None, ...]]:
    """Return whether the nodes of a replica group acknowledge while a put waits."""
    hint = "who has a put, and who has not: hastore explain"
    if status.acks_needed and status.slave_unavailable_because is not None:
        what = "puts are SLAVE_NOT_AVAILABLE"
        if group.has_coordinator:
            hint = f"start the nodes that are missing; {_LOST_NODE}"
        return Level.CRITICAL, what, status.slave_unavailable_because, hint
    awaited = [node for node in group.nodes if node.is_awaited]
    timeout_s = _put_timeout_s(status)
    late = [] if timeout_s is None else [node for node in awaited if _is_late_node(node, timeout_s)]
    if len(awaited) - len(late) < status.acks_needed:
        ids = ", ".join(str(node.node_id) for node in late)
        why = f"node{'s' * (len(late) > 1)} {ids} did not acknowledge within"
        why += f" {format_duration(timeout_s or 0.0)}"
        return Level.CRITICAL, "puts are FLUSH_SLAVE_TIMEOUT", why, hint
    up = sum(node.is_connected for node in awaited)
    return Level.OK, f"{up} of {len(awaited)} other nodes of the SyncStateSet connected"


def _is_late_node(node: GroupNodeRow, timeout_s: float) -> bool:
    waits_s = node.since_s if node.lag_s is None else node.lag_s  # None: no ack on its link
    return (waits_s or 0.0) > timeout_s


def _members(status: NodeStatus, _: Limits) -> Found:
    group = status.sync_state
    if group is None:
        return
    ids = ", ".join(map(str, group.members))
    yield Level.OK, f"SyncStateSet {ids} ({group.mode}), in_sync_replicas {group.in_sync_replicas}"
    for node in group.nodes:
        where = f"node {node.node_id}"
        start = (
            f"hastore node --data DIR --node-id {node.node_id} --node-group {status.replica_group}"
            f" --master {status.ha_address}"
        )
        hint = "hastore status -w: does it catch up?" if node.is_connected else start
        since = "" if node.since_s is None else f" for {format_duration(node.since_s)}"
        if node.is_member:
            if not node.is_connected:
                what = f"{where} is in the SyncStateSet, and not connected{since}"
                yield Level.WARNING, what, node.why_not, hint
        elif node.role != "observer":
            # One that nobody expects is a learner, or has left.
            is_expected = group.configured_ids is None or node.node_id in group.configured_ids
            is_missed = is_expected and (group.configured_ids is not None or not node.is_connected)
            what = f"{where} is not in the SyncStateSet"
            yield (Level.WARNING if is_missed else Level.NOTICE), what, node.why_not, hint


def _proposal(status: NodeStatus, _: Limits) -> Found:
    proposal = None if status.sync_state is None else status.sync_state.proposal
    if proposal is None:
        return
    what = f"proposal {proposal.number} is not answered for {format_duration(proposal.age_s)}"
    level = Level.WARNING if proposal.age_s > _PROPOSAL_MAX_S else Level.OK
    hint = "until then puts wait for both sets; without a coordinator it waits for this node's disk"
    yield level, what, proposal.why, hint


def _confirmed(status: NodeStatus, _: Limits) -> Found:
    group = status.sync_state
    if group is None:
        return
    limit_s = _put_timeout_s(status) or _CONFIRMED_WITHIN_S
    if group.confirm_lag_s <= limit_s:
        yield Level.OK, f"{format_size(group.confirm_lag_bytes)} behind the end"
        return
    least = "at least " * group.confirm_lag_s_is_least
    behind = format_size(group.confirm_lag_bytes)
    what = f"the confirm offset {group.confirm_offset} is {behind} behind the end,"
    what += f" {least}{format_duration(group.confirm_lag_s)}"
    waits = [node for node in group.nodes if node.is_awaited and _is_late_node(node, limit_s)]
    ids = ", ".join(str(node.node_id) for node in waits)
    why = f"it waits for node{'s' * (len(waits) > 1)} {ids}" if waits else None
    yield Level.WARNING, what, why, "consumers see nothing above it: hastore status -w"


def _losses(status: NodeStatus, _: Limits) -> Found:
    group = status.sync_state
    if group is not None and group.may_lose_because is not None:
        hint = "[ha] in_sync_replicas = all and min_in_sync_replicas = 2 keep them on two nodes"
        yield Level.NOTICE, group.may_lose_because, None, hint


def _waiting(status: NodeStatus, _: Limits) -> Found:
    if status.waiting_for_slave:
        yield Level.OK, f"{status.waiting_for_slave} puts wait for a slave"


def _gaps(status: NodeStatus, limits: Limits) -> Found:
    for slave in status.current_slaves:
        if slave.lag_bytes is None:
            what = f"{name_of(slave)} has not reported an offset"
            hint = "a peer that never reports is not a slave: check what connects from there"
            yield Level.UNKNOWN, what, "its lag is not known", hint
            continue
        what = f"{name_of(slave)} is {format_size(slave.lag_bytes)} behind"
        if slave.lag_s:
            what += f", {'at least ' * slave.lag_s_is_least}{format_duration(slave.lag_s)}"
        if slave.eta_s is not None:
            what += f", caught up in about {format_duration(slave.eta_s)}"
        level, beyond = _beyond_bytes(slave.lag_bytes, limits)
        if status.slave_lag_max is not None and slave.lag_bytes >= status.slave_lag_max:
            beyond += ", and does not count"
        level_s, beyond_s = _beyond_s(slave, status, limits)
        level, what = max(level, level_s), what + beyond + beyond_s
        if _nobody_in_time(status, limits):
            level = Level.CRITICAL
        hint = "hastore status -w: does the gap shrink?"
        if _is_late(slave, status) and _is_silent(slave, status):
            what += f", and it has reported nothing for {format_duration(slave.last_report_age_s)}"
            hint = "check whether it is stopped, cut off, or waits for its disk"
        yield level, what, None, hint


def _beyond_bytes(lag_bytes: int, limits: Limits) -> tuple[Level, str]:
    for level, bound in ((Level.CRITICAL, limits.crit_lag), (Level.WARNING, limits.warn_lag)):
        if bound is not None and lag_bytes > bound:
            return level, f"; more than {format_size(bound)}"
    return Level.OK, ""


def _beyond_s(slave: SlaveRow, status: NodeStatus, limits: Limits) -> tuple[Level, str]:
    """Compare the lag in time with its limits; 'at least' may be above any limit."""
    warn_s = warn_lag_s(status, limits) if slave.is_awaited else limits.warn_lag_s
    crit_s, lag_s = limits.crit_lag_s, slave.lag_s
    if lag_s is not None and crit_s is not None and lag_s > crit_s:
        return Level.CRITICAL, f"; more than {format_duration(crit_s)}"
    if lag_s is not None and warn_s is not None and lag_s > warn_s:
        what = "a put waits" if limits.warn_lag_s is None else "more than"
        return Level.WARNING, f"; {what} {format_duration(warn_s)}"
    if slave.lag_s_is_least and (limits.warn_lag_s, crit_s) != (None, None):
        return Level.WARNING, ": from before its master's start"
    return Level.OK, ""


def _put_timeout_s(status: NodeStatus) -> float | None:
    """Return how long a put waits for a slave; None if it does not wait, or if unknown."""
    return status.slave_timeout_s if status.acks_needed else None


def _is_late(slave: SlaveRow, status: NodeStatus) -> bool:
    timeout_s = _put_timeout_s(status) if slave.is_awaited else None
    if timeout_s is None or not slave.lag_bytes or slave.lag_s is None:
        return False
    return slave.lag_s > timeout_s


def _is_silent(slave: SlaveRow, status: NodeStatus) -> bool:
    return slave.last_report_age_s > (_put_timeout_s(status) or 0.0)


def _is_catching_up(slave: SlaveRow, status: NodeStatus) -> bool:
    soon_s = slave.connected_s if slave.eta_s is None else min(slave.eta_s, slave.connected_s)
    return not _is_silent(slave, status) and soon_s <= (_put_timeout_s(status) or 0.0)


def _nobody_in_time(status: NodeStatus, limits: Limits) -> bool:
    """Return whether there are slaves and all are late, so that puts are FLUSH_SLAVE_TIMEOUT."""
    slaves, soon = status.current_followers, limits.catching_up_counts
    if status.sync_state is not None:
        return False  # ``_acks`` counts nodes
    return bool(slaves) and all(
        _is_late(slave, status) and not (soon and _is_catching_up(slave, status))
        for slave in slaves
    )


def _starts(status: NodeStatus, _: Limits) -> Found:
    for slave in status.current_slaves:
        if slave.note is not None:
            hint = "compare the two: hastore log diff MASTER_DIR SLAVE_DIR"
            yield Level.NOTICE, f"slave {name_of(slave)}", slave.note, hint


# -- a slave -------------------------------------------------------------------------------------


def _link(status: NodeStatus, _: Limits) -> Found:
    link = status.master_link
    assert link is not None
    if link.state == HAClientState.UNASSIGNED.value:
        what = "it follows nobody: no node of its replica group is named as master"
        yield Level.CRITICAL, what, link.reason, link.hint or "name one to it, or make it master"
    elif link.state == HAClientState.CONNECTING.value and link.local_address is not None:
        what = f"{link.address} is connected, and has sent nothing yet"
        hint = "check again: a RocketMQ master sends its first bytes after a little more than 5 s"
        yield Level.CRITICAL, what, None, hint
    elif link.state != HAClientState.STREAMING.value:
        hint = link.hint or "check whether its master runs, and whether the HA port is open"
        yield Level.CRITICAL, f"the link to {link.address} is {link.state}", link.reason, hint
    else:
        if link.is_silent:
            what = f"its master has been silent for {format_duration(link.last_read_age_s or 0.0)}"
            yield Level.CRITICAL, what, None, "check whether the master is stopped or cut off"
        if link.reason is not None:  # it follows in spite of that
            yield Level.FAULT, link.reason, None, link.hint
        elif not link.is_silent:
            yield Level.OK, f"{link.address} is heard, and answered"


def _own_gap(status: NodeStatus, limits: Limits) -> Found:
    link = status.master_link
    assert link is not None
    if link.state != HAClientState.STREAMING.value:
        return  # the rule of the link reports that, and the known end is old
    if link.lag_bytes is None:
        hint = "ask its master: hastore status MASTER"
        yield Level.UNKNOWN, "its lag is not known yet", None, hint
    else:
        level, beyond = _beyond_bytes(link.lag_bytes, limits)
        about = "about " * link.lag_is_estimate
        what = f"it is {about}{format_size(link.lag_bytes)} behind, as far as it knows{beyond}"
        yield level, what, None, "ask its master: hastore status MASTER -w"
    if limits.warn_lag_s is not None or limits.crit_lag_s is not None:
        yield Level.WARNING, "its lag in time is not known", "check its master for that"


# -- any node ------------------------------------------------------------------------------------


def _disk(status: NodeStatus, limits: Limits) -> Found:
    if status.disk_used_ratio is None:
        yield Level.UNKNOWN, "how full it is cannot be read", None, f"df {status.data_dir}"
        return
    found = [_one_disk(row, status, limits) for row in _disks_of(status)]
    for place, (level, what) in enumerate(found):
        if level is not Level.OK or not place:  # the fullest in any case
            yield level, what, None, "make room, or lower [store] keep"


def _disks_of(status: NodeStatus) -> tuple[DiskRow, ...]:
    """Return the file systems; an older node's status has the figures of one."""
    if status.disks or status.disk_used_ratio is None or status.disk_free_bytes is None:
        return status.disks
    row = DiskRow(
        directories=(DATA_DIR, COMMIT_LOG_DIR),
        used_ratio=status.disk_used_ratio,
        free_bytes=status.disk_free_bytes,
    )
    return (row,)


def _one_disk(row: DiskRow, status: NodeStatus, limits: Limits) -> tuple[Level, str]:
    level, used, full = Level.OK, row.used_ratio * 100, status.disk_full_ratio
    what = f"{disk_name(row.directories)} {used:.0f} % full"
    for worse, limit in ((Level.CRITICAL, limits.crit_disk), (Level.WARNING, limits.warn_disk)):
        if limit is not None and used >= limit:
            level, what = worse, f"{what}, {limit} % or more"
            break
    what += f", {format_size(row.free_bytes)} free"
    if COMMIT_LOG_DIR in row.directories and row.free_bytes < 2 * status.mapped_file_size:
        level = max(level, Level.NOTICE)
        what += f"; the next log file needs {format_size(status.mapped_file_size)}"
    if row.free_inodes is not None and row.free_inodes < _FREE_INODES_MIN:
        level = max(level, Level.WARNING if row.free_inodes else Level.CRITICAL)
        what += f"; {row.free_inodes or 'no'} inodes free: each new file needs one"
    if full is not None and row.used_ratio >= full:
        what += f"; from {full * 100:.0f} % on puts are refused"
    return level, what


def _next_file(status: NodeStatus, _: Limits) -> Found:
    if status.next_file_fault is None:
        return
    if not status.log_is_full:
        what = "the log's next file cannot be made, so nothing is stored once this one is full"
        yield (
            Level.WARNING,
            what,
            status.next_file_fault,
            f"{_STORE_HINT}; it tries again by itself",
        )
    elif status.master_link is not None:  # of a master the rule of puts says so
        what = "what its master sends cannot be stored"
        yield (
            Level.CRITICAL,
            what,
            status.next_file_fault,
            f"{_STORE_HINT}; it tries again by itself",
        )


def _torn_tables(status: NodeStatus, _: Limits) -> Found:
    for path, why in status.torn_tables.items():
        hint = f"what changed last may be missing; the next write keeps the file as {path}.torn"
        yield Level.WARNING, f"{path} was torn at the start", why, hint


def _stored(status: NodeStatus, _: Limits) -> Found:
    for row in status.failed_writes:
        kept = _KEPT.get(row.path) or _KEPT.get(row.path.partition("/")[0]) or _KEPT_ELSEWHERE
        level, what = kept
        if row.is_removal:
            level, what = Level.WARNING, f"{row.path} cannot be removed"
        elif kept is _KEPT_ELSEWHERE:
            what = f"{row.path} {what}"
        why = f"{row.reason}, for {format_duration(row.since_s)}"
        yield level, what, why, row.hint or _STORE_HINT


def _consumers(status: NodeStatus, _: Limits) -> Found:
    behind = f"are {format_size(status.dispatch_behind_bytes)} behind"
    if status.dispatch_fault is not None:
        hint = f"hastore log verify {status.data_dir}; puts and replication go on"
        what = f"consumers {behind} and see nothing new"
        yield Level.CRITICAL, what, status.dispatch_fault, hint
    elif status.dispatch_behind_bytes > _BEHIND_WARN:
        yield Level.NOTICE, f"consumers {behind}", None, "hastore status -w: does it shrink?"
    elif status.dispatch_behind_bytes:
        yield Level.OK, behind
    else:
        yield Level.OK, "see all that is confirmed"


def _access(status: NodeStatus, _: Limits) -> Found:
    access = status.access
    if access is None:
        return
    if access.fault is not None:
        what = "its present permissions file is not in force, an earlier version is"
        yield Level.FAULT, what, access.fault, access.hint
    else:
        what = f"{access.accounts} access keys of {access.file} are in force"
        if access.failed_attempts:
            what += f"; {access.failed_attempts} failed attempts since the start"
        yield Level.OK, what


def _tls(status: NodeStatus, _: Limits) -> Found:
    tls = status.tls
    if tls is None:
        return
    own = f"the certificate of {tls.certificate}"
    if tls.fault is not None:
        what = "its present certificate files are not in force, earlier versions are"
        yield Level.FAULT, what, tls.fault, tls.hint
    dates = {
        own: tls.not_after,
        "its CA's certificate": tls.ca_not_after,
        "the clients' CA's certificate": tls.client_ca_not_after,
    }
    ends = [_end_of(which, end_s, status) for which, end_s in dates.items() if end_s is not None]
    ends.append(_end_of_list(tls, status))
    for end in ends:
        if end is not None:
            yield end
    if tls.fault is None and not any(ends):
        yield Level.OK, f"{own} is in force, until {utc_text(tls.not_after)}"


def _end_of(
    which: str, end_s: int, status: NodeStatus
) -> tuple[Level, str, *tuple[str | None, ...]] | None:
    """Return that a certificate has expired, or will soon; None: neither."""
    if status.wall_time_ms is None:
        return None
    left_s, end = end_s - status.wall_time_ms / 1_000, utc_text(end_s)
    hint = "put a new one in its place (docs/security.md): it is taken without a restart"
    if left_s < 0:
        return Level.CRITICAL, f"{which} has expired on {end}", None, hint
    if left_s < _EXPIRY_WARN_S:
        return Level.WARNING, f"{which} expires in {format_span(left_s)}, on {end}", None, hint
    return None


def _end_of_list(
    tls: TlsStatus, status: NodeStatus
) -> tuple[Level, str, *tuple[str | None, ...]] | None:
    """Return that a list of withdrawn certificates is due, or nearly; None: it is not."""
    due_s, issued_s = tls.crl_next_update, tls.crl_issued_at
    if due_s is None or issued_s is None or status.wall_time_ms is None:
        return None
    left_s, due = due_s - status.wall_time_ms / 1_000, utc_text(due_s)
    hint = "put the CA's new list into [tls] crl: it is taken without a restart"
    if left_s < 0:
        what = f"the list of withdrawn certificates was to be replaced by {due}"
        return Level.CRITICAL, what, "no new connection with a certificate is accepted", hint
    if left_s < _LIST_WARN_SHARE * (due_s - issued_s):
        what = f"the list of withdrawn certificates must be replaced by {due}"
        return Level.WARNING, what, None, hint
    return None


def _time(status: NodeStatus, _: Limits) -> Found:
    clock = status.clock
    if clock is None:
        return
    if clock.in_doubt_because is not None:
        what = "its clock is in doubt: log files are not deleted because of their age"
        if clock.corrected_by_s:
            what += "; its store times are corrected"
        level = Level.FAULT if clock.trust == Trust.CONTRADICTED.value else Level.WARNING
        yield level, what, clock.in_doubt_because, clock.hint
    if clock.store_time_lead_s * 1000 > TOLERANCE_MS:
        lead = format_span(clock.store_time_lead_s)
        what = f"the log's last store time is {lead} ahead of the clock"
        why = "new messages get it too, until the clock has reached it"
        yield Level.WARNING, what, why, "docs/limits.md says what a wrong store time affects"
    if clock.in_doubt_because is not None:
        return
    apart = [
        f"{format_span(abs(lead_s))} {'ahead of' if lead_s > 0 else 'behind'} {who}"
        for who, lead_s in clock.leads_s.items()
        if abs(lead_s) * 1000 >= NOTICED_MS
    ]
    if apart:
        yield Level.NOTICE, f"its clock is {', '.join(apart)}", None, "set the clocks by NTP"
    elif clock.leads_s:
        yield Level.OK, f"its clock agrees with {', '.join(clock.leads_s)}"
    else:
        yield Level.OK, "no other machine's clock is known to compare its own with"


def _refused(status: NodeStatus, _: Limits) -> Found:
    for refusal in status.refused[-_REFUSED_MAX:]:
        if refusal.age_s <= _REFUSED_FOR_S:
            what = f"{refusal.address} {format_duration(refusal.age_s)} ago"
            yield Level.NOTICE, what, refusal.reason, refusal.hint


def _replica_group(status: NodeStatus, _: Limits) -> Found:
    if status.node_id is None:
        return
    epoch = "no epoch yet" if status.epoch is None else f"epoch {status.epoch}"
    seen, is_master = status.seen_epoch or 0, status.master_link is None
    who = f"node {status.node_id} of {status.replica_group}"
    if is_master and seen > (status.epoch or 0):
        what = f"{who} is the master of {epoch}, and has heard of epoch {seen}"
        hint = "another node is master: stop this one, and start it again as its slave"
        yield Level.CRITICAL, what, None, hint
        return
    if seen > (status.epoch or 0):
        epoch += f", has heard of epoch {seen}"
    if status.sync_state is not None:
        epoch += f", its master for {format_duration(status.sync_state.epoch_age_s)}"
    yield Level.OK, f"{who}, {epoch}"


def _coordinator(status: NodeStatus, _: Limits) -> Found:
    coordinator = status.coordinator
    if coordinator is None:
        return
    yield from _coordinator_files(coordinator)
    for alarm in coordinator.etcd_alarms:
        yield Level.WARNING, *_etcd_alarm(alarm)
    if coordinator.alarm is not None:
        hint = "find out why; hastore cluster status names the command that ends it"
        yield Level.CRITICAL, "no node is elected: the alarm is raised", coordinator.alarm, hint
        return
    if coordinator.unproven_epoch is not None:
        what = f"epoch {coordinator.unproven_epoch} began although no member was proven"
        hint = "acknowledged messages may be lost: hastore cluster history; then hastore cluster"
        yield Level.CRITICAL, what, "the longest log was taken", f"{hint} clear-alarm"
        return
    if coordinator.unlisted_because is not None:
        yield Level.WARNING, coordinator.unlisted_because, None, UNLISTED_HINT
    if coordinator.is_failsafe:
        what = "etcd does not answer; this master continues by the promises of its members"
        yield Level.WARNING, what, None, "puts stop if a member fails now: look at etcd"
    elif coordinator.unusable_because is not None and coordinator.is_reachable:
        hint = "grant this node's etcd user readwrite on its prefix; its log has more"
        yield Level.WARNING, "etcd refuses writes", coordinator.unusable_because, hint
    elif coordinator.unusable_because is not None:
        hint = "hastore cluster status says what to do about it"
        yield Level.WARNING, "nothing can be decided", coordinator.unusable_because, hint
    elif not coordinator.is_reachable:
        # ``check`` shows the sentence without the rule's name: it must say who does not answer.
        yield Level.WARNING, "etcd does not answer", None, "check that etcd runs, and is reachable"
    elif coordinator.is_paused:
        yield Level.NOTICE, "elections are paused", None, "hastore cluster resume"
    elif not coordinator.etcd_alarms:
        yield Level.OK, coordinator.doing


def _coordinator_files(coordinator: CoordinatorStatus) -> Found:
    if coordinator.files_fault is not None:
        what = "the present files of [cluster] are not in force, earlier versions are"
        yield Level.FAULT, what, coordinator.files_fault, coordinator.files_hint
    if coordinator.files_warning is not None:
        what = "etcd may refuse this node's certificate"
        hint = "put a new one into [cluster] cert: it is taken without a restart"
        yield Level.WARNING, what, coordinator.files_warning, hint


def _unverified(status: NodeStatus, _: Limits) -> Found:
    found = status.unverified
    if found is None:
        return
    what = f"messages from {found.begin} to {found.end} of its log may be missing or wrong"
    if status.master_link is None:
        hint = "hastore cluster switchover: as a slave it compares its log with the next master's"
    elif found.compared_to is not None:
        compared = max(found.compared_to - status.min_offset, 0)
        what += f"; it has compared {format_size(compared)} of"
        what += f" {format_size(status.max_offset - status.min_offset)} with its master's log"
        hint = "it is not elected before all is compared: hastore status -w"
    else:
        because = f" ({found.waits_because})" if found.waits_because else ""
        hint = f"it compares its log with its master's, and is not elected before{because}"
    yield Level.WARNING, what, found.why, hint


def _damage(status: NodeStatus, _: Limits) -> Found:
    damage = status.log_damage
    if damage is None:
        return
    what = f"its log is damaged at {damage.physic_offset}; a member compared its own log with it"
    hint = f"hastore log verify {status.data_dir}; make another member master (hastore cluster"
    hint += " switchover), then, with this node stopped, hastore log repair --from-replica"
    yield Level.CRITICAL, what, damage.reason, hint


def _successor(status: NodeStatus, _: Limits) -> Found:
    if status.coordinator is None or status.cannot_store_because is None:
        return
    what = "it does not become master while another member can store"
    yield Level.WARNING, what, status.cannot_store_because, _STORE_HINT


def _etcd_alarm(alarm: str) -> tuple[str, str | None, str | None]:
    if alarm == NO_SPACE:
        why = "its database is full (NOSPACE): nothing that fails now can be replaced"
        return "etcd takes no writes", why, NO_SPACE_HINT
    return f"etcd has the alarm {alarm}", None, "etcdctl alarm list; and etcd's log"


def _cut(status: NodeStatus, _: Limits) -> Found:
    if status.cut_refused_because is not None:
        link = status.master_link  # whose rule has the reason
        hint = None if link is None else link.hint
        yield Level.CRITICAL, "its log must be cut, and was not", None, hint
    cut = status.last_cut
    if cut is not None:
        size = format_size(cut["end"] - cut["offset"])
        topics = ", ".join(f"{topic} {count}" for topic, count in cut["messages"].items())
        what = f"its log was cut at {cut['offset']}: {size} with {topics or 'no whole message'}"
        age_s = None if status.wall_time_ms is None else status.wall_time_ms / 1000
        age_s = None if age_s is None else age_s - cut["time_ms"] / 1000
        level = Level.NOTICE
        if age_s is not None:
            what = f"{format_duration(max(age_s, 0.0))} ago {what}"
            level = Level.WARNING if age_s <= _CUT_WARNED_S else Level.NOTICE
        yield level, what, cut["reason"], f"the bytes are in {status.data_dir}/trimmed"


def _tables(status: NodeStatus, _: Limits) -> Found:
    copies = status.table_copies
    if copies is None:
        return
    if copies.reason is not None:
        what = "topics, groups and offsets are not copied"
        yield Level.NOTICE, what, copies.reason, copies.hint
    for table, reason in copies.refused.items():
        yield Level.NOTICE, f"its master's {table} are not taken over", reason
    if copies.reason is None and not copies.refused and copies.age_s is not None:
        yield Level.OK, "topics, groups and offsets are copied"


# -- what a node keeps beside its log, by path or by the directory ---------------------------------

_KEPT: Final = {
    "config": (Level.CRITICAL, "tables below config/ are not stored"),
    "config/topics.json": (Level.CRITICAL, "topics are not stored: an unclean stop loses changes"),
    "config/subscriptionGroup.json": (
        Level.CRITICAL,
        "consumer groups are not stored: an unclean stop loses changes",
    ),
    "config/consumerOffset.json": (
        Level.CRITICAL,
        "consumer offsets are not stored: after an unclean stop consumers get messages again",
    ),
    "config/delayOffset.json": (
        Level.CRITICAL,
        "delay offsets are not stored: an unclean stop delivers delayed messages again",
    ),
    "config/clock.json": (Level.WARNING, "the time that was trusted last is not stored"),
    "config/tlsPeers.json": (
        Level.WARNING,
        "which nodes have TLS is not stored: after a restart they may be asked in plain bytes",
    ),
    "identity.json": (Level.CRITICAL, "what it knows of its replica group is not stored"),
    "epochFileCheckpoint": (Level.CRITICAL, "the epochs of its log are not stored"),
    "sync_state_set.json": (Level.CRITICAL, "a change of the SyncStateSet is not stored"),
    "checkpoint": (Level.WARNING, "the checkpoint is not stored: the next start reads more"),
    "consumequeue": (
        Level.WARNING,
        "consume queues are not on the disk: the next start reads more",
    ),
    "index": (Level.WARNING, "the index is not on the disk: the next start reads more"),
    RESERVE_FILE: (Level.WARNING, "no reserve: on a full disk it could not change its role"),
    "refused_slaves.json": (Level.WARNING, "refused slaves are not stored"),
}
_KEPT_ELSEWHERE: Final = (Level.FAULT, "is not stored")

# -- the tables, by subject ----------------------------------------------------------------------

# Level and what; then, if known, why and the next step.
Found = Iterator[tuple[Level, str, *tuple[str | None, ...]]]
Rule = Callable[["NodeStatus", Limits], Found]

_MASTER_RULES: Final[dict[str, Rule]] = {
    "puts": _puts,  # are taken
    "slaves": _slaves,  # are enough, and one acknowledges while a put waits
    "waiting": _waiting,  # puts, for a slave
    "gap": _gaps,  # of each slave, in bytes and in time
    "start": _starts,  # of a slave inside a record: its log may have diverged
    "members": _members,  # of the SyncStateSet: all configured nodes, connected
    "proposal": _proposal,  # a change of the set that is not answered
    "confirm offset": _confirmed,  # follows the log's end
    "acks": _losses,  # which failures may lose acknowledged messages
}
_SLAVE_RULES: Final[dict[str, Rule]] = {
    "link": _link,  # to the master: heard, and its bytes are stored
    "gap": _own_gap,  # as far as a slave knows its own
    "cut": _cut,  # of its log: what it had to give up, or must
    "tables": _tables,  # of the master are copied, beside its log
    "successor": _successor,  # whether it may take over: it can store
}
_NODE_RULES: Final[dict[str, Rule]] = {
    "replica group": _replica_group,  # which node it is, and in which epoch
    "unverified": _unverified,  # a part of its log, so that it is not elected
    "log": _damage,  # has no damaged record inside
    "coordinator": _coordinator,  # whether it answers, and what the node does by it
    "disk": _disk,  # has room for the log
    "next file": _next_file,  # of the log is made before it is needed
    "table files": _torn_tables,  # were whole at the start
    "stored": _stored,  # is whatever the node keeps beside its log
    "consumers": _consumers,  # see what is confirmed
    "access": _access,  # the permissions file is in force
    "tls": _tls,  # the certificate files are in force, and not about to expire
    "time": _time,  # the clock can be trusted, and the log's store time is not ahead
    "refused": _refused,  # peers at the HA port, in the last ten minutes
}
