"""The file of one access key: what a client, a command or a node signs with.

::

    accessKey: reader-key       YAML, RocketMQ's tools.yml; or TOML, accessKey = "reader-key"
    secretKey: at-least-7
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore.access.permissions_file import read_access_key
from hastore.access.secret_file import Reader, parse_table, read_secret_file

if TYPE_CHECKING:
    from hastore.access.signature import AccessKey
    from hastore.env.interface import Disk


def read_key_file(disk: Disk, path: str) -> AccessKey:
    """Return the key in a file.

    Raises ConfigError: it cannot be read, others may read it, or it is something else.
    """
    data, _ = read_secret_file(disk, path)
    return parse_key(data, path)


def parse_key(data: bytes, path: str) -> AccessKey:
    """Return the key in a file's bytes.  Raises ConfigError."""
    table, reader = parse_table(data, path), Reader(path)
    reader.check_keys(table, ("accessKey", "secretKey"))
    return read_access_key(reader, table, "the file")


def key_text(key: AccessKey) -> str:
    """Return the content of a key file in TOML, for a key that needs no escapes."""
    return f'accessKey = "{key.name}"\nsecretKey = "{key.secret.reveal()}"\n'
