"""`hastore doctor` finds and names each fault with a next step, and marks unknown results."""

import os
import platform
import sys
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio

from hastore.env.real import LockHolder, RealDisk
from hastore.errors import ProtocolError, UnreachableError
from hastore.status import FlushDiskType
from hastore_cli.app.interpreter import build_switches
from hastore_cli.doctor.facts import Facts, ha_address_from_here
from hastore_cli.doctor.logs import compare, compare_logs
from hastore_cli.doctor.rules import Result, diagnose
from hastore_cli.node import address as node_address
from hastore_cli.node.address import fetch_status
from hastore_cli.node.file import NodeFile
from tests.cli.cluster_states import (
    ALONE,
    FINE,
    IDLE,
    IN_TIME,
    NEAR,
    SILENT,
    STEADY,
    STREAMING,
    behind,
    late,
    least,
)
from tests.support.commands.in_process import at, call, call_json, master_on, put, slave_of, store
from tests.support.nodes.statuses import MEMBER, SLAVE
from tests.support.waiting import eventually

HERE = ("127.0.0.1", 10911)
MIB = 1 << 20
WITH_NOTE = attrs.evolve(
    FINE, slaves=(attrs.evolve(FINE.slaves[0], note="it began at 7, inside a record"),)
)
UNCUT = attrs.evolve(MEMBER, last_cut=None)
ROOMY = {"disk_used_ratio": 0.4, "disk_free_bytes": 100 << 30, "disk_full_ratio": 0.9}


def facts(status, **more):
    """The facts of a node that has answered."""
    known = {"name": "D1", "address": HERE, "took_s": 0.001, "ha_was_tried": True, **more}
    return Facts(status=attrs.evolve(status, **ROOMY), **known)


def found(check, *nodes):
    """The findings of ``check`` on ``nodes``."""
    return [finding for finding in diagnose(nodes) if finding.check == check]


def linked(**changes):
    """A slave that follows its master, with ``changes`` to its link."""
    return attrs.evolve(STREAMING, master_link=attrs.evolve(STREAMING.master_link, **changes))


@pytest.mark.parametrize(
    ("check", "node", "result", "what"),
    [
        ("client port", facts(FINE), Result.OK, "answers in 1.0 ms: SYNC_MASTER n1"),
        ("puts", facts(FINE), Result.OK, "taken"),
        ("puts", facts(attrs.evolve(FINE, puts_refused_because="full")), Result.BAD, "full"),
        ("puts", facts(attrs.evolve(FINE, state="stopping")), Result.BAD, "it is stopping"),
        ("HA port", facts(FINE), Result.OK, "can be reached"),
        ("HA port", facts(FINE, ha_error="refused"), Result.BAD, "refused"),
        ("HA port", facts(FINE, ha_was_tried=False), Result.WARN, "only for its own machine"),
        ("slaves", facts(FINE), Result.OK, "1 connected"),
        ("slaves", facts(ALONE), Result.BAD, "SLAVE_NOT_AVAILABLE: no slave is connected"),
        ("slaves", facts(attrs.evolve(ALONE, acks_needed=0)), Result.WARN, "nothing is replicated"),
        ("gap", facts(FINE), Result.OK, "127.0.0.1:50212 is 0 B behind"),
        ("gap", facts(behind(16 * MIB)), Result.OK, "16.0 MiB behind"),
        ("gap", facts(behind(20 * MIB, 3.0)), Result.WARN, "20.0 MiB behind, 3.0 s"),
        ("gap", facts(least(3.0)), Result.OK, "5 B behind, at least 3.0 s"),
        ("slaves", facts(attrs.evolve(FINE, slaves=(NEAR, SILENT))), Result.OK, "1 connected"),
        ("gap", facts(behind(None)), Result.UNKNOWN, "has not reported"),
        ("start", facts(WITH_NOTE), Result.WARN, "127.0.0.1:50212: it began at 7, inside a record"),
        ("gap", facts(late({})), Result.BAD, "a put waits 3.0 s, and it has reported nothing for"),
        ("gap", facts(late(STEADY)), Result.BAD, "620 B behind, 5.2 s; a put waits 3.0 s"),
        ("gap", facts(late(STEADY | {"eta_s": 1.0})), Result.WARN, "in about 1.0 s; a put waits"),
        ("gap", facts(late(IDLE)), Result.OK, "0 B behind"),
        ("gap", facts(late({}, acks_needed=0)), Result.OK, "620 B behind, 5.2 s"),
        ("slaves", facts(late({})), Result.BAD, "puts are FLUSH_SLAVE_TIMEOUT: no slave"),
        ("slaves", facts(late({}, IN_TIME)), Result.OK, "2 connected"),
        (
            "gap",
            facts(attrs.evolve(behind(300 * MIB), slave_lag_max=256 * MIB)),
            Result.BAD,
            "more than 256.0 MiB, and does not count",
        ),
        ("link", facts(STREAMING), Result.OK, "is heard"),
        ("link", facts(SLAVE), Result.BAD, "is diverged: master at 7, slave at 9"),
        ("link", facts(linked(last_read_age_s=21.0)), Result.BAD, "silent for 21.0 s"),
        ("link", facts(linked(reason="its log is bad")), Result.BAD, "its log is bad"),
        ("gap", facts(STREAMING), Result.OK, "1.0 MiB behind, as far as it knows"),
        ("gap", facts(linked(lag_bytes=None)), Result.UNKNOWN, "not known"),
        ("disk", facts(FINE), Result.OK, "40 % full"),
        ("replica group", facts(UNCUT), Result.OK, "node 2 of g1, epoch 5"),
        (
            "replica group",
            facts(attrs.evolve(UNCUT, epoch=None)),
            Result.OK,
            "no epoch yet, has heard of epoch 5",
        ),
        ("consumers", facts(FINE), Result.OK, "see all"),
        ("consumers", facts(attrs.evolve(FINE, dispatch_fault="torn")), Result.BAD, "torn"),
        ("clock", facts(FINE, clock_lead_s=0.01), Result.OK, "this machine's"),
        ("clock", facts(FINE, clock_lead_s=-0.9), Result.WARN, "behind this machine's"),
        ("clock", facts(FINE, clock_lead_s=60.0), Result.BAD, "60.0 s ahead"),
        ("clock", facts(FINE, clock_lead_s=0.9, clock_error_s=0.8), Result.OK, "± 800.0 ms"),
    ],
)
def test_checks_of_one_node(check, node, result, what):
    """Every result other than OK has a next step."""
    (finding,) = found(check, node)
    assert (finding.result, what in finding.what) == (result, True), finding
    assert (finding.next_step is not None) or result is Result.OK


