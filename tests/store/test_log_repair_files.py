"""Repair of real directories whose files have other sizes than they should, or lost a checksum."""

import pytest

from hastore.env.real import RealDisk, real_env
from hastore.errors import LogDamagedError
from hastore.store.record.layout import PROP_CRC_SIZE
from hastore.store.tools.repair.log_repair import apply_repair, plan_repair
from hastore.store.tools.repair.source import DirectorySource
from tests.support.store.log_builder import FILE_SIZE, LogBuilder


@pytest.fixture
def pair(tmp_path):
    """A store of several files, each record with a checksum, and its replica."""
    builder = LogBuilder().fill(60)
    return builder, builder.write(tmp_path / "D1"), builder.write(tmp_path / "D2")


def log_file(store, offset):
    return store / "commitlog" / f"{offset - offset % FILE_SIZE:020d}"


def poke(store, offset, data):
    with log_file(store, offset).open("r+b") as file:
        file.seek(offset % FILE_SIZE)
        file.write(data)


def content(store):
    return {path.name: path.read_bytes() for path in (store / "commitlog").iterdir()}


def repair_from(store, replica):
    source = DirectorySource(RealDisk(), str(replica))
    plan = plan_repair(RealDisk(), str(store), source=source)
    apply_repair(real_env(), plan, source=source)
    return plan


@pytest.mark.parametrize("longer", ["D1", "D2"])
def test_a_file_that_is_too_long_hides_nothing_of_the_next(pair, tmp_path, longer):
    """What is too much in it stands in no other file's place, here or on the replica."""
    builder, store, replica = pair
    with log_file(tmp_path / longer, 0).open("ab") as file:
        file.write(bytes(3_000))
    damaged = next(offset for offset in builder.offsets[1:] if offset > FILE_SIZE)
    poke(store, damaged + 20, b"\xff" * 30)
    repair_from(store, replica)
    expected = content(replica)
    if longer == "D2":
        expected[log_file(replica, 0).name] = expected[log_file(replica, 0).name][:FILE_SIZE]
    assert content(store) == expected


def test_a_first_file_that_is_too_short_does_not_make_the_others_wrong(tmp_path):
    """Of two files of different sizes the second's place tells which size is right."""
    builder = LogBuilder()
    while builder.end < FILE_SIZE + 500:
        builder.add()
    store, replica = builder.write(tmp_path / "D1"), builder.write(tmp_path / "D2")
    path = log_file(store, 0)
    path.write_bytes(path.read_bytes()[:2_000])
    repair_from(store, replica)
    assert content(store) == content(replica)


def test_damage_that_begins_in_a_checksum_is_mended_with_its_record(pair):
    """Without its checksum the record seems sound, and the replica tells that it is not."""
    builder, store, replica = pair
    second = builder.offsets[2]
    poke(store, second - PROP_CRC_SIZE, b"\x01x\x02" * 40)
    plan = repair_from(store, replica)
    assert plan.parts[0].start == builder.offsets[1]
    assert content(store) == content(replica)


def test_a_record_that_differs_elsewhere_is_no_reason_to_mend_it(pair, tmp_path):
    """Another log is refused as ever, whatever checksums it has."""
    builder, store, _ = pair
    other = LogBuilder().fill(60, topic="other!").write(tmp_path / "D3")
    poke(store, builder.offsets[2], b"\xff" * 30)
    with pytest.raises(LogDamagedError, match="is no replica of"):
        repair_from(store, other)
