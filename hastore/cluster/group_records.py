"""What a replica group keeps in its coordinator: the keys, and their values as JSON.

Below ``PREFIX/CLUSTER/GROUP/``::

    leader          lease   who is master, of which epoch; gone: an election
    state           -       the epoch, its master, the SyncStateSet; by compare-and-swap only
    ids/ID          -       the directory of a node, and its newest start
    members/ID      lease   what a node says of itself; gone: it is down, or cut off
    history/EPOCH   -       how the epoch began
    config          -       what a person wishes: pause, switchover; and the alarm

A node in a set is an ``Incarnation``: an id alone would not say whether the directory behind it is
the one that acknowledged, nor whether it lost its page cache since.

Invariant: any bytes decode to a value or to a ProtocolError that names the key.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, final

import attrs

from hastore.config import NODE_ID_MAX
from hastore.epoch_history import EPOCH_MAX
from hastore.errors import ProtocolError
from hastore.quantities import parse_address
from hastore.store.node_identity import Unverified
from hastore.wire.liberal_json import loads_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.cluster.key_value_store import KeyValue, Snapshot

_NUMBER_MAX: Final = (1 << 63) - 1
_TEXT_SIZE_MAX: Final = 1_024
_MEMBERS_MAX: Final = 64
# A new leader of etcd lets each lease live a ttl and an election time-out, at most two thirds of a
# ttl, from then on.  Two of them, each just before a lease would end, make it 1 + 2 * 5/3 = 4.33.
LEASES_WAITED: Final = 5
_NODE_ID: Final = re.compile("[1-9][0-9]{0,18}")
DAMAGED_HINT: Final = "hastore cluster status says what to do about it"


# -- fields --------------------------------------------------------------------------------------


@final
@attrs.frozen
class _Fields:
    """The fields of one value; each method raises ProtocolError for what is missing or wrong."""

    what: str
    values: Mapping[str, Any]

    def number(self, name: str, low: int = 0, high: int = _NUMBER_MAX) -> int:
        value = self.values.get(name)
        if type(value) is not int or not low <= value <= high:
            raise ProtocolError(f"{self.what}: {name} is {value!r:.100}, not {low} to {high}")
        return value

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if not isinstance(value, str) or len(value) > _TEXT_SIZE_MAX:
            raise ProtocolError(f"{self.what}: {name} is {value!r:.100}, not a short text")
        return value

    def optional_number(self, name: str) -> int | None:
        return None if self.values.get(name) is None else self.number(name)

    def optional_text(self, name: str) -> str | None:
        return None if self.values.get(name) is None else self.text(name)

    def address(self, name: str) -> str:
        text = self.text(name)
        try:
            parse_address(text)
        except ValueError as error:
            raise ProtocolError(f"{self.what}: {name}: {error}") from error
        return text

    def optional_address(self, name: str) -> str | None:
        return None if self.values.get(name) is None else self.address(name)

    def flag(self, name: str) -> bool:
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise ProtocolError(f"{self.what}: {name} is {value!r:.100}, not true or false")
        return value

    def counts(self, name: str) -> dict[str, int]:
        value = self.values.get(name, {})
        if not isinstance(value, dict) or not all(
            isinstance(key, str) and type(count) is int and count >= 0
            for key, count in value.items()
        ):
            raise ProtocolError(f"{self.what}: {name} is {value!r:.100}, not numbers by name")
        return value

    def ids(self, name: str) -> frozenset[int]:
        value = self.values.get(name, [])
        if not isinstance(value, list) or not all(
            type(each) is int and 1 <= each <= NODE_ID_MAX for each in value
        ):
            raise ProtocolError(f"{self.what}: {name} is {value!r:.100}, not ids of nodes")
        return frozenset(value)

    def inner(self, name: str) -> _Fields:
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise ProtocolError(f"{self.what}: {name} is {value!r:.100}, not an object")
        return _Fields(f"{self.what}: {name}", value)

    def unverified(self, name: str) -> Unverified | None:
        if self.values.get(name) is None:
            return None
        fields = self.inner(name)
        begin, end, why = fields.number("begin"), fields.number("end"), fields.text("why")
        try:
            return Unverified(begin=begin, end=end, why=why)
        except ValueError as error:
            raise ProtocolError(f"{fields.what}: {error}") from error

    def incarnations(self, name: str) -> tuple[Incarnation, ...]:
        value = self.values.get(name, [])
        if not isinstance(value, list) or len(value) > _MEMBERS_MAX:
            raise ProtocolError(
                f"{self.what}: {name} is not a list of {_MEMBERS_MAX} nodes at most"
            )
        found = {}
        for each in value:
            if not isinstance(each, dict):
                raise ProtocolError(f"{self.what}: {name} has {each!r:.100}, not a node")
            one = Incarnation.read(_Fields(f"{self.what}: {name}", each))
            found[one.node_id] = one
        if len(found) != len(value):
            raise ProtocolError(f"{self.what}: {name} names a node twice")
        return tuple(found[node_id] for node_id in sorted(found))


def _fields_of(key: str, data: bytes) -> _Fields:
    what = f"the coordinator's key {key}"
    return _Fields(what, loads_object(data, what))


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# -- values --------------------------------------------------------------------------------------


@final
@attrs.frozen(order=True)
class Incarnation:
    """One start of a node on one directory."""

    node_id: int
    uuid: str  # the directory's
    start: int  # counts the starts on it, from 1

    def __str__(self) -> str:
        return f"node {self.node_id}"

    @classmethod
    def read(cls, fields: _Fields) -> Self:
        """Read it."""
        return cls(
            fields.number("id", 1, NODE_ID_MAX), fields.text("uuid"), fields.number("start", 1)
        )

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"id": self.node_id, "uuid": self.uuid, "start": self.start}


@final
@attrs.frozen(kw_only=True)
class Leader:
    """The master of an epoch, while its lease lasts."""

    holder: Incarnation
    epoch: int
    ha_address: str
    client_address: str | None

    @classmethod
    def decode(cls, key: str, data: bytes) -> Self:
        """Read a value.  Raises ProtocolError."""
        fields = _fields_of(key, data)
        return cls(
            holder=Incarnation.read(fields),
            epoch=fields.number("epoch", 1, EPOCH_MAX),
            ha_address=fields.address("ha"),
            client_address=fields.optional_address("client"),
        )

    def encode(self) -> bytes:
        """Return the value."""
        return _encode(
            {
                **self.holder.as_json(),
                "epoch": self.epoch,
                "ha": self.ha_address,
                "client": self.client_address,
            }
        )


@final
@attrs.frozen(kw_only=True)
class GroupState:
    """What the group has agreed on.

    ``epoch`` 0 and no master: it has had none.  ``registered`` are the ids of the group: all that
    have been members, until they are removed; ``members`` are always among them.  ``proposal`` is
    the number of the master's proposal that made this value, by which the master knows its own;
    None: an election or a person did.
    ``confirm_offset`` is a record's end up to which all members had the log when this was written:
    a node whose log ends below it does not campaign.  0 if unknown, as with a number of acks.
    """

    epoch: int
    master: Incarnation | None
    members: tuple[Incarnation, ...]  # the SyncStateSet, by id
    acks: str = "all"  # in_sync_replicas of the master: all, or a number
    proposal: int | None = None
    confirm_offset: int = 0
    registered: frozenset[int] = frozenset()

    def __attrs_post_init__(self) -> None:
        """Register the members."""
        object.__setattr__(self, "registered", self.registered | self.ids)

    @property
    def ids(self) -> frozenset[int]:
        """The members' ids."""
        return frozenset(each.node_id for each in self.members)

    def member(self, node_id: int) -> Incarnation | None:
        """Return a member; None if the node is none."""
        return next((each for each in self.members if each.node_id == node_id), None)

    @classmethod
    def decode(cls, key: str, data: bytes) -> Self:
        """Read a value.  Raises ProtocolError."""
        fields = _fields_of(key, data)
        epoch = fields.number("epoch", 0, EPOCH_MAX)
        has_master = fields.values.get("master") is not None
        if (epoch > 0) is not has_master:
            raise ProtocolError(f"{fields.what}: epoch {epoch} and its master do not fit")
        return cls(
            epoch=epoch,
            master=Incarnation.read(fields.inner("master")) if has_master else None,
            members=fields.incarnations("members"),
            acks=fields.text("acks"),
            proposal=fields.optional_number("proposal"),
            confirm_offset=fields.optional_number("confirm_offset") or 0,
            registered=fields.ids("registered"),
        )

    def encode(self) -> bytes:
        """Return the value."""
        return _encode(
            {
                "epoch": self.epoch,
                "master": None if self.master is None else self.master.as_json(),
                "members": [each.as_json() for each in self.members],
                "acks": self.acks,
                "proposal": self.proposal,
                "confirm_offset": self.confirm_offset,
                "registered": sorted(self.registered),
            }
        )


