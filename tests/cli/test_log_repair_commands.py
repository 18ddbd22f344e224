"""``hastore log repair`` and ``log rebuild``, and how ``log verify`` checks queues and index."""

import json
import shutil

import pytest

from hastore.env.real import real_env
from hastore.errors import ProtocolError, UnreachableError
from hastore.store.node_identity import NodeIdentity, Unverified, read_identity
from hastore_cli.log.repair_commands import MasterSource
from tests.cli.live_node import master_with, produce
from tests.cli.on_a_terminal import on_a_terminal, plain
from tests.support.commands.in_process import hastore_here
from tests.support.commands.running import is_one_line_with_a_next_step, node
from tests.support.store.log_builder import LogBuilder, overwrite

SIZES = {"HASTORE_STORE_INDEX_SLOTS": "200", "HASTORE_STORE_INDEX_ENTRIES": "400"}


@pytest.fixture
def sizes(monkeypatch):
    """The index sizes of the golden stores, set in the environment."""
    for name, value in SIZES.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def pair(tmp_path):
    """A builder, and a store and a replica written by it; each record has a checksum."""
    builder = LogBuilder().fill(50)
    return builder, builder.write(tmp_path / "D1", queues=True), builder.write(tmp_path / "D2")


# -- verify --------------------------------------------------------------------------------------


def test_verify_checks_queues_and_index_of_a_golden_store(golden_copy, run, sizes):
    """RocketMQ's own consume queues and index match its log; --log-only skips them."""
    store = golden_copy("clean")
    code, out, err = run("log", "verify", store)
    assert (code, err) == (0, "")
    assert "294 units in 22 consume queues" in out
    assert "658 keys in 2 index files" in out
    derived = json.loads(run("log", "verify", store, "-o", "json")[1])["derived"]
    assert (derived["whole"], derived["units"], derived["keys"]) == (True, 294, 658)
    assert json.loads(run("log", "verify", store, "-o", "json", "--log-only")[1])["derived"] is None


def test_verify_reports_a_wrong_unit_and_rebuild_repairs_it(golden_copy, run, sizes):
    """Exit 4, with the rebuild as the next step."""
    store = golden_copy("clean")
    path = next((store / "consumequeue" / "GoldenB" / "1").iterdir())
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    code, out, err = run("log", "verify", store)
    assert code == 4
    assert "unit-wrong" in out
    assert "the log of" in err
    assert "hastore log rebuild" in err
    assert is_one_line_with_a_next_step(err)
    code, out, err = run("log", "rebuild", store, "--consumequeue")
    assert (code, err) == (0, "")
    assert "294 units in 22 queues" in out
    assert run("log", "verify", store)[0] == 0


def test_verify_checks_an_index_with_other_sizes(golden_copy, run):
    """Index sizes are configuration, which verify can do without."""
    code, out, err = run("log", "verify", golden_copy("clean"))
    assert (code, err) == (0, "")
    assert "658 keys in" in out
    assert "was not checked" not in out


def test_verify_skips_an_index_with_other_sizes_whose_header_fits_none(golden_copy, run):
    """The output names the variables that say the sizes."""
    store = golden_copy("clean")
    for path in (store / "index").iterdir():
        data = bytearray(path.read_bytes())
        data[16:32] = bytes(7) + b"\x01" + bytes(7) + b"\x01"
        path.write_bytes(data)
    code, out, err = run("log", "verify", store)
    assert (code, err) == (0, "")
    assert "the index was not checked" in out
    assert "HASTORE_STORE_INDEX_SLOTS" in out


# -- rebuild -------------------------------------------------------------------------------------


def test_rebuild_restores_golden_consume_queues_and_keys(golden_copy, run, tmp_path):
    """Both in one pass, with the sizes of a configuration file; JSON counts what was built."""
    store = golden_copy("clean")
    before = files(store / "consumequeue")
    (tmp_path / "c.toml").write_text("[store]\nindex_slots = 200\nindex_entries = 400\n")
    shutil.rmtree(store / "consumequeue" / "GoldenA")
    shutil.rmtree(store / "index")
    code, out, err = run(
        *("log", "rebuild", store, "--consumequeue", "--index", "-o", "json"),
        *("-c", tmp_path / "c.toml"),
    )
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert (report["schema"], report["units"], report["keys"], report["index_files"]) == (
        "hastore.log-rebuild/1",
        294,
        658,
        2,
    )
    assert files(store / "consumequeue") == before


