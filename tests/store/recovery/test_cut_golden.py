"""RocketMQ's own failovers: the former master's directory is cut where RocketMQ cut it."""

import json
import subprocess

import pytest

from hastore.config import StoreConfig
from hastore.env.real import real_env
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.message_store import MessageStore
from hastore.store.recovery.cut import cut_store
from hastore.store.store_lock import StoreLock
from hastore.store.tools.log_directory import find_log
from hastore.store.tools.log_verify import verify_log
from tests.store.whole_store import config_of, dispatch
from tests.support.store.open_log import STORE_HOST, append_data, flush

FAILOVERS = ("failover", "failover_crash")


def unpacked(archive, to):
    """Unpack a recorded store; return its directory."""
    to.mkdir()
    subprocess.run(["tar", "-xSJf", archive, "-C", to], check=True)
    (root,) = to.iterdir()
    return root


def log_of(root):
    return b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))


def queue_of(root, queue):
    return b"".join(p.read_bytes() for p in sorted((root / "consumequeue" / queue).iterdir()))


async def follow(root, data):
    """Append a master's bytes to a slave's directory, and stop cleanly."""
    env, config = real_env(), config_of(root)
    store = MessageStore.open(env, config, store_host=STORE_HOST, needs_queue_offsets=False)
    log = store.commit_log
    while log.max_offset < len(data):
        offset = log.max_offset
        append_data(log, offset, data[offset : offset + 65_536 - offset % 65_536])
    service = await dispatch(env, store)
    flush(log)
    store.redispatched_to = service.reput_offset
    store.checkpoint.flushed_offset = log.flushed_offset
    store.close(clean=True)


@pytest.mark.parametrize("opens_first", [False, True], ids=["untouched", "opened"])
@pytest.mark.parametrize("name", FAILOVERS)
async def test_former_master_ends_with_its_successors_bytes(
    recorded_golden, tmp_path, name, opens_first
):
    """Log, units and epochs; RocketMQ's own former master had stale units after a restart."""
    recording = recorded_golden / "autoswitch" / name
    point = json.loads((recording / "manifest.json").read_text())["consistent_point"]
    root = unpacked(recording / "oldmaster_before.tar.xz", tmp_path / "old")
    successor = unpacked(recording / "newmaster_after.tar.xz", tmp_path / "new")
    ends = json.loads((recording / "newmaster_after.records.json").read_text())
    if opens_first:
        await follow(root, b"")
    image, env = log_of(root), real_env()
    lock = StoreLock.take(env.disk, str(root))
    done = cut_store(env, StoreConfig(data_dir=str(root)), lock, point, reason="epoch 2 at 47859")
    lock.release(clean=False)
    assert (done.physic_offset, [span.epoch for span in done.epochs]) == (point, [1])
    saved = b"".join((root / path).read_bytes() for path in done.saved_paths)
    assert saved == image[point : done.end_offset]
    assert log_of(root).rstrip(b"\0") == image[:point]
    wanted = log_of(successor)[: ends["maxOffset"]]
    await follow(root, wanted)
    assert log_of(root).rstrip(b"\0") == wanted.rstrip(b"\0")
    for queue, (_, end) in ends["queues"].items():
        assert (
            queue_of(root, queue).rstrip(b"\0")[: 20 * end]
            == queue_of(successor, queue).rstrip(b"\0")[: 20 * end]
        )
        assert not queue_of(root, queue)[20 * end :].strip(b"\0")
    assert not (root / "consumequeue/TA/0").exists() or not list(
        (root / "consumequeue/TA/0").iterdir()
    )
    assert verify_log(env.disk, find_log(env.disk, str(root))).is_whole
    assert len(EpochFile(env.disk, f"{root}/{EPOCH_FILE}").load()) == 1  # the link adds epoch 2
