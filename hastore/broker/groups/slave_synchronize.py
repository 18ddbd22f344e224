"""What a slave copies beside the log: topics, groups, consumer offsets, delay offsets.

::

    the HA link is up --> connect to the master's client port --> is it that master's?
                                                  each second --> 21: topics; both clocks
                                                              --> 201, 43: tables, if changed
                                                              --> 45, 28: delay offsets

    topics, groups     replace the slave's tables (RocketMQ's SlaveSynchronize); then the queues of
                       deleted topics go, and the offsets in them and of deleted groups
    consumer offsets   replace the slave's where the master's have changed; offsets in a topic of
                       which neither node knows anything else go
    delay offsets      kept back until the log up to 28's end is confirmed here and on the disk

A delay offset says that what is below it was delivered.  The delivery is another record, so this
slave must have that record before it may pass the delayed message; the master's end of the log,
asked for after its delay offsets, is behind all of those deliveries.

Without an answer, replication goes on; one line in the log and ``status`` show the reason.  A table
that is malformed or refused is named, and this node's own one stays.

Invariants: nothing is taken from a node but the master of the HA link that is up when the answer
arrives; ``delay_offsets`` never exceeds what this log has delivered.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.broker.groups.copied_tables import (
    read_consumer_offsets,
    read_delay_offsets,
    read_groups,
    read_topics,
)
from hastore.broker.observe.node_status import TableCopies
from hastore.concurrency.tcp import bound_address, describe, peer_address
from hastore.concurrency.wait_notify_object import WaitNotifyObject
from hastore.errors import DiskError, HastoreError, ProtocolError
from hastore.ha.client_port import PortKind, own_key
from hastore.ha.client_port_link import open_client_port_link
from hastore.store.json_file import JsonFile
from hastore.store.log.store_directory import DELAY_OFFSET_FILE
from hastore.store.queue.deleted_topics import limit_deleted, lower_deleted
from hastore.topic import SCHEDULE_TOPIC
from hastore.trace import logger
from hastore.wire.config_tables import TABLE_TAG, stored_delay_offsets
from hastore.wire.liberal_json import loads_object
from hastore.wire.remoting_codes import RequestCode, ResponseCode
from hastore.wire.remoting_command import integer_field

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from hastore.broker.clock.clock_readings import ClockReadings
    from hastore.broker.groups.broker_data import BrokerData
    from hastore.broker.groups.copied_tables import CopiedTable
    from hastore.config import SlaveConfig
    from hastore.env.interface import Env
    from hastore.ha.client_port_link import ClientPortLink
    from hastore.store.message_store import MessageStore
    from hastore.tls.tls_contexts import TlsContexts
    from hastore.wire.config_tables import (
        DataVersion,
        DeletedTopic,
        SubscriptionGroupConfig,
        TopicConfig,
    )
    from hastore.wire.remoting_command import RemotingCommand

INTERVAL_S: Final = 1.0
RETRY_MAX_S: Final = 10.0  # RocketMQ's interval
_READ_HERE_SIZE_MAX: Final = 64 * 1024  # a larger answer is read in a thread
_OFFSET_TABLE: Final = "offsetTable"
_DELAY: Final = "delay offsets"
_KEY_HINT: Final = "give this node the key of an admin's account: --access-key-file FILE"
_HINT: Final = "name the master's client port with --master-client HOST:PORT ([ha] master_client)"

_log = logger("broker")


class LinkChangedError(Exception):
    """The HA link has ended: what was asked on it no longer counts."""


class RevivalNeededError(Exception):
    """This node has deleted a topic that its master still has: its consume queues lack records.

    A master that failed before its slaves had copied the deletion follows one of them now.
    ``deleted`` are the deletions that count, ``dispatched_offset`` is how far the log was
    dispatched.
    """

    def __init__(
        self, topic: str, deleted: Mapping[str, DeletedTopic], dispatched_offset: int
    ) -> None:
        super().__init__(f"the master has not deleted topic {topic}")
        self.topic = topic
        self.deleted = dict(deleted)
        self.dispatched_offset = dispatched_offset


@final
@attrs.define(eq=False)
class _Copy:
    """One table, what the master sent last, and what was wrong with it."""

    name: str
    code: RequestCode
    read: Callable[[bytes], CopiedTable[Any]]
    take: Callable[[CopiedTable[Any]], int]  # returns how many rows found no room
    has_unversioned_changes: bool = False  # a stock master's version may stay as rows change
    version: DataVersion | None = None
    tag: str | None = None  # of the connection's last answer
    left_out: int = 0

    def take_over(self, table: CopiedTable[Any]) -> None:
        """Take the master's table unless it is the version taken last."""
        is_same = table.version is not None and table.version == self.version
        if is_same and not self.has_unversioned_changes:
            return
        left_out = len(table.left_out) + self.take(table)
        if left_out and left_out != self.left_out:
            _log.warning(
                "table_rows_left_out",
                table=self.name,
                rows=left_out,
                examples=table.left_out[:3],
                reason="hastore does not allow their names, or the offsets of former masters left"
                " no room",
            )
        self.left_out, self.version = left_out, table.version


