"""The audit finds every byte that differs, and agrees with ``hastore log diff``."""

import json
import os
import random
import re
import shutil

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from hastore.env.real import real_env
from hastore.errors import ConfigError, NotAStoreError
from hastore.pipeline.audit.job import audit
from hastore.pipeline.job import ROWS_MAX
from hastore.store.tools.log_diff import diff_logs
from hastore.store.tools.log_directory import find_log
from hastore_cli.main import root
from tests.support.store.log_builder import LogBuilder

pytestmark = pytest.mark.xdist_group("spark")
DISK = real_env().disk
FLIPS = 200


def diff(left, right):
    """Return the report of ``hastore log diff``."""
    return diff_logs(DISK, find_log(DISK, str(left)), find_log(DISK, str(right)))


def assert_agrees(master, replicas, result):
    """Check each replica's verdict, range and first difference against ``hastore log diff``."""
    for replica, seen in zip(replicas, result.summary["replicas"], strict=True):
        report = diff(master, replica)
        damage = None if report.damage is None else report.damage.physic_offset
        reported = {
            "replica": str(replica),
            "verdict": report.verdict.value,
            "common_from": report.common_from,
            "common_to": report.common_to,
            "first_difference": report.first_difference,
            "bytes_behind": report.left.max_offset - report.right.max_offset,
            "damaged_alike_at": damage,
        }
        if report.first_difference is not None:
            del reported["damaged_alike_at"]  # log diff searches it only if the bytes are equal
        assert {name: seen[name] for name in reported} == reported


def test_golden_logs_agree_with_log_diff(spark, golden, golden_copy):
    """Java's master and replica are equal; the others are torn, different or partly expired."""
    expired = golden_copy("crashed", to="expired")
    (expired / "commitlog" / f"{0:020d}").unlink()
    master = golden / "crashed"
    replicas = [golden / name for name in ("crashed", "crashed_torn", "crashed_torn_props")]
    replicas += [golden / "propcrc", expired / "commitlog"]
    result = audit(spark, str(master), [str(path) for path in replicas])
    assert_agrees(master, replicas, result)
    assert result.found
    assert result.summary["verdict"] == "different"
    missing = [row for row in result.summary["missing"] if row["replica"].startswith(str(expired))]
    assert [(row["from_offset"], row["to_offset"]) for row in missing] == [(0, 65_536)]

    pair = audit(spark, str(golden / "replica_master"), [str(golden / "replica")], strict=True)
    assert_agrees(golden / "replica_master", [golden / "replica"], pair)
    manifest = json.loads((golden / "replica.manifest.json").read_text())
    messages = [record for record in manifest["records"] if record["type"] == "MSG"]
    assert pair.summary["replicas"][0]["messages_same"] == len(messages)
    assert (pair.found, pair.rows, pair.summary["missing"]) == (False, [], [])
    assert pair.summary["by_segment"] == pair.summary["by_topic"] == []


def test_replica_ahead_of_its_master_is_a_finding_with_strict(spark, tmp_path):
    """The common range is equal, so the verdict is prefix, as if the replica lagged."""
    log = LogBuilder().fill(60)
    replica = log.write(tmp_path / "replica")
    master = log.write(tmp_path / "master", data=log.data[: log.offsets[50]])
    for strict in (False, True):
        found = audit(spark, str(master), [str(replica)], strict=strict)
        assert (found.found, found.summary["verdict"]) == (strict, "prefix")
        assert found.summary["replicas"][0]["bytes_behind"] == log.offsets[50] - log.end


