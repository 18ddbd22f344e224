"""A node of a replica group changes its role within its process, over real sockets."""

import ipaddress
from types import SimpleNamespace

import attrs
import pytest
import trio
import trio.testing

import hastore
from hastore.broker.node import group_node
from hastore.broker.node.group_node import GroupNode
from hastore.broker.node.master import Master
from hastore.broker.node.master_store import Promotion
from hastore.broker.node.node import RunningNode
from hastore.broker.node.slave import Slave
from hastore.broker.observe.metrics_server import MetricsServer
from hastore.broker.request_target import RoleWish
from hastore.config import NO_MASTER, CoordinatorConfig
from hastore.env.real import real_env
from hastore.errors import (
    ConfigError,
    EpochFileError,
    RoleChangedError,
    StaleEpochError,
    SyncStateFileError,
    WrongPortError,
)
from hastore.ha.damaged_records import DamagedRecords
from hastore.ha.group_ha_service import GroupHAService
from hastore.ha.ha_client import HAClient
from hastore.ha.sync_state_set import SyncStateSet
from hastore.status import PutMessageStatus as Status
from hastore.store.epoch_file import EPOCH_FILE, EpochFile
from hastore.store.node_identity import read_identity
from hastore.store.sync_state_file import SYNC_STATE_FILE
from tests.patience import WITHIN_S
from tests.support.nodes.autoswitch_master import epochs_in, history
from tests.support.nodes.group_nodes import HA, group, node_config, promote, put, set_of
from tests.support.nodes.harness import log_bytes, messages
from tests.support.waiting import eventually


async def test_a_node_without_a_role_serves_consumers_only(tmp_path):
    """It waits, and says so; its HA port closes each connection."""
    async with hastore.open_node(node_config(tmp_path, 1)) as node:
        assert isinstance(node.role_node, Slave)
        assert node.status().state == "unassigned"
        request = node.role_node.submit(messages(1)[0])
        assert request.status is Status.SERVICE_NOT_AVAILABLE
        assert "no role" in request.result.reason
        async with await trio.open_tcp_stream(*node.ha_address) as peer:
            with trio.fail_after(WITHIN_S):
                assert await peer.receive_some(1) == b""
    assert epochs_in(tmp_path) == history()


async def test_a_node_that_reaches_itself_says_so(tmp_path):
    """The address of its master leads back to it, as 127.0.0.1 of another machine's node does."""
    async with group(tmp_path, 2) as (one, two):
        slave = await two.follow(two.ha_address, 1)
        own = f"127.0.0.1:{two.ha_address[1]}"
        await eventually(lambda: slave.ha_client.reason is not None)
        link = two.status().master_link
        assert link.reason == (
            f"{own} is this node's own HA port: the address of its master leads back to it"
        )
        assert "--advertise" in link.hint
        assert await put(await promote(one, two)) is Status.PUT_OK  # a right address heals it


@pytest.mark.parametrize(
    ("advertised", "ip"),
    [("10.7.0.9", "10.7.0.9"), ("localhost", "127.0.0.1"), ("no.such.invalid", "127.0.0.1")],
)
async def test_ids_of_messages_have_the_advertised_address(tmp_path, advertised, ip):
    """And the records; a name that this machine does not know is logged."""
    config = attrs.evolve(
        node_config(tmp_path, 1),
        coordinator=CoordinatorConfig(advertised_host=advertised),
    )
    async with hastore.open_node(config) as node:
        master = await node.become_master(Promotion(epoch=1, members=frozenset({1})))
        appended = master.submit(messages(1)[0]).append_result
        host = ipaddress.ip_address(ip).packed + node.address[1].to_bytes(4, "big")
        assert appended.store_host == host
        assert appended.message_id.startswith(host.hex().upper())


