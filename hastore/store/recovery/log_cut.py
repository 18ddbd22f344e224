"""A cut of a log, as two small files record it: what was cut off, and that the cut is under way.

::

    DIR/trimmed/00000000000000002060-1700000000000    the bytes, in files of at most 8 MiB
    DIR/trimmed/cut-00000000000000002060-1700000000000.json       ``LogCut``, beside them
    DIR/cut.json                                                   ``CutIntent``, until it is done

Invariant: while ``cut.json`` exists, the bytes that it names are in ``trimmed/``, and the log ends
at its offset, whatever follows there: the next opening finishes the cut (``cut``).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, final

import attrs

from hastore.epoch_history import EpochSpan
from hastore.errors import ProtocolError, UnfinishedCutError
from hastore.store.log.mapped_file_queue import file_name
from hastore.store.log.store_directory import CUT_FILE, TRIMMED_DIR
from hastore.store.reserve_file import write_beside_reserve
from hastore.wire.liberal_json import loads_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.env.interface import Disk
    from hastore.errors import HastoreError

_CUT_SCHEMA: Final = "hastore.cut/1"
_INTENT_SCHEMA: Final = "hastore.unfinished-cut/1"
_CUT_PREFIX: Final = "cut-"
_NUMBERS: Final = ("kept_store_ms", "index_slots", "index_entries")


@final
@attrs.frozen(kw_only=True)
class LogCut:
    """Bytes ``[physic_offset, end_offset)`` that were cut off a log.

    ``epochs`` are the parts of epochs among them, ``messages`` the whole messages by topic, and
    ``saved_paths`` the files with the bytes, relative to the store's directory.  ``unread_from`` is
    where the damage begins that ended the count, so that there may be more messages; None: all are
    counted.
    """

    physic_offset: int
    end_offset: int
    reason: str
    time_ms: int
    epochs: tuple[EpochSpan, ...]
    messages: Mapping[str, int]
    saved_paths: tuple[str, ...]
    unread_from: int | None = None

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.end_offset - self.physic_offset

    @property
    def path(self) -> str:
        """The file that describes the cut, relative to the store's directory."""
        return f"{TRIMMED_DIR}/{_CUT_PREFIX}{file_name(self.physic_offset)}-{self.time_ms}.json"

    def encode(self) -> bytes:
        """Return the file's bytes."""
        return _dumps({"schema": _CUT_SCHEMA} | self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the cut as a JSON object."""
        return {
            "offset": self.physic_offset,
            "end": self.end_offset,
            "reason": self.reason,
            "time_ms": self.time_ms,
            "epochs": [
                {"epoch": epoch, "from": start, "to": end} for epoch, start, end in self.epochs
            ],
            "messages": dict(self.messages),
            "unread_from": self.unread_from,
            "files": list(self.saved_paths),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LogCut:
        """Read what ``to_json`` returned.  Raises KeyError, TypeError or ValueError."""
        unread_from = value.get("unread_from")  # earlier versions do not write it
        return cls(
            physic_offset=_whole(value["offset"]),
            end_offset=_whole(value["end"]),
            reason=str(value["reason"]),
            time_ms=_whole(value["time_ms"]),
            epochs=tuple(
                EpochSpan(_whole(span["epoch"]), _whole(span["from"]), _whole(span["to"]))
                for span in value["epochs"]
            ),
            messages=_counts(value["messages"]),
            saved_paths=tuple(map(str, value["files"])),
            unread_from=None if unread_from is None else _whole(unread_from),
        )


def kept_cuts(disk: Disk, data_dir: str) -> list[LogCut]:
    """Return the cuts that files in ``trimmed/`` describe, oldest first; damaged ones are left out.

    Raises DiskError.
    """
    found = []
    path = f"{data_dir}/{TRIMMED_DIR}"
    for entry in disk.list_dir(path):
        if entry.name.startswith(_CUT_PREFIX):
            try:
                value = loads_object(disk.read_file(f"{path}/{entry.name}"), entry.name)
                found.append(LogCut.from_json(value))
            except (ProtocolError, KeyError, TypeError, ValueError, AttributeError):
                continue
    return sorted(found, key=lambda cut: cut.time_ms)


@final
@attrs.define(eq=False)
class Cuts:
    """The newest cut of a log, and how many a process has made, or finished."""

    last: LogCut | None = None  # perhaps by an earlier process
    count: int = 0
    size: int = 0  # bytes, of all cuts
    refused: HastoreError | None = None  # why the log was not cut where it had to be

    def made(self, cut: LogCut) -> None:
        """Count a cut."""
        self.last, self.refused = cut, None
        self.count += 1
        self.size += cut.size


@final
@attrs.frozen(kw_only=True)
class CutIntent:
    """A cut that is under way, and all that finishing it needs.

    ``kept_store_ms`` is the store time of the last record before the cut, 0 if there is none.
    ``queue_ends`` are the new ends of consume queues (``cut_queues``).  The index's sizes are the
    configuration's: with others its files would not be found.
    """

    cut: LogCut
    kept_store_ms: int
    queue_ends: Mapping[str, int]
    index_slots: int
    index_entries: int

    def store(self, disk: Disk, data_dir: str) -> None:
        """Write the file durably: from now on the cut will be finished.  Raises DiskError."""
        value = {
            "schema": _INTENT_SCHEMA,
            "cut": self.cut.to_json(),
            "queue_ends": dict(self.queue_ends),
        } | {name: getattr(self, name) for name in _NUMBERS}
        write_beside_reserve(disk, f"{data_dir}/{CUT_FILE}", _dumps(value))

    @classmethod
    def load(cls, disk: Disk, data_dir: str) -> CutIntent | None:
        """Return a directory's unfinished cut; None if there is none.

        Raises UnfinishedCutError if the file cannot be understood, DiskError if it cannot be read.
        """
        path = f"{data_dir}/{CUT_FILE}"
        if not disk.exists(path):
            return None
        try:
            value = loads_object(disk.read_file(path), path)
            if value["schema"] != _INTENT_SCHEMA:
                raise ValueError(f"its schema is {value['schema']!r}")
            return cls(
                cut=LogCut.from_json(value["cut"]),
                queue_ends=_counts(value["queue_ends"]),
                **{name: _whole(value[name]) for name in _NUMBERS},
            )
        except (ProtocolError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnfinishedCutError(
                f"{path} says that a cut of this log is not finished, but cannot be read: {error}",
                path=path,
                physic_offset=None,
                hint="copy this directory from another node, or begin again in an empty one",
            ) from error


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _counts(value: Any) -> dict[str, int]:
    return {str(name): _whole(count) for name, count in value.items()}


def _dumps(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
