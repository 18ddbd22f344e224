"""A producer's link to whichever of several nodes is master, across failovers.

::

    post ─► RemotingClient of the master ─► answer ─► judge ─┬─► ANSWERED, UNKNOWN: the caller
              ▲                                              └─► AGAIN: held
              └── held requests, in their order ◄── a new master (MasterSearch) ◄── the link is left

It has what ``Producer`` uses of a ``RemotingClient``.  A request is kept until it has an answer, so
that the same bytes can be sent to the next master: the same UNIQ_KEY, and the same batch.

A master that is stopped or cut off keeps its connections up and answers nothing.  After
``SILENCE_S`` without an answer the other nodes are asked; once one of them is master of a later
epoch, the link is left.  Until then the silent one is still the master, and may only be slow.

When the link is left, nothing more is sent on it; what is in flight there still gets its answers.
The link then looks for the next master for ``failover_timeout_s``.  Without one, held requests end
with the answer that they had, and later ones are refused.  No request is held for longer than that.

Invariant: every posted request is decided once; held requests leave in the order in which they
were posted, before any later one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final, assert_never, final

import attrs
import trio

from hastore.client.failover_rules import Fate, Retry, judge, last_fate
from hastore.client.master_search import BACK_OFF_S
from hastore.client.pending_request import PendingRequest
from hastore.client.remoting_client import open_remoting_client
from hastore.concurrency.tcp import describe
from hastore.errors import AccessDeniedError, TlsError, UnreachableError
from hastore.trace import logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hastore.access.signature import AccessKey
    from hastore.client.failover_rules import Verdict
    from hastore.client.master_search import Address, MasterSearch, NodeAnswer
    from hastore.client.remoting_client import RemotingClient
    from hastore.tls.client_tls import ClientTls
    from hastore.wire.remoting_command import RemotingCommand
    from hastore.wire.usual_frames import OkReply

FAILOVER_TIMEOUT_S: Final = 30.0
SILENCE_S: Final = 1.0

# A RemotingClient counts its own requests from 1: these are the same on every link.
_OPAQUE_MIN: Final = 1 << 30
_OPAQUE_MAX: Final = (1 << 31) - 1

_log = logger("client")


@final
@attrs.frozen(kw_only=True)
class Failover:
    """A change of the node that a client sends to, or reads from."""

    name: str | None  # the new master's; None: a broker that does not say it
    address: Address
    epoch: int | None
    sent_again: int  # messages; 0 for a consumer
    reason: str  # why the former link was left
    seconds: float  # since then
    is_master: bool = True  # a consumer may go on at a slave

    def __str__(self) -> str:
        """Return it as a line for people."""
        where = describe(self.address)
        where = where if self.name is None else f"{self.name} at {where}"
        if not self.is_master:
            return f"no master answers; going on at the slave {where}"
        if not self.sent_again:
            return f"master is now {where}"
        messages = "1 message" if self.sent_again == 1 else f"{self.sent_again} messages"
        return f"master is now {where}; {messages} sent again"


@final
@attrs.frozen(kw_only=True)
class FailoverSettings:
    """How a producer follows its master."""

    retry: Retry
    failover_timeout_s: float
    connect_timeout_s: float
    request_timeout_s: float
    in_flight_max: int
    on_up: Callable[[NodeAnswer], None]
    on_failover: Callable[[Failover], None] | None
    access_key: AccessKey | None = None
    tls: ClientTls | None = None


class _Carried(PendingRequest):
    """A request on its way, on behalf of ``pending``, which its caller waits for."""

    __slots__ = (
        "body",
        "client",
        "head",
        "held_until",
        "is_in_doubt",
        "link",
        "number",
        "pending",
        "weight",
    )

    def __init__(
        self, link: MasterLink, pending: PendingRequest, head: bytes, body: bytes, number: int
    ) -> None:
        super().__init__(pending.opaque)
        self.link = link
        self.pending = pending
        self.weight = pending.weight
        self.head = head
        self.body = body
        self.number = number  # in the order of posting
        self.client: RemotingClient | None = None  # on which it was sent last
        self.held_until: float | None = None  # set when it is held for the first time
        self.is_in_doubt = False

    @property
    def is_awaited(self) -> bool:
        """Whether a task waits for the caller's request."""
        return self.pending.is_awaited

    def answer(self, response: RemotingCommand) -> None:
        """Decide the caller's request, or hold this one."""
        self.response = response
        self.link.answered(self)

    def fail(self, reason: str) -> None:
        """Decide the caller's request, or hold this one."""
        self.response, self.failure = None, reason
        self.link.answered(self)


@final
class _CarriedMessage(_Carried):
    """One whose caller takes a usual OK reply."""

    __slots__ = ()

    takes_ok: ClassVar[bool] = True

    def answer_ok(self, reply: OkReply) -> None:
        """Decide the caller's request."""
        self.link.decided(self)
        self.pending.answer_ok(reply)


