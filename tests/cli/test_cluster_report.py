"""What `hastore cluster` says of a group: lines, JSON, and a switchover that did not come about."""

import attrs
import pytest
import trio

from hastore.cluster.group_records import GroupConfig, Switchover
from hastore.errors import (
    AccessDeniedError,
    BelowConfirmMarkError,
    OperationRefusedError,
    UnreachableError,
)
from hastore.store.recovery.cut import check_confirm_mark
from hastore_cli.cluster import heard
from hastore_cli.cluster.asking import Asked, check_not_void, groups_in
from hastore_cli.cluster.report import Answers, node_rows, status_json, status_lines
from hastore_cli.status.check import DEFAULTS, NagiosState, check_status
from tests.support.nodes.group_views import KEYS, NO_LEADER, OUTSIDE, member, view_of
from tests.support.nodes.statuses import GROUP_MASTER, MEMBER

ASKED = Asked(None, KEYS, "orders", "g1")
NOBODY = Answers(now_ms=100_000)


def shown(view, answers=NOBODY):
    """Return the status as one text, its blanks squeezed."""
    return "\n".join(" ".join(line.split()) for line in status_lines(ASKED, view, answers))


def test_a_healthy_group_is_a_headline_and_a_line_for_each_node():
    """Who leads, what each has, and whether it may become master."""
    master = member(1, role="master")
    slave = member(2, end=400, link="h:9", at_ms=93_000)
    text = shown(view_of(master, slave, member(3)))
    assert text.splitlines()[0] == (
        "group g1 of orders epoch 7 master node 1 SyncStateSet 1, 2, 3 in_sync_replicas all"
    )
    assert "1 master 7 1000 - ? 2 - yes it is by its lease; no answer here" in text
    assert "2 slave 7 400 - 7.0 s ago 2 h:9 yes yes" in text
    assert len(text.splitlines()) == 6


def test_a_master_that_does_not_answer_is_not_shown_as_one_that_does():
    """Its lease lasts for a while after its death."""
    view = view_of(member(1, role="master"), member(2), member(3))
    warning = "node 1 is master by its lease, and does not answer here"
    assert warning in shown(view)
    answers = attrs.evolve(NOBODY, statuses={1: attrs.evolve(GROUP_MASTER, node_id=1)})
    text = shown(view, answers)
    assert "yes it is" in text
    assert warning not in text


def test_a_node_that_refuses_to_answer_is_not_said_to_be_dead():
    """It wants an access key or TLS: that is about the asker, and was shown as silence."""
    view = view_of(member(1, role="master"), member(2), member(3))
    error = AccessDeniedError("h: no access key", code=1, hint="set HASTORE_ACCESS_KEY_FILE")
    answers = attrs.evolve(NOBODY, failures={1: error, 2: error})
    text = shown(view, answers)
    assert "yes it is by its lease; no answer here" in text
    assert "node 1 does not answer here: h: no access key" in text
    assert text.count("set HASTORE_ACCESS_KEY_FILE") == 1
    assert "if it is dead" not in text
    (first, _, third) = status_json(ASKED, view, answers)["nodes"]
    assert (first["no_answer_because"], third["no_answer_because"]) == (str(error), None)
    silent = attrs.evolve(NOBODY, failures={1: UnreachableError("h: connection refused")})
    assert "h: connection refused" in shown(view, silent)
    assert "if it is dead" in shown(view, silent)


def test_a_node_that_refuses_to_cut_its_log_is_critical_and_both_ways_are_named():
    """Which node has what comes first; an empty directory is the last step of one of the ways."""
    with pytest.raises(BelowConfirmMarkError) as caught:
        check_confirm_mark("/d3", 700, 900, 800)
    error = caught.value
    link = attrs.evolve(MEMBER.master_link, state="failed", reason=str(error), hint=error.hint)
    status = attrs.evolve(MEMBER, node_id=3, master_link=link, cut_refused_because=str(error))
    text = shown(view_of(), attrs.evolve(NOBODY, statuses={3: status}))
    assert (
        "CRITICAL: node 3: alarm: the log in /d3 must not be cut at 700: it has what every" in text
    )
    assert "its master's log is another one from 700 on" in text
    (step,) = [line for line in text.splitlines() if line.startswith("next")]
    ways = ("hastore cluster failover --to", "hastore log cat /d3", "hastore cluster reinit /d3")
    places = [step.index(way) for way in ways]
    assert places == sorted(places)
    verdict = check_status(status, DEFAULTS)
    assert verdict.state is NagiosState.CRITICAL
    assert "Either this node becomes master, or what it alone has is given up" in verdict.line


