"""The demo's messages: lines of a file, of this repository's history, or of its own source code.

Read as bytes, one message a line, without blank lines.  The demo should take a minute on any text,
so there are limits, and ``cut_note`` says what they left out.  A file that never ends (a device, a
pipe) is read up to READ_MAX.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from pathlib import Path
from typing import BinaryIO, Final

import attrs

from hastore.errors import ConfigError
from hastore_scenarios.demo.terminal import grouped

LINES_MAX: Final = 20_000
BYTES_MAX: Final = 16 * 1024 * 1024
LINE_SIZE_MAX: Final = 64 * 1024
READ_MAX: Final = 256 * 1024 * 1024  # bytes read to count the lines

_HINT: Final = "name a file of lines, or none: then the demo sends this repository's history"
_PACKAGE: Final = Path(__file__).resolve().parents[1]  # hastore_scenarios
_ROOT: Final = _PACKAGE.parents[1]  # the clone, if this is one


@attrs.frozen(kw_only=True)
class DemoInput:
    """The lines to send, and how many there were.

    ``lines_total``: those of the text, as far as it was read; ``is_whole`` if to its end.
    ``shortened``: lines longer than LINE_SIZE_MAX, of which only the beginning is sent.
    """

    source: str
    lines: tuple[bytes, ...]
    lines_total: int
    is_whole: bool
    shortened: int

    @property
    def cut_note(self) -> str | None:
        """A sentence on what is not sent, and why; None if everything is."""
        notes = []
        sent = len(self.lines)
        if sent < self.lines_total:
            least = "" if self.is_whole else "more than "
            notes.append(
                f"{grouped(sent)} of {least}{grouped(self.lines_total)} lines of {self.source} are"
                f" sent: the demo takes the first {grouped(LINES_MAX)} lines or {_mib(BYTES_MAX)},"
                " to be over in a minute"
            )
        elif not self.is_whole:
            notes.append(f"{self.source} is read up to {_mib(READ_MAX)}, to be over in a minute")
        if self.shortened:
            many = "1 line" if self.shortened == 1 else f"{grouped(self.shortened)} lines"
            notes.append(
                f"{many} longer than {LINE_SIZE_MAX // 1024} KiB: only the beginning is sent"
            )
        return "; ".join(notes) or None

    @property
    def text(self) -> bytes:
        """All lines, as the bytes of a file."""
        return b"".join(line + b"\n" for line in self.lines)


def read_input(file: str | None) -> DemoInput:
    """Read a file or, without one, hastore's own history or source.

    Raises ConfigError if there is nothing to send.
    """
    if file is None:
        return _own_text()
    try:
        with Path(file).expanduser().open("rb") as stream:
            return _take(file, stream)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", hint=_HINT) from error


def _own_text() -> DemoInput:
    if (_ROOT / ".git").exists():
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            git = subprocess.run(
                ["git", "log", "--stat"],
                cwd=_ROOT,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                capture_output=True,
                check=False,
                timeout=20,
            )
            if git.returncode == 0 and git.stdout.strip():
                return _take("this repository's git history", io.BytesIO(git.stdout))
    source = b"".join(path.read_bytes() for path in sorted(_PACKAGE.rglob("*.py")))
    return _take("hastore's own source code", io.BytesIO(source))


def _take(source: str, stream: BinaryIO) -> DemoInput:
    lines: list[bytes] = []
    total = shortened = size = read = 0
    while read < READ_MAX and (line := stream.readline(LINE_SIZE_MAX + 1)):
        read += len(line)
        body = line.rstrip(b"\r\n")
        is_too_long = len(body) > LINE_SIZE_MAX
        while is_too_long and read < READ_MAX and not line.endswith(b"\n"):
            line = stream.readline(LINE_SIZE_MAX)  # the rest of it, which is dropped
            read += len(line)
            if not line:
                break
        if not body.strip():
            continue
        has_room = len(lines) < LINES_MAX and size + len(body) <= BYTES_MAX
        if has_room and len(lines) == total:
            lines.append(body[:LINE_SIZE_MAX])
            size += len(body)
            shortened += is_too_long
        total += 1
    if not lines:
        raise ConfigError(f"{source} holds no line of text", hint=_HINT)
    return DemoInput(
        source=source,
        lines=tuple(lines),
        lines_total=total,
        is_whole=read < READ_MAX,
        shortened=shortened,
    )


def _mib(size: int) -> str:
    return f"{size >> 20} MiB"
