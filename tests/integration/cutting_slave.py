"""A master, and a slave that must cut its log: the slave's process may be killed meanwhile.

The slave was master last, alone: the end of its log was never acknowledged.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from hastore.env.real import real_env
from hastore.errors import HastoreError
from hastore.message import Message
from hastore.status import BrokerRole, FlushDiskType
from hastore.store.recovery.store_checkpoint import StoreCheckpoint
from hastore.testing.cluster import Cluster
from hastore.testing.free_port import FreePort
from hastore.testing.group_member import has_caught_up
from hastore.testing.import_path import import_path
from hastore.testing.node import ClusterNode
from hastore.testing.node_main import READY
from hastore.testing.node_settings import NodeStart
from hastore.testing.questions import ask_status
from tests.integration.kept_messages import consume_queue_errors
from tests.patience import PROCESS_WITHIN_S
from tests.support.nodes.harness import log_bytes
from tests.support.repository import REPO_ROOT
from tests.support.waiting import wait_until

CONFIG: Final = {
    "mapped_file_size": 16 * 1024,
    "default_topic_queue_nums": 2,
    "mapped_file_size_consume_queue": 2_000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    "read_uncommitted": True,  # so that the queues and the index have what will be cut
}
# What differs from one run to the next in any case.
_OWN: Final = {"trimmed", "lock", "abort", "checkpoint", "identity.json", "node.json", "config"}


def contents(directory: Path) -> dict[str, bytes]:
    """Return the bytes that a cut decides, and the checkpoint's numbers."""
    found = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.relative_to(directory).parts[0] not in _OWN
    }
    checkpoint = StoreCheckpoint.open(real_env().disk, str(directory))
    found["checkpoint"] = f"{checkpoint.flushed_offset} {checkpoint.confirm_offset}".encode()
    return found


@attrs.define(eq=False)
class CuttingSlave:
    """The slave's directory as its process is to find it, and the master that it follows."""

    master: ClusterNode
    former: Path  # with the end that is to be cut
    directory: Path  # of the present run
    settings: NodeStart
    tail: bytes  # what is to be cut

    def fresh(self) -> None:
        """Begin again with the former directory."""
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.copytree(self.former, self.directory)

    @contextlib.contextmanager
    def _process(self, mode: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "tests.integration.killed_slave"]
        command += [json.dumps(self.settings.to_dict()), str(os.getpid()), json.dumps(mode)]
        environment = {**os.environ, "PYTHONPATH": import_path(str(REPO_ROOT))}
        with (
            self.directory.with_suffix(".log").open("ab") as log,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env=environment, cwd=REPO_ROOT
            ) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    def die(self, **mode: Any) -> int:
        """Run it until ``mode`` kills it; return the signal."""
        with self._process(mode) as process:
            return -process.wait(PROCESS_WITHIN_S)

    def follow(self, **mode: Any) -> float:
        """Run it until it has the master's log, and stop it; return how long it cut and copied."""
        with self._process(mode) as process:
            assert process.stdout is not None
            assert process.stdout.read(len(READY)) == READY
            began = time.perf_counter()
            wait_until(self._has_caught_up, every_s=0.05)
            lasted_s = time.perf_counter() - began
            process.send_signal(signal.SIGTERM)
            assert process.wait(PROCESS_WITHIN_S) == 0
        return lasted_s

    def _has_caught_up(self) -> bool:
        end = self.master.status().max_offset
        try:
            status = trio.run(ask_status, ("127.0.0.1", self.settings.port))
        except HastoreError:
            return False
        return has_caught_up(status, end) and status.confirm_offset == end

    def check(self, wanted: dict[str, bytes]) -> None:
        """Check that the directory ended where an uninterrupted cut ends, and what it keeps."""
        found = contents(self.directory)
        assert [name for name in wanted if found.get(name) != wanted[name]] == []
        assert found.keys() == wanted.keys()
        end = self.master.status().max_offset
        log = log_bytes(self.directory)
        assert log[:end] == log_bytes(self.master.data, end)
        assert not any(log[end:]), "stale bytes behind the log's end"
        assert consume_queue_errors(self.directory) == []
        assert self.tail in self.trimmed()

    def trimmed(self) -> set[bytes]:
        """Return the bytes that each attempt of a cut has kept."""
        kept: dict[str, bytes] = {}
        for path in sorted((self.directory / "trimmed").iterdir()):
            if path.suffix != ".json":
                attempt = path.name.partition("-")[2]
                kept[attempt] = kept.get(attempt, b"") + path.read_bytes()
        return set(kept.values())


@contextlib.contextmanager
def cutting_slave(directory: Path) -> Iterator[CuttingSlave]:
    """Run the master, and yield the slave that must cut."""
    with Cluster(directory / "group") as cluster:
        cluster.start_group(2, **CONFIG)
        a, b = cluster.nodes
        _put(a, 100, "common")
        cluster.wait_caught_up()
        b.promote()
        a.kill()
        end = b.status().max_offset
        _put(b, 80, "tail")
        own_end = b.status().max_offset
        b.kill()
        a.promote()
        _put(a, 30, "new")
        port = FreePort()
        slave = CuttingSlave(
            master=a,
            former=b.data,
            directory=directory / "slave",
            settings=NodeStart(
                name="b",
                data_dir=str(directory / "slave"),
                role=BrokerRole.SYNC_MASTER,
                flush=FlushDiskType.ASYNC_FLUSH,
                port=port.number,
                ha_port=0,
                master_ha_port=a.ha_address[1],
                config=CONFIG,
                node_id=2,
                client_ports=(a.address[1], port.number),
            ),
            tail=log_bytes(b.data, own_end)[end:],
        )
        try:
            yield slave
        finally:
            port.release()


def _put(node: ClusterNode, count: int, name: str) -> None:
    results = node.put_many(
        Message(
            f"topic{number % 3}",
            b"%s %d" % (name.encode(), number) * 8,
            properties={"KEYS": f"{name}{number}"},
        )
        for number in range(count)
    )
    assert all(result.status.stored for result in results)
