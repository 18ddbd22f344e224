"""``hastore master``, ``slave`` and ``node``: their flags, the configuration, the run.

::

    flags, environment, file ── resolve ── NodeSettings: a node's configuration, LogConfig
"""

from __future__ import annotations

import gc
import os
from functools import partial
from typing import TYPE_CHECKING, Any, final

import attrs
import rich_click as click

from hastore.config import (
    AccessConfig,
    CoordinatorConfig,
    HAConfig,
    MasterConfig,
    RemotingConfig,
    SlaveConfig,
    StoreConfig,
    TlsConfig,
)
from hastore.errors import ConfigError
from hastore.setting import Kind
from hastore.status import HAProtocol
from hastore_cli.app.command import ExampleCommand
from hastore_cli.app.log_output import LogConfig
from hastore_cli.app.terminal import say, tell_text
from hastore_cli.settings.config_file import (
    Resolved,
    config_option_of,
    find_config_file,
    keys_named,
    near_miss_variables,
    read_config_file,
    read_environment,
    values_of,
)
from hastore_cli.settings.kinds import NUMBER_KINDS, choices_of, format_value, parse_value
from hastore_cli.settings.param_types import ParsedType
from hastore_cli.settings.settings import NODE_CONFIGS, PLACES, SETTINGS, default_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from hastore.setting import Setting

_PRECEDENCE = (
    "A flag overrides its environment variable HASTORE_<SECTION>_<KEY>, which overrides the file,"
    " which overrides the default. Files: -c, $HASTORE_CONFIG, ./hastore.toml, the user's"
    " configuration directory, /etc/hastore/hastore.toml; the first that exists is read."
)
_PANELS = {
    "node": "Node",
    "listen": "Ports",
    "ha": "Replication",
    "cluster": "Coordinator",
    "metrics": "Ports",
    "route": "Replication",
    "store": "Store",
    "remoting": "Client port",
    "access": "Client port",
    "tls": "Client port",
    "log": "Configuration and log",
}


@final
class SettingOption(click.RichOption):
    """An option whose help names its variable, which ``settings.config_file`` reads."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:  # noqa: ARG002
        """Return None: click does not read the variable."""
        return None

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the flag alone: its value was typed."""
        return click.Parameter.get_error_hint(self, ctx)


def _setting_options(node: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for setting in reversed(PLACES[node]):
            if setting.flag is None:
                continue
            default = default_text(node, setting)
            # A switch takes no value: it is off by default, and its flag turns it on.
            kind: dict[str, Any] = {"is_flag": True, "flag_value": True, "default": None}
            if setting.kind is not Kind.BOOL:
                kind = {"type": _parameter_type(setting.kind), "metavar": setting.kind.value}
            command = click.option(
                setting.flag,
                setting.parameter,
                cls=SettingOption,
                **kind,
                envvar=setting.environment_name,
                show_envvar=True,
                help=setting.help + (f" [default: {default}]" if default else ""),
                panel=_PANELS[setting.section],
            )(command)
        return command

    return decorate


def _parameter_type(kind: Kind) -> ParsedType:
    return ParsedType(
        kind.value,
        lambda text: parse_value(kind, text),
        choices_of(kind),
        is_number=kind in NUMBER_KINDS,
    )


def _config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option(
        "--check-config",
        is_flag=True,
        panel=_PANELS["log"],
        help="Print the whole configuration with the origin of each value, and exit.",
    )(command)
    return config_option_of("Configuration file.", panel=_PANELS["log"])(command)


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore master --data D1 --broker-role SYNC_MASTER",
        "hastore master --data D1 --listen 0.0.0.0:10911 --ha-listen 0.0.0.0:10912",
        "hastore master -c hastore.toml --flush SYNC_FLUSH",
        "HASTORE_NODE_DATA=D1 hastore master --check-config > hastore.toml",
    ),
    epilog=_PRECEDENCE,
)
@_setting_options("master")
@_config_options
def master(config_flag: str | None, *, check_config: bool, **flags: object) -> int:
    """Run a master: it takes messages and streams its log to slaves.

    SIGTERM and Ctrl-C stop it cleanly: waiting producers are answered, the log is flushed. A second
    signal ends it at once.
    """
    return _run("master", flags, config_flag, check_config=check_config)


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore slave --data D2 --master 127.0.0.1:10912",
        "hastore slave --data D3 --master 127.0.0.1:10912 --from last-file",
        "hastore slave --data D2 --master db1:10912 --flush SYNC_FLUSH",
    ),
    epilog=_PRECEDENCE,
)
@_setting_options("slave")
@_config_options
def slave(config_flag: str | None, *, check_config: bool, **flags: object) -> int:
    """Run a slave: it copies a master's log byte by byte and acknowledges.

    With --flush SYNC_FLUSH it acknowledges only what is on its disk. While its master is away it
    keeps trying to connect; ask `hastore status` at its own port for its state.
    """
    return _run("slave", flags, config_flag, check_config=check_config)


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore node --data D1 --node-id 1 --node-group g1 --group-ids 1,2,3 \\",
        "    --etcd http://127.0.0.1:2379     # and so for nodes 2 and 3",
        "hastore node --data D2 --node-id 2 --node-group g1 --master 127.0.0.1:10912 \\",
        "    --listen 127.0.0.1:10921 --ha-listen 127.0.0.1:10922",
    ),
    epilog=_PRECEDENCE,
)
@_setting_options("node")
@_config_options
def node(config_flag: str | None, *, check_config: bool, **flags: object) -> int:
    """Run a node of a replica group: a slave, or the master, as its group decides.

    With --etcd the group elects its master there, and another one when it dies. Without, it begins
    as a slave of --master, or waits for its role: RocketMQ's request 1008 on its client port
    changes the role, only from its own machine unless --remote-roles is given.
    """
    return _run("node", flags, config_flag, check_config=check_config)


