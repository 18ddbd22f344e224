"""A replica group of processes that elects its master by a real etcd, under load.

One producer with the addresses of all nodes keeps IN_FLIGHT messages on their way; each message has
a key of its own, and its outcome is recorded.  At the end the three logs are compared with each
other and with all answers.
"""

from __future__ import annotations

import contextlib
import signal
import statistics
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs
import trio

from hastore.access.signature import AccessKey
from hastore.client.producer import Producer
from hastore.client.send_result import PendingSend
from hastore.cluster.etcd_client import EtcdClient, EtcdConfig
from hastore.cluster.group_records import GroupView, Keys, read_group
from hastore.cluster.operations import switchover
from hastore.config import AccessConfig
from hastore.env.real import real_env
from hastore.errors import CoordinatorError, HastoreError, OperationRefusedError
from hastore.message import Message
from hastore.testing.free_port import FreePort
from hastore_scenarios.judge.log_image import read_records
from hastore_scenarios.worlds.process.child_process import ChildProcess, hastore_command
from tests.patience import PROCESS_WITHIN_S
from tests.support.etcd import EtcdServer
from tests.support.nodes.tls_files import TlsFiles

IDS: Final = (1, 2, 3)
IN_FLIGHT: Final = 64
TTL_S: Final = 3
TOPIC: Final = "orders"
KEYS: Final = Keys.of("/hastore", "DefaultCluster", "g1")
_PACE_S: Final = 0.002
_LOOK_S: Final = 0.02


class Acknowledged(NamedTuple):
    """When a message was sent that was PUT_OK, and when its producer knew: trio's times."""

    sent_at: float
    known_at: float


