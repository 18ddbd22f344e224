"""Which of several nodes is the master: ask all of them, then decide.

::

    addresses ──► ask each: its route (105), its status (907) ──► choose_master ──► one, or nobody
         ▲                                   │
         └──── the nodes that it names ◄─────┘

``choose_master`` follows, of the nodes that answered:

1. the one that says it is master, of the highest epoch; at one epoch, the first.  Not one of an
   epoch below one that another node of its group has seen: it does not know its successor yet.
   Of several groups that of the first address counts, and only that one from then on;
2. else a broker that does not say what it is (RocketMQ's has neither route nor such a status), the
   next one after that tried last: its answer to a message will show it;
3. else nobody.

Not all nodes need to answer: ``SETTLE_S`` after the first that says it is master, the others count
as silent.

A search ends at once where all nodes have answered and each of them denies access, or TLS with it
failed for a certificate: an unknown key does not become known by asking again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast, final

import attrs
import trio

from hastore.client.access import access_denied, is_denied
from hastore.client.remoting_client import open_remoting_client
from hastore.client.route import broker_addresses, read_queue_nums
from hastore.concurrency.tcp import describe
from hastore.errors import (
    AccessDeniedError,
    ConfigError,
    ProtocolError,
    TlsError,
    UnreachableError,
)
from hastore.topic import DEFAULT_TOPIC
from hastore.wire import liberal_json
from hastore.wire.config_tables import GROUP_ONLY
from hastore.wire.remoting_codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hastore.access.signature import AccessKey
    from hastore.client.remoting_client import RemotingClient
    from hastore.errors import HastoreError
    from hastore.tls.client_tls import ClientTls

Address = tuple[str, int]

SETTLE_S: Final = 0.25
ASK_TIMEOUT_S: Final = 2.0  # a node that hangs must not hold the others up
ADDRESSES_MAX: Final = 64
# Pauses between two searches, while nobody is master.
BACK_OFF_S: Final = (0.05, 0.4)


@final
@attrs.frozen(kw_only=True)
class NodeAnswer:
    """What a node said of itself; None: nothing."""

    address: Address
    is_master: bool | None = None
    name: str | None = None
    group: str | None = None  # its replica group
    epoch: int | None = None
    seen_epoch: int | None = None  # the newest that it has heard of
    queue_nums: int | None = None  # that its route has
    named: tuple[Address, ...] = ()  # the nodes of its route

    @property
    def title(self) -> str:
        """Its name and address, for people."""
        where = describe(self.address)
        return where if self.name is None else f"{self.name} at {where}"


def choose_master(answers: Sequence[NodeAnswer], tried: Address | None = None) -> NodeAnswer | None:
    """Return the node to follow, by the module's rules; ``tried``: the unknown one tried last."""
    group = next((answer.group for answer in answers if answer.is_master is not None), None)
    members = [answer for answer in answers if answer.group == group]
    seen = max((max(one.epoch or 0, one.seen_epoch or 0) for one in members), default=0)
    masters = [
        one for one in members if one.is_master and (group is None or (one.epoch or 0) >= seen)
    ]
    if masters:
        return max(masters, key=lambda one: one.epoch or 0)  # the first of equal ones
    unknown = [answer for answer in answers if answer.is_master is None]
    places = [place for place, answer in enumerate(unknown) if answer.address == tried]
    return unknown[((places[0] if places else -1) + 1) % len(unknown)] if unknown else None


async def ask_node(client: RemotingClient) -> NodeAnswer:
    """Ask a connected node what it is.

    Raises UnreachableError, ProtocolError, AccessDeniedError.
    """
    fields = {"topic": DEFAULT_TOPIC, GROUP_ONLY: "true"}
    route = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields)
    if is_denied(route):
        raise access_denied(route, describe(client.address))
    queue_nums: int | None = None
    named: tuple[Address, ...] = ()
    if route.code == ResponseCode.SUCCESS:
        queue_nums = read_queue_nums(route.body)
        named = broker_addresses(route.body)
    answer = NodeAnswer(address=client.address, queue_nums=queue_nums, named=named)
    response = await client.ask(RequestCode.GET_BROKER_HA_STATUS)
    if response.code != ResponseCode.SUCCESS:
        if route.code != ResponseCode.SUCCESS:
            return answer
        return attrs.evolve(answer, is_master=False)  # a name server
    status = liberal_json.loads_object(response.body, "the HA status")
    is_master = status.get("master")
    answer = attrs.evolve(answer, is_master=is_master if isinstance(is_master, bool) else None)
    own = status.get("hastore")
    if not isinstance(own, dict):
        return answer
    return attrs.evolve(
        answer,
        is_master=own.get("role") != "SLAVE" and own.get("state") == "serving",
        name=_text(own, "name"),
        group=_text(own, "replica_group"),
        epoch=_number(own, "epoch"),
        seen_epoch=_number(own, "seen_epoch"),
    )


