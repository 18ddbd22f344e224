"""Reads settings from TOML files and environment variables, each with its origin.

Precedence: flag > environment ``HASTORE_<SECTION>_<KEY>`` > file > default.  A file is looked for
at ``-c``, ``$HASTORE_CONFIG``, ``./hastore.toml``, the user's configuration directory and
``/etc/hastore/hastore.toml``; only the first readable one is read.  A named file (``-c``,
``$HASTORE_CONFIG``) must be readable; of another that may not be read, a note says that it is
ignored.

Invariant: every value that leaves this module has passed ``parse_value`` of its setting's kind, and
an unknown key is a ConfigError that names the file, the key and the nearest existing key.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import rich_click as click

from hastore.config import StoreConfig
from hastore.errors import ConfigError
from hastore_cli.app.terminal import note
from hastore_cli.settings.kinds import NUMBER_KINDS, parse_value
from hastore_cli.settings.param_types import plain_digits
from hastore_cli.settings.settings import PLACES, SECTIONS, SETTINGS, default_text, setting_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hastore.setting import Setting
    from hastore_cli.settings.settings import Place

CONFIG_VARIABLE: Final = "HASTORE_CONFIG"
# Read by commands that ask a node (acl.access_key); similar to settings.
COMMANDS_VARIABLES: Final = frozenset({"HASTORE_ACCESS_KEY", "HASTORE_ACCESS_SECRET"})
SYSTEM_FILE: Final = "/etc/hastore/hastore.toml"


@attrs.frozen
class Resolved:
    """A setting's value and its origin: ``--flag``, a variable or a file."""

    value: object
    origin: str


def find_config_file(flag: str | None, environ: Mapping[str, str]) -> Path | None:
    """Return the file to read, or None; a named file is returned even if it does not exist."""
    named = flag or environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    for candidate in (Path("hastore.toml"), _user_file(environ), Path(SYSTEM_FILE)):
        if _is_readable(candidate):
            return candidate
    return None


def _is_readable(path: Path) -> bool:
    """Whether a file that nobody named can be read; others count as absent."""
    try:
        if not path.is_file():
            return False
        is_allowed = os.access(path, os.R_OK)
    except PermissionError:
        is_allowed = False
    except OSError:
        return False
    if not is_allowed:
        # It may turn TLS on, or name the key.
        note(f"{path} may not be read, and is ignored; {CONFIG_VARIABLE} names another file")
    return is_allowed


def _user_file(environ: Mapping[str, str]) -> Path:
    from platformdirs import user_config_dir

    home = environ.get("XDG_CONFIG_HOME")
    return (
        Path(home, "hastore", "hastore.toml")
        if home
        else Path(user_config_dir("hastore"), "hastore.toml")
    )


def read_config_file(path: Path) -> dict[Setting, Resolved]:
    """Return the settings in a TOML file.  Raises ConfigError with the file, the key and a hint."""
    return parse_table(_read_toml(path), str(path))


def read_sections(environ: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """Return the sections of the running command's file, without a look at their keys.

    For commands that ask a node: they need [tls], [ha] and [access] only, so a wrong key elsewhere
    does not stop them.  Raises ConfigError for a file that cannot be read or is not TOML: it may
    say that requests are sent by TLS.
    """
    context = click.get_current_context(silent=True)
    file = find_config_file(None if context is None else context.params.get("config_flag"), environ)
    table = {} if file is None else _read_toml(file)
    return {name: section for name, section in table.items() if isinstance(section, dict)}


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}",
            hint=f"check the path given with -c or {CONFIG_VARIABLE}",
        ) from error
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is not TOML: {error}", hint='a line is: key = "text", below a [section]'
        ) from error


def parse_table(table: Mapping[str, object], file: str) -> dict[Setting, Resolved]:
    """Return the settings in a parsed TOML document.  Raises ConfigError."""
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
    if isinstance(value, str) and setting.kind in NUMBER_KINDS:
        value = plain_digits(value, where)
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
    hint = "correct it; hastore master --data DIR --check-config prints every key"
    return ConfigError(f"{file}: no such key: {what}{guess}", hint=hint)


def _near(word: str, words: tuple[str, ...] | list[str], *, likeness: float = 0.5) -> list[str]:
    return difflib.get_close_matches(word.lower(), words, n=1, cutoff=likeness)


def _homes_of(key: str) -> list[str]:
    """Return the settings that a key outside a section may mean."""
    names = [s.name for s in SETTINGS if s.key == key]
    return names or [
        s.name for near in _near(key, [s.key for s in SETTINGS]) for s in SETTINGS if s.key == near
    ]


def _near_settings(section: str, key: str) -> list[str]:
    """Return the same key in its own section, else a similar key, preferably of this section."""
    elsewhere = [s.name for s in SETTINGS if s.key == key]
    if elsewhere:
        return elsewhere
    keys = [s.key for s in SETTINGS if s.section == section]
    here = _near(key, keys, likeness=0.75)
    if not here and not _near(key, [s.key for s in SETTINGS], likeness=0.85):
        here = _near(key, keys, likeness=0.0)
    return [f"[{section}] {near}" for near in here] or _homes_of(key)


def read_environment(environ: Mapping[str, str]) -> dict[Setting, Resolved]:
    """Return the settings in ``HASTORE_<SECTION>_<KEY>`` variables; empty ones are left out."""
    found: dict[Setting, Resolved] = {}
    for setting in SETTINGS:
        name = setting.environment_name
        text = environ.get(name)
        if text:
            found[setting] = Resolved(_parse(setting, text, name), name)
    return found


def values_of(
    part: str, places: Mapping[Setting, Place], found: Mapping[Setting, Resolved]
) -> dict[str, Any]:
    """Return the values found for one part of the configuration, by field."""
    return {
        place.field.name: found[setting].value
        for setting, place in places.items()
        if place.part == part and setting in found
    }


def near_miss_variables(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return variables that look like misspelt settings, each with the nearest one."""
    known = {setting.environment_name for setting in SETTINGS} | COMMANDS_VARIABLES
    prefixes = tuple(f"HASTORE_{section.upper()}_" for section in SECTIONS)
    misses = []
    for name in sorted(environ):
        if name in known or not name.startswith(prefixes):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
        if near:
            misses.append((name, near[0]))
    return misses


# -- commands on a directory ---------------------------------------------------------------------

# The index files' sizes and the delay levels are not stored in the directory: a command on it reads
# the same configuration as its node.


def config_option_of(
    help_text: str, *, panel: str | None = None
) -> Callable[..., Callable[..., Any]]:
    """Return the option ``-c``, passed to the command as ``config_flag``."""
    return click.option(
        "-c",
        "--config",
        "config_flag",
        type=click.Path(),
        metavar="FILE.toml",
        envvar="HASTORE_CONFIG",
        show_envvar=True,
        help=help_text,
        panel=panel,
    )


config_option: Final = config_option_of(
    "The node's configuration, for its [store]: files, delays, expiry."
)


def read_store_config(data_dir: str, config_flag: str | None) -> StoreConfig:
    """Return the store's configuration.  Raises ConfigError that names the place of a mistake."""
    file = find_config_file(config_flag, os.environ)
    found = read_config_file(file) if file is not None else {}
    found |= read_environment(os.environ)
    fields = values_of("store", PLACES["master"], found)
    return StoreConfig(**{**fields, "data_dir": data_dir})
