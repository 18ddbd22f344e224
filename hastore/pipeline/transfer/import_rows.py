"""Read the rows of an export (JSON lines, CSV or Parquet) as messages to send.

::

    topic, body         required
    body_encoding       "utf-8" (the default) or "base64"
    queue_id            by default the node chooses a queue
    properties          an object, in CSV its JSON text; by default made of tags and keys
    flag, sys_flag, reconsume_times, born_timestamp_ms      by default 0, and now
    the other columns of an export                          allowed, but not used

Needs no Spark, and one row in memory at a time (one batch of Parquet).  Errors name the file and
the line.
"""

from __future__ import annotations

import base64
import binascii
import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore.errors import ConfigError
from hastore.message import (
    PROPERTY_CRC32,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_TRANSACTION_PREPARED,
    Message,
)
from hastore.store.record.layout import (
    PRODUCER_FLAGS,
    TRANSACTION_COMMIT_TYPE,
    TRANSACTION_TYPE_MASK,
)
from hastore.topic import NO_PRODUCER_TOPICS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

UTF8: Final = "utf-8"
BASE64: Final = "base64"
COLUMNS: Final = (
    "topic", "queue_id", "queue_offset", "tags", "keys", "body", "body_encoding", "body_fault",
    "properties", "flag", "sys_flag", "reconsume_times", "prepared_transaction_offset",
    "born_timestamp_ms", "born_host", "store_timestamp_ms", "store_host", "store", "physic_offset",
    "size",
)  # fmt: skip
# Only brokers write these: timers and halves of transactions, whose messages have their own rows,
# and what brokers report.
BROKER_TOPICS: Final = NO_PRODUCER_TOPICS
_NOT_SENT: Final = frozenset({PROPERTY_CRC32, PROPERTY_TRANSACTION_PREPARED})
_INT_MAX: Final = 2**31 - 1
_MS_MAX: Final = 2**62
_PARQUET_ROWS: Final = 64  # per batch: bodies may have 4 MiB
_NAME_EXPORT: Final = "name what hastore pipeline run export wrote"
_HINT: Final = f"nothing was sent; is the file cut off? {_NAME_EXPORT}"
_START_MAX: Final = 60  # characters of a line that are shown


@attrs.frozen(kw_only=True)
class ImportRow:
    """One row of an export."""

    number: int  # from 1, over all files
    place: str  # file and line
    topic: str
    queue_id: int | None
    message: Message | None  # None: left out, as the broker's own


def find_files(path: str) -> list[Path]:
    """Return the files of an export in their order.  Raises ConfigError."""
    found = Path(path)
    if found.is_dir():
        parts = sorted(part for part in found.iterdir() if not part.name.startswith((".", "_")))
    else:
        parts = [found]
    if not parts or not all(part.is_file() for part in parts):
        what = "holds no parts of an export" if found.exists() else "does not exist"
        raise ConfigError(f"{path} {what}", hint=_NAME_EXPORT)
    for part in parts:
        if part.suffix not in _READERS:
            raise ConfigError(
                f"{part} is not .jsonl, .csv or .parquet",
                hint=_NAME_EXPORT,
            )
    return parts


def read_rows(files: Iterable[Path]) -> Iterator[ImportRow]:
    """Yield all rows.  Raises ConfigError, with the line, for a row that cannot be a message."""
    number = 0
    for file in files:
        for place, fields in _READERS[file.suffix](file):
            number += 1
            try:
                yield _row(number, place, fields)
            except ConfigError as error:
                raise ConfigError(f"{place}: {error}", hint=error.hint or _HINT) from error


# -- the three formats -----------------------------------------------------------------------------