@final
@attrs.frozen(kw_only=True)
class Registration:
    """The directory of a node id, and its newest start: no other directory may use the id.

    ``nonce`` is the token of that start, which its directory has, too.  A copy of the directory, or
    an older state of it, has another one, although its uuid is the same and it may come to the same
    start.
    """

    uuid: str
    start: int
    nonce: str = ""

    @classmethod
    def decode(cls, key: str, data: bytes) -> Self:
        """Read a value.  Raises ProtocolError."""
        fields = _fields_of(key, data)
        return cls(
            uuid=fields.text("uuid"),
            start=fields.number("start", 1),
            nonce=fields.optional_text("nonce") or "",
        )

    def encode(self) -> bytes:
        """Return the value."""
        return _encode({"uuid": self.uuid, "start": self.start, "nonce": self.nonce})


@final
@attrs.frozen(kw_only=True)
class Member:
    """What a node says of itself while it is up.

    ``end`` may be some seconds old while there is a master; without one, and in an election, it is
    the log's.  ``link`` is its end of its HA link, as its master sees it, so that acks on that link
    are known to be of this start.  ``election`` is the revision of the state for whose election it
    has closed its link to the former master for good, and in which it stands with ``last_epoch``
    and ``end``.
    ``unverified``: messages inside its log may be missing or wrong, and it does not campaign until
    it has compared the log with a master's.  ``can_store`` and ``has_room``: see ``storage``.
    ``disowned_in`` is the last start in which its token was not the coordinator's: its log says
    nothing about what a member has that the state names in an earlier start.
    ``end_epoch`` is the epoch of the log's last byte; it differs from ``last_epoch``, the newest
    that the node has stored, where that epoch begins at the log's end or above it.
    """

    node: Incarnation
    kept_since: int  # the earliest start from which on nothing was lost
    role: str
    last_epoch: int
    end: int
    ha_address: str
    client_address: str | None = None
    priority: int = 0  # among equal ends the higher one wins
    link: str | None = None
    election: int | None = None
    version: str = ""
    unverified: Unverified | None = None
    doubt: str | None = None  # why ``kept_since`` is not an earlier start, for people
    # The machine's boot and the directory's lock file: says that a record was left by a process
    # which has ended, because its successor holds that lock.
    place: str | None = None
    # When it was written, by the node's wall clock; None: by an earlier version.
    at_ms: int | None = None
    can_store: bool = True
    has_room: bool = False
    ttl_s: int | None = None  # of the lease that the record has; None: by an earlier version
    disowned_in: int | None = None
    end_epoch: int = attrs.field(
        default=attrs.Factory(lambda self: self.last_epoch, takes_self=True)
    )

    @property
    def log_rank(self) -> tuple[int, int]:
        """What says which of two logs is newer: the larger one."""
        return self.end_epoch, self.end

    @classmethod
    def decode(cls, key: str, data: bytes) -> Self:
        """Read a value.  Raises ProtocolError."""
        fields = _fields_of(key, data)
        return cls(
            node=Incarnation.read(fields),
            kept_since=fields.number("kept_since", 1),
            role=fields.text("role"),
            last_epoch=fields.number("last_epoch", 0, EPOCH_MAX),
            end=fields.number("end"),
            ha_address=fields.address("ha"),
            client_address=fields.optional_address("client"),
            priority=fields.number("priority", 0, 1_000),
            link=fields.optional_text("link"),
            election=fields.optional_number("election"),
            version=fields.text("version"),
            unverified=fields.unverified("unverified"),
            doubt=fields.optional_text("doubt"),
            place=fields.optional_text("place"),
            at_ms=fields.optional_number("at"),
            can_store="can_store" not in fields.values or fields.flag("can_store"),
            has_room=fields.flag("has_room"),
            ttl_s=fields.optional_number("ttl"),
            disowned_in=fields.optional_number("disowned_in"),
            end_epoch=fields.number("end_epoch", 0, EPOCH_MAX)
            if "end_epoch" in fields.values
            else fields.number("last_epoch", 0, EPOCH_MAX),
        )

    def encode(self) -> bytes:
        """Return the value."""
        return _encode(
            {
                **self.node.as_json(),
                "kept_since": self.kept_since,
                "role": self.role,
                "last_epoch": self.last_epoch,
                "end": self.end,
                "ha": self.ha_address,
                "client": self.client_address,
                "priority": self.priority,
                "link": self.link,
                "election": self.election,
                "version": self.version,
                "at": self.at_ms,
                "can_store": self.can_store,
                "has_room": self.has_room,
            }
            | ({} if self.unverified is None else {"unverified": attrs.asdict(self.unverified)})
            | ({} if self.doubt is None else {"doubt": self.doubt})
            | ({} if self.place is None else {"place": self.place})
            | ({} if self.ttl_s is None else {"ttl": self.ttl_s})
            | ({} if self.end_epoch == self.last_epoch else {"end_epoch": self.end_epoch})
            | ({} if self.disowned_in is None else {"disowned_in": self.disowned_in})
        )

    def gone_within_s(self, ttl_s: float) -> float:
        """Return after how long the record is surely gone if its process has ended.

        ``ttl_s`` is the reader's; a change of etcd's leader prolongs all leases.
        """
        return LEASES_WAITED * max(ttl_s, self.ttl_s or 0)


