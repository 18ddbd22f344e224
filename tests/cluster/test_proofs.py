"""Histories of a directory and its etcd in which a node was once elected, or barred, wrongly."""

import random

import attrs
import trio

from hastore.cluster import operations
from hastore.cluster.group_records import GroupConfig
from hastore.cluster.key_value_store import Delete, Put
from hastore.cluster.operations import Change
from hastore.status import FlushDiskType
from hastore.status import PutMessageStatus as Status
from hastore.store.node_identity import decode_identity, encode_identity
from tests.cluster.simulated import simulated
from tests.support.nodes.simulated_group import TTL_S, Fate


@simulated()
async def test_a_snapshot_of_a_start_that_stopped_cleanly_later_is_no_proof(group):
    """It has the token, and its acks were synced; the machine's memory knows the rest."""
    first, master = await group.master()
    assert await group.put(master) is Status.PUT_OK
    victim = first % 3 + 1
    await trio.sleep(40)
    before = group.view.state.confirm_offset
    assert await group.put(master, 500) is Status.PUT_OK
    await group.until(lambda: group.view.state.confirm_offset > before)
    await trio.sleep(6)
    copy = group.node(victim).live_disk.snapshot()
    assert await group.put(master, 500) is Status.PUT_OK
    await trio.sleep(1)
    end = master.commit_log.max_offset
    for each in (1, 2, 3):
        group.stop(each)
    await group.until(lambda: not any(group.node(each).is_up for each in (1, 2, 3)))
    group.node(victim).replace_disk(copy)
    group.start(victim)
    await trio.sleep(12 * TTL_S)
    assert not group.masters()
    assert "it had acknowledged up to" in group.view.members[victim].doubt
    group.start(*({1, 2, 3} - {victim}))
    _, master = await group.master(epoch=2)
    assert master.commit_log.max_offset >= end


@simulated()
async def test_nodes_claim_their_ids_again_after_etcd_was_restored(group):
    """Else they are copies at their next start, and a copy from before the backup is not."""
    first, master = await group.master()
    others = sorted({1, 2, 3} - {first})
    backup = group.model.backup()
    for each in others:
        group.node(each).kill()
        group.start(each)
        await group.until(lambda node_id=each: group.starts.get(node_id) == 2)
    await trio.sleep(5)
    group.model.stop()
    await trio.sleep(1)
    group.model.restore(backup, as_other_cluster=False)
    group.model.start()
    await group.until(lambda: group.view.config.alarm is not None)
    await trio.sleep(2 * TTL_S)
    assert group.view.registrations[others[0]].start == 1
    for each in others:  # the first attempt fails, and is made again
        group.stores[each].next("commit", f"ids/{each}", Fate.REFUSED)
    group.configure(GroupConfig())
    await group.until(lambda: all(group.view.registrations[each].start == 2 for each in others))
    _, master = await group.master()
    assert await group.put(master) is Status.PUT_OK
    await trio.sleep(6)
    for each in (1, 2, 3):
        group.node(each).cut_power()
    group.start(*others)
    await group.master(epoch=2, members=2)
    assert all(group.view.members[each].doubt is None for each in others)


async def begin_again_in_another_etcd(group, backup):
    """Restore a backup of an etcd that did not know the group, and begin it again, as an operator.

    Return the master.
    """
    group.model.stop()
    await trio.sleep(1)
    group.model.restore(backup, as_other_cluster=True)
    group.model.start()
    await group.until(lambda: group.view.config.alarm is not None)
    await group.until(lambda: len(group.view.members) == 3)
    claimed = sorted(group.view.registrations)
    assert not claimed
    group.commit_change(operations.init(group.keys, group.view, force=True))
    group.configure(GroupConfig())
    await group.until(lambda: group.masters() and len(group.view.state.members) == 3)
    (master,) = group.masters().values()
    return master