@attrs.define(eq=False)
class ElectedGroup:
    """The nodes, and what became of the messages."""

    directory: Path
    etcd: Sequence[EtcdServer]  # the members of one cluster
    store: EtcdClient
    name: str = "g1"
    ids: tuple[int, ...] = IDS
    flush: str = "ASYNC_FLUSH"
    failsafe: bool = True
    store_settings: str = 'mapped_file_size = "64MiB"'  # [store] of all nodes
    pace_s: float = _PACE_S  # between two messages
    access: AccessConfig | None = None  # of all nodes
    access_key: AccessKey | None = None  # of the producer
    tls: TlsFiles | None = None  # both ports of all nodes, and the producer, by mutual TLS
    ports: dict[int, tuple[FreePort, FreePort]] = attrs.field(
        default=attrs.Factory(
            lambda self: {node_id: (FreePort(), FreePort()) for node_id in self.ids},
            takes_self=True,
        )
    )
    nodes: dict[int, ChildProcess] = attrs.field(factory=dict)
    acknowledged: dict[str, int] = attrs.field(factory=dict)  # PUT_OK: key → physic offset
    times: list[Acknowledged] = attrs.field(factory=list)  # of the same, as they became known
    refused: set[str] = attrs.field(factory=set)  # certainly not stored
    last_ok: float = 0.0  # trio's time
    recoveries: list[float] = attrs.field(factory=list)  # seconds from a fault to the next PUT_OK
    _is_over: bool = False

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The client ports."""
        return [("127.0.0.1", client.number) for client, _ in self.ports.values()]

    def start(self, node_id: int) -> None:
        """Start a node's process."""
        client, ha = self.ports[node_id]
        settings = self.directory / "node.toml"
        text = f"[cluster]\nfailsafe = {str(self.failsafe).lower()}\n"
        text += f"[store]\n{self.store_settings}\n"
        if self.access is not None:
            text += f'[access]\nfile = "{self.access.file}"\nkey_file = "{self.access.key_file}"\n'
        if self.tls is not None:
            node = self.tls.node
            text += f'[tls]\nmode = "enforcing"\ncert = "{node.cert}"\nkey = "{node.key}"\n'
            text += f'ca = "{node.ca}"\nclient_certificates = "required"\n'
            text += '[ha]\ntls = true\ntls_allowed_names = ["node"]\n'
        written = self.directory / f"node.toml.{node_id}"
        written.write_text(text)
        written.replace(settings)  # another node may read it just now
        self.nodes[node_id] = ChildProcess.start(
            hastore_command(
                "node", "--config", str(settings),
                "--data", str(self.data_of(node_id)), "--node-id", str(node_id),
                "--node-group", self.name, "--group-ids", ",".join(map(str, self.ids)),
                "--etcd", ",".join(each.endpoint for each in self.etcd), "--ttl", f"{TTL_S}s",
                "--listen", f"127.0.0.1:{client.number}", "--ha-listen", f"127.0.0.1:{ha.number}",
                "--flush", self.flush,
            ),
            self.directory / f"n{node_id}.log",
        )  # fmt: skip

    def data_of(self, node_id: int) -> Path:
        """Return a node's directory."""
        return self.directory / f"n{node_id}"

    # -- what etcd says --------------------------------------------------------------------------

    async def view(self, holds: Callable[[GroupView], bool], what: str) -> GroupView:
        """Wait until etcd's view of the group fulfils a condition, and return it."""
        view: GroupView | None = None
        keys = Keys.of("/hastore", "DefaultCluster", self.name)
        with trio.move_on_after(PROCESS_WITHIN_S):
            while True:
                with contextlib.suppress(CoordinatorError):
                    view = read_group(keys, await self.store.read(keys.base))
                    if holds(view):
                        return view
                await trio.sleep(_LOOK_S)
        raise AssertionError(f"not within {PROCESS_WITHIN_S:g} s: {what}; last seen: {view}")

    async def settled(self) -> GroupView:
        """Wait until there is a master, and all nodes are in its set in the starts that run."""
        return await self.view(self._is_settled, "a master with all nodes in its set")

    def _is_settled(self, view: GroupView) -> bool:
        state, leader, ids = view.state, view.leader, set(self.ids)
        return (
            state is not None
            and leader is not None
            and state.ids == ids
            and view.members.keys() == ids
            and all(view.members[each.node_id].node == each for each in state.members)
        )

    async def master_id(self) -> int:
        """Return the id of the master of a settled group."""
        leader = (await self.settled()).leader
        assert leader is not None, "settled"
        return leader.holder.node_id

    # -- load ------------------------------------------------------------------------------------

    async def produce(self) -> None:
        """Send messages until the load is over."""
        room = trio.Semaphore(IN_FLIGHT)
        number = 0
        async with (
            Producer.connect(
                self.addresses,
                failover_timeout_s=PROCESS_WITHIN_S,
                connect_timeout_s=PROCESS_WITHIN_S,
                access_key=self.access_key,
                tls=None if self.tls is None else self.tls.mutual(),
            ) as producer,
            trio.open_nursery() as nursery,
        ):
            while not self._is_over:
                await room.acquire()
                number += 1
                key, sent_at = f"key-{number}", trio.current_time()
                pending = await producer.submit(
                    Message(TOPIC, key.encode() + b" " * 200, properties={"KEYS": key})
                )
                nursery.start_soon(self._record, key, pending, room, sent_at)
                await trio.sleep(self.pace_s)

    async def _record(
        self, key: str, pending: PendingSend, room: trio.Semaphore, sent_at: float
    ) -> None:
        try:
            result = await pending.wait()
        except HastoreError:
            return  # unknown: in the log once, or not at all
        finally:
            room.release()
        if result.ok:
            assert result.physic_offset is not None
            self.acknowledged[key] = result.physic_offset
            self.last_ok = trio.current_time()
            self.times.append(Acknowledged(sent_at, self.last_ok))
        elif not result.status.stored:
            self.refused.add(key)

    async def acknowledged_after(self, time: float) -> None:
        """Wait for a PUT_OK after a time, and record how long it took."""
        with trio.move_on_after(PROCESS_WITHIN_S) as scope:
            while self.last_ok <= time:
                await trio.sleep(_LOOK_S)
        assert not scope.cancelled_caught, f"no PUT_OK within {PROCESS_WITHIN_S:g} s"
        self.recoveries.append(self.last_ok - time)

    async def acknowledges_for(self, seconds: float) -> None:
        """Wait for that long, and see that puts are PUT_OK all the time: at least one each ttl."""
        until = trio.current_time() + seconds
        while (now := trio.current_time()) < until:
            await self.acknowledged_after(now)
            await trio.sleep_until(min(now + TTL_S, until))
        await self.acknowledged_after(until)

    def longest_pause_s(self, begin: float, end: float) -> float:
        """Return the longest time without a PUT_OK between two times."""
        known = [each.known_at for each in self.times if begin < each.known_at < end]
        return max(after - at for at, after in pairwise([begin, *known, end]))

    def end_load(self) -> None:
        """Let the producer end."""
        self._is_over = True

    # -- faults ----------------------------------------------------------------------------------

    async def kill_master(self) -> None:
        """Kill the master; wait until another one acknowledges, and start the former again."""
        former = await self.master_id()
        self.nodes[former].send_signal(signal.SIGKILL)
        await self.nodes[former].wait()
        await self.acknowledged_after(trio.current_time())
        self.start(former)

    async def kill(self, *ids: int) -> None:
        """Kill nodes at once."""
        for node_id in ids:
            self.nodes[node_id].send_signal(signal.SIGKILL)
        for node_id in ids:
            await self.nodes[node_id].wait()

    async def freeze_master(self, seconds: float) -> None:
        """Stop the master's process (SIGSTOP) for a while, under load."""
        former = await self.master_id()
        self.nodes[former].send_signal(signal.SIGSTOP)
        await self.view(
            lambda view: view.leader is not None and view.leader.holder.node_id != former,
            "another master than the frozen one",
        )
        await trio.sleep(seconds)
        self.nodes[former].send_signal(signal.SIGCONT)
        await self.acknowledged_after(trio.current_time())

    async def switch_over(self) -> None:
        """Let another member become master, under load."""
        change = None
        while change is None:  # a node that has just followed may not be connected yet
            view = await self.settled()
            assert view.leader is not None
            epoch = view.leader.epoch
            try:
                change = switchover(KEYS, view)
            except OperationRefusedError:
                await trio.sleep(_LOOK_S)
        began = trio.current_time()
        assert (await self.store.commit(change.comparisons, change.writes)).succeeded
        await self.view(
            lambda view: view.leader is not None and view.leader.epoch > epoch, "the next master"
        )
        await self.acknowledged_after(max(began, self.last_ok))

    # -- the end ---------------------------------------------------------------------------------

    async def same_ends(self, beyond: int = 0) -> None:
        """Wait until the logs of all nodes have the same end, beyond an offset."""
        await self.view(
            lambda view: (
                len(view.members) == len(self.ids)
                and min(each.end for each in view.members.values()) > beyond
                and len({each.end for each in view.members.values()}) == 1
            ),
            "all nodes have the same end",
        )

    async def stop(self) -> None:
        """Stop all nodes cleanly."""
        for node in self.nodes.values():
            node.send_signal(signal.SIGTERM)
        for node in self.nodes.values():
            await node.wait()

    async def end(self) -> None:
        """End all processes, and give the ports back."""
        with trio.CancelScope(shield=True):
            for node in self.nodes.values():
                await node.end()
        for client, ha in self.ports.values():
            client.release()
            ha.release()

    def check_logs(self) -> None:
        """Compare the logs with each other, and with all answers."""
        log = self.log()
        offsets = {offset for offset, _, _ in log}
        lost = {key: at for key, at in self.acknowledged.items() if at not in offsets}
        assert lost == {}, "PUT_OK, and not in the log"
        counts = Counter(key for _, _, key in log)
        assert [key for key, count in counts.items() if count > 1] == []

    def log(self) -> list[tuple[int, int, str]]:
        """Return start, end and UNIQ_KEY of the records of all logs, which are the same."""
        disk = real_env().disk
        logs = {
            node_id: [
                (record.physic_offset, record.next_offset, record.key)
                for record in read_records(disk, str(self.data_of(node_id)))
            ]
            for node_id in self.ids
        }
        bounds = {
            node_id: (len(log), log[0][0], log[-1][1]) if log else None
            for node_id, log in logs.items()
        }
        are_same = len({tuple(log) for log in logs.values()}) == 1
        assert are_same, f"the logs differ; records, begin, end: {bounds}"
        return logs[1]

    def print_recoveries(self) -> None:
        """Print how long puts were not acknowledged."""
        if self.recoveries:
            count, most_s = len(self.recoveries), max(self.recoveries)
            median_s = statistics.median(self.recoveries)
            print(f"PUT_OK again, {count} times: median {median_s:.2f} s, at most {most_s:.2f} s")


