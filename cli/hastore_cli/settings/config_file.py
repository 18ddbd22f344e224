"""TOML files and environment variables as settings: read, checked, and each with its origin.

Precedence: flag > environment ``HASTORE_<SECTION>_<KEY>`` > file > default.  A file is looked for
at ``-c``, ``$HASTORE_CONFIG``, ``./hastore.toml``, the user's configuration directory and
``/etc/hastore/hastore.toml``; the first that exists and may be read is the only one that is.
One that was named (``-c``, ``$HASTORE_CONFIG``) must be readable.

Invariant: every value that leaves this module has passed ``parse_value`` of its setting's kind, and
an unknown key is an error that names the file, the key and the nearest key that exists.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from hastore.errors import ConfigError
from hastore_cli.settings.kinds import format_value, parse_value
from hastore_cli.settings.settings import SECTIONS, SETTINGS, default_text, setting_at, settings_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore_cli.settings.setting import Setting

CONFIG_VARIABLE: Final = "HASTORE_CONFIG"
SYSTEM_FILE: Final = "/etc/hastore/hastore.toml"


@attrs.frozen
class Resolved:
    """A setting's value and where it comes from (``--flag``, a variable, a file, ``default``)."""

    value: object
    origin: str


def find_config_file(flag: str | None, environ: Mapping[str, str]) -> Path | None:
    """The one file to read, or None; a file that was named must exist."""
    named = flag or environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    for candidate in (Path("hastore.toml"), _user_file(environ), Path(SYSTEM_FILE)):
        if _is_readable(candidate):
            return candidate
    return None


def _is_readable(path: Path) -> bool:
    """What cannot even be looked at counts as absent: nobody has named it."""
    try:
        return path.is_file() and os.access(path, os.R_OK)
    except OSError:
        return False


def _user_file(environ: Mapping[str, str]) -> Path:
    from platformdirs import user_config_dir

    home = environ.get("XDG_CONFIG_HOME")
    return (
        Path(home, "hastore", "hastore.toml")
        if home
        else Path(user_config_dir("hastore"), "hastore.toml")
    )


