"""Nodes for the benchmarks: a master in this process, slaves and masters as processes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import trio

import hastore
from hastore.broker.node.master import Master
from hastore.config import HAConfig, MasterConfig, StoreConfig, TlsConfig
from hastore.env.interface import Env
from hastore.message import Message
from hastore.native.in_use import PURE_VARIABLE
from hastore.status import BrokerRole, FlushDiskType
from hastore_scenarios.worlds.process.node_process import NodeProcess
from tests.support.certificates import Certificates

BODY_SIZE = 1024
BODY = bytes(range(256)) * (BODY_SIZE // 256)
TOPIC = "Bench"
PROPERTIES = {"UNIQ_KEY": "7F00000100002A9F000000004001F3C8"}
IN_FLIGHT = 64


def message() -> Message:
    """Return a message of 1 KiB, with the one property that every producer sets."""
    return Message(TOPIC, BODY, properties=PROPERTIES)


@contextlib.contextmanager
def scratch(directory: Path, name: str) -> Iterator[Path]:
    """Make an empty directory for the block."""
    path = directory / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.asynccontextmanager
async def master_here(
    path: Path,
    *,
    role: BrokerRole = BrokerRole.SYNC_MASTER,
    flush: FlushDiskType = FlushDiskType.ASYNC_FLUSH,
    file_size: int | None = None,
    spin_us: int = 0,
    env: Env | None = None,
    tls: Certificates | None = None,
) -> AsyncIterator[Master]:
    """Run a master in this process, without a client port; ``tls``: on its HA port."""
    config = MasterConfig(
        store=StoreConfig(data_dir=str(path), flush_disk_type=flush, mapped_file_size=file_size),
        role=role,
        listen=None,
        ha_listen=("127.0.0.1", 0),
        ha=HAConfig(
            slave_timeout_ms=30_000,
            ha_spin_us=spin_us,
            tls=tls is not None,
            tls_allowed_names=("*",),
        ),
        tls=TlsConfig() if tls is None else tls_config(tls),
    )
    async with hastore.open_master(config, env=env) as master:
        yield master


@contextlib.asynccontextmanager
async def node_process(
    name: str, *arguments: str, path: Path, is_pure: bool = False, spin_us: int = 0
) -> AsyncIterator[NodeProcess]:
    """Run ``hastore master|slave …`` on ``path``; SIGTERM ends it."""
    variables = [f"HASTORE_HA_SPIN_US={spin_us}", *([f"{PURE_VARIABLE}=1"] if is_pure else [])]
    node = await NodeProcess.start(
        name,
        [*arguments, "--data", str(path), "--listen", "127.0.0.1:0", "--log-format", "json"],
        data_dir=path,
        output_path=path.with_name(f"{path.name}.log"),
        prefix=["env", *variables],
    )
    try:
        yield node
        await node.stop()
    finally:
        await node.process.end()
        path.with_name(f"{path.name}.log").unlink(missing_ok=True)


def tls_config(tls: Certificates) -> TlsConfig:
    """Return the configuration of a node that has this certificate."""
    return TlsConfig(cert_file=str(tls.cert), key_file=str(tls.key), ca_file=str(tls.ca))


def tls_flags(tls: Certificates | None) -> list[str]:
    """Return the flags of a node whose HA links have TLS, with this certificate."""
    if tls is None:
        return []
    return [
        "--ha-tls", "--tls-cert", str(tls.cert), "--tls-key", str(tls.key), "--tls-ca", str(tls.ca)
    ]  # fmt: skip


@contextlib.asynccontextmanager
async def with_slave(
    master: Master, path: Path, *, spin_us: int = 0, tls: Certificates | None = None
) -> AsyncIterator[NodeProcess]:
    """Run a slave of ``master`` in another process, in step when the block begins."""
    host, port = master.ha_address
    flags = ["--master", f"{host}:{port}", *tls_flags(tls)]
    async with node_process("slave", "slave", *flags, path=path, spin_us=spin_us) as slave:
        while master.status().slave_unavailable_because is not None:
            await trio.sleep(0.01)
        yield slave


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = int(fields[11]), int(fields[12])  # utime, stime: ``man 5 proc``
    return (user + system) / os.sysconf("SC_CLK_TCK")


def anonymous_mib(pid: int) -> float:
    """Return RssAnon, the memory that does not belong to a file, in MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^RssAnon:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found.group(1)) / 1024
