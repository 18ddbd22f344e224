"""A node whose files are removed, renamed, replaced or mounted over stops as after a failed sync.

The node runs in the test's process, on real files.
"""

import contextlib

import pytest
import trio

import hastore
from hastore.errors import EpochFileError, FileLostError
from hastore.status import BrokerRole, FlushDiskType
from hastore.status import PutMessageStatus as Status
from hastore.store.log.mapped_file_queue import file_name
from tests.patience import WITHIN_S
from tests.support.env.fake_env import RealFiles
from tests.support.lost_files import WAYS, lost
from tests.support.nodes.group_nodes import node_config, promote, put
from tests.support.nodes.harness import FILE_SIZE, master_config, messages, slave_config
from tests.support.waiting import eventually

SYNC, ASYNC = FlushDiskType.SYNC_FLUSH, FlushDiskType.ASYNC_FLUSH
LOG, LOG_FILE = "commitlog", f"commitlog/{file_name(0)}"
DERIVED = ["consumequeue", "index", "config", "config/topics.json", "checkpoint"]
OF_THE_DIRECTORY = [".", "lock", "abort"]
EPOCHS = ["epochFileCheckpoint", "identity.json", "sync_state_set.json"]


def store(flush):
    return {"flush_disk_type": flush, "flush_interval_ms": 10, "max_index_num": 1_000}


def cases(names, is_in_full):
    """Return names, ways and flush types; most of the combinations only in the soak."""
    return [
        pytest.param(
            name,
            way,
            flush,
            marks=[]
            if flush is ASYNC and (way == "removed" or is_in_full(name))
            else pytest.mark.soak,
        )
        for name in names
        for way in WAYS
        for flush in (ASYNC, SYNC)
    ]


def master(path, flush, env=None):
    """Return a master with a client port, whose tables are on disk once it has a topic."""
    config = master_config(
        path,
        role=BrokerRole.ASYNC_MASTER,
        listen=("127.0.0.1", 0),
        store={**store(flush), "max_hash_slot_num": 100},
    )
    return hastore.open_master(config, env=env)


async def fill(node, path):
    """Put some messages of one queue, and wait until all files are there and watched."""
    for _ in range(4):
        assert (await node.put(messages(1)[0])).ok
    names = [LOG_FILE, *DERIVED]
    await eventually(lambda: all(is_watched(node, path / name) for name in names), str(names))


def is_watched(node, path):
    """Whether the node knows which file is to be at a name."""
    disk = node.env.disk
    return str(path) in disk._held or str(path) in disk._open


@contextlib.contextmanager
def stops(name):
    """The block's node stops, and the error names what was lost."""
    with pytest.raises(FileLostError) as error:
        yield
    assert name.rpartition("/")[2].removesuffix(".") in error.value.path
    assert "while this node had it open" in str(error.value)
    assert error.value.hint is not None


async def never():
    """Wait for the node's error, which cancels the wait."""
    await trio.sleep(WITHIN_S)
    pytest.fail("the node goes on")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [LOG, LOG_FILE])
async def test_sync_flush_acknowledges_nothing_in_a_lost_log(tmp_path, name, way):
    """The next sync finds it: the put is UNKNOWN_ERROR, later ones are refused."""
    statuses = []
    with stops("0" * 20):
        async with master(tmp_path, SYNC) as node:
            await fill(node, tmp_path)
            with lost(tmp_path / name, way), trio.CancelScope(shield=True):
                statuses = [(await node.put(messages(1)[0])).status for _ in range(3)]
            await never()
    assert statuses == [Status.UNKNOWN_ERROR, *[Status.SERVICE_NOT_AVAILABLE] * 2]


@pytest.mark.parametrize("name", [LOG, LOG_FILE, *DERIVED, *OF_THE_DIRECTORY])
async def test_an_idle_node_finds_a_loss_within_a_second(tmp_path, name, autojump_clock):
    """Nothing is written, and nothing of the node's own time has to pass."""
    times = []
    with stops(name):
        async with master(tmp_path, ASYNC, RealFiles().env) as node:
            await fill(node, tmp_path)
            await trio.sleep(30)
            times.append(trio.current_time())
            try:
                with lost(tmp_path / name, "renamed"):
                    await trio.sleep(30)
            finally:
                times.append(trio.current_time())
    assert times[1] - times[0] <= 1.0


@pytest.mark.parametrize(("name", "way", "flush"), cases([LOG, *DERIVED], lambda name: name == LOG))
async def test_a_master_stops(tmp_path, name, way, flush):
    """While it takes puts; the directory keeps the mark of an unclean stop."""
    statuses = []
    with stops(""), contextlib.ExitStack() as changes:
        async with master(tmp_path, flush) as node:
            await fill(node, tmp_path)
            changes.enter_context(lost(tmp_path / name, way))
            with trio.fail_after(WITHIN_S):
                while statuses[-1:] != [Status.SERVICE_NOT_AVAILABLE]:
                    with trio.CancelScope(shield=True):
                        statuses.append((await node.put(messages(1)[0])).status)
                    await trio.sleep(0.01)
            await never()
    assert (tmp_path / "abort").exists()