@final
@attrs.define(eq=False, kw_only=True)
class SlaveSynchronize:
    """Copies the tables of one slave's master; ``data`` is loaded before ``run``."""

    env: Env
    config: SlaveConfig
    message_store: MessageStore
    data: BrokerData
    # The HA link while it is up and in step, the same object as long as it lasts; else None.
    live_link: Callable[[], object | None]
    confirm_offset: Callable[[], int]
    clocks: ClockReadings  # what the master's clock says
    dispatched_offset: Callable[[], int]
    # Removes the queues of deleted topics; is given what returns the table of all.
    delete_queues: Callable[[Callable[[], Mapping[str, DeletedTopic]]], Awaitable[None]]
    tls: TlsContexts | None = None
    uses_default_port: bool = True  # False: without ``config.master_client`` nobody is asked
    delay_offsets: dict[int, int] = attrs.field(factory=dict, init=False)  # as in the file
    _file: JsonFile = attrs.field(init=False)
    _stored: dict[str, Any] = attrs.field(factory=dict, init=False)  # what the file holds
    _copies: tuple[_Copy, ...] = attrs.field(init=False)
    _deleted: Mapping[str, DeletedTopic] | None = attrs.field(default=None, init=False)  # removed
    _has_lowered: bool = attrs.field(default=False, init=False)  # deletions, not yet on disk
    # The master's delay offsets, and the end that this log must have before they count.
    _waiting: tuple[dict[int, int], int] | None = attrs.field(default=None, init=False)
    _refused: dict[str, str] = attrs.field(factory=dict, init=False)  # by table
    _reason: str | None = attrs.field(default=None, init=False)
    _hint: str | None = attrs.field(default=None, init=False)
    _last_round: float | None = attrs.field(default=None, init=False)
    _awaited: list[trio.Event] = attrs.field(factory=list, init=False)  # by a round to come
    _wake: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)

    def __attrs_post_init__(self) -> None:
        """List the tables."""
        data = self.data
        self._file = JsonFile(
            self.env.disk, f"{self.config.store.data_dir.rstrip('/')}/{DELAY_OFFSET_FILE}"
        )
        self._copies = (
            _Copy("topics", RequestCode.GET_ALL_TOPIC_CONFIG, read_topics, self._take_topics),
            _Copy(
                "groups",
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
                read_groups,
                self._take_groups,
            ),
            _Copy(
                "consumer offsets",
                RequestCode.GET_ALL_CONSUMER_OFFSET,
                read_consumer_offsets,
                self._take_offsets,
                has_unversioned_changes=True,
            ),
        )
        data.topics.deletion_watchers.append(self._topic_deleted)

    @property
    def address(self) -> tuple[str, int] | None:
        """Where the master is asked; None: nowhere."""
        if self.config.master_client is not None:
            return self.config.master_client
        host, ha_port = self.config.master
        return (host, ha_port - 1) if self.uses_default_port and ha_port > 1 else None

    def status(self) -> TableCopies | None:
        """Return a snapshot; None if nobody is asked."""
        if self.address is None:
            return None
        last = self._last_round
        return TableCopies(
            address=describe(self.address),
            reason=self._reason,
            hint=self._hint,
            age_s=None if last is None else trio.current_time() - last,
            refused=dict(self._refused),
            delay_offsets_wait=self._waiting is not None,
        )

    async def copy_now(self) -> None:
        """Wait for a whole round that begins now; for ever where nothing can be copied."""
        done = trio.Event()
        self._awaited.append(done)
        self._wake.wakeup()
        await done.wait()

    async def run(self) -> None:
        """Copy while there is a link, until cancelled."""
        address = self.address
        if address is None:
            return
        self.data.offsets.follow()
        self._stored = await self.env.offload.run(self._file.load)
        stored = stored_delay_offsets(self._stored)
        self.delay_offsets = {level: offset for level, offset in stored.items() if offset}
        pause_s, last_link = INTERVAL_S, None
        while True:
            link = self.live_link()
            if link is None:
                await trio.sleep(INTERVAL_S)
                continue
            if link is not last_link:
                pause_s, last_link, self._waiting = INTERVAL_S, link, None
            try:
                await self._follow(address, link)
            except LinkChangedError:
                continue
            except (HastoreError, OSError) as error:
                self._record(error)
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    def _record(self, error: HastoreError | OSError) -> None:
        """Show why nothing is copied; log each reason once."""
        reason = str(error)
        hint = (error.hint if isinstance(error, HastoreError) else None) or _HINT
        if reason != self._reason:
            _log.info("tables_not_copied", master=describe(self.address), reason=reason, next=hint)
        self._reason, self._hint = reason, hint

    # -- one connection --------------------------------------------------------------------------

    async def _follow(self, address: tuple[str, int], link: object) -> None:
        """Ask on one connection until it or the HA link ends; always raises."""
        async with open_masters_port(self.env, self.config, address, self.tls) as port:
            for copy in self._copies:
                copy.tag = copy.version = None
            while True:
                awaited = tuple(self._awaited)
                for copy in self._copies:
                    await self._copy(port, copy, link)
                await self._delete_queues()
                await self._copy_delay_offsets(port, link)
                for done in awaited:
                    done.set()
                    self._awaited.remove(done)
                if self._last_round is None or self._reason is not None:
                    _log.info("tables_copied", master=describe(address))
                self._reason = self._hint = None
                self._last_round = trio.current_time()
                with trio.move_on_after(INTERVAL_S):
                    await self._wake.wait_for_running()
                self._check_link(link)

    def _check_link(self, link: object) -> None:
        if self.live_link() is not link:
            raise LinkChangedError

    async def _ask(
        self, port: ClientPortLink, code: RequestCode, link: object, tag: str | None = None
    ) -> RemotingCommand:
        """Return an answer that came while the link was still the same."""
        fields = {} if tag is None else {TABLE_TAG: tag}
        asked_at_ms = self.env.wall_clock.boot_s() * 1000
        if code is RequestCode.GET_ALL_TOPIC_CONFIG:  # asked in each round
            fields |= self.clocks.fields()
        answer = await port.ask(code, fields)
        self._check_link(link)
        self.clocks.hear(
            f"the master at {describe(port.address)}",
            peer_address(port.sock)[0],  # the configured one may be a name
            answer.ext_fields,
            own_host=bound_address(port.sock)[0],
            asked_at_ms=asked_at_ms,
        )
        return answer

    # -- topics, groups, consumer offsets --------------------------------------------------------

    async def _copy(self, port: ClientPortLink, copy: _Copy, link: object) -> None:
        answer = await self._ask(port, copy.code, link, copy.tag)
        tag = answer.ext_fields.get(TABLE_TAG)
        if answer.code == ResponseCode.SUCCESS and copy.tag is not None and tag == copy.tag:
            return
        copy.tag = None
        try:
            check_answer(answer)
            table = await self._read(copy.read, answer.body)
        except ProtocolError as error:
            self._refuse(copy.name, error)
            return
        self._check_link(link)
        copy.take_over(table)
        copy.tag = tag if isinstance(tag, str) else None
        self._accept(copy.name)

    # -- what was deleted ------------------------------------------------------------------------

    async def before_link(self) -> None:
        """Lower deletions that lie behind the end of this log, durably, before it grows again.

        The next link's master may be another one, or have lost its tail: what it sends from here on
        was not deleted, unless it says so itself.  Raises DiskError.
        """
        end, queues = self.message_store.commit_log.max_offset, self.message_store.consume_queues
        queues.deleted = limit_deleted(queues.deleted, end)
        if self.data.topics.limit_deletions(end):
            self._has_lowered = True
        if self._has_lowered:
            await self.data.topics_file.persist()
            self._has_lowered = False

    def _take_topics(self, table: CopiedTable[TopicConfig]) -> int:
        """Take all of the master's topics.  Raises RevivalNeededError, with nothing changed."""
        topics, log = self.data.topics, self.message_store.commit_log
        merged = topics.merged_deletions(table.rows, table.deleted_topics)
        dispatched, queues = self.dispatched_offset(), self.message_store.consume_queues
        for name, own in queues.deleted.items():
            masters = merged.get(name)
            if masters is None and name not in table.rows:
                continue  # the master has neither: there was no room for our own
            begin = max(0 if masters is None else masters.log_offset, log.min_offset)
            if begin < min(own.log_offset, dispatched):
                raise RevivalNeededError(name, merged, dispatched)
        # Now, not with the others: what is dispatched until then would be missing.
        queues.deleted = lower_deleted(queues.deleted, merged)
        gone: set[str] = set()
        if table.deleted_topics is not None:
            # A master keeps no record of the deletion of a topic that never had a message.
            with_messages = {queue.topic for queue in queues}
            gone = topics.topics.keys() - table.rows.keys() - merged.keys() - with_messages
            # It may have forgotten them, not deleted: pulls that wait there go on waiting.
            forgotten = {name for name in gone if topics.topics[name].auto_created}
            self._forget_offsets(forgotten)
            gone -= forgotten
        topics.copy(table.rows, table.version, table.deleted_topics, gone)
        return 0

    def _take_groups(self, table: CopiedTable[SubscriptionGroupConfig]) -> int:
        groups, deleted = self.data.groups, table.deleted_groups or {}
        new = {name for name in deleted if deleted[name] != groups.deleted.get(name)}
        groups.copy(table.rows, table.version, table.deleted_groups)
        if new:
            self.data.offsets.forget_groups(new)
            self._read_offsets_again()
        return 0

    def _take_offsets(self, table: CopiedTable[dict[int, int]]) -> int:
        """Take the master's offsets, and remove others in topics that do not exist.

        The master may have removed them without a record: a crash as it deleted a topic without
        messages, or consumers that still ran, have left them there, and this slave has copied them.
        """
        data = self.data
        without_room = data.offsets.copy(table.rows, table.version)
        unknown = data.offsets.topics_beside(table.rows) - data.topics.topics.keys()
        if unknown:
            unknown -= {queue.topic for queue in self.message_store.consume_queues}
            data.offsets.forget_beside(table.rows, unknown)
        return without_room

    def _topic_deleted(self, topic: str) -> None:
        self._forget_offsets({topic})

    def _forget_offsets(self, topics: set[str]) -> None:
        self.data.offsets.forget_topics(dict.fromkeys(topics))
        self._read_offsets_again()

    def _read_offsets_again(self) -> None:
        """Take the whole table next: some offsets may have been committed after a deletion."""
        offsets = self._copies[-1]
        offsets.tag = offsets.version = None

    async def _delete_queues(self) -> None:
        """Remove the queues of topics that the master has deleted.  Raises DiskError."""
        deleted = self.data.topics.deleted
        queues = self.message_store.consume_queues
        is_in_force = deleted == queues.deleted and not queues.has_undeleted
        if deleted is not self._deleted and not is_in_force:
            await self.data.topics_file.persist()

            def still() -> Mapping[str, DeletedTopic]:
                if deleted is not self.data.topics.deleted:
                    raise LinkChangedError  # ``before_link`` has lowered them meanwhile
                return deleted

            await self.delete_queues(still)
        self._deleted = deleted

    async def _read(self, read: Callable[[bytes], Any], body: bytes) -> Any:
        if len(body) <= _READ_HERE_SIZE_MAX:
            return read(body)
        return await self.env.offload.run(partial(read, body))

    def _refuse(self, table: str, error: ProtocolError) -> None:
        """Show why a table is not taken; log each reason once."""
        reason = str(error)
        if self._refused.get(table) != reason:
            _log.warning("table_refused", table=table, master=describe(self.address), reason=reason)
        self._refused[table] = reason

    def _accept(self, table: str) -> None:
        self._refused.pop(table, None)

    # -- delay offsets ---------------------------------------------------------------------------

    async def _copy_delay_offsets(self, port: ClientPortLink, link: object) -> None:
        if self._waiting is None:
            try:
                self._waiting = await self._ask_delay_offsets(port, link)
            except ProtocolError as error:
                self._refuse(_DELAY, error)
                return
            self._accept(_DELAY)
        if self._waiting is None:
            return
        offsets, end = self._waiting
        if min(self.confirm_offset(), self.message_store.commit_log.flushed_offset) < end:
            return
        self._waiting = None
        await self._store(self._limited(offsets))

    async def _ask_delay_offsets(
        self, port: ClientPortLink, link: object
    ) -> tuple[dict[int, int], int] | None:
        """Return news of the master, and the end of the log below which its deliveries are."""
        answer = await self._ask(port, RequestCode.GET_ALL_DELAY_OFFSET, link)
        check_answer(answer)
        offsets = read_delay_offsets(answer.body)
        if self._limited(offsets) == self.delay_offsets:
            return None
        answer = await self._ask(port, RequestCode.GET_BROKER_RUNTIME_INFO, link)
        check_answer(answer)
        table = loads_object(answer.body, "the runtime info").get("table")
        if not isinstance(table, dict):
            msg = "the runtime info has no table"
            raise ProtocolError(msg)
        return offsets, integer_field(table, "commitLogMaxOffset", bits=64)

    def _limited(self, offsets: Mapping[int, int]) -> dict[int, int]:
        """Return our offsets with the master's, each at most the end of our queue."""
        end_of = self.message_store.max_offset_in_queue
        both = {**self.delay_offsets, **offsets}
        limited = {
            level: min(offset, end_of(SCHEDULE_TOPIC, level - 1)) for level, offset in both.items()
        }
        return {level: offset for level, offset in limited.items() if offset}

    async def _store(self, offsets: dict[int, int]) -> None:
        """Write the file; a failed write is repeated in the next round."""
        if offsets == self.delay_offsets:
            return
        table = {str(level): offsets[level] for level in sorted(offsets)}
        value = {**self._stored, _OFFSET_TABLE: table}
        try:
            await self.env.offload.run(lambda: self._file.store(value))
        except DiskError as error:
            self._refuse(_DELAY, ProtocolError(f"not stored: {error}"))
            return
        self._stored, self.delay_offsets = value, offsets


