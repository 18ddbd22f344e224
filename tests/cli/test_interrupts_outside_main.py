"""Ctrl-C before the command line is parsed, and after the command has finished."""

import signal
import subprocess
import sys

import pytest

from tests.support.commands.running import environment

PROGRAM = """
import atexit, os, runpy, signal, sys

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

class AtImport:
    def find_spec(self, name, path, target=None):
        if name == "rich_click":
            interrupt()

if sys.argv.pop() == "before":
    sys.meta_path.insert(0, AtImport())
else:
    atexit.register(interrupt)
runpy.run_module("hastore_cli", run_name="__main__", alter_sys=True)
"""


def run(when, **how):
    """Run `hastore --version`, which gets a SIGINT before or after main()."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, "--version", when],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        **how,
    )


@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_outside_main_prints_no_traceback(when):
    """The process dies of the signal, as other tools do."""
    done = run(when)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    assert done.stdout.startswith("hastore ") == (when == "after")


@pytest.mark.parametrize("when", ["before", "after"])
def test_ignored_ctrl_c_stays_ignored(when):
    """A shell starts background jobs this way."""
    done = run(when, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert (done.returncode, done.stderr) == (0, "")
