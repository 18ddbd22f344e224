"""Sizes, durations, addresses, counts: text that people write ⇄ values with one unit.

::

    size       1048576   64KiB   1.5GiB   10MB (decimal)   4K (= 4KiB)     → bytes
    duration   500ms     3s      2min     1h   3d                          → milliseconds
    address    127.0.0.1:10911   [::1]:10911   localhost:0                 → (host, port)
    number     236602469   "236 602 469" (as it is printed)                → int

Every parser raises ValueError with a sentence that shows the right form.
"""

from __future__ import annotations

import ipaddress
import re
from decimal import Decimal
from typing import Final

_DAYS_FROM: Final = 3  # shorter times are given in hours

_NUMBER_AND_UNIT: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}")
# Groups of three digits, as ``format_count`` prints them; pages and terminals may turn the space
# into a no-break, thin or narrow one.
_GROUPED: Final = re.compile(r"(?<!\d)\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3})+(?!\d)", re.ASCII)
_UNDERSCORES: Final = re.compile(r"(?<=[0-9])_(?=[0-9])")

_SIZE_UNITS: Final = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kib": 1 << 10,
    "kb": 10**3,
    "m": 1 << 20,
    "mib": 1 << 20,
    "mb": 10**6,
    "g": 1 << 30,
    "gib": 1 << 30,
    "gb": 10**9,
    "t": 1 << 40,
    "tib": 1 << 40,
    "tb": 10**12,
}
_DURATION_UNITS: Final = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


def read_integer(value: object) -> int | None:
    """Return the integer that a peer, a file or a flag means; None if ``value`` is not one.

    A text has ASCII digits and perhaps a sign, as Java's ``Long.parseLong`` reads it: ``int`` alone
    also takes ``1_000``, blanks and the digits of other scripts.
    """
    if isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode("latin-1")
        return int(text) if _INTEGER.fullmatch(text) else None
    if isinstance(value, int):
        return int(value)  # a boolean is 0 or 1, which some clients send
    return int(value) if isinstance(value, float) and value.is_integer() else None


def read_digits(text: str) -> int | None:
    """Return the integer that a text of ASCII digits means, as ``read_integer``; no sign."""
    return read_integer(text) if text[:1] not in {"+", "-"} else None


def ungrouped(text: str) -> str:
    """Return ``text`` with grouped digits joined: ``"236 602 469"`` becomes ``"236602469"``."""
    return _GROUPED.sub(lambda match: re.sub(r"\D", "", match[0]), text)


def without_underscores(text: str) -> str:
    """Return ``text`` with digits joined that ``_`` separates: earlier versions read ``1_000``."""
    return _UNDERSCORES.sub("", text)


def parse_whole_number(text: str) -> int:
    """Return the integer of ``"236602469"``, ``"236 602 469"`` or ``"-1"``."""
    number = read_integer(ungrouped(text.strip()))
    if number is None:
        raise ValueError(f"{text!r} is not a valid integer: write 1000 or '1 000'")
    return number


def parse_size(text: str) -> int:
    """Return the bytes of ``"64KiB"``, ``"1GiB"``, ``"1000"`` or ``"1 000"``."""
    match = _NUMBER_AND_UNIT.fullmatch(ungrouped(text))
    unit = None if match is None else _SIZE_UNITS.get(match[2].lower())
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a size: write bytes, or 64KiB, 256MiB, 1GiB")
    size = Decimal(match[1]) * unit
    if size != int(size):
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of ``"3s"``, ``"500ms"``, ``"2min"``, ``"1h"``; needs a unit."""
    match = _NUMBER_AND_UNIT.fullmatch(text)
    unit = None if match is None else _DURATION_UNITS.get(match[2].lower())
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a duration: write 500ms, 3s, 2min or 1h")
    duration_ms = Decimal(match[1]) * unit
    if duration_ms != int(duration_ms):
        raise ValueError(f"{text!r} is not a whole number of milliseconds")
    return int(duration_ms)


def parse_address(text: str) -> tuple[str, int]:
    """Return ``(host, port)`` of ``"HOST:PORT"``, or ``"[IPv6]:PORT"``."""
    host, colon, port_text = text.strip().rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    port = read_digits(port_text)
    if not colon or not host or port is None:
        raise ValueError(f"{text!r} is not an address: write HOST:PORT, such as 127.0.0.1:10911")
    if ":" in host and not bracketed:
        raise ValueError(f"{text!r}: an IPv6 host needs brackets, such as [::1]:10911")
    if port > 65_535:
        raise ValueError(f"{text!r}: port {port} is above 65535")
    return host, port


def format_address(address: tuple[str, int]) -> str:
    """Return ``HOST:PORT``, with an IPv6 host in brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether a host, by its text alone, names the machine that reads it.

    True for 127.0.0.0/8, ::1, both written as an IPv4-mapped address, ``localhost`` and names below
    ``.localhost`` (RFC 6761).
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.rstrip(".").lower()
        return name == "localhost" or name.endswith(".localhost")
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def format_size(size: float) -> str:
    """Return a size for people: ``0 B``, ``812 B``, ``128.2 MiB``."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def format_exact_size(size: int) -> str:
    """Return a size that parses to the same number: ``1GiB``, ``1536KiB``, ``1000``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def format_exact_duration(duration_ms: int) -> str:
    """Return a duration that parses to the same number: ``3s``, ``1500ms``."""
    return f"{duration_ms // 1000}s" if duration_ms % 1000 == 0 else f"{duration_ms}ms"


def format_duration(seconds: float) -> str:
    """Return a duration for people: ``84 µs``, ``4.1 ms``, ``3.1 s``, ``12 min``."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def format_span(seconds: float) -> str:
    """Return a duration for people that may be long: as ``format_duration``, and ``4 days``."""
    days = seconds / 86_400
    return f"{days:.0f} days" if days >= _DAYS_FROM else format_duration(seconds)


def format_count(count: int) -> str:
    """Return a count in groups of three digits: ``1 073 921 408``."""
    return f"{count:,}".replace(",", " ")
