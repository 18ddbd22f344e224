"""Figures that follow from no formula: they were recorded when RocketMQ wrote the golden stores.

They are in ``recorded.toml``::

    times        a word for each message: "a+b" was born a ms after the previous one was stored,
                 and stored b ms later; "a" and "+b" leave out a 0, "." is two
    checkpoint   the numbers of the messages whose store times are its first three values
    killed       the process that ``abort`` names
    zeroed       [from, to): the zeroed range of a torn log
    pieces       a digit for each read of the recording proxy: the headers and bodies it returned
"""

import tomllib
from itertools import pairwise
from pathlib import Path

import attrs

FIGURES = Path(__file__).with_name("recorded.toml")


@attrs.frozen(kw_only=True)
class Checkpoint:
    """RocketMQ's checkpoint: times as numbers of messages, None for a 0."""

    physic: int | None = None
    logics: int | None = None
    index: int | None = None
    confirm_offset: int = 0


@attrs.frozen(kw_only=True)
class Recorded:
    """The figures of one store that got puts; ``ordinary`` is its number of ordinary messages."""

    ordinary: int
    prop_crc: bool = False
    index_files: list[str]
    checkpoint: Checkpoint
    killed: int | None = None
    first_ms: int
    times: str

    def born_and_stored_ms(self):
        """Yield the times at which each message was born and stored."""
        now_ms = self.first_ms
        for word in self.times.split():
            born, _, stored = word.strip(".").partition("+")
            born_ms = now_ms + int(born or 0)
            now_ms = born_ms + int(stored or 0)
            yield born_ms, now_ms


@attrs.frozen(kw_only=True)
class Replica:
    """The figures of the slave's copy."""

    index_files: list[str]
    checkpoint: Checkpoint


@attrs.frozen(kw_only=True)
class Figures:
    """All figures; ``zeroed`` is the zeroed range [from, to) of each torn store's log."""

    stores: dict[str, Recorded]
    replica: Replica
    zeroed: dict[str, list[int]]
    heartbeats: int
    pieces: str


def load():
    """Read ``recorded.toml``."""

    def with_checkpoint(table):
        return table | {"checkpoint": Checkpoint(**table["checkpoint"])}

    table = tomllib.loads(FIGURES.read_text())
    return Figures(
        stores={n: Recorded(**with_checkpoint(store)) for n, store in table["store"].items()},
        replica=Replica(**with_checkpoint(table["replica"])),
        zeroed=table["zeroed"],
        heartbeats=table["stream"]["heartbeats"],
        pieces="".join(table["stream"]["pieces"].split()),
    )


def times_of(born_and_stored_ms):
    """Return the time of the first message, and the words of all messages."""
    pairs = list(born_and_stored_ms)
    first_ms = pairs[0][0]
    words = []
    for (_, before_ms), (born_ms, stored_ms) in pairwise([(0, first_ms), *pairs]):
        born, stored = born_ms - before_ms, stored_ms - born_ms
        words.append(f"{born or ''}{f'+{stored}' if stored else ''}" or ".")
    return first_ms, " ".join(words)
