"""The status table: which field appears where, in each state of a node."""

import io

import attrs
import pytest
import trio
from rich.console import Console

from hastore.broker.observe.node_status import FailedWriteRow, NodeStatus, RefusalRow
from hastore.broker.observe.sync_state_status import ProposalRow
from hastore.concurrency.latency_histogram import LatencyHistogram
from hastore.message import Message
from hastore_cli.status.table import (
    REFUSALS_SHOWN_MAX,
    StatusColumns,
    StatusTable,
    merge,
    worth_a_table,
)
from tests.cli.live_node import master_with, produce
from tests.cli.on_a_terminal import on_a_terminal, plain
from tests.cli.status_text import text_of
from tests.support.commands.in_process import at, call, call_json, master_on, put, slave_of
from tests.support.nodes.harness import raw_slave
from tests.support.nodes.statuses import GROUP_MASTER, MASTER, MEMBER, SLAVE, group_master
from tests.support.waiting import eventually

NAMES = [
    "node", "role", "address", "state", "sent", "written", "flushed", "acknowledged", "lag",
    "lag time", "age", "msg/s", "rate", "eta",
]  # fmt: skip


def cells(line: str) -> list[str]:
    """The cells of a table line; columns are at least two blanks apart."""
    return [cell.strip() for cell in line.strip().split("  ") if cell.strip()]


def test_master_has_a_row_for_each_slave():
    """A row has offsets, lag, the age of the last report and the rate."""
    lines = text_of(MASTER, written_bytes_per_s=2048.0).splitlines()
    assert cells(lines[0])[:4] == ["n1", "SYNC_MASTER", "ASYNC_FLUSH", "up 12 min"]
    assert lines[0].endswith("serving · 1 of 2 slaves caught up")
    assert cells(lines[1]) == NAMES
    own, first, second = (cells(line) for line in lines[2:5])
    address = "127.0.0.1:10911"
    assert own[:8] == [
        "n1", "master", address, "serving", "1073921", "1073921", "1073905", "1073921"
    ]  # fmt: skip
    assert own[8:] == ["-", "-", "-", "1204", "2.0 KiB/s", "-"]
    assert first[2:8] == ["127.0.0.1:50212", "streaming", "1073921", "-", "-", "1073921"]
    assert first[8:] == ["0 B", "0 s", "3.0 ms", "-", "41.2 MiB/s", "-"]
    assert second[2:8] == ["127.0.0.1:50213", "connected", "-", "-", "-", "-"]
    assert second[8:] == ["-", "-", "3.1 s", "-", "-", "-"]
    assert "flushed 1073905" in lines[5]
    assert "1 file of 1GiB" in lines[5]
    assert "PUT_OK 12345  SLAVE_NOT_AVAILABLE 2  3 wait for a slave" in lines[6]
    assert "FLUSH_SLAVE_TIMEOUT" not in lines[6]


def test_observers_have_rows_and_are_not_counted_as_slaves():
    """They are classic slaves of a group's master, at a port of their own."""
    status = attrs.evolve(
        MASTER,
        slaves=MASTER.slaves[:1],
        observers=MASTER.slaves[1:],
        observer_address="127.0.0.1:10914",
    )
    lines = text_of(status).splitlines()
    assert lines[0].endswith("serving · 1 of 1 slave caught up")
    assert cells(lines[4])[1:4] == ["observer", "127.0.0.1:50213", "connected"]
    assert "observers at 127.0.0.1:10914" in " ".join(lines[5:7])


def test_next_step_without_an_available_slave():
    """Start a slave if there is none; watch one that is behind."""
    why = "the nearest slave is 3.0 MiB behind"
    far = attrs.evolve(MASTER, acks_needed=1, slave_unavailable_because=why)
    assert "hastore status -w" in text_of(far)
    assert "hastore slave --master 127.0.0.1:10912" not in text_of(far)
    assert "hastore slave --master 127.0.0.1:10912" in text_of(attrs.evolve(far, slaves=()))


