"""The coordinator of a simulated world: the simulator's model of etcd.

The model has no servers of its own.  A minority that stops makes it elect another leader; when the
majority is lost, what is left answers nobody; when all are stopped, connections are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore_scenarios.worlds.coordinator import StagedCoordinator

if TYPE_CHECKING:
    from hastore.sim.coordinator.etcd_model import EtcdModel
    from hastore.sim.coordinator.etcd_state import EtcdState
    from hastore.sim.coordinator.model_client import ModelClient
    from hastore_scenarios.story.world import Node

_STORY: Final = "the story"


@final
@attrs.define(eq=False, kw_only=True)
class SimCoordinator(StagedCoordinator):
    """A model of etcd, which runs in the world's nursery."""

    model: EtcdModel
    _clients: dict[str, ModelClient] = attrs.field(factory=dict)

    @property
    def store(self) -> ModelClient:
        """The story's own way to it."""
        return self.client_of(_STORY)

    def client_of(self, name: str) -> ModelClient:
        """Return a node's way to it."""
        client = self._clients[name] = self.model.client(name)
        return client

    async def backup(self) -> EtcdState:
        """Return all that it has."""
        await trio.lowlevel.checkpoint()
        return self.model.backup()

    async def _stop(self, count: int) -> None:
        await trio.lowlevel.checkpoint()
        if count == self.servers:
            self.model.stop()
        elif 2 * count > self.servers:
            for client in self._clients.values():
                client.cut()
            self.model.is_running = False
        else:
            self.model.change_leader()

    async def _start(self) -> None:
        await trio.lowlevel.checkpoint()
        for name, client in self._clients.items():
            if name not in self.unreached:
                client.heal()
        if not self.model.is_running:
            self.model.start()

    async def _cut_off(self, node: Node) -> None:
        await trio.lowlevel.checkpoint()
        self.client_of(node.name).cut()

    async def _reconnect(self, node: Node) -> None:
        await trio.lowlevel.checkpoint()
        if not self.stopped:
            self.client_of(node.name).heal()

    async def _restore(self, backup: EtcdState) -> None:
        await trio.lowlevel.checkpoint()
        self.model.stop()
        self.model.restore(backup, as_other_cluster=False)
        self.model.start()
