"""`hastore explain` words each cause, and states only what the master knows."""

import re
from functools import partial

import pytest
import trio

from hastore.wire.remoting_codes import ResponseCode
from hastore_cli.status.explain import cause_of, explanation_lines
from tests.support.commands.in_process import at, call, call_json, master_on, put, slave_of
from tests.support.commands.running import is_one_line_with_a_next_step
from tests.support.nodes.harness import raw_slave
from tests.support.nodes.raw_client import RawClient
from tests.support.waiting import eventually

MASTER = {
    "name": "n1",
    "role": "SYNC_MASTER",
    "address": "127.0.0.1:10911",
    "ha_address": "127.0.0.1:10912",
    "slave_timeout_ms": 3000,
    "put_counts": {"PUT_OK": 12345, "SLAVE_NOT_AVAILABLE": 0},
    "weak": [],
    "acknowledged": [],
}
MIB = 1 << 20


def row(status, **changes):
    """A decision as the node reports it."""
    return {
        "status": status,
        "count": 1,
        "first_ms": 1_795_283_882_774,
        "last_ms": 1_795_283_882_774,
        "topic": "orders",
        "queue_id": 2,
        "first_offset": 400 * MIB,
        "last_offset": 400 * MIB,
        "reason": "as it was",
        "slave": None,
        "waited_max_s": None,
        "waited_min_s": None,
        "slave_lag_max": 256 * MIB,
        "slaves": [],
        "departed": None,
        **changes,
    }


def slave(sent, ack, age=0.5):
    """A slave as it was at the time of a decision."""
    return {
        "address": "10.0.0.2:5",
        "sent_offset": sent,
        "ack_offset": ack,
        "last_report_age_s": age,
    }


END = 400 * MIB
DEPARTED = {"address": "10.0.0.2:5", "reason": "Connection reset by peer", "at_ms": 0}


@pytest.mark.parametrize(
    ("status", "changes", "why"),
    [
        ("SLAVE_NOT_AVAILABLE", {}, "no slave connected since the master's start"),
        (
            "SLAVE_NOT_AVAILABLE",
            {"departed": DEPARTED},
            r"no slave connected since [\d:]{8} \(last: 10.0.0.2:5, Connection reset by peer\)",
        ),
        (
            "SLAVE_NOT_AVAILABLE",
            {"slaves": [slave(END, 88 * MIB)]},
            "nearest slave 10.0.0.2:5 312.0 MiB behind > 256.0 MiB",
        ),
        (
            "FLUSH_SLAVE_TIMEOUT",
            {"slaves": [slave(END, END - 100)]},
            r"10.0.0.2:5 was sent it but had not acknowledged it after 3000 ms: .*500.0 ms before",
        ),
        (
            "FLUSH_SLAVE_TIMEOUT",
            {"slaves": [slave(END, END - 100, age=3.1)]},
            "10.0.0.2:5 was sent it, and reported nothing for 3.1 s",
        ),
        (
            "FLUSH_SLAVE_TIMEOUT",
            {"slaves": [slave(END - MIB, END - MIB)]},
            "10.0.0.2:5 had not been sent it after 3000 ms: 1.0 MiB were still to send",
        ),
        (
            "FLUSH_SLAVE_TIMEOUT",
            {"departed": DEPARTED},
            r"the slave had left meanwhile \(10.0.0.2:5, Connection reset by peer\)",
        ),
        ("FLUSH_SLAVE_TIMEOUT", {}, "as it was"),
        ("FLUSH_DISK_TIMEOUT", {}, "as it was"),
        ("SERVICE_NOT_AVAILABLE", {}, "as it was"),
        ("UNKNOWN_ERROR", {"reason": None}, "no reason kept"),
    ],
)
def test_each_cause_is_explained_in_a_sentence(status, changes, why):
    """The sentence uses only what the master knew at that moment."""
    found, _ = cause_of(row(status, **changes), MASTER)
    assert re.fullmatch(why, found), found


