"""The parts of a broker's answer to a pull."""

from __future__ import annotations

from hastore.store.record import message_codec, record_check


def bodies(response):
    """The bodies of an answer's messages; each record must be intact."""
    return [message.body for message in messages(response)]


def messages(response):
    """The messages of an answer; each record must be intact."""
    found = []
    position = 0
    while position < len(response.body):
        rest = len(response.body) - position
        check = record_check.check_record(response.body, position, rest, None)
        assert check.kind is record_check.RecordKind.MESSAGE
        found.append(message_codec.decode(response.body, position))
        position += check.size
    return found


def offsets(response):
    fields = response.ext_fields
    return tuple(int(fields[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset"))