@final
@attrs.frozen(kw_only=True)
class EpochRecord:
    """How an epoch began."""

    epoch: int
    master_id: int
    former_id: int | None
    end: int  # of the winner's log when it stood
    why: str  # election, switchover, failover
    at_ms: int
    lost: Mapping[str, int] = attrs.field(factory=dict)  # by topic, at least; a failover's
    # Whether the master, or another candidate, had proved that it has all that was acknowledged.
    is_proven: bool = True

    @classmethod
    def decode(cls, key: str, data: bytes) -> Self:
        """Read a value.  Raises ProtocolError."""
        fields = _fields_of(key, data)
        return cls(
            epoch=fields.number("epoch", 1, EPOCH_MAX),
            master_id=fields.number("to", 1, NODE_ID_MAX),
            former_id=fields.optional_number("from"),
            end=fields.number("offset"),
            why=fields.text("why"),
            at_ms=fields.number("at"),
            lost=fields.counts("lost"),
            is_proven=fields.flag("proven") if "proven" in fields.values else True,
        )

    def encode(self) -> bytes:
        """Return the value."""
        return _encode(
            {
                "epoch": self.epoch,
                "from": self.former_id,
                "to": self.master_id,
                "offset": self.end,
                "why": self.why,
                "at": self.at_ms,
            }
            | ({"lost": dict(self.lost)} if self.lost else {})
            | ({} if self.is_proven else {"proven": False})
        )


