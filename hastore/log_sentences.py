"""Log events as sentences, for people: every event that a node logs has one.

A sentence is made of the event's name and pairs::

    ha_slave_connected  slave=127.0.0.1:41234 at=0
    →   slave 127.0.0.1:41234 connected, at offset 0

A template names pairs in braces; ``{size:size}`` prints a size.  Of several templates the first one
whose pairs all have a value counts.  A pair that it does not name follows in brackets, unless
``_UNSAID`` lists it.  ``next`` is the next step, on a line of its own.  An event without a template
is its name in words, and its pairs.
"""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any, Final

from hastore.quantities import format_duration, format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SENTENCES: Final[Mapping[str, tuple[str, ...]]] = {
    # -- starting and stopping -------------------------------------------------------------------
    "master_serving": (
        "listening for slaves on {ha_address}, for clients on {address}",
        "listening for slaves on {ha_address}",
    ),
    "slave_serving": ("slave of {master}, its log ends at {at}",),
    "metrics_serving": ("metrics and health: {scheme}://{address}/metrics",),
    "ready": (
        (
            "ready: {role} {name}, clients {address}, slaves {ha_address}; log {data} ends at"
            " {max_offset}"
        ),
        "ready: {role} {name}, clients {address}; log {data} ends at {max_offset}",
        "ready: {role} {name}; log {data} ends at {max_offset}",
    ),
    "stopping": ("stopping ({signal})",),
    "few_open_files": ("{limit} open files are allowed; all connections may need {wanted}",),
    "node_file_written": ("node.json is there now: {data} names this node",),
    "node_file_not_written": ("node.json was not written, so name this node by address: {reason}",),
    "last_flush_failed": ("the flush at the stop failed: {reason}",),
    "flushed_with_retries": (
        (
            "the flush at the stop took {retries} more passes: flushed up to {flushed},"
            " {left} bytes left"
        ),
    ),
    "close_failed": ("a file could not be closed cleanly: {reason}",),
    # -- the store at its start ------------------------------------------------------------------
    "log_loaded": ("log opened: offsets {min_offset} to {max_offset}",),
    "recovering": (
        (
            "recovering, {step}: {done_bytes:size} of {total_bytes:size} ({percent} %),"
            " {bytes_per_s:size}/s, about {left_s:time} left"
        ),
        "recovering, {step}: {done_bytes:size} of {total_bytes:size} ({percent} %)",
    ),
    "torn_tail_trimmed": (
        (
            "the log's end was torn: {size} bytes from offset {physic_offset} on ({kind}, topic"
            " {topic}) moved to {saved}"
        ),
        (
            "the log's end was torn: {size} bytes from offset {physic_offset} on ({kind}) moved to"
            " {saved}"
        ),
    ),
    "log_cut": (
        (
            "cut the log at offset {physic_offset}, because {reason}: {size} bytes of epoch"
            " {epochs} moved to {saved}; messages among them: {messages}"
        ),
        (
            "cut the log at offset {physic_offset}, because {reason}: {size} bytes moved to"
            " {saved}; messages among them: {messages}"
        ),
        "cut the log at offset {physic_offset}, because {reason}: {size} bytes moved to {saved}",
    ),
    "foreign_file_ignored": ("{path} holds {name}, which is not a log file: ignored",),
    "foreign_files_ignored": ("{path} holds {count} files that do not belong there: {names}",),
    "empty_file_removed": ("removed {path}: {reason}",),
    "checkpoint_unreadable": ("{path} cannot be read ({size} bytes): starting without it",),
    "checkpoint_damaged": ("{path} is damaged: using {used}",),
    "checkpoint_not_written": ("the checkpoint was not written: {reason}",),
    "queue_offsets_of_deleted_records_unknown": ("the log begins at {min_offset}: {reason}",),
    "json_file_unreadable": ("{path} cannot be read ({reason}): {instead}",),
    "config_file_refused": ("the configuration of topics or groups was not written: {reason}",),
    "reply_topic_refused": ("this node has no reply topic, so no request-reply: {reason}",),
    "table_rows_ignored": ("{rows} rows of {table} are ignored; the first is {first}: {reason}",),
    "consume_queue_damaged": (
        (
            "consume queue {topic}/{queue_id} is damaged ({reason}): built again from offset"
            " {rebuild_from} on"
        ),
    ),
    "consume_queue_file_size_kept": (
        "{path} keeps its file size of {file_size} bytes instead of the configured {configured}",
    ),
    "index_stray_file": ("{path} is not an index file: {next}",),
    "index_file_of_another_size": ("{path} has {size} bytes instead of {wanted}: {next}",),
    "index_header_damaged": ("{path} has a damaged header: {next}",),
    "index_file_removed": ("an index file was removed ({reason}): {next}",),
    "index_cut": (
        (
            "{path}: {entries} entries after the log's end were removed; indexing from offset"
            " {redispatch_from} on"
        ),
    ),
    # -- disk and flush --------------------------------------------------------------------------
    "commit_failed": ("writing buffers to the log failed, committed up to {committed}: {reason}",),
    "next_file_failed": ("the next log file cannot be made: {reason}",),
    "next_file_made_again": ("the next log file could be made at last: {file_from_offset}",),
    "file_lost": ("this node stops: {reason}",),
    "disk_full": (
        "the disk of {path} is {used_percent} % full: puts are refused until there is room",
    ),
    "disk_has_room_again": (
        "the disk of {path} has room again ({used_percent} % full): puts are taken",
    ),
    "write_buffers_not_locked": ("write buffers are not locked in memory ({reason}): {effect}",),
    "no_write_buffer": ("no write buffer is free ({reason}): {effect}",),
    "mapped_files_not_locked": ("log files are not locked in memory ({reason}): {effect}",),
    "warm_up_writes_zeros": ("the warm-up writes zeros: {reason}",),
    # -- dispatch and delays ---------------------------------------------------------------------
    "dispatching": (
        (
            "dispatching the log as of the start: {done_bytes:size} of {total_bytes:size}"
            " ({percent} %), {bytes_per_s:size}/s, about {left_s:time} left"
        ),
        (
            "dispatching the log as of the start: {done_bytes:size} of {total_bytes:size}"
            " ({percent} %)"
        ),
    ),
    "dispatch_jumps": ("consume queues go on at offset {to}, where the log begins",),
    "bad_record_skipped": ("the record at offset {physic_offset} is damaged ({kind}): skipped",),
    "dispatch_stopped": (
        (
            "the log cannot be read at offset {physic_offset} ({reason}): consumers see nothing"
            " after it"
        ),
    ),
    "dispatch_cannot_write": ("consume queues or index cannot be written, retrying: {reason}",),
    "inner_batches_have_no_consume_queue": (
        "topic {topic} has inner batches, which consumers will not see: {reason}",
    ),
    "record_in_no_consume_queue": (
        (
            "the record at offset {physic_offset} is in no queue ({topic}/{queue_id} at"
            " {queue_offset}): {reason}"
        ),
    ),
    "tables_copied": ("topics, groups and offsets are copied from the master at {master}",),
    "tables_not_copied": (
        "topics, groups and offsets are not copied from the master at {master}: {reason}",
    ),
    "name_server_registered": (
        "registered at the name server {name_server} as {broker}, broker id {broker_id}",
    ),
    "name_server_unusable": (
        "not registered at the name server {name_server}, trying again: {reason}",
    ),
    "table_refused": ("the {table} of the master at {master} are not taken over: {reason}",),
    "records_set_aside": (
        "{records} records behind damage in {path} ({bytes:size}) are in no queue any more",
    ),
    "table_rows_left_out": (
        "{rows} of the master's {table} are left out: {reason}; for example {examples}",
    ),
    "consumer_offsets_corrected": ("{offsets} consumer offsets were lowered: {reason}",),
    "delay_offset_corrected": (
        "delay level {level} was at {stored}, outside its queue: going on at {to}",
    ),
    "delay_longer_than_retention": (
        (
            "the longest delay ({delay_h} h) is not below [store] keep ({file_reserved_time_h} h):"
            " {effect}"
        ),
    ),
    "delayed_messages_expired": (
        "{messages} delayed messages of level {level} are lost: {reason}",
    ),
    "delayed_message_dropped": (
        "the delayed message at offset {physic_offset} (level {level}) is dropped: {reason}",
    ),
    "delivery_waits": ("delivery of delayed messages of level {level} waits: {reason}",),
    "delay_offsets_not_stored": ("delayOffset.json was not written: {reason}",),
    # -- expiry ----------------------------------------------------------------------------------
    "file_deleted": (
        "deleted {path} ({reason}), which was still needed by {held_by}",
        "deleted {path} ({reason})",
    ),
    "queue_and_index_files_deleted": (
        "deleted {files} queue and index files of offsets before {before}",
    ),
    "expired_file_held": (
        "the expired file at {file_from_offset} is kept for {holders}, {at_most_ms} ms at most",
    ),
    "expired_file_not_archived": (
        "the expired file at {file_from_offset} is kept until it is archived: {reason}",
    ),
    "cleaning_failed": ("expired files cannot be deleted: {reason}",),
    # -- replication: the master's side ----------------------------------------------------------
    "ha_slave_connected": ("slave {slave} connected, at offset {at}",),
    "ha_slave_gone": ("slave {slave} is gone: {reason}",),
    "ha_slave_trusted": ("slave {slave} is served from offset {at} on, as --trust says",),
    "ha_slave_refused": ("refused slave {slave}: {reason}",),
    "ha_read_failed": ("the log cannot be read for slave {slave}: {reason}",),
    "ha_peer_refused": ("refused {peer} at the HA port: {reason}",),
    # -- replica groups --------------------------------------------------------------------------
    "epoch_begins": ("epoch {epoch} begins at offset {at}; the SyncStateSet is {members}",),
    "role_changes": ("the role changes: {reason}",),
    "promotion_failed": ("this node did not become master: {reason}",),
    "role_refused": ("a change of the role is refused: {reason}",),
    # -- replication: the slave's side -----------------------------------------------------------
    "ha_connected": ("connected to master {master}",),
    "ha_copying": (
        (
            "copying from {master}: {copied_bytes:size} of {total_bytes:size} ({percent} %),"
            " {bytes_per_s:size}/s, about {left_s:time} left"
        ),
        "copying from {master}: {copied_bytes:size} of {total_bytes:size} ({percent} %)",
        "copying from {master}: {copied_bytes:size} so far, {bytes_per_s:size}/s",
    ),
    "ha_in_step": ("in step with {master} at offset {at}",),
    "masters_file_size_taken": (
        "this slave's log files take the size of its master's: {file_size:size}",
    ),
    "ha_link_broken": ("no link to the master, trying again: {reason}",),
    "ha_gave_up": ("replication has stopped ({state}): {reason}",),
    "master_file_size_differs": (
        "the master's log files are not of {own} bytes, as here; stored up to {stored_until}",
    ),
    "masters_log_is_damaged": (
        "the record at offset {physic_offset} is damaged on master {master}, too; going on",
    ),
    # -- clients ---------------------------------------------------------------------------------
    "client_refused": ("refused client {peer}: {reason}",),
    "quota_used_up": ("refused a request of {peer}: {reason}",),
    "unused_topics_forgotten": (
        "the table of topics was full: forgot {topics} that were never used, {examples} …",
    ),
    "access_denied": ("refused request {code} of {peer}, {kind}: {reason}",),
    "audit": (
        "{who} at {peer}: {action} ({what}) is {outcome}: {reason}",
        "{who} at {peer}: {action} ({what}) is {outcome}",
        "{who} at {peer}: {action} is {outcome}: {reason}",
        "{who} at {peer}: {action} is {outcome}",
        "{who}: {action} ({what}) is {outcome}: {reason}",
        "{who}: {action} ({what}) is {outcome}",
        "{who}: {action} is {outcome}",
    ),
    "permissions_taken": ("{accounts} access keys of {file} are in force now",),
    "permissions_not_taken": ("the permissions stay as they were: {reason}",),
    "own_key_not_read": ("this node's own access key stays as it was: {reason}",),
    "certificate_taken": ("{certificate} is in force now, until {not_after}",),
    "certificate_not_taken": ("the certificate stays as it was: {reason}",),
    "certificate_withdrawn": ("{crl} names the certificates of {links} connections: {peers}",),
    "coordinator_files_taken": ("{files} are in force now",),
    "coordinator_files_not_taken": (
        "etcd still gets the former certificate and password: {reason}",
    ),
    "reloaded": (
        "reloaded {taken}; not taken: {not_taken}",
        "reloaded {taken}",
        "nothing was reloaded; not taken: {not_taken}",
        "there is nothing to reload: neither permissions nor a certificate",
    ),
    "ports_exposed": ("other machines may reach {ports}: {reason}",),
    "ha_names_without_ids": ("{reason}",),
    "metrics_refused": ("refused {peer} at the metrics port: {reason}",),
    "metrics_failed": ("a page of the metrics port failed",),
    "queue_offset_moved": ("{topic}/{queue_id} holds no message at {asked}: going on at {next}",),
}