def test_decisions_of_one_cause_are_one_entry_with_a_count():
    """The entry shows the times of the first and the last of them."""
    weak = [row("SLAVE_NOT_AVAILABLE", count=1204, last_ms=1_795_283_885_000)]
    lines = list(explanation_lines({**MASTER, "weak": weak}))
    assert lines[0] == "n1  SYNC_MASTER  127.0.0.1:10911   PUT_OK 12 345"
    assert re.fullmatch(
        r" \d\d:\d\d:\d\d\.774 … \d\d:\d\d:\d\d\.000  SLAVE_NOT_AVAILABLE × 1 204"
        r"  orders/2, log up to 419 430 400",
        lines[1],
    )
    assert lines[3].endswith("hastore slave --master 127.0.0.1:10912 --data DIR")


def test_entries_of_another_day_show_the_date():
    """Entries of today show only the time."""
    weak = [row("SLAVE_NOT_AVAILABLE", departed={**DEPARTED, "at_ms": 1_795_200_000_000})]
    today = "\n".join(explanation_lines({**MASTER, "now_ms": weak[0]["first_ms"], "weak": weak}))
    assert re.search(r"^ \d\d:\d\d:\d\d\.774  SLAVE", today, re.MULTILINE), today
    later_ms = weak[0]["first_ms"] + 5 * 86_400_000
    later = "\n".join(explanation_lines({**MASTER, "now_ms": later_ms, "weak": weak}))
    assert re.search(r"^ 2026-11-2\d \d\d:\d\d:\d\d\.774  SLAVE", later, re.MULTILINE), later
    assert re.search(r"connected since 2026-11-2\d \d\d:\d\d:\d\d \(", later), later


def test_acknowledged_puts_show_the_slave_and_the_time():
    """For a single put, and for all puts that one report acknowledged."""
    one = row("PUT_OK", slave="10.0.0.2:5", waited_max_s=0.0041, waited_min_s=0.0041)
    many = {**one, "count": 12, "waited_min_s": 0.0012}
    text = "\n".join(explanation_lines({**MASTER, "acknowledged": [one, many]}))
    assert "PUT_OK  orders/2, by 10.0.0.2:5 after 4.1 ms\n" in text
    assert "12 puts, the oldest orders/2, by 10.0.0.2:5 after 4.1 ms (the newest 1.2 ms)" in text


def test_escape_sequences_from_a_peer_are_not_printed():
    """Topic, reason and name come from other machines."""
    weak = [row("UNKNOWN_ERROR", topic="a\x1b[2J", reason="b\x1b[2J")]
    assert "\x1b" not in "\n".join(explanation_lines({**MASTER, "name": "\x1b", "weak": weak}))


async def test_master_explains_its_puts_and_a_slave_refuses(tmp_path):
    """Puts without and then with a slave; the slave points to its master."""
    async with master_on(tmp_path / "m") as master:
        await put(master, 3)
        code, shown, _ = await call("explain", at(master))
        assert code == 0
        assert "no slave connected since the master's start" in shown
        async with slave_of(master, tmp_path / "s") as slave_node:
            await put(master)
            _, answer = await call_json("explain", at(master))
            assert answer["schema"] == "hastore.explain/1"
            (weak,) = answer["weak"]
            assert (weak["status"], weak["count"]) == ("SLAVE_NOT_AVAILABLE", 3)
            assert weak["first_ms"] <= weak["last_ms"] <= answer["now_ms"]
            assert weak["first_offset"] * 3 == weak["last_offset"]
            assert answer["put_counts"]["PUT_OK"] == 1
            (acknowledged,) = answer["acknowledged"]
            assert 0 < acknowledged["waited_max_s"] < 3
            assert answer["stages"]["acknowledged"]["count"] == 1
            _, shown, _ = await call("explain", at(master), at(slave_node))
            assert re.search(r"by hastore-a \(127.0.0.1:\d+\) after", shown), shown
            code, _, refused = await call("explain", at(slave_node))
            assert code == 1
            assert is_one_line_with_a_next_step(refused)
            assert "(hastore-a) is a slave: only its master can explain" in refused
            assert "request 28101" not in refused
            host, port = master.ha_address
            assert f"hastore explain MASTER: the node whose HA port is {host}:{port}" in refused


