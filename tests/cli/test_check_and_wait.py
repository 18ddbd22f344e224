"""`hastore check` and `hastore wait`: thresholds, exit codes and unmet conditions."""

import attrs
import pytest
import trio

from hastore.broker.observe.health import health
from hastore.broker.observe.node_status import LogDamage
from hastore_cli.doctor.facts import Facts
from hastore_cli.doctor.rules import Result, diagnose
from hastore_cli.status.check import DEFAULTS, NagiosState, check_status
from hastore_cli.status.wait import Wanted
from tests.cli.cluster_states import (
    ALONE,
    FINE,
    IDLE,
    IN_TIME,
    MIB,
    NEAR,
    SILENT,
    STEADY,
    STREAMING,
    behind,
    late,
    least,
)
from tests.support.commands.in_process import at, call, call_json, master_on, put, slave_of
from tests.support.commands.running import is_one_line_with_a_next_step
from tests.support.nodes.harness import raw_slave
from tests.support.nodes.statuses import SLAVE
from tests.support.waiting import eventually


def heard_s_ago(age_s):
    """A slave that last heard its master ``age_s`` ago, of at most 20 s."""
    link = attrs.evolve(STREAMING.master_link, last_read_age_s=age_s, silent_max_s=20.0)
    return attrs.evolve(STREAMING, master_link=link)


MASTER_LOG_DAMAGED = attrs.evolve(
    STREAMING,
    master_link=attrs.evolve(
        STREAMING.master_link, reason="the log of master m is damaged at 7, and this slave's"
    ),
)