def test_numbers_are_grouped_only_on_a_terminal():
    """In a pipe they have no blanks, so that awk can read them."""
    assert "1 073 921" in text_of(MASTER, grouped=True)
    assert "1 073 921" not in text_of(MASTER)


@pytest.mark.parametrize(
    ("width", "missing"),
    [
        (160, set()),
        (150, {"eta"}),
        (140, {"eta", "written"}),
        (120, {"age", "flushed", "written"}),
        (100, {"age", "flushed", "written", "rate", "eta"}),
        (80, {"age", "flushed", "written", "rate", "eta", "sent", "node"}),
        (72, {"age", "flushed", "written", "rate", "eta", "sent", "node", "lag time"}),
        (50, set(NAMES) - {"role", "address", "state", "lag"}),
    ],
)
def test_narrow_terminal_drops_columns_but_no_digits(width, missing):
    """The least important go first; a line names them and how to see them."""
    lines = text_of(MASTER, grouped=True, width=width).splitlines()
    at = next(number for number, line in enumerate(lines) if "address" in line)
    assert cells(lines[at]) == [name for name in NAMES if name not in missing]
    assert all(len(line) <= width for line in lines)
    if width >= 72:
        assert lines[at + 2].count("1 073 921") == 2 - ("sent" in missing)
        assert "1 204" in lines[at + 1]
    output = " ".join(" ".join(lines).split())
    assert ("no room for" in output) is bool(missing)
    if missing:
        named = output.partition("no room for ")[2].partition(" all: ")[0]
        assert set(named.split(", ")) == missing
        assert "all: hastore status … | less -S" in output
        begin = lines.index(next(line for line in lines if "no room for" in line))
        end = lines.index(next(line for line in lines if " all: " in line))
        assert all(line.startswith("   ") for line in lines[begin + 1 : end + 1])
        assert "lag time" not in missing or any(
            "lag time" in line for line in lines[begin : end + 1]
        )


def test_queried_slaves_are_named_at_80_columns():
    """Their flushed offsets are shown; their addresses are dropped."""
    named = attrs.evolve(
        MASTER.slaves[0], name="b", written_offset=1_073_921, flushed_offset=1_073_921
    )
    lines = text_of(attrs.evolve(MASTER, slaves=(named,)), grouped=True, width=80).splitlines()
    at = next(number for number, line in enumerate(lines) if "acknowledged" in line)
    assert cells(lines[at]) == [
        "node", "role", "state", "flushed", "acknowledged", "lag", "lag time", "msg/s"
    ]  # fmt: skip


def test_nodes_with_equal_names_show_their_addresses():
    """Names are optional, so all nodes may have the default name."""
    slaves = tuple(
        attrs.evolve(MASTER.slaves[0], name=MASTER.name, address=f"127.0.0.1:{port}")
        for port in (40_001, 40_002)
    )
    text = text_of(attrs.evolve(MASTER, slaves=slaves), grouped=True, width=80)
    assert "127.0.0.1:40001" in text
    assert "127.0.0.1:40002" in text


def test_redrawn_table_keeps_its_columns():
    """Widths only grow and dropped columns stay away, until the terminal is resized."""
    columns = StatusColumns()

    def heads(status, width=80):
        out = io.StringIO()
        console = Console(file=out, width=width, highlight=False, markup=False)
        table = StatusTable(grouped=True, width=width, columns=columns)
        console.print(table.render(status))
        return next(line for line in out.getvalue().splitlines() if "address" in line).rstrip()

    slave = MASTER.slaves[0]
    first = heads(MASTER)
    quiet = attrs.evolve(slave, lag_s=None, lag_bytes=None, state="connected")
    assert heads(attrs.evolve(MASTER, slaves=(quiet,), messages_per_s=None)) == first
    busy = attrs.evolve(slave, lag_s=0.8, lag_bytes=1000 << 20, state="catching-up")
    assert heads(attrs.evolve(MASTER, slaves=(busy,), messages_per_s=99_999)) == first
    assert heads(attrs.evolve(MASTER, slaves=())) == first
    far = attrs.evolve(slave, ack_offset=1 << 44)
    grown = heads(attrs.evolve(MASTER, slaves=(far,)))
    assert cells(grown) != cells(first)
    assert set(cells(grown)) < set(cells(first))
    assert heads(MASTER) == grown
    assert "eta" in heads(MASTER, 200)