async def test_slave_master_slave_in_one_process(tmp_path):
    """Each change keeps ports and directory; the logs end byte-identical."""
    async with group(tmp_path) as (one, two, three):
        ports = [(node.address, node.ha_address) for node in (one, two, three)]
        master = await promote(one, two, three)
        assert [await put(master, b"a%d" % n) for n in range(5)] == [Status.PUT_OK] * 5
        end_1 = one.max_offset
        master = await promote(two, one, three)
        assert [await put(master, b"b%d" % n) for n in range(5)] == [Status.PUT_OK] * 5
        end_2 = two.max_offset
        master = await promote(one, three, two)
        assert isinstance(one.role_node, Master)
        assert isinstance(two.role_node, Slave)
        assert [await put(master, b"c%d" % n) for n in range(5)] == [Status.PUT_OK] * 5
        assert ports == [(node.address, node.ha_address) for node in (one, two, three)]
        end = one.max_offset
        starts = read_identity(real_env().disk, str(tmp_path / "1")).starts
    assert starts == 1
    logs = {log_bytes(tmp_path / name, end) for name in "123"}
    assert len(logs) == 1
    for name in "123":
        assert epochs_in(tmp_path / name) == history((1, 0), (2, end_1), (3, end_2))


async def test_waiting_puts_are_never_ok_after_a_step_down(tmp_path, monkeypatch):
    """They are stored, so FLUSH_SLAVE_TIMEOUT, at once; new ones are SERVICE_NOT_AVAILABLE."""
    slow = attrs.evolve(HA, sync_state_timeout_ms=3_600_000, slave_timeout_ms=3_600_000)
    async with group(tmp_path, 2, ha=slow) as (one, two):
        master = await promote(one, two)
        assert await put(master) is Status.PUT_OK
        monkeypatch.setattr(GroupHAService, "acknowledge", lambda *_report: None)
        request = master.submit(messages(1)[0])
        end = request.append_result.next_offset
        await eventually(lambda: two.max_offset == end)
        assert request.status is None
        # As if the set had waited for a learner, and waits no more.
        monkeypatch.setattr(
            SyncStateSet, "hand_over", lambda group: setattr(group, "ack_limit", end)
        )
        await one.follow(two.ha_address, 2)
        reason = f"the master of epoch 2 is at 127.0.0.1:{two.ha_address[1]}"
        refused = master.submit(messages(1)[0])
        assert (request.status, request.result.reason) == (Status.FLUSH_SLAVE_TIMEOUT, reason)
        assert (refused.status, refused.result.reason) == (Status.SERVICE_NOT_AVAILABLE, reason)
        assert isinstance(one.role_node, Slave)


async def test_an_older_epoch_is_never_begun_nor_followed(tmp_path):
    """The node goes on in the role that it has."""
    async with group(tmp_path, 2) as (one, two):
        master = await promote(one, two, epoch=7)
        with pytest.raises(StaleEpochError, match="cannot become master of epoch 7"):
            await two.become_master(Promotion(epoch=7))
        with pytest.raises(StaleEpochError, match="does not follow the master of epoch 6"):
            await one.follow(two.ha_address, 6)
        assert one.role_node is master
        assert await put(master) is Status.PUT_OK


async def test_an_epoch_far_above_all_others_is_refused(tmp_path):
    """It would be durable, and leave the group no later epoch."""
    last = 2**31 - 1
    async with hastore.open_node(node_config(tmp_path, 1)) as node:
        for asked in (
            lambda: node.become_master(Promotion(epoch=last)),
            lambda: node.follow(("127.0.0.1", 1), last),
            lambda: node.change_role(RoleWish(epoch=1_000_001, master_id=1)),
        ):
            with pytest.raises(ConfigError, match="more than 1,000,000 above the last that node 1"):
                await asked()
        assert node.identity.current.seen_epoch == 0
        alone = frozenset({1})
        master = await node.become_master(Promotion(epoch=1_000_000, members=alone))
        assert await put(master) is Status.PUT_OK


async def test_a_promotion_that_cannot_begin_leaves_no_role(tmp_path):
    """The caller gets the reason; consumers are served on."""
    async with hastore.open_node(node_config(tmp_path, 1)) as node:
        EpochFile(real_env().disk, f"{tmp_path}/{EPOCH_FILE}").store(history((3, 0)))
        (tmp_path / SYNC_STATE_FILE).write_bytes(b"torn")  # only a master reads it
        before = node.role_node
        with pytest.raises(SyncStateFileError):
            await node.become_master()
        await eventually(lambda: node.role_node is not before)
        assert isinstance(node.role_node, Slave)
        (tmp_path / SYNC_STATE_FILE).unlink()
        master = await node.become_master()
        assert master.ha_service.sync_state_set.entry.epoch == 4