@pytest.mark.parametrize("answers", [1, 2])
async def test_foreign_broker_is_not_taken_for_a_slave(nursery, answers):
    """It supports neither request, or hangs up at the second; its first answer is reported."""

    async def refuse(stream):
        client = RawClient(stream.socket)
        for _ in range(answers):
            asked = await client.receive()
            await client.send(asked.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="no"))
        await stream.aclose()

    (listener,) = await nursery.start(partial(trio.serve_tcp, refuse, 0, host="127.0.0.1"))
    address = "{}:{}".format(*listener.socket.getsockname())
    code, shown, err = await call("explain", address)
    nursery.cancel_scope.cancel()
    assert (code, shown) == (1, "")
    assert "is a slave" not in err
    assert address in err
    assert is_one_line_with_a_next_step(err), err


def test_slave_with_a_known_status_is_named():
    """The status also says whether its acknowledgements mean received or flushed."""
    known = {"10.0.0.2:5": {"name": "n2", "ack_level": "flushed"}}
    late = row("FLUSH_SLAVE_TIMEOUT", slaves=[slave(END, END - 100)])
    why, _ = cause_of(late, {**MASTER, "known_slaves": known})
    assert why.startswith("n2 (10.0.0.2:5) was sent it but had not flushed it after 3000 ms")
    late["slaves"][0]["last_report_age_s"] = 4.0  # its disk hangs: it sends no reports
    why, next_step = cause_of(late, {**MASTER, "known_slaves": known})
    assert "had not flushed it after 3000 ms: 100 B missing, last report 4" in why
    assert "hastore status SLAVE --extended" in next_step
    why, _ = cause_of(late, MASTER)
    assert "reported nothing for 4" in why


async def test_silent_slave_is_named(tmp_path):
    """It is connected and was sent the put; the output says how long it has been silent."""
    async with master_on(tmp_path / "m") as master:
        await put(master)
        async with raw_slave(master) as silent:
            await silent.report(master.max_offset)
            await eventually(lambda: master.status().slave_unavailable_because is None)
            await put(master)
            _, shown, _ = await call("explain", at(master))
    assert re.search(r"why   127.0.0.1:\d+ was sent it, and reported nothing for \d+", shown), shown


async def test_unreachable_slave_exits_3(tmp_path):
    """As for `status`, known facts are shown and the missing node is named."""
    async with master_on(tmp_path / "m") as master:
        await put(master)
        code, shown, err = await call("explain", at(master), "127.0.0.1:1")
        assert (code, "SLAVE_NOT_AVAILABLE" in shown) == (3, True)
        assert is_one_line_with_a_next_step(err)
        assert (await call("explain", at(master), at(master)))[0] == 0


async def test_no_listener_exits_3():
    """The error is one line with a next step."""
    code, _, err = await call("explain", "127.0.0.1:1")
    assert code == 3
    assert is_one_line_with_a_next_step(err)


# -- a replica group ------------------------------------------------------------------------------


def node(node_id, **changes):
    """A node as it was at the time of a decision: connected, and without the put."""
    return {
        "node_id": node_id,
        "address": f"10.0.0.{node_id}:5",
        "since_ms": 0,
        "ack_offset": END - 100,
        "sent_offset": END,
        "last_report_age_s": 3.1,
        "why_not": None,
        **changes,
    }


GONE = {"address": None, "ack_offset": None, "sent_offset": None, "last_report_age_s": None}


