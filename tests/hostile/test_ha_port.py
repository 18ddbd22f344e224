"""The HA port under unidentified and lying peers: refused or closed, and never an ack.

What a peer sent before a put cannot acknowledge its message, so the put must not be ``PUT_OK``.  A
real slave beside these peers stays in step.
"""

import random
import struct

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

import hastore
from hastore.concurrency.tcp import connect
from hastore.config import HAConfig
from hastore.status import PutMessageStatus
from tests.hostile.corpus_files import mutations, recorded
from tests.hostile.handmade import HA_PORT, INT64_MAX
from tests.hostile.hosted import hosted
from tests.patience import WITHIN_S
from tests.support.nodes.harness import log_bytes, master_config, messages, slave_config
from tests.support.waiting import eventually

STREAMS = recorded("ha_port") | HA_PORT
MUTATIONS = 240
# No heartbeats in between: every frame is an answer.  Peers that never report are closed after 2 s.
HA = HAConfig(slave_timeout_ms=30, ha_first_report_timeout_ms=2_000)


async def send_stream(address, stream, *, reads=True):
    """Send a stream to the HA port; read what comes back to its end, or not at all."""
    sock = await connect(address, 5)
    try:
        with trio.fail_after(WITHIN_S):
            try:
                await sock.send(stream) if stream else None
                sock.shutdown(trio.socket.SHUT_WR)
                while reads and await sock.recv(65_536):
                    pass
            except OSError:
                pass
    finally:
        sock.close()


async def hold_open(master, stream, nursery):
    """Send a stream and stay connected; wait up to 20 ms for a trace of it: some leave none."""
    before = len(master.ha_service.refusals), len(master.ha_service.connections)
    sock = await connect(master.ha_address, 5)
    await sock.send(stream)

    async def hold():
        with sock:
            await trio.sleep_forever()

    nursery.start_soon(hold)
    with trio.move_on_after(0.02):
        while before == (len(master.ha_service.refusals), len(master.ha_service.connections)):
            await trio.sleep(0.001)
        await trio.sleep(0.005)


def check_acks(master):
    """Check that no acknowledged offset is above the end of the log."""
    assert master.ha_service.ack_table.push2_slave_max_offset <= master.max_offset


@pytest.mark.parametrize("name", STREAMS)
async def test_no_stream_acknowledges_a_later_put(tmp_path, name):
    """The peer is still connected when the message is put."""
    async with hastore.open_master(master_config(tmp_path, ha=HA)) as master:
        for message in messages(3):
            await master.put(message)
        async with trio.open_nursery() as nursery:
            await hold_open(master, STREAMS[name] or b"\0", nursery)
            for message in messages(3):
                result = await master.put(message)
                assert result.status in {
                    PutMessageStatus.SLAVE_NOT_AVAILABLE,
                    PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
                }, name
                check_acks(master)
            nursery.cancel_scope.cancel()
        assert master.status().state == "serving"


async def test_mutated_reports_leave_a_real_slave_in_step(tmp_path):
    """Beside hundreds of hostile peers every message is PUT_OK by the real slave's ack."""
    ha = attrs.evolve(HA, slave_timeout_ms=10_000)
    async with (
        hastore.open_master(master_config(tmp_path / "m", ha=ha)) as master,
        hastore.open_slave(slave_config(tmp_path / "s", master.ha_address)) as slave,
    ):
        await eventually(lambda: master.ha_service.is_slave_ok(0))
        streams = list(STREAMS.items()) + mutations(STREAMS, MUTATIONS, 2)
        for number, (name, stream) in enumerate(streams):
            try:
                await send_stream(master.ha_address, stream, reads=number % 3 != 0)
                check_acks(master)
                if number % 8 == 0:
                    (message,) = messages(1)
                    assert (await master.put(message)).status is PutMessageStatus.PUT_OK
            except BaseException as error:
                error.add_note(f"stream: {name}: {stream[:200].hex()}")
                raise
        await eventually(lambda: slave.max_offset == master.max_offset)
        assert slave.status().master_link.connections == 1
        end = master.max_offset
    assert log_bytes(tmp_path / "s", end) == log_bytes(tmp_path / "m", end)


async def test_a_refused_peer_learns_nothing_of_the_log(tmp_path):
    """For an invalid offset or HTTP at most one header comes back, and no byte of a record."""
    async with hastore.open_master(master_config(tmp_path, ha=HA)) as master:
        for message in messages(3):
            await master.put(message)
        for first in (-1, -(2**63), INT64_MAX, master.max_offset + 1):
            assert await answer_of(master, struct.pack("!q", first)) in {
                b"",
                struct.pack("!qi", master.max_offset, 0),
            }
        for name in ("http", "tls", "ssh", "ones"):
            assert len(await answer_of(master, HA_PORT[name])) <= 12, name


async def answer_of(master, stream):
    """Return everything that comes back until the master closes."""
    sock = await connect(master.ha_address, 5)
    data = b""
    with sock, trio.fail_after(WITHIN_S):
        try:
            await sock.send(stream)
            while more := await sock.recv(65_536):
                data += more
        except OSError:
            pass
    return data


offsets = st.one_of(
    st.integers(-3, 2_000),
    st.sampled_from([INT64_MAX, -(2**63), 2**31, 2**32 - 1, 10**9]),
)


def test_no_sequence_of_reports_acknowledges_a_later_put(tmp_path):
    """Several peers send random reports, whole or cut, before the put."""

    def opening():
        return hastore.open_master(master_config(tmp_path, ha=HA))

    with hosted(opening) as run:

        async def check(peers, seed):
            master = run.value
            choose = random.Random(seed)
            (message,) = messages(1)
            async with trio.open_nursery() as nursery:
                for reports in peers:
                    stream = b"".join(struct.pack("!q", offset) for offset in reports)
                    await hold_open(master, stream[: choose.randint(1, len(stream))], nursery)
                result = await master.put(message)
                assert result.status is not PutMessageStatus.PUT_OK
                assert result.status.stored
                check_acks(master)
                nursery.cancel_scope.cancel()

        @settings(max_examples=settings.default.max_examples // 2, deadline=None)
        @given(
            st.lists(st.lists(offsets, min_size=1, max_size=4), min_size=1, max_size=3),
            st.integers(0, 2**32),
        )
        def run_example(peers, seed):
            run.call(check, peers, seed)

        run_example()