def _read_jsonl(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            place = f"{file}, line {number}"
            if not line.strip():
                continue
            try:
                fields = json.loads(line)
            except ValueError as error:
                start = line[:_START_MAX].decode(errors="replace").rstrip()
                raise ConfigError(f"{place} is not JSON: {start}", hint=_HINT) from error
            if not isinstance(fields, dict):
                raise ConfigError(f"{place} is JSON, but not an object", hint=_HINT)
            _check_columns(place, fields)
            yield place, fields


def _read_csv(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    # A body is one value, and may be as long as a message.
    csv.field_size_limit(min(sys.maxsize, _INT_MAX))
    with file.open(encoding="utf-8", newline="") as text:
        lines = csv.reader(text, strict=True)
        line = 1
        try:
            head = next(lines, None)
            if head is None:
                return
            _check_columns(f"{file}, line 1", head)
            line = lines.line_num + 1
            for values in lines:
                place, line = f"{file}, line {line}", lines.line_num + 1
                if len(values) != len(head):
                    what = f"{place} has {len(values)} values, not {len(head)}"
                    raise ConfigError(what, hint=_HINT)
                yield place, _of_csv(place, dict(zip(head, values, strict=True)))
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConfigError(f"{file}, line {line} is not CSV: {error}", hint=_HINT) from error


def _of_csv(place: str, values: dict[str, str]) -> dict[str, Any]:
    """Return the values with their types; an empty one is None, except a body."""
    fields: dict[str, Any] = {}
    for name, text in values.items():
        if name in _NUMBERS:
            try:
                fields[name] = int(text) if text else None
            except ValueError as error:
                what = f"{place}: {name} is not a number: {text[:_START_MAX]}"
                raise ConfigError(what, hint=_HINT) from error
        elif name == "properties":
            try:
                fields[name] = json.loads(text) if text else None
            except ValueError as error:
                what = f"{place}: properties are not JSON: {text[:_START_MAX]}"
                raise ConfigError(what, hint=_HINT) from error
        else:
            fields[name] = text if text or name == "body" else None
    return fields


def _read_parquet(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow as pa  # noqa: PLC0415 - only this format needs it
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        table = pq.ParquetFile(file)
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{file} is not Parquet: {error}", hint=_HINT) from error
    with table:
        _check_columns(str(file), table.schema_arrow.names)
        number = 0
        for batch in table.iter_batches(batch_size=_PARQUET_ROWS):
            for fields in batch.to_pylist(maps_as_pydicts="strict"):
                number += 1
                yield f"{file}, row {number}", fields


_READERS: Final = {".jsonl": _read_jsonl, ".csv": _read_csv, ".parquet": _read_parquet}


def _check_columns(place: str, names: Iterable[str]) -> None:
    given = list(names)
    unknown = [name for name in given if name not in COLUMNS]
    if unknown:
        raise ConfigError(
            f"{place} has an unknown column {unknown[0]!r}",
            hint=f"columns of an export: {', '.join(COLUMNS)}",
        )
    for name in ("topic", "body"):
        if name not in given:
            raise ConfigError(f"{place} has no column {name!r}", hint="topic and body are required")


# -- a row as a message ----------------------------------------------------------------------------


_NUMBERS: Final = {
    "queue_id": _INT_MAX,
    "flag": _INT_MAX,  # the user's own: the only number that may be negative
    "sys_flag": _INT_MAX,
    "reconsume_times": _INT_MAX,
    "born_timestamp_ms": _MS_MAX,
    # Not used, so any number is accepted.
    "queue_offset": None,
    "prepared_transaction_offset": None,
    "store_timestamp_ms": None,
    "physic_offset": None,
    "size": None,
}


def _row(number: int, place: str, fields: dict[str, Any]) -> ImportRow:
    topic = fields["topic"]
    if not isinstance(topic, str) or not topic:
        raise ConfigError(f"topic is not a name: {topic!r}")
    queue_id = _number(fields, "queue_id")
    sys_flag = _number(fields, "sys_flag") or 0
    is_half = sys_flag & TRANSACTION_TYPE_MASK not in {0, TRANSACTION_COMMIT_TYPE}
    message = None
    if topic not in BROKER_TOPICS and not is_half:
        message = attrs.evolve(
            sent_message(topic, fields),
            queue_id=queue_id or 0,
            flag=_number(fields, "flag") or 0,
            sys_flag=sys_flag & PRODUCER_FLAGS,
            reconsume_times=_number(fields, "reconsume_times") or 0,
            born_timestamp_ms=_number(fields, "born_timestamp_ms"),
        )
    return ImportRow(number=number, place=place, topic=topic, queue_id=queue_id, message=message)


def sent_message(topic: str, fields: dict[str, Any]) -> Message:
    """Return what a producer gives: topic, body and properties.  Raises ConfigError."""
    return Message(topic, _body(fields), properties=_properties(fields))


def _number(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    most = _NUMBERS[name]
    if value is None:
        return None
    if type(value) is not int:
        raise ConfigError(f"{name} is not a number: {value!r}")
    least = -_INT_MAX - 1 if name == "flag" else 0
    if most is not None and not least <= value <= most:
        raise ConfigError(f"{name} is not a number from {least} to {most}: {value!r}")
    return value


def _body(fields: dict[str, Any]) -> bytes:
    body, encoding = fields["body"], fields.get("body_encoding") or UTF8
    if not isinstance(body, str):
        raise ConfigError(f"body is not text: {str(body)[:_START_MAX]!r}")
    if encoding == UTF8:
        try:
            return body.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(f"body is not UTF-8 text: {error.reason}") from error
    if encoding != BASE64:
        raise ConfigError(f"body_encoding {encoding!r} is neither {UTF8} nor {BASE64}")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"body is not base64: {error}") from error


def _properties(fields: dict[str, Any]) -> dict[str, str]:
    """Return the properties that a producer sends.

    The store adds a new checksum.  ``TRAN_MSG`` would make a half message of a committed one, which
    the master refuses; RocketMQ removes it at the commit.
    """
    given = fields.get("properties")
    if given is None:
        named = {PROPERTY_TAGS: fields.get("tags"), PROPERTY_KEYS: fields.get("keys")}
        given = {name: value for name, value in named.items() if value}
    if not isinstance(given, dict) or not all(isinstance(value, str) for value in given.values()):
        raise ConfigError("properties are not an object with text values")
    return {name: value for name, value in given.items() if name not in _NOT_SENT}
