"""Network namespaces: a machine without them skips with the reason, and none is left over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hastore_scenarios.registry import find
from hastore_scenarios.runner import WorldKind, run_one
from hastore_scenarios.story.world import ScenarioFailed, ScenarioSkipped, World
from hastore_scenarios.worlds.netns.network import AddressPair, NetnsNetwork, inside, run
from tests.scenarios.passing import scenario_of


@pytest.fixture
def network():
    """A router with two hosts, or a skip."""
    try:
        made = NetnsNetwork.make()
    except ScenarioSkipped as reason:
        pytest.skip(str(reason))
    yield made
    made.remove()


def test_a_machine_without_ip_skips_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result names the command that could not run, and no story is started."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (scenario,) = find("sync-put")
    result = run_one(scenario, world=WorldKind.NETNS, directory=tmp_path / "w")
    assert result.skipped is not None
    assert result.skipped.startswith("no network namespaces here: ip netns list: ")
    assert not result.passed
    assert result.failure is None


def test_a_router_drops_one_way(network: NetnsNetwork) -> None:
    """Packets are lost in that direction only, and only until they are passed again."""
    (one, one_address), (other, other_address) = network.add_host(), network.add_host()
    assert arrives(one, other, other_address)
    network.drop(AddressPair(one_address, other_address))
    assert not arrives(one, other, other_address)
    assert arrives(other, one, one_address)
    network.pass_again(AddressPair(one_address, other_address))
    assert arrives(one, other, other_address)


def test_remove_leaves_no_namespace_or_interface(network: NetnsNetwork) -> None:
    """The fixture removes the network once more, which is harmless."""
    network.add_host()
    network.remove()
    assert f"hastore-{os.getpid()}" not in run("ip", "netns", "list")
    assert f"hs{os.getpid()}" not in run("ip", "link")


def test_a_command_in_a_namespace_shares_the_mounts(network: NetnsNetwork) -> None:
    """With separate mounts it would keep another test's disk mounted after its unmount."""
    own = run("readlink", "/proc/self/ns/mnt")
    assert run(*inside(network.router), "readlink", "/proc/self/ns/mnt") == own
    assert run(*inside(network.router), "readlink", "/proc/self/ns/net") != run(
        "readlink", "/proc/self/ns/net"
    )


def arrives(source: str, target: str, address: str) -> bool:
    """Return whether a datagram gets from one namespace to another."""
    listen = (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM);"
        f"s.bind(({address!r}, 9)); print('ready', flush=True);"
        "input(); s.settimeout(0.5); print(s.recv(9))"  # after the datagram was sent
    )
    send = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ({address!r}, 9))"
    with subprocess.Popen(
        [*inside(target), sys.executable, "-c", listen],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as listener:
        assert listener.stdin is not None
        assert listener.stdout is not None
        assert listener.stdout.readline() == b"ready\n"
        subprocess.run([*inside(source), sys.executable, "-c", send], check=True)
        listener.stdin.write(b"\n")
        listener.stdin.flush()
        return b"x" in listener.stdout.read()


def test_a_link_between_namespaces_is_reset_and_shaped(tmp_path: Path) -> None:
    """A reset ends the connection and nothing else; a slow link limits the rate."""

    async def story(world: World) -> None:
        master = await world.start_master("a")
        slave = await world.start_slave("b", master=master)
        await world.wait_healthy(slave)
        link = (await world.status(slave)).master_link
        assert link is not None
        world.link(slave).reset()
        await world.wait_until(
            slave,
            "it has connected again",
            lambda s: s.master_link is not None and s.master_link.connections > link.connections,
        )
        await world.wait_healthy(slave)
        world.link(slave).slow(500_000)
        began_s = world.now_s
        await world.put_many(master, 6, size=100_000, wait=False)
        await world.wait_healthy(slave)
        assert world.now_s - began_s > 1.0
        world.link(slave).heal()
        await world.put_many(master, 6, size=100_000)

    result = run_one(scenario_of(story), world=WorldKind.NETNS, directory=tmp_path / "w")
    if result.skipped is not None:
        pytest.skip(result.skipped)
    assert result.passed, result.why
    assert result.put_counts == {"PUT_OK": 12}


def test_a_failed_command_after_setup_is_an_error(network: NetnsNetwork) -> None:
    """A drop rule that cannot be set fails the run instead of skipping it."""
    network.remove()
    with pytest.raises(ScenarioFailed, match="ip rule add from"):
        network.drop(AddressPair("10.1.1.1", "10.1.1.2"))


@pytest.fixture
def fake_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that replaces the network commands: those of a pattern run an action."""

    def make(pattern: str, action: str) -> None:
        for name in ("ip", "nsenter", "ss", "tc"):
            script = tmp_path / name
            script.write_text(
                f'#!/bin/sh\ncase "{name} $*" in {pattern}) {action};; esac\n', encoding="utf-8"
            )
            script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return make


REFUSED = "echo no >&2; exit 2"


@pytest.mark.parametrize(
    "pattern", ["*netns?add*probe", "*rule?add*", "*type?veth?peer?name?other"]
)
def test_a_refused_probe_is_a_skip(fake_commands, pattern: str) -> None:
    """Without namespaces, drop rules or veth pairs, the story is skipped."""
    fake_commands(pattern, REFUSED)
    refused = r"no network namespaces here: (ip netns|nsenter) .*: no"
    with pytest.raises(ScenarioSkipped, match=refused):
        NetnsNetwork.make()


@pytest.mark.parametrize("pattern", ["*link?add?hs*", "*netns?add*-r", "*route?add*"])
def test_a_failure_after_the_probe_fails_the_run(
    fake_commands, pattern: str, tmp_path: Path
) -> None:
    """The machine supports namespaces, so the run is at fault: a name already in use, a typo."""
    fake_commands(pattern, REFUSED)
    (scenario,) = find("sync-put")
    result = run_one(scenario, world=WorldKind.NETNS, directory=tmp_path / "w")
    assert (result.skipped, result.passed) == (None, False)
    assert result.failure is not None
    assert result.failure.endswith(": no")


def test_a_probe_that_times_out_is_a_failure(
    fake_commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine under load may still support namespaces."""
    fake_commands("*rule?add*", "exec sleep 60")
    monkeypatch.setattr("hastore_scenarios.worlds.netns.network._TIMEOUT_S", 0.5)
    with pytest.raises(ScenarioFailed, match="timed out"):
        NetnsNetwork.make()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*tc*|*ss?-K*", ScenarioSkipped),
        ("*tc*dev?n1*|*nsenter*-1?ss*", ScenarioFailed),
    ],
)
def test_shape_and_reset_skip_only_on_an_incapable_machine(
    fake_commands, pattern: str, expected: type[Exception]
) -> None:
    """If a probe of the same kind works, a failed command is an error and not a skip."""
    fake_commands(pattern, REFUSED)
    network = NetnsNetwork.make()
    with pytest.raises(expected, match="tc qdisc"):
        network.shape(1, 1_000)
    with pytest.raises(expected, match="ss -K"):
        network.reset(1, "10.0.0.1")
