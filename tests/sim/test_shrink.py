"""A failing seed shrinks to the faults that it needs."""

import random

import attrs
import pytest

from hastore.sim.shrink import shrink
from hastore.sim.simulation import simulate
from hastore.sim.violation import ViolationError
from tests.support.worlds.planted import slave_acks_before_fsync


@pytest.fixture(scope="module")
def held():
    """A seed with many faults."""
    result = simulate(1)
    assert len(result.fired) > 20
    return result


def breaking(held, needed, *, rule="loss"):
    """A run that breaks a rule whenever all of some faults happen."""

    def run(seed, *, left_out=(), keeps_trace=False):
        fired = tuple(n for n in held.fired if n not in left_out)
        broken = ViolationError(rule, "gone") if needed <= set(fired) else None
        return attrs.evolve(held, seed=seed, fired=fired, violation=broken)

    return run


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_what_is_left_is_what_it_takes(held, count):
    """However many faults that is, and wherever they are in the plan."""
    needed = set(random.Random(count).sample(held.fired, count))
    run = breaking(held, needed)
    shrunk = shrink(run(1), runs_max=1_000, run=run)
    assert set(shrunk.kept) == needed
    assert shrunk.fired == len(held.fired)
    assert shrunk.result.violation is not None


def test_shrinking_ends_when_it_is_told_to(held):
    """With a run that still breaks the rule."""
    run = breaking(held, set(held.fired[::2]))
    shrunk = shrink(run(1), run=run, is_over=lambda: True)
    assert shrunk.runs == 1
    assert shrunk.result.violation is not None


def test_another_rule_is_another_failure(held):
    """A smaller plan that breaks something else is not taken."""

    def run(seed, *, left_out=(), keeps_trace=False):
        rule = "loss" if not left_out else "other"
        return breaking(held, set(), rule=rule)(seed, left_out=left_out)

    assert set(shrink(run(1), run=run).kept) >= set(held.fired)


def test_the_timeline_of_a_planted_bug_tells_what_happened(monkeypatch):
    """The boots, the put concerned and the violation; not what other puts were told."""
    slave_acks_before_fsync(monkeypatch)
    failed = next(result for result in map(simulate, range(200)) if not result.ok)
    shrunk = shrink(failed, runs_max=8)
    lines = [f"{entry.who} {entry.what}" for entry in shrunk.result.timeline()]
    put = shrunk.result.violation.put
    assert len(shrunk.kept) <= len(failed.fired)
    assert any(line.startswith(f"oracle VIOLATION ack: put {put} ") for line in lines)
    assert "master boot 1" in lines
    puts = [line for line in lines if line.startswith("producer put ")]
    assert puts
    assert all(line.startswith((f"producer put {put},", f"producer put {put} ")) for line in puts)
    assert len(shrunk.result.timeline(everything=True)) > len(lines)