@pytest.mark.parametrize(
    ("status", "limits", "state", "text"),
    [
        (FINE, {}, NagiosState.OK, "OK n1 SYNC_MASTER, 1 slave, worst lag 0 B |"),
        (
            behind(17 * MIB),
            {},
            NagiosState.WARNING,
            "127.0.0.1:50212 is 17.0 MiB behind; more than",
        ),
        (behind(16 * MIB), {}, NagiosState.OK, "worst lag 16.0 MiB"),
        (
            behind(129 * MIB),
            {},
            NagiosState.CRITICAL,
            "is 129.0 MiB behind; more than 128.0 MiB",
        ),
        # The lag began before the master started, so 3 s is only a lower bound.
        (least(3.0), {"warn_lag_s": 60.0}, NagiosState.WARNING, "at least 3.0 s: from before"),
        (
            least(3.0),
            {"warn_lag_s": 1.0, "crit_lag_s": 2.0},
            NagiosState.CRITICAL,
            "3.0 s; more than 2.0 s",
        ),
        (least(3.0), {}, NagiosState.OK, "worst lag 5 B"),
        (attrs.evolve(FINE, slaves=(SILENT,)), {}, NagiosState.CRITICAL, "0 of 1 slaves connected"),
        (
            attrs.evolve(FINE, slaves=(NEAR, SILENT)),
            {"min_slaves": 2},
            NagiosState.CRITICAL,
            "1 of 2",
        ),
        (heard_s_ago(15.0), {}, NagiosState.OK, "follows"),
        (heard_s_ago(21.0), {}, NagiosState.CRITICAL, "silent for 21.0 s"),
        (MASTER_LOG_DAMAGED, {}, NagiosState.WARNING, "the log of master m is damaged at 7"),
        (behind(0, 3.0), {"warn_lag_s": 2.0}, NagiosState.WARNING, "3.0 s; more than 2.0 s"),
        (
            behind(0, 3.0),
            {"warn_lag_s": 1.0, "crit_lag_s": 2.0},
            NagiosState.CRITICAL,
            "3.0 s; more than 2.0 s",
        ),
        (behind(None), {}, NagiosState.WARNING, "lag is not known"),
        # No slave acknowledges while a put waits: every put is FLUSH_SLAVE_TIMEOUT.
        (
            late({}),
            {},
            NagiosState.CRITICAL,
            "puts are FLUSH_SLAVE_TIMEOUT: no slave acknowledges within",
        ),
        (
            late({}),
            {},
            NagiosState.CRITICAL,
            "a put waits 3.0 s, and it has reported nothing for 5.1 s",
        ),
        (late({}), {"warn_lag_s": 60.0}, NagiosState.CRITICAL, "has reported nothing for 5.1 s"),
        (late({}, {}), {}, NagiosState.CRITICAL, "FLUSH_SLAVE_TIMEOUT"),
        (late(STEADY), {}, NagiosState.CRITICAL, "127.0.0.1:50212 is 620 B behind, 5.2 s"),
        (late(STEADY | {"eta_s": 600.0}), {}, NagiosState.CRITICAL, "is 620 B behind, 5.2 s"),
        (
            late(STEADY | {"eta_s": 1.0}),
            {},
            NagiosState.WARNING,
            "127.0.0.1:50212 is 620 B behind, 5.2 s",
        ),
        (late(STEADY | {"connected_s": 1.0}), {}, NagiosState.WARNING, "5.2 s; a put waits 3.0 s"),
        (late({}, IN_TIME), {}, NagiosState.WARNING, "50212 is 620 B behind, 5.2 s; a put"),
        (late({}, IN_TIME), {"warn_lag_s": 60.0}, NagiosState.OK, "worst lag 620 B"),
        (late(IN_TIME), {}, NagiosState.OK, "worst lag 620 B"),
        (late(IDLE), {}, NagiosState.OK, "worst lag 0 B"),
        (late({}, acks_needed=0), {}, NagiosState.OK, "worst lag 620 B"),
        (ALONE, {}, NagiosState.CRITICAL, "puts are SLAVE_NOT_AVAILABLE: no slave is connected"),
        (attrs.evolve(ALONE, acks_needed=0), {}, NagiosState.OK, "0 slaves"),
        (FINE, {"min_slaves": 2}, NagiosState.CRITICAL, "1 of 2 slaves connected"),
        (
            attrs.evolve(FINE, puts_refused_because="full"),
            {},
            NagiosState.CRITICAL,
            "refused: full",
        ),
        (attrs.evolve(FINE, state="stopping"), {}, NagiosState.CRITICAL, "is stopping"),
        (attrs.evolve(FINE, dispatch_fault="torn"), {}, NagiosState.CRITICAL, "nothing new: torn"),
        (
            attrs.evolve(FINE, log_damage=LogDamage(physic_offset=77, reason="bad-body-crc")),
            {},
            NagiosState.CRITICAL,
            "its log is damaged at 77; a member compared its own log with it: bad-body-crc",
        ),
        (
            attrs.evolve(FINE, torn_tables={"config/topics.json": "it is empty; instead: .bak"}),
            {},
            NagiosState.WARNING,
            "config/topics.json was torn at the start: it is empty; instead: .bak",
        ),
        (attrs.evolve(FINE, disk_used_ratio=0.85), {}, NagiosState.WARNING, "disk 85 % full"),
        (
            attrs.evolve(FINE, disk_used_ratio=0.95),
            {},
            NagiosState.CRITICAL,
            "95 % full, 90 % or more",
        ),
        (SLAVE, {}, NagiosState.CRITICAL, "is diverged: master at 7, slave at 9"),
        (STREAMING, {}, NagiosState.OK, "follows 127.0.0.1:10912, lag 1.0 MiB"),
        (
            STREAMING,
            {"crit_lag_s": 1.0},
            NagiosState.WARNING,
            "its lag in time is not known: check its",
        ),
        (
            STREAMING,
            {"crit_lag": 1000},
            NagiosState.CRITICAL,
            "as far as it knows; more than 1000 B",
        ),
    ],
)
def test_check_reports_the_worst_finding(status, limits, state, text):
    """The line begins with the state and gives the reason."""
    verdict = check_status(status, attrs.evolve(DEFAULTS, **limits))
    assert verdict.state is state, verdict.line
    assert verdict.line.startswith(f"{state.name} ")
    assert text in verdict.line


def test_performance_data_has_the_nagios_plugin_format():
    """label=value;warn;crit;min, after the only bar of the line."""
    line = check_status(attrs.evolve(behind(5, 0.25), disk_used_ratio=0.414), DEFAULTS).line
    text, _, figures = line.partition(" | ")
    assert "|" not in text
    assert figures.split() == [
        "127.0.0.1:50212_lag=5B;16777216;134217728;0",
        "127.0.0.1:50212_lag_time=0.250s;;;0",
        "slaves=1;;1:;0",
        "waiting=3;;;0",
        "disk=41.4%;80;90;0;100",
        "log=1073921B",
    ]
    assert "_lag_time=5.200s;3.0;;0" in check_status(late({}), DEFAULTS).line
    named = attrs.evolve(FINE, slaves=(attrs.evolve(NEAR, name="it's n|2"),))
    assert "'it''s n-2_lag'=0B" in check_status(named, DEFAULTS).line


