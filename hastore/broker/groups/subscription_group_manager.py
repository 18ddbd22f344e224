"""The consumer groups that a broker knows, with their configurations.

A group that no administrator has made has RocketMQ's defaults; it enters the table with its first
committed offset or returned message, and stays.  RocketMQ's enters with its first heartbeat; here
that would let anybody fill the table.

A second table names the groups that were deleted together with their offsets, and when, so that
slaves remove the offsets, too: the table of offsets alone does not say what was removed.

On a slave the table is a copy of its master's, and the groups that were added here: by consumers of
the slave that its master does not know.

Where there are ``groups_max`` groups, clients and administrators make no more.  What the node's
file and its master have is taken whole.

Invariant: at most the last DELETED_MAX deleted groups; the name of each group's retry topic is
legal, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.broker.groups.topic_config_manager import IgnoredRows, read_table
from hastore.broker.quotas import table_full
from hastore.errors import ProtocolError, RequestFailedError
from hastore.topic import RETRY_TOPIC_PREFIX, topic_fault
from hastore.wire.config_tables import DELETED_GROUPS, DataVersion, SubscriptionGroupConfig
from hastore.wire.liberal_json import Rows, all_rows
from hastore.wire.remoting_codes import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hastore.broker.quotas import Quota

DELETED_MAX: Final = 1_024


def group_fault(group: str) -> str | None:
    """Return what is wrong with a group's name, or None."""
    if not group:
        return "the group's name is empty"
    fault = topic_fault(RETRY_TOPIC_PREFIX + group)
    return None if fault is None else f"group {group[:40]!r}: its retry topic is illegal: {fault}"


@final
@attrs.define(eq=False)
class SubscriptionGroupManager:
    """The table of subscriptionGroup.json; ``on_changed`` is called after every change."""

    now_ms: Callable[[], int]
    groups_max: int  # [remoting] groups_max
    on_changed: Callable[[], None] | None = None
    quota: Quota[str] | None = None  # of the groups that clients make
    groups: dict[str, SubscriptionGroupConfig] = attrs.field(factory=dict, init=False)
    version: DataVersion = attrs.field(factory=DataVersion, init=False)
    changes: int = attrs.field(default=0, init=False)  # since this object was made
    # Wall time of the deletion (ms), the oldest first.
    deleted: dict[str, int] = attrs.field(factory=dict, init=False)
    _added: set[str] = attrs.field(factory=set, init=False)  # here, not by a file or a copy

    def find(self, group: str) -> SubscriptionGroupConfig:
        """Return a group's configuration; the defaults if it is not in the table."""
        return self.groups.get(group) or SubscriptionGroupConfig(group=group)

    def register(self, group: str, owner: str | None = None) -> SubscriptionGroupConfig:
        """Return a group's configuration, after adding it to the table if need be.

        A new group counts for the quota of ``owner``, if there is one.  Raises RequestFailedError.
        """
        config = self.groups.get(group)
        if config is None:
            if owner is not None and self.quota is not None:
                self.quota.take(owner, group, trio.current_time())
            config = self.put(SubscriptionGroupConfig(group=group))
        return config

    def put(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Make or replace a group.  Raises RequestFailedError for a bad name or a full table."""
        self.check(config.group)
        self.groups[config.group] = config
        self._added.add(config.group)
        self._changed()
        return config

    def check(self, group: str, owner: str | None = None) -> None:
        """Raise RequestFailedError for a bad name, a full table or a used-up quota of ``owner``."""
        fault = group_fault(group)
        if fault is not None:
            raise RequestFailedError(fault, code=ResponseCode.SYSTEM_ERROR)
        if group not in self.groups and len(self.groups) >= self.groups_max:
            msg = f"this broker already has {len(self.groups)} groups; [remoting] groups_max is"
            msg += f" {self.groups_max}"
            raise table_full("groups_max", msg)
        if owner is not None and self.quota is not None:
            self.quota.check(owner, group, trio.current_time())

    def delete(self, group: str, *, with_offsets: bool) -> None:
        """Take a group out of the table; ``with_offsets``: its slaves remove its offsets."""
        self.groups.pop(group, None)
        self._added.discard(group)
        last_ms = self.deleted.pop(group, 0)
        if with_offsets:
            # Later than its last deletion, whatever the clock says.
            self.deleted[group] = max(self.now_ms(), last_ms + 1)
            while len(self.deleted) > DELETED_MAX:
                del self.deleted[next(iter(self.deleted))]
        self._changed()

    def copy(
        self,
        groups: Mapping[str, SubscriptionGroupConfig],
        version: DataVersion | None,
        deleted: Mapping[str, int] | None = None,
    ) -> None:
        """Replace the tables by a master's; the groups that were added here stay.

         Without a ``version`` the table gets the next one of
        its own if it has changed.
        """
        if deleted is not None:
            self._added -= {name for name in deleted if deleted[name] != self.deleted.get(name)}
            self.deleted = dict(deleted)
        self._added -= groups.keys()
        kept = {**groups, **{name: self.groups[name] for name in sorted(self._added)}}
        if kept != self.groups or version not in {None, self.version}:
            self.groups = kept
            self._changed(version)

    def _changed(self, version: DataVersion | None = None) -> None:
        self.version = version or self.version.next(self.now_ms())
        self.changes += 1
        if self.on_changed is not None:
            self.on_changed()

    # -- JSON ------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the whole table: subscriptionGroup.json, and the body of 201."""
        return all_rows(self.to_rows())

    def to_rows(self) -> dict[str, Any]:
        """Return the same, with rows that are converted when they are written."""
        return {
            "dataVersion": self.version.to_dict(),
            "subscriptionGroupTable": Rows(dict(self.groups), SubscriptionGroupConfig.to_dict),
            DELETED_GROUPS: Rows(dict(self.deleted), int),
        }

    def load(self, value: dict[str, Any]) -> None:
        """Load the content of the file; invalid entries are logged and left out."""
        ignored = IgnoredRows("subscriptionGroupTable")
        self.version, rows = read_table(value, ignored)
        for name, row in rows.items():
            fault = group_fault(name)
            if fault is not None:
                ignored.add(name, fault)
                continue
            try:
                config = SubscriptionGroupConfig.from_dict(row, name)
            except ProtocolError as error:
                ignored.add(name, str(error))
                continue
            self.groups[name] = config
        ignored.log()
        deleted = value.get(DELETED_GROUPS)
        if isinstance(deleted, dict):
            self.deleted = {name: deleted[name] for name in deleted if type(deleted[name]) is int}
