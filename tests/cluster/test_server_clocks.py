"""The clocks of etcd's servers: which machine each one is, and when it was read."""

import attrs
import pytest

from hastore.broker.clock.clock_readings import ClockReadings
from hastore.broker.clock.clock_verdict import Trust, TrustedTime, judge
from hastore.cluster.etcd_client import EtcdClient, EtcdConfig
from hastore.cluster.key_value_store import ServerTime
from hastore.cluster.server_clocks import server_clocks
from tests.cluster.scripted_http import HEADER, OK_HEAD, answer, scripted_http

HOUR_S = 3_600
DAY_S = 24 * HOUR_S
TRUE_S = 1_700_000_000
BOOT_S = 1_000.0
KEEP_MS = 72 * HOUR_S * 1000
OWN = "10.0.0.1"
TRUSTED = TrustedTime(boot_id="b", boot_ms=BOOT_S * 1000, wall_ms=TRUE_S * 1000)


@attrs.frozen
class Clock:
    """This machine's clock at ``BOOT_S``."""

    wall_s: float

    def now_ms(self):
        return round(self.wall_s * 1000)

    def boot_s(self):
        return BOOT_S


def etcd(host, wall_s, *, heard_at_s=BOOT_S):
    return ServerTime(time_s=wall_s, heard_at_s=heard_at_s, host=host, own_host=OWN)


def peer(host, wall_s):
    """Return the reading of another node's clock."""
    readings = ClockReadings(Clock(wall_s))
    readings.hear(f"the node at {host}", host, readings.fields(), own_host=OWN)
    return readings()


def verdict(wall_s, *readings, boot_s=BOOT_S):
    return judge(TRUSTED, readings, wall_ms=wall_s * 1000, boot_ms=boot_s * 1000, keep_ms=KEEP_MS)


@pytest.mark.parametrize("own", [OWN, f"::ffff:{OWN}", "127.0.1.1", "::1"])
def test_the_etcd_of_this_machine_does_not_confirm_its_clock(own):
    """It has the same clock, whatever address of this machine the endpoint has."""
    wrong_s = TRUE_S + 4 * DAY_S
    clocks = server_clocks({"http://node1:2379": etcd(own, wrong_s)})
    assert verdict(wrong_s, *clocks).trust is Trust.UNCONFIRMED
    assert verdict(wrong_s, *clocks, *peer("10.0.0.2", TRUE_S)).trust is Trust.CONTRADICTED


def test_a_machine_with_a_node_and_an_etcd_has_one_vote():
    """Its wrong clock does not set the store times of a master whose clock is right."""
    wrong_s = TRUE_S + 4 * DAY_S
    clocks = server_clocks({"http://node2:2379": etcd("10.0.0.2", wrong_s)})
    found = verdict(TRUE_S, *clocks, *peer("10.0.0.2", wrong_s))
    assert found.trust is Trust.CONTRADICTED
    assert not found.is_corrected


def test_a_clock_that_was_read_before_a_suspend_is_old():
    """The boot clock counts the time for which the machine slept; trio's time does not."""
    clocks = server_clocks({"http://etcd1:2379": etcd("10.0.0.9", TRUE_S)})
    slept_s = 8 * HOUR_S
    found = verdict(TRUE_S + slept_s, *clocks, boot_s=BOOT_S + slept_s)
    assert found.trust is Trust.PLAUSIBLE


async def test_a_server_is_known_by_its_address_and_not_by_its_name():
    """Its time is dated by the clock that the client was opened with."""
    head = OK_HEAD + b"Date: Tue, 14 Nov 2023 22:13:20 GMT\r\n"
    async with scripted_http(lambda _: answer(b"{%s}" % HEADER, head)) as server:
        endpoint = server.endpoint.replace("127.0.0.1", "localhost")
        async with EtcdClient.open(EtcdConfig(endpoints=(endpoint,)), now=lambda: 7.0) as client:
            await client.read("/")
            said = client.clocks()[endpoint]
    assert said == ServerTime(time_s=TRUE_S, heard_at_s=7.0, host="127.0.0.1", own_host="127.0.0.1")
