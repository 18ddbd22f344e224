"""The groups of a cluster that a consumer reads a topic from: a link to each.

``home`` is the group of the addresses that the consumer was given.  Its routes name the others,
whose links are opened as they are needed, and kept until no node of theirs answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.client.group_membership import GroupMembership
from hastore.client.master_search import MasterSearch
from hastore.client.reader_link import ReaderLink
from hastore.client.topic_routes import ask_groups
from hastore.errors import AccessDeniedError, TlsError, UnreachableError
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    import trio

    from hastore.client.master_search import Address
    from hastore.client.remoting_client import Asker
    from hastore.env.interface import Env

_log = logger("client")


@final
@attrs.frozen(eq=False)
class GroupReader:
    """What reads from one group."""

    name: str | None  # None: it is not known, or in no group
    client: Asker
    membership: GroupMembership | None


@final
@attrs.define(eq=False)
class ReaderGroups:
    """The groups of one consumer."""

    home: ReaderLink
    env: Env
    nursery: trio.Nursery
    readers: dict[str, GroupReader] = attrs.field(factory=dict, init=False)  # the others, by name
    # Why no node of a group could be linked when it was last tried, by its name.
    unreachable: dict[str, str] = attrs.field(factory=dict, init=False)

    async def others(self, topic: str) -> dict[str, GroupReader]:
        """Return the other groups that have a topic and can be reached, by name.

        Raises UnreachableError if the home group cannot be asked.
        """
        found = await ask_groups(self.home, topic)
        home_name = self.home.group_name
        if found is None or home_name is None:
            return {}
        return await self._linked({name: found[name] for name in found if name != home_name})

    async def _linked(self, groups: Mapping[str, tuple[Address, ...]]) -> dict[str, GroupReader]:
        self.unreachable.clear()
        for name, addresses in groups.items():
            known = self.readers.get(name)
            if known is not None and known.client.broken_because is None:
                continue
            self.readers.pop(name, None)
            settings = self.home.settings
            search = MasterSearch(
                list(addresses),
                takes_slaves=True,
                access_key=settings.access_key,
                tls=settings.tls,
            )
            link = ReaderLink(search, settings)
            try:
                await self.nursery.start(link.run)
            except (UnreachableError, AccessDeniedError, TlsError) as error:
                _log.warning("group_not_linked", group=name, reason=str(error))
                self.unreachable[name] = str(error)
                continue
            membership = GroupMembership(link, self.env)
            link.on_reconnect = membership.rejoin
            self.nursery.start_soon(membership.run)
            self.readers[name] = GroupReader(name, link, membership)
            _log.info("group_linked", group=name)
        return {name: self.readers[name] for name in groups if name in self.readers}
