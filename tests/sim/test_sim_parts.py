"""The simulator's parts: clock, frozen processes, node logs, flipped bits and fault plans."""

import logging
import random
from contextvars import ContextVar

import pytest
import trio

from hastore.sim.cluster import DATA_DIR
from hastore.sim.fault_plan import make_fault_plan
from hastore.sim.faults import KINDS
from hastore.sim.host import SimOffload
from hastore.sim.log_bytes import first_damage, flip_durable_bit
from hastore.sim.seams import Freeze, run_by_seed
from hastore.sim.simulation import Simulation
from hastore.sim.trace import node_log
from hastore.trace import logger

WHO = ContextVar("who", default="")


def test_time_jumps_to_the_next_deadline_in_whole_milliseconds():
    """All deadlines within one millisecond are met at its end."""
    times = []

    async def sleeper(seconds):
        await trio.sleep(seconds)
        times.append(trio.current_time())

    async def main():
        async with trio.open_nursery() as nursery:
            for seconds in (0.0101, 0.0109, 3600.0, 0.5):
                nursery.start_soon(sleeper, seconds)

    run_by_seed(1, main)
    assert times == [0.011, 0.011, 0.5, 3600.0]


def test_a_seed_decides_the_order_of_tasks():
    """A seed always gives the same order, and most seeds differ."""

    def order(seed):
        ran = []

        async def main():
            async with trio.open_nursery() as nursery:
                for number in range(8):
                    nursery.start_soon(record, number)

        async def record(number):
            ran.append(number)

        run_by_seed(seed, main)
        return ran

    assert order(5) == order(5)
    assert len({tuple(order(seed)) for seed in range(20)}) > 10


def test_a_frozen_process_meets_its_deadlines_when_it_resumes():
    """Other processes run meanwhile."""
    ticks = {"a": [], "b": []}

    async def tick(who):
        WHO.set(who)
        for _ in range(6):
            await trio.sleep(1)
            ticks[who].append(trio.current_time())

    async def main():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick, "a")
            nursery.start_soon(tick, "b")
            await trio.sleep(2.5)
            freeze = Freeze(lambda task: task.context.get(WHO) == "a")
            freeze.begin()
            await trio.sleep(10)
            freeze.end()

    run_by_seed(1, main)
    assert ticks["b"] == [1, 2, 3, 4, 5, 6]
    assert ticks["a"] == [1, 2, 12.5, 13.5, 14.5, 15.5]


def test_a_call_in_a_thread_takes_effect_at_any_time_while_it_runs():
    """That is its beginning, middle or end; the caller continues when the whole call is over."""
    effects = {0.0: 0, 0.5: 0, 1.0: 0}

    async def call(offload, *, fails):
        began, at = trio.current_time(), []

        def work():
            at.append(trio.current_time() - began)
            if fails:
                raise OSError("no")
            return "done"

        if fails:
            with pytest.raises(OSError, match="no"):
                await offload.run(work)
        else:
            assert await offload.run(work) == "done"
        took = trio.current_time() - began
        assert 10 <= took < 10.01
        effects[round(at[0] / took, 2)] += 1

    async def main():
        offload = SimOffload(random.Random(1), slow_s=10.0)
        for number in range(60):
            await call(offload, fails=number % 2)

    run_by_seed(1, main)
    assert all(count > 5 for count in effects.values())


def test_node_log_captures_lines_whatever_the_loggers_level():
    """It captures lines from INFO on, without time and level, and then restores the logger."""
    taken = []
    stdlib = logging.getLogger("hastore")
    before = dict(vars(stdlib))
    log = logger("tests")
    with node_log(lambda level, text: taken.append((level, text))):
        log.debug("nothing")
        log.info("started", offset=5, at="x")
        log.error("ended", reason="a b")
    assert taken == [(logging.INFO, "started at=x offset=5"), (logging.ERROR, "ended reason=a b")]
    assert {name: vars(stdlib)[name] for name in before} == before


def test_a_flipped_bit_in_a_flushed_record_is_found():
    """The bit changes in the cache and on the disk, and nothing else does."""
    found = 0
    for seed in range(30):
        simulation = Simulation(seed)
        run_by_seed(seed, simulation.run)
        if simulation.violation is not None:
            continue
        disk = simulation.cluster.slaves[0].disk
        before = disk.after_kill()
        assert first_damage(disk) is None
        offset = flip_durable_bit(disk, random.Random(seed))
        if offset is None:
            continue
        found += 1
        damaged = first_damage(disk)
        assert damaged is not None
        assert damaged <= offset
        changed = [p for p in disk.inodes if disk.read_file(p) != before.read_file(p)]
        assert len(changed) == 1
        assert changed[0].startswith(f"{DATA_DIR}/commitlog/")
        if found == 3:
            return
    pytest.fail("no seed had a record to rot")


def test_a_fault_plan_is_sorted_and_has_weighted_kinds_only():
    """Each fault is within the time for faults and of a kind whose weight is not 0."""
    for seed in range(50):
        plan = make_fault_plan(random.Random(seed), KINDS, 3)
        times = [fault.at for fault in plan.faults]
        assert times == sorted(times)
        assert all(0 < at < plan.safety_s for at in times)
        assert all(plan.weights[fault.kind] and fault.node < 3 for fault in plan.faults)
        assert [fault.number for fault in plan.faults] == list(range(len(times)))
