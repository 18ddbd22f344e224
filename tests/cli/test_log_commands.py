"""``hastore log``: output, JSON and exit codes, for RocketMQ's stores and hastore's own."""

import base64
import json
import os
import pty
import subprocess

import pytest

from hastore.epoch_history import EpochEntry, EpochHistory
from hastore.store.epoch_file import EPOCH_FILE, encode_epochs
from hastore_cli.app.terminal import escaped, number, time_text
from tests.support.commands.in_process import hastore_here
from tests.support.commands.running import (
    command,
    environment,
    is_one_line_with_a_next_step,
)
from tests.support.store.log_builder import FILE_SIZE, FIRST_MS, LogBuilder

WHOLE = {
    "clean": "clean",
    "crashed": "crashed.recovered",
    "replica": "replica",
    "replica_master": "replica_master",
    "propcrc": "propcrc",
}


@pytest.fixture
def store(tmp_path):
    """A small undamaged store of three files."""
    builder = LogBuilder().fill(20, topic="orders").fill(25, topic="audit")
    return builder.write(tmp_path / "D1", queues=True)


def manifest_messages(golden, manifest):
    rows = json.loads((golden / f"{manifest}.manifest.json").read_text())["records"]
    return [row for row in rows if row["type"] == "MSG"]


# -- verify --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WHOLE)
def test_verify_counts_match_the_manifest_of_a_golden_store(name, golden, golden_copy, run):
    """Exit 0, no findings, and as many messages as RocketMQ itself read."""
    code, out, err = run("log", "verify", golden_copy(name), "-o", "json")
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert (report["schema"], report["whole"], report["findings"]) == (
        "hastore.log-verify/1",
        True,
        [],
    )
    assert report["messages"] == len(manifest_messages(golden, WHOLE[name]))
    uncovered = 0 if name == "propcrc" else report["messages"]
    assert report["messages_without_crc32"] == uncovered


def test_verify_reports_the_torn_record_of_a_golden_store(golden, golden_copy, run):
    """Exit 4; both streams name the offset, and all messages before it are counted."""
    torn = json.loads((golden / "crashed_torn.info.json").read_text())
    offset = torn["tornRecordOffset"]
    code, out, err = run("log", "verify", golden_copy("crashed_torn"))
    assert code == 4
    assert str(offset) in out
    assert f"{torn['zeroedFrom'] - offset} bytes unreadable" in out
    assert f"damaged at offset {offset}" in err
    assert is_one_line_with_a_next_step(err)
    assert f"{len(manifest_messages(golden, 'crashed_torn.recovered'))} messages" in out


def test_verify_finds_zeroed_properties_without_a_checksum(golden_copy, run):
    """The finding names topic and queue; the report counts messages without a checksum."""
    code, out, err = run("log", "verify", golden_copy("crashed_torn_props"))
    assert code == 4
    assert "331293  properties  the property text holds 37 NUL bytes  GoldenBatch/1 @ 4" in out
    assert "296 of 296 messages carry no __CRC32#" in out
    assert "no checksum covers their headers" in out
    assert "331293" in err


def test_verify_prints_every_damaged_place(store, run):
    """Each finding has its offset, kind and message; the scan goes on after the damage."""
    path = store / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    data[1000:1300] = bytes(300)
    path.write_bytes(data)
    code, out, err = run("log", "verify", store)
    assert code == 4
    assert "225  bad-prop-crc" in out
    assert "orders/0 @ 1  key k1" in out
    assert "next confirmed record at" in out
    assert "and 1 more place" in err
    report = json.loads(run("log", "verify", store, "-o", "json")[1])
    assert [finding["offset"] for finding in report["findings"]] == [225, 900]
    assert report["findings"][0]["key"] == "k1"
    assert report["findings"][1]["next_offset"] == 1350


def test_verify_with_only_warnings_exits_0(tmp_path, run):
    """A store timestamp that goes backwards is a warning."""
    store = LogBuilder().add().add(store_timestamp_ms=FIRST_MS - 5).write(tmp_path / "D")
    code, out, err = run("log", "verify", store)
    assert (code, err) == (0, "")
    assert "warning" in out
    assert "store-time" in out