def test_long_lines_continue_on_the_next_line():
    """They break at words, so no path, number or command is split."""
    long = attrs.evolve(
        MASTER,
        data_dir="/var/lib/" + "d" * 40,
        acks_needed=1,
        slave_unavailable_because="slave " * 30,
    )
    lines = text_of(long, grouped=True, width=80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any("data /var/lib/" + "d" * 40 in line for line in lines)
    at = next(number for number, line in enumerate(lines) if line.startswith("   why   slave"))
    assert lines[at + 1].startswith("         slave")


def test_slave_shows_its_link_with_reason_and_next_step():
    """The table has the slave's own row and its master's row."""
    lines = text_of(SLAVE).splitlines()
    own = cells(lines[2])
    assert own[1:5] == ["slave", "127.0.0.1:10911", "diverged", "-"]
    assert own[5:8] == ["1073921", "1073905", "1073921"]
    assert own[8:] == ["97.7 KiB", "-", "-", "1204", "-", "-"]
    assert cells(lines[3])[1:5] == ["master", "127.0.0.1:10912", "diverged", "1173921"]
    assert "   why   master at 7, slave at 9" in lines
    assert "   next  hastore log diff" in lines


def test_node_of_a_replica_group_shows_its_epoch_and_what_was_cut():
    """The bytes that it had to give up, and the messages among them by topic."""
    text = text_of(MEMBER)
    assert "node 2 of group g1  epoch 5  confirmed 1073000  cut at 47859: 27.2 KiB in tr" in text
    assert "orders 12  audit 3" in text
    new = attrs.evolve(MEMBER, epoch=None, last_cut=None)
    assert "node 2 of group g1  epoch -  has heard of epoch 5  confirmed 1073000\n" in text_of(new)
    assert "group" not in text_of(SLAVE)


def test_slave_of_a_replica_group_shows_what_it_has_not_followed_yet():
    """A later epoch that it has heard of, its master's, and a cut that was refused."""
    link = attrs.evolve(MEMBER.master_link, masters_epoch=6, hint="hastore log epochs")
    behind = attrs.evolve(
        MEMBER,
        epoch_start_offset=47_859,
        seen_epoch=7,
        cut_refused_because="alarm",
        master_link=link,
    )
    text = text_of(behind)
    assert "epoch 5 from 47859  has heard of epoch 7  master's epoch 6  confirmed" in text
    assert " its log must be cut, and was not\n   next  hastore log epochs" in text


def test_master_of_a_replica_group_shows_its_set_and_nodes():
    """Each with its place, and why it is not in the set."""
    lines = text_of(GROUP_MASTER).splitlines()
    at = next(number for number, line in enumerate(lines) if "node 1 of group" in line)
    assert lines[at : at + 6] == [
        " node 1 of group g1  epoch 7 from 1000000, master for 12 min  confirmed 1073921",
        (
            " SyncStateSet 1, 2 of 1, 2, 3  in_sync_replicas all  min_in_sync_replicas 2 (strict)"
            "  an acknowledged message has 2 copies"
        ),
        "   node  role     link             acknowledged  lag  lag time",
        "   2     member   127.0.0.1:50212       1073921  0 B       0 s",
        "   3     learner  none for 61.0 s             -    -         -",
        "      it closed its link",
    ]
    assert "confirm offset" not in text_of(GROUP_MASTER)
    never = {"since_s": None, "why_not": "it has not connected in this epoch"}
    assert "3     learner  never connected" in text_of(group_master({}, {}, never))
    assert "SyncStateSet 1, 2  in_sync" in text_of(group_master(configured_ids=None))
    assert "SyncStateSet" not in text_of(MASTER)


def test_master_of_a_replica_group_shows_what_puts_and_consumers_wait_for():
    """A proposal, the confirm offset, and which failures may lose messages."""
    proposal = ProposalRow(
        number=4,
        members=(1, 2),
        joined=(),
        left=(3,),
        why="the set {1, 2}: node 3 closed its link",
        age_s=6.0,
    )
    status = group_master(
        {},
        {"lag_s": 4.0, "lag_s_is_least": True, "lag_bytes": 300},
        proposal=proposal,
        may_lose_because="in_sync_replicas = 2: the failure of the master",
        confirm_lag_bytes=300,
        confirm_lag_s=4.0,
        confirm_lag_s_is_least=True,
        confirm_offset=700,
        in_sync_replicas=2,
    )
    text = text_of(status)
    assert "\n   in_sync_replicas = 2: the failure of the master\n" in text
    assert "\n   proposed 6.0 s ago: the set {1, 2}: node 3 closed its link\n" in text
    assert "confirmed 1073921, 300 B and > 4.0 s behind\n" in text
    assert "300 B   > 4.0 s" in text
    assert " the confirm offset 700 is 300 B behind the end, at least 4.0 s\n" in text
    assert "   why   it waits for node 2\n" in text


@pytest.mark.parametrize("width", [60, 80, 100])
def test_nodes_of_a_replica_group_fit_a_terminal(width):
    """Whole columns only; the reasons are folded."""
    wide = {
        "node_id": 1 << 40,
        "address": "[2001:db8:85a3:8d3:1319:8a2e:370:7348]:50212",
        "is_connected": True,
        "ack_offset": 1 << 50,
        "why_not": "it lacks 1073921 bytes below the start of epoch 7, and " * 3,
    }
    proposal = ProposalRow(number=1, members=(), joined=(), left=(), why="the set " * 30, age_s=1)
    status = group_master({}, {}, wide, proposal=proposal, may_lose_because="the failure " * 20)
    lines = text_of(status, grouped=True, width=width).splitlines()
    assert max(map(len, lines)) <= width
    (head,) = (line.split() for line in lines if line.startswith("   node "))
    assert head[:2] == ["node", "role"]
    assert ("link" in head) is (width >= 80)
    assert ("acknowledged" in head) is (width != 80)


def test_refusals_are_shown_with_reason_and_next_step():
    """The newest few are listed, the others counted."""
    refused = tuple(
        RefusalRow(
            address=f"127.0.0.1:{port}",
            reason=f"report {port} is\nno offset",
            hint=None if port else "see who that is",
            reported_offset=port,
            age_s=float(port + 1),
        )
        for port in reversed(range(8))
    )
    text = text_of(attrs.evolve(MASTER, refused=refused))
    assert text.count(" refused 127.0.0.1:") == REFUSALS_SHOWN_MAX
    assert text.index("127.0.0.1:0 1.0 s ago") < text.index("127.0.0.1:1 2.0 s ago")
    assert "   why   report 0 is no offset" in text
    assert "   next  see who that is" in text
    assert "and 3 refused before" in text


def test_slave_that_began_inside_a_record_gets_a_note():
    """It is not refused: its row stays, and a line says what may be wrong."""
    row = MASTER.slaves[0]
    assert "inside" not in text_of(MASTER)
    text = text_of(attrs.evolve(MASTER, slaves=(attrs.evolve(row, note="it began at 7, inside"),)))
    assert f" slave {row.address}\n" in text
    assert "   why   it began at 7, inside" in text
    assert "   next  compare the two: hastore log diff" in text


@pytest.mark.parametrize(("acks_needed", "shown"), [(1, True), (0, False)])
def test_sync_master_without_a_slave_has_a_next_step(acks_needed, shown):
    """An ASYNC_MASTER waits for no slave, so it suggests none."""
    alone = attrs.evolve(
        MASTER, acks_needed=acks_needed, slaves=(), slave_unavailable_because="none connected"
    )
    text = text_of(alone)
    assert "no slave connected" in text
    assert ("hastore slave --master 127.0.0.1:10912 --data DIR" in text) is shown


def test_control_characters_of_a_name_are_escaped():
    """A node's own text cannot move the cursor."""
    text = text_of(attrs.evolve(MASTER, name="evil\x1b[2J\nname"))
    assert "\x1b" not in text
    assert r"evil\x1b[2J name" in text


def test_stopped_dispatch_is_shown_with_the_lag_of_consumers():
    """Puts continue, so nothing else would show it."""
    behind = attrs.evolve(MASTER, dispatch_behind_bytes=3 << 20)
    assert "to dispatch 3.0 MiB" in " ".join(text_of(behind).split())
    assert "consumers are" not in text_of(behind)
    text = text_of(attrs.evolve(behind, dispatch_fault="dispatch stopped at offset 7: torn"))
    assert "consumers are 3.0 MiB behind" in text
    assert "   why   dispatch stopped at offset 7: torn" in text
    assert "hastore log verify D1" in text


def test_queried_slave_shows_its_offsets_on_disk():
    """They are in its row below its master, found by the address of the link."""
    link = attrs.evolve(
        SLAVE.master_link, local_address="127.0.0.1:50212", reason=None, state="streaming"
    )
    slave = attrs.evolve(
        SLAVE, max_offset=1_073_000, flushed_offset=999, ack_level="flushed", master_link=link
    )
    (_, other) = MASTER.slaves
    master = attrs.evolve(MASTER, acks_needed=1, slaves=MASTER.slaves[:1])
    merged = merge([master, slave])
    (shown,) = worth_a_table(merged)
    lines = text_of(shown).splitlines()
    assert "SYNC_MASTER, 1 ack (flushed)" in lines[0]
    assert cells(lines[3])[:8] == [
        "n2", "slave", "127.0.0.1:50212", "streaming", "1073921", "1073000", "999", "1073921"
    ]  # fmt: skip
    unknown_slave = attrs.evolve(slave, master_link=attrs.evolve(link, local_address="127.0.0.1:9"))
    assert len(worth_a_table(merge([master, unknown_slave]))) == 2
    diverged = attrs.evolve(slave, master_link=attrs.evolve(link, reason="other bytes"))
    assert len(worth_a_table(merge([master, diverged]))) == 2
    failed = FailedWriteRow(
        path="config/topics.json", reason="full", hint=None, is_removal=False, since_s=3.0
    )
    not_stored = attrs.evolve(slave, failed_writes=(failed,))
    _, shown = worth_a_table(merge([master, not_stored]))
    assert "topics are not stored" in text_of(shown)
    assert "   why   full, for 3.0 s" in text_of(shown)
    assert attrs.evolve(MASTER, slaves=(other,)).slaves[0].written_offset is None


def test_estimates_and_lower_bounds_are_marked():
    """`~` marks an estimate, `>` a lower bound."""
    late = attrs.evolve(MASTER.slaves[0], lag_s=750.0, lag_s_is_least=True, eta_s=3.0)
    row = cells(text_of(attrs.evolve(MASTER, slaves=(late,))).splitlines()[3])
    assert (row[9], row[13]) == ("> 12 min", "3.0 s")
    link = attrs.evolve(SLAVE.master_link, lag_bytes=1 << 20, lag_is_estimate=True)
    assert "~1.0 MiB" in text_of(attrs.evolve(SLAVE, master_link=link))


def test_latencies_are_shown_only_with_extended():
    """Count, median, 99th percentile and maximum of each stage."""
    stage = {"count": 100, "sum_s": 0.1, "max_s": 0.0011, "buckets": [0] * 10 + [100]}
    status = attrs.evolve(MASTER, stages={"flush": stage, "sent": LatencyHistogram().to_dict()})
    assert "p99" not in text_of(status)
    lines = text_of(status, extended=True).splitlines()
    at = next(i for i, line in enumerate(lines) if "p99" in line)
    assert lines[at + 1].split() == ["flush", "100", "768", "µs", "1.0", "ms", "1.1", "ms"]
    assert lines[at + 2].split() == ["sent", "0", "-", "-", "-"]


async def test_status_of_several_nodes_is_one_table(tmp_path):
    """With an unreachable node among them, the exit code is 3."""
    async with master_on(tmp_path / "m") as master, slave_of(master, tmp_path / "s") as slave:
        await put(master, 5)
        code, text, _ = await call("status", at(master), at(slave), "--extended")
        assert code == 0
        assert "SYNC_MASTER, 1 ack (received)" in text
        assert text.count("commit log ") == 1
        assert "acknowledged " in text
        code, output = await call_json("status", at(master), at(slave), "127.0.0.1:1")
        assert (code, output["schema"]) == (3, "hastore.cluster-status/1")
        own, other = output["nodes"]
        assert own["slaves"][0]["written_offset"] == other["max_offset"] == master.max_offset
        assert own["slaves"][0]["lag_s"] == 0
        assert (own["acks_needed"], other["ack_level"]) == (1, "received")
        _, single = await call_json("status", at(master))
        assert single["schema"] == "hastore.status/1"
        assert NodeStatus.from_dict(single).slaves[0].written_offset is None


async def test_slave_that_owes_an_ack_is_catching_up(tmp_path):
    """Its lag counts from the first byte that it has not acknowledged."""
    async with master_on(tmp_path / "m") as master:
        await put(master)
        async with raw_slave(master) as silent:
            await silent.report(master.max_offset)
            await eventually(lambda: master.status().slave_unavailable_because is None)
            assert master.status().slaves[0].state == "streaming"
            acked, began_s = master.max_offset, trio.current_time()
            await put(master)
            await eventually(lambda: master.status().slaves[0].state == "catching-up")
            (row,) = master.status().slaves
            assert row.lag_bytes == master.max_offset - acked
            assert 1.0 < row.lag_s < trio.current_time() - began_s + 0.1


async def test_messages_per_second_are_counted_on_both_nodes(tmp_path):
    """A master counts appended messages, also in batches; a slave counts dispatched ones."""
    async with master_on(tmp_path / "m") as master, slave_of(master, tmp_path / "s") as slave:
        with trio.fail_after(60):
            while not (master.status().messages_per_s and slave.status().messages_per_s):
                await put(master)  # on a slow machine, earlier puts may no longer be recent
        before = master.put_message.sampler.appended.count
        await eventually(lambda: slave.reput_message_service.dispatched.count == before)
        await master.put_batch([Message("orders", b"1"), Message("orders", b"2")])
        assert master.put_message.sampler.appended.count == before + 2
        _, output = await call_json("status", at(master), at(slave))
        own, other = output["nodes"]
        assert own["slaves"][0]["messages_per_s"] == other["messages_per_s"]


def test_watched_table_keeps_its_columns(tmp_path):
    """At 80 columns, while messages arrive; Ctrl-C ends the command."""
    with master_with(tmp_path / "D1") as master:

        def enough(shown):
            produce(master.address, "orders", ["x" * 100])
            return shown.count("commit log") >= 4

        code, lines = on_a_terminal("status", master.data, "-w", "0.05", until=enough)
    assert code == 130
    heads = {plain(line) for line in lines if "acknowledged" in line}
    (head,) = heads
    assert {"state", "acknowledged", "lag", "msg/s"} < set(cells(head))
    assert max(map(len, heads)) <= 80


def test_nodes_with_the_default_name_are_told_apart_by_id_or_address():
    """All of them are called hastore-a; names that somebody has given stay."""
    link = attrs.evolve(SLAVE.master_link, local_address=MASTER.slaves[0].address)
    slave = attrs.evolve(SLAVE, name="hastore-a", address="127.0.0.1:10921", master_link=link)
    unnamed = attrs.evolve(MASTER, name="hastore-a", address="127.0.0.1:10911")
    (shown, _) = merge([unnamed, slave])
    text = text_of(shown)
    assert "hastore-a" not in text
    assert text.startswith("127.0.0.1:10911 ")
    assert "\n127.0.0.1:10921 " in text
    in_group = attrs.evolve(unnamed, node_id=1, replica_group="g1")
    rows = (attrs.evolve(MASTER.slaves[0], node_id=2),)
    text = text_of(attrs.evolve(in_group, slaves=rows))
    assert text.startswith("node 1 ")
    assert "\nnode 1 " in text
    assert "\nnode 2 " in text
    assert text_of(attrs.evolve(in_group, name="paris")).startswith("paris ")
