"""``hastore log find`` and ``log tail``: their filters, and following a growing log."""

import json
import signal
import subprocess
import threading

import pytest

from hastore.env.real import RealDisk
from hastore.store.tools.log_directory import find_log
from hastore_cli.log.follower import LogFollower
from hastore_cli.log.search import CLOCK_SLACK_MS, message_at, start_of_window
from tests.support.commands.in_process import hastore_here
from tests.support.commands.running import (
    WITHIN_S,
    command,
    environment,
    is_one_line_with_a_next_step,
)
from tests.support.env.scripted_disk import ScriptedDisk
from tests.support.store.log_builder import FILE_SIZE, FIRST_MS, LogBuilder


def properties(**values):
    return "".join(f"{name}\x01{value}\x02" for name, value in values.items()).encode()


@pytest.fixture
def store(tmp_path):
    """50 messages in several files, with two topics, keys, tags and bodies."""
    builder = LogBuilder()
    for number in range(50):
        raw = properties(
            KEYS=f"k{number} all",
            TAGS="odd" if number % 2 else "even",
            UNIQ_KEY=f"U{number:04d}",
            who="me" if number == 7 else "you",
        )
        builder.add(
            b'{"number": %d}' % number,
            topic="orders" if number < 30 else "audit",
            queue_id=number % 4,
            properties_raw=raw,
        )
    return builder.write(tmp_path / "D1", queues=True)


def numbers(out):
    return [json.loads(json.loads(line)["body"])["number"] for line in out.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-k", "k7"], [7]),
        (["-k", "U0031"], [31]),
        (["-k", "all", "-n", 2], [0, 1]),
        (["-k", "k7 all"], [7]),
        (["-k", "k"], []),
        (["-t", "audit", "--tag", "odd", "-q", 3], [31, 35, 39, 43, 47]),
        (["-p", "who=me"], [7]),
        (["-p", "who=me", "-p", "TAGS=even"], []),
        (["--body", '": 1}'], [1]),
        (["--regex", r": 1?7\}"], [7, 17]),
        (["--since", FIRST_MS + 48], [48, 49]),
        (["--until", FIRST_MS + 2], [0, 1]),
        (["--since", "2023-11-14T22:13:20.010Z", "--until", FIRST_MS + 12], [10, 11]),
    ],
)
def test_find_prints_exactly_the_matching_messages(store, run, arguments, expected):
    """Each filter alone and several together, in log order."""
    code, out, err = run("log", "find", store, *arguments, "-o", "jsonl")
    assert (code, numbers(out)) == (0, expected)
    assert err == ("" if expected else "no message matches\n")


def test_find_in_a_range_of_offsets(store, run):
    """A message is in the range if it begins there."""
    offsets = [int(line) for line in run("log", "find", store, "-F", r"%O\n")[1].splitlines()]
    chosen = ("--from-offset", offsets[20] - 1, "--to-offset", offsets[22])
    assert numbers(run("log", "find", store, *chosen, "-o", "jsonl")[1]) == [20, 21]


def test_find_prints_a_line_json_or_a_format(store, run):
    """The same message in each form; the JSON document names its schema."""
    _, line, _ = run("log", "find", store, "-k", "k7")
    assert "orders/3 @ 1  13 B  key k7 all  tag odd" in line
    document = json.loads(run("log", "find", store, "-k", "k7", "-o", "json")[1])
    assert document["schema"] == "hastore.log-find/1"
    assert [message["queue_offset"] for message in document["messages"]] == [1]
    assert run("log", "find", store, "-k", "k7", "-F", r"%t %o %g\n")[1] == "orders 1 odd\n"
    assert json.loads(run("log", "find", store, "-k", "x", "-o", "json")[1])["messages"] == []


def test_find_reports_damage_and_continues_after_it(store, run):
    """Damage is named on stderr, later matches are printed, and the exit code is 4."""
    path = store / "commitlog" / f"{0:020d}"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    code, out, err = run("log", "find", store, "-k", "k7", "-o", "jsonl")
    assert (code, numbers(out)) == (4, [7])
    assert err.startswith("unreadable: 0  ")
    assert "hastore log verify" in err


