"""Failover without a person: processes, a real etcd, 64 puts in flight.

`make test` silences etcd in the group with access keys and TLS only, `make soak` for longer.
``print_recoveries`` says how long puts were not acknowledged: ``pytest -s``.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from hastore.client.consumer import Consumer
from hastore.client.producer import Producer
from hastore.config import AccessConfig
from hastore.errors import AccessDeniedError
from tests.integration.elected_group import TOPIC, TTL_S, elected_group
from tests.patience import PROCESS_WITHIN_S
from tests.support.etcd import EtcdServer, etcd_of_kind, preferred_kind
from tests.support.nodes.access_keys import (
    ACCOUNTS,
    ADMIN_KEY,
    USER_KEY,
    write_key,
    write_private,
)
from tests.support.nodes.tls_files import make_tls_files


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdServer]:
    """Run an etcd; skip the test where there is no binary."""
    with etcd_of_kind(preferred_kind(), tmp_path / "etcd") as server:
        yield server


@pytest.mark.parametrize(
    "kills", [3, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)
async def test_a_group_survives_kills_of_its_master_by_itself(
    tmp_path: Path, etcd: EtcdServer, kills: int
) -> None:
    """Nothing that was PUT_OK is lost or doubled, and every node comes back without a person."""
    async with elected_group(tmp_path / "group", etcd) as group:
        for _ in range(kills):
            await group.kill_master()
    assert len(group.recoveries) == kills


@pytest.mark.parametrize("transport", [pytest.param("plain", marks=pytest.mark.soak), "mutual TLS"])
async def test_a_group_with_access_keys_fails_over_and_promises_by_them(
    tmp_path: Path, etcd: EtcdServer, transport: str
) -> None:
    """Its producer signs for each master, its nodes for promises; nobody else is let in.

    By TLS on all ports, too, with certificates of all who connect.
    """
    files = make_tls_files(tmp_path / "tls") if transport == "mutual TLS" else None
    tls = None if files is None else files.mutual()
    access = AccessConfig(
        file=write_private(tmp_path / "acl.yml", ACCOUNTS),
        key_file=write_key(tmp_path / "key.toml", ADMIN_KEY),
    )
    async with elected_group(
        tmp_path / "group", etcd, access=access, access_key=USER_KEY, tls=files
    ) as group:
        await group.kill_master()
        await group.settled()
        with pytest.raises(AccessDeniedError):
            async with Producer.connect(
                group.addresses, connect_timeout_s=PROCESS_WITHIN_S, tls=tls
            ):
                pass
        assert etcd.process is not None
        for _ in range(5):  # on a busy machine promises may come too late, but not each time
            etcd.process.send_signal(signal.SIGSTOP)
            try:
                await trio.sleep(2 * TTL_S)
                with trio.move_on_after(TTL_S) as too_late:
                    await group.acknowledged_after(trio.current_time())
            finally:
                etcd.process.send_signal(signal.SIGCONT)
            if not too_late.cancelled_caught:
                break
            await group.settled()
        assert not too_late.cancelled_caught, "no member promised anything"
        async with Consumer.connect(group.addresses, access_key=USER_KEY, tls=tls) as consumer:
            async for message in consumer.messages(TOPIC, group="billing"):
                assert message.body.startswith(b"key-")
                break


@pytest.mark.parametrize(
    "times", [1, pytest.param(50, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)
async def test_a_frozen_master_comes_back_as_a_slave(
    tmp_path: Path, etcd: EtcdServer, times: int
) -> None:
    """``elected_group`` compares all logs, which are equal, with what it had answered PUT_OK."""
    async with elected_group(tmp_path / "group", etcd) as group:
        for _ in range(times):
            await group.freeze_master(2 * TTL_S)


@pytest.mark.parametrize(
    "times", [1, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)
async def test_a_switchover_under_load_loses_nothing(
    tmp_path: Path, etcd: EtcdServer, times: int
) -> None:
    """Puts go on at the successor; ``elected_group`` compares the logs with all answers."""
    async with elected_group(tmp_path / "group", etcd) as group:
        for _ in range(times):
            await group.switch_over()


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seconds", [3 * TTL_S, 60])
async def test_puts_go_on_while_etcd_is_silent(
    tmp_path: Path, etcd: EtcdServer, seconds: float
) -> None:
    """All members promise the master not to stand, for as long as it takes."""
    async with elected_group(tmp_path / "group", etcd) as group:
        before = (await group.settled()).leader
        assert etcd.process is not None
        etcd.process.send_signal(signal.SIGSTOP)
        try:
            await trio.sleep(seconds)
            await group.acknowledged_after(trio.current_time())
        finally:
            etcd.process.send_signal(signal.SIGCONT)
        after = (await group.settled()).leader
    assert before is not None
    assert after is not None
    assert attrs.evolve(after) == before, "it is still master of the same epoch"
