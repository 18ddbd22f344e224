"""Whether a directory is this node's: its identity, beside the lock.

::

    open        lock -> identity -> store
    open again  lock -> is it still ours? -> store

Only a node of a replica group has an identity.  Everything here blocks.

Invariant: between two openings by one process the identity stays the same, or the second fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore.errors import WrongNodeError
from hastore.status import HAProtocol
from hastore.store.node_identity import IDENTITY_FILE, NodeIdentity, read_identity

if TYPE_CHECKING:
    from hastore.config import NodeConfig
    from hastore.env.interface import Env
    from hastore.store.store_lock import StoreLock


def identify(
    env: Env, config: NodeConfig, lock: StoreLock, identity: NodeIdentity | None
) -> NodeIdentity | None:
    """Return the identity of a locked directory; None for a node of no replica group.

    ``identity`` is that of an earlier opening by this process; without one, this is a start.
    Raises WrongNodeError, and what ``NodeIdentity.open`` raises.
    """
    present = read_identity(env.disk, lock.path)
    if config.ha.protocol is HAProtocol.CLASSIC:
        if present is None:
            return None
        raise WrongNodeError(
            f"{lock.path} belongs to {present}, whose log has epochs, and the classic protocol"
            " knows none",
            path=lock.path,
            hint=f"start it with --ha-protocol autoswitch --node-id {present.node_id}"
            f" --node-group {present.group}, or give this node another directory",
        )
    assert config.node_id is not None
    assert config.replica_group is not None
    if identity is None:
        return NodeIdentity.open(
            env.disk,
            lock.path,
            node_id=config.node_id,
            group=config.replica_group,
            last_exit_ok=lock.last_exit_ok,
            boot_id=env.boot_id,
            randomness=env.randomness,
        )
    if present != identity.current:
        raise WrongNodeError(
            f"{lock.path}: {IDENTITY_FILE} has changed while this process had the store closed",
            path=lock.path,
            hint="start this node again",
        )
    return identity
