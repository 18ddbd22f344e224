"""Seeds in which dispatch does not wait for its timer: there it seldom has enough for that."""

import pytest

from hastore.dispatch import reput_message_service
from hastore.dispatch.dispatch_wake import DispatchWake
from hastore.sim.group.group_simulation import simulate_group
from hastore.sim.simulation import simulate

SEEDS = 5


@pytest.mark.parametrize("with_etcd", [None, False, True], ids=["classic", "group", "etcd"])
def test_seeds_find_no_violation(with_etcd, monkeypatch):
    """And passes do begin early."""
    early = []

    def notify_confirmed(self):
        sleeper = self.enough.sleeper
        notify(self)
        early.extend([self] * (self.enough.sleeper is not sleeper))

    notify = DispatchWake.notify_confirmed
    monkeypatch.setattr(DispatchWake, "notify_confirmed", notify_confirmed)
    monkeypatch.setattr(reput_message_service, "GATHER_SIZE", 2_000)
    for seed in range(SEEDS):
        is_classic = with_etcd is None
        result = simulate(seed) if is_classic else simulate_group(seed, with_etcd=with_etcd)
        assert result.ok, f"seed {seed}: {result.violation}"
    assert len(early) > SEEDS
