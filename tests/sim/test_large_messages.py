"""Seeds in which the usual messages of the simulator are large: to dispatch, and to the log."""

import pytest

from hastore.dispatch import reput_message_service
from hastore.dispatch.dispatch_wake import DispatchWake
from hastore.sim.group.group_simulation import simulate_group
from hastore.sim.simulation import simulate
from hastore.store import commit_log

SEEDS = 5


@pytest.mark.parametrize("with_etcd", [None, False, True], ids=["classic", "group", "etcd"])
def test_seeds_find_no_violation(with_etcd, monkeypatch):
    """Passes begin before their timer ends, and all but the smallest records are written."""
    early = []

    def notify_confirmed(self):
        sleeper = self.enough.sleeper
        notify(self)
        early.extend([self] * (self.enough.sleeper is not sleeper))

    notify = DispatchWake.notify_confirmed
    monkeypatch.setattr(DispatchWake, "notify_confirmed", notify_confirmed)
    monkeypatch.setattr(reput_message_service, "GATHER_SIZE", 2_000)
    monkeypatch.setattr(commit_log, "SIZE_THROUGH_MAP", 200)
    for seed in range(SEEDS):
        is_classic = with_etcd is None
        result = simulate(seed) if is_classic else simulate_group(seed, with_etcd=with_etcd)
        assert result.ok, f"seed {seed}: {result.violation}"
    assert len(early) > SEEDS
