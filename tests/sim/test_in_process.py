"""Producers that are tasks of their master's process: at times their puts read its reports."""

import pytest
import trio

from hastore.ha.read_loan import ReadLoan
from hastore.sim.group.group_simulation import simulate_group
from hastore.sim.simulation import simulate
from tests.sim.hashes import hashes_elsewhere

SEEDS = 6  # `make soak` has 2,000 of each
SEEDS_MAX = 100  # until the planted bug is found


@pytest.mark.parametrize("with_etcd", [None, False, True], ids=["classic", "group", "etcd"])
def test_seeds_find_no_violation(with_etcd, monkeypatch):
    """And puts do read."""
    decided = []
    use = ReadLoan.use

    async def counting(self, request):
        is_used = await use(self, request)
        decided.extend([request] * is_used)
        return is_used

    monkeypatch.setattr(ReadLoan, "use", counting)
    for seed in range(SEEDS):
        if with_etcd is None:
            result = simulate(seed, in_process=True)
        else:
            result = simulate_group(seed, with_etcd=with_etcd, in_process=True)
        assert result.ok, f"seed {seed}: {result.violation}"
    assert len(decided) > SEEDS


def test_a_seed_is_the_same_run_in_another_process():
    """PYTHONHASHSEED makes no difference."""
    seeds = (1, 3)
    here = [simulate(seed, in_process=True).trace_hash for seed in seeds]
    assert hashes_elsewhere(seeds, in_process=True) == here
    assert hashes_elsewhere(seeds) != here


def reads_beside_the_put(patch):
    """The read task does not look, before it reads again, whether a put reads."""

    async def offer(self):
        self._receiver = self._receiver or self.env.second_receiver(self.sock)
        self._buffer = memoryview(bytearray(100))
        self.lender.loan = self
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        self.lender.loan = None

    patch.setattr(ReadLoan, "offer", offer)


def test_a_read_task_that_reads_beside_a_put_is_found(monkeypatch):
    """Two tasks that receive at once end the link."""
    reads_beside_the_put(monkeypatch)
    for seed in range(SEEDS_MAX):
        result = simulate(seed, in_process=True)
        if not result.ok:
            assert result.violation.name == "ended", f"seed {seed}: {result.violation}"
            return
    pytest.fail(f"not found in {SEEDS_MAX} seeds")