def test_cut_is_a_warning_that_names_the_messages():
    """They were acknowledged by nobody but this node, or the put did not wait."""
    (cut,) = found("cut", facts(MEMBER))
    assert cut.result is Result.WARN
    assert "cut at 47859: 27.2 KiB with orders 12, audit 3: the log of master" in cut.what
    assert cut.next_step == "the bytes are in D1/trimmed"
    assert found("cut", facts(SLAVE)) == found("replica group", facts(SLAVE)) == []


def test_late_slave_is_a_warning_while_another_is_in_time():
    """Puts still succeed, because the other slave acknowledges them."""
    silent, other = found("gap", facts(late({}, IN_TIME)))
    assert (silent.result, other.result) == (Result.WARN, Result.OK)
    assert "stopped, cut off, or waits for its disk" in silent.next_step


def test_broken_link_has_no_gap():
    """The link is the fault; the slave's last known end of its master's log is out of date."""
    broken = facts(linked(state="backing-off"))
    assert not found("gap", broken)
    assert found("link", broken)[0].result is Result.BAD


def test_old_socket_has_no_gap():
    """Its slave is connected from another port, as for `check` and `wait`."""
    old = attrs.evolve(NEAR, address="10.0.0.7:1", connected_s=60.0, last_report_age_s=4.0)
    old = attrs.evolve(old, lag_bytes=1 << 30)
    new = attrs.evolve(NEAR, address="10.0.0.7:2", connected_s=1.0)
    (gap,) = found("gap", facts(attrs.evolve(FINE, slaves=(old, new))))
    assert (gap.result, "10.0.0.7:2" in gap.what) == (Result.OK, True)


@pytest.mark.parametrize(
    ("used", "free", "result"),
    [(0.95, 1 << 40, Result.BAD), (0.82, 1 << 40, Result.WARN), (0.4, 1 << 30, Result.WARN)],
)
def test_disk_that_fills_up_is_reported(used, free, result):
    """The check warns before puts are refused and before the next file lacks room."""
    status = attrs.evolve(FINE, **ROOMY | {"disk_used_ratio": used, "disk_free_bytes": free})
    (finding,) = found("disk", attrs.evolve(facts(FINE), status=status))
    assert finding.result is result
    unknown = attrs.evolve(status, disk_used_ratio=None)
    assert found("disk", attrs.evolve(facts(FINE), status=unknown))[0].result is Result.UNKNOWN


