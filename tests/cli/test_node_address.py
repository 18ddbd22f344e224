"""How a node is found by its directory, and whether its process runs."""

import os
import subprocess
import sys

from hastore_cli.node.address import running_pid


def test_zombie_process_does_not_count_as_running():
    """A killed node is gone even before its parent has waited for it."""
    assert running_pid(os.getpid()) == os.getpid()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert running_pid(process.pid) == process.pid
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert running_pid(process.pid) is None
