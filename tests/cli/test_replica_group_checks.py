"""`hastore check` and `hastore doctor` of the nodes of a replica group."""

import attrs
import pytest

from hastore.broker.observe.coordinator_status import CoordinatorStatus
from hastore.broker.observe.health import health
from hastore.broker.observe.node_status import UnverifiedLog
from hastore.broker.observe.sync_state_status import ProposalRow
from hastore.store.node_identity import Identity
from hastore_cli.doctor.facts import Facts
from hastore_cli.doctor.rules import Result, diagnose
from hastore_cli.status.check import DEFAULTS, NagiosState, check_status
from tests.support.nodes.statuses import GROUP_MASTER, MEMBER, group_master

UUID = "5f0c6d7e-3b1a-4c55-9d60-1f2e3d4c5b6a"

ALL = {"role": "member", "is_connected": True, "why_not": None, "lag_s": 0.0, "ack_offset": 9}
WHOLE = group_master({}, {}, ALL, members=(1, 2, 3))
NOT_ACKNOWLEDGED = {"ack_offset": None, "lag_bytes": None, "lag_s": None}
CLOSED = {**NOT_ACKNOWLEDGED, "is_connected": False, "address": None}
LATE = {"lag_s": 4.0, "lag_bytes": 300}
PROPOSAL = ProposalRow(
    number=4,
    members=(1, 2),
    joined=(),
    left=(3,),
    why="the set {1, 2}: node 3 closed its link",
    age_s=6.0,
)
REFUSED = "the SyncStateSet is node 1 only, fewer than min_in_sync_replicas = 2"
STUCK = {"confirm_lag_bytes": 300, "confirm_lag_s": 4.0, "confirm_offset": 700}
NOW_MS = MEMBER.last_cut["time_ms"]
UNCUT = attrs.evolve(
    MEMBER,
    last_cut=None,
    master_link=attrs.evolve(MEMBER.master_link, state="streaming", reason=None, lag_bytes=0),
)


def cut(age_s):
    """A slave whose log was cut so long ago."""
    now_ms = NOW_MS + round(age_s * 1000)
    return attrs.evolve(UNCUT, last_cut=MEMBER.last_cut, wall_time_ms=now_ms)


FILLED = UnverifiedLog(begin=100, end=200, why="log repair filled the place of lost messages")
OK, WARNING, CRITICAL = NagiosState.OK, NagiosState.WARNING, NagiosState.CRITICAL


