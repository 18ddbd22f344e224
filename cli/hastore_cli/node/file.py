"""``DIR/node.json``: where a running node listens, so that its directory is enough to name it.

::

    {"schema":"hastore.node/1","pid":N,"start_id":"5c1d…","role":"SYNC_MASTER",
     "address":"h:p","ha_address":"h:p"|null,"metrics_address":"h:p"|null}

Written when the node is ready, removed at a clean stop.  A killed node leaves it behind, and
another node may listen there by then.  So it counts only while a process holds the directory's
``lock``, and only the node whose status has the same ``start_id`` is the directory's.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from hastore.errors import DiskError, HastoreError, UnreachableError
from hastore.quantities import format_address, parse_address
from hastore.status import BrokerRole
from hastore.store.store_lock import LOCK_FILE

if TYPE_CHECKING:
    from hastore.broker.observe.node_status import NodeStatus
    from hastore.env.interface import Env
    from hastore.env.real import LockHolder
    from hastore.store.node_identity import Identity

NODE_FILE: Final = "node.json"
SCHEMA: Final = "hastore.node/1"
STARTING_HINT: Final = (
    "it is starting, or could not write the file: see its log, or name its HOST:PORT"
)


@attrs.frozen(kw_only=True)
class NodeFile:
    """The content of the file; addresses are ``(host, port)`` as bound."""

    pid: int
    start_id: str | None = None  # of the process; None: a version that had none wrote the file
    role: str
    address: tuple[str, int] | None
    ha_address: tuple[str, int] | None
    metrics_address: tuple[str, int] | None = None

    def to_json(self) -> bytes:
        """Return the content as JSON."""
        content = {
            "schema": SCHEMA,
            "pid": self.pid,
            "start_id": self.start_id,
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
                pid=_whole(content["pid"]),
                start_id=_text_or_none(content.get("start_id")),
                role=str(content["role"]),
                address=_address(content.get("address")),
                ha_address=_address(content.get("ha_address")),
                metrics_address=_address(content.get("metrics_address")),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a {SCHEMA} file: {error!r}") from error


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r:.40} is not a number")
    return value


def _address(text: str | None) -> tuple[str, int] | None:
    return parse_address(text) if text else None


def _text(address: tuple[str, int] | None) -> str | None:
    return None if address is None else format_address(address)


def write_node_file(env: Env, data_dir: str, node_file: NodeFile) -> None:
    """Write the file durably and atomically."""
    env.disk.write_file(str(Path(data_dir, NODE_FILE)), node_file.to_json())


def remove_node_file(env: Env, data_dir: str) -> None:
    """Remove the file if it exists and is this process's own.

    In two containers on one directory both processes may have the same id.
    """
    path = str(Path(data_dir, NODE_FILE))
    with contextlib.suppress(HastoreError, ValueError):
        if NodeFile.from_json(env.disk.read_file(path)).start_id == env.start_id:
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


class NodeDownError(UnreachableError):
    """The node of a directory is down: it left ``node.json``, and no process holds the lock."""


class OtherNodeError(UnreachableError):
    """At the address in ``node.json`` a node answers that has another directory."""


def holder_of(directory: str | Path) -> LockHolder | None:
    """Return the process that has a directory open; None if none has, or if that is unknown."""
    from hastore.env.real import lock_holder

    try:
        return lock_holder(str(Path(directory, LOCK_FILE)))
    except HastoreError:
        return None


def file_in_directory(directory: Path) -> NodeFile:
    """Return the node file of a directory that a process has open.

    Raises UnreachableError, NodeDownError.
    """
    from hastore.env.real import lock_holder

    hint = how_to_start(directory, None, identity=identity_in(directory))
    path = directory / NODE_FILE
    try:
        node_file = NodeFile.from_json(path.read_bytes())
    except FileNotFoundError:
        holder = holder_of(directory)
        what = f"no node runs on {directory}: it has no {NODE_FILE}"
        if holder is not None:
            what = f"{holder} has {directory} open, and there is no {NODE_FILE} yet"
            hint = STARTING_HINT
        raise UnreachableError(what, hint=hint) from None
    except (OSError, ValueError) as error:
        raise UnreachableError(f"cannot use {path}: {error}", hint=hint) from error
    with contextlib.suppress(DiskError):  # the answer shows whose it is, too
        if lock_holder(str(directory / LOCK_FILE)) is None:
            raise NodeDownError(
                f"no node runs on {directory}: no process holds its {LOCK_FILE} file, and"
                f" {NODE_FILE} is of a node that was killed",
                hint=hint,
            )
    return node_file


def address_in(node_file: NodeFile, directory: Path) -> tuple[str, int]:
    """Return the client address of a directory's node.  Raises UnreachableError."""
    if node_file.address is None:
        hint = "hastore.toml: [listen] clients gives it one"
        raise UnreachableError(f"the node of {directory} has no client port", hint=hint)
    return node_file.address


def check_answer(node_file: NodeFile, directory: Path, status: NodeStatus) -> None:
    """Raise OtherNodeError if the node that answered is not the directory's."""
    is_same = node_file.start_id == status.start_id
    if node_file.start_id is None:  # an older version's file
        is_same = node_file.pid == status.process_id
    if is_same:
        return
    raise OtherNodeError(
        f"the node at {status.address} is not that of {directory}: it is {status.name}, with"
        f" {status.data_dir}",
        hint=f"the node of {directory} is starting, or could not write {NODE_FILE}: see its log",
    )
