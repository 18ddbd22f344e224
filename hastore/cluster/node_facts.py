"""What a node is, as its coordinator's rules and records need it: its role, its log, its epochs.

``own`` is what ``decide`` goes by, ``member`` what the node says of itself in the coordinator,
``leader`` what it writes there as the master of an epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.broker.node.master import Master
from hastore.cluster.decide import OwnNode
from hastore.cluster.group_records import Incarnation, Leader, Member
from hastore.concurrency.tcp import describe
from hastore.ha.autoswitch_framing import AutoswitchFraming
from hastore.ha.group_ha_service import GroupHAService

if TYPE_CHECKING:
    from hastore.broker.node.group_node import GroupNode
    from hastore.cluster.decide import Following
    from hastore.cluster.role_config import RoleConfig
    from hastore.concurrency.lease import Lease
    from hastore.epoch_history import EpochHistory


@final
@attrs.define(eq=False)
class NodeFacts:
    """One start of a node, and whom it follows or stands against."""

    node: GroupNode
    me: Incarnation
    config: RoleConfig
    place: str | None = None  # see ``Member``
    following: Following | None = attrs.field(default=None, init=False)
    # The id of the master that it follows, or followed last.
    followed_id: int | None = attrs.field(default=None, init=False)
    # The election that it stands in, by the revision of its state; None: in none.
    stands_in: int | None = attrs.field(default=None, init=False)

    def own(self, *, holds_lease: bool) -> OwnNode:
        """Return the node as ``decide`` sees it."""
        node, identity, master_of = self.node, self.node.identity, None
        assert identity is not None, "a node that serves has one"
        role_node = node.role_node
        if isinstance(role_node, Master):
            last_epoch = role_node.epoch or 0
            if not role_node.has_stepped_down:
                master_of = role_node.epoch
        else:
            last_epoch = self._history.last_epoch or 0
        queue = role_node.commit_log.mapped_file_queue
        return OwnNode(
            node=self.me,
            kept_since=identity.current.kept_since,
            doubt=identity.current.doubt,
            seen_epoch=identity.current.seen_epoch,
            last_epoch=last_epoch,
            end=role_node.max_offset,
            undispatched=role_node.reput_message_service.behind,
            priority=self.config.priority,
            master_of=master_of,
            following=self.following,
            stands_in=self.stands_in,
            holds_lease=holds_lease,
            unverified=identity.current.unverified,
            unable_since=node.store_health.unable_since,
            is_file_wanted=queue.wanted_file_offset() is not None,
            has_next_file=queue.prepared is not None or not queue.files,
        )

    def member(self, election: int | None) -> Member:
        """Return what the node says of itself as it stands in an election, or in none."""
        own, node, link = self.own(holds_lease=False), self.node, None
        if not isinstance(node.role_node, Master):
            link_address = node.role_node.ha_client.link.local_address
            link = None if link_address is None else describe(link_address)
        return Member(
            node=own.node,
            kept_since=own.kept_since,
            role="master" if own.master_of is not None else "slave",
            last_epoch=own.last_epoch,
            end=own.end,
            ha_address=self._advertised(node.ha_address),
            client_address=None if node.address is None else self._advertised(node.address),
            priority=own.priority,
            link=link,
            election=election,
            version=self.config.version,
            unverified=own.unverified,
            doubt=own.doubt,
            place=self.place,
            can_store=own.unable_since is None,
            has_room=node.store_health.is_steady,
            disowned_in=self._disowned_in(),
            end_epoch=self._history.end_epoch(own.end) or 0,
        )

    def leader(self, epoch: int) -> Leader:
        """Return what the node says of itself as the master of an epoch."""
        node = self.node
        return Leader(
            holder=self.me,
            epoch=epoch,
            ha_address=self._advertised(node.ha_address),
            client_address=None if node.address is None else self._advertised(node.address),
        )

    @property
    def _history(self) -> EpochHistory:
        """The epochs of its log."""
        role_node = self.node.role_node
        if isinstance(role_node, Master):
            assert isinstance(role_node.ha_service, GroupHAService), "a master of a group"
            return role_node.ha_service.epochs
        framing = role_node.ha_client.framing
        assert isinstance(framing, AutoswitchFraming), "a slave of a group"
        return framing.history

    def _disowned_in(self) -> int | None:
        identity = self.node.identity
        assert identity is not None, "a node that serves has one"
        return identity.current.disowned_in

    def _advertised(self, address: tuple[str, int]) -> str:
        """Return an address of this node as others reach it."""
        host, port = address
        return describe((self.config.advertised_host or host, port))


def incarnation_of(node: GroupNode) -> Incarnation:
    """Return a node's id, directory and start."""
    identity = node.identity
    assert identity is not None, "a node that serves has one"
    current = identity.current
    return Incarnation(current.node_id, current.uuid, current.starts)


def is_leading(node: GroupNode, lease: Lease) -> bool:
    """Return whether a node is a master whose time is not over."""
    role_node = node.role_node
    is_master = isinstance(role_node, Master) and not role_node.has_stepped_down
    return is_master and not lease.is_over()
