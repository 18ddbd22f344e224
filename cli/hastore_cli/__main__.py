"""``hastore`` and ``python -m hastore_cli``: run the command line.

By default Python raises KeyboardInterrupt on Ctrl-C, from its start to its end.  While the command
line is being imported, and after a command has ended, that would print a needless traceback, so
there the signal ends the process, as with any tool.

The garbage collector is off until the command's modules are loaded (``app.command``): they make
some 100,000 objects, none of them garbage, which it would go through again and again.
"""

from __future__ import annotations

import gc
import signal
import sys


def run() -> int:
    """Run the command line and return the exit code."""
    gc.disable()
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