@pytest.mark.parametrize("follows", [False, True])
async def test_a_torn_file_of_epochs_leaves_no_role(tmp_path, follows):
    """Only a start ends by it; once the file is repaired the node can have a role again."""
    async with group(tmp_path, 2) as (one, two):
        await promote(one, two)
        assert await put(one.role_node) is Status.PUT_OK
        file = tmp_path / "2" / EPOCH_FILE
        content = file.read_bytes()
        file.write_bytes(b"torn")
        before = two.role_node
        change = two.follow(one.ha_address, 2) if follows else two.become_master()
        with pytest.raises(EpochFileError):
            await change
        await eventually(lambda: two.role_node is not before)
        assert two.status().state == "unassigned"
        assert two.status().max_offset == one.max_offset
        assert file.read_bytes() == b"torn"
        file.write_bytes(content)
        await promote(two, one)


@pytest.mark.parametrize("was_answered", [False, True])
async def test_only_an_address_that_was_never_right_ends_a_node(
    tmp_path, monkeypatch, was_answered
):
    """Later another process may listen at its master's address."""

    async def run(client):
        if client.config.master == NO_MASTER:
            await trio.sleep_forever()
        client.framing.masters_epoch = 3 if was_answered else None
        await has_begun.wait()
        raise WrongPortError("no HA port")

    has_begun = trio.Event()
    monkeypatch.setattr(HAClient, "run", run)
    config = node_config(tmp_path, 1, master=("127.0.0.1", 9))
    if was_answered:
        async with hastore.open_node(config) as node:
            before = node.role_node
            has_begun.set()
            await eventually(lambda: node.role_node is not before)
            assert node.status().state == "unassigned"
        return
    has_begun.set()
    with pytest.raises(WrongPortError):
        async with hastore.open_node(config):
            await trio.sleep_forever()


async def test_metrics_name_no_node_between_two_roles(tmp_path, monkeypatch):
    """Its store is closed: /ready is 503, and no page reads the node that was."""
    served = []
    serve = MetricsServer.serve
    monkeypatch.setattr(
        MetricsServer, "serve", lambda self, node: (served.append(node), serve(self, node))
    )
    async with hastore.open_node(node_config(tmp_path, 1, (1,))) as node:
        slave = node.role_node
        master = await node.become_master()
        assert served == [slave, None, master]


async def test_a_slave_that_was_told_of_a_newer_epoch_acknowledges_nothing_in_an_older(
    tmp_path, monkeypatch
):
    """From the answer on, however long its change of role takes: others count on that."""
    slow = attrs.evolve(HA, sync_state_timeout_ms=3_600_000, slave_timeout_ms=3_600_000)
    async with group(tmp_path, 2, ha=slow) as (one, two):
        master = await promote(one, two)
        assert await put(master) is Status.PUT_OK
        with monkeypatch.context() as patch:
            patch.setattr(RunningNode, "stop", lambda _node: None)
            await two.change_role(
                RoleWish(epoch=2, master_id=None, master_address=None, members=None)
            )
            assert two.identity.current.seen_epoch == 2
            assert two.role_node.ha_client.link.local_address is not None
            request = master.submit(messages(1)[0])
            with trio.fail_after(WITHIN_S):
                assert await request.wait() is Status.SLAVE_NOT_AVAILABLE
            await eventually(lambda: "epoch" in (two.role_node.ha_client.reason or ""))
        two.role_node.stop()
        await eventually(lambda: two.status().state == "unassigned")


async def test_master_whose_next_role_is_cancelled_is_a_slave_of_nobody(tmp_path):
    """It has given up its role, so it must not stay between two."""
    async with group(tmp_path, 2) as (one, two):
        await promote(one, two)
        with trio.CancelScope() as scope:
            scope.cancel()
            await one.follow(two.ha_address)
        assert scope.cancelled_caught
        with trio.fail_after(WITHIN_S):
            await eventually(lambda: isinstance(one.role_node, Slave))
        assert one.status().state == "unassigned"
        await promote(one, two, epoch=2)


async def test_change_that_an_earlier_one_overtakes_is_refused(tmp_path, monkeypatch):
    """A request made it: nobody waits for it, so the log says why nothing came of it."""
    refused = []
    log = SimpleNamespace(
        error=lambda event, **_values: refused.append(event), info=lambda *_event, **_values: None
    )
    async with hastore.open_node(node_config(tmp_path, 1)) as node:
        monkeypatch.setattr(group_node, "_log", log)
        await node.change_role(RoleWish(epoch=3, master_id=1, members=frozenset({1})))
        await node.change_role(RoleWish(epoch=2))
        with trio.fail_after(WITHIN_S):
            await eventually(lambda: refused == ["role_refused"])
        assert isinstance(node.role_node, Master)
        assert node.role_node.epoch == 3
        assert await put(node.role_node) is Status.PUT_OK


