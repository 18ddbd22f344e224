"""A master and a slave over a link that loses, duplicates and reorders packets."""

import pytest
import trio

import hastore
from hastore.status import PutMessageStatus
from tests.integration.bad_packets import bad_packets
from tests.support.nodes.harness import log_bytes, master_config, messages, slave_config
from tests.support.waiting import eventually

PUTS = 400


@pytest.mark.parametrize("seed", range(3))
async def test_lost_doubled_and_reordered_packets_do_no_harm(tmp_path, seed):
    """One link from the first byte to the last, equal logs, and no PUT_OK before its time."""
    async with bad_packets(seed) as link:
        config = master_config(tmp_path / "m", ha_listen=(link.near, 0), file_size=4 << 20)
        async with hastore.open_master(config) as master:
            far = (link.far, master.ha_address[1])
            async with hastore.open_slave(
                slave_config(tmp_path / "s", far, file_size=4 << 20)
            ) as slave:
                await eventually(lambda: master.ha_service.is_slave_ok(0))
                statuses = []

                async def put(message):
                    result = await master.put(message)
                    statuses.append(result.status)
                    if result.status is PutMessageStatus.PUT_OK:
                        assert slave.max_offset >= result.next_offset

                for group in range(0, PUTS, 40):
                    async with trio.open_nursery() as nursery:
                        for message in messages(PUTS, size=3_000)[group : group + 40]:
                            nursery.start_soon(put, message)
                await eventually(lambda: slave.max_offset == master.max_offset)
                assert len(statuses) == PUTS
                assert statuses.count(PutMessageStatus.PUT_OK) > PUTS / 2
                assert slave.ha_client.received.connections == 1
                end = master.max_offset
    assert log_bytes(tmp_path / "s", end) == log_bytes(tmp_path / "m", end)
    assert min(link.lost, link.doubled, link.reordered) > 5, link
