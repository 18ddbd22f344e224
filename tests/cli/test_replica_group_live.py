"""A live replica group in the commands: who is in the set, who missed a put, what was cut."""

import attrs
import pytest

from hastore.status import PutMessageStatus as Status
from tests.support.commands.in_process import at, call, call_json
from tests.support.nodes.group_nodes import HA, group, promote, put, set_of
from tests.support.waiting import eventually

# However full the disk of this machine is.
ROOM = ("--warn-disk", "100", "--crit-disk", "100")


async def test_a_group_is_shown_by_every_command(tmp_path):
    """Its master has the set; a slave has its epoch and the confirm offset."""
    async with group(tmp_path) as (one, two, three):
        code, shown, _ = await call("check", at(one), *ROOM)
        assert (code, "follows nobody" in shown) == (2, True)
        master = await promote(one, two, three)
        assert await put(master) is Status.PUT_OK
        end = master.max_offset
        await eventually(lambda: two.status().confirm_offset == end)
        code, shown, _ = await call("check", at(one), *ROOM)
        assert code == 0, shown
        assert "SYNC_MASTER of epoch 1, SyncStateSet 1, 2, 3, 2 slaves" in shown
        _, shown, _ = await call("status", at(one))
        assert "node 1 of group g1  epoch 1 from 0, master for" in shown
        assert "SyncStateSet 1, 2, 3 of 1, 2, 3  in_sync_replicas all" in shown
        _, status = await call_json("status", at(one))
        assert [row["role"] for row in status["sync_state"]["nodes"]] == ["master"] + ["member"] * 2
        assert {row["node_id"] for row in status["slaves"]} == {2, 3}
        _, status = await call_json("status", at(two))
        assert (status["epoch"], status["epoch_start_offset"], status["seen_epoch"]) == (1, 0, 1)
        assert (status["confirm_offset"], status["master_link"]["masters_epoch"]) == (end, 1)
        assert (status["sync_state"], status["cuts"], status["last_cut"]) == (None, 0, None)
        _, shown, _ = await call("doctor", at(one), at(two))
        master.identity.see(2)
        code, critical, _ = await call("check", at(one), *ROOM)
        assert (code, "is the master of epoch 1, and has heard of epoch 2" in critical) == (2, True)
        assert "2 of 2 other nodes of the SyncStateSet connected" in shown


async def test_a_missing_member_is_named_by_check_and_explain(tmp_path):
    """The set may not shrink below two, so the put is SLAVE_NOT_AVAILABLE."""
    async with group(tmp_path, ha=attrs.evolve(HA, min_in_sync_replicas=3)) as (one, two, three):
        master = await promote(one, two, three)
        await three.step_down("a test")
        state = set_of(master)
        await eventually(lambda: state.missing() == {3})
        code, shown, _ = await call("check", at(one), *ROOM)
        assert code == 2
        assert "puts are SLAVE_NOT_AVAILABLE: node 3 not connected" in shown
        assert "node 3 is in the SyncStateSet, and not connected for" in shown
        assert await put(master) is Status.SLAVE_NOT_AVAILABLE
        _, shown, _ = await call("explain", at(one))
        assert "it needed nodes 1, 2, 3, and" in shown
        assert "node 3 not connected since" in " ".join(shown.split())


async def test_a_former_masters_cut_is_shown_also_after_it_was_master_again(tmp_path):
    """A warning for an hour; the counts are those of the process."""
    async with group(tmp_path) as (one, two, three):
        master = await promote(one, two, three)
        assert await put(master) is Status.PUT_OK
        point = master.max_offset
        await eventually(lambda: two.max_offset == three.max_offset == point)
        await two.step_down("a test")
        await three.step_down("a test")
        assert await put(master) is Status.SLAVE_NOT_AVAILABLE
        former_end = one.max_offset
        await promote(two, three, one, members={2, 3})
        await eventually(lambda: one.status().cuts == 1)
        code, shown, _ = await call("check", at(one), *ROOM)
        assert (code, f"its log was cut at {point}: " in shown) == (1, True), shown
        _, status = await call_json("status", at(one))
        assert status["last_cut"]["end"] == former_end
        assert status["cut_bytes"] == former_end - point
        await promote(one, two, three)
        await promote(two, one, three)
        assert one.status().cuts == 1


@pytest.mark.parametrize("wanted", [1, 2])
async def test_a_number_of_replicas_says_what_a_failure_may_lose(tmp_path, wanted):
    """In `status`, and as a warning of `doctor`."""
    async with group(tmp_path, ha=attrs.evolve(HA, in_sync_replicas=wanted)) as (one, two, three):
        await promote(one, two, three)
        _, shown, _ = await call("status", at(one))
        assert f"in_sync_replicas = {wanted}: the failure of the master" in shown
        _, shown, _ = await call("doctor", at(one))
        assert f"in_sync_replicas = {wanted}: the failure of the master" in " ".join(shown.split())
