"""Sieges, small in ``make test`` and whole in ``make soak``: memory is bounded, others are served.

``python -m tests.hostile.siege`` prints the figures that are in docs/limits.md.
"""

import pytest

from tests.hostile.besiegers import SIEGES
from tests.hostile.siege import measure

MIB = 1024  # in KiB
# By how much a whole siege may grow the anonymous memory, with the default limits.
GROWN_MAX = dict.fromkeys(SIEGES, 40 * MIB) | {
    "pulls and never reads": 700 * MIB,
    "sends and never reads": 120 * MIB,
    "requests but for a byte": 400 * MIB,
    "1000 idle clients by TLS": 300 * MIB,
    "all but a byte of a ClientHello": 200 * MIB,
}
# One of each kind: peers that are silent, that are slow, that never read, that lie.
SMALL = [
    "1000 silent peers",
    "slowloris",
    "pulls and never reads",
    "headers that claim 4 GiB",
    "all but a byte of a ClientHello",
]


@pytest.mark.xdist_group("siege")
@pytest.mark.parametrize("name", SMALL)
def test_a_small_siege_costs_little(tmp_path, name):
    """A tenth of the peers, for a moment: little memory, and other clients are answered."""
    siege = measure(name, tmp_path, scale=0.1, seconds=0.15, rounds=1)
    assert siege.rss_grown < (150 if "pulls" in name else 20) * MIB, siege
    assert siege.p99_under < 2_000, siege
    assert siege.log_lines <= 20, siege
    assert siege.links == 1, siege


@pytest.mark.soak
@pytest.mark.parametrize("name", SIEGES)
def test_whole_siege_stays_within_the_limits(tmp_path, name):
    """Memory is within its bound, and the others' latency is not far from normal."""
    siege = measure(name, tmp_path)
    assert siege.rss_grown < GROWN_MAX[name], siege
    assert siege.log_lines <= 30, siege
    assert siege.p50_under < 2 * siege.p50_before, siege
    assert siege.p99_ratio < 5 or siege.p99_under < 20, siege
    assert siege.links == 1, siege
