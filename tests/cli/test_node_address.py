"""How a node is found by its directory, and whether its process runs."""

import os
import subprocess
import sys

import attrs
import pytest
import trio
import trio.testing

from hastore.env.real import RealDisk, real_env
from hastore.errors import UnreachableError
from hastore_cli.node.address import resolve_address, running_pid
from hastore_cli.node.file import NODE_FILE, SCHEMA, NodeFile, read_node_file, remove_node_file
from hastore_cli.node.runner import NODE_FILE_RETRY_S, NodeFileKeeper
from tests.support.env.fake_env import fake_env
from tests.support.env.scripted_disk import ScriptedDisk, disk_full
from tests.support.waiting import eventually

BEGIN = f'{{"schema": "{SCHEMA}", "role": "SLAVE", '.encode()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"schema": "another/1"}',
        BEGIN + b'"address": "127.0.0.1:1"}',  # without a pid
        BEGIN + b'"pid": null}',
        BEGIN + b'"pid": 1, "address": 5}',
        BEGIN + b'"pid": 1, "address": "here"}',
    ],
)
def test_node_file_with_other_content_is_not_a_node(tmp_path, content):
    """It counts as none, and looking for the node's address fails with an error that says why."""
    (tmp_path / NODE_FILE).write_bytes(content)
    assert read_node_file(tmp_path) is None
    with pytest.raises(UnreachableError, match=NODE_FILE):
        resolve_address(str(tmp_path))
    remove_node_file(real_env(), str(tmp_path))
    assert (tmp_path / NODE_FILE).read_bytes() == content


def test_zombie_process_does_not_count_as_running():
    """A killed node is gone even before its parent has waited for it."""
    assert running_pid(os.getpid()) == os.getpid()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert running_pid(process.pid) == process.pid
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert running_pid(process.pid) is None


async def test_node_file_is_written_once_the_disk_takes_it(tmp_path, autojump_clock, nursery):
    """A node that starts on a full disk may free room itself, and is found by its directory."""
    disk = ScriptedDisk(RealDisk())
    env = fake_env(disk=disk)
    disk.fail("write_file", disk_full(), times=2)
    node_file = NodeFile(
        pid=1, role="SLAVE", address=("127.0.0.1", 1), ha_address=None, metrics_address=None
    )
    began = trio.current_time()
    keeper = NodeFileKeeper(env, str(tmp_path), lambda: node_file)
    await keeper.write()
    nursery.start_soon(keeper.run)
    assert read_node_file(tmp_path) is None
    while read_node_file(tmp_path) is None:
        await trio.sleep(NODE_FILE_RETRY_S / 10)
    assert trio.current_time() - began == pytest.approx(2 * NODE_FILE_RETRY_S)
    assert read_node_file(tmp_path) == node_file


async def test_node_file_follows_the_role(tmp_path, autojump_clock, nursery):
    """Commands that find a node by its directory see what it is now."""
    node_file = NodeFile(pid=1, role="SLAVE", address=("127.0.0.1", 1), ha_address=("127.0.0.1", 2))
    written = [node_file]
    keeper = NodeFileKeeper(real_env(), str(tmp_path), lambda: written[-1])
    await keeper.write()
    nursery.start_soon(keeper.run)
    await trio.testing.wait_all_tasks_blocked()
    written.append(attrs.evolve(node_file, role="SYNC_MASTER"))
    assert read_node_file(tmp_path).role == "SLAVE"
    keeper.role_changed(None)
    await eventually(lambda: read_node_file(tmp_path).role == "SYNC_MASTER")
