"""`hastore doctor` asks the coordinator: reachable, how fast, which version, what time."""

import attrs
import pytest

from hastore.broker.observe.coordinator_status import CoordinatorStatus
from hastore.cluster.etcd_client import EtcdHealth
from hastore.errors import CoordinatorUnreachableError
from hastore.testing.free_port import FreePort
from hastore_cli.doctor import command
from hastore_cli.doctor.coordinator import (
    Asked,
    check_coordinator,
    not_asked,
    with_coordinator,
)
from hastore_cli.doctor.facts import Facts
from hastore_cli.doctor.rules import Diagnosis, Result
from tests.support.commands.in_process import at, call, call_json, master_on
from tests.support.etcd import KINDS, etcd_of_kind
from tests.support.nodes.statuses import MEMBER

NOW_S = 1_800_000_000
FINE = EtcdHealth(
    endpoint="http://e1:2379",
    version="3.5.21",
    cluster_id=0xA1,
    member_id=1,
    leader_id=1,
    revision=7,
    latency_s=0.002,
    server_time_s=NOW_S,
    size=3 << 20,
    quota_size=2 << 30,
)


def asked(*answers):
    """Return what these servers answered, e1 first."""
    by_endpoint = {f"http://e{at}:2379": answer for at, answer in enumerate(answers, start=1)}
    return Asked(ttl_s=10.0, answers=by_endpoint, now_s=NOW_S + 0.5)


def worst(*answers):
    """Return the findings that are not ok: result, check, what."""
    found = check_coordinator(asked(*answers))
    return [(each.result, each.check, each.what) for each in found if each.result is not Result.OK]


def test_a_server_without_faults():
    """Its latency, its version and its clock are ok."""
    found = list(check_coordinator(asked(FINE)))
    assert {each.result for each in found} == {Result.OK}
    assert [(each.check, each.next_step) for each in found] == [
        ("coordinator", None),
        ("etcd space", None),
        ("etcd version", None),
        ("clock", None),
    ]


@pytest.mark.parametrize(
    ("version", "result", "text"),
    [
        ("3.3.27", Result.BAD, "older than 3.4"),
        ("3.4.0", Result.WARN, "#15247"),
        ("3.4.30", Result.WARN, "#15247"),
        ("3.4.31", None, ""),
        ("3.5.0", Result.WARN, "may corrupt its data when it is killed"),
        ("3.5.2", Result.WARN, "may corrupt its data when it is killed"),
        ("3.5.3", Result.WARN, "#15247"),
        ("3.5.12", Result.WARN, "#15247"),
        ("3.5.13", None, ""),
        ("3.6.0", None, ""),
        ("zookeeper", Result.UNKNOWN, "calls its version 'zookeeper'"),
    ],
)
def test_versions(version, result, text):
    """Those with faults that concern leases or data, and what is too old."""
    found = worst(attrs.evolve(FINE, version=version))
    assert len(found) == (result is not None)
    if result is not None:
        assert (found[0][:2], text in found[0][2]) == ((result, "etcd version"), True)


@pytest.mark.parametrize(
    ("changes", "result", "text"),
    [
        ({"latency_s": 0.6}, Result.WARN, "a read takes 600.0 ms, with ttl 10 s"),
        ({"leader_id": None}, Result.BAD, "it has no leader"),
        ({"server_time_s": NOW_S + 9}, Result.WARN, "ahead of this machine's"),
        ({"server_time_s": NOW_S - 9}, Result.WARN, "behind this machine's"),
        ({"size": 1600 << 20}, Result.WARN, "its database has 1.6 GiB of 2.0 GiB"),
        ({"size": 1600 << 20, "quota_size": None}, Result.WARN, "of 2.0 GiB by default"),
        ({"size": None}, Result.UNKNOWN, "does not say how large its database is"),
        ({"alarms": {"NOSPACE"}}, Result.BAD, "takes no writes: its database of 3.0 MiB is full"),
        ({"alarms": {"CORRUPT"}}, Result.BAD, "it has the alarm CORRUPT"),
    ],
)
def test_faults_of_a_server(changes, result, text):
    """Slow, alone, with another clock, or full."""
    ((level, _, what),) = worst(attrs.evolve(FINE, **changes))
    assert (level, text in what) == (result, True)


