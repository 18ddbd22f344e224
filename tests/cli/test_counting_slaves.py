"""A slave counts once, even while an old socket of it is still open."""

import attrs
import pytest

from hastore.broker.observe.node_status import NodeStatus
from hastore_cli.status.check import DEFAULTS, NagiosState, check_status
from hastore_cli.status.wait import Wanted
from tests.cli.cluster_states import FINE, NEAR
from tests.cli.status_text import text_of
from tests.support.commands.in_process import at, call, call_json, master_on, put
from tests.support.nodes.harness import raw_slave
from tests.support.waiting import eventually


def connected(address, *, for_s, silent_s, **changes):
    """A slave that has caught up, unless ``changes`` say otherwise."""
    row = attrs.evolve(NEAR, address=address, connected_s=for_s, last_report_age_s=silent_s)
    return attrs.evolve(row, **changes)


def master_of(*rows):
    return attrs.evolve(FINE, slaves=rows)


OLD = connected("10.0.0.7:5000", for_s=60.0, silent_s=4.0)
NEW = connected("10.0.0.7:5001", for_s=1.0, silent_s=0.5)
ALIVE = connected("10.0.0.7:5002", for_s=60.0, silent_s=0.2)
UNIDENTIFIED = connected(
    "10.0.0.7:5003", for_s=1.0, silent_s=1.0, state="connected", ack_offset=None, lag_bytes=None
)


def test_status_headline_counts_a_slave_once():
    """The table below the headline still shows both sockets."""
    first, *rest = text_of(master_of(OLD, NEW)).splitlines()
    assert first.endswith(" · 1 of 1 slave caught up")
    assert sum("10.0.0.7" in line for line in rest) == 2


@pytest.mark.parametrize(
    ("rows", "number"),
    [
        ((OLD,), 1),
        ((OLD, NEW), 1),  # the old socket has been silent since the new one connected
        ((NEW, OLD), 1),
        ((ALIVE, NEW), 2),  # both sockets report: two slaves
        ((ALIVE, OLD, NEW), 2),
        ((OLD, OLD, NEW), 2),  # one of the old two reconnected; the other may be alive
        ((OLD, UNIDENTIFIED), 1),  # a peer that has not reported replaces no slave
        ((OLD, attrs.evolve(NEW, address="10.0.0.8:5001")), 2),
        ((attrs.evolve(OLD, address="[::ffff:10.0.0.7]:5000"), NEW), 1),
        ((attrs.evolve(OLD, address="[fe80::1]:1"), attrs.evolve(NEW, address="[fe80::2]:1")), 2),
        (
            (
                connected("10.0.0.7:1", for_s=60.0, silent_s=40.0),
                connected("10.0.0.7:2", for_s=30.0, silent_s=15.0),
                NEW,
            ),
            1,
        ),
        ((), 0),
    ],
)
def test_old_socket_of_a_slave_does_not_count(rows, number):
    """A socket is old if it has been silent since another from its address connected."""
    status = master_of(*rows)
    assert len(status.current_followers) == number
    assert f"slaves={number};;" in check_status(status, DEFAULTS).line
    missing = Wanted(replicas=number + 1).missing(status)
    assert missing == [f"{number} of {number + 1} slaves have caught up"]
    assert not Wanted(replicas=number).missing(status)
    assert len(NodeStatus.from_dict(status.to_dict()).current_followers) == number


def test_lag_of_an_old_socket_is_ignored():
    """`check` reports no lag, and `wait --lag-below` is met."""
    status = master_of(attrs.evolve(OLD, lag_bytes=1 << 30, lag_s=60.0), NEW)
    assert check_status(status, attrs.evolve(DEFAULTS, warn_lag_s=1.0)).state is NagiosState.OK
    assert not Wanted(lag_below=1).missing(status)


async def test_check_and_wait_count_two_sockets_of_a_slave_once(tmp_path):
    """They count as two once the old socket reports again."""
    async with master_on(tmp_path / "m") as master:
        await put(master)
        room = ("--warn-disk", "100", "--crit-disk", "100")
        wanted = ("--replicas", "2", "--timeout", "0s")
        async with raw_slave(master) as old:
            await old.report(master.max_offset)
            await eventually(lambda: len(master.status().followers) == 1)
            async with raw_slave(master) as new:
                await new.report(master.max_offset)
                await eventually(lambda: len(master.status().followers) == 2)
                code, out, _ = await call("check", at(master), "--min-slaves", "2", *room)
                assert code == 2
                assert "1 of 2 slaves connected" in out
                code, answer = await call_json("wait", at(master), *wanted)
                assert (code, answer["missing"]) == (5, ["1 of 2 slaves have caught up"])
                await old.report(master.max_offset)
                await eventually(lambda: len(master.status().current_followers) == 2)
                code, out, _ = await call("check", at(master), "--min-slaves", "2", *room)
                assert code == 0, out
                assert (await call("wait", at(master), *wanted))[0] == 0
