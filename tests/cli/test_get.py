"""``hastore get``: by id, offset, key and time, from a node and from files."""

import json

import pytest

from hastore.config import MIB
from hastore.store.record.layout import BODY_POSITIONS
from hastore.store.record.message_codec import decode, message_id
from hastore_cli.consume.lookup import MessageId
from tests.cli.live_node import master_with, produce
from tests.support.commands.in_process import hastore_here
from tests.support.commands.running import is_one_line_with_a_next_step
from tests.support.store.log_builder import FIRST_MS, LogBuilder

# All tests of this file share one node, so they run in one worker.
pytestmark = pytest.mark.xdist_group("get")


@pytest.fixture(scope="module")
def master(tmp_path_factory):
    """A master with ten messages; only the last two share a key."""
    with master_with(tmp_path_factory.mktemp("get") / "D1") as running:
        running.sent = [
            produce(running.address, "orders", [n], "-k", f"k{min(n, 8)}", "--tag", "t")[0]
            for n in range(10)
        ]
        yield running


@pytest.fixture(params=["node", "files"])
def get(request, master, run):
    """A function that runs `get` against the node, then against its files."""
    where = ["--addr", master.address] if request.param == "node" else ["--dir", master.data]
    return lambda *arguments: run("get", *arguments, *where)


def test_get_by_id_and_by_offset(get, master):
    """The text shows every property; JSON shows the same message."""
    sent = master.sent[3]
    code, out, err = get("--id", sent["message_id"])
    assert (code, err) == (0, "")
    assert f"id          {sent['message_id']}" in out
    assert "property    KEYS = k3" in out
    assert out.endswith("body        1 B\n\n3\n")
    assert get("--offset", sent["physic_offset"])[1] == out
    (message,) = json.loads(get("--id", sent["message_id"].lower(), "-o", "json")[1])["messages"]
    assert (message["body"], message["physic_offset"]) == ("3", sent["physic_offset"])
    assert (message["offset"], message["id"]) == (message["physic_offset"], message["message_id"])


def test_get_by_unique_key_needs_the_topic(get, master):
    """A UNIQ_KEY looks like a message id but holds no offset."""
    unique_key = master.sent[4]["unique_key"]
    code, out, err = get("--id", unique_key)
    assert (code, out) == (1, "")
    assert "add -t TOPIC" in err
    assert get("--id", unique_key, "-t", "orders", "-F", "%s")[1] == "4"


def test_get_by_key(get):
    """All matches, oldest first; exit 1 if there is none."""
    assert get("--key", "k8", "-t", "orders", "-F", r"%s\n")[1] == "8\n9\n"
    assert get("--key", "k8", "-t", "orders", "-n", 1, "-F", r"%s\n")[1] == "8\n"
    code, out, err = get("--key", "none", "-t", "orders")
    assert (code, out) == (1, "")
    assert is_one_line_with_a_next_step(err)


def test_get_by_time(get, master, run):
    """From T1 inclusive to T2 exclusive; either side may be open."""
    rows = json.loads(run("get", "--time", "1h..", "--dir", master.data, "-o", "json")[1])
    times = [row["store_timestamp_ms"] for row in rows["messages"]]
    assert len(times) == 10
    window = f"{times[3]}..{times[6]}"
    expected = "".join(f"{n}\n" for n in range(10) if times[3] <= times[n] < times[6])
    assert get("--time", window, "-t", "orders", "-F", r"%s\n")[1] == expected
    assert len(get("--time", "1h..", "-t", "orders")[1].splitlines()) == 10
    assert len(get("--time", f"..{times[-1] + 1}", "-t", "orders")[1].splitlines()) == 10
    assert get("--time", "1h..", "-t", "orders", "-n", 2, "-F", r"%s\n")[1] == "0\n1\n"
    assert get("--time", "2h..1h", "-t", "orders")[0] == 1
    both = get("--key", "k8", "--time", "2h..1h", "-t", "orders")
    assert both[0] == 1


