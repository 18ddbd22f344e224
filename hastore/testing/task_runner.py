"""A node as tasks of the test's own process: quick to start, easy to debug.

A kill resembles a crash: from that instant no more disk work is done (no flush, no checkpoint, no
offsets), then the tasks are cancelled; ``abort`` stays.  For real SIGKILL and SIGSTOP, use
processes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar, final

import attrs
import trio

from hastore.broker.node.group_node import GroupNode, run_group_node
from hastore.broker.node.master import Master, run_master
from hastore.broker.node.slave import Slave, run_slave
from hastore.config import GroupNodeConfig, MasterConfig
from hastore.env.real import real_env
from hastore.errors import DiskError
from hastore.testing.loop_thread import lone
from hastore.testing.runner import NodeDiedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hastore.config import SlaveConfig
    from hastore.env.interface import DiskFile, Env, Offload, SyncThread
    from hastore.ha.client_port import AskClientPort
    from hastore.testing.node_settings import NodeStart

T = TypeVar("T")


@final
@attrs.define(eq=False)
class _MortalOffload:
    """Runs work in threads until the node is killed."""

    living: Offload
    data_dir: str
    is_dead: bool = False

    async def run(self, call: Callable[[], T]) -> T:
        """Run ``call``; return its result.  Raises DiskError after a kill."""
        if self.is_dead:
            await trio.lowlevel.checkpoint_if_cancelled()
            raise DiskError("this node was killed by its test", path=self.data_dir)
        return await self.living.run(call)

    def sync_thread(self) -> SyncThread:
        """Return one that dies with the node."""
        return _MortalSyncThread(self.living.sync_thread(), self)


@final
@attrs.define(eq=False)
class _MortalSyncThread:
    """Syncs until the node is killed."""

    living: SyncThread
    offload: _MortalOffload
    _was_dead: bool = False  # when the request began

    def start(self, files: Sequence[DiskFile]) -> None:
        """Begin, unless the node is dead."""
        self._was_dead = self.offload.is_dead
        if not self._was_dead:
            self.living.start(files)

    async def wait(self) -> None:
        """Wait for the syncs.  Raises DiskError if they began after a kill."""
        if self._was_dead:
            await trio.lowlevel.checkpoint_if_cancelled()
            raise DiskError("this node was killed by its test", path=self.offload.data_dir)
        await self.living.wait()

    def close(self) -> None:
        """End the thread."""
        self.living.close()


@final
@attrs.define(eq=False)
class TaskRunner:
    """A `NodeRunner` in the loop of ``nursery``."""

    nursery: trio.Nursery
    _node: GroupNode | Master | Slave | None = attrs.field(default=None, init=False)
    _offload: _MortalOffload | None = attrs.field(default=None, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    _error: BaseException | None = attrs.field(default=None, init=False)
    _is_wanted: bool = attrs.field(default=True, init=False)  # until the test ends it

    async def start(self, settings: NodeStart) -> None:
        """Start it and wait until it serves."""
        env = real_env()
        self._offload = _MortalOffload(env.offload, settings.data_dir)
        env = attrs.evolve(env, offload=self._offload)
        await self.nursery.start(self._run, settings.node_config(), env, settings.ask_client_port)

    async def _run(
        self,
        config: GroupNodeConfig | MasterConfig | SlaveConfig,
        env: Env,
        ask: AskClientPort,
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    if isinstance(config, GroupNodeConfig):
                        run = partial(run_group_node, ask_client_port=ask)
                        self._node = await nursery.start(run, config, env)
                    elif isinstance(config, MasterConfig):
                        self._node = await nursery.start(run_master, config, env)
                    else:
                        self._node = await nursery.start(run_slave, config, env)
                    task_status.started()
        except Exception as error:
            self._error = lone(error)
            if self._node is None:
                self._is_wanted = False
                raise  # to the caller of start
        finally:
            self._ended.set()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._node is not None and not self._ended.is_set()

    @property
    def death(self) -> str | None:
        """Why it ended by itself; None if it did not."""
        if not self._is_wanted or not self._ended.is_set():
            return None
        return "it ended" if self._error is None else f"{type(self._error).__name__}: {self._error}"

    async def stop(self) -> None:
        """Stop it cleanly.  Raises NodeDiedError if that fails."""
        if self.is_running:
            assert self._node is not None
            self._is_wanted = False
            self._node.stop()
            await self._ended.wait()
            if self._error is not None:
                raise NodeDiedError(f"it did not stop cleanly: {self._error}") from self._error

    async def kill(self) -> None:
        """Stop all work on the disk, then cancel the tasks."""
        if self._offload is not None:
            self._offload.is_dead = True
        await self.end()

    async def end(self) -> None:
        """Cancel the tasks, which flush what they can, and wait for their end."""
        self._is_wanted = False
        self._scope.cancel()
        if self._node is not None:
            await self._ended.wait()

    async def pause(self) -> None:
        """Raise NotImplementedError: tasks cannot be frozen."""
        raise NotImplementedError(
            "only a node that is a process can be frozen: hastore_processes,"
            " hastore_group_processes"
        )

    async def resume(self) -> None:
        """Raise NotImplementedError, as ``pause`` does."""
        await self.pause()
