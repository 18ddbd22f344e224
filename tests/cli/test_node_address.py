"""How a node is found by its directory, and whether its process runs."""

import os
import subprocess
import sys

import pytest

from hastore.env.real import real_env
from hastore.errors import UnreachableError
from hastore_cli.node.address import resolve_address, running_pid
from hastore_cli.node.file import NODE_FILE, SCHEMA, read_node_file, remove_node_file

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
