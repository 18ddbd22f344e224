"""Values of each kind of setting: parsed from text or TOML, and written back.

Pure; ``parse_value`` of the text from ``format_value`` returns the same value.
"""

from __future__ import annotations

import enum
import ipaddress
from typing import TYPE_CHECKING, Any, Final

from hastore.config import parse_endpoints
from hastore.errors import ConfigError
from hastore.quantities import (
    format_address,
    format_exact_duration,
    format_exact_size,
    parse_address,
    parse_duration_ms,
    parse_size,
    read_digits,
    ungrouped,
)
from hastore.setting import Kind
from hastore.status import (
    BrokerRole,
    ClientCertificates,
    FlushDiskType,
    HAProtocol,
    OwnSignatures,
    SlaveStart,
    TlsMode,
    TlsVersion,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_HOUR_MS: Final = 3_600_000

_CHOICES: Final[Mapping[Kind, Mapping[str, object]]] = {
    Kind.ROLE: {role.value: role for role in BrokerRole},
    # Short forms, as in sample files.
    Kind.FLUSH: {
        **{flush.value: flush for flush in FlushDiskType},
        "async": FlushDiskType.ASYNC_FLUSH,
        "sync": FlushDiskType.SYNC_FLUSH,
    },
    Kind.START: {start.value: start for start in SlaveStart},
    Kind.PROTOCOL: {protocol.value: protocol for protocol in HAProtocol},
    Kind.OWN_SIGNATURES: {each.value: each for each in OwnSignatures},
    Kind.TLS_MODE: {mode.value: mode for mode in TlsMode},
    Kind.TLS_VERSION: {version.value: version for version in TlsVersion},
    Kind.CLIENT_CERTIFICATES: {each.value: each for each in ClientCertificates},
    Kind.LOG_FORMAT: {name: name for name in ("auto", "console", "json")},
    Kind.LOG_LEVEL: {name: name for name in ("debug", "info", "warning", "error")},
}
# Kinds whose texts had digits grouped by ``_`` in earlier versions.
NUMBER_KINDS: Final = frozenset(
    {
        Kind.SIZE,
        Kind.COUNT,
        Kind.COUNT_OR_ZERO,
        Kind.ALL_OR_COUNT,
        Kind.COUNTS,
        Kind.PEERS,
    }
)
_BOOLS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def choices_of(kind: Kind) -> tuple[str, ...]:
    """Return the words of a choice; empty for other kinds."""
    return tuple(_CHOICES.get(kind, ()))


def parse_value(kind: Kind, value: object) -> object:
    """Return the value of a text (flag, variable) or of any TOML type.

    Numbers are above 0 unless their kind allows 0; a duration needs its unit.  Raises ValueError
    with one sentence.
    """
    match kind:
        case Kind.TEXT | Kind.PATH | Kind.FILE:
            if not isinstance(value, str):
                raise ValueError(f"{value!r} is not a text")  # noqa: TRY004 - bad input
            if not value.strip():
                what = {Kind.PATH: "the path of a directory", Kind.FILE: "the path of a file"}
                raise ValueError(f"{value!r} is empty: write {what.get(kind, 'a text')}")
            return value
        case Kind.BOOL:
            parsed = _BOOLS.get(str(value).lower())
            if parsed is None:
                raise ValueError(f"{value!r} is neither true nor false")
            return parsed
        case Kind.URLS | Kind.NAMES if isinstance(value, list | tuple):  # TOML has lists
            return _PARSERS[kind](",".join(map(str, value)))
        case Kind.SIZE | Kind.COUNT | Kind.COUNT_OR_ZERO | Kind.ALL_OR_COUNT if isinstance(
            value, bool | float
        ):
            raise ValueError(f"{value!r} is not a whole number")
        case _ if kind in _PARSERS:
            return _PARSERS[kind](str(value))
        case _:
            return _parse_choice(kind, str(value))


def _parse_count(text: str) -> int:
    number = read_digits(ungrouped(text))
    if number is None:
        raise ValueError(f"{text!r} is not a whole number")
    return number


def _parse_all_or_count(text: str) -> int | str:
    return "all" if text.strip().lower() == "all" else _above_zero(_parse_count(text))


def _parse_counts(text: str) -> tuple[int, ...]:
    """Return the numbers of ``1,2,3``, sorted."""
    numbers = [_above_zero(_parse_count(part.strip())) for part in text.split(",")]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{text!r} names a number twice")
    return tuple(sorted(numbers))


def _parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """Return the addresses of ``n1:9876,n2:9876``, or of RocketMQ's ``n1:9876;n2:9876``."""
    parts = [part.strip() for part in text.replace(";", ",").split(",") if part.strip()]
    return tuple(dict.fromkeys(parse_address(part) for part in parts))


def _parse_names(text: str) -> tuple[str, ...]:
    """Return the names of ``n1.example,n2.example``; none for an empty text."""
    names = [part.strip() for part in text.split(",")] if text.strip() else []
    if "" in names:
        raise ValueError(f"{text!r} has an empty name: write n1.example,n2.example")
    return tuple(dict.fromkeys(names))


def _parse_peers(text: str) -> tuple[tuple[str, int], ...]:
    """Return the pairs of ``10.0.0.7@5242880,[2001:db8::7]@4096``; none for an empty text."""
    pairs = []
    for part in text.split(",") if text.strip() else ():
        host, separator, offset = part.strip().rpartition("@")
        host = host.removeprefix("[").removesuffix("]")
        if not separator or not _is_address(host):
            raise ValueError(f"{part!r} is not an IP address and an offset: write 10.0.0.7@5242880")
        pairs.append((host, _parse_count(offset)))
    return tuple(pairs)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _above_zero(number: int) -> int:
    if number <= 0:
        raise ValueError(f"must be above 0, not {number}")
    return number


def _parse_hours(text: str) -> int:
    """Return the whole hours of ``72h`` or ``3d``: log files expire by the hour."""
    hours, rest = divmod(_above_zero(parse_duration_ms(text)), _HOUR_MS)
    if rest:
        raise ValueError(f"{text!r} is not a whole number of hours: write 72h, or 3d")
    return hours


def _parse_percent(text: str) -> int:
    percent = read_digits(text.strip().removesuffix("%").rstrip())
    if percent is None or not 1 <= percent <= 100:
        raise ValueError(f"{text!r} is not a percentage from 1% to 100%")
    return percent


def parse_clock_hours(text: str) -> str:
    """Check hours of the day, separated by ``;`` as in RocketMQ: ``4;16`` is ``04;16``."""
    hours = []
    for part in text.split(";"):
        hour = read_digits(part.strip())
        if hour is None or hour > 23:
            what = f"{part.strip()!r} is not an hour from 00 to 23"
            raise ValueError(f"{text!r}: {what}; write 04, or 04;16")
        hours.append(f"{hour:02d}")
    return ";".join(hours)


def parse_delay_levels(text: str) -> str:
    """Check delays as RocketMQ writes them: ``1s 10s 1m 2h``."""
    from hastore.store.record.delay_levels import DelayLevels

    try:
        DelayLevels.parse(text)
    except ConfigError as error:
        reason = str(error).removeprefix("message_delay_level: ")
        raise ValueError(f"{text!r}: {reason}; write 1s 10s 1m 2h") from None
    return " ".join(text.split())


def _parse_ha_address(text: str) -> tuple[str, int]:
    """Parse the address of an HA port; the example in an error has port 10912."""
    try:
        return parse_address(text)
    except ValueError as error:
        raise ValueError(str(error).replace(":10911", ":10912")) from None


_PARSERS: Final[Mapping[Kind, Callable[[str], object]]] = {
    Kind.ADDRESS: parse_address,
    Kind.ADDRESSES: _parse_addresses,
    Kind.HA_ADDRESS: _parse_ha_address,
    Kind.LOCAL_ADDRESS: lambda text: parse_address(
        text if read_digits(text.strip()) is None else f"127.0.0.1:{text.strip()}"
    ),
    Kind.SIZE: lambda text: _above_zero(parse_size(text)),
    Kind.COUNT: lambda text: _above_zero(_parse_count(text)),
    Kind.COUNT_OR_ZERO: _parse_count,
    Kind.ALL_OR_COUNT: _parse_all_or_count,
    Kind.COUNTS: _parse_counts,
    Kind.URLS: parse_endpoints,
    Kind.NAMES: _parse_names,
    Kind.PEERS: _parse_peers,
    Kind.DURATION: lambda text: _above_zero(parse_duration_ms(text)),
    Kind.DURATION_OR_ZERO: parse_duration_ms,
    Kind.HOURS: _parse_hours,
    Kind.PERCENT: _parse_percent,
    Kind.CLOCK_HOURS: parse_clock_hours,
    Kind.DELAY_LEVELS: parse_delay_levels,
}


def _parse_choice(kind: Kind, text: str) -> object:
    """Return the value of a word in any case; ``-`` and ``_`` are alike."""
    wanted = text.strip().lower().replace("-", "_")
    for word, value in _CHOICES[kind].items():
        if word.lower().replace("-", "_") == wanted:
            return value
    raise ValueError(f"{text!r} is not one of {', '.join(_CHOICES[kind])}")


def format_value(kind: Kind, value: object) -> str:
    """Return the TOML text of a value; ``parse_value`` is its inverse."""
    match kind:
        case Kind.BOOL:
            return str(value).lower()
        case Kind.COUNT | Kind.COUNT_OR_ZERO | Kind.ALL_OR_COUNT if isinstance(value, int):
            return str(value)
        case _:
            escaped = _text_of(kind, value).replace("\\", "\\\\").replace('"', '\\"')
            return f'"{escaped}"'


def _peer_text(peer: tuple[str, int]) -> str:
    host, at = peer
    return f"[{host}]@{at}" if ":" in host else f"{host}@{at}"


_ITEM_TEXTS: Final[Mapping[Kind, Callable[[Any], str]]] = {
    Kind.ADDRESSES: format_address,
    Kind.COUNTS: str,
    Kind.NAMES: str,
    Kind.PEERS: _peer_text,
    Kind.URLS: str,
}


def _text_of(kind: Kind, value: object) -> str:
    """Return the text of a value that TOML has no type for."""
    match kind:
        case Kind.HOURS:
            return f"{value}h"
        case Kind.PERCENT:
            return f"{value}%"
        case Kind.SIZE:
            assert isinstance(value, int)
            return format_exact_size(value)
        case Kind.DURATION | Kind.DURATION_OR_ZERO:
            assert isinstance(value, int)
            return format_exact_duration(value)
        case Kind.ADDRESS | Kind.HA_ADDRESS | Kind.LOCAL_ADDRESS:
            assert isinstance(value, tuple)
            return format_address(value)
        case Kind.ADDRESSES | Kind.COUNTS | Kind.NAMES | Kind.PEERS | Kind.URLS:
            assert isinstance(value, tuple)
            return ",".join(_ITEM_TEXTS[kind](one) for one in value)
        case _:
            return str(value.value if isinstance(value, enum.Enum) else value)
