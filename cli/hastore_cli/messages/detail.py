"""One message with all its fields: as JSON (``hastore.log-message/1``), and for people.

Offsets, sizes and times (milliseconds since 1970) are numbers; in JSON an unknown value is null.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from hastore.quantities import format_address, format_size
from hastore.store.record.message_codec import message_id
from hastore_cli.app.terminal import escaped, number, style, time_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore.message import StoredMessage

MESSAGE_SCHEMA: Final = "hastore.log-message/1"


def message_json(message: StoredMessage, *, bodies: bool) -> dict[str, Any]:
    """Return one message; its body as ``body`` if it is text, else as ``body_base64``."""
    own_id = message_id(message.store_host, message.physic_offset)
    data: dict[str, Any] = {
        "schema": MESSAGE_SCHEMA,
        "physic_offset": message.physic_offset,  # as in an export and of `produce`
        "offset": message.physic_offset,  # the name of 0.1.0, for one more release
        "size": message.total_size,
        "message_id": own_id,
        "id": own_id,  # likewise
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_timestamp_ms": message.born_timestamp_ms,
        "born_host": list(message.born_host),
        "store_timestamp_ms": message.store_timestamp_ms,
        "store_host": list(message.store_host),
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "properties": dict(message.properties),
        "body_size": len(message.body),
    }
    if message.body_fault is not None:
        data["body_fault"] = message.body_fault
    if bodies:
        text = body_text(message.body)
        if text is None:
            data["body_base64"] = base64.b64encode(message.body).decode()
        else:
            data["body"] = text
    return data


def body_text(body: bytes) -> str | None:
    """Return a body as text if it is UTF-8 of printable characters and line ends; else None."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    printable = text.replace("\n", "").replace("\r", "").replace("\t", "")
    return text if printable.isprintable() else None


# -- for people ----------------------------------------------------------------------------------


_LABEL_SIZE = 10
_HEX_BYTES_A_LINE = 16
_HEX_BYTES_MAX = 256


def message_detail_lines(message: StoredMessage, *, bodies: bool) -> Iterable[str]:
    """Yield the lines of one message."""
    yield _row("id", message_id(message.store_host, message.physic_offset))
    yield _row(
        "topic", f"{escaped(message.topic)}/{message.queue_id} @ {number(message.queue_offset)}"
    )
    end = message.physic_offset + message.total_size
    yield _row("log", f"{number(message.physic_offset)} … {number(end)}")
    yield _row(
        "stored",
        f"{time_text(message.store_timestamp_ms)}  on {format_address(message.store_host)}",
    )
    yield _row(
        "born", f"{time_text(message.born_timestamp_ms)}  at {format_address(message.born_host)}"
    )
    if message.reconsume_times:
        yield _row("retried", f"{message.reconsume_times} times")
    for name, value in message.properties.items():
        yield _row("property", f"{escaped(name)} = {escaped(value)}")
    yield _row("body", format_size(len(message.body)))
    if message.body_fault is not None:
        yield _row("", f"still compressed: {message.body_fault}")
    if bodies and message.body:
        yield ""
        yield from _body_lines(message.body)


def _row(label: str, text: str) -> str:
    return f"{style(f'{label:<{_LABEL_SIZE}}', fg='cyan')}  {text}"


def _body_lines(body: bytes) -> Iterable[str]:
    text = body_text(body)
    if text is not None:
        yield text
        return
    for at in range(0, min(len(body), _HEX_BYTES_MAX), _HEX_BYTES_A_LINE):
        row = body[at : at + _HEX_BYTES_A_LINE]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{at:08x}  {row.hex(' '):<{3 * _HEX_BYTES_A_LINE}} {shown}"
    if len(body) > _HEX_BYTES_MAX:
        yield f"… {len(body) - _HEX_BYTES_MAX} more bytes: -F '%s' prints them all"