def test_get_at_an_offset_without_a_message_exits_1(get, master):
    """Inside a message and after the end of the log; the error has a next step."""
    for offset in (master.sent[0]["physic_offset"] + 5, 10**12):
        code, out, err = get("--offset", offset)
        assert (code, out) == (1, "")
        assert is_one_line_with_a_next_step(err)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "use one of --id"),
        (["--id", "7F00000100002A9F000000004001F3C8", "--offset", 1], "use one of"),
        (["--key", "k", "--offset", 1, "-t", "orders"], "use one of"),
        (["--key", "k"], "add -t TOPIC"),
        (["--key", "", "-t", "orders"], "a key cannot be empty"),
        (["--offset", 1, "-t", "orders"], "leave -t out"),
        (["--offset", 1, "-n", 2], "leave -n out"),
        (["--offset", 1, "--dir", ".", "--addr", "h:1"], "leave --addr out"),
        (["--id", "xyz"], "'xyz' is not a message id of 32 or 56 hex digits"),
        (["--time", "now", "-t", "orders"], "is not a window"),
    ],
)
def test_get_refuses_invalid_arguments(run, arguments, message):
    """A usage error, before any node is asked."""
    code, out, err = run("get", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert is_one_line_with_a_next_step(err)


def test_message_id_holds_host_and_offset():
    """IPv4 and IPv6 ids are parsed; the text is in upper case, as brokers write it."""
    found = MessageId.parse("7f00000100002a9f000000004001f3c8")
    assert (found.store_host, found.physic_offset) == (("127.0.0.1", 10_911), 0x4001F3C8)
    assert found.text == "7F00000100002A9F000000004001F3C8"
    v6 = MessageId.parse("00" * 15 + "01" + "00002A9F" + "00" * 8)
    assert (v6.store_host, v6.physic_offset) == (("::1", 10_911), 0)


def test_get_from_files_needs_no_topic_and_reports_damage(tmp_path, run):
    """All topics are searched; messages after damage are found, with exit code 4."""
    builder = LogBuilder().add(b"one", key="x").add(b"two", topic="other", key="x")
    store = builder.write(tmp_path / "D1", queues=True)
    assert (
        run("get", "--key", "x", "--dir", store, "-F", r"%t %s\n")[1] == "orders one\nother two\n"
    )
    path = store / "commitlog" / f"{0:020d}"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    code, out, err = run("get", "--time", f"{FIRST_MS}..", "--dir", store, "-F", r"%s\n")
    assert (code, out) == (4, "two\n")
    assert err.startswith("unreadable: 0  ")


def test_a_record_inside_a_body_is_no_message(run, tmp_path):
    """Neither on a node nor in files: a producer may have written it."""
    builder = LogBuilder(file_size=MIB).add(b"first")
    at = builder.end + BODY_POSITIONS[0]
    forged = LogBuilder(min_offset=at, prop_crc=False).add(b"forged")
    store = builder.add(bytes(forged.data)).add(b"last").write(tmp_path / "D1")
    assert decode(builder.data, at).physic_offset == at
    with master_with(store, file_size="1MiB") as running:
        produce(running.address, "orders", ["more"])  # all before it can be read, too
        for where in (["--addr", running.address], ["--dir", store]):
            for wanted in (["--offset", at], ["--id", message_id(("127.0.0.1", 10_911), at)]):
                code, out, err = run("get", *wanted, *where)
                assert (code, out) == (1, ""), where
                assert is_one_line_with_a_next_step(err)
            assert run("get", "--offset", builder.offsets[-1], *where, "-F", "%s")[1] == "last"


def test_binary_body_is_shown_as_hex(tmp_path, run):
    """Printable characters stand beside the bytes; the rest is counted."""
    store = LogBuilder().add(bytes(range(256)) * 2).write(tmp_path / "D1")
    out = run("get", "--offset", 0, "--dir", store)[1]
    assert "00000040  40 41 42" in out
    assert "@ABCDEFGHIJKLMNO" in out
    assert "… 256 more bytes" in out


def test_get_takes_the_directory_of_a_node_as_address(master):
    """As a process; --addr without a listener exits 3."""
    done = hastore_here("get", "--key", "k3", "-t", "orders", "--addr", master.data, "-F", "%s")
    assert (done.returncode, done.stdout, done.stderr) == (0, "3", "")
    assert hastore_here("get", "--offset", 0, "--addr", "127.0.0.1:1").returncode == 3


def test_get_by_unique_key_from_files_shows_progress(tmp_path, monkeypatch, run):
    """Without an index the whole log is read, which may take a while."""
    raw = b"UNIQ_KEY\x01" + b"AB" * 16 + b"\x02"
    store = LogBuilder().fill(5).add(b"it", properties_raw=raw).write(tmp_path / "D1")
    progress = []
    monkeypatch.setattr(
        "hastore_cli.app.progress_bar.ReadingBar._start", lambda bar: bar_started(bar, progress)
    )
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    code, out, _ = run("get", "--id", "AB" * 16, "-t", "orders", "--dir", store, "-F", "%s")
    assert (code, out) == (0, "it")
    assert sum(progress) > 0


def bar_started(bar, progress):
    bar.on_progress = progress.append
