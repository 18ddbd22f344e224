"""The access key with which commands sign: from the environment or a file, never an argument.

The first that is there: the file that ``HASTORE_ACCESS_KEY_FILE`` names; ``HASTORE_ACCESS_KEY`` and
``HASTORE_ACCESS_SECRET``; the file that ``[access] key_file`` of the configuration file names.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from hastore_cli.settings.config_file import read_sections

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.access.signature import AccessKey

FILE_VARIABLE: Final = "HASTORE_ACCESS_KEY_FILE"
KEY_VARIABLE: Final = "HASTORE_ACCESS_KEY"
SECRET_VARIABLE: Final = "HASTORE_ACCESS_SECRET"  # noqa: S105 - the name of a variable


def access_key(environ: Mapping[str, str] | None = None) -> AccessKey | None:
    """Return the key; None if there is none.  Raises ConfigError for one that cannot be used."""
    given = os.environ if environ is None else environ
    path = given.get(FILE_VARIABLE)
    if not path and (given.get(KEY_VARIABLE) or given.get(SECRET_VARIABLE)):
        return _of_variables(given)
    path = path or access_setting("key_file", given)
    if not path:
        return None
    from hastore.access.key_file import read_key_file
    from hastore.env.real import real_env

    return read_key_file(real_env().disk, path)


def _of_variables(given: Mapping[str, str]) -> AccessKey:
    from hastore.access.secret import Secret
    from hastore.access.signature import AccessKey
    from hastore.errors import ConfigError

    name, secret = given.get(KEY_VARIABLE), given.get(SECRET_VARIABLE)
    if not name or not secret:
        missing = SECRET_VARIABLE if name else KEY_VARIABLE
        raise ConfigError(
            f"{missing} is not set, and its counterpart is",
            hint=f"set both, or {FILE_VARIABLE} alone",
        )
    return AccessKey(name, Secret(secret))


def access_setting(key: str, environ: Mapping[str, str]) -> str | None:
    """Return a key of ``[access]`` in the configuration file.

    Raises ConfigError for a file that cannot be read.
    """
    value = read_sections(environ).get("access", {}).get(key)
    return value if isinstance(value, str) else None
