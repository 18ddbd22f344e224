"""Records that a producer planted in a body, behind damage: no command takes them for messages."""

import json

import pytest

from tests.support.store.log_builder import LogBuilder


@pytest.fixture(params=[True, False], ids=["queues", "no queues"])
def attacked(request, tmp_path):
    """A store with damage before planted records, and the builder; with and without queues."""
    builder = LogBuilder(file_size=1 << 16).fill(3).plant().fill(2)
    around = builder.offsets[3]
    data = builder.data[:around] + b"\xff" * 8 + builder.data[around + 8 :]
    return builder, builder.write(tmp_path / "D", data=data, queues=request.param)


def test_cat_shows_planted_records_only_on_request_and_marks_them(attacked, run):
    """Without the option it says how many there are, in how many bytes, and which option it is."""
    builder, store = attacked
    code, out, err = run("log", "cat", store)
    assert (code, "FORGED" in out) == (4, False)
    assert "unconfirmed records in it" in err
    assert "bytes set aside, with" in err
    assert "--unconfirmed" in err
    document = json.loads(run("log", "cat", store, "-o", "json")[1])
    inside = document["set_aside"]
    assert inside["shown_by"] == "hastore log cat --unconfirmed"
    assert len(document["messages"]) + inside["unconfirmed_records"] == 3 + 2 + 3
    lines = run("log", "cat", store, "--unconfirmed")[1].splitlines()
    assert len(lines) == 3 + 2 + 3
    assert all(line.startswith("unconfirmed ") for line in lines if "FORGED" in line)
    shown = [
        json.loads(line)
        for line in run("log", "cat", store, "--unconfirmed", "-o", "jsonl")[1].splitlines()
    ]
    marked = [message["offset"] for message in shown if message.get("unconfirmed")]
    assert set(builder.planted) <= set(marked)


@pytest.mark.parametrize(
    "command",
    [("find", "--body", "FORGED"), ("find", "-t", "secret"), ("tail",), ("tail", "-n", "1")],
    ids=" ".join,
)
def test_find_and_tail_show_no_planted_record(attacked, run, command):
    """A search reads the same log; a tail begins near its end, where a planted record may lie."""
    _, store = attacked
    name, *options = command
    _, out, _ = run("log", name, store, *options)
    assert "FORGED" not in out


def test_tail_never_begins_inside_a_body(tmp_path, run, monkeypatch):
    """No damage is needed: a window that begins in a body with planted records shows none."""
    monkeypatch.setattr("hastore_cli.log.follower._WINDOW_SIZE", 500)
    builder = LogBuilder(file_size=1 << 20).fill(3).plant(count=20, more=b"q" * 10)
    for name, queues in (("A", True), ("B", False)):
        store = builder.write(tmp_path / name, queues=queues)
        code, out, _ = run("log", "tail", store, "-n", "3", "-F", "%O\\n")
        assert code == 0
        assert [int(line) for line in out.splitlines()] == builder.offsets[-3:]


def test_get_by_offset_returns_no_planted_record(tmp_path, run):
    """Not even from an intact log: a body is not a place where messages begin."""
    builder = LogBuilder(file_size=1 << 16).fill(3).plant().fill(2)
    for name, queues in (("A", True), ("B", False)):
        store = builder.write(tmp_path / name, queues=queues)
        code, out, _ = run("get", "--offset", builder.planted[0], "--dir", store)
        assert (code != 0, "FORGED" in out) == (True, False)
        code, out, _ = run("get", "--offset", builder.offsets[-1], "--dir", store)
        assert code == 0


def test_verify_and_repair_count_and_set_aside(attacked, run):
    """Both say the bytes and the records, in text and JSON; after a repair the log is whole."""
    _, store = attacked
    code, out, _ = run("log", "verify", store, "--log-only")
    assert code == 4
    assert "unconfirmed records" in out
    assert "--unconfirmed" in out
    report = json.loads(run("log", "verify", store, "--log-only", "-o", "json")[1])
    (finding,) = report["findings"][:1]
    assert finding["unconfirmed_records"] == report["set_aside"]["unconfirmed_records"] >= 3
    assert finding["size"] == report["set_aside"]["bytes"]
    code, out, _ = run("log", "repair", store, "--yes")
    assert code == 0
    assert "unconfirmed records" in out
    assert run("log", "verify", store, "--log-only")[0] == 0
    assert "FORGED" not in run("log", "cat", store)[1]


def test_repair_in_json_says_what_it_sets_aside(attacked, run):
    """The plan and the result have the same numbers."""
    _, store = attacked
    plan = json.loads(run("log", "repair", store, "--dry-run", "-o", "json")[1])
    done = json.loads(run("log", "repair", store, "--yes", "-o", "json")[1])
    assert plan["set_aside"] == done["set_aside"]
    assert done["set_aside"]["bytes"] == done["lost_bytes"] > 0
    assert done["set_aside"]["unconfirmed_records"] >= 3


@pytest.mark.parametrize("part", ["--consumequeue", "--index"])
def test_rebuild_leaves_unconfirmed_records_out_only_on_request(attacked, run, part):
    """Without --accept-loss nothing changes: without queues, messages are among them."""
    _, store = attacked
    before = {path: path.is_file() and path.read_bytes() for path in store.rglob("*")}
    code, out, err = run("log", "rebuild", store, part)
    assert (code, out) == (6, "")
    assert "records are unconfirmed" in err
    assert "--accept-loss" in err
    after = {path: path.is_file() and path.read_bytes() for path in store.rglob("*")}
    assert {path: after[path] for path in before} == before
    assert {path.name for path in set(after) - set(before)} <= {"lock"}
    code, out, err = run("log", "rebuild", store, part, "--accept-loss")
    assert code == 4
    assert "bytes set aside, with" in out
    assert not (store / "consumequeue" / "secret").exists()


def test_rebuild_in_json_says_what_it_leaves_out(attacked, run):
    """The numbers are those of verify."""
    _, store = attacked
    verified = json.loads(run("log", "verify", store, "--log-only", "-o", "json")[1])
    document = json.loads(
        run("log", "rebuild", store, "--consumequeue", "--accept-loss", "-o", "json")[1]
    )
    assert document["set_aside"] == verified["set_aside"]
    assert document["set_aside"]["unconfirmed_records"] >= 3