# Pairs for programs, which people at a terminal do not need.
_UNSAID: Final[Mapping[str, frozenset[str]]] = {
    "master_serving": frozenset({"max_offset"}),
    "log_loaded": frozenset(
        {"records", "last_exit_ok", "redispatch_from", "written_again", "files"}
    ),
    "torn_tail_trimmed": frozenset({"sound_offset"}),
    "log_cut": frozenset({"end_offset"}),
    "dispatch_jumps": frozenset({"start"}),
    "ha_connected": frozenset({"at"}),
    "ha_link_broken": frozenset({"master"}),
    "ha_copying": frozenset({"at", "end", "bytes_per_s"}),
    "masters_file_size_taken": frozenset({"master"}),
    "ha_slave_refused": frozenset({"kind"}),
    "ha_peer_refused": frozenset({"kind"}),
    "client_refused": frozenset({"kind"}),
    "quota_used_up": frozenset({"kind"}),
    "metrics_refused": frozenset({"kind"}),
}
# Pairs of the record, not of the event; "more" and "others" are counts of lines left out.
_META: Final = frozenset(
    {"part", "level", "logger", "timestamp", "exc_info", "next", "more", "others"}
)
_SECONDS_MAX: Final = 120  # above it the unit is minutes
_FORMATTER: Final = string.Formatter()