def files(root):
    """Return the content of each file below ``root``; None for a directory."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


def test_rebuild_of_a_damaged_log_exits_4(pair, run):
    """Readable records are indexed, and the skipped places are counted."""
    builder, store, _ = pair
    overwrite(store, builder.offsets[3], b"xxxx")
    code, out, err = run("log", "rebuild", store, "--consumequeue")
    assert code == 4
    assert "49 units" in out
    assert "1 unreadable places, which were skipped" in err
    assert is_one_line_with_a_next_step(err)


def test_rebuild_without_a_flag_is_a_usage_error(pair, run):
    """The error names --consumequeue and --index."""
    code, out, err = run("log", "rebuild", pair[1])
    assert (code, out) == (2, "")
    assert "--consumequeue, --index, or both" in err


def test_rebuild_and_repair_are_refused_while_a_node_runs(tmp_path):
    """Both exit with 6, and the node still stores messages."""
    with master_with(tmp_path / "D1") as running:
        produce(running.address, "orders", range(3))
        log = tmp_path / "D1" / "commitlog" / f"{0:020d}"
        with log.open("r+b") as file:
            file.seek(100)
            file.write(b"xxxx")
        for arguments in (("rebuild", "--index"), ("repair", "--yes")):
            done = hastore_here("log", arguments[0], tmp_path / "D1", *arguments[1:])
            assert done.returncode == 6, done.stderr
            assert "error: " in done.stderr
        produce(running.address, "orders", range(3))


# -- repair --------------------------------------------------------------------------------------


def test_undamaged_log_needs_no_repair(pair, run):
    """Exit 0, also with --dry-run and with a replica; no file changes."""
    before = files(pair[1]), files(pair[2])
    for more in ([], ["--dry-run"], ["--from-replica", pair[2]]):
        assert run("log", "repair", pair[1], *more) == (0, "", "nothing to repair\n")
    assert (files(pair[1]), files(pair[2])) == before


def test_a_repair_that_was_killed_at_its_end_is_ended_by_the_next(pair, run):
    """Nothing is left to repair, and the node's log counts again."""
    _, store, _ = pair
    env = real_env()
    identity = NodeIdentity.open(
        env.disk,
        str(store),
        node_id=2,
        group="g1",
        last_exit_ok=True,
        boot_id="b",
        randomness=env.randomness,
        adopt=True,
    )
    identity.mark_unverified(Unverified(begin=5, end=9, why="log repair has not finished"))
    code, _, err = run("log", "repair", store, "--dry-run")
    assert (code, "an earlier repair is to be finished" in err) == (10, True)
    assert read_identity(env.disk, str(store)).unverified is not None
    code, out, err = run("log", "repair", store)
    assert (code, read_identity(env.disk, str(store)).unverified) == (0, None)
    assert "an earlier repair is finished now: the whole log counts again" in out
    assert "0 places" not in out
    assert "hastore log verify" in err
    assert "nothing to repair" in run("log", "repair", store)[2]


def test_verify_and_repair_output_fits_80_columns(pair):
    """Lines fold at words, and numbers are grouped."""
    builder, store, replica = pair
    overwrite(store, builder.offsets[30] + 95, b"xxxx")
    grouped = f"{builder.offsets[30]:,}".replace(",", " ")
    for arguments in (["verify", store], ["repair", store, "--from-replica", replica]):
        _, lines = on_a_terminal("log", *arguments, columns=80)
        shown = [line for line in map(plain, lines) if not line.startswith("  next  ")]
        at = next(n for n, line in enumerate(shown) if grouped in line)
        assert shown[at + 1].startswith(" " * 13)
        assert all(len(line) <= 80 for line in shown[at : at + 2])


def test_repair_from_a_replica_loses_nothing(pair, run):
    """The dry run exits with 10; the repair copies the replica's bytes and keeps the old ones."""
    builder, store, replica = pair
    overwrite(store, builder.offsets[3] + 95, b"xxxx")
    overwrite(store, builder.offsets[30], b"xxxx")
    code, out, err = run("log", "repair", store, "--from-replica", replica, "--dry-run")
    assert (code, err) == (10, "nothing changed (--dry-run)\n")
    assert out.count("replaced by the replica's bytes") == 2
    assert str(builder.offsets[3]) in out
    code, out, err = run("log", "repair", store, "--from-replica", replica)
    assert code == 0
    assert "2 places repaired; nothing is lost" in out
    assert err == f"  next  hastore log verify {store}\n"
    assert run("log", "diff", store, replica)[0] == 0
    assert len(list((store / "trimmed").iterdir())) == 2


def test_repair_with_loss_needs_yes_and_keeps_later_offsets(pair, run, tmp_path):
    """Without --yes it exits with 6; with it, a filler replaces the range, which is backed up."""
    builder, store, _ = pair
    overwrite(store, builder.offsets[3], b"xxxx")
    refused = hastore_here("log", "repair", store)
    assert refused.returncode == 6
    assert is_one_line_with_a_next_step(refused.stderr)
    backup = tmp_path / "old"
    code, out, _ = run("log", "repair", store, "--yes", "--backup", backup, "-o", "json")
    report = json.loads(out)
    assert code == 0
    assert (report["schema"], report["done"]) == ("hastore.log-repair/1", True)
    size = builder.offsets[4] - builder.offsets[3]
    assert [(p["offset"], p["size"], p["action"]) for p in report["parts"]] == [
        (builder.offsets[3], size, "fill")
    ]
    assert report["lost_bytes"] == size
    assert [str(path) for path in backup.iterdir()] == report["saved_paths"]
    assert run("log", "verify", store)[0] == 0
    found = run("log", "find", store, "--topic", "orders", "-F", "%k ")[1]
    assert found == "".join(f"k{n} " for n in range(50) if n != 3)


