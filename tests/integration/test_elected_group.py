"""Failover without a person: processes, a real etcd, 64 puts in flight.

``print_recoveries`` says how long puts were not acknowledged: ``pytest -s``.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from tests.integration.elected_group import TTL_S, elected_group
from tests.support.etcd import EtcdServer, etcd_of_kind, preferred_kind


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
    "times", [2, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)
async def test_a_switchover_under_load_loses_nothing(
    tmp_path: Path, etcd: EtcdServer, times: int
) -> None:
    """Puts go on at the successor; ``elected_group`` compares the logs with all answers."""
    async with elected_group(tmp_path / "group", etcd) as group:
        for _ in range(times):
            await group.switch_over()


@pytest.mark.parametrize(
    "seconds", [3 * TTL_S, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.timeout(3_600)])]
)
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
