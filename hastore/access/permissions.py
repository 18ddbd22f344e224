"""Accounts and what they may do: RocketMQ's plain permissions, as values.

What counts for a topic, the first that applies:

1. an admin may do everything;
2. the topic's own permission (``topicPerms``);
3. ``%RETRY%group`` and ``%DLQ%group`` belong to the group: SUB on it, for sending, too;
4. topics that the broker keeps for itself: none.  ``RMQ_SYS_TRACE_TOPIC`` may have PUB: clients
   send what they measure there, and so may the reply topic of the node's cluster;
5. the account's ``defaultTopicPerm``.

For a group: admin, ``groupPerms``, ``defaultGroupPerm``.  Whatever is not named is denied.  Source:
RocketMQ 4.9.8 ``PlainPermissionManager``, ``Permission``, which have neither 4 nor dead letters.
"""

from __future__ import annotations

import enum
import ipaddress
from typing import TYPE_CHECKING, Final

import attrs

from hastore.topic import DEFAULT_TOPIC, SCHEDULE_TOPIC, group_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.access.signature import AccessKey

    Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
_SYSTEM_PREFIX: Final = "RMQ_SYS_"
_SYSTEM_TOPICS: Final = frozenset({DEFAULT_TOPIC, SCHEDULE_TOPIC, "OFFSET_MOVED_EVENT"})


class Permission(enum.Flag):
    """What an account may do with a topic or a group."""

    DENY = 0
    PUB = 1
    SUB = 2

    @property
    def text(self) -> str:
        """``PUB|SUB``, as in the file."""
        return "|".join(one.name or "" for one in Permission if one in self) or "DENY"


DENY: Final = Permission.DENY
PUB: Final = Permission.PUB
SUB: Final = Permission.SUB


class Subject(enum.Enum):
    """What a permission is about."""

    TOPIC = "topic"
    GROUP = "group"
    NODE = "node"


@attrs.frozen
class Need:
    """What a request needs: any of ``permission`` on a topic or group, or an admin for the node."""

    subject: Subject
    name: str = ""
    permission: Permission = DENY

    def __str__(self) -> str:
        """Return ``PUB on topic orders``."""
        if self.subject is Subject.NODE:
            return "admin"
        permission = self.permission.text.replace("|", " or ")
        return f"{permission} on {self.subject.value} {self.name:.128}"


ADMIN: Final = Need(Subject.NODE)


@attrs.frozen(kw_only=True)
class Account:
    """One access key and its permissions; ``networks`` empty: the key counts from everywhere."""

    key: AccessKey
    is_admin: bool = False
    default_topic: Permission = DENY
    default_group: Permission = DENY
    topics: Mapping[str, Permission] = attrs.field(factory=dict)
    groups: Mapping[str, Permission] = attrs.field(factory=dict)
    networks: tuple[Network, ...] = ()
    # Whether there may be a topic that it can read; a group gives its retry topic.
    reads_any_topic: bool = attrs.field(init=False)

    @reads_any_topic.default
    def _reads_any_topic(self) -> bool:
        named = (*self.topics.values(), *self.groups.values())
        granted = (self.default_topic, self.default_group, *named)
        return self.is_admin or any(SUB in permission for permission in granted)

    def may(self, need: Need, reply_topic: str | None = None) -> bool:
        """Whether the account has what a request needs of a node with this reply topic."""
        return self.is_admin or bool(self._granted(need, reply_topic) & need.permission)

    def why(self, need: Need, reply_topic: str | None = None) -> str:
        """Say by which line of its account a need is met, or not."""
        if self.is_admin:
            return "admin: true"
        if need.subject is Subject.NODE:
            return "admin: false"
        if need.subject is Subject.GROUP:
            return self._why_group(need.name)
        if need.name in self.topics:
            return f"topicPerms {need.name}={self.topics[need.name].text}"
        group = group_of(need.name)
        if group is not None:
            return f"the topic of group {group}: {self._why_group(group)}"
        if _is_system(need.name) or need.name == reply_topic:
            return f"{need.name} is the broker's own"
        return f"defaultTopicPerm: {self.default_topic.text}"

    def _why_group(self, group: str) -> str:
        if group in self.groups:
            return f"groupPerms {group}={self.groups[group].text}"
        return f"defaultGroupPerm: {self.default_group.text}"

    def _granted(self, need: Need, reply_topic: str | None) -> Permission:
        if need.subject is Subject.NODE:
            return DENY
        if need.subject is Subject.GROUP:
            return self.groups.get(need.name, self.default_group)
        named = self.topics.get(need.name)
        if named is not None:
            return named
        group = group_of(need.name)
        if group is not None:
            has_group = SUB in self.groups.get(group, self.default_group)
            return PUB | SUB if has_group else DENY
        if need.name == reply_topic:
            return PUB
        if _is_system(need.name):
            return PUB if need.name == _TRACE_TOPIC else DENY
        return self.default_topic

    def takes(self, host: str) -> bool:
        """Whether the key counts from this address."""
        if not self.networks:
            return True
        address = ipaddress.ip_address(host.partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        return any(address in network for network in self.networks)


def _is_system(topic: str) -> bool:
    return topic in _SYSTEM_TOPICS or topic.startswith(_SYSTEM_PREFIX)


@attrs.frozen
class PermissionTable:
    """The accounts of a file, by the name of their key."""

    accounts: Mapping[str, Account]