def test_what_a_node_answers_counts_more_than_what_etcd_has_of_it():
    """All nodes of one moment, and the lags that the master sees; others with their age."""
    own = attrs.evolve(GROUP_MASTER, node_id=1, epoch=7, max_offset=5_000)
    answers = attrs.evolve(NOBODY, statuses={1: own})
    lags = {row.node_id: row.lag_bytes for row in own.sync_state.nodes}
    view = view_of(member(1, role="master"), member(2, at_ms=99_000), member(3))
    rows = {row.node_id: row for row in node_rows(view, answers)}
    assert (rows[1].role, rows[1].end, rows[1].age_s) == ("master", 5_000, 0.0)
    assert (rows[2].end, rows[2].age_s, rows[3].age_s) == (1_000, 1.0, None)
    assert {at: row.lag for at, row in rows.items()} == lags
    assert "1 master 7 5000 - now" in shown(view, answers)


def test_only_an_answer_is_of_now():
    """A record whose writer's clock is ahead of ours is of an unknown age."""
    view = view_of(member(1, at_ms=100_000), member(2, at_ms=130_000), member(3, at_ms=99_000))
    rows = {row.node_id: row.age_s for row in node_rows(view, NOBODY)}
    assert rows == {1: 0.0, 2: None, 3: 1.0}
    text = shown(view)
    assert "1 slave 7 1000 - 0 µs ago" in text
    assert "2 slave 7 1000 - ? " in text


async def test_a_node_of_another_group_at_the_same_address_does_not_count(monkeypatch):
    """It may have the same id."""
    statuses = {
        ("c1", 1): attrs.evolve(MEMBER, node_id=1),
        ("c2", 1): attrs.evolve(MEMBER, node_id=2, replica_group="g2"),
        ("c3", 1): attrs.evolve(MEMBER, node_id=2),
    }

    async def fetch(address):
        return statuses[address]

    monkeypatch.setattr(heard, "fetch_status", fetch)
    clients = {node_id: f"c{node_id}:1" for node_id in (1, 2, 3)}
    view = view_of(*(member(each, client_address=at) for each, at in clients.items()))
    assert await heard.hear(view, view.members, "g1") == {1: statuses["c1", 1]}
    failures = {}
    await heard.hear(view, view.members, "g1", failures=failures)
    assert {each: str(error) for each, error in failures.items()} == {
        2: "c2:1: node 2 of replica group g2 answers there",
        3: "c3:1: node 2 of replica group g1 answers there",
    }


