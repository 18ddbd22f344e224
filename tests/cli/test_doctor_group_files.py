"""`hastore doctor DIR` reads the files of a replica group's node, whether it runs or not."""

import attrs
import pytest

from hastore.env.real import LockHolder, RealDisk
from hastore.epoch_history import EpochSpan
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.log.store_directory import CUT_FILE, TRIMMED_DIR
from hastore.store.node_identity import IDENTITY_FILE
from hastore.store.recovery.log_cut import CutIntent, LogCut
from hastore.store.sync_state_file import SYNC_STATE_FILE, StoredSet, SyncStateFile
from hastore_cli.doctor.facts import Facts
from hastore_cli.doctor.group_files import check_group_files
from hastore_cli.doctor.rules import Result
from tests.support.commands.in_process import call, call_json
from tests.support.nodes.autoswitch_master import history, make_member
from tests.support.nodes.statuses import MEMBER

CUT = LogCut(
    physic_offset=47_859,
    end_offset=75_710,
    reason="the log of master m agrees with this one up to 47859 only",
    time_ms=1_700_000_000_000,
    epochs=(EpochSpan(1, 47_859, 75_710),),
    messages={"orders": 12, "audit": 3},
    saved_paths=("trimmed/00000000000000047859-1700000000000",),
)
INTENT = CutIntent(cut=CUT, kept_store_ms=0, queue_ends={}, index_slots=1, index_entries=1)


@pytest.fixture
def data_dir(tmp_path):
    """The directory of node 2 of g1, which has seen epoch 7; its log has epochs 1 and 7."""
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog/00000000000000000000").write_bytes(b"log")
    make_member(tmp_path, history((1, 0), (7, 2_000))).see(7)
    return tmp_path


def found(data_dir, **facts):
    """What is said about a directory, by check; OK without a next step, others with one."""
    node = Facts(name="D1", directory=str(data_dir), **facts)
    findings = list(check_group_files([node], RealDisk()))
    for finding in findings:
        assert finding.node == "D1"
        assert (finding.next_step is None) is (finding.result is Result.OK), finding
    checks = [finding.check for finding in findings]
    assert len(checks) == len(set(checks))
    return {finding.check: (finding.result, finding.what) for finding in findings}


def store_set(data_dir, epoch, *members):
    SyncStateFile(RealDisk(), str(data_dir / SYNC_STATE_FILE)).store(
        StoredSet(epoch, frozenset(members))
    )


def test_a_sound_directory_is_described(data_dir):
    """Nothing is said of files that are not there."""
    assert found(data_dir) == {
        "identity": (Result.OK, "node 2 of replica group g1, start 1, has seen epoch 7"),
        "epochs": (Result.OK, "2, the newest 7 from 2000 on"),
    }
    store_set(data_dir, 7, 1, 2)
    what = "nodes 1, 2 in epoch 7, when this node was master last"
    assert found(data_dir)["sync state"] == (Result.OK, what)


def test_other_directories_are_not_looked_at(data_dir):
    """A classic node's, and a node that was named by its port."""
    (data_dir / IDENTITY_FILE).unlink()
    (data_dir / CUT_FILE).write_bytes(b"junk")
    assert found(data_dir) == {}
    assert list(check_group_files([Facts(name="h:1")], RealDisk())) == []


@pytest.mark.parametrize(
    ("file", "check"),
    [
        (IDENTITY_FILE, "identity"),
        (EPOCH_FILE, "epochs"),
        (SYNC_STATE_FILE, "sync state"),
        (CUT_FILE, "cut"),
    ],
)
def test_a_damaged_file_is_bad(data_dir, file, check):
    """The others are still described."""
    store_set(data_dir, 7, 1, 2)
    (data_dir / file).write_bytes(b"junk")
    results = found(data_dir)
    result, what = results.pop(check)
    assert (result, str(data_dir / file) in what) == (Result.BAD, True)
    assert {result for result, _ in results.values()} == {Result.OK}
    assert len(results) == 3 - (check != "cut")


