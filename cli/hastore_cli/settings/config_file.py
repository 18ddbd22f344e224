"""Reads settings from TOML files and environment variables, each with its origin.

Precedence: flag > environment ``HASTORE_<SECTION>_<KEY>`` > file > default.  A file is looked for
at ``-c``, ``$HASTORE_CONFIG``, ``./hastore.toml``, the user's configuration directory and
``/etc/hastore/hastore.toml``; only the first readable one is read.  A named file (``-c``,
``$HASTORE_CONFIG``) must be readable; of another that may not be read, a note says that it is
ignored.

Invariant: every value that leaves this module has passed ``parse_value`` of its setting's kind, and
an unknown key is a ConfigError that names the file, the line, the key and the nearest existing key.
What the configuration classes refuse, alone or together, is named by keys and places, too
(``keys_named``).
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import tomllib
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import attrs
import rich_click as click
from click.core import ParameterSource

from hastore.config import StoreConfig
from hastore.errors import ConfigError, SettingsError
from hastore_cli.app.terminal import note
from hastore_cli.settings.kinds import NUMBER_KINDS, parse_value
from hastore_cli.settings.param_types import plain_digits
from hastore_cli.settings.settings import PLACES, SECTIONS, SETTINGS, default_text, setting_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hastore.setting import Setting
    from hastore_cli.settings.settings import Place

CONFIG_VARIABLE: Final = "HASTORE_CONFIG"
# Read by commands that ask a node (acl.access_key); similar to settings.
COMMANDS_VARIABLES: Final = frozenset({"HASTORE_ACCESS_KEY", "HASTORE_ACCESS_SECRET"})
SYSTEM_FILE: Final = "/etc/hastore/hastore.toml"
_FLAG: Final = "config_flag"
# A section's head, and a key with its section, if that is written with it (ha.batch = …).
_HEADER: Final = re.compile(r"""\s*\[\s*["']?([\w-]+)["']?\s*\]""")
_KEY: Final = re.compile(r"""\s*(?:["']?([\w-]+)["']?\s*\.\s*)?["']?([\w-]+)["']?\s*=""")


@attrs.frozen
class Resolved:
    """A setting's value and its origin: ``--flag``, a variable or a file, there with the line."""

    value: object
    origin: str
    line: int | None = None

    @property
    def place(self) -> str:
        """``hastore.toml, line 6``, or the flag or the variable."""
        return _place(self.origin, self.line)


def _place(origin: str, line: int | None) -> str:
    return origin if line is None else f"{origin}, line {line}"


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


def _note_old_name(place: str, name: str) -> None:
    note(f"{place} is called {name} now; the old name ends with the next release")


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
    text = _read_text(path)
    return parse_table(_parse_toml(text, path), str(path), _key_lines(text))


def read_sections(environ: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """Return the sections of the running command's file, without a look at their keys.

    For commands that ask a node: they need [tls], [ha] and [access] only, so a wrong key elsewhere
    does not stop them.  Raises ConfigError for a file that cannot be read or is not TOML: it may
    say that requests are sent by TLS.
    """
    context = click.get_current_context(silent=True)
    file = find_config_file(None if context is None else _config_flag(context), environ)
    table = {} if file is None else _parse_toml(_read_text(file), file)
    return {name: section for name, section in table.items() if isinstance(section, dict)}


def _config_flag(context: click.Context) -> str | None:
    flag: str | None = context.params.get(_FLAG, context.meta.get(_FLAG))
    return flag


def is_config_named() -> bool:
    """Whether the running command's file was named on its command line (``-c``)."""
    context = click.get_current_context(silent=True)
    return context is not None and (
        context.get_parameter_source(_FLAG) is ParameterSource.COMMANDLINE
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}",
            hint=f"check the path given with -c or {CONFIG_VARIABLE}",
        ) from error
    except UnicodeDecodeError as error:
        raise _not_toml(path, error) from error


def _parse_toml(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(path, error) from error


def _not_toml(path: Path, error: ValueError) -> ConfigError:
    return ConfigError(
        f"{path} is not TOML: {error}", hint='a line is: key = "text", below a [section]'
    )


def _key_lines(text: str) -> dict[tuple[str, str], int]:
    """Return the lines of sections and keys, counted from 1; tomllib does not tell them.

    A section is ``(name, "")``.  A key that is not found, as in an inline table, has no line.
    """
    lines: dict[tuple[str, str], int] = {}
    section = ""
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.match(line):
            section = header[1]
            lines.setdefault((section, ""), number)
        elif key := _KEY.match(line):
            lines.setdefault((key[1] or section, key[2]), number)
    return lines


def parse_table(
    table: Mapping[str, object],
    file: str,
    lines: Mapping[tuple[str, str], int] = MappingProxyType({}),
) -> dict[Setting, Resolved]:
    """Return the settings in a parsed TOML document.

    ``lines`` has the line of each section (with an empty key) and key, where known.  Raises
    ConfigError.
    """
    found: dict[Setting, Resolved] = {}
    for section, keys in table.items():
        if not isinstance(keys, dict):
            place = _place(file, lines.get(("", section)))
            raise _unknown(place, section, _homes_of(section))
        if section not in SECTIONS:
            place = _place(file, lines.get((section, "")))
            raise _unknown(
                place, f"[{section}]", [f"[{near}]" for near in _near(section, SECTIONS)]
            )
        for key, value in keys.items():
            setting, line = setting_at(section, key), lines.get((section, key))
            place = _place(file, line)
            if setting is None:
                raise _unknown(place, f"[{section}] {key}", _near_settings(section, key))
            if key == setting.old_key:
                if setting.key in keys:
                    raise ConfigError(
                        f"{place}: [{section}] {key} is the old name of {setting.key}, which is"
                        " there, too",
                        hint=f"leave {key} out",
                    )
                _note_old_name(f"{place}: [{section}] {key}", setting.key)
            found[setting] = Resolved(
                _parse(setting, value, f"{place}: {setting.name}"), file, line
            )
    return found


def _parse(setting: Setting, value: object, where: str) -> object:
    if isinstance(value, str) and setting.kind in NUMBER_KINDS:
        value = plain_digits(value, where)
    try:
        return parse_value(setting.kind, value)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}", hint=_how_to_correct([setting])) from None


def _how_to_correct(settings: Sequence[Setting]) -> str:
    """Return the next step for values that cannot be used, with the default of a single one."""
    default = None
    if len(settings) == 1:
        defaults = (default_text(node, settings[0]) for node in PLACES)
        default = next((text for text in defaults if text), None)
    return "correct it, or leave it out" + (f" (default: {default})" if default else "")


@contextlib.contextmanager
def keys_named(
    places: Mapping[Setting, Place], found: Mapping[Setting, Resolved], part: str = ""
) -> Iterator[None]:
    """Name keys and where they are given in a SettingsError, in place of the fields of a class.

    ``part`` is the part of the configuration that is made (``Place``); of two fields of one name
    its own counts.
    """
    try:
        yield
    except SettingsError as error:
        settings = [_setting_of(name, places, part) for name in error.fields]
        message, hint = error.named([setting.name for setting in settings])
        given = [setting for setting in settings if setting in found]
        where = "; ".join(dict.fromkeys(found[setting].place for setting in given))
        raise ConfigError(
            f"{where}: {message}" if where else message,
            hint=hint or _how_to_correct(given or settings),
        ) from error


def _setting_of(field: str, places: Mapping[Setting, Place], part: str) -> Setting:
    having = [setting for setting, place in places.items() if place.field.name == field]
    assert having, f"no setting has the field {field}"
    return next((setting for setting in having if places[setting].part == part), having[0])


def _unknown(place: str, what: str, nearest: list[str]) -> ConfigError:
    guess = f"; the nearest is {nearest[0]}" if nearest else ""
    hint = "correct it; hastore master --data DIR --check-config prints every key"
    return ConfigError(f"{place}: no such key: {what}{guess}", hint=hint)


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
        for name in (setting.environment_name, setting.old_environment_name):
            text = environ.get(name) if name else None
            if name and text:
                if name != setting.environment_name:
                    _note_old_name(name, setting.environment_name)
                found[setting] = Resolved(_parse(setting, text, name), name)
                break
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
    """Return variables that look like misspelt settings, each with the nearest one.

    Old names are none of them.
    """
    known = {setting.environment_name for setting in SETTINGS} | COMMANDS_VARIABLES
    known |= {name for setting in SETTINGS if (name := setting.old_environment_name)}
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
    return click.option(*_FLAGS, **_config_option(help_text), panel=panel)


def asking_config_option() -> click.Option:
    """Return the option ``-c`` of a command that asks a node; ``read_sections`` finds its value."""

    def keep(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        ctx.meta[_FLAG] = value

    text = "The node's configuration: which node to ask, and how."
    return click.RichOption(_FLAGS, **_config_option(text), expose_value=False, callback=keep)


_FLAGS: Final = ("-c", "--config", _FLAG)


def _config_option(help_text: str) -> dict[str, Any]:
    return {
        "type": click.Path(),
        "metavar": "FILE.toml",
        "envvar": CONFIG_VARIABLE,
        "show_envvar": True,
        "help": help_text,
    }


config_option: Final = config_option_of(
    "The node's configuration, for its [store]: files, delays, expiry."
)


def read_store_config(data_dir: str, config_flag: str | None) -> StoreConfig:
    """Return the store's configuration.  Raises ConfigError that names the place of a mistake."""
    file = find_config_file(config_flag, os.environ)
    found = read_config_file(file) if file is not None else {}
    found |= read_environment(os.environ)
    fields = values_of("store", PLACES["master"], found)
    with keys_named(PLACES["master"], found, "store"):
        return StoreConfig(**{**fields, "data_dir": data_dir})