def test_checks_across_nodes():
    """Clocks, both ends of a link, file sizes, flush types, two masters, one node given twice."""
    row = attrs.evolve(NEAR, address="127.0.0.1:9")
    master = facts(
        attrs.evolve(FINE, slaves=(row,), flush_disk_type="SYNC_FLUSH"), clock_lead_s=7.0
    )
    slave_status = attrs.evolve(
        linked(local_address="127.0.0.1:9"),
        ack_level="received",
        mapped_file_size=4 * MIB,
        process_id=2,
    )
    slave = facts(slave_status, name="D2", clock_lead_s=7.0)
    assert found("clock", master, slave)[0].result is Result.OK
    assert found("both ways", master, slave)[0].result is Result.OK
    assert found("flush", master, slave)[0].result is Result.WARN
    (size,) = found("file size", master, slave)
    assert size.result is Result.BAD
    assert "--mapped-file-size 1GiB" in size.next_step
    elsewhere = attrs.evolve(slave, status=linked(local_address="127.0.0.1:10"))
    assert found("both ways", master, elsewhere)[0].result is Result.WARN
    other = attrs.evolve(master, name="D3", status=attrs.evolve(FINE, process_id=3))
    assert found("roles", master, other)[0].result is Result.WARN
    assert found("twice", master, attrs.evolve(master, name="D4"))[0].result is Result.WARN


def test_unreachable_node_is_reported_with_its_last_stop():
    """A port is only bad; a directory also shows the last stop, or a process that hangs."""
    error = UnreachableError("nobody", hint="start it")
    (port,) = diagnose([Facts(name="h:1", error=error)])
    assert (port.result, port.next_step) == (Result.BAD, "start it")
    killed = Facts(name="D1", directory="D1", error=error, has_abort_file=True)
    assert found("last stop", killed)[0].result is Result.WARN
    stopped = attrs.evolve(killed, has_abort_file=False)
    assert found("last stop", stopped)[0].result is Result.OK
    hangs = attrs.evolve(killed, holder=LockHolder(7))
    assert found("process", hangs)[0].result is Result.BAD
    assert not found("last stop", hangs)


def test_next_step_never_starts_a_second_master():
    """A slave's directory, and any beside a running master, is to be started as a slave."""
    error = UnreachableError("nobody", hint="start it")

    def step(role_was, *others):
        silent = Facts(name="D2", directory="D2", error=error, role_was=role_was)
        return found("client port", *others, silent)[-1].next_step

    assert "hastore slave --master HOST:PORT --data D2" in step("SLAVE")
    assert "hastore master" not in step("SLAVE")
    assert step("SYNC_MASTER").startswith("start it: hastore master --data D2, or hastore slave")
    both = step(None)
    assert "hastore master --data D2" in both
    assert "hastore slave --master HOST:PORT --data D2" in both
    for role in (None, "SLAVE", "SYNC_MASTER"):
        beside = step(role, facts(FINE))
        assert beside.endswith(f"hastore slave --master {FINE.ha_address} --data D2")
        assert "hastore master" not in beside


async def test_directory_without_a_store_has_no_last_stop(tmp_path):
    """No node answers and there is no store to inspect: exit code 3, as for a port."""
    code, output = await call_json("doctor", tmp_path)
    assert code == 3
    assert (str(tmp_path), "last stop") not in results(output)
    assert "there is no store either" in output["findings"][0]["next"]
    (tmp_path / "commitlog").mkdir()
    code, output = await call_json("doctor", tmp_path)
    assert code == 1
    assert results(output)[str(tmp_path), "last stop"] == "ok"


async def test_role_of_a_killed_node_is_read_from_node_json(tmp_path):
    """The next step for a killed slave starts it as a slave again."""
    left = NodeFile(pid=2**22 + 1, role="SLAVE", address=("127.0.0.1", 1), ha_address=None)
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "node.json").write_bytes(left.to_json())
    _, output = await call_json("doctor", tmp_path)
    (port,) = [each for each in output["findings"] if each["check"] == "client port"]
    assert "the slave that it was: hastore slave --master" in port["next"]


