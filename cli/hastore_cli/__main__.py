"""``hastore``, and ``python -m hastore_cli``: the command line, and what is before and behind it.

Python turns Ctrl-C into KeyboardInterrupt from its own start to its own end.  While the command
line is being imported, and when a command has printed all it had to, that is a traceback for
nothing: there the signal ends the process, as it does any tool.
"""

from __future__ import annotations

import signal
import sys


def run() -> int:
    """Run the command line; gives the exit code."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler:  # ignored: a shell's background job
        from hastore_cli.main import main

        return main()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hastore_cli.main import main

    signal.signal(signal.SIGINT, handler)
    try:
        return main()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(run())