@pytest.mark.parametrize(
    ("status", "state", "text"),
    [
        (
            WHOLE,
            OK,
            (
                "OK n1 SYNC_MASTER of epoch 7, SyncStateSet 1, 2, 3, 1 slave, worst lag 0 B; an"
                " acknowledged message has 2 copies |"
            ),
        ),
        (GROUP_MASTER, WARNING, "node 3 is not in the SyncStateSet: it closed its link"),
        # It never came, so nothing says how long it has been away.
        (
            group_master({}, {}, {"since_s": None, "why_not": "it has not connected"}),
            WARNING,
            "node 3 is not in the SyncStateSet: it has not connected",
        ),
        # Without configured ids only one that was in the set is missed.
        (group_master(configured_ids=None), WARNING, "node 3 is not in the SyncStateSet"),
        (
            group_master({}, {}, {"is_connected": True}, configured_ids=None),
            OK,
            "SyncStateSet 1, 2,",
        ),
        (group_master(configured_ids=(1, 2)), OK, "SyncStateSet 1, 2,"),
        (group_master({}, {}, {"role": "observer"}, configured_ids=(1, 2)), OK, "SyncStateSet 1,"),
        (
            group_master({}, {}, {**ALL, **CLOSED, "since_s": 2.0}, members=(1, 2, 3)),
            WARNING,
            "node 3 is in the SyncStateSet, and not connected for 2.0 s",
        ),
        (
            group_master(members=(1,), status={"puts_refused_because": REFUSED}),
            CRITICAL,
            "CRITICAL n1 puts are refused: the SyncStateSet is node 1 only, fewer than",
        ),
        (
            group_master(status={"slave_unavailable_because": "node 2 not connected, and …"}),
            CRITICAL,
            "puts are SLAVE_NOT_AVAILABLE: node 2 not connected",
        ),
        # An ASYNC_MASTER's puts wait for nobody.
        (
            group_master(
                {},
                LATE,
                ALL,
                members=(1, 2, 3),
                status={"slave_unavailable_because": "x", "acks_needed": 0},
            ),
            OK,
            "SyncStateSet 1, 2, 3",
        ),
        (
            group_master({}, LATE, ALL, members=(1, 2, 3), status={"acks_needed": 2}),
            CRITICAL,
            "puts are FLUSH_SLAVE_TIMEOUT: node 2 did not acknowledge within 3.0 s",
        ),
        # A node that is only proposed is awaited, too.
        (
            group_master({}, {}, {**ALL, **LATE, "role": "pending"}, status={"acks_needed": 2}),
            CRITICAL,
            "puts are FLUSH_SLAVE_TIMEOUT: node 3 did not acknowledge within 3.0 s",
        ),
        # Acks count nodes, not connections.
        (
            group_master({}, {}, ALL, members=(1, 2, 3), status={"acks_needed": 2}),
            OK,
            "SyncStateSet 1, 2, 3, 1 slave",
        ),
        # Two of three are enough, and two have it.
        (
            group_master({}, LATE, ALL, members=(1, 2, 3), in_sync_replicas=2),
            OK,
            "SyncStateSet 1, 2, 3",
        ),
        (
            group_master({}, LATE, {**ALL, **LATE}, members=(1, 2, 3), in_sync_replicas=2),
            CRITICAL,
            "nodes 2, 3 did not acknowledge",
        ),
        (
            group_master({}, {**NOT_ACKNOWLEDGED, "since_s": 2.9}, ALL, members=(1, 2, 3)),
            OK,
            "SyncStateSet 1, 2, 3",
        ),
        (
            group_master(
                {}, {**CLOSED, "since_s": 3.1}, ALL, members=(1, 2, 3), status={"acks_needed": 2}
            ),
            CRITICAL,
            "puts are FLUSH_SLAVE_TIMEOUT: node 2 did not acknowledge",
        ),
        (
            group_master({}, {}, ALL, members=(1, 2, 3), proposal=PROPOSAL),
            WARNING,
            "proposal 4 is not answered for 6.0 s: the set {1, 2}: node 3 closed its link",
        ),
        (
            group_master(
                {}, {}, ALL, members=(1, 2, 3), proposal=attrs.evolve(PROPOSAL, age_s=4.9)
            ),
            OK,
            "SyncStateSet 1, 2, 3",
        ),
        (
            group_master({}, LATE, ALL, members=(1, 2, 3), in_sync_replicas=2, **STUCK),
            WARNING,
            "the confirm offset 700 is 300 B behind the end, 4.0 s: it waits for node 2",
        ),
        (
            group_master({}, {}, ALL, members=(1, 2, 3), **{**STUCK, "confirm_lag_s": 2.9}),
            OK,
            "SyncStateSet",
        ),
        (
            group_master({}, {}, ALL, members=(1, 2, 3), status={"seen_epoch": 8}),
            CRITICAL,
            "node 1 of g1 is the master of epoch 7, and has heard of epoch 8",
        ),
        (UNCUT, OK, "OK n2 follows 127.0.0.1:10912"),
        (
            cut(60.0),
            WARNING,
            "60.0 s ago its log was cut at 47859: 27.2 KiB with orders 12, audit",
        ),
        (cut(3_599.0), WARNING, "its log was cut"),
        (cut(3_601.0), OK, "follows"),
        (
            attrs.evolve(UNCUT, cut_refused_because="alarm"),
            CRITICAL,
            "its log must be cut, and was not",
        ),
        (
            attrs.evolve(UNCUT, unverified=FILLED),
            WARNING,
            "messages from 100 to 200 of its log may be missing or wrong: log repair filled",
        ),
        (
            attrs.evolve(
                UNCUT,
                unverified=attrs.evolve(FILLED, compared_to=UNCUT.min_offset + (4 << 20)),
                max_offset=UNCUT.min_offset + (16 << 20),
            ),
            WARNING,
            "wrong; it has compared 4.0 MiB of 16.0 MiB with its master's log: log repair",
        ),
        (attrs.evolve(WHOLE, unverified=FILLED), WARNING, "messages from 100 to 200 of its log"),
    ],
)
def test_check_of_a_replica_groups_node(status, state, text):
    """What puts need is critical; what a failure would make critical is a warning."""
    verdict = check_status(attrs.evolve(status, disk_used_ratio=0.4), DEFAULTS)
    assert (verdict.state, text in verdict.line) == (state, True), verdict.line