@pytest.mark.parametrize("copies", [50, pytest.param(200, marks=pytest.mark.soak)])
def test_finds_a_flipped_byte_in_each_copy(spark, tmp_path, copies):
    """One job checks many replicas, and names the same offsets as log diff."""
    generator = random.Random(5)
    log = LogBuilder().fill(60)
    master = log.write(tmp_path / "master", queues=True)
    blank = set(range(log.blanks[0], 4096))
    places = generator.sample(sorted(set(range(log.offsets[-1])) - blank), copies)
    replicas = [
        log.write(
            tmp_path / f"r{at:05d}", data=log.flipped(at, 1 << generator.randrange(8)), queues=True
        )
        for at in places
    ]
    result = audit(spark, str(master), [str(path) for path in replicas])
    assert_agrees(master, replicas, result)
    seen = result.summary["replicas"]
    assert [one["first_difference"] for one in seen] == places
    assert {one["verdict"] for one in seen} == {"different"}
    assert all(one["places_different"] >= 1 for one in seen)
    assert len(result.rows) == min(sum(one["places_different"] for one in seen), ROWS_MAX)


def test_finds_each_of_200_flipped_bytes_in_one_copy(spark, golden_copy, tmp_path):
    """The bytes are anywhere: in a header, a body, a property or a filler."""
    master, replica = golden_copy("clean"), golden_copy("clean", to="damaged")
    end = diff(master, replica).common_to
    generator = random.Random(4)
    # At most one each KiB: a flipped size may hide the records after it.
    flips = {}
    while len(flips) < FLIPS:
        at = generator.randrange(end)
        flips.setdefault(at // 1024, at)
    for at in flips.values():
        path = replica / "commitlog" / f"{at // 65_536 * 65_536:020d}"
        data = bytearray(path.read_bytes())
        data[at % 65_536] ^= 1 << generator.randrange(8)
        path.write_bytes(data)
    result = audit(spark, str(master), [str(replica)], out=str(tmp_path / "found"))
    seen = result.summary["replicas"][0]
    assert result.found
    assert seen["verdict"] == "different"
    assert seen["first_difference"] == min(flips.values())
    assert result.files == (str(tmp_path / "found" / "audit.parquet"),)
    rows = pq.read_table(result.files[0]).to_pylist()
    assert len(rows) == seen["places_different"]
    for column in ("by_segment", "by_topic"):
        places = result.summary[column]
        assert all(row["different"] > 0 for row in places)
        assert sum(row["different"] for row in places) == len(rows)
    assert len(result.rows) <= 100
    named = {row["differs_at"] for row in rows}
    # If a record has two, the row names the record and the first of them.
    starts = sorted({row["physic_offset"] for row in rows})
    for at in flips.values():
        start = max(place for place in starts if place <= at)
        first = next(row["differs_at"] for row in rows if row["physic_offset"] == start)
        assert at in named or start <= first < at
    assert named - {None} <= set(flips.values())


def test_random_pairs_agree_with_log_diff(spark, tmp_path):
    """The copies are cut, expired, flipped or grown, or lack a file."""
    generator = random.Random(7)
    log = LogBuilder().fill(200)
    log.add(b"x" * 2000, topic="other").fill(40)
    master = log.write(tmp_path / "master")
    inner = log.offsets[-1]  # another test damages the last record

    def flipped(*offsets):
        data = bytearray(log.data)
        for offset in offsets:
            data[offset] ^= 1 << generator.randrange(8)
        return data

    copies = {
        "same": log.data,
        "cut": log.data[: log.offsets[100]],
        "torn": log.data[: log.offsets[100] + 57],
        "flip": flipped(generator.randrange(inner)),
        "flips": flipped(*(generator.randrange(inner) for _ in range(5))),
        "filler": flipped(log.blanks[1] + 20),
        "size": flipped(log.offsets[50] + 3),
        "grown": bytes(log.data) + bytes(LogBuilder(min_offset=log.end).fill(3).data),
    }
    replicas = [log.write(tmp_path / name, data=data) for name, data in copies.items()]
    for name, start in (("expired", 0), ("holed", 2 * 4096)):
        path = log.write(tmp_path / name)
        (path / "commitlog" / f"{start:020d}").unlink()
        replicas.append(path)
    for name, start in (("short", 2 * 4096), ("short_end", (log.end - 1) // 4096 * 4096)):
        path = log.write(tmp_path / name)
        os.truncate(path / "commitlog" / f"{start:020d}", 1_000)
        replicas.append(path)
    (tmp_path / "empty" / "commitlog").mkdir(parents=True)
    replicas.append(tmp_path / "empty")
    result = audit(spark, str(master), [str(path) for path in replicas])
    assert_agrees(master, replicas, result)
    hole = next(row for row in result.summary["missing"] if row["place"].startswith("hole"))
    assert (hole["from_offset"], hole["to_offset"]) == (2 * 4096, 3 * 4096)
    filler = next(row for row in result.rows if row["replica"].endswith("/filler"))
    assert filler["on_master"].startswith("filler, ")
    assert filler["topic"] is None


def test_damaged_last_record_is_a_difference_not_lag(spark, tmp_path):
    """A last record that is incomplete but equal so far is only lag."""
    log = LogBuilder().fill(30)
    master = log.write(tmp_path / "master")
    last = log.offsets[-1]
    other = log.write(tmp_path / "other", data=log.flipped(last + 2))
    half = log.write(tmp_path / "half", data=log.data[: last + 60])
    out = tmp_path / "found"
    result = audit(spark, str(master), [str(other), str(half)], out=str(out))
    assert [one["verdict"] for one in result.summary["replicas"]] == ["different", "prefix"]
    assert [(row["physic_offset"], row["differs_at"]) for row in result.rows] == [(last, last + 2)]
    assert pq.read_table(out / "audit.parquet").to_pylist() == result.rows
    # A later audit that finds nothing replaces the table of earlier findings.
    assert audit(spark, str(master), [str(master)], out=str(out)).files == result.files
    assert pq.read_table(out / "audit.parquet").num_rows == 0


def test_equal_damage_on_both_sides_is_a_finding(spark, tmp_path):
    """The replica has copied its master's damage: they are equal, but both are wrong."""
    log = LogBuilder().fill(30)
    damaged = log.flipped(log.offsets[7] + 95)
    for name in ("a", "b"):
        log.write(tmp_path / name, data=damaged)
    result = audit(spark, str(tmp_path / "a"), [str(tmp_path / "b")])
    assert_agrees(tmp_path / "a", [tmp_path / "b"], result)
    assert result.found
    assert result.summary["replicas"][0]["damaged_alike_at"] == log.offsets[7]


def test_command_exits_with_4_if_logs_differ(spark, golden, golden_copy):
    """It prints a table or JSON, and exits with 0 if the logs are equal."""
    replica = golden_copy("replica")
    path = replica / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    command = ["pipeline", "run", "audit", str(golden / "replica_master"), str(replica)]
    reported = CliRunner().invoke(root, [*command, "-o", "json"])
    assert reported.exit_code == 4, reported.output
    document = json.loads(reported.stdout)
    assert document["job"] == "audit"
    assert [row["differs_at"] for row in document["rows"]] == [300]
    shutil.copy(golden / "replica" / "commitlog" / path.name, path)
    reported = CliRunner().invoke(root, command)
    assert reported.exit_code == 0, reported.output
    assert "equal" in reported.stdout
    assert re.search(r"^missing +none$", reported.stdout, re.MULTILINE)


def test_bad_input_raises_one_clear_error(spark, golden, tmp_path):
    """Without a store or a replica nothing is written."""
    out = tmp_path / "out"
    with pytest.raises(NotAStoreError, match="no such directory"):
        audit(spark, str(golden / "replica"), [str(tmp_path / "none")], out=str(out))
    with pytest.raises(ConfigError, match="matches no directory"):
        audit(spark, str(golden / "replica"), [str(tmp_path / "none*")], out=str(out))
    with pytest.raises(ConfigError, match="no replica"):
        audit(spark, str(golden / "replica"), [], out=str(out))
    assert not out.exists()