def test_one_server_of_two_is_a_warning_and_none_is_bad():
    """Etcd goes on with a majority; which are down is named."""
    down = CoordinatorUnreachableError("http://e2:2379 did not answer", hint="start it")
    assert worst(FINE, down) == [
        (Result.WARN, "coordinator", "http://e2:2379 did not answer"),
        (Result.WARN, "coordinator", "1 of 2 servers answer"),
    ]
    assert [level for level, _, _ in worst(down)] == [Result.BAD]


def test_servers_of_two_clusters_are_bad():
    """They would give two groups."""
    other = attrs.evolve(FINE, endpoint="http://e2:2379", cluster_id=0xB2)
    ((level, _, what),) = worst(FINE, other)
    assert level is Result.BAD
    assert "http://e1:2379 of a1, http://e2:2379 of b2" in what


def test_a_coordinator_that_nobody_has_named_is_unknown():
    """Never ok; a node without one needs none."""
    coordinator = CoordinatorStatus(is_reachable=True, doing="it follows node 1")
    (found,) = not_asked(
        [
            Facts(name="D1", status=attrs.evolve(MEMBER, coordinator=coordinator)),
            Facts(name="D2", status=MEMBER),
        ]
    )
    assert (found.result, found.what[:16]) == (Result.UNKNOWN, "not asked: D1 ha")
    assert list(not_asked([Facts(name="D2", status=MEMBER)])) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_real_etcd_is_asked(kind, tmp_path, monkeypatch):
    """And one that is down is bad: exit code 1."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    with FreePort() as free, etcd_of_kind(kind, tmp_path / "etcd") as etcd:
        async with master_on(tmp_path / "D1") as master:
            code, shown = await call_json("doctor", at(master), "--etcd", etcd.endpoint)
            found = {
                (each["node"], each["check"]): each
                for each in shown["findings"]
                if each["node"] == etcd.endpoint
            }
            version = found[etcd.endpoint, "etcd version"]
            assert found[etcd.endpoint, "coordinator"]["what"].startswith("a read takes ")
            assert found[etcd.endpoint, "clock"]["result"] == "ok"
            assert "2.0 GiB" in found[etcd.endpoint, "etcd space"]["what"]
            if kind == "wheel":
                assert (version["result"], version["what"][:5]) == ("warn", "3.5.1")
            down = f"http://127.0.0.1:{free.number}"
            code, text, _ = await call("doctor", at(master), "--etcd", down)
            assert (code, f"bad     {down}" in text) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "step"),
    [
        (
            ("--etcd", "http://e1:1,http://e2:2"),
            "hastore cluster resume --etcd http://e1:1,http://",
        ),
        (("-c", "my node.toml"), "hastore cluster resume -c 'my node.toml'"),
        ((), "hastore cluster resume --etcd URL,URL"),
    ],
)
async def test_a_next_step_finds_the_coordinator_too(tmp_path, monkeypatch, arguments, step):
    """With the flags of this command; a placeholder where it was not asked."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my node.toml").write_text('[cluster]\nendpoints="http://e3:3"\n')

    async def examine(*_arguments, **_options):
        found = Diagnosis("D1", "coordinator", Result.WARN, "paused", "hastore cluster resume")
        return [], [found]

    monkeypatch.setattr(command, "_examine", examine)
    code, text, told = await call("doctor", *arguments)
    assert code == 3, told
    assert f"next  {step}" in text


def test_only_commands_that_ask_the_coordinator_get_its_flags():
    """Whatever follows them; those by hand ask nodes."""
    flags = "--etcd U"
    assert with_coordinator("then: hastore cluster clear-alarm", flags) == (
        "then: hastore cluster clear-alarm --etcd U"
    )
    assert with_coordinator("hastore cluster switchover: as a slave it …", flags) == (
        "hastore cluster switchover --etcd U: as a slave it …"
    )
    assert with_coordinator("hastore cluster remove 3, and start it", flags) == (
        "hastore cluster remove --etcd U 3, and start it"
    )
    for step in ("hastore cluster failover --node A --to 2", "hastore status -w"):
        assert with_coordinator(step, flags) == step
    assert with_coordinator("hastore cluster resume", "") == "hastore cluster resume"


async def test_a_mistyped_url_is_a_usage_error():
    """Before anything is asked."""
    code, _, told = await call("doctor", "--etcd", "127.0.0.1:2379")
    assert (code, "error:" in told) == (2, True)
