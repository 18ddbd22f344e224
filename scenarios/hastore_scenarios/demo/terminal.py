"""Runs a command on a pseudo-terminal of a given width; replaces letters on ASCII terminals.

The command's stdout is the pseudo-terminal; stderr is a pipe, so that there is no progress bar, and
is appended.
"""

from __future__ import annotations

import codecs
import fcntl
import io
import os
import struct
import subprocess
import termios
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import TextIO

_ROWS: Final = 1_000
_READ_SIZE: Final = 64 * 1024
_IN_ASCII: Final = {
    "✓": "ok",
    "✗": "x",
    "—": "-",
    "–": "-",
    "…": "...",
    "·": "-",
    "→": "->",
    "≥": ">=",
    "≤": "<=",
    "µ": "u",
    "\N{NO-BREAK SPACE}": " ",
    "\N{NARROW NO-BREAK SPACE}": " ",
}


async def run_on_terminal(
    command: Sequence[str], environment: Mapping[str, str], *, cwd: Path, width: int
) -> tuple[int, str]:
    """Run a command in ``cwd``; return its exit code and its output with colours."""
    master, slave = os.openpty()
    try:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", _ROWS, width, 0, 0))
        modes = termios.tcgetattr(slave)
        modes[1] &= ~termios.OPOST  # lines end in a newline alone
        termios.tcsetattr(slave, termios.TCSANOW, modes)
    except BaseException:
        os.close(master)
        os.close(slave)
        raise
    chunks: list[bytes] = []
    async with trio.lowlevel.FdStream(master) as stream, trio.open_nursery() as nursery:
        try:
            nursery.start_soon(_drain, stream, chunks)
            process = await trio.run_process(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=slave,
                capture_stderr=True,
                check=False,
                cwd=cwd,
                env={
                    **environment,
                    "COLUMNS": str(width),
                    "PYTHONIOENCODING": "utf-8",
                    "TERM": environment.get("TERM") or "xterm",
                },
            )
        finally:
            os.close(slave)
    printed = b"".join(chunks) + process.stderr
    return process.returncode, printed.decode(errors="replace")


async def _drain(stream: trio.lowlevel.FdStream, chunks: list[bytes]) -> None:
    """Read until the other side is closed, which the kernel reports as an error (EIO)."""
    while True:
        try:
            data = await stream.receive_some(_READ_SIZE)
        except trio.BrokenResourceError:
            return
        if not data:
            return
        chunks.append(data)


def speak_ascii(stream: TextIO) -> None:
    """Let a stream replace letters that its encoding lacks, instead of raising an error."""
    codecs.register_error("hastore-in-ascii", _in_ascii)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="hastore-in-ascii")


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    assert isinstance(error, UnicodeEncodeError)
    letters = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(letter, "?") for letter in letters), error.end


def grouped(number: int) -> str:
    """Return ``1 073 921`` for 1073921, as the commands print and accept numbers."""
    return f"{number:,}".replace(",", " ")
