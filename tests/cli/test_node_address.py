"""How a node is found by its directory, and whether its process runs."""

import os
import subprocess
import sys

import attrs
import pytest
import trio
import trio.testing

from hastore.env.real import RealDisk, lock_holder, real_env
from hastore.errors import StoreLockedError, UnreachableError
from hastore.store.store_lock import LOCK_FILE
from hastore_cli.node.address import find_node
from hastore_cli.node.file import (
    NODE_FILE,
    SCHEMA,
    NodeDownError,
    NodeFile,
    OtherNodeError,
    check_answer,
    read_node_file,
    remove_node_file,
    write_node_file,
)
from hastore_cli.node.options import node_asked
from hastore_cli.node.runner import NODE_FILE_RETRY_S, NodeFileKeeper
from tests.cli.live_node import master_with
from tests.support.commands.in_process import hastore_here
from tests.support.env.fake_env import fake_env
from tests.support.env.scripted_disk import ScriptedDisk, disk_full
from tests.support.nodes.statuses import MASTER
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
        find_node(str(tmp_path))
    remove_node_file(real_env(), str(tmp_path))
    assert (tmp_path / NODE_FILE).read_bytes() == content


LOCKS = """
import sys
from hastore.env.real import RealDisk
lock = RealDisk().lock(sys.argv[1])
print("locked", flush=True)
input()
"""


