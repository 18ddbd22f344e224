"""Index files of real RocketMQ: rebuilt from its log, they are the same byte for byte.

RocketMQ's timing decides only a file's *name*, the local time at which the file was created.  The
content does not depend on it: a file ends when its entries are full, even in the middle of a
record, and all its times are store timestamps.  The same is true of a killed store.
"""

import json

import pytest

from hastore.config import StoreConfig
from hastore.env.real import real_env
from hastore.message import PROPERTY_KEYS, PROPERTY_UNIQ_KEY
from hastore.store.index.service import IndexService
from hastore.store.record import message_codec
from tests.support.store.index_stores import CheckpointStandIn, fake_service, query_index

STORES = ("clean", "propcrc", "replica", "replica_master", "crashed")


def manifest(golden, name):
    stem = f"{name}.recovered" if name.startswith("crashed") else name
    return json.loads((golden / f"{stem}.manifest.json").read_text())


def put_log(service, golden, name, *, commit_every=1):
    """Index a golden log as a dispatcher does."""
    log = b"".join(file.read_bytes() for file in sorted((golden / name / "commitlog").iterdir()))
    for number, row in enumerate(manifest(golden, name)["records"]):
        if row["type"] != "MSG":
            continue
        stored = message_codec.decode(log, row["physicalOffset"])
        if row["sysFlag"] & 0xC == 0xC:
            service.record_seen(stored.physic_offset, stored.physic_offset)
            continue
        keys = [stored.properties.get(PROPERTY_UNIQ_KEY, "")]
        keys += stored.properties.get(PROPERTY_KEYS, "").split(" ")
        keys = [key for key in keys if key]
        if keys:
            service.put(stored.topic, keys, stored.physic_offset, stored.store_timestamp_ms)
        service.record_seen(stored.physic_offset, stored.physic_offset)
        if number % commit_every == 0:
            service.commit()


@pytest.mark.parametrize("commit_every", [1, 50])
@pytest.mark.parametrize("name", STORES)
def test_a_rebuilt_index_equals_rocketmqs(golden, name, commit_every):
    """Header, slots, entries and unused space are equal, however often the index commits."""
    service = fake_service(slots=200, entries=400)
    put_log(service, golden, name, commit_every=commit_every)
    disk = service.env.disk
    service.close()
    built = list(disk.files("/d/index/").values())
    assert built == [file.read_bytes() for file in sorted((golden / name / "index").iterdir())]
    assert all(len(file) == 17 and file.isdecimal() for file in disk.files("/d/index/"))


def config(path):
    return StoreConfig(data_dir=str(path), max_hash_slot_num=200, max_index_num=400)


@pytest.mark.parametrize("name", STORES)
def test_queries_of_rocketmqs_index_return_its_answers(golden, golden_copy, name):
    """Answers are newest first; the test drops those of other keys with the same hash."""
    path = golden_copy(name)
    service = IndexService.load(
        real_env(), str(path), config(path), CheckpointStandIn(2**60), last_exit_ok=True
    )
    texts = {
        row["physicalOffset"]: (row["topic"], [row["uniqKey"], *(row["keys"] or "").split(" ")])
        for row in manifest(golden, name)["records"]
        if row["type"] == "MSG"
    }
    for query in manifest(golden, name)["keyQueries"]:
        found = query_index(service, query["topic"], query["key"])
        assert found == sorted(found, reverse=True)
        matching = [
            offset
            for offset in found
            if texts[offset][0] == query["topic"] and query["key"] in texts[offset][1]
        ]
        assert sorted(matching) == sorted(query["physicalOffsets"])
    service.close()


def test_every_key_of_a_golden_log_is_found_at_its_time(golden, golden_copy):
    """Each UNIQ_KEY and each part of KEYS is looked up in the millisecond of its store time."""
    path = golden_copy("clean")
    service = IndexService.load(
        real_env(), str(path), config(path), CheckpointStandIn(0), last_exit_ok=True
    )
    asked = 0
    for row in manifest(golden, "clean")["records"]:
        if row["type"] != "MSG" or row["sysFlag"] & 0xC == 0xC:
            continue
        for key in [row["uniqKey"], *(row["keys"] or "").split(" ")]:
            if key:
                at = row["storeTimestamp"]
                found = query_index(service, row["topic"], key, begin_ms=at, end_ms=at)
                assert row["physicalOffset"] in found
                asked += 1
    assert asked > 300
    service.close()


@pytest.mark.parametrize("name", ["clean", "replica", "propcrc"])
def test_a_clean_index_is_opened_and_closed_without_a_change(golden_copy, name):
    """No record needs to be dispatched again."""
    path = golden_copy(name)
    before = {file.name: file.read_bytes() for file in (path / "index").iterdir()}
    service = IndexService.load(
        real_env(), str(path), config(path), CheckpointStandIn(0), last_exit_ok=True
    )
    assert service.redispatch_from() is None
    service.commit()
    assert service.dirty_files() == []
    service.close()
    assert {file.name: file.read_bytes() for file in (path / "index").iterdir()} == before


def test_a_killed_rocketmqs_index_is_rebuilt(golden, golden_copy):
    """The file that was not flushed is discarded, and its records are put again."""
    path = golden_copy("crashed")
    checkpoint = CheckpointStandIn(
        int.from_bytes((path / "checkpoint").read_bytes()[16:24], "big", signed=True)
    )
    service = IndexService.load(real_env(), str(path), config(path), checkpoint, last_exit_ok=False)
    assert service.redispatch_from() == 201_962
    put_log(service, golden, "crashed")
    service.close()
    assert [file.read_bytes() for file in sorted((path / "index").iterdir())] == [
        file.read_bytes() for file in sorted((golden / "crashed" / "index").iterdir())
    ]
