"""Nodes on machines of their own, in network namespaces, as docs/failover.md sets them up."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import attrs
import pytest
import trio

from hastore.broker.observe.node_status import NodeStatus
from hastore.client.producer import Producer
from hastore.cluster.etcd_client import EtcdClient, EtcdConfig
from hastore.cluster.group_records import GroupView, Keys, read_group
from hastore.errors import CoordinatorError, HastoreError
from hastore.message import Message
from hastore.status import PutMessageStatus
from hastore_cli.node.address import fetch_status
from hastore_scenarios.story.world import ScenarioSkipped
from hastore_scenarios.worlds.netns.network import NetnsNetwork, inside
from hastore_scenarios.worlds.process.child_process import ChildProcess, hastore_command
from tests.patience import PROCESS_WITHIN_S
from tests.support.etcd import preferred_kind, required_binary

KEYS = Keys.of("/hastore", "DefaultCluster", "g1")
CLIENT, HA, ETCD = 10911, 10912, 2379
EVERYWHERE = ("--listen", f"0.0.0.0:{CLIENT}", "--ha-listen", f"0.0.0.0:{HA}")
_LOOK_S = 0.05


@pytest.fixture
def network() -> Iterator[NetnsNetwork]:
    """A router, or a skip with the reason."""
    try:
        made = NetnsNetwork.make()
    except ScenarioSkipped as reason:
        pytest.skip(str(reason))
    yield made
    made.remove()


@attrs.define(eq=False)
class Machines:
    """Two machines, numbered from 1; the first one has the etcd."""

    directory: Path
    hosts: list[tuple[str, str]]  # namespace, address
    started: list[ChildProcess] = attrs.field(factory=list)

    @property
    def endpoint(self) -> str:
        """The etcd, at the address of machine 1."""
        return f"http://{self.address(1)}:{ETCD}"

    def address(self, machine: int) -> str:
        """Return a machine's address."""
        return self.hosts[machine - 1][1]

    def start(self, machine: int, name: str, *command: str) -> ChildProcess:
        """Start a process on a machine; its output goes to a file of that name."""
        in_namespace = (*inside(self.hosts[machine - 1][0]), *command)
        child = ChildProcess.start(in_namespace, self.directory / name)
        self.started.append(child)
        return child

    def start_etcd(self) -> None:
        """Start it with all addresses that docs would have it listen on."""
        self.start(
            1, "etcd.log",
            str(required_binary(preferred_kind())), "--data-dir", str(self.directory / "etcd"),
            "--listen-client-urls", f"http://0.0.0.0:{ETCD}",
            "--advertise-client-urls", self.endpoint,
            "--listen-peer-urls", "http://127.0.0.1:2380", "--logger", "zap",
        )  # fmt: skip

    def start_node(self, machine: int, *addresses: str) -> ChildProcess:
        """Start the node with the machine's number."""
        return self.start(
            machine, f"n{machine}.log",
            *hastore_command(
                "node", "--data", str(self.directory / f"n{machine}"), "--node-id", str(machine),
                "--node-group", "g1", "--group-ids", "1,2", "--etcd", self.endpoint, "--ttl", "3s",
                *addresses,
            ),
        )  # fmt: skip

    def start_as_documented(self, machine: int) -> ChildProcess:
        """Start a node that advertises its address."""
        return self.start_node(machine, *EVERYWHERE, "--advertise", self.address(machine))

    def said(self, name: str) -> str:
        """Return the output of a process."""
        return (self.directory / name).read_text(errors="replace")

    async def status(self, machine: int, holds: Callable[[NodeStatus], object]) -> NodeStatus:
        """Wait for a status of a node that fulfils a condition."""
        status: NodeStatus | None = None
        with trio.move_on_after(PROCESS_WITHIN_S):
            while True:
                with contextlib.suppress(HastoreError):
                    status = await fetch_status((self.address(machine), CLIENT))
                    if holds(status):
                        return status
                await trio.sleep(_LOOK_S)
        raise AssertionError(f"last seen: {status}\n{self.said(f'n{machine}.log')}")


@pytest.fixture
async def machines(network: NetnsNetwork, tmp_path: Path) -> AsyncIterator[Machines]:
    """Two machines and a running etcd."""
    made = Machines(tmp_path, [network.add_host(), network.add_host()])
    try:
        made.start_etcd()
        yield made
    finally:
        for child in made.started:
            await child.end()


async def settled(machines: Machines) -> GroupView:
    """Wait until there is a master, and both nodes are in its set."""
    view: GroupView | None = None
    config = EtcdConfig(endpoints=(machines.endpoint,))
    with trio.move_on_after(PROCESS_WITHIN_S):
        async with EtcdClient.open(config) as store:
            while True:
                with contextlib.suppress(CoordinatorError):
                    view = read_group(KEYS, await store.read(KEYS.base))
                    if view.leader and view.state and view.state.ids == {1, 2}:
                        return view
                await trio.sleep(_LOOK_S)
    raise AssertionError(f"last seen: {view}\n{machines.said('n1.log')}{machines.said('n2.log')}")


async def test_nodes_on_two_machines_use_each_others_addresses(machines: Machines) -> None:
    """In etcd, on their links, in ids of messages; and each machine's clock has one vote."""
    machines.start_as_documented(1)
    alone = await machines.status(1, lambda status: status.clock and status.clock.leads_s)
    assert alone.clock is not None
    assert list(alone.clock.leads_s) == [f"etcd at {machines.endpoint}"]
    assert alone.clock.trust == "plausible"  # its own machine's etcd confirms nothing
    machines.start_as_documented(2)
    view = await settled(machines)
    assert view.leader is not None
    master_id = view.leader.holder.node_id
    assert {node_id: each.ha_address for node_id, each in view.members.items()} == {
        node_id: f"{machines.address(node_id)}:{HA}" for node_id in (1, 2)
    }
    master, slave = machines.address(master_id), machines.address(3 - master_id)
    async with Producer.connect((slave, CLIENT), (master, CLIENT)) as producer:
        result = await producer.send(Message("T", b"x"))
    assert result.status is PutMessageStatus.PUT_OK
    host = bytes(map(int, master.split("."))) + CLIENT.to_bytes(4, "big")
    assert result.message_id.startswith(host.hex().upper())
    status = await machines.status(3 - master_id, lambda status: status.max_offset > 0)
    assert status.master_link is not None
    assert status.master_link.address == f"{master}:{HA}"
    for machine in (1, 2):
        await machines.status(machine, lambda s: s.clock and s.clock.trust == "confirmed")


@pytest.mark.parametrize(
    ("addresses", "why"),
    [
        ((), "[listen] ha (--ha-listen) is 127.0.0.1:10912"),
        (
            (*EVERYWHERE, "--advertise", "127.0.0.1"),
            "[cluster] advertise (--advertise) is 127.0.0.1",
        ),
    ],
)
async def test_a_node_that_advertises_loopback_to_another_machine_is_refused(
    machines: Machines, addresses: tuple[str, ...], why: str
) -> None:
    """Before it has told etcd anything."""
    node = machines.start_node(2, *addresses)
    with trio.fail_after(PROCESS_WITHIN_S):
        assert await node.wait() != 0
    assert why in machines.said("n2.log")
    async with EtcdClient.open(EtcdConfig(endpoints=(machines.endpoint,))) as store:
        with trio.fail_after(PROCESS_WITHIN_S):
            while True:
                with contextlib.suppress(CoordinatorError):
                    assert not (await store.read("/hastore")).items
                    return
                await trio.sleep(_LOOK_S)