def test_find_golden_messages_by_key(golden, golden_copy, run):
    """RocketMQ's own store is searched without consume queues or index."""
    rows = json.loads((golden / "clean.manifest.json").read_text())["records"]
    rows = [row for row in rows if row["type"] == "MSG"]
    directory = golden_copy("clean")
    for row in (rows[0], rows[len(rows) // 2], rows[-1]):
        unique_key = row["properties"].get("UNIQ_KEY")
        key = unique_key or row["properties"]["KEYS"].split(" ")[0]
        _, out, _ = run("log", "find", directory, "-k", key, "-F", r"%O\n")
        assert str(row["physicalOffset"]) in out.splitlines()
        found = message_at(RealDisk(), find_log(RealDisk(), str(directory)), row["physicalOffset"])
        assert found.topic == row["topic"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--body", "a", "--regex", "b"], "exclude each other"),
        (["--regex", "("], "'('"),
        (["-p", "who"], "is not NAME=VALUE"),
        (["--since", "now", "--until", "5min"], "--since is not before --until"),
        (["--from-offset", 5, "--to-offset", 5], "--to-offset is not after"),
        (["--since", "soon"], "'soon' is not a time"),
        (["-F", "%z"], "'%z' is not a field"),
        (["-F", "%s", "-o", "json"], "leave -o out"),
    ],
)
def test_find_refuses_invalid_arguments(store, run, arguments, message):
    """Exit 2, with one line and a next step."""
    code, out, err = run("log", "find", store, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert is_one_line_with_a_next_step(err)


def test_time_window_starts_at_the_file_with_its_first_message(store):
    """Earlier files are not read; a preallocated file of zeros is ignored."""
    disk = RealDisk()
    log = find_log(disk, str(store))
    assert len(log.files) > 2
    assert start_of_window(disk, log, 0) == 0
    assert start_of_window(disk, log, FIRST_MS + 10**6) == log.files[-1].physic_offset
    (store / "commitlog" / f"{log.files[-1].next_offset:020d}").write_bytes(bytes(FILE_SIZE))
    log = find_log(disk, str(store))
    assert start_of_window(disk, log, FIRST_MS + 10**6) == log.files[-2].physic_offset


def test_find_by_time_tolerates_a_clock_that_was_set_back(tmp_path, run):
    """A message inside the window is found after one that is slightly too late."""
    builder = LogBuilder()
    for number, time_ms in enumerate((0, 5_000, 1_000, CLOCK_SLACK_MS + 9_000, 2_000)):
        builder.add(b'{"number": %d}' % number, store_timestamp_ms=FIRST_MS + time_ms)
    store = builder.write(tmp_path / "D1", queues=True)
    _, out, _ = run("log", "find", store, "--until", FIRST_MS + 2_000, "-o", "jsonl")
    assert numbers(out) == [0, 2]


# -- tail ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3, 49, 50, 60])
def test_tail_prints_the_last_messages_across_files(store, run, count):
    """As many as requested, or all there are, oldest first."""
    code, out, err = run("log", "tail", store, "-n", count, "-o", "jsonl")
    assert (code, err) == (0, "")
    assert numbers(out) == list(range(50))[-count:]


def test_tail_of_one_topic_and_tag(store, run):
    """The last matches, however far from the end they are."""
    out = run("log", "tail", store, "-n", 2, "-t", "orders", "--tag", "even", "-o", "jsonl")[1]
    assert numbers(out) == [26, 28]
    code, out, err = run("log", "tail", store, "--tag", "none")
    assert (code, out, err) == (0, "", "no message matches\n")


def test_tail_starts_in_the_middle_of_a_large_file(tmp_path):
    """It finds a record near the end without reading everything before it."""
    builder = LogBuilder(file_size=8 << 20)
    for number in range(3_000):
        builder.add(b"%01000d" % number, key=f"k{number}")
    store = builder.write(tmp_path / "D1", queues=True)
    disk = ScriptedDisk(RealDisk())
    follower = LogFollower(disk, str(store), lambda *_: None)
    last = follower.last(5, lambda _: True)
    follower.close()
    assert [int(message.body) for message in last] == [2995, 2996, 2997, 2998, 2999]
    assert disk.bytes_read.total() < 3 << 20
    assert follower.stalled is None


def test_tail_reports_an_unfinished_end(golden_copy, run):
    """A torn record is not printed; stderr describes it, and the exit code is 0."""
    code, out, err = run("log", "tail", golden_copy("crashed_torn"), "-n", 1, "-F", r"%k\n")
    assert (code, out) == (0, "KBatch3\n")
    assert err.startswith("unfinished: 331293  bad-lengths")


def test_tail_of_an_empty_log(tmp_path, run):
    """Without a file, or with only a preallocated one."""
    (tmp_path / "D1" / "commitlog").mkdir(parents=True)
    assert run("log", "tail", tmp_path / "D1") == (0, "", "the log is empty\n")
    (tmp_path / "D1" / "commitlog" / f"{0:020d}").write_bytes(bytes(FILE_SIZE))
    assert run("log", "tail", tmp_path / "D1") == (0, "", "the log is empty\n")


def test_follower_waits_at_a_torn_end_and_skips_damage(tmp_path):
    """A record counts as damaged, and is reported once, if an intact one follows."""
    builder = LogBuilder().fill(4)
    store = builder.write(tmp_path / "D1", queues=True)
    path = store / "commitlog" / f"{0:020d}"
    whole = path.read_bytes()
    first, second, third, _ = builder.offsets
    skipped = []
    follower = LogFollower(RealDisk(), str(store), lambda *place: skipped.append(place))
    path.write_bytes(whole[: third + 50].ljust(FILE_SIZE, b"\0"))
    assert [m.physic_offset for m in follower.last(9, lambda _: True)] == [first, second]
    assert follower.next_offset == third
    assert follower.stalled is not None
    path.write_bytes(whole[:third] + b"y" * 4 + whole[third + 4 :])
    assert [m.physic_offset for m in follower.new_messages(lambda _: True)] == [builder.offsets[3]]
    assert [(start, end) for start, end, _ in skipped] == [(third, builder.offsets[3])]
    assert follower.stalled is None
    follower.close()


@pytest.mark.parametrize("count", [3, 20, 60])
def test_tail_enlarges_its_window_until_it_has_enough(store, run, monkeypatch, count):
    """The first window, at the end of the log, holds too few matches."""
    monkeypatch.setattr("hastore_cli.log.follower._WINDOW_SIZE", 300)
    code, out, err = run("log", "tail", store, "--topic", "orders", "-n", count, "-F", "%s ")
    wanted = range(max(30 - count, 0), 30)
    assert (code, out, err) == (0, "".join(f'{{"number": {n}}} ' for n in wanted), "")


def test_tail_reports_damage_once(store, run, monkeypatch):
    """Each larger window reads the same places again."""
    monkeypatch.setattr("hastore_cli.log.follower._WINDOW_SIZE", 300)
    path = max((store / "commitlog").iterdir())
    data = bytearray(path.read_bytes())
    at = data.index(b'{"number": 49}')
    data[at] ^= 1
    second = data.rindex(b'{"number": 48}')
    data[second] ^= 1
    path.write_bytes(data)
    code, _, err = run("log", "tail", store, "-n", 40)
    assert code == 0
    assert err.count("unreadable: ") == 1
    assert len([line for line in err.splitlines() if line.startswith("unfinished")]) == 1


def test_follower_continues_after_deleted_files(store):
    """It resumes at the first remaining file and reports the skipped range."""
    skipped = []
    follower = LogFollower(RealDisk(), str(store), lambda *place: skipped.append(place))
    (store / "commitlog" / f"{0:020d}").unlink()
    found = list(follower.new_messages(lambda _: True))
    assert found[0].physic_offset == FILE_SIZE
    assert skipped == [(0, FILE_SIZE, "no file holds them any more")]
    follower.close()


def test_tail_follows_a_growing_log_until_ctrl_c(tmp_path):
    """The process prints appended messages across file boundaries and exits with 130."""
    builder = LogBuilder().fill(3)
    store = builder.write(tmp_path / "D1", queues=True)
    arguments = command("log", "tail", store, "-f", "-n", 1, "-F", r"%k\n")
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        watchdog = threading.Timer(WITHIN_S, process.kill)
        watchdog.start()
        assert process.stdout.readline() == b"k2\n"
        builder.fill(40)
        for start in range(0, len(builder.data), FILE_SIZE):
            part = bytes(builder.data[start : start + FILE_SIZE]).ljust(FILE_SIZE, b"\0")
            (store / "commitlog" / f"{start:020d}").write_bytes(part)
        assert [process.stdout.readline() for _ in range(40)] == [
            b"k%d\n" % number for number in range(3, 43)
        ]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WITHIN_S)
        watchdog.cancel()
    assert (process.returncode, out, err.strip()) == (130, b"", b"")


def test_find_and_tail_as_processes(store):
    """A format prints only its own bytes; following with -o json is refused."""
    found = hastore_here("log", "find", store, "--tag", "odd", "-n", 2, "-F", r"%t\t%s\n")
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout == 'orders\t{"number": 1}\norders\t{"number": 3}\n'
    assert hastore_here("log", "tail", store, "-f", "-o", "json").returncode == 2