def acks(missed, *, got=(), not_needed=(), in_sync_replicas="all"):
    """What a put needed of a group of which node 1 is the master."""
    ids = sorted([1, *got, *(each["node_id"] for each in missed)])
    return {
        "in_sync_replicas": in_sync_replicas,
        "min_in_sync_replicas": 1,
        "members": ids,
        "needed": ids,
        "got": list(got),
        "missed": list(missed),
        "not_needed": list(not_needed),
    }


LATE = "not all nodes that it needs have acknowledged it within 3000 ms; it is stored here"


@pytest.mark.parametrize(
    ("status", "reason", "needed", "why"),
    [
        (
            "FLUSH_SLAVE_TIMEOUT",
            LATE,
            acks([node(3)], got=[2]),
            (
                "it needed nodes 1, 2, 3, and the master and node 2 had it: node 3 (10.0.0.3:5) was"
                " sent it and had not acknowledged it, 100 B missing, last report 3.1 s before"
            ),
        ),
        (
            "FLUSH_SLAVE_TIMEOUT",
            LATE,
            acks([node(2, sent_offset=END - MIB), node(3, ack_offset=None)], in_sync_replicas=2),
            (
                "it needed 2 nodes, and the master alone had it: node 2 (10.0.0.2:5) had not been"
                " sent it, 1.0 MiB were still to send; node 3 (10.0.0.3:5) had acknowledged nothing"
                " on its link"
            ),
        ),
        (
            "FLUSH_SLAVE_TIMEOUT",
            LATE,
            {**acks([], got=[2]), "min_in_sync_replicas": 3},
            "it needed nodes 1, 2, and the master and node 2 had it: the set has fewer members",
        ),
        # Another reason than the time is named.
        (
            "FLUSH_SLAVE_TIMEOUT",
            "the master is stopping",
            acks([node(4, **GONE, since_ms=None)], got=[2, 3]),
            (
                "the master is stopping; it needed nodes 1, 2, 3, 4, and the master and nodes 2, 3"
                " had it: node 4 not connected in this epoch"
            ),
        ),
        (
            "SLAVE_NOT_AVAILABLE",
            "node 2 not connected, and the set may not shrink: why",
            acks([node(2, **GONE)]),
            (
                r"it needed nodes 1, 2, and the master alone had it: node 2 not connected since"
                r" [\d:]{8} \(node 2 not connected, and the set may not shrink: why\)"
            ),
        ),
        (
            "IN_SYNC_REPLICAS_NOT_ENOUGH",
            "fewer than min_in_sync_replicas = 2",
            acks([], not_needed=[node(2, why_not="it closed its link"), node(3)]),
            "fewer than min_in_sync_replicas = 2; node 2 is not in the set: it closed its link",
        ),
        ("SERVICE_NOT_AVAILABLE", "as it was", acks([]), "as it was"),
    ],
)
def test_each_cause_in_a_replica_group_names_the_nodes(status, reason, needed, why):
    """Those that a put needed and that had it, and why each other one had not."""
    if "[" not in why:
        why = re.escape(why)
    found, next_step = cause_of(row(status, reason=reason, acks=needed), MASTER)
    assert re.match(why, found), found
    assert "hastore doctor" in next_step


def test_a_node_with_a_known_status_is_named():
    """Its acks are what it has flushed."""
    known = {"10.0.0.3:5": {"name": "n3", "ack_level": "flushed"}}
    late = row("FLUSH_SLAVE_TIMEOUT", reason=LATE, acks=acks([node(3)]))
    why, _ = cause_of(late, {**MASTER, "known_slaves": known})
    assert "node 3, n3 (10.0.0.3:5), was sent it and had not flushed it, 100 B missing" in why


def test_a_change_of_the_set_can_release_a_put():
    """No slave's report did."""
    one = row("PUT_OK", slave=None, waited_max_s=5.0, waited_min_s=5.0)
    text = "\n".join(explanation_lines({**MASTER, "acknowledged": [one]}))
    assert "PUT_OK  orders/2, by a change of the SyncStateSet after 5.0 s" in text