def test_verify_names_an_unfinished_cut(store, run):
    """What follows it is half zeroed; that is no damage, and a repair refuses the directory."""
    cut = {
        "offset": 0, "end": 9_000, "reason": "x", "time_ms": 1, "epochs": [], "messages": {},
        "files": [],
    }  # fmt: skip
    intent = {"schema": "hastore.unfinished-cut/1", "cut": cut, "queue_ends": {}}
    intent |= {"kept_store_ms": 0, "index_slots": 5, "index_entries": 25}
    (store / "cut.json").write_text(json.dumps(intent))
    (store / "consumequeue" / "orders" / "0").mkdir(parents=True, exist_ok=True)
    log_file = store / "commitlog" / f"{0:020d}"
    log_file.write_bytes(log_file.read_bytes()[:100].ljust(FILE_SIZE, b"\0"))
    code, out, err = run("log", "verify", store)
    assert (code, err) == (0, "")
    assert "unfinished-cut" in out
    assert "unfinished-cut" in run("log", "verify", store / "commitlog")[1]
    report = json.loads(run("log", "verify", store, "-o", "json")[1])
    assert (report["whole"], report["derived"]) == (True, None)
    assert [finding["kind"] for finding in report["findings"]] == ["unfinished-cut"]
    code, out, err = run("log", "repair", store, "--dry-run")
    assert (code, out) == (6, "")
    assert is_one_line_with_a_next_step(err), err


def test_empty_log_is_valid(tmp_path, run):
    """A store without log files, or with only a preallocated one."""
    (tmp_path / "D" / "commitlog").mkdir(parents=True)
    assert run("log", "verify", tmp_path / "D")[0] == 0
    (tmp_path / "D" / "commitlog" / f"{0:020d}").write_bytes(bytes(FILE_SIZE))
    code, out, _ = run("log", "verify", tmp_path / "D")
    assert code == 0
    assert "0 messages" in out
    assert run("log", "cat", tmp_path / "D")[0] == 0
    assert "the log is empty" in run("log", "info", tmp_path / "D")[1]


# -- info ----------------------------------------------------------------------------------------


def test_info_of_a_golden_store(golden, golden_copy, run):
    """Files, offsets, messages, topics and times match the manifest."""
    code, out, _ = run("log", "info", golden_copy("crashed"), "-o", "json")
    info = json.loads(out)
    rows = manifest_messages(golden, "crashed.recovered")
    assert code == 0
    assert info["schema"] == "hastore.log-info/1"
    assert (info["min_offset"], info["max_offset"], info["mapped_file_size"]) == (0, 331518, 65536)
    assert info["messages"] == len(rows) == sum(file["messages"] for file in info["files"])
    assert info["first_store_timestamp_ms"] == rows[0]["storeTimestamp"]
    assert info["last_store_timestamp_ms"] == rows[-1]["storeTimestamp"]
    assert info["abort"] is True
    assert {topic["topic"]: topic["messages"] for topic in info["topics"]} == {
        name: sum(row["topic"] == name for row in rows) for name in {row["topic"] for row in rows}
    }
    assert info["files"][-1]["used"] == 0


def test_info_as_a_table(store, run):
    """The table names a stray file and damage beside extent, messages, time span and files."""
    (store / "commitlog" / "core").write_text("")
    path = store / "commitlog" / f"{FILE_SIZE:020d}"
    path.write_bytes(b"x" * 8 + path.read_bytes()[8:])
    code, out, err = run("log", "info", store)
    assert (code, err) == (0, "")
    assert "3 files of 4KiB" in out
    assert "44 of 44 carry __CRC32#" in out
    assert "absent: stopped cleanly" in out
    assert "1 place; see: hastore log verify" in out
    assert "stray      core (ignored)" in out
    assert "2023-11-14T22:13:20.000Z … 2023-11-14T22:13:20.044Z" in out


# -- cat -----------------------------------------------------------------------------------------