def addresses_in(
    address: Address | Sequence[Address], more: Sequence[Address]
) -> Address | list[Address]:
    """Return the one address of a call, or the list of several, or of a sequence.

    Raises ConfigError for none.
    """
    if not address:
        msg = "there is no address to connect to"
        raise ConfigError(msg, hint='name one or more, each as ("HOST", PORT)')
    if isinstance(address[0], str):
        one = cast("Address", address)
        return list(dict.fromkeys([one, *more])) if more else one
    return list(dict.fromkeys([*cast("Sequence[Address]", address), *more]))


@final
@attrs.define(eq=False)
class MasterSearch:
    """Finds the master among ``addresses``, and those that their routes name."""

    addresses: list[Address]
    ask_timeout_s: float = ASK_TIMEOUT_S
    takes_slaves: bool = False  # a slave will do, if nobody is master
    access_key: AccessKey | None = None
    tls: ClientTls | None = None
    _group: str | None = attrs.field(default=None, init=False)  # the only one, once it is known
    _tried: Address | None = attrs.field(default=None, init=False)
    _faults: dict[Address, HastoreError | str] = attrs.field(factory=dict, init=False)

    async def find(self, timeout_s: float) -> NodeAnswer:
        """Search until a master is found.

        Raises UnreachableError after ``timeout_s``, AccessDeniedError or TlsError as soon as all
        nodes refuse this client, or are not whom it trusts.
        """
        pause_s = BACK_OFF_S[0]
        with trio.move_on_after(timeout_s):
            while True:
                found = await self.find_now()
                if found is not None:
                    return found
                self._check_refusals()
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, BACK_OFF_S[1])
        raise UnreachableError(
            f"no master found within {timeout_s:g} s: {self._what_was_seen()}",
            hint="hastore status shows what each node is; a group without a master needs one",
        )

    async def find_now(self) -> NodeAnswer | None:
        """Ask all nodes once; return the one to follow, if there is one."""
        answers = await self.ask_all()
        if self._group is not None:
            answers = [answer for answer in answers if answer.group in {None, self._group}]
        found = choose_master(answers, self._tried)
        if found is None and self.takes_slaves and answers:
            found = max(answers, key=lambda answer: answer.seen_epoch or 0)
        if found is not None:
            self._tried = found.address if found.is_master is None else None
            self._group = self._group or found.group
        return found

    async def ask_all(self) -> list[NodeAnswer]:
        """Return the answers of the nodes that answer, in the order of ``addresses``."""
        answers: dict[Address, NodeAnswer] = {}
        settled = trio.Event()
        former, self._faults = self._faults, {}

        async def ask(address: Address) -> None:
            is_there = False
            try:
                async with open_remoting_client(
                    address,
                    connect_timeout_s=self.ask_timeout_s,
                    request_timeout_s=self.ask_timeout_s,
                    access_key=self.access_key,
                    tls=self.tls,
                ) as client:
                    is_there = True
                    answers[address] = answer = await ask_node(client)
            except UnreachableError as error:
                # A node answers late whom it refuses too often.
                refusal = former.get(address) if is_there else None
                self._faults[address] = refusal if isinstance(refusal, AccessDeniedError) else error
                return
            except (ProtocolError, AccessDeniedError) as error:
                self._faults[address] = error
                return
            self._add(answer.named)
            if answer.is_master:
                settled.set()

        async with trio.open_nursery() as nursery:

            async def settle() -> None:
                await settled.wait()
                await trio.sleep(SETTLE_S)
                nursery.cancel_scope.cancel()

            async with trio.open_nursery() as asking:
                nursery.start_soon(settle)
                for address in self.addresses:
                    asking.start_soon(ask, address)
            nursery.cancel_scope.cancel()
        for address in self.addresses:
            if address in answers and not answers[address].is_master:
                self._faults[address] = f"{answers[address].title} is no master"
        return [answers[address] for address in self.addresses if address in answers]

    def _add(self, named: Iterable[Address]) -> None:
        for address in named:
            if address not in self.addresses and len(self.addresses) < ADDRESSES_MAX:
                self.addresses.append(address)

    def _check_refusals(self) -> None:
        """Raise the error of the first node if each denies access, or does not count by TLS."""
        first = None
        for address in self.addresses:
            fault = self._faults.get(address)
            is_denied = isinstance(fault, AccessDeniedError)
            if not is_denied and not (isinstance(fault, TlsError) and fault.is_final):
                return
            first = first or fault
        if isinstance(first, TlsError):
            raise TlsError(self._what_was_seen(), fault=first.fault, hint=first.hint)
        if isinstance(first, AccessDeniedError):
            raise AccessDeniedError(self._what_was_seen(), code=first.code, hint=first.hint)

    def _what_was_seen(self) -> str:
        faults = [str(self._faults[each]) for each in self.addresses if each in self._faults]
        return "; ".join(faults) or "nobody has answered"


def _text(status: dict[str, Any], name: str) -> str | None:
    value = status.get(name)
    return value if isinstance(value, str) else None


def _number(status: dict[str, Any], name: str) -> int | None:
    value = status.get(name)
    return value if isinstance(value, int) else None