async def test_a_silent_node_is_named(autojump_clock):
    """A frozen machine takes the connection, or drops it: that was shown as if nobody had asked."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    view = view_of(member(1, client_address=address), member(2))
    failures = {}
    assert await heard.hear(view, view.members, "g1", failures=failures) == {}
    found = {each: (type(error), str(error)) for each, error in failures.items()}
    assert found == {1: (UnreachableError, f"{address}: no answer within 2 s")}
    text = shown(view, attrs.evolve(NOBODY, failures=failures))
    assert f"node 1 does not answer here: {address}: no answer within 2 s" in text
    await listeners[0].aclose()


def test_a_node_may_become_master_by_the_end_that_it_has_now():
    """What etcd has of it may be older than what the group has confirmed since."""
    state = attrs.evolve(view_of().state, confirm_offset=5_000)
    view = view_of(member(1, role="master"), member(2), member(3), state=state)
    assert "2 slave 7 1000 - ? 2 l2:9 yes no: the log of node 2 ends at 1000" in shown(view)
    own = attrs.evolve(MEMBER, node_id=2, epoch=7, max_offset=5_000)
    assert "2 slave 7 5000 - now 2 l2:9 yes yes" in shown(
        view, attrs.evolve(NOBODY, statuses={2: own})
    )


def test_nodes_that_cannot_store_are_a_warning():
    """They rank last in elections, and are no target of a switchover."""
    view = view_of(member(1), member(2, can_store=False), member(3, can_store=False))
    assert "nodes 2, 3 cannot store" in shown(view)
    assert [row["can_store"] for row in status_json(ASKED, view, NOBODY)["nodes"]] == [
        True,
        False,
        False,
    ]


def test_an_etcd_that_is_full_is_a_warning_with_the_next_step():
    """What is shown may be old, and no election can be held."""
    full = attrs.evolve(NOBODY, etcd_alarms=frozenset({"NOSPACE"}))
    text = shown(view_of(**NO_LEADER), full)
    assert "etcd has the alarm NOSPACE" in text
    assert "it takes no writes" in text
    assert "etcdctl alarm disarm" in text
    assert "etcd is full: nodes 1, 2, 3 may stand" in text
    assert status_json(ASKED, view_of(), full)["etcd_alarms"] == ["NOSPACE"]


@pytest.mark.parametrize(
    ("view", "command"),
    [
        (view_of(config=GroupConfig(alarm="x")), "hastore cluster clear-alarm"),
        (
            view_of(config=GroupConfig(alarm="x"), **NO_LEADER),
            "hastore cluster failover --to 1 --accept-loss",
        ),
        (
            view_of(member(1), member(2, last_epoch=9), config=GroupConfig(alarm="x")),
            "hastore cluster failover --to 2 --accept-loss",
        ),
    ],
)
def test_with_an_alarm_status_names_the_command_that_works(view, command):
    """Without a master clear-alarm is refused, and so it is while a log is ahead."""
    (line,) = [line for line in shown(view).splitlines() if line.startswith("next")]
    assert command in line


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (view_of(member(1), member(2)), "3 down - - - - 2 - yes no: node 3 is not up"),
        (view_of(state=OUTSIDE), "no no: node 3 is not in the SyncStateSet"),
        (view_of(**NO_LEADER), "no node is master: nodes 1, 2, 3 may stand, an election is due"),
        (
            view_of(**NO_LEADER, config=GroupConfig(is_paused=True)),
            "no node is master, and elections are paused: nodes 1, 2, 3 may stand",
        ),
        (
            view_of(member(3), state=OUTSIDE, **NO_LEADER),
            "none that is up may become it: start nodes 1, 2; if it is lost: hastore cluster fail",
        ),
        (view_of(config=GroupConfig(is_paused=True)), "paused: hastore cluster resume"),
        (view_of(config=GroupConfig(alarm="x y")), "alarm: x y"),
        (
            view_of(config=GroupConfig(switchover=Switchover(from_epoch=7, to_id=2))),
            "a switchover to node 2 is under way",
        ),
        (view_of(damaged={"k": "bad"}), "k: bad"),
        (view_of(damaged={KEYS.config: "bad"}), f"before: etcdctl del {KEYS.config}"),
        (
            view_of(state=None, damaged={KEYS.state: "bad"}, **NO_LEADER),
            "restore etcd; or: hastore cluster init --force --dry-run",
        ),
        (view_of(state=None, state_revision=0, **NO_LEADER), "hastore cluster init"),
    ],
)
def test_what_is_not_as_it_should_be_is_a_line(view, said):
    """With the next step, where there is one."""
    assert said in shown(view)


def test_json_has_stable_keys_and_a_reason_for_each_node_that_may_not_stand():
    """Null where a value is not known."""
    shown = status_json(ASKED, view_of(member(1), member(2, kept_since=4)), NOBODY)
    assert shown["schema"] == "hastore.cluster/1"
    assert (shown["leader"]["id"], shown["acks"]) == (1, "all")
    one, two, three = shown["nodes"]
    assert next(iter(one)) == "id"
    assert (one["may_stand"], one["why_not"]) == (True, None)
    assert (two["may_stand"], "may have lost" in two["why_not"]) == (False, True)
    assert (three["role"], three["end"], three["start"]) == ("down", None, 2)
    assert {"is_up", "in_set", "last_epoch", "lag", "link", "uuid", "age_s"} <= set(one)
    assert [row.lag for row in node_rows(view_of(), NOBODY)] == [None, None, None]


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (view_of(member(1)), "node 2 is not up any more"),
        (view_of(state=attrs.evolve(OUTSIDE, members=OUTSIDE.members[:1])), "has left the Sync"),
        (view_of(), "node 2 did not take over in time"),
    ],
)
def test_a_switchover_that_was_taken_back_says_why(view, said):
    """By what the group looks like then; the master goes on in its epoch."""
    with pytest.raises(OperationRefusedError, match="was taken back by node 1") as caught:
        check_not_void(view, 2, 7)
    assert said in str(caught.value)


def test_a_switchover_goes_on_while_the_wish_is_there_or_nobody_leads():
    """Another master than the one that was wished for ends it."""
    wish = GroupConfig(switchover=Switchover(from_epoch=7, to_id=2))
    check_not_void(view_of(config=wish), 2, 7)
    check_not_void(view_of(**NO_LEADER), 2, 7)
    check_not_void(view_of(), 1, 7)
    with pytest.raises(OperationRefusedError, match="node 1 became master of epoch 7 instead"):
        check_not_void(view_of(), 2, 6)


def test_groups_are_found_in_the_keys_below_a_prefix():
    """Cluster and group, each once; what is not so deep is none."""
    keys = ["/p/a/g1/state", "/p/a/g1/ids/1", "/p/b/g2/leader", "/p/other"]
    assert groups_in(keys, "/p") == [("a", "g1"), ("b", "g2")]