def test_cat_prints_every_message_of_a_golden_store(golden, golden_copy, run):
    """One line per message, with the fields and the body size of the manifest."""
    code, out, _ = run("log", "cat", golden_copy("clean"), "-o", "jsonl")
    rows = manifest_messages(golden, "clean")
    messages = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert len(messages) == len(rows)
    for message, row in zip(messages, rows, strict=True):
        assert message["schema"] == "hastore.log-message/1"
        assert (message["offset"], message["topic"], message["queue_id"], message["id"]) == (
            row["physicalOffset"],
            row["topic"],
            row["queueId"],
            row["offsetMsgId"],
        )
        assert message["properties"] == row["properties"]
        assert len(message["body"].encode()) == row["bodyLen"]


def test_cat_selects_by_offset_topic_and_count(store, run):
    """--no-bodies also leaves the bodies out."""
    _, out, _ = run("log", "cat", store, "--topic", "audit", "-n", 3, "--no-bodies")
    assert [line.split()[6:9] for line in out.splitlines()] == [
        ["B", "key", key] for key in ("k20", "k21", "k22")
    ]
    _, out, _ = run("log", "cat", store, "--from-offset", 226, "-n", 1, "-o", "json")
    (message,) = json.loads(out)["messages"]
    assert message["offset"] == 450


def test_cat_reports_when_no_message_matches(store, run):
    """An offset after the end or an unknown topic prints a line on stderr and exits with 0."""
    code, out, err = run("log", "cat", store, "--from-offset", 10**12, "--topic", "x")
    assert (code, out) == (0, "")
    assert "no messages of topic x" in err
    assert json.loads(run("log", "cat", store, "--topic", "x", "-o", "json")[1])["messages"] == []


@pytest.mark.parametrize(
    ("body", "key", "shown"),
    [
        ("zwei\nZeilen ✓".encode(), "body", "zwei\\nZeilen ✓"),
        (b"\xff\x00\x01", "body_base64", "(ff0001…)"),
        (b"\x1b[2Jgone", "body_base64", "(1b5b324a676f6e65…)"),
    ],
)
def test_cat_shows_any_body_on_one_line(tmp_path, run, body, key, shown):
    """Text as text, other bytes as hex, in JSON as base64; escape sequences are not printed."""
    store = LogBuilder().add(body, key="a\x1bb").write(tmp_path / "D")
    assert run("log", "cat", store)[1].splitlines()[0].endswith(f"key a\\x1bb  {shown}")
    (message,) = [json.loads(run("log", "cat", store, "-o", "jsonl")[1])]
    value = message[key]
    assert (base64.b64decode(value) if key == "body_base64" else value.encode()) == body


def test_cat_continues_after_damage(store, run):
    """Damage is reported on stderr, later messages are printed, and the exit code is 4."""
    path = store / "commitlog" / f"{0:020d}"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    code, out, err = run("log", "cat", store, "-o", "jsonl")
    assert code == 4
    assert len(out.splitlines()) == 44
    assert err.startswith("unreadable: 0  ")
    assert "next" in err


