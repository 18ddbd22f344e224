"""A message's properties as the text that RocketMQ sends: ``name U+0001 value U+0002 ...``.

Read leniently: the last separator may be missing, items without U+0001 or without a name are
ignored.  Source: RocketMQ 4.9.8 ``MessageDecoder``.  (``store/record`` has the properties of a
stored record; this module is the client protocol's and has no limits.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_properties(text: str) -> dict[str, str]:
    """Read a properties text; the last value of a repeated name counts."""
    properties = {}
    for item in text.split("\x02"):
        name, separator, value = item.partition("\x01")
        if separator and name:
            properties[name] = value
    return properties


def read_java_properties(data: bytes) -> dict[str, str]:
    """Read the ``name=value`` lines of a broker's configuration: the body of 25 and 26."""
    lines = data.decode(errors="replace").splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def write_properties(properties: Mapping[str, str]) -> str:
    """Return a properties text, which ends in a separator.

    Raises ConfigError if a name is empty, or a name or value contains a separator.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    count = len(properties)
    if text.count("\x01") != count or text.count("\x02") != count or "" in properties:
        msg = (
            f"a property's name is empty, or its name or value holds U+0001 or U+0002: {text!r:.80}"
        )
        raise ConfigError(msg)
    return text
