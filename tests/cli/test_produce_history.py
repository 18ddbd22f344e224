"""``hastore produce --history``: every message and its outcome, as the job ``rpo`` reads it."""

from pathlib import Path

import pytest

from hastore.env.real import real_env
from hastore.store.record.record_check import body_crc32
from hastore_cli.produce.history import ProduceHistory
from hastore_scenarios.judge.history import Outcome, load_history
from hastore_scenarios.judge.log_image import read_records
from tests.support.commands.running import hastore, is_one_line_with_a_next_step, node

# One node for all of them.
pytestmark = pytest.mark.xdist_group("produce-history")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """An ASYNC_MASTER without a slave."""
    data = tmp_path_factory.mktemp("alone") / "D"
    with node("master", data, "--broker-role", "ASYNC_MASTER") as master:
        yield master


def test_every_message_is_in_the_history_as_it_is_in_the_log(alone, tmp_path):
    """Keys, bodies' CRCs and offsets are the log's; what was refused has failed."""
    path = tmp_path / "h.jsonl"
    lines = b"".join(b"line %d\n" % number for number in range(300))
    done = hastore("produce", "orders", "--addr", alone.data, "--history", path, stdin=lines)
    assert done.returncode == 0, done.stderr
    with path.open() as text:
        history = load_history(text)
    records = list(read_records(real_env().disk, str(alone.data)))
    told = [
        (put.key, put.body_crc, put.physic_offset, put.queue_offset) for put in history.operations
    ]
    held = [(one.key, one.body_crc, one.physic_offset, one.queue_offset) for one in records]
    assert sorted(told) == sorted(held)
    assert len(told) == 300
    assert {put.body_crc for put in history.operations} >= {body_crc32(b"line 7")}
    assert {put.outcome for put in history.operations} == {Outcome.OK}
    assert {put.wait for put in history.operations} == {True}
    assert all(put.completed_s >= put.invoked_s for put in history.operations)

    again = hastore("produce", "orders", "--addr", alone.data, "--history", path, stdin=b"x\n")
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert is_one_line_with_a_next_step(again.stderr)
    assert len(list(read_records(real_env().disk, str(alone.data)))) == 300


def test_what_was_never_sent_leaves_no_history(tmp_path):
    """Nobody answers: no file that would be in the way of the next attempt."""
    path = tmp_path / "h.jsonl"
    done = hastore("produce", "t", "--addr", "127.0.0.1:1", "--history", path, stdin=b"x\n")
    assert done.returncode == 3
    assert not path.exists()
    done = hastore("produce", "t", "--history", tmp_path / "none" / "h", stdin=b"x\n")
    assert done.returncode == 2
    assert is_one_line_with_a_next_step(done.stderr)


def test_a_full_disk_is_told_at_the_end():
    """A history that cannot be written to its end does not stop the sending, and says so."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full here")
    with full.open("w") as sink:
        history = ProduceHistory(path="h", address=("127.0.0.1", 1), wait=True, sink=sink)
        for number in range(1_000):
            history._write({"line": number, "text": "x" * 100})
            if history.error is not None:
                break
        assert "space" in history.error.strerror