@contextlib.asynccontextmanager
async def elected_group(
    directory: Path,
    *etcd: EtcdServer,
    ids: tuple[int, ...] = IDS,
    flush: str = "ASYNC_FLUSH",
    failsafe: bool = True,
    access: AccessConfig | None = None,
    access_key: AccessKey | None = None,
    tls: TlsFiles | None = None,
    **changes: Any,
) -> AsyncIterator[ElectedGroup]:
    """Run a group under load; at the end all nodes are back in step, and their logs are checked.

    ``changes`` are of other fields of the group.
    """
    directory.mkdir(exist_ok=True)
    endpoints = tuple(each.endpoint for each in etcd)
    async with EtcdClient.open(EtcdConfig(endpoints=endpoints)) as store:
        group = ElectedGroup(
            directory,
            etcd,
            store,
            ids=ids,
            flush=flush,
            failsafe=failsafe,
            access=access,
            access_key=access_key,
            tls=tls,
            **changes,
        )
        try:
            for node_id in ids:
                group.start(node_id)
            await group.settled()
            async with trio.open_nursery() as load:
                load.start_soon(group.produce)
                await group.acknowledged_after(trio.current_time())
                group.recoveries.clear()
                yield group
                await group.settled()
                group.end_load()
            await group.same_ends(max(group.acknowledged.values()))
            await group.stop()
            group.check_logs()
            group.print_recoveries()
        finally:
            await group.end()
