"""``hastore produce --history``: all messages and outcomes, as the job ``rpo`` reads them."""

from pathlib import Path

import pytest

from hastore.env.real import real_env
from hastore.store.record.record_check import body_crc32
from hastore_cli.produce.history import ProduceHistory
from hastore_scenarios.judge.history import Outcome, load_history
from hastore_scenarios.judge.log_image import read_records
from tests.support.commands.in_process import hastore_here
from tests.support.commands.running import is_one_line_with_a_next_step, node

# All tests of this file share one node, so they run in one worker.
pytestmark = pytest.mark.xdist_group("produce-history")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """An ASYNC_MASTER without a slave."""
    data = tmp_path_factory.mktemp("alone") / "D"
    with node("master", data, "--broker-role", "ASYNC_MASTER") as master:
        yield master


def test_history_has_the_messages_of_the_log(alone, tmp_path):
    """With equal keys, body CRCs and offsets; an existing history is not overwritten."""
    path = tmp_path / "h.jsonl"
    lines = b"".join(b"line %d\n" % number for number in range(300))
    done = hastore_here("produce", "orders", "--addr", alone.data, "--history", path, stdin=lines)
    assert done.returncode == 0, done.stderr
    with path.open() as text:
        history = load_history(text)
    records = list(read_records(real_env().disk, str(alone.data)))
    recorded = [
        (put.key, put.body_crc, put.physic_offset, put.queue_offset) for put in history.operations
    ]
    stored = [(one.key, one.body_crc, one.physic_offset, one.queue_offset) for one in records]
    assert sorted(recorded) == sorted(stored)
    assert len(recorded) == 300
    assert {put.body_crc for put in history.operations} >= {body_crc32(b"line 7")}
    assert {put.outcome for put in history.operations} == {Outcome.OK}
    assert {put.wait for put in history.operations} == {True}
    assert all(put.completed_s >= put.invoked_s for put in history.operations)

    again = hastore_here("produce", "orders", "--addr", alone.data, "--history", path, stdin=b"x\n")
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert is_one_line_with_a_next_step(again.stderr)
    assert len(list(read_records(real_env().disk, str(alone.data)))) == 300


def test_unreachable_node_leaves_no_history_file(tmp_path):
    """A leftover file would block the next attempt; a missing folder is a usage error."""
    path = tmp_path / "h.jsonl"
    done = hastore_here("produce", "t", "--addr", "127.0.0.1:1", "--history", path, stdin=b"x\n")
    assert done.returncode == 3
    assert not path.exists()
    done = hastore_here("produce", "t", "--history", tmp_path / "none" / "h", stdin=b"x\n")
    assert done.returncode == 2
    assert is_one_line_with_a_next_step(done.stderr)


def test_history_on_a_full_disk_keeps_the_error():
    """Writing raises nothing, so sending goes on and the error can be reported at the end."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with full.open("w") as sink:
        history = ProduceHistory(path="h", address=("127.0.0.1", 1), wait=True, sink=sink)
        for number in range(1_000):
            history._write({"line": number, "text": "x" * 100})
            if history.error is not None:
                break
        assert "space" in history.error.strerror