async def test_hung_node_is_not_taken_for_a_wrong_port(tmp_path, nursery):
    """Given its directory, every command names the process; a port alone allows both causes."""

    async def hang_up(stream):
        await stream.aclose()

    (listener,) = await nursery.start(partial(trio.serve_tcp, hang_up, 0, host="127.0.0.1"))
    address = listener.socket.getsockname()
    left = NodeFile(pid=os.getpid(), role="SLAVE", address=address, ha_address=None)
    (tmp_path / "node.json").write_bytes(left.to_json())
    lock = RealDisk().lock(str(tmp_path / "lock"))
    for command in ("status", "explain", "doctor"):
        _, output, err = await call(command, tmp_path)
        assert f"process {os.getpid()} runs" in output + err
        assert "HA port" not in output + err
        _, output, err = await call(command, f"127.0.0.1:{address[1]}")
        assert "not its HA port? if so, is the process stopped?" in output + err
    lock.release()
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("ha_address", "address", "expected"),
    [
        ("127.0.0.1:2", ("127.0.0.1", 1), ("127.0.0.1", 2)),
        ("0.0.0.0:2", ("10.0.0.7", 1), ("10.0.0.7", 2)),
        ("10.0.0.8:2", ("10.0.0.7", 1), ("10.0.0.8", 2)),
        ("127.0.0.1:2", ("10.0.0.7", 1), None),
    ],
)
def test_ha_address_as_seen_from_this_machine(ha_address, address, expected):
    """A wildcard becomes the node's own address; another machine's loopback is unreachable."""
    node = attrs.evolve(facts(FINE), address=address)
    node = attrs.evolve(node, status=attrs.evolve(FINE, ha_address=ha_address))
    assert ha_address_from_here(node) == expected


# -- logs ----------------------------------------------------------------------------------------


class Bytes:
    """A log in memory that counts the bytes read."""

    def __init__(self, data, begin=0):
        self.data, self.begin, self.end = data, begin, begin + len(data)
        self.read = 0

    async def crc32(self, begin, end):
        """Return any value that differs for different bytes."""
        assert self.begin <= begin <= end <= self.end
        self.read += end - begin
        return hash(bytes(self.data[begin - self.begin : end - self.begin]))


async def test_equal_logs_have_no_difference():
    """Small logs are compared whole, large ones by both ends and samples unless --full is set."""
    small = await compare(Bytes(b"x" * 1000), Bytes(b"x" * 900, begin=0), is_full=False)
    assert (small.end, small.compared, small.first_difference) == (900, 900, None)
    data = bytes(8 * MIB)
    log = Bytes(data)
    sampled = await compare(log, Bytes(data[MIB:], begin=MIB), is_full=False)
    assert (sampled.begin, sampled.first_difference) == (MIB, None)
    assert log.read == sampled.compared < 2 * MIB
    assert (await compare(log, Bytes(data), is_full=True)).compared == len(data)
    apart = await compare(Bytes(b"x" * 10), Bytes(b"x" * 10, begin=50), is_full=False)
    assert apart.end <= apart.begin


@pytest.mark.parametrize("is_full", [False, True])
async def test_diverged_logs_have_a_first_difference(is_full):
    """A comparison of samples may find a later byte; --full finds the very first one."""
    data = bytearray(8 * MIB)
    other = bytearray(data)
    other[5 * MIB + 3 :] = b"y" * (3 * MIB - 3)
    result = await compare(Bytes(data), Bytes(other), is_full=is_full)
    if is_full:
        assert result.first_difference == 5 * MIB + 3
    else:
        assert result.first_difference >= 5 * MIB + 3


# -- with nodes ----------------------------------------------------------------------------------


def results(output):
    """Result by node and check."""
    return {(each["node"], each["check"]): each["result"] for each in output["findings"]}


async def test_doctor_exit_code_follows_the_state_of_a_slave(tmp_path):
    """0 while it follows its master, 1 after it stopped, 4 after its log was changed."""
    async with master_on(tmp_path / "m") as master:
        async with slave_of(master, tmp_path / "s") as slave:
            await put(master, 20)
            code, output = await call_json("doctor", at(master), at(slave))
            seen = results(output)
            del seen[at(master), "disk"], seen[at(slave), "disk"]  # this machine's
            assert set(seen.values()) == {"ok"}, output
            assert seen[at(slave), "same log"] == "ok"
            assert seen[at(slave), "both ways"] == "ok"
            code, text, _ = await call("doctor", at(master))
            assert "nothing to compare it with" in text
        code, output = await call_json("doctor", at(master), str(tmp_path / "s"))
        assert code == 1
        seen = results(output)
        assert seen[at(master), "slaves"] == "bad"
        assert seen[str(tmp_path / "s"), "client port"] == "bad"
        assert seen[str(tmp_path / "s"), "last stop"] == "ok"
        assert seen[str(tmp_path / "s"), "same log"] == "ok"
        log = next((tmp_path / "s" / "commitlog").iterdir())
        data = bytearray(log.read_bytes())
        data[1000] ^= 1
        log.write_bytes(data)
        code, output = await call_json("doctor", at(master), str(tmp_path / "s"))
        assert code == 4
        (same,) = [each for each in output["findings"] if each["check"] == "same log"]
        assert f"differs from the log of {at(master)} at 1 000" in same["what"]