def test_a_killed_process_holds_no_lock(tmp_path):
    """It is gone even before its parent has waited for it; asking takes nothing from the holder."""
    path = str(tmp_path / LOCK_FILE)
    assert lock_holder(path) is None
    command = [sys.executable, "-c", LOCKS, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"locked\n"
        assert lock_holder(path).pid == process.pid
        with pytest.raises(StoreLockedError):
            RealDisk().lock(path)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert lock_holder(path) is None
    lock = RealDisk().lock(path)
    assert lock_holder(path).pid == os.getpid()
    command = [sys.executable, "-c", LOCKS, path]
    assert b"StoreLockedError" in subprocess.run(command, capture_output=True, check=False).stderr
    lock.release()
    assert lock_holder(path) is None


def test_a_node_file_counts_only_while_a_process_has_the_directory_open(tmp_path):
    """A killed node leaves its file, and another node may listen at its address by then."""
    node_file = NodeFile(
        pid=1, start_id="a", role="SLAVE", address=("127.0.0.1", 1), ha_address=None
    )
    write_node_file(real_env(), str(tmp_path), node_file)
    with pytest.raises(NodeDownError, match="no process holds its lock file"):
        find_node(str(tmp_path))
    lock = RealDisk().lock(str(tmp_path / LOCK_FILE))
    found = find_node(str(tmp_path))
    assert (found.address, found.node_file) == (node_file.address, node_file)
    lock.release()


@pytest.mark.parametrize(
    ("start_id", "answered", "is_same"),
    [
        ("a", {"start_id": "a"}, True),
        ("a", {"start_id": "b"}, False),  # with the same process id, as in two containers
        ("a", {"start_id": None}, False),  # an older version did not write this file
        (None, {"start_id": None}, True),
        (None, {"start_id": "b"}, True),
        (None, {"start_id": None, "process_id": 2}, False),
    ],
)
def test_the_node_that_answers_must_have_written_the_node_file(
    tmp_path, start_id, answered, is_same
):
    """An older version's file has only the process id."""
    node_file = NodeFile(pid=1, start_id=start_id, role="SLAVE", address=None, ha_address=None)
    status = attrs.evolve(MASTER, **{"process_id": 1, **answered})
    if is_same:
        check_answer(node_file, tmp_path, status)
    else:
        with pytest.raises(OtherNodeError, match=f"is not that of {tmp_path}"):
            check_answer(node_file, tmp_path, status)


def test_a_node_file_of_another_start_is_not_removed(tmp_path):
    """Two containers on one directory: the second is refused, and its process has the same id."""
    env = real_env()
    for start_id, stays in (("another", True), (env.start_id, False)):
        node_file = NodeFile(
            pid=env.process_id, start_id=start_id, role="SLAVE", address=None, ha_address=None
        )
        write_node_file(env, str(tmp_path), node_file)
        remove_node_file(env, str(tmp_path))
        assert (tmp_path / NODE_FILE).exists() is stays


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


# -- the node that a command asks without a name ---------------------------------------------------


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """A master on free ports."""
    with master_with(tmp_path_factory.mktemp("asked") / "D1") as node:
        yield node


ASKING = (
    ("status",),
    ("check",),
    ("doctor",),
    ("topic", "list"),
)


def is_asked(*arguments, cwd, **variables):
    """Return whether a node answered in a directory and with these variables only."""
    done = hastore_here(*arguments, cwd=cwd, XDG_CONFIG_HOME="/nowhere", **variables)
    said = done.stdout + done.stderr
    return "cannot connect" not in said and "no node runs" not in said


@pytest.mark.parametrize("command", ASKING, ids=lambda command: command[0])
def test_a_command_asks_the_node_of_its_directory_or_configuration(running, tmp_path, command):
    """``-c``, ``HASTORE_CONFIG``, ./hastore.toml, variables, or a store as current directory."""
    file = tmp_path / "node.toml"
    file.write_text(f'[node]\ndata = "{running.data}"\n')
    assert not is_asked(*command, cwd=tmp_path)
    assert is_asked(*command, "-c", str(file), cwd=tmp_path)
    assert is_asked(*command, cwd=tmp_path, HASTORE_CONFIG=str(file))
    address = running.info["address"]
    (tmp_path / "hastore.toml").write_text(f'[listen]\nclient = "{address}"\n')
    assert is_asked(*command, cwd=tmp_path)
    (tmp_path / "hastore.toml").unlink()
    assert is_asked(*command, cwd=tmp_path, HASTORE_NODE_DATA=str(running.data))
    assert is_asked(*command, cwd=running.data)


def test_which_node_is_asked_of_several(running, tmp_path):
    """A name, then -c, then HASTORE_ADDR, then the directory, then the configuration."""
    file, nobody = tmp_path / "node.toml", "127.0.0.1:1"
    file.write_text(f'[listen]\nclient = "{running.info["address"]}"\n')
    to_nobody = {"cwd": tmp_path, "HASTORE_ADDR": nobody}
    assert not is_asked("check", **to_nobody)
    assert is_asked("check", "-c", str(file), **to_nobody)
    assert not is_asked("check", "-c", str(file), nobody, **to_nobody)
    assert is_asked("topic", "list", "-c", str(file), **to_nobody)
    assert not is_asked("topic", "list", "--addr", nobody, "-c", str(file), **to_nobody)
    configured = {"HASTORE_LISTEN_CLIENT": nobody}
    assert not is_asked("check", cwd=tmp_path, **configured)
    assert is_asked("check", cwd=tmp_path, HASTORE_ADDR=str(running.data), **configured)
    assert is_asked("check", cwd=running.data, **configured)
    assert not is_asked("check", cwd=running.data, HASTORE_ADDR=nobody)


def test_the_node_of_a_configuration_is_asked_where_it_can_be_reached(tmp_path, monkeypatch):
    """A node that listens at every address is asked at loopback; a stopped one is named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HASTORE_LISTEN_CLIENT", "0.0.0.0:10921")
    assert node_asked() == "127.0.0.1:10921"
    monkeypatch.setenv("HASTORE_LISTEN_CLIENT", "[::]:10921")
    monkeypatch.setenv("HASTORE_NODE_DATA", str(tmp_path / "on another machine"))
    assert node_asked() == "[::1]:10921"
    (tmp_path / "commitlog").mkdir()
    done = hastore_here("status", cwd=tmp_path)
    assert done.returncode == 3
    assert f"no node runs on {tmp_path}" in done.stderr