def test_check_has_the_figures_of_the_set():
    """Fewer members than configured are a warning, fewer than puts need critical."""
    line = check_status(GROUP_MASTER, DEFAULTS).line
    assert "; an acknowledged message has 2 copies |" in line
    assert (
        " members=2;3:;2:;0 copies=2;;;0 confirm_lag=0B;;;0 confirm_lag_time=0.000s;;;0 epoch=7 "
        in line
    )
    assert "'node 2_lag'=0B;16777216;134217728;0" in line
    assert " epoch=5 " in check_status(MEMBER, DEFAULTS).line
    alone = group_master(configured_ids=None)
    assert " members=2;2:;2:;0 " in check_status(alone, DEFAULTS).line
    refused = check_status(group_master(copies=None), DEFAULTS).line
    assert "; no message is acknowledged |" in refused
    assert "copies=" not in refused
    single = check_status(group_master(copies=1), DEFAULTS).line
    assert "; an acknowledged message has 1 copy |" in single


@pytest.mark.parametrize("role", ["learner", "observer"])
def test_no_put_waits_for_a_learner_or_an_observer(role):
    """So its lag in time is no warning, unless a limit is named."""
    row = attrs.evolve(GROUP_MASTER.slaves[0], lag_bytes=5, lag_s=60.0, last_report_age_s=60.0)
    late = attrs.evolve(WHOLE, slaves=(row,))
    verdict = check_status(late, DEFAULTS)
    assert (verdict.state, "a put waits 3.0 s" in verdict.line) == (WARNING, True)
    assert "has reported nothing" in verdict.line
    other = attrs.evolve(WHOLE, slaves=(attrs.evolve(row, node_role=role),))
    assert check_status(other, DEFAULTS).state is OK
    verdict = check_status(other, attrs.evolve(DEFAULTS, warn_lag_s=59.0))
    assert (verdict.state, "has reported nothing" in verdict.line) == (WARNING, False)


def test_a_limit_of_slaves_counts_connections():
    """It is beside what puts need."""
    limits = attrs.evolve(DEFAULTS, min_slaves=2)
    verdict = check_status(WHOLE, limits)
    assert (verdict.state, "1 of 2 slaves connected" in verdict.line) == (CRITICAL, True)
    assert check_status(WHOLE, attrs.evolve(DEFAULTS, min_slaves=1)).state is OK


def test_a_master_whose_puts_wait_in_vain_is_ready_and_says_so():
    """As a classic one: it stores them."""
    status = group_master(status={"slave_unavailable_because": "node 2 not connected"})
    page = health("/ready", {}, status)
    assert (page.ok, "puts are SLAVE_NOT_AVAILABLE" in page.why) == (True, True)


# -- doctor ---------------------------------------------------------------------------------------


def found(check, status):
    """The findings of ``check`` on a node."""
    roomy = {"disk_used_ratio": 0.4, "disk_free_bytes": 100 << 30, "disk_full_ratio": 0.9}
    facts = Facts(
        name="D1",
        address=("127.0.0.1", 1),
        status=attrs.evolve(status, **roomy),
        took_s=0.001,
        ha_was_tried=True,
    )
    return [finding for finding in diagnose([facts]) if finding.check == check]


START = "hastore node --data DIR --node-id 3 --node-group g1 --master 127.0.0.1:10912"


