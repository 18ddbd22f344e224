"""The node that a command names, by ``HOST:PORT`` or by its directory, and its status."""

from __future__ import annotations

import contextlib
import ipaddress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from hastore.broker.observe.node_status import NodeStatus
from hastore.client.admin import AdminClient
from hastore.errors import ConfigError, HastoreError, ProtocolError, UnreachableError
from hastore.quantities import format_address, parse_address
from hastore_cli.acl.access_key import access_key
from hastore_cli.acl.asking_command import client_tls
from hastore_cli.node.file import (
    STARTING_HINT,
    NodeFile,
    OtherNodeError,
    address_in,
    check_answer,
    file_in_directory,
    holder_of,
    how_to_start,
    identity_in,
    read_node_file,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_STATUS_TIMEOUT_S: Final = 5.0


@attrs.frozen
class NamedNode:
    """A node as a command names it; with a directory, what its ``node.json`` says."""

    address: tuple[str, int]
    directory: Path | None = None
    node_file: NodeFile | None = None

    async def status(self) -> NodeStatus:
        """Return its status.

        Raises what ``fetch_status`` raises, and OtherNodeError if another node answers.
        """
        if self.directory is None or self.node_file is None:
            return await fetch_status(self.address)
        try:
            status = await fetch_status(self.address)
        except ProtocolError as error:
            raise OtherNodeError(
                f"{format_address(self.address)} is not the node of {self.directory}: {error}",
                hint=f"see the log of the node of {self.directory}",
            ) from error
        check_answer(self.node_file, self.directory, status)
        return status


def find_node(text: str) -> NamedNode:
    """Return the node that ``text`` names; its directory says the port of its last start.

    Whether the node that listens there is the directory's shows only in its status.  Raises
    ConfigError for a name that is no address and no directory, UnreachableError for a directory on
    which no node runs.
    """
    directory = Path(text)
    try:
        address = parse_address(text)
    except ValueError as error:
        if directory.is_dir():
            node_file = file_in_directory(directory)
            return NamedNode(address_in(node_file, directory), directory, node_file)
        if not _looks_like_address(text):
            what = "a file, not a directory" if directory.is_file() else "no such directory"
            raise ConfigError(
                f"{text}: {what}",
                hint="name a node's data directory, or HOST:PORT of its client port",
            ) from None
        raise ConfigError(
            f"{error}", hint="name a node's data directory, or HOST:PORT of its client port"
        ) from None
    if address[1] == 0:
        raise ConfigError(f"{text}: port 0 is for listening", hint="use the node's port")
    return NamedNode(address)


async def resolve_address(text: str) -> tuple[str, int]:
    """Return the client address of a node; of a directory's, once that node has answered.

    Raises what ``find_node`` and ``NamedNode.status`` raise.
    """
    node = find_node(text)
    if node.directory is not None:
        await node.status()
    return node.address


async def resolve_addresses(text: str) -> list[tuple[str, int]]:
    """Return the client addresses of one node or several: ``A,B,C``, each as in one.

    Of several, directories on which no node runs are left out.  Raises as ``resolve_address`` does,
    for all of them.
    """
    found, faults = [], []
    for name in names_in(text):
        try:
            found.append(await resolve_address(name))
        except UnreachableError as error:
            faults.append(error)
    if not found:
        raise faults[0]
    return list(dict.fromkeys(found))


def names_in(text: str) -> list[str]:
    """Return the names of nodes in ``A,B,C``; a directory's name may have commas."""
    if Path(text).is_dir():
        return [text]
    return [name.strip() for name in text.split(",") if name.strip()] or [text]


def check_is_possible(text: str) -> None:
    """Raise ConfigError for an address that can never be one: ``h:99999``, ``127.0.0.1``.

    A directory that does not exist may still be made.
    """
    if _looks_like_address(text) and not Path(text).is_dir():
        find_node(text)


def _looks_like_address(text: str) -> bool:
    """Whether the text is meant as an address rather than a path."""
    return len(Path(text).parts) == 1 and (
        ":" in text or _is_ip_address(text) or text == "localhost"
    )


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


@contextlib.contextmanager
def next_steps_of(text: str) -> Iterator[None]:
    """Name the next step that fits ``text``, the node's name, in an UnreachableError."""
    try:
        yield
    except UnreachableError as error:
        error.hint = next_step(text, error)
        raise


def next_step(text: str, error: HastoreError) -> str | None:
    """Return an error's hint; an UnreachableError's fits ``text``, the node's name."""
    if not isinstance(error, UnreachableError) or len(names_in(text)) > 1:
        return error.hint
    if isinstance(error, OtherNodeError):
        return error.hint
    return _next_step(text, str(error)) or error.hint


def _next_step(text: str, said: str) -> str | None:
    try:
        parse_address(text)
    except ValueError:
        holder, left = holder_of(text), read_node_file(text)
        if holder is None:
            role = None if left is None else left.role
            return how_to_start(text, role, identity=identity_in(text))
        if left is None:
            return STARTING_HINT
        return f"{holder} runs: is it stopped (SIGCONT), or waiting for a disk?"
    if "did not answer" in said or ":10912" in said:
        return (
            "is that its client port (--listen), not its HA port? if so, is the process stopped?"
            " a port that takes TLS only needs --tls-ca"
        )
    return None


async def fetch_status(address: tuple[str, int]) -> NodeStatus:
    """Return a node's status.

    Raises UnreachableError if the node does not answer, ProtocolError if it is not hastore.
    """
    async with AdminClient.connect(
        address,
        connect_timeout_s=_STATUS_TIMEOUT_S,
        request_timeout_s=_STATUS_TIMEOUT_S,
        access_key=access_key(),
        tls=client_tls(),
    ) as admin:
        answer = await admin.ha_status()
    status = answer.get("hastore")
    if not isinstance(status, dict):
        raise ProtocolError(
            f"{format_address(address)} is a broker, but not hastore",
            hint="for RocketMQ itself: mqadmin haStatus -b " + format_address(address),
        )
    return NodeStatus.from_dict(status)
