"""`hastore …` on a terminal of a given size: a real pty, read until the command ends."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

from tests.support.commands.running import WITHIN_S, command, environment
from tests.support.planted_secrets import check_text


def on_a_terminal(
    *arguments, columns=80, lines=24, cwd=None, stdin=None, stdout=None, until=None, **extra
):
    """Run a command; return its exit code and the lines that it printed, including stderr.

    ``stdin``: bytes to send through a pipe; ``stdout``: a file; by default both are the terminal.
    ``until``: called with all output so far; once it returns true, the command gets a SIGINT.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    settings = {"TERM": "xterm", "NO_COLOR": "1", **extra}
    with subprocess.Popen(
        command(*arguments),
        stdin=theirs if stdin is None else subprocess.PIPE,
        stdout=theirs if stdout is None else stdout,
        stderr=theirs,
        env={**_without_size(), **settings},
        cwd=cwd,
    ) as process:
        os.close(theirs)
        if stdin is not None:
            process.stdin.write(stdin)
            process.stdin.close()
        shown = b""
        deadline = time.monotonic() + WITHIN_S
        try:
            while chunk := read_from(ours, deadline):
                shown += chunk
                if until is not None and until(shown.decode(errors="replace")):
                    until = None
                    process.send_signal(signal.SIGINT)
        finally:
            process.kill()
            os.close(ours)
    check_text(shown, f"the output of {arguments} on a terminal")
    return process.returncode, shown.decode("utf-8", "surrogateescape").splitlines()


def plain(line):
    """Remove the escape sequences that move the cursor or set colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).rstrip()


def _without_size():
    """The environment without COLUMNS and LINES, so that only the pty's size counts."""
    return {n: v for n, v in environment().items() if n not in {"COLUMNS", "LINES"}}


def read_from(descriptor, deadline):
    """Read the next output; return no bytes once the other side is closed."""
    readable, _, _ = select.select([descriptor], [], [], deadline - time.monotonic())
    assert readable, "the command stopped printing but did not end"
    try:
        return os.read(descriptor, 65_536)
    except OSError:
        return b""
