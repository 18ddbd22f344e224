"""Names that lead to loopback on this machine, and names that it knows only later."""

import ipaddress
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

import hastore
from hastore.broker.node import group_node, own_addresses
from hastore.broker.node.group_node import run_group_node
from hastore.broker.node.master_store import Promotion
from hastore.config import CoordinatorConfig
from hastore.env.real import real_env
from hastore.errors import ConfigError
from tests.patience import WITHIN_S
from tests.support.nodes.group_nodes import node_config
from tests.support.nodes.harness import messages
from tests.support.waiting import eventually

HOSTS = {"node1": "127.0.1.1", "etcd1": "10.9.0.1", "lan1": "10.9.0.7"}  # as in Debian's /etc/hosts
AWAY = ("http://etcd1:2379",)
HERE = ("http://node1:2379",)


@attrs.define(eq=False)
class Resolver(trio.abc.HostnameResolver):
    """Knows ``hosts``; is silent about another name, as a DNS server that is down."""

    hosts: dict

    async def getaddrinfo(self, host, port, *_args, **_kwargs):
        while (found := self.hosts.get(host.decode())) is None:
            await trio.sleep(0.01)
        return [(trio.socket.AF_INET, trio.socket.SOCK_STREAM, 6, "", (found, int(port)))]

    async def getnameinfo(self, sockaddr, flags):
        raise NotImplementedError


@pytest.fixture
def hosts():
    """Return the names that this machine knows."""
    return dict(HOSTS)


@asynccontextmanager
async def resolving(hosts):
    """Let only these names be known."""
    before = trio.socket.set_custom_hostname_resolver(Resolver(hosts))
    try:
        yield
    finally:
        trio.socket.set_custom_hostname_resolver(before)


def config_of(tmp_path, *, etcd=(), advertised=None, **ports):
    config = node_config(tmp_path, 1)
    coordinator = CoordinatorConfig(endpoints=etcd, advertised_host=advertised)
    return attrs.evolve(config, coordinator=coordinator, **ports)


@pytest.mark.parametrize(
    ("ports", "name"),
    [
        ({"listen": ("node1", 0), "ha_listen": ("0.0.0.0", 0)}, r"\[listen\] client \(--listen\)"),
        ({"listen": None, "ha_listen": ("node1", 0)}, r"\[listen\] ha \(--ha-listen\)"),
    ],
)
async def test_a_name_that_is_loopback_on_its_own_machine_is_refused(tmp_path, hosts, ports, name):
    """Others would be told 127.0.1.1, which is each of them."""
    config = config_of(tmp_path, etcd=AWAY, advertised="lan1", **ports)
    async with resolving(hosts):
        with pytest.raises(ConfigError, match=rf"{name} is node1:0, and node1 is 127\.0\.1\.1"):
            await run_group_node(config, real_env())


async def test_a_group_on_one_machine_may_use_a_name_that_is_loopback(tmp_path, hosts):
    """Its etcd is on loopback, too."""
    config = config_of(tmp_path, etcd=HERE, listen=("node1", 0), ha_listen=("node1", 0))
    async with resolving(hosts), trio.open_nursery() as nursery:
        node = await nursery.start(run_group_node, config, real_env())
        assert node.ha_address[0] == "127.0.1.1"
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def master_of(config):
    async with hastore.open_node(config) as node:
        yield node, await node.become_master(Promotion(epoch=1, members=frozenset({1})))


def host_of(node, ip):
    return ipaddress.ip_address(ip).packed + node.address[1].to_bytes(4, "big")


async def test_an_advertised_name_that_is_loopback_here_is_not_in_ids_of_messages(
    tmp_path, hosts, caplog
):
    """Others may know it by another address, so the node serves; this is logged."""
    caplog.set_level("INFO", logger="hastore")
    everywhere = {"listen": ("0.0.0.0", 0), "ha_listen": ("0.0.0.0", 0)}
    config = config_of(tmp_path, etcd=AWAY, advertised="node1", **everywhere)
    async with resolving(hosts), trio.open_nursery() as nursery:
        await nursery.start(run_group_node, config, real_env())
        assert "node1 is 127.0.1.1 here" in caplog.text
        hosts["node1"] = "10.9.0.7"
        await eventually(lambda: "advertised_name_known" in caplog.text)
        nursery.cancel_scope.cancel()


async def test_a_name_that_is_known_later_is_in_the_ids_from_then_on(
    tmp_path, hosts, caplog, monkeypatch
):
    """The name servers are silent while the node starts, and it starts all the same."""
    monkeypatch.setattr(own_addresses, "LOOKUP_TIMEOUT_S", 0.1)
    monkeypatch.setattr(group_node, "_LOOKUP_PAUSE_MIN_S", 0.1)
    caplog.set_level("INFO", logger="hastore")
    ip = hosts.pop("lan1")
    config = config_of(tmp_path, advertised="lan1")
    with trio.fail_after(WITHIN_S):
        async with resolving(hosts), master_of(config) as (node, master):
            assert "no answer from the name servers about lan1" in caplog.text
            before = master.submit(messages(1)[0]).append_result
            assert before.store_host == host_of(node, "127.0.0.1")
            hosts["lan1"] = ip
            await eventually(lambda: "advertised_name_known" in caplog.text)
            after = master.submit(messages(1)[0]).append_result
            assert after.store_host == host_of(node, ip)
            message = await node.become_master(Promotion(epoch=2, members=frozenset({1})))
            assert message.submit(messages(1)[0]).append_result.store_host == host_of(node, ip)