@pytest.mark.parametrize(
    ("check", "status", "result", "what", "next_step"),
    [
        ("slaves", GROUP_MASTER, Result.OK, "1 of 1 other nodes of the SyncStateSet connected", ""),
        ("confirm offset", GROUP_MASTER, Result.OK, "0 B behind the end", ""),
        (
            "replica group",
            GROUP_MASTER,
            Result.OK,
            "node 1 of g1, epoch 7, its master for 12 min",
            "",
        ),
        (
            "puts",
            group_master(members=(1,), status={"puts_refused_because": REFUSED}),
            Result.BAD,
            "puts are refused",
            "bring back the nodes that are not in the set",
        ),
        (
            "acks",
            group_master(may_lose_because="in_sync_replicas = 2: the failure of"),
            Result.WARN,
            "in_sync_replicas = 2",
            "in_sync_replicas = all",
        ),
        (
            "proposal",
            group_master(proposal=PROPOSAL),
            Result.WARN,
            "not answered for 6.0 s",
            "puts wait for both sets",
        ),
    ],
)
def test_doctor_of_a_replica_groups_master(check, status, result, what, next_step):
    """Each has the next step."""
    (finding,) = found(check, status)
    assert (finding.result, what in finding.what) == (result, True), finding
    assert next_step in (finding.next_step or "")


def test_doctor_says_how_to_bring_a_node_back():
    """One that is connected is only to be watched."""
    whole, missing = found("members", GROUP_MASTER)
    assert (whole.result, whole.what) == (
        Result.OK,
        "SyncStateSet 1, 2 (strict), in_sync_replicas all",
    )
    assert (missing.result, missing.next_step) == (Result.WARN, START)
    _, behind = found("members", group_master({}, {}, {"is_connected": True}))
    assert behind.next_step == "hastore status -w: does it catch up?"
    assert len(found("members", group_master({}, {}, {"role": "observer"}))) == 1


def test_classic_nodes_have_none_of_these_findings():
    """Their checks stay as they were."""
    for check in ("members", "proposal", "confirm offset", "acks", "cut", "replica group"):
        assert found(check, attrs.evolve(GROUP_MASTER, sync_state=None, node_id=None)) == []


# -- nodes of one group ---------------------------------------------------------------------------


def facts_of(name, status, **changes):
    """The facts of a node that answers."""
    status = attrs.evolve(status, data_dir=name, address=f"{name}:1", **changes)
    return Facts(name=name, address=("h", 1), status=status, took_s=0.001, ha_was_tried=True)


def between(check, *nodes):
    """The bad findings of ``check``."""
    return [
        (finding.node, finding.what)
        for finding in diagnose(nodes)
        if finding.check == check and finding.result is Result.BAD and finding.next_step
    ]


SLAVE = attrs.evolve(
    UNCUT,
    seen_epoch=7,
    master_link=attrs.evolve(UNCUT.master_link, local_address="127.0.0.1:50212"),
)


def test_two_masters_of_a_group_are_told_apart_by_their_epochs():
    """That of the newest epoch is right; masters of other groups do not matter."""
    old, new = facts_of("D1", GROUP_MASTER), facts_of("D3", GROUP_MASTER, epoch=8, node_id=3)
    bad = ("D1", "it is master of epoch 7, and D3 of epoch 8")
    assert between("roles", old, new) == between("roles", new, old) == [bad]
    same = facts_of("D3", GROUP_MASTER, node_id=3)
    assert between("roles", old, same) == [("D3", "it is master of epoch 7, and D1 of epoch 7")]
    other = facts_of("D3", GROUP_MASTER, replica_group="g2")
    classic = facts_of("D4", GROUP_MASTER, replica_group=None, node_id=None, sync_state=None)
    assert not [each for each in diagnose([old, other, classic]) if each.check == "roles"]


def test_a_slave_that_has_heard_of_a_newer_epoch_names_its_master_deposed():
    """Whether it still follows it or not."""
    master, slave = facts_of("D1", GROUP_MASTER), facts_of("D2", SLAVE)
    assert between("roles", master, slave) == []
    ahead = facts_of("D2", SLAVE, seen_epoch=8)
    what = "it has heard of epoch 8, and D1 is the master of epoch 7"
    assert between("roles", master, ahead) == [("D2", what)]