def test_cat_stops_quietly_when_its_pipe_closes(tmp_path):
    """As in `hastore log cat D | head -1`: one line, and no error."""
    builder = LogBuilder(file_size=1 << 20)
    for _ in range(500):
        builder.add(b"x" * 1_000)
    store = builder.write(tmp_path / "D")
    with subprocess.Popen(
        command("log", "cat", store),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout.readline().endswith(b"xxx\n")
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


# -- diff ----------------------------------------------------------------------------------------


def test_diff_of_a_golden_master_and_its_replica_is_equal(golden, run):
    """RocketMQ's slave copied its master byte for byte."""
    code, out, err = run("log", "diff", golden / "replica_master", golden / "replica")
    assert (code, err) == (0, "")
    assert "equal" in out
    assert "331518" in out


def test_diff_reports_a_prefix_and_how_much_it_lacks(golden, run):
    """The torn log lacks its last record; a prefix exits with 0."""
    code, out, _ = run("log", "diff", golden / "crashed", golden / "crashed_torn")
    assert code == 0
    assert "right ends 225 bytes, 1 message earlier" in out
    report = json.loads(
        run("log", "diff", golden / "crashed_torn", golden / "crashed", "-o", "json")[1]
    )
    assert (report["schema"], report["verdict"], report["behind"]) == (
        "hastore.log-diff/1",
        "prefix",
        "left",
    )
    assert (report["bytes_behind"], report["messages_behind"]) == (225, 1)
    assert report["left"]["damaged_tail"]["offset"] == 331293


def test_diff_names_the_first_difference_on_both_sides(golden, run):
    """Exit 4, with the offset and the message there on each side."""
    code, out, err = run("log", "diff", golden / "crashed", golden / "crashed_torn_props")
    assert code == 4
    assert "first at 331481" in out
    assert out.count("GoldenBatch/1 @ 4  key KBatch4") == 2
    assert "differ at offset 331481" in err
    assert is_one_line_with_a_next_step(err)


def test_diff_reports_deleted_files_disjoint_logs_and_file_sizes(tmp_path, run):
    """A deleted first file is no error; the other two cases exit with 4."""
    whole = LogBuilder().fill(50)
    one = whole.write(tmp_path / "one")
    two = whole.write(tmp_path / "two")
    (two / "commitlog" / f"{0:020d}").unlink()
    code, out, _ = run("log", "diff", one, two)
    assert code == 0
    assert "right begins 4.0 KiB later" in out
    far = LogBuilder(min_offset=99 * FILE_SIZE).fill(3).write(tmp_path / "far")
    code, out, err = run("log", "diff", one, far)
    assert code == 4
    assert "no offset is in both" in out
    assert "no offset in common" in err
    other = LogBuilder(file_size=2 * FILE_SIZE).fill(50).write(tmp_path / "other")
    code, out, _ = run("log", "diff", one, other)
    assert code == 4
    assert "the file sizes differ" in out


def test_diff_of_equally_damaged_logs_exits_4(tmp_path, run):
    """The bytes are equal, but the damage still counts."""
    builder = LogBuilder().fill(50)
    data = builder.flipped(builder.offsets[7] + 95)
    sides = [builder.write(tmp_path / name, data=data) for name in ("one", "two")]
    code, out, err = run("log", "diff", *sides)
    assert code == 4
    assert "both:" in out
    assert f"both damaged at offset {builder.offsets[7]}" in err
    assert is_one_line_with_a_next_step(err)
    code, out, _ = run("log", "diff", *sides, "-o", "json")
    assert (code, json.loads(out)["damage"]["kind"]) == (4, "bad-body-crc")


def test_diff_shows_the_damage_of_one_side(store, tmp_path, run):
    """JSON describes the record on each side, or the kind of damage there."""
    other = LogBuilder().fill(20, topic="orders").fill(25, topic="audit").write(tmp_path / "D2")
    path = other / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[230] ^= 1
    path.write_bytes(data)
    code, out, _ = run("log", "diff", store, other / "commitlog", "-o", "json")
    report = json.loads(out)
    assert code == 4
    assert (report["verdict"], report["first_difference"]) == ("different", 230)
    assert report["left_record"]["kind"] == "message"
    assert report["right_record"]["kind"] == "bad-magic"
    assert report["left_record"]["key"] == "k1"


# -- bad input and the terminal --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["info", "cat", "verify"])
def test_path_without_a_log_is_an_error_with_a_next_step(name, tmp_path, run):
    """A missing directory or a file is a usage error; a directory without a log is refused."""
    (tmp_path / "file").write_text("")
    for wrong, expected in (("nothing", 2), ("file", 2), (".", 6)):
        code, out, err = run("log", name, tmp_path / wrong)
        assert (code, out) == (expected, "")
        assert is_one_line_with_a_next_step(err), err


def test_help_of_each_log_command_has_an_example(run):
    """For `info`, `cat`, `verify` and `diff`."""
    for name in ("info", "cat", "verify", "diff"):
        code, out, _ = run("log", name, "--help")
        assert code == 0
        assert f"hastore log {name} D1" in out


def test_terminal_gets_a_bar_colour_and_grouped_numbers(store):
    """A pipe gets none of them."""
    ours, theirs = pty.openpty()
    arguments = command("log", "verify", store)
    with subprocess.Popen(
        arguments, stdout=theirs, stderr=theirs, env=environment(TERM="xterm")
    ) as process:
        os.close(theirs)
        shown = b""
        while chunk := _read(ours):
            shown += chunk
        os.close(ours)
    assert process.returncode == 0
    assert b"checking" in shown
    assert b"\x1b[" in shown
    assert b"10 217" in shown
    plain = hastore_here("log", "verify", store)
    assert (plain.returncode, plain.stderr) == (0, "")
    assert "\x1b" not in plain.stdout
    assert "10217" in plain.stdout


def _read(descriptor):
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # the other side is closed
        return b""


def test_text_escapes_and_time_format():
    """Control characters and invalid UTF-8 are escaped; times out of range are printed in ms."""
    assert escaped("a\x1b\n\udcff é") == "a\\x1b\\n\\udcff é"
    assert time_text(FIRST_MS + 7) == "2023-11-14T22:13:20.007Z"
    assert time_text(-1) == "1969-12-31T23:59:59.999Z"
    assert time_text(2**62) == f"{2**62} ms"


# -- epochs --------------------------------------------------------------------------------------


def write_epochs(store, *entries):
    """Write the epoch file of a store."""
    history = EpochHistory(tuple(EpochEntry(*entry) for entry in entries))
    (store / EPOCH_FILE).write_bytes(encode_epochs(history))


def test_epochs_of_a_store_without_them(store, run):
    """A classic master writes none: exit 0."""
    code, out, err = run("log", "epochs", store)
    assert (code, err) == (0, "")
    assert out.startswith("epochs  none   0 … ")
    code, out, _ = run("log", "epochs", store, "-o", "json")
    found = json.loads(out)
    assert (code, found["path"], found["epochs"], found["faults"]) == (0, None, [], [])
    assert (
        found["max_offset"] == json.loads(run("log", "info", store, "-o", "json")[1])["max_offset"]
    )


def test_epochs_show_what_each_master_wrote(store, run):
    """Offsets, bytes, messages and times; the last epoch goes to the log's end."""
    _, out, _ = run("log", "cat", store, "-o", "json")
    messages = json.loads(out)["messages"]
    _, out, _ = run("log", "info", store, "-o", "json")
    end = json.loads(out)["max_offset"]
    second = messages[10]["offset"]
    write_epochs(store, (1, 0), (4, second), (5, end))
    code, out, err = run("log", "epochs", store, "-o", "json")
    found = json.loads(out)
    assert (code, err, found["schema"]) == (0, "", "hastore.log-epochs/1")
    assert found["faults"] == []
    keys = ("epoch", "start_offset", "end_offset", "size", "messages")
    assert [[epoch[key] for key in keys] for epoch in found["epochs"]] == [
        [1, 0, second, second, 10],
        [4, second, end, end - second, len(messages) - 10],
        [5, end, end, 0, 0],
    ]
    times = [
        (epoch["first_store_timestamp_ms"], epoch["last_store_timestamp_ms"])
        for epoch in found["epochs"]
    ]
    assert times == [
        (messages[0]["store_timestamp_ms"], messages[9]["store_timestamp_ms"]),
        (messages[10]["store_timestamp_ms"], messages[-1]["store_timestamp_ms"]),
        (None, None),
    ]
    code, out, err = run("log", "epochs", store)
    assert (code, err) == (0, "")
    assert "3 epochs" in out
    assert time_text(messages[10]["store_timestamp_ms"]) in out


@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        ([(1, 91)], "the log begins at 0, its first epoch at 91"),
        ([(1, 0), (2, 1)], "epoch 2 begins at 1, where no record begins"),
        ([(1, 0), (2, 10**6)], "epoch 2 begins at 1000000, after the log's end at"),
    ],
)
def test_epochs_that_do_not_fit_the_log_are_named(entries, fault, store, run):
    """Exit 4: they were copied from another log."""
    write_epochs(store, *entries)
    code, out, err = run("log", "epochs", store)
    assert code == 4
    assert fault in out
    assert fault in err
    assert is_one_line_with_a_next_step(err)


