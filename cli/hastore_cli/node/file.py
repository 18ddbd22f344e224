"""``DIR/node.json``: where a running node listens, so that its directory is enough to name it.

::

    {"schema":"hastore.node/1","pid":N,"role":"SYNC_MASTER",
     "address":"h:p","ha_address":"h:p"|null,"metrics_address":"h:p"|null}

Written when the node is ready, removed at a clean stop.  A killed node leaves it behind, so nobody
may listen there.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from hastore.errors import HastoreError, UnreachableError
from hastore.quantities import format_address, parse_address
from hastore.status import BrokerRole

if TYPE_CHECKING:
    from hastore.env.interface import Env
    from hastore.store.node_identity import Identity

NODE_FILE: Final = "node.json"
SCHEMA: Final = "hastore.node/1"


@attrs.frozen(kw_only=True)
class NodeFile:
    """The content of the file; addresses are ``(host, port)`` as bound."""

    pid: int
    role: str
    address: tuple[str, int] | None
    ha_address: tuple[str, int] | None
    metrics_address: tuple[str, int] | None = None

    def to_json(self) -> bytes:
        """Return the content as JSON."""
        content = {
            "schema": SCHEMA,
            "pid": self.pid,
            "role": self.role,
            "address": _text(self.address),
            "ha_address": _text(self.ha_address),
            "metrics_address": _text(self.metrics_address),
        }
        return json.dumps(content, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> NodeFile:
        """Parse the content.  Raises ValueError if it is something else."""
        try:
            content = json.loads(data)
            if content["schema"] != SCHEMA:
                raise ValueError(f"not a {SCHEMA} file")
            return cls(
                pid=int(content["pid"]),
                role=str(content["role"]),
                address=_address(content.get("address")),
                ha_address=_address(content.get("ha_address")),
                metrics_address=_address(content.get("metrics_address")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a {SCHEMA} file: {error!r}") from error


def _address(text: str | None) -> tuple[str, int] | None:
    return parse_address(text) if text else None


def _text(address: tuple[str, int] | None) -> str | None:
    return None if address is None else format_address(address)


def write_node_file(env: Env, data_dir: str, node_file: NodeFile) -> None:
    """Write the file durably and atomically."""
    env.disk.write_file(str(Path(data_dir, NODE_FILE)), node_file.to_json())


def remove_node_file(env: Env, data_dir: str) -> None:
    """Remove the file if it exists and is this process's own."""
    path = str(Path(data_dir, NODE_FILE))
    with contextlib.suppress(HastoreError, ValueError):
        if NodeFile.from_json(env.disk.read_file(path)).pid == env.process_id:
            env.disk.remove(path)


def read_node_file(directory: str | Path) -> NodeFile | None:
    """Return the node file in ``directory``; None if there is no readable one."""
    try:
        return NodeFile.from_json(Path(directory, NODE_FILE).read_bytes())
    except (OSError, ValueError):
        return None


def identity_in(directory: str | Path) -> Identity | None:
    """Return which node of a replica group a directory belongs to; None if it cannot be read."""
    from hastore.env.real import RealDisk
    from hastore.store.node_identity import read_identity

    try:
        return read_identity(RealDisk(), str(directory))
    except (HastoreError, OSError):
        return None


def how_to_start(
    directory: str | Path,
    role: str | None,
    master: str | None = None,
    identity: Identity | None = None,
) -> str:
    """Return the next step for a directory on which no node runs; never starts a second master.

    ``role``: the node's last role, if known; ``master``: the HA address of a running master;
    ``identity``: the directory's.
    """
    if identity is not None:
        return (
            f"start it: hastore node --data {directory} --node-id {identity.node_id}"
            f" --node-group {identity.group} --master {master or 'HOST:PORT'}"
        )
    as_master = f"hastore master --data {directory}"
    as_slave = f"hastore slave --master {master or 'HOST:PORT'} --data {directory}"
    if master is not None:
        return f"a master runs, so start it as its slave: {as_slave}"
    if role is None:
        return f"start it as what it was: {as_master}, or {as_slave}"
    if role == BrokerRole.SLAVE.value:
        return f"start it as the slave that it was: {as_slave}"
    return f"start it: {as_master}, or {as_slave} if another is the master now"


def address_in_directory(directory: Path) -> tuple[str, int]:
    """Return the client address of the node on ``directory``.  Raises UnreachableError."""
    hint = how_to_start(directory, None, identity=identity_in(directory))
    path = directory / NODE_FILE
    try:
        node_file = NodeFile.from_json(path.read_bytes())
    except FileNotFoundError:
        raise UnreachableError(
            f"no node runs on {directory}: it has no {NODE_FILE}", hint=hint
        ) from None
    except (OSError, ValueError) as error:
        raise UnreachableError(f"cannot use {path}: {error}", hint=hint) from error
    if node_file.address is None:
        raise UnreachableError(f"the node of {directory} has no client port", hint=hint)
    return node_file.address
