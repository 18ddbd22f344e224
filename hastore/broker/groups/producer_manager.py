"""The producers that are connected, by client id and by group: who gets a reply, and answers 204.

A heartbeat names all producer groups of one client.  ``ConsumerManager`` drops a client that has
gone or sends no heartbeats.

A client id belongs to the last connection whose heartbeat had it, as in RocketMQ, with one
exception: while its connection is open, another owner (``hastore.broker.quotas``) does not get it,
so no access key takes over the replies to another one.

Invariant: a group is in the table exactly while it has members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import attrs

from hastore.concurrency.tcp import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hastore.broker.reply import ClientConnection


@attrs.frozen(kw_only=True)
class Member:
    """One client of a group."""

    client_id: str
    language: str
    version: int


@final
@attrs.define(eq=False)
class ProducerManager:
    """The table of producers."""

    groups: dict[str, dict[ClientConnection, Member]] = attrs.field(factory=dict, init=False)
    _by_id: dict[str, ClientConnection] = attrs.field(factory=dict, init=False)
    # Each client's id and groups.
    _clients: dict[ClientConnection, tuple[str, frozenset[str]]] = attrs.field(
        factory=dict, init=False
    )

    def heartbeat(self, client: ClientConnection, member: Member, groups: Iterable[str]) -> None:
        """Register a client with the groups that it has now; without any it is no producer."""
        self.client_gone(client)
        now_in = frozenset(groups)
        if not now_in:
            return
        for group in now_in:
            self.groups.setdefault(group, {})[client] = member
        self._clients[client] = member.client_id, now_in
        holder = self._by_id.get(member.client_id)
        if holder is None or holder.is_closed or holder.owner == client.owner:
            self._by_id[member.client_id] = client

    def unregister(self, client: ClientConnection, group: str) -> None:
        """Remove a client from a group; with its last group it is no producer any more."""
        client_id, groups = self._clients.get(client, ("", frozenset[str]()))
        if group not in groups:
            return
        if groups == {group}:
            self.client_gone(client)
            return
        self._clients[client] = client_id, groups - {group}
        self._leave(client, group)

    def client_gone(self, client: ClientConnection) -> None:
        """Forget a client."""
        client_id, groups = self._clients.pop(client, ("", frozenset[str]()))
        for group in groups:
            self._leave(client, group)
        if self._by_id.get(client_id) is client:
            del self._by_id[client_id]

    def _leave(self, client: ClientConnection, group: str) -> None:
        members = self.groups[group]
        del members[client]
        if not members:
            del self.groups[group]

    def find(self, client_id: str) -> ClientConnection | None:
        """Return the connection of a client id; None if it is not connected."""
        client = self._by_id.get(client_id)
        return None if client is None or client.is_closed else client

    def members(self, group: str) -> Mapping[ClientConnection, Member]:
        """Return the clients of a group."""
        return self.groups.get(group, {})


def connection_to_dict(connection: tuple[ClientConnection, Member]) -> dict[str, Any]:
    """Return RocketMQ's Connection: a row of the answers to 203 and 204."""
    client, member = connection
    return {
        "clientAddr": describe(client.peer),
        "clientId": member.client_id,
        "language": member.language,
        "version": member.version,
    }
