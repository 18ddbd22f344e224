"""The facts that ``hastore doctor`` gathers about each node.

A node is named by its client port or by its directory, which holds a log and the marks of the last
stop even if no node runs.  Nothing is changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
import trio

from hastore.concurrency.tcp import connect
from hastore.env.real import RealDisk
from hastore.errors import ConfigError, HastoreError, UnreachableError
from hastore.quantities import parse_address
from hastore.store.log.store_directory import COMMIT_LOG_DIR
from hastore.store.store_lock import ABORT_FILE
from hastore_cli.app.error_report import collapsed
from hastore_cli.app.output import wall_clock_ms
from hastore_cli.node.address import find_node, next_steps_of
from hastore_cli.node.client import gather
from hastore_cli.node.file import holder_of, identity_in, read_node_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.env.real import LockHolder
    from hastore.store.node_identity import Identity

CONNECT_TIMEOUT_S: Final = 3.0
WILDCARDS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - recognised, not bound
LOOPBACKS: Final = ("127.", "::1", "localhost")


@attrs.frozen(kw_only=True)
class Facts:
    """One node.  ``error`` says why there is no status."""

    name: str  # in the report: as it was typed
    directory: str | None = None
    address: tuple[str, int] | None = None
    status: NodeStatus | None = None
    error: HastoreError | None = None
    took_s: float | None = None
    # The lead of its wall clock over this machine's, and the error of that.
    clock_lead_s: float | None = None
    clock_error_s: float = 0.0
    ha_error: str | None = None  # why its HA port cannot be reached from here
    ha_was_tried: bool = False
    # Of a directory on which no node answers.
    has_abort_file: bool | None = None
    is_store: bool = True  # whether its directory holds a log at all
    role_was: str | None = None  # of the node that was killed there
    holder: LockHolder | None = None  # the process that has its directory open
    # Of a replica group's node, where a directory was named, whether or not the node answers.
    identity: Identity | None = None

    @property
    def has_store_directory(self) -> bool:
        """Whether there is a log to read even without an answer."""
        return self.directory is not None and self.is_store

    @property
    def is_master(self) -> bool:
        """Whether it answered and is a master."""
        return self.status is not None and self.status.master_link is None


async def gather_facts(given: Sequence[str]) -> list[Facts]:
    """Return the facts of all nodes; no answer is a fact too.  Raises ConfigError."""
    return await gather(_facts, list(given))


async def _facts(given: str) -> Facts:
    directory = given if Path(given).is_dir() else None
    try:
        with next_steps_of(given), collapsed():
            node = find_node(given)
            before_ms, began = wall_clock_ms(), trio.current_time()
            status = await node.status()
    except ConfigError:
        raise  # not an address: a usage error
    except HastoreError as error:  # no answer, or not from a hastore node
        return _silent(given, directory, error)
    took_s = trio.current_time() - began
    facts = Facts(
        name=given,
        directory=directory,
        address=node.address,
        status=status,
        took_s=took_s,
        identity=None if directory is None else identity_in(directory),
    )
    if status.wall_time_ms is not None:
        middle_ms = before_ms + took_s * 500
        facts = attrs.evolve(
            facts,
            clock_lead_s=(status.wall_time_ms - middle_ms) / 1000,
            clock_error_s=took_s / 2 + 0.001,
        )
    ha_address = ha_address_from_here(facts)
    if ha_address is None:
        return facts
    return attrs.evolve(facts, ha_was_tried=True, ha_error=await _try(ha_address))


def _silent(given: str, directory: str | None, error: HastoreError) -> Facts:
    if directory is None:
        return Facts(name=given, error=error)
    left = read_node_file(directory)
    return Facts(
        name=given,
        directory=directory,
        error=error,
        is_store=RealDisk().exists(str(Path(directory, COMMIT_LOG_DIR))),
        role_was=None if left is None else left.role,
        has_abort_file=RealDisk().exists(str(Path(directory, ABORT_FILE))),
        holder=holder_of(directory),
        identity=identity_in(directory),
    )


def ha_address_from_here(facts: Facts) -> tuple[str, int] | None:
    """Return a master's HA address as seen from here; None if it cannot be reached from here."""
    status, address = facts.status, facts.address
    if status is None or status.ha_address is None or address is None:
        return None
    try:
        host, port = parse_address(status.ha_address)
    except ValueError:
        return None  # no address, whatever the node calls it
    if host in WILDCARDS:
        return address[0], port
    if host.startswith(LOOPBACKS) and not address[0].startswith(LOOPBACKS):
        return None
    return host, port


async def _try(address: tuple[str, int]) -> str | None:
    """Connect and close; return why that failed, or None."""
    try:
        sock = await connect(address, CONNECT_TIMEOUT_S)
    except UnreachableError as error:
        return str(error)
    sock.close()
    return None
