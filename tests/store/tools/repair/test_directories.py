"""Repair of real directories with files of wrong sizes, or with damaged checksums."""

import pytest

from hastore.env.real import RealDisk, real_env
from hastore.errors import LogDamagedError
from hastore.store.record.layout import PROP_CRC_SIZE
from hastore.store.tools.repair.log_repair import apply_repair
from hastore.store.tools.repair.plan import plan_repair
from hastore.store.tools.repair.source import DirectorySource
from tests.support.store.log_builder import FILE_SIZE, LogBuilder, overwrite


@pytest.fixture
def pair(tmp_path):
    """A store of several files, each record with a checksum, and its replica."""
    builder = LogBuilder().fill(60)
    return builder, builder.write(tmp_path / "D1"), builder.write(tmp_path / "D2")


def log_file(store, offset):
    return store / "commitlog" / f"{offset - offset % FILE_SIZE:020d}"


def content(store):
    return {path.name: path.read_bytes() for path in (store / "commitlog").iterdir()}


def repair_from(store, replica):
    source = DirectorySource(RealDisk(), str(replica))
    plan = plan_repair(RealDisk(), str(store), source=source)
    apply_repair(real_env(), plan, source=source)
    return plan


@pytest.mark.parametrize("longer", ["D1", "D2"])
def test_bytes_past_the_end_of_a_long_file_are_ignored(pair, tmp_path, longer):
    """They never replace bytes of the next file, neither in the store nor in the replica."""
    builder, store, replica = pair
    with log_file(tmp_path / longer, 0).open("ab") as file:
        file.write(bytes(3_000))
    damaged = next(offset for offset in builder.offsets[1:] if offset > FILE_SIZE)
    overwrite(store, damaged + 20, b"\xff" * 30)
    repair_from(store, replica)
    expected = content(replica)
    if longer == "D2":
        expected[log_file(replica, 0).name] = expected[log_file(replica, 0).name][:FILE_SIZE]
    assert content(store) == expected


def test_short_first_file_does_not_define_the_file_size(tmp_path):
    """With two files of different sizes, the offset of the second shows which size is right."""
    builder = LogBuilder()
    while builder.end < FILE_SIZE + 500:
        builder.add()
    store, replica = builder.write(tmp_path / "D1"), builder.write(tmp_path / "D2")
    path = log_file(store, 0)
    path.write_bytes(path.read_bytes()[:2_000])
    repair_from(store, replica)
    assert content(store) == content(replica)


def test_record_whose_checksum_is_overwritten_is_repaired_too(pair):
    """Without its checksum the record looks intact; only the replica shows that it is damaged."""
    builder, store, replica = pair
    second = builder.offsets[2]
    overwrite(store, second - PROP_CRC_SIZE, b"\x01x\x02" * 40)
    plan = repair_from(store, replica)
    assert plan.parts[0].start == builder.offsets[1]
    assert content(store) == content(replica)


def test_replica_with_other_records_is_refused(pair, tmp_path):
    """Records that differ in more than a lost checksum belong to another log."""
    builder, store, _ = pair
    other = LogBuilder().fill(60, topic="other!").write(tmp_path / "D3")
    overwrite(store, builder.offsets[2], b"\xff" * 30)
    with pytest.raises(LogDamagedError, match="is not a replica of"):
        repair_from(store, other)


# -- a replica that has filled what it lost ------------------------------------------------------


def write_damaged(builder, path, *offsets):
    """Write a store with its queues, and damaged heads of records; return its directory."""
    data = bytearray(builder.data)
    for offset in offsets:
        data[offset : offset + 8] = b"\xff" * 8
    return builder.write(path, data=data, queues=True)


def filled(builder, path, *offsets):
    """Write a store that was repaired without a replica."""
    store = write_damaged(builder, path, *offsets)
    apply_repair(real_env(), plan_repair(RealDisk(), str(store)))
    return store


def test_a_replicas_filler_does_not_replace_a_message_that_is_intact_here(tmp_path):
    """The replica lost two messages, and has one filler for both; here the second has its unit."""
    builder = LogBuilder(file_size=1 << 16).fill(20)
    first, second = builder.offsets[5:7]
    replica = filled(builder, tmp_path / "replica", first, second)
    store = write_damaged(builder, tmp_path / "store", first)
    (part,) = plan_repair(RealDisk(), str(store)).parts
    assert (part.start, part.stop) == (first, second)
    source = DirectorySource(RealDisk(), str(replica))
    with pytest.raises(LogDamagedError, match="cannot repair"):
        plan_repair(RealDisk(), str(store), source=source)


def test_a_piece_of_a_replicas_filler_confirms_no_record_in_a_body(tmp_path):
    """Fillers are cut into pieces of 1 MiB, so a producer knows where one will begin."""
    mib = 1 << 20
    builder = LogBuilder(file_size=4 * mib).fill(5)
    around = builder.end
    empty = len(LogBuilder().add(b"", topic="secret").data)
    planted = LogBuilder(file_size=1 << 40, min_offset=around + mib)
    planted.add(b"." * (mib - empty), topic="secret")
    body = b"p" * (mib - 88) + bytes(planted.data) + b"q" * mib
    builder.add(body, topic="mine").fill(5)
    replica = filled(builder, tmp_path / "replica", around)
    store = write_damaged(builder, tmp_path / "store", around)
    source = DirectorySource(RealDisk(), str(replica))
    (part,) = plan_repair(RealDisk(), str(store), source=source).parts
    assert (part.start, part.stop) == (around, builder.offsets[6])
