"""Which group of a cluster gets a producer's next message; the links to the others.

::

    home: the group of the addresses that the producer was given
                     │ its routes name other groups with the same topic
    others: a link to each of them, until its group has no master for too long

Messages without a queue of their own go to the groups in turn, those with room first: while one
group has no master, the others take all.  A message with a queue stays with one group, so that the
queue keeps its order: home, or, if that does not have the topic, the first by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.concurrency.service import as_itself
from hastore.errors import AccessDeniedError, TlsError, UnreachableError
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hastore.client.group_sender import GroupSender
    from hastore.client.master_search import Address
    from hastore.client.topic_routes import TopicRoutes

_log = logger("client")


@final
@attrs.define(eq=False)
class GroupSpread:
    """The groups of one producer, ``home`` the first of them."""

    home: GroupSender
    routes: TopicRoutes
    # Keeps a link to the group with these nodes, and starts with its sender.  Raises
    # UnreachableError if it has no master.
    serve: Callable[..., Awaitable[None]]
    nursery: trio.Nursery
    others: dict[str, GroupSender] = attrs.field(factory=dict, init=False)  # by name, while linked
    _opening: set[str] = attrs.field(factory=set, init=False)
    _turn: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        """Follow the routes."""
        self.routes.on_groups = self._found

    # -- the groups ------------------------------------------------------------------------------

    @property
    def senders(self) -> tuple[GroupSender, ...]:
        """Those of all groups that are linked."""
        return self.home, *self.others.values()

    def _found(self, groups: Mapping[str, tuple[Address, ...]]) -> None:
        """Open links to the groups of a topic that have none."""
        if self.home.name is None:
            return
        for name, addresses in groups.items():
            if name != self.home.name and name not in self.others and name not in self._opening:
                self._opening.add(name)
                self.nursery.start_soon(self._keep, name, addresses)

    async def _keep(self, name: str, addresses: tuple[Address, ...]) -> None:
        try:
            with as_itself():
                async with trio.open_nursery() as nursery:
                    self.others[name] = await nursery.start(self.serve, addresses)
                    _log.info("group_linked", group=name)
        except (UnreachableError, AccessDeniedError, TlsError) as error:
            _log.warning("group_not_linked", group=name, reason=str(error))
        finally:
            self._opening.discard(name)
            self.others.pop(name, None)

    # -- a message -------------------------------------------------------------------------------

    async def ready(self, topic: str, *, has_queue: bool) -> GroupSender:
        """Return the sender of the next message; wait while none has room.

        Its link may be broken, if all are that could take the message; and have no room, if no
        other group is linked.
        """
        if not self.others:  # the usual case, and each message comes here
            self.routes.of(topic)
            return self.home
        while True:
            sender = self.pick(topic, has_queue=has_queue)
            if sender.link.has_room or sender.link.broken_because is not None:
                return sender
            waiting = (sender,) if has_queue else self._takers(topic)
            async with trio.open_nursery() as nursery:

                async def wait(one: GroupSender, nursery: trio.Nursery = nursery) -> None:
                    await one.link.wait_for_room()
                    nursery.cancel_scope.cancel()

                for one in waiting:
                    nursery.start_soon(wait, one)

    def pick(self, topic: str, *, has_queue: bool) -> GroupSender:
        """Return the sender of the next message: in turn, those with room first."""
        takers = self._takers(topic)
        if has_queue:
            return self._keeper(topic)
        ready = [one for one in takers if one.link.has_room] or takers
        self._turn += 1
        return ready[self._turn % len(ready)]

    def takes(self, sender: GroupSender, topic: str, *, has_queue: bool) -> bool:
        """Return whether a message may go to a group."""
        return sender is self._keeper(topic) if has_queue else sender in self._takers(topic)

    def _takers(self, topic: str) -> tuple[GroupSender, ...]:
        """Return the groups that a message without a queue may go to; home, if none is known."""
        names = self.routes.of(topic)
        found = (self.home if name == self.home.name else self.others.get(name) for name in names)
        takers = tuple(one for one in found if one is not None and one.link.broken_because is None)
        return takers or (self.home,)

    def _keeper(self, topic: str) -> GroupSender:
        """Return the group of all messages of a topic that have a queue."""
        names = self.routes.of(topic)
        if not names or self.home.name in names:
            return self.home
        return self.others.get(min(names), self.home)