async def test_growing_master_is_not_reported_as_shorter_than_its_slave(tmp_path):
    """If the slave, asked later, has more, the master is asked again before the two compare."""
    async with master_on(tmp_path / "m") as master, slave_of(master, tmp_path / "s") as slave:
        await put(master, 3)
        before = master.status()
        await put(master, 3)
        await eventually(lambda: slave.max_offset == master.max_offset)
        known = [
            Facts(name="M", address=master.address, status=before),
            Facts(name="S", address=slave.address, status=slave.status()),
        ]
        (finding,) = await compare_logs(known, is_full=True)
        assert (finding.node, finding.result) == ("S", Result.OK), finding
        lead = attrs.evolve(slave.status(), max_offset=master.max_offset + 7)
        known[1] = attrs.evolve(known[1], status=lead)
        (finding,) = await compare_logs(known, is_full=True)
        assert finding.result is Result.BAD
        assert "7 B longer than the log of M" in finding.what


async def test_foreign_broker_does_not_hide_findings_of_other_nodes(tmp_path, monkeypatch):
    """The broker is a finding, and the others are checked; an invalid address is refused."""

    async def fetch(address):
        if address[1] == 1:
            raise ProtocolError("127.0.0.1:1 is a broker, but not hastore", hint="mqadmin")
        return await fetch_status(address)

    monkeypatch.setattr(node_address, "fetch_status", fetch)
    async with master_on(tmp_path / "m") as master:
        code, output = await call_json("doctor", "127.0.0.1:1", at(master))
        assert code == 1
        seen = results(output)
        assert seen["127.0.0.1:1", "client port"] == "bad"
        assert seen[at(master), "client port"] == "ok"
        code, _, err = await call("doctor", "127.0.0.1:0", at(master))
        assert code not in {0, 1}
        assert "port 0" in err


async def test_slave_that_flushes_less_than_its_master_is_a_warning(tmp_path):
    """Only the master has SYNC_FLUSH."""
    flushing = store(tmp_path / "m", flush_disk_type=FlushDiskType.SYNC_FLUSH)
    async with master_on(tmp_path / "m", store=flushing) as master:
        async with slave_of(master, tmp_path / "s") as slave:
            _, output = await call_json("doctor", at(master), at(slave))
            assert results(output)[at(slave), "flush"] == "warn"


async def test_no_listener_exits_3():
    """The finding is bad and has a next step."""
    code, text, _ = await call("doctor", "127.0.0.1:1")
    assert code == 3
    assert "bad" in text
    assert "next" in text


async def test_doctor_tells_which_python_runs_it():
    """Version, path, what sysconfig tells of its build, and the figure of the fixed loop."""
    _, output = await call_json("doctor", "127.0.0.1:1")
    python = output["python"]
    assert python["version"] == platform.python_version()
    assert Path(python["path"]).samefile(sys.executable)
    assert python["round_ns"] > 0
    _, text, _ = await call("doctor", "127.0.0.1:1")
    line = text.splitlines()[-1]
    assert line.startswith(f"this command: Python {python['version']}, ")
    assert line.endswith(f" ns a round of a fixed loop, {python['build']}: {python['path']}")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("'--prefix=/usr'", "sysconfig names neither --enable-optimizations nor --with-lto"),
        ("'--enable-optimizations' '--with-lto=thin'", "--enable-optimizations --with-lto"),
        ("'--with-lto'", "configured with --with-lto"),
        (None, "sysconfig does not tell how it was configured"),
    ],
)
def test_build_is_what_sysconfig_tells(arguments, told, monkeypatch):
    """Nothing is claimed about an optimisation that sysconfig does not name."""
    monkeypatch.setattr("sysconfig.get_config_var", {"CONFIG_ARGS": arguments}.get)
    assert build_switches().endswith(told)