def test_index_is_rebuilt_after_a_repair_with_loss(pair, run):
    """The repair gives the rebuild as the next step; then `log verify` passes."""
    builder, store, _ = pair
    assert run("log", "rebuild", store, "--consumequeue", "--index")[0] == 0
    overwrite(store, builder.offsets[3], b"xxxx")
    code, _, err = run("log", "repair", store, "--yes")
    assert (code, f"log rebuild {store} --index" in err) == (0, True)
    assert run("log", "rebuild", store, "--index")[0] == 0
    assert run("log", "verify", store)[0] == 0


def test_replica_directory_may_have_a_colon_in_its_name(pair, run, tmp_path, monkeypatch):
    """An existing directory is not parsed as an address."""
    builder, store, replica = pair
    monkeypatch.chdir(tmp_path)
    replica.rename(tmp_path / "D2:2026")
    overwrite(store, builder.offsets[3], b"xxxx")
    assert run("log", "repair", store, "--from-replica", "D2:2026")[0] == 0


def test_repair_leaves_a_torn_end_to_the_next_start(golden_copy, run):
    """It is reported, but needs no repair."""
    code, out, err = run("log", "repair", golden_copy("crashed_torn"))
    assert (code, err) == (0, "nothing to repair\n")
    assert "a torn end at 331293" in out


def test_repair_refuses_a_log_that_is_no_replica(pair, run, tmp_path):
    """Exit 4; an invalid source is a usage error. No file changes."""
    builder, store, _ = pair
    overwrite(store, builder.offsets[3], b"xxxx")
    other = LogBuilder().fill(50, topic="other!").write(tmp_path / "other")
    before = files(tmp_path)
    code, out, err = run("log", "repair", store, "--from-replica", other)
    assert (code, out) == (4, "")
    assert "is not a replica of" in err
    code, _, err = run("log", "repair", store, "--from-replica", "nowhere:at:all")
    assert code == 2
    assert is_one_line_with_a_next_step(err)
    assert files(tmp_path) == before


def test_repair_of_a_former_slave_from_its_running_master(tmp_path):
    """The bytes come through its HA port; afterwards both logs are equal."""
    with master_with(tmp_path / "D1", file_size="64KiB") as master:
        with node(
            "slave", tmp_path / "D2", "--master", master.ha_address, file_size="64KiB"
        ) as slave:
            sent = produce(master.address, "orders", [f"{n:0900d}" for n in range(15)])
            produce(master.address, "orders", ["x" * 900] * 100)
            end = sent[-1]["physic_offset"]
            wait_until_equal(tmp_path)
            assert slave.stop() == 0
        for offset in (sent[0]["physic_offset"] + 300, end + 20):
            flip(tmp_path / "D2", offset)
        assert hastore_here("log", "verify", tmp_path / "D2").returncode == 4
        repaired = hastore_here(
            "log", "repair", tmp_path / "D2", "--from-replica", master.ha_address, "-o", "json"
        )
        assert repaired.returncode == 0, repaired.stderr
        assert [part["action"] for part in json.loads(repaired.stdout)["parts"]] == ["replace"] * 2
        assert hastore_here("log", "diff", tmp_path / "D1", tmp_path / "D2").returncode == 0
        assert hastore_here("status", master.address).returncode == 0


def flip(store, offset):
    path = store / "commitlog" / f"{offset - offset % (64 << 10):020d}"
    with path.open("r+b") as file:
        file.seek(offset % (64 << 10))
        file.write(b"\xff\xff\xff")


def wait_until_equal(root):
    """Wait until the slave has all that the master has."""
    for _ in range(200):
        done = hastore_here("log", "diff", root / "D1", root / "D2", "-o", "json")
        if done.returncode == 0 and json.loads(done.stdout)["verdict"] == "equal":
            return
    raise AssertionError("the slave did not catch up")


def test_read_after_the_end_of_a_master_is_an_error(tmp_path):
    """Reads before the end return the log's bytes."""
    with master_with(tmp_path / "D1") as master:
        produce(master.address, "orders", range(3))
        host, _, port = master.ha_address.rpartition(":")
        source = MasterSource((host, int(port)))
        first = (tmp_path / "D1" / "commitlog" / f"{0:020d}").read_bytes()
        assert [source.read(start, 100) for start in (0, 1, 2, 3)] == [
            first[start : start + 100] for start in (0, 1, 2, 3)
        ]
        with pytest.raises((ProtocolError, UnreachableError), match="1000000"):
            source.read(10**6, 100)
