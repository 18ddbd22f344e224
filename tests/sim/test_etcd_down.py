"""Seeds in which etcd is down for 60 virtual seconds, with failsafe and without.

``make soak`` has 2,000 of each (``test_soak_seeds``).
"""

from typing import Any

import pytest

from hastore.broker.request_target import PromiseWish
from hastore.cluster.role_config import RoleConfig
from hastore.cluster.role_service import RoleService
from hastore.concurrency.lease import Lease
from hastore.errors import RequestFailedError
from hastore.sim.group import etcd_director
from hastore.sim.group.etcd_outage import Outage
from hastore.sim.group.group_simulation import GroupSimulation, simulate_group
from hastore.wire.remoting_codes import ResponseCode
from tests.sim.pinned import PINNED_WITH_ETCD_DOWN

SEEDS = (0, 10)  # short ones: of two nodes, and of three
OUTAGE_S = 60.0


def refuses_promises(patch: pytest.MonkeyPatch) -> None:
    """A member promises nothing, so that no master goes on without etcd."""

    def refuse(_self: RoleService, _wish: PromiseWish) -> None:
        raise RequestFailedError("planted", code=ResponseCode.SERVICE_NOT_AVAILABLE)

    patch.setattr(RoleService, "promise", refuse)


def asks_for_promises_in_any_case(patch: pytest.MonkeyPatch) -> None:
    """Whether failsafe is off is not looked at."""

    def with_failsafe(**values: Any) -> RoleConfig:
        return RoleConfig(**{**values, "failsafe": True})

    patch.setattr(etcd_director, "RoleConfig", with_failsafe)


def leads_for_ten_leases(patch: pytest.MonkeyPatch) -> None:
    """A master that etcd does not hear of takes itself for one, long after its lease."""
    renewed = Lease.renewed

    def for_long(lease: Lease, sent_at: float, asked_s: float, granted_s: float) -> None:
        renewed(lease, sent_at, 10 * asked_s, 10 * granted_s)

    patch.setattr(Lease, "renewed", for_long)


@pytest.mark.parametrize("failsafe", [True, False])
def test_etcd_is_down_for_a_minute(failsafe: bool) -> None:
    """With failsafe all puts of the quiet time are PUT_OK; without it none after the lease."""
    for seed in SEEDS:
        result = simulate_group(
            seed, with_etcd=True, outage=Outage(seconds=OUTAGE_S, failsafe=failsafe)
        )
        assert result.ok, f"seed {seed}: {result.violation}"
        assert result.acknowledged > 0
        assert result.virtual_s > OUTAGE_S


@pytest.mark.parametrize("seed", PINNED_WITH_ETCD_DOWN)
def test_a_seed_with_etcd_down_that_once_failed_passes(seed: int) -> None:
    """A failure says what the seed found before."""
    outage = Outage(seconds=OUTAGE_S, failsafe=True)
    result = simulate_group(seed, with_etcd=True, outage=outage)
    assert result.ok, f"seed {seed} ({PINNED_WITH_ETCD_DOWN[seed]}): {result.violation}"


def test_the_outage_lasts_as_long_as_it_says_and_the_faults_are_those_of_the_seed() -> None:
    """Most of its faults happen while etcd is down; nothing starts etcd earlier."""
    outage = Outage(seconds=OUTAGE_S, failsafe=True)
    run = GroupSimulation(0, keeps_trace=True, with_etcd=True, outage=outage)
    assert run.plan == GroupSimulation(0, with_etcd=True).plan
    entries = simulate_group(0, keeps_trace=True, with_etcd=True, outage=outage).entries
    (stops,) = [each.at for each in entries if "stops for 60 s, with failsafe" in each.what]
    (starts,) = [each.at for each in entries if each.what == "starts again after its outage"]
    assert starts - stops == pytest.approx(OUTAGE_S)
    faults = [each.at for each in entries if each.what.startswith("fault ")]
    assert any(stops < at < starts for at in faults)
    assert not any(at < stops + 20.0 for at in faults)


@pytest.mark.parametrize(
    ("plant", "failsafe", "rule"),
    [
        (refuses_promises, True, "failsafe"),
        (asks_for_promises_in_any_case, False, "no failsafe"),
        (leads_for_ten_leases, False, "lease"),
    ],
)
def test_a_bug_planted_into_failsafe_is_found(plant, failsafe, rule, monkeypatch):
    """The first seed finds it, by a rule of its own."""
    plant(monkeypatch)
    result = simulate_group(0, with_etcd=True, outage=Outage(failsafe=failsafe))
    assert result.violation is not None
    assert result.violation.name == rule
