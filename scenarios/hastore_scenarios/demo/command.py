"""The command line of the demo.

    python -m hastore_scenarios.demo.command [FILE] [--keep DIR] [--spark]

In a clone it is ``make demo``, with FILE=PATH for other input, KEEP=DIR to keep the nodes'
directories, and SPARK=1 for --spark.

FILE is any text; each line becomes a message.  By default it is this repository's own git history.
With --spark, Spark also checks whether an acknowledged message was lost.

This module imports almost nothing: on a busy machine the other imports take seconds, and Ctrl-C
must print one line then, too.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys


def main() -> int:
    """Read the command line and run the demo; return the exit code."""
    arguments = _parsed()
    try:
        from hastore_scenarios.demo.demo import run  # noqa: PLC0415 - see above

        code = run(arguments.file_option or arguments.file, arguments.keep, spark=arguments.spark)
    except KeyboardInterrupt:  # before the first process, or after the last
        code = 128 + signal.SIGINT
    if code > 128:
        print("interrupted: no process is left", file=sys.stderr)
    return code


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="demo", description="A master, a slave, real messages.")
    parser.add_argument("file", nargs="?", default=os.environ.get("FILE") or None)
    parser.add_argument("--file", dest="file_option", help="the text to send, line by line")
    parser.add_argument(
        "--keep",
        metavar="DIR",
        default=os.environ.get("KEEP") or None,
        help="work in DIR, which must be empty or missing, and keep everything there",
    )
    parser.add_argument(
        "--spark",
        action="store_true",
        default=os.environ.get("SPARK", "") not in {"", "0"},
        help="let Spark also check whether an acknowledged message was lost",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