@pytest.mark.parametrize(
    ("name", "way", "flush"), cases([LOG, "consumequeue", "checkpoint"], lambda name: name == LOG)
)
async def test_a_slave_stops(tmp_path, name, way, flush):
    """Its master continues, and the slave has acknowledged nothing since."""
    async with master(tmp_path / "a", ASYNC) as first:
        assert (await first.put(messages(1)[0])).ok
        with stops(""), contextlib.ExitStack() as changes:
            config = slave_config(tmp_path / "b", first.ha_address, store=store(flush))
            async with hastore.open_slave(config) as slave:
                await eventually(lambda: slave.max_offset == first.max_offset)
                await eventually(lambda: is_watched(slave, tmp_path / "b" / name))
                changes.enter_context(lost(tmp_path / "b" / name, way))
                with trio.fail_after(WITHIN_S):
                    while True:
                        assert (await first.put(messages(1)[0])).ok
                        await trio.sleep(0.01)
        assert (await first.put(messages(1)[0])).ok


@pytest.mark.parametrize(
    ("name", "way", "is_master"),
    [
        pytest.param(name, way, is_master, marks=[] if way == "removed" else pytest.mark.soak)
        for name in EPOCHS
        for way in WAYS
        for is_master in (True, False)
        if is_master or name != "sync_state_set.json"
    ],
)
async def test_a_node_of_a_group_stops(tmp_path, name, way, is_master):
    """Its epochs, its identity, and as a master the set that it has written."""
    paths = [tmp_path / "1", tmp_path / "2"]
    with stops(name), contextlib.ExitStack() as changes:
        async with (
            hastore.open_node(node_config(paths[not is_master], 1, (1, 2))) as one,
            hastore.open_node(node_config(paths[is_master], 2, (1, 2))) as two,
        ):
            serving = await promote(one, two)
            assert await put(serving) is Status.PUT_OK
            path = paths[0] / name
            await eventually(lambda: is_watched(one if is_master else two, path))
            changes.enter_context(lost(path, way))
            await never()


async def test_a_removed_mark_of_an_unclean_stop_is_written_again(tmp_path):
    """The next start must not take this stop for a clean one."""
    with stops("abort"):
        async with master(tmp_path, ASYNC) as node:
            await fill(node, tmp_path)
            (tmp_path / "abort").unlink()
            await never()
    assert (tmp_path / "abort").exists()


@pytest.mark.parametrize("name", [LOG, LOG_FILE, *DERIVED, *OF_THE_DIRECTORY])
async def test_a_stop_just_after_a_loss_is_not_clean(tmp_path, name):
    """It looks at all names before it removes the mark of an unclean stop."""
    path = tmp_path / "a"
    with stops("a" if name == "." else name):
        async with master(path, ASYNC) as node:
            await fill(node, path)
            with lost(path / name if name != "." else path, "renamed"):
                node.stop()
                await never()
    there = tmp_path / "a.aside" if name == "." else path
    assert (there / ("abort.aside" if name == "abort" else "abort")).exists()


async def test_a_slaves_stop_just_after_a_loss_is_not_clean(tmp_path):
    """In a group such a stop would prove that it has all that it acknowledged."""
    async with master(tmp_path / "a", ASYNC) as first:
        assert (await first.put(messages(1)[0])).ok
        with stops(LOG):
            config = slave_config(tmp_path / "b", first.ha_address, store=store(ASYNC))
            async with hastore.open_slave(config) as slave:
                await eventually(lambda: slave.max_offset == first.max_offset)
                await eventually(lambda: is_watched(slave, tmp_path / "b" / LOG))
                with lost(tmp_path / "b" / LOG, "renamed"):
                    slave.stop()
                    await never()
    assert (tmp_path / "b" / "abort").exists()


async def test_nothing_is_written_into_a_directory_of_others(tmp_path):
    """The node's directory was replaced by an empty one."""
    path = tmp_path / "a"
    with stops("a"):
        async with master(path, ASYNC) as node:
            await fill(node, path)
            path.rename(tmp_path / "b")
            path.mkdir()
            await never()
    assert not [*path.iterdir()]


async def test_roles_and_cuts_are_no_loss(tmp_path):
    """Each change of role closes and opens the files; tables, epochs and identity are replaced."""
    async with (
        hastore.open_node(node_config(tmp_path / "1", 1, (1, 2))) as one,
        hastore.open_node(node_config(tmp_path / "2", 2, (1, 2))) as two,
    ):
        for _ in range(2):
            for first, other in ((one, two), (two, one)):
                serving = await promote(first, other)
                for _ in range(3):
                    assert await put(serving) is Status.PUT_OK
                await trio.sleep(1.0)  # a check of all names


async def test_expiry_and_rolls_are_no_loss(tmp_path):
    """The log goes through several files, of which the first are deleted."""
    async with master(tmp_path, SYNC) as node:
        while len(node.commit_log.mapped_file_queue.files) < 4:
            assert (await node.put(messages(1, size=FILE_SIZE // 8)[0])).ok
        queue = node.commit_log.mapped_file_queue
        first = queue.take_first()
        await node.env.offload.run(lambda: node.env.disk.remove(first.path))
        first.close()
        await trio.sleep(1.0)  # a check of all names
        assert (await node.put(messages(1)[0])).ok


async def test_a_log_without_its_epochs_gets_no_new_one(tmp_path):
    """As a master the node would refuse intact replicas as another group's."""
    config = node_config(tmp_path, 1, (1,))
    async with hastore.open_node(config) as node:
        assert await put(await node.become_master()) is Status.PUT_OK
    (tmp_path / "epochFileCheckpoint").unlink()
    async with hastore.open_node(config) as node:
        with pytest.raises(EpochFileError, match="epochFileCheckpoint is missing, and the log has"):
            await node.become_master()
    assert not (tmp_path / "epochFileCheckpoint").exists()