def test_a_damaged_epoch_file_is_named(store, run):
    """Exit 4, and nothing is guessed."""
    (store / EPOCH_FILE).write_bytes(b"2\n1\n1-0\n")
    code, out, err = run("log", "epochs", store)
    assert (code, out) == (4, "")
    assert f"{store / EPOCH_FILE}: it announces 2 epochs and has 1" in err
    assert is_one_line_with_a_next_step(err)


def unpacked(archive, to):
    """Unpack a recorded store; return its directory."""
    to.mkdir()
    subprocess.run(["tar", "-xSJf", archive, "-C", to], check=True)
    (root,) = to.iterdir()
    return root


def test_epochs_of_recorded_stores(recorded_golden, tmp_path, run):
    """RocketMQ's epochs fit its logs; two logs have stale records behind a cut."""
    found = {}
    for archive in sorted((recorded_golden / "autoswitch").glob("*/*.tar.xz")):
        root = unpacked(archive, tmp_path / f"{archive.parent.name}-{archive.name}")
        code, out, _ = run("log", "epochs", root, "-o", "json")
        found[f"{archive.parent.name}/{archive.name}"] = code, json.loads(out)
    assert len(found) > 10
    faulty = {name: page for name, (code, page) in found.items() if code}
    assert [(name, page["damaged_at"]) for name, page in faulty.items()] == [
        ("hazard_stale_tail/A_after.tar.xz", 6185),
        ("slave_ahead/slave.tar.xz", 3005),
    ]
    assert all(page["faults"] == [] for _, page in found.values())
    _, old_master = found["failover/oldmaster_before.tar.xz"]
    assert [epoch["epoch"] for epoch in old_master["epochs"]] == [1]


