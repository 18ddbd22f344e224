"""Any exception → one line, a next step and an exit code; a traceback only with HASTORE_DEBUG=1.

trio raises errors in groups; the first hastore error in a group is reported.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sys
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from hastore_cli.app.terminal import say_error, say_text

if TYPE_CHECKING:
    from collections.abc import Iterator

EXIT_FAILED: Final = 1
EXIT_INTERRUPTED: Final = 130
EXIT_PIPE: Final = 141  # 128 + SIGPIPE, as a shell reports of any tool before `| head`


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group, depth first; of a single exception itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


# For errors without a hint, by the nearest class.
_HINTS: Final = {
    "ConfigError": "hastore COMMAND --help shows what is allowed",
    "ListenError": "use an address of this machine; port 0 is any free port",
    "UnreachableError": "check whether the node runs, and read its log",
    "RequestFailedError": "check the node: hastore status",
    "DiskError": "check the path, its owner and mode, and the disk",
    "StoreError": "inspect it, which changes nothing: hastore log info DIR",
    "ProtocolError": "check whether that port belongs to a hastore node: hastore status",
}

# click's message where a shell has split "236 602 469" into words.
_SPLIT_NUMBER: Final = re.compile(r"unexpected extra arguments? \((?:\d{3} ?)+\)")

_OS_HINTS: Final = {
    errno.ENOSPC: "free space where the output goes, or redirect it, and run the command again",
    errno.EACCES: "check the path, its owner and its mode",
    errno.EPERM: "check the path, its owner and its mode",
    errno.EMFILE: "raise the limit of open files: ulimit -n",
    errno.EIO: "read the system's log: a disk or a terminal has failed",
}


def _hint_of(error: BaseException) -> str | None:
    """Return the error's hint, else that of its class."""
    own: str | None = getattr(error, "hint", None)
    if own:
        return own
    for ancestor in type(error).__mro__:
        if ancestor.__name__ in _HINTS:
            return _HINTS[ancestor.__name__]
    return None


def _is_hastore_error(error: BaseException) -> bool:
    """Decide without importing hastore: if it was never imported, it raised nothing."""
    module = sys.modules.get("hastore.errors")
    return module is not None and isinstance(error, module.HastoreError)


def main_error(error: BaseException) -> BaseException:
    """Return the error to report: the first of hastore's, click's, Ctrl-C, a broken pipe, any."""
    found = list(leaves(error))
    for leaf in found:
        if _is_hastore_error(leaf):
            return leaf
    for wanted in (click.ClickException, KeyboardInterrupt, BrokenPipeError):
        for leaf in found:
            if isinstance(leaf, wanted):
                return leaf
    return found[0]


@contextmanager
def collapsed() -> Iterator[None]:
    """Raise the error to report instead of the group that trio wraps it in."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise main_error(group) from group


def report(error: BaseException) -> int:
    """Print ``error`` as one line with a next step, and return the exit code."""
    if os.environ.get("HASTORE_DEBUG"):
        say_text("".join(traceback.format_exception(error)))
    chosen = main_error(error)
    if _is_hastore_error(chosen):
        say_error(str(chosen), _hint_of(chosen))
        return int(getattr(chosen, "exit_code", EXIT_FAILED))
    match chosen:
        case click.ClickException() as known:
            say_error(known.format_message(), _usage_hint(known))
            return known.exit_code
        case KeyboardInterrupt() | click.Abort():
            return EXIT_INTERRUPTED
        case BrokenPipeError():
            silence_stdout()
            return EXIT_PIPE
        case OSError() as refused:
            _say_refused(refused)
            return EXIT_FAILED
        case SystemExit() as leaving:
            if isinstance(leaving.__context__, BrokenPipeError):  # raised by rich-click
                silence_stdout()
                return EXIT_PIPE
            return leaving.code if isinstance(leaving.code, int) else EXIT_FAILED
        case unknown:
            say_error(
                f"unexpected {type(unknown).__name__}: {unknown}",
                "a bug in hastore: run it again with HASTORE_DEBUG=1 and report the traceback",
            )
            return EXIT_FAILED


def _say_refused(refused: OSError) -> None:
    if refused.errno == errno.EBADF and _is_stdout_closed():
        silence_stdout()
        say_error(
            "standard output is closed: nothing can be printed",
            "redirect it: > FILE, or > /dev/null",
        )
        return
    where = f" {refused.filename}" if refused.filename else ""
    say_error(f"{refused.strerror or refused}{where}", _OS_HINTS.get(refused.errno or 0))


def _is_stdout_closed() -> bool:
    """Whether nothing can be written to stdout; ``main`` opens a closed one for reading."""
    try:
        mode = fcntl.fcntl(sys.stdout.fileno(), fcntl.F_GETFL) & os.O_ACCMODE
    except (OSError, ValueError):
        return True
    return mode == os.O_RDONLY


def _usage_hint(known: click.ClickException) -> str | None:
    context: click.Context | None = getattr(known, "ctx", None)
    if _SPLIT_NUMBER.search(known.format_message()):
        return "put quotes around a number with spaces, such as '236 602 469'"
    return None if context is None else f"{context.command_path} --help"


def silence_stdout() -> None:
    """Redirect stdout to /dev/null, so that the interpreter's last flush does not fail."""
    with open(os.devnull, "w") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), sys.stdout.fileno())