@final
@attrs.frozen(kw_only=True)
class Switchover:
    """The request that another node becomes master; void in any epoch but ``from_epoch``.

    ``ready_end``: the master takes no puts any more, and its log ends there.  ``for_room``: a
    master that cannot store made it, so the successor allocates its next log file first.
    ``is_forced``: an operator accepts that the successor cannot store.
    """

    from_epoch: int
    to_id: int
    ready_end: int | None = None
    for_room: bool = False
    is_forced: bool = False


@final
@attrs.frozen(kw_only=True)
class RoomRequests:
    """The last round of requests by a master that could not store: see ``storage``.

    ``tried``: the members that were asked, and those that asked, since the trouble began.
    """

    epoch: int  # in which the round began
    at_ms: int  # when it began, by its master's wall clock
    pause_s: int  # from then on until the next round may begin
    tried: frozenset[int]

    @classmethod
    def read(cls, fields: _Fields) -> Self:
        """Read it.  Raises ProtocolError."""
        return cls(
            epoch=fields.number("epoch", 1, EPOCH_MAX),
            at_ms=fields.number("at"),
            pause_s=fields.number("pause_s", 1),
            tried=fields.ids("tried"),
        )

    def values(self) -> dict[str, object]:
        """Return its fields."""
        return {
            "epoch": self.epoch,
            "at": self.at_ms,
            "pause_s": self.pause_s,
            "tried": sorted(self.tried),
        }