def test_diff_names_the_consistent_point(tmp_path, run):
    """The logs of a former master and its successor."""
    old = LogBuilder().fill(20, topic="orders")
    start = old.end
    left = old.fill(3, topic="old").write(tmp_path / "D1")
    right = LogBuilder().fill(20, topic="orders").fill(5, topic="new").write(tmp_path / "D2")
    write_epochs(left, (1, 0))
    write_epochs(right, (1, 0), (2, start))
    code, out, _ = run("log", "diff", left, right, "-o", "json")
    found = json.loads(out)["epochs"]
    assert (code, found) == (
        4,
        {
            "consistent_epoch": 1,
            "consistent_offset": start,
            "contradicted": False,
            "fault": None,
        },
    )
    _, out, _ = run("log", "diff", left, right)
    assert f"consistent up to {number(start)}, the last common epoch is 1" in out
    assert "should be equal by their epochs" not in out
    write_epochs(right, (3, 0))
    _, out, _ = run("log", "diff", left, right)
    assert "none in common" in out
    (right / EPOCH_FILE).write_bytes(b"")
    code, out, _ = run("log", "diff", left, right)
    assert code == 4
    assert f"not compared by epochs: {right / EPOCH_FILE}" in " ".join(out.split())


def test_diff_of_recorded_logs(recorded_golden, tmp_path, run):
    """RocketMQ's own truncation offset; and two nodes that differ where it saw nothing to cut."""
    recorded = recorded_golden / "autoswitch"
    old = unpacked(recorded / "failover" / "oldmaster_before.tar.xz", tmp_path / "old")
    new = unpacked(recorded / "failover" / "newmaster_after.tar.xz", tmp_path / "new")
    _, out, _ = run("log", "diff", old, new, "-o", "json")
    found = json.loads(out)
    assert found["epochs"]["consistent_offset"] == found["left_record"]["offset"] == 47_859
    a = unpacked(recorded / "hazard_stale_tail" / "A_after.tar.xz", tmp_path / "a")
    b = unpacked(recorded / "hazard_stale_tail" / "B.tar.xz", tmp_path / "b")
    _, out, _ = run("log", "diff", a, b)
    assert "the bytes differ where they should be equal by their epochs" in out