def read_config_file(path: Path) -> dict[Setting, Resolved]:
    """The settings of a TOML file; ConfigError names the file, the key and a way out."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", hint="check the path given with -c"
        ) from error
    try:
        table = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is not TOML: {error}", hint='a line is: key = "text", below a [section]'
        ) from error
    return parse_table(table, str(path))


def parse_table(table: Mapping[str, object], file: str) -> dict[Setting, Resolved]:
    """The settings of a parsed TOML document."""
    found: dict[Setting, Resolved] = {}
    for section, keys in table.items():
        if not isinstance(keys, dict):
            raise _unknown(file, section, _homes_of(section))
        if section not in SECTIONS:
            raise _unknown(file, f"[{section}]", [f"[{near}]" for near in _near(section, SECTIONS)])
        for key, value in keys.items():
            setting = setting_at(section, key)
            if setting is None:
                raise _unknown(file, f"[{section}] {key}", _near_settings(section, key))
            found[setting] = Resolved(_parse(setting, value, f"{file}: {setting.name}"), file)
    return found


def _parse(setting: Setting, value: object, where: str) -> object:
    try:
        return parse_value(setting.kind, value)
    except ValueError as error:
        default = default_text("master", setting) or default_text("slave", setting)
        without = f" (default: {default})" if default else ""
        raise ConfigError(
            f"{where}: {error}", hint=f"correct it, or leave it out{without}"
        ) from None


def _unknown(file: str, what: str, nearest: list[str]) -> ConfigError:
    guess = f"; the nearest is {nearest[0]}" if nearest else ""
    hint = "correct it; hastore master --data DIR --check-config prints every key there is"
    return ConfigError(f"{file}: no such key: {what}{guess}", hint=hint)


def _near(word: str, words: tuple[str, ...] | list[str], *, likeness: float = 0.5) -> list[str]:
    return difflib.get_close_matches(word.lower(), words, n=1, cutoff=likeness)


def _homes_of(key: str) -> list[str]:
    """Where a key that stands outside its section belongs."""
    names = [s.name for s in SETTINGS if s.key == key]
    return names or [
        s.name for near in _near(key, [s.key for s in SETTINGS]) for s in SETTINGS if s.key == near
    ]


def _near_settings(section: str, key: str) -> list[str]:
    """The nearest keys: this very key where it belongs, else one like it, first in this section."""
    elsewhere = [s.name for s in SETTINGS if s.key == key]
    if elsewhere:
        return elsewhere
    keys = [s.key for s in SETTINGS if s.section == section]
    here = _near(key, keys, likeness=0.75)
    if not here and not _near(key, [s.key for s in SETTINGS], likeness=0.85):
        here = _near(key, keys, likeness=0.0)
    return [f"[{section}] {near}" for near in here] or _homes_of(key)


def read_environment(environ: Mapping[str, str]) -> dict[Setting, Resolved]:
    """The settings that stand in ``HASTORE_<SECTION>_<KEY>``; an empty variable is none."""
    found: dict[Setting, Resolved] = {}
    for setting in SETTINGS:
        name = setting.environment_name
        text = environ.get(name)
        if text:
            found[setting] = Resolved(_parse(setting, text, name), name)
    return found


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
    heeded = settings_of(node)
    _check_role(node, found)
    return {setting: found[setting] for setting in heeded if setting in found}


def _check_role(node: str, found: Mapping[Setting, Resolved]) -> None:
    """A file that says SLAVE is not started as a master, nor the other way round."""
    for setting, resolved in found.items():
        if setting.target != "role":
            continue
        role = getattr(resolved.value, "value", "")
        if (role == "SLAVE") == (node == "slave"):
            return
        right = "slave" if role == "SLAVE" else "master"
        if node == "slave":
            # A master's file may be used for its slave only on purpose: the flag is not there.
            hint = f"start it as what it is: hastore {right}"
        else:
            hint = "to run a slave: hastore slave --master HOST:HA_PORT --data DIR"
        raise ConfigError(
            f"wrong role: {resolved.origin} says {role}, and this is `hastore {node}`", hint=hint
        )


def build_fields(found: Mapping[Setting, Resolved]) -> dict[str, dict[str, object]]:
    """The values by part: ``{"": {...}, "store": {...}, "ha": {...}, "remoting": …, "log": …}``."""
    parts: dict[str, dict[str, object]] = {
        "": {},
        "store": {},
        "ha": {},
        "remoting": {},
        "log": {},
    }
    for setting, resolved in found.items():
        part, _, field = setting.target.rpartition(".")
        parts[part][field] = resolved.value
    return parts


def require(found: Mapping[Setting, Resolved], *targets: str) -> None:
    """Refuse to start without a setting that has no default."""
    given = {setting.target for setting in found}
    for setting in SETTINGS:
        if setting.target in targets and setting.target not in given:
            raise ConfigError(
                f"{setting.flag} is missing: {setting.help[0].lower()}{setting.help[1:-1]}",
                hint=f"give {setting.flag} {setting.kind.value}, or {setting.environment_name},"
                f" or {setting.key} in [{setting.section}] of the file",
            )


def render_config(node: str, config: object, found: Mapping[Setting, Resolved]) -> str:
    """The whole configuration as TOML, each value with its origin in a comment."""
    lines: list[str] = []
    section = None
    for setting in settings_of(node):
        value = config
        for name in setting.target.split("."):
            value = getattr(value, name)
        if setting.section != section:
            section = setting.section
            lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        origin = found[setting].origin if setting in found else "default"
        if value is None:
            lines.append(f"# {setting.key}: {setting.help}")
            continue
        text = f"{setting.key} = {format_value(setting.kind, value)}"
        lines.append(f"{text:<44} # {origin}")
    return "\n".join(lines)


def near_miss_variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Variables that look like a misspelt setting, with what they may have meant."""
    known = {setting.environment_name for setting in SETTINGS}
    prefixes = tuple(f"HASTORE_{section.upper()}_" for section in SECTIONS)
    misses = []
    for name in sorted(environ):
        if name in known or not name.startswith(prefixes):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
        if near:
            misses.append((name, near[0]))
    return misses
