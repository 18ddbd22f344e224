"""Shared by the commands that ask a node: ``--addr``, and the run of one question."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import rich_click as click
from click.core import ParameterSource

from hastore.errors import HastoreError
from hastore_cli.settings.config_file import is_config_named, read_sections
from hastore_cli.settings.param_types import DURATION_MS, complete_directory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from hastore_cli.node.client import NodeClient

_T = TypeVar("_T")


DEFAULT_ADDRESS: Final = "127.0.0.1:10911"
NODE_ASKED: Final = f"the node of this directory or configuration, else {DEFAULT_ADDRESS}"
# A dry run has found something to change.
EXIT_DRY_RUN: Final = 10


class RefusedError(HastoreError):
    """The request could do harm, and was not carried out."""

    exit_code = 6


def confirm(question: str) -> None:
    """Ask on the terminal whether to do what cannot be undone.  Raises RefusedError if not."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise RefusedError("nothing changed: there is no terminal to confirm at", hint="add --yes")
    if not click.confirm(question, err=True):
        raise RefusedError("nothing changed", hint="add --yes, or answer y")


def node_asked() -> str:
    """Return the node that a command asks unless one is named: a data directory or HOST:PORT.

    The first that is there: the node of the file that ``-c`` names; ``HASTORE_ADDR``; the current
    directory, if it is a store; the node of the configuration (file and variables).  Raises
    ConfigError for a file that cannot be read.
    """
    from hastore.store.log.store_directory import COMMIT_LOG_DIR
    from hastore_cli.node.file import NODE_FILE

    environ = os.environ
    addr = environ.get("HASTORE_ADDR")
    if not is_config_named():
        if addr:
            return addr
        if any(Path(name).exists() for name in (NODE_FILE, COMMIT_LOG_DIR)):
            return str(Path.cwd())
    sections = read_sections(environ)
    directory = _configured(sections, environ, "node", "data")
    if directory and os.access(directory, os.R_OK | os.X_OK):
        return directory  # its node.json has the ports, whatever they are
    address = _configured(sections, environ, "listen", "client")
    return _reachable(address) if address else addr or DEFAULT_ADDRESS


def _configured(
    sections: Mapping[str, Mapping[str, object]], environ: Mapping[str, str], section: str, key: str
) -> str | None:
    value = environ.get(f"HASTORE_{section}_{key}".upper()) or sections.get(section, {}).get(key)
    return value if isinstance(value, str) else None


def _reachable(address: str) -> str:
    """Return where a node that listens at an address is reached from its machine."""
    for every, loopback in (("0.0.0.0:", "127.0.0.1:"), ("[::]:", "[::1]:")):
        if address.startswith(every):
            return loopback + address.removeprefix(every)
    return address


def ask_default_node(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the node that is named on the command line, else ``node_asked``: a callback."""
    assert param.name is not None
    if value is not None and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
        return value
    return node_asked()


def addr_option_of(
    whose: str = "The client port of a master or slave, or its data directory.",
    metavar: str = "H:P",
) -> Callable[..., Callable[..., object]]:
    """Return the option ``--addr``, which takes a node's address or its directory."""
    return click.option(
        "--addr",
        show_default=NODE_ASKED,
        envvar="HASTORE_ADDR",
        show_envvar=True,
        metavar=metavar,
        shell_complete=complete_directory,
        callback=ask_default_node,
        help=whose,
    )


addr_option: Final = addr_option_of()
# Of commands that follow the master of several nodes.
SEVERAL: Final = "H:P[,H:P]..."
failover_timeout_option: Final = click.option(
    "--failover-timeout",
    "failover_timeout_ms",
    type=DURATION_MS,
    default="30s",
    show_default=True,
    metavar="TIME",
    help="With several addresses: how long the next master is searched for.",
)


def _refuse_short_topic(_ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(
            f"-t is the topic, which is the first argument here: for a tag write --tag {value!r}"
        )


# -t once was the tag here and is the topic elsewhere: it must not be mistaken for either.
topic_is_an_argument: Final = click.option(
    "-t", "short_topic", hidden=True, expose_value=False, callback=_refuse_short_topic
)


def addresses_of(addr: str) -> list[tuple[str, int]]:
    """Return the client addresses of the nodes that an option names.

    Raises HastoreError with the next step.
    """
    from hastore_cli.node.address import resolve_addresses

    return _asked(addr, resolve_addresses)


def address_of(addr: str) -> tuple[str, int]:
    """Return the client address of the one node that an option names, as ``addresses_of`` does."""
    from hastore_cli.node.address import resolve_address

    return _asked(addr, resolve_address)


def _asked(addr: str, ask: Callable[[str], Awaitable[_T]]) -> _T:
    import trio

    from hastore_cli.app.error_report import collapsed
    from hastore_cli.node.address import next_steps_of

    with next_steps_of(addr), collapsed():
        return trio.run(ask, addr)


def ask_node(addr: str, question: Callable[[NodeClient], Awaitable[_T]]) -> _T:
    """Connect, ask, and return the answer.  Raises HastoreError with the next step."""
    import trio

    from hastore_cli.app.error_report import collapsed
    from hastore_cli.node.address import next_steps_of, resolve_address
    from hastore_cli.node.client import connect_node

    async def run() -> _T:
        async with connect_node(await resolve_address(addr)) as node:
            return await question(node)

    with next_steps_of(addr), collapsed():
        return trio.run(run)
