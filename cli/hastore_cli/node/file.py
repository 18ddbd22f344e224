"""``DIR/node.json``: where a running node listens, for whoever knows only its directory.

::

    {"schema":"hastore.node/1","pid":N,"role":"SYNC_MASTER",
     "address":"h:p","ha_address":"h:p"|null,"metrics_address":"h:p"|null}

Written when the node is ready, removed at a clean stop.  A node that was killed leaves it behind:
what it says is then a place where nobody answers.
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

NODE_FILE: Final = "node.json"
SCHEMA: Final = "hastore.node/1"


@attrs.frozen(kw_only=True)
class NodeFile:
    """What the file says; addresses are ``(host, port)`` as bound."""

    pid: int
    role: str
    address: tuple[str, int] | None
    ha_address: tuple[str, int] | None
    metrics_address: tuple[str, int] | None = None

    def to_json(self) -> bytes:
        """The file's content."""
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
        """Read the content; ValueError where it is something else."""
        content = json.loads(data)
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise ValueError(f"not a {SCHEMA} file")
        address, ha_address = content.get("address"), content.get("ha_address")
        metrics_address = content.get("metrics_address")
        return cls(
            pid=int(content["pid"]),
            role=str(content["role"]),
            address=parse_address(address) if address else None,
            ha_address=parse_address(ha_address) if ha_address else None,
            metrics_address=parse_address(metrics_address) if metrics_address else None,
        )


def _text(address: tuple[str, int] | None) -> str | None:
    return None if address is None else format_address(address)


def write_node_file(env: Env, data_dir: str, node_file: NodeFile) -> None:
    """Put the file in place, durably and never half."""
    env.disk.write_file(str(Path(data_dir, NODE_FILE)), node_file.to_json())


def remove_node_file(env: Env, data_dir: str) -> None:
    """Remove the file if it is this process's own; that it is gone already is fine too."""
    path = str(Path(data_dir, NODE_FILE))
    with contextlib.suppress(HastoreError, ValueError, KeyError):
        if NodeFile.from_json(env.disk.read_file(path)).pid == env.process_id:
            env.disk.remove(path)


def read_node_file(directory: str | Path) -> NodeFile | None:
    """Read what the last node on ``directory`` left there; None where there is nothing to read."""
    try:
        return NodeFile.from_json(Path(directory, NODE_FILE).read_bytes())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def how_to_start(directory: str | Path, role: str | None, master: str | None = None) -> str:
    """Return the next step where no node runs: never a second master beside one that there may be.

    ``role``: what the node was, if that is known; ``master``: the HA address of one that runs.
    """
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
    """The client address of the node that runs on ``directory``."""
    hint = how_to_start(directory, None)
    path = directory / NODE_FILE
    try:
        node_file = NodeFile.from_json(path.read_bytes())
    except FileNotFoundError:
        raise UnreachableError(
            f"no node runs on {directory}: it has no {NODE_FILE}", hint=hint
        ) from None
    except (OSError, ValueError, KeyError) as error:
        raise UnreachableError(f"cannot use {path}: {error}", hint=hint) from error
    if node_file.address is None:
        raise UnreachableError(f"the node of {directory} has no client port", hint=hint)
    return node_file.address
