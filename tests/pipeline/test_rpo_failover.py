"""``rpo`` finds what ``hastore cluster failover --dry-run`` has said would be lost."""

import pytest

from hastore.pipeline.rpo.job import rpo
from tests.support.commands.in_process import at, call, call_json
from tests.support.nodes.lossy_failover import LOST, two_ahead_of_three
from tests.support.waiting import eventually

pytestmark = pytest.mark.xdist_group("spark")


async def test_the_dry_run_and_rpo_agree(spark, tmp_path):
    """On the directories of the survivors, after the failover."""
    async with two_ahead_of_three(tmp_path) as (two, three, history):
        flags = ("--node", at(two), "--node", at(three), "--ids", "1,2,3,4,5", "--to", 3)
        flags = (*flags, "--accept-loss")
        _, dry = await call_json("cluster", "failover", *flags, "--dry-run")
        code, _, told = await call("cluster", "failover", *flags)
        assert code == 0, told
        await eventually(lambda: two.status().last_cut is not None)
    survivors = [str(tmp_path / "2"), str(tmp_path / "3")]
    found = rpo(spark, str(history), survivors).summary
    assert found["acknowledged_lost"] == sum(dry["loss"]["at_least"].values()) == LOST