def test_an_identity_older_than_the_epochs_is_bad(data_dir):
    """The epoch is seen durably before its entry is stored."""
    (data_dir / IDENTITY_FILE).unlink()
    make_member(data_dir, history((1, 0))).see(6)
    EpochFile(RealDisk(), f"{data_dir}/{EPOCH_FILE}").store(history((1, 0), (7, 2_000)))
    result, what = found(data_dir)["epochs"]
    assert (result, "has epoch 7, and identity.json knows none after 6" in what) == (
        Result.BAD,
        True,
    )


def test_an_identity_older_than_the_set_is_bad(data_dir):
    """A master has seen its own epoch."""
    store_set(data_dir, 8, 1, 2)
    result, what = found(data_dir)["sync state"]
    assert (result, "knows no epoch after 7" in what) == (Result.BAD, True)


def test_a_set_without_the_node_itself_is_bad(data_dir):
    """A master is in its set, so the file came from elsewhere."""
    store_set(data_dir, 7, 1, 3)
    result, what = found(data_dir)["sync state"]
    assert (result, "but it is node 2: the file is another node's" in what) == (Result.BAD, True)


def test_a_log_without_epochs_is_bad(data_dir):
    """An empty one is not: it gets its first epoch with its first bytes."""
    (data_dir / EPOCH_FILE).unlink()
    result, what = found(data_dir)["epochs"]
    assert (result, "no epoch says who wrote it" in what) == (Result.BAD, True)
    (data_dir / "commitlog/00000000000000000000").unlink()
    assert "epochs" not in found(data_dir)


def test_an_unfinished_cut_is_a_warning_unless_the_node_runs(data_dir):
    """The next start finishes it; one that runs may be about to."""
    INTENT.store(RealDisk(), str(data_dir))
    result, what = found(data_dir)["cut"]
    assert result is Result.WARN
    assert "a cut of 27.2 KiB at 47859 is not finished: the log of master m agrees" in what
    assert "cut" not in found(data_dir, holder=LockHolder(7))
    assert "cut" not in found(data_dir, status=MEMBER)


def test_bytes_in_trimmed_are_counted(data_dir):
    """With the newest cut; files that describe none count, too."""
    trimmed = data_dir / TRIMMED_DIR
    trimmed.mkdir()
    assert "trimmed" not in found(data_dir)
    (trimmed / "00000000000000047859-1700000000000").write_bytes(bytes(4_096))
    assert found(data_dir)["trimmed"] == (Result.WARN, "4.0 KiB are kept that are in no log")
    older = attrs.evolve(CUT, physic_offset=9, time_ms=CUT.time_ms - 1, messages={})
    for cut in (CUT, older):
        (data_dir / cut.path).write_bytes(cut.encode())
    (trimmed / "cut-7-7.json").write_bytes(b"{}")
    _, what = found(data_dir)["trimmed"]
    assert what.endswith("of 2 cuts; the newest at 47859 with orders 12, audit 3")
    (data_dir / CUT.path).unlink()
    _, what = found(data_dir)["trimmed"]
    assert what.endswith("of 1 cut; the newest at 9 with no whole message")


async def test_doctor_of_a_directory_has_them(data_dir):
    """Beside the last stop; a damaged file is exit code 1."""
    (data_dir / EPOCH_FILE).write_bytes(b"junk")
    code, output = await call_json("doctor", data_dir)
    results = {finding["check"]: finding["result"] for finding in output["findings"]}
    assert code == 1
    assert (results["identity"], results["epochs"]) == ("ok", "bad")
    assert "last stop" in results
    (port,) = (each for each in output["findings"] if each["check"] == "client port")
    start = (
        f"start it: hastore node --data {data_dir} --node-id 2 --node-group g1 --master HOST:PORT"
    )
    assert port["next"] == start
    (data_dir / "node.json").write_bytes(b"junk")
    _, _, err = await call("status", data_dir)
    assert f"next  {start}" in " ".join(err.split()).replace("next ", "next  ")
