"""Seeds find no violation, and replay in another process with another hash seed."""

import os
import random
import secrets
import threading
import time
import uuid

import pytest
import trio

from hastore.broker.node.master import Master
from hastore.ha.group_transfer_service import SlaveAckTable
from hastore.sim import steps
from hastore.sim.faults import KINDS, Faults
from hastore.sim.guards import LeakError, leak_guards
from hastore.sim.oracle import Oracle
from hastore.sim.producers import Producers
from hastore.sim.simulation import simulate
from hastore.sim.violation import ViolationError
from tests.sim.hashes import hashes_elsewhere

SEEDS = 20  # `make soak` has 2,000
CHUNK = 10  # so that the seeds are spread over the workers


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds_find_no_violation(first):
    """Promises are checked at every acknowledgement and each step; then all nodes catch up."""
    for seed in range(first, first + CHUNK):
        result = simulate(seed)
        assert result.ok, f"seed {seed}: {result.violation}\nreplay: hastore sim replay {seed}"
        assert result.virtual_s > 20


def test_a_seed_is_the_same_run_in_another_process():
    """PYTHONHASHSEED makes no difference."""
    seeds = (1, 3)  # two quick ones
    assert hashes_elsewhere(seeds) == [simulate(seed).trace_hash for seed in seeds]


def test_leaving_out_a_fault_does_not_move_the_others():
    """Each fault has its own time and choices, so a plan can be shrunk."""
    whole = simulate(1)
    left_out = whole.fired[0]
    rest = simulate(1, left_out={left_out})
    assert rest.plan == whole.plan
    assert left_out not in rest.fired
    assert len(rest.fired) > len(whole.fired) / 2


def test_each_kind_of_fault_has_effects():
    """A failing sync, read or allocation counts only if a node got the error."""
    missing = set(KINDS)
    for seed in range(60):
        result = simulate(seed)
        missing -= {result.plan.faults[number].kind for number in result.fired}
        if not missing:
            return
    pytest.fail(f"none in {seed + 1} seeds: {missing}")


def test_the_trace_has_faults_boots_puts_and_node_logs():
    """Its entries are in the order of their virtual times."""
    result = simulate(3, keeps_trace=True)
    text = "\n".join(result.lines)
    for part in ("master    boot 1", "fault 0: ", "producer  put 0, ", "logs ha_slave_connected"):
        assert part in text
    assert [entry.at for entry in result.entries] == sorted(entry.at for entry in result.entries)


LEAKS = [
    (time, "time"),
    (time, "perf_counter_ns"),
    (time, "clock_gettime", time.CLOCK_REALTIME),
    (time, "localtime"),
    (time, "strftime", "%s"),
    (os, "urandom", 1),
    (random, "choices", "ab"),
    (random, "expovariate", 1.0),
    (random, "Random"),
    (random.SystemRandom(), "random"),
    (secrets, "token_hex"),
    (uuid, "uuid1"),
    (uuid, "uuid4"),
    (threading.Thread(target=print), "start"),
]


@pytest.mark.parametrize(("owner", "name", "arguments"), [(o, n, a) for o, n, *a in LEAKS])
def test_leak_guards_catch_real_time_randomness_and_threads(owner, name, arguments):
    """Afterwards the functions work again."""
    with leak_guards():
        with pytest.raises(LeakError):
            getattr(owner, name)(*arguments)
        assert random.Random(7).random() == random.Random(7).random()
        assert time.gmtime(5).tm_sec == 5
    getattr(owner, name)(*arguments)


def test_the_oracle_checks_every_step(monkeypatch):
    """A violation that lasts only between two steps of one instant is found."""
    check_step, put = Oracle.check_step, Producers.put
    is_wrong = False

    def check(oracle):
        if is_wrong:
            raise ViolationError("for a step", "seen")
        check_step(oracle)

    async def put_and_break(*args):
        nonlocal is_wrong
        await trio.lowlevel.checkpoint()  # the instant has begun
        is_wrong = trio.current_time() > 3
        await trio.lowlevel.checkpoint()
        is_wrong = False
        return await put(*args)

    monkeypatch.setattr(Oracle, "check_step", check)
    monkeypatch.setattr(Producers, "put", put_and_break)
    assert simulate(3).violation.name == "for a step"


def break_later(monkeypatch, owner, name, action):
    """Make a function of the product or the simulator call ``action`` first, after 3 virtual s."""
    function = getattr(owner, name)

    def broken(*args, **kwargs):
        if trio.current_time() > 3:
            action()
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, broken)


def fail():
    """Raise an error, as a defect does."""
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Master, "submit"), (Oracle, "check_step"), (Faults, "end")],
)
def test_an_exception_during_a_run_is_a_crash_violation(monkeypatch, owner, name):
    """Raised in a producer's call, a rule or the simulator, it is reported with its place."""
    break_later(monkeypatch, owner, name, fail)
    result = simulate(1, keeps_trace=True)
    assert result.violation.name == "crash"
    assert result.violation.detail == "KeyError: 'lost' in fail, test_simulation.py"
    assert result.virtual_s > 3
    assert any("VIOLATION crash: KeyError" in line for line in result.lines)
    assert "in fail\n" in result.traceback
    assert "Cancelled" not in result.traceback
    assert simulate(1).trace_hash == result.trace_hash


def test_an_error_in_a_node_has_its_traceback(monkeypatch):
    """The rule says that the node ended; the result also shows where the error was raised."""
    break_later(monkeypatch, SlaveAckTable, "acknowledge", fail)
    result = simulate(1)
    assert (result.violation.name, "KeyError" in result.violation.detail) == ("ended", True)
    assert "in fail\n" in result.traceback


def test_a_task_that_never_sleeps_is_a_violation(monkeypatch):
    """Otherwise virtual time would stop and no seed would be reported."""
    monkeypatch.setattr(steps, "STEPS_AT_ONCE_MAX", 2_000)
    put = Producers.put

    async def spin(*args):
        while trio.current_time() > 3:
            await trio.lowlevel.checkpoint()
        return await put(*args)

    monkeypatch.setattr(Producers, "put", spin)
    assert simulate(1).violation.name == "livelock"
    monkeypatch.undo()
    assert simulate(1).ok
