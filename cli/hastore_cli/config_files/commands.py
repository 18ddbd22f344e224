"""``hastore config init``: write a configuration file to begin with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import rich_click as click

from hastore_cli.app.command import ExampleCommand, LazyGroup

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# The flags of `hastore node` and their settings.
_GIVEN: Final = {
    "--data": ("[node] data", "DIR"),
    "--master": ("[ha] master", "H:HAPORT"),
    "--node-id": ("[node] id", "N"),
    "--node-group": ("[node] group", "TEXT"),
    "--group-ids": ("[node] group_ids", "N,N"),
    "--etcd": ("[cluster] etcd", "URL,URL"),
    "--listen": ("[listen] client", "H:P"),
    "--ha-listen": ("[listen] ha", "H:P"),
    "--advertise": ("[cluster] advertise", "HOST"),
}


def _given_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for flag, (name, placeholder) in reversed(_GIVEN.items()):
        option = click.option(flag, metavar=placeholder, help=f"{name} in the file.")
        command = option(command)
    return command


@click.group(
    name="config",
    cls=LazyGroup,
    examples=("hastore config init --role node /etc/hastore/hastore.toml",),
)
def config_group() -> None:
    """Write a node's configuration file."""


@config_group.command(
    name="init",
    cls=ExampleCommand,
    examples=(
        "hastore config init --role master",
        "hastore config init --role node --node-id 2 /etc/hastore/hastore.toml",
        "hastore config init --role node --etcd http://e1:2379 --advertise n1 \\",
        "    --listen 0.0.0.0:10911 --ha-listen 0.0.0.0:10912",
        "hastore node -c /etc/hastore/hastore.toml --check-config",
    ),
    epilog="Exit code: 0 written; 6 the file exists, and stays as it is; 2 a value that its key"
    " cannot have; 1 it cannot be written.",
)
@click.argument(
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default="hastore.toml",
    metavar="[FILE]",
)
@click.option(
    "--role",
    type=click.Choice(("master", "slave", "node")),
    required=True,
    help="Which command is to read it.",
)
@_given_options
def init(file: Path, role: str, **flags: str | None) -> None:
    """Write a configuration file with every key, its help and its default.

    What the node needs is filled in with an example, or with what you give. FILE, by default
    hastore.toml, is never overwritten.
    """
    from hastore.errors import ConfigError, HastoreError, OperationRefusedError
    from hastore_cli.app.terminal import say_next, tell
    from hastore_cli.config_files.sample import CHOSEN, NEEDED, check_reachable, sample

    given = {}
    for flag, (name, _) in _GIVEN.items():
        value = flags[flag.removeprefix("--").replace("-", "_")]
        if value is None:
            continue
        if name not in NEEDED[role] and name not in CHOSEN[role]:
            raise click.UsageError(f"{flag} is not for a {role}.")
        given[name] = value
    try:
        text = sample(role, given)
        if role == "node":
            check_reachable(given)
    except ValueError as error:
        raise ConfigError(str(error), hint="hastore config init --help") from error
    try:
        with file.open("x", encoding="utf-8") as output:
            output.write(text)
    except FileExistsError as error:
        raise OperationRefusedError(
            f"{file} exists, and was not changed", hint="name another file, or move it away"
        ) from error
    except OSError as error:
        raise HastoreError(
            f"cannot write {file}: {error.strerror}", hint="name a file in a directory of yours"
        ) from error
    tell(str(file))
    say_next(f"edit it, then: hastore {role} -c {file} --check-config")