async def test_a_master_is_followed_although_an_abandoned_promotion_fails_meanwhile(
    tmp_path, monkeypatch
):
    """The change that nobody waits for begins while the next one makes its epoch durable."""
    see, serve, began = GroupNode._see, group_node.serve_master, trio.Event()

    async def see_late(self, epoch):
        if self is one and epoch == 4:
            await began.wait()
        await see(self, epoch)

    async def serve_late(*args, **how):
        began.set()
        with trio.move_on_after(WITHIN_S):  # until the epoch is durable, then it cannot begin
            while one.identity.current.seen_epoch < 4:
                await trio.sleep(0.001)
        await trio.testing.wait_all_tasks_blocked()
        await serve(*args, **how)

    async with group(tmp_path, 2) as (one, two):
        await two.become_master(Promotion(epoch=4))
        monkeypatch.setattr(GroupNode, "_see", see_late)
        monkeypatch.setattr(group_node, "serve_master", serve_late)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.become_master, Promotion(epoch=3))
            await eventually(lambda: one._next is not None, every_s=0)
            nursery.cancel_scope.cancel()
        with trio.fail_after(WITHIN_S):
            slave = await one.follow(two.ha_address, 4)
        assert slave is one.role_node
        await eventually(lambda: set_of(two.role_node).accepted == {1, 2})


async def test_request_that_is_told_again_changes_nothing(tmp_path):
    """Neither while the change is made, nor after it."""
    wish = RoleWish(epoch=3, master_id=1, members=frozenset({1}))
    async with hastore.open_node(node_config(tmp_path, 1)) as node:
        await node.change_role(wish)
        await node.change_role(wish)
        with trio.fail_after(WITHIN_S):
            await eventually(lambda: isinstance(node.role_node, Master))
        master = node.role_node
        await node.change_role(wish)
        await trio.testing.wait_all_tasks_blocked()
        assert node.role_node is master
        assert await put(master) is Status.PUT_OK


async def test_a_stop_ends_a_change_that_waits(tmp_path):
    """Whoever asked for it is told."""
    async with hastore.open_node(node_config(tmp_path, 1)) as node:
        outcomes = []

        async def ask():
            try:
                await node.become_master()
            except RoleChangedError as error:
                outcomes.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            node.stop()
        assert len(outcomes) == 1


async def test_a_quiet_slave_learns_what_is_confirmed(tmp_path):
    """Its consumers need not wait for the next heartbeat, nor for the next message."""
    silent = attrs.evolve(
        HA, ha_send_heartbeat_interval_ms=3_600_000, ha_housekeeping_interval_ms=7_200_000
    )
    async with group(tmp_path, 2, ha=silent) as (one, two):
        master = await promote(one, two)
        for _ in range(2):
            assert await put(master) is Status.PUT_OK
            end = one.max_offset
            await eventually(lambda end=end: two.status().confirm_offset == end)


async def test_a_slave_compares_a_damaged_record_with_its_groups_master(tmp_path):
    """Over a link of its own, in the protocol of the group: its own link stays as it is."""
    async with group(tmp_path, 2) as nodes:
        master = await promote(nodes[0], nodes[1])
        for _ in range(20):
            assert await put(master) is Status.PUT_OK
        slave = nodes[1].role_node
        # Dispatch, too, ends the link at a damaged record: it must have read this one before.
        reput = slave.reput_message_service
        await eventually(lambda: reput.committed_offset == master.max_offset, "all dispatched")
        client = slave.ha_client
        damages = DamagedRecords(
            slave.env,
            slave.commit_log,
            nodes[0].ha_address,
            reader=client.framing.log_reader,
        )
        assert await damages.is_same_on_master(0)
        path = tmp_path / "2" / "commitlog" / f"{0:020d}"
        with path.open("r+b") as file:
            file.seek(100)
            byte = file.read(1)[0]
            file.seek(100)
            file.write(bytes([byte ^ 1]))
        assert not await damages.is_same_on_master(0)
        assert client.live_link is not None