def sentence_of(event: str, pairs: Mapping[str, Any]) -> str:
    """Return ``event`` as one sentence without a capital and a full stop."""
    known = {name: value for name, value in pairs.items() if _has_value(value)}
    for template in SENTENCES.get(event, ()):
        fields = fields_of(template)
        if fields <= known.keys():
            text = _FORMATTER.vformat(template, (), {n: _Value(known[n]) for n in fields})
            unsaid = fields | _UNSAID.get(event, frozenset())
            break
    else:
        if " " not in event:  # a name; other libraries log sentences
            event = event.replace("_", " ")
        text, unsaid = event, frozenset()
    left = {n: v for n, v in known.items() if n not in unsaid and n not in _META}
    said = ", ".join(f"{name.replace('_', ' ')} {_Value(value)}" for name, value in left.items())
    if said:
        text += f" ({said})" if event in SENTENCES else f": {said}"
    return text + "".join(f"; {part}" for part in _left_out(known))


def next_of(event: str, pairs: Mapping[str, Any]) -> str | None:
    """Return the next step, if there is one and the sentence does not say it."""
    step = pairs.get("next")
    says_it = any("next" in fields_of(template) for template in SENTENCES.get(event, ()))
    return None if step is None or says_it else str(step)


def fields_of(template: str) -> frozenset[str]:
    """Return the names of the pairs that a template prints."""
    return frozenset(name for _, name, _, _ in _FORMATTER.parse(template) if name)


def _has_value(value: object) -> bool:
    return value is not None and value not in ([], (), {}, "-")  # "-": no address


def _left_out(pairs: Mapping[str, Any]) -> Iterator[str]:
    if pairs.get("more"):
        yield f"{pairs['more']} more like it from there"
    if pairs.get("others"):
        yield f"{pairs['others']} more lines were left out"


class _Value:
    """A pair's value; a template prints it plain, as a ``size`` (bytes) or a ``time`` (seconds)."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __format__(self, spec: str) -> str:
        if isinstance(self.value, str):
            return self.value
        match spec:
            case "size":
                return format_size(self.value)
            case "time" if self.value < _SECONDS_MAX:
                return f"{self.value:.0f} s"
            case "time":
                return format_duration(self.value)
            case _:
                return str(self)

    def __str__(self) -> str:
        if isinstance(self.value, list | tuple):
            return ", ".join(map(str, self.value))
        if isinstance(self.value, dict):
            return ", ".join(f"{name} {value}" for name, value in self.value.items())
        return str(self.value)
