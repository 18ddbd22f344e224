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
from typing import TYPE_CHECKING, Any, Final

import attrs
import rich_click as click

from hastore.config import StoreConfig
from hastore.errors import ConfigError
from hastore_cli.settings.kinds import parse_value
from hastore_cli.settings.settings import PLACES, SECTIONS, SETTINGS, default_text, setting_at

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hastore.setting import Setting
    from hastore_cli.settings.settings import Place

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


def values_of(
    part: str, places: Mapping[Setting, Place], found: Mapping[Setting, Resolved]
) -> dict[str, Any]:
    """The values that were found for one part of the configuration, by field."""
    return {
        place.field.name: found[setting].value
        for setting, place in places.items()
        if place.part == part and setting in found
    }


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


# -- commands on a directory ---------------------------------------------------------------------

# The index files' sizes and the delay levels are not stored in the directory: a command on it reads
# the same configuration as its node.


def config_option_of(
    help_text: str, *, panel: str | None = None
) -> Callable[..., Callable[..., Any]]:
    """Make the option ``-c``, given to the command as ``config_flag``."""
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
    "The node's configuration: what its [store] says of files, delays and expiry."
)


def read_store_config(data_dir: str, config_flag: str | None) -> StoreConfig:
    """The store's configuration; every mistake is a ConfigError that says where it stands."""
    file = find_config_file(config_flag, os.environ)
    found = read_config_file(file) if file is not None else {}
    found |= read_environment(os.environ)
    fields = values_of("store", PLACES["master"], found)
    return StoreConfig(**{**fields, "data_dir": data_dir})
