"""Runs of scenarios that must pass: which ones, and how a test checks them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import FunctionType

import pytest

from hastore_scenarios.judge.result import ScenarioResult
from hastore_scenarios.registry import all_scenarios
from hastore_scenarios.runner import WorldKind
from hastore_scenarios.story.scenario import Scenario
from hastore_scenarios.worlds.sim.world import SimWorld

# Runs a story of a test in the simulator, with seed 1, in the directory ``w``.
RunStory = Callable[[Callable[[SimWorld], Awaitable[None]]], ScenarioResult]

# Scenarios about partitions: `make test` runs the first two, `make soak` all of them.
NETWORK = (
    "one-way-partition",
    "half-open-link",
    "frozen-master",
    "slave-falls-behind",
    "departed-ack",
    "parted-logs",
    "swizzle-clog",
    "torn-tail",
    "loss-window",
    "cut-off-from-etcd",
    "cut-off-from-slaves",
    "two-candidates",
)
catalog = pytest.mark.parametrize("scenario", all_scenarios(), ids=lambda scenario: scenario.name)

# `make soak` runs all stories on processes, `make test` one of each kind of fault, and one of those
# with a coordinator, whose leases last for seconds.  These are left to the soak: the simulator runs
# them, and what happens in them happens to processes in what is named here, too.
FIRST_ELECTED = 36
QUICK_ELECTED = ("master-killed",)
REPEATED = {
    "slave-not-available": "departed-ack",
    "slave-catches-up": "integration/test_soak_sizes_and_slaves",
    "promotion": "testing_plugin/test_cluster",
    "half-open-link": "one-way-partition",
    "swizzle-clog": "one-way-partition",
    "slave-disk-full": "integration/test_disk_full",
    "slave-sync-fails": "integration/test_disk_faults",
    "torn-tail": "integration/test_crash_points",
    "alternating-bounces": "integration/test_kill_master",
    "slave-ahead": "parted-logs",
    "foreign-slave": "parted-logs",
    "loss-window": "parted-logs",
    "rolling-restart": "integration/test_kill_master",
    "large-messages": "integration/test_soak_sizes_and_slaves",
    "kip-101": "testing_plugin/test_group",
    "kip-279": "integration/test_promotions",
    "former-master-returns": "integration/test_promotions",
    "two-masters": "testing_plugin/test_group",
    "killed-cut": "integration/test_killed_cuts",
    "strict-mode": "frozen-member",
    "available-mode": "frozen-member",
    "empty-epochs": "integration/test_promotions",
}


def is_quick(scenario: Scenario) -> bool:
    """Whether `make test` runs it on processes."""
    if scenario.number < FIRST_ELECTED:
        return scenario.name not in REPEATED
    return scenario.name in QUICK_ELECTED


quick_catalog = pytest.mark.parametrize(
    "scenario", list(filter(is_quick, all_scenarios())), ids=lambda scenario: scenario.name
)


def check(result: ScenarioResult) -> None:
    """Assert that a run has passed; otherwise show all that is known of it."""
    if result.skipped is not None and result.world != WorldKind.SIM.value:
        pytest.skip(result.skipped)
    assert result.skipped is None, f"skipped in the simulator: {result.skipped}"
    timeline = "\n".join(str(entry) for entry in result.timeline)
    outputs = "\n".join(f"-- {name}\n{text}" for name, text in result.outputs.items())
    assert result.passed, f"{result.why}\n{timeline}\n{outputs}\nkept in {result.directory}"
    assert result.verdict is not None
    assert result.verdict.operations > 0
    assert result.verdict.records > 0


def scenario_of(function: FunctionType) -> Scenario:
    """Return a scenario that runs a function of a test."""
    return Scenario(
        name="test",
        number=0,
        title="Test",
        proves="nothing",
        doc="",
        path=function.__code__.co_filename,
        function=function,
    )