@simulated()
async def test_a_group_whose_etcd_was_lost_needs_no_operator_after_a_power_cycle(group):
    """Nobody wrote the lost claims again, so no directory was recognised by the next start."""
    backup = group.model.backup()
    _, master = await group.master()
    assert await group.put(master) is Status.PUT_OK
    master = await begin_again_in_another_etcd(group, backup)
    assert await group.put(master) is Status.PUT_OK
    await trio.sleep(3 * TTL_S)
    claimed = sorted(group.view.registrations)
    assert claimed == [1, 2, 3]
    epoch = group.view.state.epoch
    for each in (1, 2, 3):
        group.node(each).kill()
    group.start(1, 2, 3)
    _, master = await group.master(epoch=epoch + 1)
    assert await group.put(master) is Status.PUT_OK


@simulated()
async def test_an_id_that_is_freed_as_its_lost_claim_is_written_stays_free(group):
    """The node's request to claim it again arrives after the operator's to remove the node."""
    backup = group.model.backup()
    await group.master()
    await begin_again_in_another_etcd(group, backup)
    victim = next(each for each in (1, 2, 3) if each not in group.masters())
    store, key = group.stores[victim], f"commit {group.keys.registration(victim)}"
    store.asked.clear()
    store.next("commit", f"ids/{victim}", Fate.LATE)
    await group.until(lambda: key in store.asked)
    group.node(victim).kill()
    left = group.view
    claimed = sorted(left.registrations)
    assert victim not in claimed
    free = Change(
        what="",
        comparisons=(),
        writes=(
            Delete(group.keys.registration(victim)),
            Put(
                group.keys.state,
                attrs.evolve(
                    left.state, members=tuple(e for e in left.state.members if e.node_id != victim)
                ).encode(),
            ),
        ),
    )
    group.commit_change(free)
    await trio.sleep(2 * store.late_s)
    claimed = sorted(group.view.registrations)
    assert victim not in claimed


@simulated(flush=FlushDiskType.ASYNC_FLUSH)
async def test_a_start_that_waits_for_etcd_keeps_the_proof_of_a_clean_stop(group):
    """All stopped cleanly, and lost their power as they waited for an etcd that was down."""
    _, master = await group.master()
    assert await group.put(master) is Status.PUT_OK
    for each in (1, 2, 3):
        group.stop(each)
    await group.until(lambda: not any(group.node(each).is_up for each in (1, 2, 3)))
    group.model.stop()
    group.start(1, 2, 3)
    await trio.sleep(20)
    for each in (1, 2, 3):
        group.node(each).cut_power(random.Random(each))
    group.model.start()
    group.start(1, 2)
    await group.until(group.masters)
    assert group.view.config.unproven_epoch is None
    assert all(group.view.members[each].doubt is None for each in (1, 2))


@simulated(flush=FlushDiskType.ASYNC_FLUSH)
async def test_a_process_that_has_changed_its_role_proves_nothing_by_an_earlier_stop(group):
    """Each role change closes the log cleanly, and acknowledges more afterwards."""
    await group.master()
    identities = [group.cluster.agent(each).node.identity for each in (1, 2, 3)]
    assert [each.current.clean_end for each in identities] == [-1, -1, -1]


@simulated(flush=FlushDiskType.ASYNC_FLUSH, seed=3)
async def test_a_floor_is_on_the_disks(group):
    """A power cut of all nodes right after it was written bars none of them for ever."""
    _, master = await group.master()
    await trio.sleep(65)
    before = group.view.state.confirm_offset
    while group.view.state.confirm_offset == before:
        assert await group.put(master) is Status.PUT_OK
        with trio.move_on_after(7):
            await group.until(lambda: group.view.state.confirm_offset > before)
    for each in (1, 2, 3):
        group.node(each).cut_power(random.Random(each))
    group.start(1, 2, 3)
    await group.master(epoch=2)
    assert group.view.config.unproven_epoch is not None


