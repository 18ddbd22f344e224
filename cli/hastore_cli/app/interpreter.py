"""The Python that runs this: its path, its version, how it was built, and how fast it is.

``round_ns`` times a fixed loop of what a node's Python does for each message.  It differs by a
third between builds of one version.  sysconfig knows the switches of a build, but a distribution
can optimise without them: then only the figure shows it.

``requirements/choose_python.py`` runs this file as a script, ``python -I interpreter.py SECONDS``,
in each Python that it finds.  So it needs nothing but the standard library.
"""

from __future__ import annotations

import os
import platform
import struct
import sys
import sysconfig
import time
from typing import Final, NamedTuple

CALIBRATION_S: Final = 0.1

_SLICE_ROUNDS: Final = 500  # some 0.3 ms: many slices pass between two interruptions
_PAIR: Final = struct.Struct(">qi")
_SWITCHES: Final = ("--enable-optimizations", "--with-lto")  # of CPython's own configure script


class Interpreter(NamedTuple):
    """A Python."""

    version: str
    path: str  # without symbolic links
    round_ns: float  # of the fixed loop
    build: str  # what sysconfig tells of it

    def __str__(self) -> str:
        """Return one line."""
        return (
            f"Python {self.version}, {self.round_ns} ns a round of a fixed loop, {self.build}:"
            f" {self.path}"
        )


class _Item:
    __slots__ = ("offset", "size")

    def __init__(self, offset: int, size: int) -> None:
        self.offset = offset
        self.size = size

    def next_offset(self) -> int:
        return self.offset + self.size


def _rounds(count: int) -> int:
    """Do what a node does for each message, without its I/O: objects, calls, structs, a table."""
    buffer = bytearray(_PAIR.size)
    pack_into, unpack_from = _PAIR.pack_into, _PAIR.unpack_from
    table: dict[tuple[str, int], _Item] = {}
    waiting: list[_Item] = []
    offset = 0
    for number in range(count):
        item = _Item(offset, 20 + (number & 7))
        pack_into(buffer, 0, item.offset, item.size)
        position, size = unpack_from(buffer)
        table["topic", number & 15] = item
        waiting.append(item)
        offset = item.next_offset()
        if len(waiting) > 16 and position + size == offset:
            waiting.clear()
    return offset


def round_ns(duration_s: float) -> float:
    """Return the nanoseconds of one round of the fixed loop: of its fastest slice."""
    end = time.perf_counter() + duration_s
    best_s = float("inf")
    began = time.perf_counter()
    while began < end:
        _rounds(_SLICE_ROUNDS)
        ended = time.perf_counter()
        best_s = min(best_s, ended - began)
        began = ended
    return best_s / _SLICE_ROUNDS * 1e9


def build_switches() -> str:
    """Return what sysconfig tells of the switches that make a build of CPython faster."""
    arguments = sysconfig.get_config_var("CONFIG_ARGS")
    if not arguments:
        return "sysconfig does not tell how it was configured"
    named = [switch for switch in _SWITCHES if f"'{switch}" in arguments]
    if not named:
        return f"sysconfig names neither {_SWITCHES[0]} nor {_SWITCHES[1]}"
    return f"configured with {' '.join(named)}"


def this_interpreter() -> Interpreter:
    """Describe this Python; takes ``CALIBRATION_S``."""
    return Interpreter(
        version=platform.python_version(),
        path=os.path.realpath(sys.executable),
        round_ns=round(round_ns(CALIBRATION_S), 1),
        build=build_switches(),
    )


if __name__ == "__main__":
    print(round_ns(float(sys.argv[1])))  # noqa: T201 - the parent reads it