@pytest.mark.parametrize(
    ("wanted", "status", "missing"),
    [
        ({"role": "master"}, FINE, ""),
        ({"role": "SYNC_MASTER"}, FINE, ""),
        ({"role": "slave"}, STREAMING, ""),
        ({"role": "ASYNC_MASTER"}, FINE, "its role is SYNC_MASTER, not ASYNC_MASTER"),
        ({"lag_below": 1}, FINE, ""),
        ({"lag_below": MIB}, behind(MIB), "the lag is 1.0 MiB, not below 1.0 MiB"),
        ({"lag_below": 1}, behind(None), "not known yet"),
        ({"lag_below": 1}, ALONE, "no slave is connected"),
        ({"lag_below": 1}, SLAVE, "its link is diverged"),
        ({"lag_below": 2 * MIB}, STREAMING, ""),
        ({"offset": 1_073_921}, FINE, ""),
        ({"offset": 1_073_922}, FINE, "its log ends at 1 073 921, 1 B before that"),
        ({"replicas": 1}, FINE, ""),
        ({"replicas": 2}, FINE, "1 of 2 slaves have caught up"),
        ({"healthy": True}, FINE, ""),
        ({"healthy": True}, STREAMING, ""),
        ({"healthy": True}, ALONE, "SLAVE_NOT_AVAILABLE: no slave is connected"),
        ({"healthy": True}, late(IDLE), ""),
        ({"healthy": True}, late(STEADY | {"connected_s": 1.0}), "is 620 B behind, 5.2 s"),
        ({"healthy": True}, late({}), "puts are FLUSH_SLAVE_TIMEOUT: no slave acknowledges"),
        ({"healthy": True}, SLAVE, "is diverged"),
        ({"healthy": True}, attrs.evolve(FINE, dispatch_fault="torn"), "nothing new: torn"),
    ],
)
def test_wait_names_each_unmet_condition(wanted, status, missing):
    """The list is empty if all conditions are met."""
    found = Wanted(**wanted).missing(status)
    assert missing in "; ".join(found)
    assert bool(found) is bool(missing)


@pytest.mark.parametrize(
    ("status", "is_ready", "is_healthy"),
    [
        (FINE, True, True),
        (STREAMING, True, True),
        (MASTER_LOG_DAMAGED, True, True),
        (behind(1 << 40), True, True),  # lag matters only to `check` and `--lag-below`
        (ALONE, True, False),  # accepts puts, but answers SLAVE_NOT_AVAILABLE
        (late({}), True, False),
        (attrs.evolve(FINE, dispatch_fault="torn"), True, False),
        (attrs.evolve(FINE, puts_refused_because="full"), False, False),
        (attrs.evolve(FINE, state="stopping"), False, False),
        (SLAVE, False, False),
        (heard_s_ago(21.0), False, False),
    ],
)
def test_ready_wait_check_and_doctor_agree(status, is_ready, is_healthy):
    """A fault that one of them reports is never hidden by another."""
    assert health("/ready", {}, status).ok is is_ready
    assert (not Wanted(healthy=True).missing(status)) is is_healthy
    found = [each.result for each in diagnose([Facts(name="D1", status=status, ha_was_tried=True)])]
    if not is_healthy:
        assert check_status(status, DEFAULTS).state is NagiosState.CRITICAL
        assert Result.BAD in found
    elif check_status(status, DEFAULTS).state is NagiosState.OK:
        assert Result.BAD not in found