def test_a_slave_of_another_group_is_named():
    """The handshake has no name of a group; epochs alone may fit by accident."""
    master = facts_of("D1", GROUP_MASTER)
    stray = facts_of("D2", SLAVE, replica_group="g2", seen_epoch=9)
    assert between("replica group", master, stray) == [
        ("D2", "it is of group g2, and follows D1 of group g1")
    ]
    link = attrs.evolve(SLAVE.master_link, local_address="127.0.0.1:9")
    elsewhere = facts_of("D2", SLAVE, replica_group="g2", seen_epoch=9, master_link=link)
    assert between("replica group", master, elsewhere) == []
    assert between("roles", master, elsewhere) == []


def test_two_nodes_with_one_id_are_named():
    """Their acks count once."""
    two, again = facts_of("D2", SLAVE), facts_of("D5", SLAVE)
    assert between("node id", two, again) == [("D5", "it is node 2 of g1, and so is D2")]
    assert between("node id", two, facts_of("D5", SLAVE, node_id=5)) == []
    assert between("node id", two, facts_of("D5", SLAVE, replica_group="g2")) == []
    assert between("node id", two, two) == []


@pytest.mark.parametrize(
    ("uuid", "more"),
    [(UUID, ": one directory is a copy of the other"), (UUID.replace("5f0c", "77ab"), "")],
)
def test_a_copied_directory_is_told_from_a_mistyped_id(uuid, more):
    """A directory's uuid is drawn once, when a node starts on it for the first time."""
    two, again = (
        attrs.evolve(facts_of(name, SLAVE), identity=identity_of(each))
        for name, each in (("D2", UUID), ("D5", uuid))
    )
    assert between("node id", two, again) == [("D5", f"it is node 2 of g1, and so is D2{more}")]


def identity_of(uuid):
    return Identity(
        node_id=2,
        group="g1",
        uuid=uuid,
        starts=1,
        kept_since=1,
        boot_id=None,
        last_exit_ok=True,
        seen_epoch=1,
        vote=None,
        confirm_mark=None,
    )


def test_a_slave_that_cannot_store_is_a_warning():
    """Also between the two limits of a disk that was too full, where nothing else says so."""
    why = "the disk is 88 % full: above 90 % puts are refused, until it is 85 % or less"
    status = attrs.evolve(UNCUT, cannot_store_because=why)
    assert check_status(status, DEFAULTS).state is OK, "no coordinator decides who is master"
    coordinator = CoordinatorStatus(is_reachable=True, doing="it follows node 1")
    report = check_status(attrs.evolve(status, coordinator=coordinator), DEFAULTS)
    assert report.state is WARNING
    assert f"it does not become master while another member can store: {why}" in report.line


@pytest.mark.parametrize(
    ("changes", "state", "text"),
    [
        ({}, NagiosState.OK, "n2 follows"),
        ({"is_paused": True}, NagiosState.OK, "n2 follows"),
        ({"is_reachable": False}, NagiosState.WARNING, "WARNING n2 etcd does not answer"),
        ({"is_reachable": False, "is_failsafe": True}, NagiosState.WARNING, "by the promises"),
        ({"alarm": "etcd went back"}, NagiosState.CRITICAL, "etcd went back"),
        ({"unlisted_because": "it has node 1"}, NagiosState.WARNING, "n2 it has node 1"),
        ({"unusable_because": "no permission"}, NagiosState.WARNING, "etcd refuses writes"),
        (
            {"unusable_because": "key x", "is_reachable": False},
            NagiosState.WARNING,
            "nothing can be decided",
        ),
        # Both: clear-alarm is a write, too.
        (
            {"alarm": "etcd went back", "etcd_alarms": ("NOSPACE",)},
            NagiosState.CRITICAL,
            "etcd takes no writes",
        ),
    ],
)
def test_check_says_what_is_wrong_with_the_coordinator(changes, state, text):
    """A silent one is a warning, for it stops nothing yet; an alarm stops elections."""
    coordinator = CoordinatorStatus(is_reachable=True, doing="it follows node 1")
    status = attrs.evolve(UNCUT, coordinator=attrs.evolve(coordinator, **changes))
    assert type(status).from_dict(status.to_dict()).coordinator == status.coordinator
    result = check_status(status, DEFAULTS)
    assert result.state is state
    assert text in str(result)