async def lose_claim(group, node_id):
    """Let etcd lose a node's claim, and nothing else, as by a wrong ``etcdctl del``."""
    lost = Delete(group.keys.registration(node_id))
    group.model.take(lambda: group.model.state.commit([], [lost]))
    await trio.sleep(1)


@simulated()
async def test_a_damaged_claim_is_written_again(group):
    """The next start could not read it, and waited for ever."""
    first, _ = await group.master()
    other = first % 3 + 1
    key = group.keys.registration(other)
    claim = group.model.state.items[key].value
    group.commit(key, b"garbage")
    await group.until(lambda: group.model.state.items[key].value == claim)
    group.node(other).kill()
    group.start(other)
    await group.until(lambda: group.starts.get(other) == 2)
    assert group.view.members[other].doubt is None


@simulated()
async def test_a_claim_that_was_removed_as_its_node_was_cut_off_is_written_again(group):
    """Its record was gone for a moment, so it was removed, and joined the set again."""
    first, _ = await group.master()
    victim = first % 3 + 1
    gone = Delete(group.keys.member(victim))
    group.model.take(lambda: group.model.state.commit([], [gone]))
    group.commit_change(operations.remove(group.keys, group.view, victim))
    claimed = sorted(group.view.registrations)
    assert victim not in claimed
    await group.until(lambda: victim in group.view.registrations)
    assert group.view.registrations[victim].start == 1


@simulated()
async def test_an_older_copy_gets_no_start_that_the_state_names(group):
    """Where the claim was lost, it took the start of the member that had acknowledged the rest."""
    first, master = await group.master()
    victim = first % 3 + 1
    assert await group.put(master) is Status.PUT_OK
    await trio.sleep(6)
    copy = group.node(victim).live_disk.snapshot()
    for start in (2, 3):
        group.node(victim).kill()
        group.start(victim)
        await group.until(lambda start=start: group.starts.get(victim) == start)
    await lose_claim(group, victim)
    for _ in range(20):
        assert await group.put(master, 500) is Status.PUT_OK
    end = master.commit_log.max_offset
    for each in (1, 2, 3):
        group.node(each).kill()
    await group.until(lambda: not group.view.members)
    await lose_claim(group, victim)  # if it was written again
    group.node(victim).replace_disk(copy)
    group.start(victim)
    await trio.sleep(12 * TTL_S)
    assert not group.masters()
    said = group.view.members[victim]
    assert (said.node.start, said.kept_since, said.disowned_in) == (4, 4, 4)
    group.start(*({1, 2, 3} - {victim}))
    _, master = await group.master(epoch=2)
    assert master.commit_log.max_offset >= end


@simulated()
async def test_a_copy_from_before_the_first_claim_is_not_recognised(group):
    """It has no token, as etcd has none, and the state names its directory."""
    await group.master()
    for each in (1, 2, 3):
        group.node(each).kill()
    await group.until(lambda: not group.view.members)
    await lose_claim(group, 2)
    path, disk = "/d/identity.json", group.node(2).disk
    before = decode_identity(disk.read_file(path))
    disk.write_file(path, encode_identity(attrs.evolve(before, token=None)))
    group.start(2)
    await group.until(lambda: 2 in group.view.members)
    said = group.view.members[2]
    assert (said.node.start, said.kept_since, said.disowned_in) == (3, 3, 3)


@simulated(ttl_s=30)
async def test_a_start_with_a_shorter_ttl_waits_for_the_lease_of_the_last_one(group):
    """Its record is there for as long as it was granted, though the process has ended."""
    await group.master()
    group.role_config = attrs.evolve(group.role_config, ttl_s=3)
    group.node(2).cut_power()
    await trio.sleep(5)
    group.start(2)
    await group.until(lambda: group.view.registrations[2].start == 2)
    await group.until(lambda: 2 in group.view.members)
    assert not group.ended
