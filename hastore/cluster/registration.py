"""Claims a node's id for its directory and this start of it: ``ids/ID``.

Invariant: once ``register`` has returned, no other directory, and no earlier state of this one, can
run under the id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs
import trio

from hastore.cluster.group_records import Registration
from hastore.cluster.group_watch import RETRY_PAUSE_S
from hastore.cluster.key_value_store import Absent, Put, Unchanged
from hastore.errors import (
    CoordinatorError,
    CoordinatorRefusedError,
    HastoreError,
    ProtocolError,
    WrongNodeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from hastore.cluster.group_records import Incarnation, Keys
    from hastore.cluster.key_value_store import KeyValueStore


@final
@attrs.frozen(eq=False, kw_only=True)
class NodeRegistration:
    """One start of a node, to be registered."""

    store: KeyValueStore
    keys: Keys
    me: Incarnation
    nonce: str  # of this process
    data_dir: str  # for messages

    async def register(self, on_failure: Callable[[HastoreError], None]) -> None:
        """Claim the id; retry while the coordinator does not answer, after ``on_failure``.

        Raises WrongNodeError, and CoordinatorRefusedError if it refuses the first request.
        """
        is_first = True
        while True:
            try:
                if await self.claim():
                    return
            except CoordinatorRefusedError:
                if is_first:
                    raise
            except (CoordinatorError, ProtocolError) as error:
                on_failure(error)
            else:
                is_first = False
                continue
            is_first = False
            await trio.sleep(RETRY_PAUSE_S)

    async def claim(self) -> bool:
        """Write this start to ``ids/ID``; return whether it is there.  Raises WrongNodeError."""
        me, key = self.me, self.keys.registration(self.me.node_id)
        item = (await self.store.read(self.keys.base)).items.get(key)
        own = Registration(uuid=me.uuid, start=me.start, nonce=self.nonce)
        put = [Put(key, own.encode())]
        if item is None:
            return (await self.store.commit([Absent(key)], put)).succeeded
        known = Registration.decode(key, item.value)
        if known == own:
            return True
        path = self.data_dir
        if known.uuid != me.uuid:
            raise WrongNodeError(
                f"{path} is another directory than the one that {self.keys.base} knows as {me}",
                path=path,
                hint=f"give this node another id; or, if the other directory is lost: hastore"
                f" cluster remove {me.node_id}, and start it again",
            )
        if known.start >= me.start:
            raise WrongNodeError(
                f"{path} is a copy, or an older state of its disk: {self.keys.base} has seen start"
                f" {known.start} of {me}, and this is start {me.start}",
                path=path,
                hint=f"it may lack acknowledged messages: hastore cluster remove {me.node_id}, then"
                " start it with an empty directory",
            )
        return (await self.store.commit([Unchanged(key, item.mod_revision)], put)).succeeded