@contextlib.asynccontextmanager
async def open_masters_port(
    env: Env, config: SlaveConfig, address: tuple[str, int], tls: TlsContexts | None
) -> AsyncIterator[ClientPortLink]:
    """Connect to the client port of the HA link's master, with this node's key, for a block.

    Raises ProtocolError if it is not that master's, ConfigError, UnreachableError, TlsError,
    OSError.
    """
    access, key = config.access, None
    if access.key_file is not None:
        key = await env.offload.run(lambda: own_key(access, env))
    client_tls = None if tls is None else tls.client
    async with open_client_port_link(address, key, client_tls) as port:
        await _check_master(port, config)
        yield port


async def _check_master(port: ClientPortLink, config: SlaveConfig) -> None:
    """Raise ProtocolError if the port is not that of the HA link's master."""
    found, named = await port.identify(), describe(port.address)
    if found is None:
        msg = f"{named} does not answer as a client port"
        raise ProtocolError(msg, hint=_HINT)
    if found.denial is not None:
        raise ProtocolError(f"{named}: {found.denial}", hint=_KEY_HINT)
    if found.kind is not PortKind.NODE or found.master is not None:
        msg = f"{named} is not a master's client port"
        raise ProtocolError(msg, hint=_HINT)
    # A port that the user has named may be mapped: then the master knows another HA port.
    if config.master_client is None and found.ha_port != config.master[1]:
        msg = f"{named} belongs to another node: its HA port is {found.ha_port or 'not known'}"
        raise ProtocolError(msg, hint=_HINT)


def check_answer(answer: RemotingCommand) -> None:
    """Raise ProtocolError for an answer that is not a success: an old master's, perhaps."""
    if answer.code != ResponseCode.SUCCESS:
        remark = answer.remark or "no reason given"
        msg = f"the master answered with {answer.code}: {remark:.200}"
        raise ProtocolError(msg)
