"""Flags, environment and file → a MasterConfig or a SlaveConfig, and how to log."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import attrs

from hastore.config import HAConfig, MasterConfig, RemotingConfig, SlaveConfig, StoreConfig
from hastore.errors import ConfigError
from hastore_cli.app.logging_setup import LogConfig
from hastore_cli.app.terminal import say
from hastore_cli.settings.config_file import (
    Resolved,
    find_config_file,
    near_miss_variables,
    read_config_file,
    read_environment,
    values_of,
)
from hastore_cli.settings.kinds import format_value
from hastore_cli.settings.settings import NODE_CONFIGS, PLACES, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hastore.setting import Setting


@attrs.frozen(kw_only=True)
class NodeSettings:
    """What a ``master`` or ``slave`` is started with; ``found`` has every value not a default."""

    kind: str
    node: MasterConfig | SlaveConfig
    log: LogConfig
    found: Mapping[Setting, Resolved]

    def to_toml(self) -> str:
        """The whole configuration, each value with its origin in a comment."""
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
            if value is None:
                lines.append(f"# {setting.key}: {setting.help}")
                continue
            origin = self.found[setting].origin if setting in self.found else "default"
            text = f"{setting.key} = {format_value(setting.kind, value)}"
            lines.append(f"{text:<44} # {origin}")
        return "\n".join(lines)


def node_settings(kind: str, flags: Mapping[str, object], config_flag: str | None) -> NodeSettings:
    """Resolve and build; every mistake is a ConfigError that says where it stands."""
    file = find_config_file(config_flag, os.environ)
    for name, meant in near_miss_variables(os.environ):
        say(f"note: {name} is no setting and is ignored; did you mean {meant}?")
    found = resolve(kind, flags=flags, environ=os.environ, file=file)
    _require_all(kind, found)
    # Each value was checked by its kind; the classes check what is between them.
    places = PLACES[kind]
    node = NODE_CONFIGS[kind](
        store=StoreConfig(**values_of("store", places, found)),
        ha=HAConfig(**values_of("ha", places, found)),
        remoting=RemotingConfig(**values_of("remoting", places, found)),
        **values_of("", places, found),
    )
    log = LogConfig(**values_of("log", places, found))
    return NodeSettings(kind=kind, node=node, log=log, found=found)


def resolve(
    node: str,
    *,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    file: Path | None,
) -> dict[Setting, Resolved]:
    """All settings that are given for ``master`` or ``slave``, by precedence.

    ``flags`` maps ``Setting.parameter`` to a parsed value or None.  Settings of the other kind of
    node are left out: one file may serve both, so that a slave can be promoted with it.
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
    """A file that says SLAVE is not started as a master, nor the other way round."""
    resolved = next((found[setting] for setting in found if setting.name == "[node] role"), None)
    if resolved is None:
        return
    role = getattr(resolved.value, "value", "")
    if (role == "SLAVE") == (node == "slave"):
        return
    if node == "slave":
        # A master's file may be used for its slave only on purpose: the flag is not there.
        hint = "start it as what it is: hastore master"
    else:
        hint = "to run a slave: hastore slave --master HOST:HA_PORT --data DIR"
    raise ConfigError(
        f"wrong role: {resolved.origin} says {role}, and this is `hastore {node}`", hint=hint
    )


def _require_all(node: str, found: Mapping[Setting, Resolved]) -> None:
    """Refuse to start without a setting that has no default."""
    for setting, place in PLACES[node].items():
        if place.field.default is attrs.NOTHING and setting not in found:
            raise ConfigError(
                f"{setting.flag} is missing: {setting.help[0].lower()}{setting.help[1:-1]}",
                hint=f"give {setting.flag} {setting.kind.value}, or {setting.environment_name},"
                f" or {setting.key} in [{setting.section}] of the file",
            )
