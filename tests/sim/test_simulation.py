"""Seeds hold, and replay: in another process, under another hash seed."""

import os
import random
import secrets
import subprocess
import sys
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

SEEDS = 100  # `make soak` has 2,000
CHUNK = 10  # so that the seeds are spread over the workers


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_seeds_hold(first):
    """Every promise, at every acknowledgement and after each step; then all catch up."""
    for seed in range(first, first + CHUNK):
        result = simulate(seed)
        assert result.ok, f"seed {seed}: {result.violation}\nreplay: hastore sim replay {seed}"
        assert result.virtual_s > 20


def test_a_seed_is_the_same_run_in_another_process():
    """Whatever PYTHONHASHSEED is."""
    seeds = (0, 2, 3, 5)
    assert hashes_elsewhere(seeds) == [simulate(seed).trace_hash for seed in seeds]


def hashes_elsewhere(seeds):
    """The trace hashes of seeds in another process under another hash seed."""
    code = (
        "from hastore.sim.simulation import simulate\n"
        f"for seed in {list(seeds)}: print(simulate(seed).trace_hash)"
    )
    env = os.environ | {"PYTHONHASHSEED": "4711"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    return done.stdout.split()


def test_a_fault_that_is_left_out_leaves_the_others_when_they_were():
    """Each has its own time and its own choices, so a plan can be shrunk."""
    whole = simulate(1)
    left_out = whole.fired[0]
    rest = simulate(1, left_out={left_out})
    assert rest.plan == whole.plan
    assert left_out not in rest.fired
    assert len(rest.fired) > len(whole.fired) / 2


def test_each_kind_of_fault_has_effects():
    """An fsync, a read or room for a file counts only where a node was told that it failed."""
    missing = set(KINDS)
    for seed in range(60):
        result = simulate(seed)
        missing -= {result.plan.faults[number].kind for number in result.fired}
        if not missing:
            return
    pytest.fail(f"none in {seed + 1} seeds: {missing}")


def test_the_trace_has_faults_boots_and_what_nodes_log():
    """With their virtual times, and nothing of the real world."""
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
def test_what_asks_the_real_world_is_caught(owner, name, arguments):
    """Time, randomness and threads; afterwards they are as they were."""
    with leak_guards():
        with pytest.raises(LeakError):
            getattr(owner, name)(*arguments)
        assert random.Random(7).random() == random.Random(7).random()
        assert time.gmtime(5).tm_sec == 5
    getattr(owner, name)(*arguments)


def test_every_step_is_looked_at(monkeypatch):
    """What is wrong between two steps of one instant, and right at its end, is found."""
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


def break_later(monkeypatch, owner, name, what):
    """Let a function of the product or of the simulator do something else after 3 virtual s."""
    function = getattr(owner, name)

    def broken(*args, **kwargs):
        if trio.current_time() > 3:
            what()
        return function(*args, **kwargs)

    monkeypatch.setattr(owner, name, broken)


def fail():
    """What a defect does."""
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Master, "submit"), (Oracle, "check_step"), (Faults, "end")],
)
def test_what_breaks_a_run_off_is_a_violation(monkeypatch, owner, name):
    """In a producer's call, in a rule, in the simulator: named, with where it was raised."""
    break_later(monkeypatch, owner, name, fail)
    result = simulate(1, keeps_trace=True)
    assert result.violation.name == "crash"
    assert result.violation.detail == "KeyError: 'lost' in fail, test_simulation.py"
    assert result.virtual_s > 3
    assert any("VIOLATION crash: KeyError" in line for line in result.lines)
    assert "in fail\n" in result.traceback
    assert "Cancelled" not in result.traceback
    assert simulate(1).trace_hash == result.trace_hash


def test_an_error_of_a_node_has_its_traceback(monkeypatch):
    """The node ends of it, which is what the rule says; where it was raised is told, too."""
    break_later(monkeypatch, SlaveAckTable, "acknowledge", fail)
    result = simulate(1)
    assert (result.violation.name, "KeyError" in result.violation.detail) == ("ended", True)
    assert "in fail\n" in result.traceback


def test_a_task_that_never_waits_is_a_violation(monkeypatch):
    """Time would stand still for ever, and no seed would be named."""
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