@final
@attrs.frozen(kw_only=True)
class GroupConfig:
    """What a person has set, and what nodes say that know more than the coordinator.

    ``seen_epoch``: an epoch that a node has seen, and the coordinator has forgotten; 0: none.  That
    node follows only masters of later ones.  ``unproven_epoch`` began although no member had proved
    that it has all that was acknowledged; None once an operator has confirmed it.
    """

    is_paused: bool = False
    switchover: Switchover | None = None
    alarm: str | None = None
    seen_epoch: int = 0
    unproven_epoch: int | None = None
    room_requests: RoomRequests | None = None  # None if no master has asked for a successor yet

    @classmethod
    def decode(cls, key: str, data: bytes) -> Self:
        """Read a value.  Raises ProtocolError."""
        fields = _fields_of(key, data)
        switchover = None
        if fields.values.get("switchover") is not None:
            wish = fields.inner("switchover")
            switchover = Switchover(
                from_epoch=wish.number("from_epoch", 1, EPOCH_MAX),
                to_id=wish.number("to", 1, NODE_ID_MAX),
                ready_end=wish.optional_number("ready_end"),
                for_room=wish.flag("for_room"),
                is_forced=wish.flag("forced"),
            )
        return cls(
            is_paused=fields.flag("pause"),
            switchover=switchover,
            alarm=fields.optional_text("alarm"),
            seen_epoch=fields.number("seen_epoch", 0, EPOCH_MAX)
            if "seen_epoch" in fields.values
            else 0,
            unproven_epoch=fields.optional_number("unproven_epoch"),
            room_requests=RoomRequests.read(fields.inner("room_requests"))
            if fields.values.get("room_requests") is not None
            else None,
        )

    def encode(self) -> bytes:
        """Return the value."""
        wish = self.switchover
        return _encode(
            {
                "pause": self.is_paused,
                "switchover": None
                if wish is None
                else {
                    "from_epoch": wish.from_epoch,
                    "to": wish.to_id,
                    "ready_end": wish.ready_end,
                    **({"for_room": True} if wish.for_room else {}),
                    **({"forced": True} if wish.is_forced else {}),
                },
                "alarm": self.alarm,
                **({"seen_epoch": self.seen_epoch} if self.seen_epoch else {}),
                **({"unproven_epoch": self.unproven_epoch} if self.unproven_epoch else {}),
                **({"room_requests": self.room_requests.values()} if self.room_requests else {}),
            }
        )


_Value = TypeVar("_Value", GroupState, Leader, GroupConfig)


# -- a group -------------------------------------------------------------------------------------


@final
@attrs.frozen(kw_only=True)
class Keys:
    """The keys of a group."""

    base: str  # ends with a slash

    @classmethod
    def of(cls, prefix: str, cluster: str, group: str) -> Self:
        """Return those of a group of a cluster."""
        return cls(base=f"{prefix.rstrip('/')}/{cluster}/{group}/")

    @property
    def prefix(self) -> str:
        """That of all clusters, without a slash at its end."""
        return self.base.rsplit("/", 3)[0]

    @property
    def leader(self) -> str:
        """The master's key."""
        return f"{self.base}leader"

    @property
    def state(self) -> str:
        """The key of what was agreed on."""
        return f"{self.base}state"

    @property
    def config(self) -> str:
        """The key of wishes."""
        return f"{self.base}config"

    def registration(self, node_id: int) -> str:
        """Return the key of a node's directory."""
        return f"{self.base}ids/{node_id}"

    def member(self, node_id: int) -> str:
        """Return the key of what a node says of itself."""
        return f"{self.base}members/{node_id}"

    def history(self, epoch: int) -> str:
        """Return the key of an epoch's beginning."""
        return f"{self.base}history/{epoch}"


