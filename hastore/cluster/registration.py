"""Claims a node's id for its directory and this start of it: ``ids/ID``.

A directory that the coordinator knows in another group is refused before anything is written.

Invariant: once ``register`` has returned, no other directory, and no earlier state of this one, can
run under the id.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, final

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
    from hastore.cluster.key_value_store import KeyValue, KeyValueStore

_REGISTRATION_PARTS: Final = 4  # CLUSTER/GROUP/ids/ID


@final
@attrs.frozen(eq=False, kw_only=True)
class NodeRegistration:
    """One start of a node, to be registered."""

    store: KeyValueStore
    keys: Keys
    me: Incarnation
    nonce: str  # of this process
    data_dir: str  # for messages
    # The directory has been in a group with a coordinator: another name is probably a mistake.
    has_taken_part: bool = False

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
            if self.has_taken_part:
                await self._check_is_nowhere_else()
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

    async def _check_is_nowhere_else(self) -> None:
        """Raise WrongNodeError if the coordinator knows the directory in another group.

        By a mistyped name of the cluster it would begin a second group, or join a foreign one.
        """
        try:
            items = (await self.store.read(f"{self.keys.prefix}/")).items
        except CoordinatorRefusedError:
            return  # it may read its own cluster only
        for key, item in items.items():
            cluster, group, node_id = self._place_of(key, item)
            if cluster is None or f"{self.keys.prefix}/{cluster}/{group}/" == self.keys.base:
                continue
            raise WrongNodeError(
                f"{self.data_dir} is node {node_id} of group {group} in cluster {cluster}, as etcd"
                f" knows it, and not of {self.keys.base}",
                path=self.data_dir,
                hint=f"set [cluster] name (or [node] cluster) to {cluster} and [node] group to"
                f" {group}; or, if it is to change: hastore cluster remove {node_id} --cluster"
                f" {cluster} --group {group}, and start it again",
            )

    def _place_of(self, key: str, item: KeyValue) -> tuple[str, str, str] | tuple[None, None, None]:
        """Return cluster, group and id of this directory's registration; None of other keys."""
        parts = key.removeprefix(f"{self.keys.prefix}/").split("/")
        if len(parts) == _REGISTRATION_PARTS and parts[2] == "ids":
            with contextlib.suppress(ProtocolError):
                if Registration.decode(key, item.value).uuid == self.me.uuid:
                    return parts[0], parts[1], parts[3]
        return None, None, None