async def test_wait_ends_once_its_conditions_are_met(tmp_path):
    """A slave connects during the wait."""
    async with master_on(tmp_path / "m") as master:
        await put(master)
        ended = []

        async def wait():
            ended.append(await call("wait", at(master), "--replicas", "1", "--healthy"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            async with slave_of(master, tmp_path / "s"):
                await eventually(lambda: ended)
        ((code, out, _),) = ended
        assert code == 0
        assert "meets the conditions after" in out


async def test_wait_reports_unmet_conditions_on_timeout(tmp_path):
    """Exit code 5; 3 if no node ever answered; 2 if no condition was given."""
    async with master_on(tmp_path / "m") as master:
        code, _, err = await call("wait", at(master), "--healthy", "--timeout", "300ms")
        assert code == 5
        assert is_one_line_with_a_next_step(err)
        assert "no slave is connected" in err
        code, answer = await call_json("wait", at(master), "--offset", "9", "--timeout", "100ms")
        assert (code, answer["met"], answer["has_answered"]) == (5, False, True)
    code, _, err = await call("wait", "127.0.0.1:1", "--healthy", "--timeout", "100ms")
    assert code == 3
    assert is_one_line_with_a_next_step(err)
    assert (await call("wait", "127.0.0.1:1"))[0] == 2


async def test_wait_with_zero_timeout_checks_once(tmp_path):
    """Exit code 0 if the condition is met, 5 if not, 3 if no node answers."""
    no_time = ("--timeout", "0s")
    async with master_on(tmp_path / "m") as master:
        assert (await call("wait", at(master), "--role", "master", *no_time))[0] == 0
        code, _, err = await call("wait", at(master), "--healthy", *no_time)
        assert (code, err.startswith("error: not met: puts are")) == (5, True), err
    code, _, err = await call("wait", "127.0.0.1:1", "--healthy", *no_time)
    assert code == 3
    assert "cannot" in err


async def test_wait_refuses_lag_below_zero():
    """No lag is below zero, so waiting would be pointless."""
    code, _, err = await call("wait", "127.0.0.1:1", "--lag-below", "0B")
    assert code == 2
    assert is_one_line_with_a_next_step(err)
    assert "--lag-below 1B" in err


@pytest.mark.parametrize("addr", ["127.0.0.1:99999", "127.0.0.1", "::1", "h:x", "127.0.0.1:0"])
async def test_wait_refuses_an_invalid_address_at_once(addr):
    """An address that can never answer is a usage error, as for `status`."""
    code, _, err = await call("wait", addr, "--healthy", "--timeout", "5s")
    assert code == 2
    assert is_one_line_with_a_next_step(err)


async def test_wait_accepts_a_directory_that_does_not_exist_yet(tmp_path):
    """Even if its name contains a colon."""
    for name in ("later", "la:ter"):
        where = tmp_path / name
        code, _, err = await call("wait", where, "--healthy", "--timeout", "10ms")
        assert code == 3
        assert name in err


async def test_check_has_nagios_exit_codes(tmp_path):
    """0, 2, and 3 for an unreachable node or a wrong option."""
    async with master_on(tmp_path / "m") as master:
        code, out, _ = await call("check", at(master))
        assert code == 2
        assert out.startswith("CRITICAL hastore-a puts are SLAVE_NOT_AVAILABLE: no slave")
        async with slave_of(master, tmp_path / "s") as slave:
            await put(master)
            limits = ("--warn-disk", "100", "--crit-disk", "100")
            for node in (master, slave):
                code, out, _ = await call("check", at(node), *limits)
                assert (code, out.split()[0]) == (0, "OK"), out
                assert len(out.splitlines()) == 1
    code, out, err = await call("check", "127.0.0.1:1")
    assert (code, out.split()[0], err) == (3, "UNKNOWN", "")
    assert (await call("check", "--warn-lag", "much"))[0] == 3
    assert (await call("check", "--no-such-option"))[0] == 3


async def test_check_and_doctor_report_a_slave_that_stopped_reporting(tmp_path):
    """Its connection stays open while puts time out; once it has caught up, all is well."""
    async with master_on(tmp_path / "m") as master:
        await put(master)
        async with raw_slave(master) as silent:
            await silent.report(master.max_offset)
            await eventually(lambda: master.status().slave_unavailable_because is None)
            await put(master)  # returns once it has timed out
            code, out, _ = await call("check", at(master))
            assert code == 2
            assert "puts are FLUSH_SLAVE_TIMEOUT: no slave acknowledges within 300.0 ms" in out
            code, answer = await call_json("doctor", at(master))
            assert code == 1
            seen = {each["check"]: each for each in answer["findings"]}
            assert (seen["slaves"]["result"], seen["gap"]["result"]) == ("bad", "bad")
            assert "stopped, cut off, or waits for its disk" in seen["gap"]["next"]
            await silent.report(master.max_offset)
            await eventually(lambda: master.status().slaves[0].lag_bytes == 0)
            _, out, _ = await call("check", at(master), "--warn-disk", "100", "--crit-disk", "100")
            assert out.startswith("OK ")


@pytest.mark.parametrize(
    "bounds",
    [
        ("--warn-lag", "10MiB", "--crit-lag", "1MiB"),
        ("--warn-lag-time", "2s", "--crit-lag-time", "1s"),
        ("--warn-disk", "95", "--crit-disk", "90"),
    ],
)
async def test_check_refuses_a_warning_bound_above_the_critical_one(bounds):
    """Exit code 3, and no node is asked; equal bounds, or one alone, are accepted."""
    code, out, err = await call("check", "127.0.0.1:1", *bounds)
    assert (code, out) == (3, "")
    assert f"{bounds[0]} is above {bounds[2]}" in err
    for fine in ((*bounds[:3], bounds[1]), bounds[:2], bounds[2:]):
        assert (await call("check", "127.0.0.1:1", *fine))[1].startswith("UNKNOWN cannot")
