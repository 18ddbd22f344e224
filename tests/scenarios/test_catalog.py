"""Every scenario of the catalog, once, on real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.registry import Scenario, all_scenarios
from scenarios.runner import run_scenario


@pytest.mark.parametrize("scenario", all_scenarios(), ids=lambda scenario: scenario.name)
async def test_scenario_holds(scenario: Scenario, tmp_path: Path) -> None:
    """Each scenario's expectations come true, and the checker finds nothing."""
    result = await run_scenario(scenario, tmp_path / scenario.name)
    told = "\n".join(str(entry) for entry in result.timeline)
    said = "\n".join(f"-- {name}\n{text}" for name, text in result.outputs.items())
    assert result.passed, f"{result.why}\n{told}\n{said}\nkept in {result.directory}"
    assert result.verdict is not None
    assert result.verdict.operations > 0
    assert result.verdict.records > 0