@final
@attrs.frozen(kw_only=True)
class GroupView:
    """A group as the coordinator has it at one revision; ``*_revision`` 0: the key is not there."""

    cluster_id: int
    revision: int
    state: GroupState | None = None
    state_revision: int = 0
    leader: Leader | None = None
    leader_revision: int = 0
    leader_lease: int | None = None  # that the leader key goes with
    config: GroupConfig = attrs.field(factory=GroupConfig)
    config_revision: int = 0
    members: Mapping[int, Member] = attrs.field(factory=dict)
    registrations: Mapping[int, Registration] = attrs.field(factory=dict)
    history: tuple[EpochRecord, ...] = ()  # by epoch
    # What could not be read, by key: another version's, or a person's typing mistake.
    damaged: Mapping[str, str] = attrs.field(factory=dict)
    damaged_revisions: Mapping[str, int] = attrs.field(factory=dict)  # of the same keys

    def check(self, *keys: str) -> None:
        """Raise ProtocolError if one of these keys could not be read."""
        for key in keys:
            if key in self.damaged:
                raise ProtocolError(self.damaged[key], hint=DAMAGED_HINT)


def read_group(keys: Keys, snapshot: Snapshot) -> GroupView:
    """Return a group from its keys.

    Raises ProtocolError if ``leader``, ``state`` or ``config`` cannot be read: nothing may be
    decided without them.  Other keys that cannot be read are ``damaged``.
    """
    view = inspect_group(keys, snapshot)
    view.check(keys.state, keys.leader, keys.config)
    return view


def inspect_group(keys: Keys, snapshot: Snapshot) -> GroupView:
    """Return as much of a group as can be read, to be shown or repaired.

    A damaged ``leader``, ``state`` or ``config`` is as one that is not there, but for its revision.
    """
    items = snapshot.items
    members: dict[int, Member] = {}
    registrations: dict[int, Registration] = {}
    history: dict[int, EpochRecord] = {}
    damaged: dict[str, str] = {}
    for key, item in items.items():
        kind, _, name = key.removeprefix(keys.base).partition("/")
        try:
            if kind == "members":
                member = Member.decode(key, item.value)
                if str(member.node.node_id) != name:
                    raise ProtocolError(f"{key} names {member.node}")
                members[member.node.node_id] = member
            elif kind == "ids":
                registrations[_node_id(key, name)] = Registration.decode(key, item.value)
            elif kind == "history":
                record = EpochRecord.decode(key, item.value)
                if str(record.epoch) != name:
                    raise ProtocolError(f"{key} is of epoch {record.epoch}")
                history[record.epoch] = record
        except ProtocolError as error:
            damaged[key] = str(error)
    state, leader, config = (items.get(key) for key in (keys.state, keys.leader, keys.config))
    return GroupView(
        cluster_id=snapshot.cluster_id,
        revision=snapshot.revision,
        state=_decoded(GroupState, state, damaged),
        state_revision=_revision(state),
        leader=_decoded(Leader, leader, damaged),
        leader_revision=_revision(leader),
        leader_lease=None if leader is None else leader.lease,
        config=_decoded(GroupConfig, config, damaged) or GroupConfig(),
        config_revision=_revision(config),
        members=members,
        registrations=registrations,
        history=tuple(history[epoch] for epoch in sorted(history)),
        damaged=damaged,
        damaged_revisions={key: items[key].mod_revision for key in damaged},
    )


def _decoded(kind: type[_Value], item: KeyValue | None, damaged: dict[str, str]) -> _Value | None:
    """Return a value; None if it is not there, or cannot be read and is ``damaged`` now."""
    if item is None:
        return None
    try:
        return kind.decode(item.key, item.value)
    except ProtocolError as error:
        damaged[item.key] = str(error)
        return None


def _node_id(key: str, name: str) -> int:
    if not _NODE_ID.fullmatch(name) or int(name) > NODE_ID_MAX:
        raise ProtocolError(f"{key:.200} does not end with the id of a node")
    return int(name)


def _revision(item: KeyValue | None) -> int:
    return 0 if item is None else item.mod_revision