@final
class MasterLink:
    """A link to the master; ``run`` keeps it up."""

    def __init__(self, search: MasterSearch, settings: FailoverSettings) -> None:
        self.broken_because: str | None = None
        self.in_flight = 0  # the weight of all requests without an outcome, held ones included
        self.in_flight_max = settings.in_flight_max
        self._search = search
        self._settings = settings
        self._client: RemotingClient | None = None  # None: the master is searched for
        self._found: NodeAnswer | None = None
        self._held: list[_Carried] = []
        self._number = 0
        self._opaque = _OPAQUE_MIN
        self._left_because: str | None = None  # None: the first link is not up yet
        self._left_at = 0.0
        self._left = trio.Event()
        self._is_up = trio.Event()
        self._is_proven = False  # whether this link has brought a master's answer
        self._is_silent = False  # whether a request had no answer on it
        self._waiting_for_none = trio.lowlevel.ParkingLot()

    # -- the connection --------------------------------------------------------------------------

    async def run(
        self,
        serve: Callable[[RemotingClient], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[None],
    ) -> None:
        """Keep a link to the master until cancelled, or until none is found.

        ``serve`` runs beside each link.  Raises UnreachableError if there is no master at the
        start, AccessDeniedError if all nodes deny access; later ``broken_because`` says so.
        """
        timeout_s = self._settings.connect_timeout_s
        pause_s = BACK_OFF_S[0]
        try:
            while True:
                found = await self._search.find(timeout_s)
                await self._follow(found, serve, task_status)
                timeout_s = self._settings.failover_timeout_s
                if self._is_proven:
                    pause_s = BACK_OFF_S[0]
                    continue
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, BACK_OFF_S[1])
        except (UnreachableError, AccessDeniedError, TlsError) as error:
            if self._left_because is None:
                raise
            _log.error("master_not_found", reason=str(error), next=error.hint)
            self._end(str(error))
        finally:
            self._end("the connection was closed here")

    async def _follow(
        self,
        found: NodeAnswer,
        serve: Callable[[RemotingClient], Awaitable[None]],
        task_status: trio.TaskStatus[None],
    ) -> None:
        """Send to a node until the link is left, and has its last answers."""
        settings = self._settings
        self._is_proven = self._is_silent = False
        try:
            async with open_remoting_client(
                found.address,
                connect_timeout_s=settings.connect_timeout_s,
                request_timeout_s=settings.request_timeout_s,
                in_flight_max=settings.in_flight_max,
                access_key=settings.access_key,
                tls=settings.tls,
            ) as client:
                is_first = self._left_because is None
                self._up(client, found)
                if is_first:
                    self._left_because = ""
                    task_status.started()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(serve, client)
                    nursery.start_soon(self._leave_a_deposed, client, found)
                    await self._left.wait()
                    if self._is_silent:  # the others would only wait for their time to be up
                        client.break_link("it does not answer")
                    await client.wait_for_none()
                    nursery.cancel_scope.cancel()
        except (UnreachableError, TlsError):
            if self._left_because is None:
                raise
            # It answered a moment ago: search again.

    def _up(self, client: RemotingClient, found: NodeAnswer) -> None:
        """Send what is held, then take more."""
        self._client, self._found = client, found
        self._left = trio.Event()
        client.on_broken = lambda: self._leave(client, client.broken_because or "")
        self._settings.on_up(found)
        held, self._held = sorted(self._held, key=lambda carried: carried.number), []
        for carried in held:
            self._send(carried, client)
        self._is_up.set()
        if self._left_because is None:
            return
        failover = Failover(
            name=found.name,
            address=found.address,
            epoch=found.epoch,
            sent_again=sum(carried.weight for carried in held if carried.held_until is not None),
            reason=self._left_because,
            seconds=trio.current_time() - self._left_at,
        )
        _log.info(
            "master_followed",
            master=found.title,
            epoch=found.epoch,
            sent_again=failover.sent_again,
            reason=failover.reason,
        )
        if self._settings.on_failover is not None:
            self._settings.on_failover(failover)

    async def _leave_a_deposed(self, client: RemotingClient, found: NodeAnswer) -> None:
        """Leave a silent node whose successor is known."""
        while found.epoch is not None:
            await client.wait_for_silence(SILENCE_S)
            successor = await self._search.find_now()
            if successor is not None and (successor.epoch or 0) > found.epoch:
                self._is_silent = True
                epoch = successor.epoch
                reason = f"it does not answer, and {successor.title} is master of epoch {epoch}"
                self._leave(client, reason)
                return

    def _leave(self, client: RemotingClient | None, reason: str) -> None:
        """Send nothing more on a link; the first reason counts."""
        if client is None or client is not self._client:
            return
        self._client = None
        self._left_because = f"{describe(client.address)}: {reason}"
        self._left_at = trio.current_time()
        self._is_up = trio.Event()
        self._left.set()

    def _end(self, reason: str) -> None:
        """Decide what is held, and take no more; the first reason counts."""
        if self.broken_because is not None:
            return
        self.broken_because = reason
        self._client = None
        held, self._held = self._held, []
        for carried in held:
            self._decide(carried, self._last_fate_of(carried))
        self._is_up.set()

    @property
    def address(self) -> Address:
        """The node that is followed, or was last."""
        assert self._found is not None, "run announces it once a master is found"
        return self._found.address

    # -- requests out ----------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether another request may be posted; not while the master is searched for."""
        client = self._client
        return client is not None and client.has_room

    def has_room_for(self, count: int) -> bool:
        """Whether ``count`` requests may be posted."""
        client = self._client
        return client is not None and client.has_room_for(count)

    @property
    def out_room(self) -> int:
        """How many more bytes may wait to be sent."""
        client = self._client
        return 0 if client is None else client.out_room

    async def wait_for_room(self, count: int = 1) -> None:
        """Wait until there is a master and room for ``count`` requests, or no master is found."""
        while self.broken_because is None:
            client = self._client
            if client is None:
                await self._is_up.wait()
                continue
            await client.wait_for_room(count)
            if client is self._client:
                return

    def next_opaque(self) -> int:
        """Return the ``opaque`` of the next request; it stays when the request is sent again."""
        self._opaque = opaque = _OPAQUE_MIN if self._opaque == _OPAQUE_MAX else self._opaque + 1
        return opaque

    def post(self, pending: PendingRequest, head: bytes, body: bytes = b"") -> None:
        """Send a request soon, or to the next master.

        Raises UnreachableError if none was found; nothing was sent then.
        """
        if self.broken_because is not None:
            msg = f"not sent: {self.broken_because}"
            raise UnreachableError(msg, hint="connect again")
        self._number += 1
        kind = _CarriedMessage if pending.takes_ok else _Carried
        carried = kind(self, pending, head, body, self._number)
        self.in_flight += carried.weight
        client = self._client
        if client is None:
            # A batch that was refused because of its messages, which go singly now.
            pending.deadline = trio.current_time() + self._settings.request_timeout_s
            self._held.append(carried)
            return
        self._send(carried, client)
        pending.deadline = carried.deadline

    def _send(self, carried: _Carried, client: RemotingClient) -> None:
        if carried.is_in_doubt:
            carried.pending.sent_again()
        carried.client, carried.response, carried.failure = client, None, None
        client.post(carried, carried.head, carried.body)

    async def wait_for_none(self) -> None:
        """Wait until every request has its outcome."""
        await trio.lowlevel.checkpoint()
        while self.in_flight:
            await self._waiting_for_none.park()

    # -- answers in ------------------------------------------------------------------------------

    def answered(self, carried: _Carried) -> None:
        """Decide a request by its answer, or hold it; perhaps leave the link."""
        verdict = self._verdict_on(carried)
        carried.is_in_doubt = verdict.is_in_doubt
        if verdict.is_link_left:
            self._is_silent |= carried.response is None
            self._leave(carried.client, _reason_of(carried))
        if verdict.fate is not Fate.AGAIN:
            self._decide(carried, verdict.fate)
            return
        now = trio.current_time()
        if carried.held_until is None:
            carried.held_until = now + self._settings.failover_timeout_s
        if self.broken_because is not None or now >= carried.held_until:
            self._decide(carried, last_fate(verdict))
        else:
            self._held.append(carried)

    def _verdict_on(self, carried: _Carried) -> Verdict:
        retry = self._settings.retry
        return judge(carried.response, retry, was_in_doubt=carried.is_in_doubt)

    def _last_fate_of(self, carried: _Carried) -> Fate:
        if carried.response is None and carried.failure is None:  # it was never sent
            carried.failure = self.broken_because
        return last_fate(self._verdict_on(carried))

    def _decide(self, carried: _Carried, fate: Fate) -> None:
        self.decided(carried)
        match fate:
            case Fate.ANSWERED:
                assert carried.response is not None, "an answer is one"
                carried.pending.answer(carried.response)
            case Fate.UNKNOWN:
                carried.pending.fail(_reason_of(carried))
            case Fate.AGAIN:
                raise AssertionError("held requests are not decided")
            case _:
                assert_never(fate)

    def decided(self, carried: _Carried) -> None:
        """Forget a request that has its outcome."""
        if carried.failure is None:
            self._is_proven = True
        self.in_flight -= carried.weight
        if not self.in_flight and self._waiting_for_none:
            self._waiting_for_none.unpark_all()


def _reason_of(carried: _Carried) -> str:
    """Return why a request has no outcome yet."""
    response = carried.response
    if response is None:
        return carried.failure or "the connection was closed here"
    return response.remark or f"answered with {response.code}, not as a master"
