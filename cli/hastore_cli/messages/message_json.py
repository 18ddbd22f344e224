"""One message as JSON, ``hastore.log-message/1``: keys that stay.

Offsets, sizes and times (milliseconds since 1970) are numbers; what is not known is null.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from hastore.store.record.message_codec import message_id

if TYPE_CHECKING:
    from hastore.message import StoredMessage

MESSAGE_SCHEMA: Final = "hastore.log-message/1"


def message_json(message: StoredMessage, *, bodies: bool) -> dict[str, Any]:
    """One message; the body as ``body`` where it is a text, else as ``body_base64``."""
    data: dict[str, Any] = {
        "schema": MESSAGE_SCHEMA,
        "offset": message.physic_offset,
        "size": message.total_size,
        "id": message_id(message.store_host, message.physic_offset),
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
    if bodies:
        text = body_text(message.body)
        if text is None:
            data["body_base64"] = base64.b64encode(message.body).decode()
        else:
            data["body"] = text
    return data


def body_text(body: bytes) -> str | None:
    """Give a body as text if it is one: UTF-8 of printable characters and line ends."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    printable = text.replace("\n", "").replace("\r", "").replace("\t", "")
    return text if printable.isprintable() else None
