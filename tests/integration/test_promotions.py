"""kill -9 of a replica group's master under load, and promotions of real processes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.integration.promotions import group_under_load, kill_and_promote


async def promote_again_and_again(directory: Path, promotions: int, seed: int) -> int:
    """Return the number of PUT_OKs; ``group_under_load`` checks all logs and consumers."""
    rng = random.Random(seed)
    async with group_under_load(directory) as load:
        for _ in range(promotions):
            await kill_and_promote(load, rng, 20)
        await load.more_acknowledged(20)
    return len(load.acknowledged)


async def test_every_put_ok_survives_five_promotions(tmp_path: Path) -> None:
    """It is in every log, once; consumers see all of it, and nothing that was cut."""
    assert await promote_again_and_again(tmp_path / "group", 5, seed=1) >= 120


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_every_put_ok_survives_two_hundred_promotions(tmp_path: Path) -> None:
    """The long form of the five."""
    assert await promote_again_and_again(tmp_path / "group", 200, seed=2) >= 4_000
