"""A failing seed shrinks to the faults that it needs."""

import random

import attrs
import pytest

from hastore.sim.shrink import shrink
from hastore.sim.simulation import simulate
from hastore.sim.violation import ViolationError
from tests.support.worlds.planted import slave_acks_before_fsync


@pytest.fixture(scope="module")
def full_run():
    """Return the result of a seed with many faults."""
    result = simulate(1)
    assert len(result.fired) > 20
    return result


def breaking(full_run, needed, *, rule="loss"):
    """Return a run that breaks a rule if all faults of ``needed`` happen."""

    def run(seed, *, left_out=(), keeps_trace=False):
        fired = tuple(n for n in full_run.fired if n not in left_out)
        broken = ViolationError(rule, "gone") if needed <= set(fired) else None
        return attrs.evolve(full_run, seed=seed, fired=fired, violation=broken)

    return run


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_shrinking_keeps_only_the_needed_faults(full_run, count):
    """Any number of faults may be needed, anywhere in the plan."""
    needed = set(random.Random(count).sample(full_run.fired, count))
    run = breaking(full_run, needed)
    shrunk = shrink(run(1), runs_max=1_000, run=run)
    assert set(shrunk.kept) == needed
    assert shrunk.fired == len(full_run.fired)
    assert shrunk.result.violation is not None


def test_shrinking_stops_on_request(full_run):
    """The run it returns still breaks the rule."""
    run = breaking(full_run, set(full_run.fired[::2]))
    shrunk = shrink(run(1), run=run, is_over=lambda: True)
    assert shrunk.runs == 1
    assert shrunk.result.violation is not None


def test_a_plan_that_breaks_another_rule_is_not_taken(full_run):
    """Breaking another rule is another failure."""

    def run(seed, *, left_out=(), keeps_trace=False):
        rule = "loss" if not left_out else "other"
        return breaking(full_run, set(), rule=rule)(seed, left_out=left_out)

    assert set(shrink(run(1), run=run).kept) >= set(full_run.fired)


def test_the_timeline_of_a_planted_bug_shows_only_its_put(monkeypatch):
    """It has the boots, the put concerned and the violation, but not the other puts."""
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