def _run(
    kind: str, flags: dict[str, object], config_flag: str | None, *, check_config: bool
) -> int:
    settings = node_settings(kind, flags, config_flag)
    if check_config:
        tell_text(settings.to_toml())
        return 0
    gc.disable()
    from hastore_cli.node.runner import run_node

    gc.freeze()  # a collection in the running node need not go through what was imported
    gc.enable()
    return run_node(settings.node, settings.log)


# -- the configuration of a node -----------------------------------------------------------------


@attrs.frozen(kw_only=True)
class NodeSettings:
    """A node's configuration; ``found`` holds every value that is not a default."""

    kind: str
    node: MasterConfig | SlaveConfig
    log: LogConfig
    found: Mapping[Setting, Resolved]

    def to_toml(self) -> str:
        """Return the whole configuration, each value with its origin in a comment."""
        lines: list[str] = []
        section = None
        for setting, place in PLACES[self.kind].items():
            if setting.section != section:
                section = setting.section
                lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
            owner = self.log if place.part == "log" else self.node
            if place.part not in ("", "log"):
                owner = getattr(owner, place.part)
            value = getattr(owner, place.field.name)
            if value is None or (value == () and setting.kind is Kind.URLS):
                lines.append(f"# {setting.key}: {setting.help}")
                continue
            origin = self.found[setting].origin if setting in self.found else "default"
            text = f"{setting.key} = {format_value(setting.kind, value)}"
            lines.append(f"{text:<44} # {origin}")
        return "\n".join(lines)


def node_settings(kind: str, flags: Mapping[str, object], config_flag: str | None) -> NodeSettings:
    """Build the configuration.  Raises ConfigError that names the place of a mistake."""
    file = find_config_file(config_flag, os.environ)
    for name, meant in near_miss_variables(os.environ):
        say(f"note: {name} is not a setting and is ignored; did you mean {meant}?")
    found = resolve(kind, flags=flags, environ=os.environ, file=file)
    _require_all(kind, found)
    # Each value was checked by its kind; the classes check ranges, and values against each other.
    places = PLACES[kind]

    def made(config: Callable[..., Any], part: str, **more: object) -> Any:
        with keys_named(places, found, part):
            return config(**more, **values_of(part, places, found))

    ha: Callable[..., HAConfig] = HAConfig
    more = {}
    if kind == "node":
        ha = partial(HAConfig, protocol=HAProtocol.AUTOSWITCH)
        more = {"coordinator": made(CoordinatorConfig, "coordinator")}
    node = made(
        NODE_CONFIGS[kind],
        "",
        store=made(StoreConfig, "store"),
        ha=made(ha, "ha"),
        remoting=made(RemotingConfig, "remoting"),
        access=made(AccessConfig, "access"),
        tls=made(TlsConfig, "tls"),
        **more,
    )
    log = made(LogConfig, "log")
    return NodeSettings(kind=kind, node=node, log=log, found=found)


def resolve(
    node: str,
    *,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Path | None,
) -> dict[Setting, Resolved]:
    """Return the settings given for a ``master``, ``slave`` or ``node``, by precedence.

    ``flags`` maps ``Setting.parameter`` to a parsed value or None.  Settings of the other kind of
    node are left out, so that one file can serve both and a slave can be promoted with it.
    """
    found = read_config_file(file) if file is not None else {}
    found |= read_environment(environ)
    for setting in SETTINGS:
        value = flags.get(setting.parameter)
        if value is not None:
            found[setting] = Resolved(value, setting.flag or "flag")
    _check_role(node, found)
    return {setting: found[setting] for setting in PLACES[node] if setting in found}


def _check_role(node: str, found: Mapping[Setting, Resolved]) -> None:
    """Raise ConfigError for a master whose role is SLAVE, or the other way round."""
    resolved = next((found[setting] for setting in found if setting.name == "[node] role"), None)
    if resolved is None:
        return
    role = getattr(resolved.value, "value", "")
    if (role == "SLAVE") == (node == "slave"):
        return
    if node == "slave":
        # `hastore slave` has no --role: a master's file is used for a slave only on purpose.
        hint = "start it in that role: hastore master"
    else:
        hint = "to run a slave: hastore slave --master HOST:HA_PORT --data DIR"
    raise ConfigError(
        f"wrong role: {resolved.origin} says {role}, and this is `hastore {node}`", hint=hint
    )


def _require_all(node: str, found: Mapping[Setting, Resolved]) -> None:
    """Raise ConfigError for a missing setting that has no default."""
    for setting, place in PLACES[node].items():
        if place.field.default is attrs.NOTHING and setting not in found:
            raise ConfigError(
                f"{setting.flag} is missing: {setting.help[0].lower()}{setting.help[1:-1]}",
                hint=f"set {setting.flag} {setting.kind.value}, or {setting.environment_name},"
                f" or {setting.key} in [{setting.section}] of the file",
            )
