"""The guard of a client port: each request is proven and allowed before anything is done.

::

    key and signature ── address of the key ── rule ── process
      └── wrong: failures of the address         └── topics in the log

The answer to a refused request is RocketMQ's: SYSTEM_ERROR with the reason.  hastore adds the ext
field ``accessDenied``.  An unknown key and a wrong signature have the same answer, and take the
same work.

Role requests and hastore's own need hastore's signature (``hastore.access.signature``): RocketMQ's
could have been recorded with a request of another code.  ``old_requests`` has the exceptions.

A pull or a request by offset may wait for messages, and the permissions change meanwhile: it is
checked again when it is answered.  A request by offset is not denied for what lies there, but
answered as if there were no message (``message_by_offset``).

Invariant: a refused request has changed nothing, and its answer has nothing of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, final

import attrs
import trio

from hastore.access.permissions import SUB, Need, Subject
from hastore.access.secret import Secret
from hastore.access.signature import (
    ACCESS_KEY_FIELD,
    DENIED_FIELD,
    PIECE_SIZE,
    has_own_signature,
    is_signed_by,
    is_signed_in_pieces,
)
from hastore.broker.access.audit import audit_refusal
from hastore.broker.access.old_requests import is_from_the_last_release
from hastore.broker.access.rules import RULES, Found
from hastore.concurrency.peers import PeerLog
from hastore.concurrency.turns import with_checkpoints
from hastore.errors import AccessDeniedError, ProtocolError
from hastore.status import OwnSignatures
from hastore.store.record import message_codec
from hastore.store.record.delay_message import PROPERTY_REAL_TOPIC
from hastore.store.record.record_check import check_record
from hastore.topic import SCHEDULE_TOPIC, reply_topic
from hastore.trace import logger
from hastore.wire.pieces import ROWS_OF_A_PIECE
from hastore.wire.remoting_codes import ADMIN_REQUESTS, OWN_REQUESTS, ResponseCode
from hastore.wire.remoting_command import RemotingCommand, content_of, text_field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from hastore.access.permissions import Account
    from hastore.access.signature import ReceivedSignatures
    from hastore.broker.access.node_access import NodeAccess
    from hastore.broker.reply import Answer, Later
    from hastore.broker.request_target import RequestTarget
    from hastore.concurrency.turns import Turns
    from hastore.store.record.record_check import RecordCheck
    from hastore.wire.pull_message import PullRequest

NOT_PROVEN: Final = "access denied: unknown access key, or wrong signature"
NO_KEY: Final = "access denied: the request has no access key, and this node needs one"
_NOBODYS: Final = Secret("signs-for-keys-that-do-not-exist")
_UPDATE: Final = "update the hastore that asks to the version of this node"
_KEY_SHOWN_MAX: Final = 64
_KEYLESS_AS_ONE: Final = 8  # requests without a key of one connection

_log = logger("access")


class SignedConnection(Protocol):
    """The connection that a request came on, as far as signatures depend on it."""

    @property
    def local_address(self) -> tuple[str, int]:
        """The address that the client has connected to."""

    keyless: int  # its requests without an access key

    @property
    def signatures(self) -> ReceivedSignatures | None:
        """What it had of hastore's own signatures; None until it was given a nonce."""


@final
@attrs.define(eq=False)
class AccessGuard:
    """Admits the requests of one client port."""

    access: NodeAccess
    target: RequestTarget
    _failure_log: PeerLog = attrs.field(factory=lambda: PeerLog(_log, "access_denied"), init=False)

    async def admit(
        self,
        request: RemotingCommand,
        peer: tuple[str, int],
        *,
        turns: Turns,
        connection: SignedConnection | None = None,
    ) -> Account:
        """Return the account on whose behalf a request is carried out.

        A right signature counts, however often its address has failed.  Without a ``connection``
        hastore's own signatures do not count.  A long body is read in ``turns``, once the signature
        is right and the account may send such requests at all.  Raises AccessDeniedError.
        """
        account = None
        try:
            account = await self._account(request, peer, connection=connection)
            rule = RULES.get(request.code)
            if rule is None:
                raise _denied(f"no rule allows request type {request.code}")
            if rule.is_of_readers and not account.reads_any_topic:
                raise _denied(f"access key {account.key.name} needs {rule.text}")
            try:
                if rule.read is not None:
                    await turns.run(content_of(request, rule.read))
                    account = self._current(account, peer[0])
                needs = rule.needs(request)
            except ProtocolError as error:
                raise _denied(f"it is not clear what the request is about: {error}") from error
            for number, need in enumerate(needs, 1):
                self._check(account, need)
                if number % ROWS_OF_A_PIECE == 0:
                    await trio.lowlevel.checkpoint()
            if not has_own_signature(request.ext_fields):
                self._check_stock_signature(request, connection)
        except AccessDeniedError as error:
            key = _shown_key(request)
            self._log(peer, key, request.code, error)
            audit_refusal(request, peer, key, str(error), is_proven=account is not None)
            raise
        return account

    def _log(self, peer: tuple[str, int], key: str, code: int, error: AccessDeniedError) -> None:
        self._failure_log.log_line(peer, kind=f"key {key}", code=code, reason=str(error))

    def _check_stock_signature(
        self, request: RemotingCommand, connection: SignedConnection | None
    ) -> None:
        """Raise AccessDeniedError where a right signature of RocketMQ's does not count."""
        code = request.code
        if code in OWN_REQUESTS:
            is_optional = self.access.own_signatures is not OwnSignatures.REQUIRED
            reached_at = None if connection is None else connection.local_address
            if is_optional and is_from_the_last_release(request, self.target, reached_at):
                return
            why = "RocketMQ's can be recorded and sent again"
        elif code in ADMIN_REQUESTS and not self.access.stock_signatures:
            why = "[access] stock_signatures of this node is false"
        else:
            return
        raise _denied(f"request type {code} needs hastore's own signature: {why}; {_UPDATE}")

    async def _account(
        self,
        request: RemotingCommand,
        peer: tuple[str, int],
        *,
        connection: SignedConnection | None,
    ) -> Account:
        host = peer[0]
        name = _key_of(request)
        account = self.access.table.accounts.get(name or "")
        secret = _NOBODYS if account is None else account.key.secret
        try:
            is_signed = bool(name) and await _is_signed(secret, request, connection)
        except ProtocolError:
            is_signed = False
        if account is None or not is_signed:
            delay_s = 0.0
            if name or _is_counted(connection):
                delay_s = self.access.attempts.record(host, trio.current_time())
            msg = NOT_PROVEN if name else NO_KEY
            if delay_s:
                msg += f"; too many failed attempts from {host}: answered after {delay_s:.0f} s"
            raise AccessDeniedError(msg, code=ResponseCode.SYSTEM_ERROR, delay_s=delay_s or None)
        if not account.takes(host):
            raise _denied(f"access key {name} does not count from {host}")
        return account

    # -- topics that only the log knows ------------------------------------------------------------

    def checked(
        self, later: Later, request: RemotingCommand, account: Account, peer: tuple[str, int]
    ) -> Later:
        """Return the answer to an admitted request, checked for the messages that it concerns."""
        rule = RULES[request.code]
        still = self._checked_again(later, request, account, peer[0])
        if rule.may_be_held or rule.found in {Found.AT_OFFSET, Found.NOTHING} or account.is_admin:
            return still

        async def make() -> Answer | None:
            answer = await still.make()
            try:
                _check_answer(answer, account)
            except AccessDeniedError as error:
                return denial(request, error)
            return answer

        return attrs.evolve(still, make=make)

    def reader_of(self, request: RemotingCommand) -> Callable[[RecordCheck], bool] | None:
        """Return which messages the key of an admitted request may read now; None if none.

        A request for a message by its offset is checked by this, and not denied: the answer must
        not say what is there.
        """
        account = self.access.table.accounts.get(_key_of(request) or "")
        if account is None or not account.reads_any_topic:
            return None
        return lambda check: account.may(_reading(check.topic, check.properties))

    # -- requests that wait ------------------------------------------------------------------------

    def _checked_again(
        self, later: Later, request: RemotingCommand, account: Account, host: str
    ) -> Later:
        """Check a request again when its turn comes: by the permissions in force then."""

        async def make() -> Answer | None:
            try:
                self._check_still(account, lambda: RULES[request.code].needs(request), host)
            except AccessDeniedError as error:
                return denial(request, error)
            return await later.make()

        return attrs.evolve(later, make=make)

    def account_of(self, request: RemotingCommand) -> Account:
        """Return the account of an admitted request."""
        account = self.access.table.accounts.get(_key_of(request) or "")
        assert account is not None, "checked in the same step"
        return account

    def refusal_of_held(
        self, request: RemotingCommand, pull: PullRequest, account: Account, peer: tuple[str, int]
    ) -> RemotingCommand | None:
        """Return the answer to a pull that waited, if it may not have messages any more."""
        rule = RULES[request.code]
        try:
            needs = rule.needs_on([pull.topic], [pull.group])
            self._check_still(account, lambda: needs, peer[0])
        except AccessDeniedError as error:
            self._log(peer, account.key.name, request.code, error)
            return denial(request, error)
        return None

    def _check_still(
        self, account: Account, needs: Callable[[], Iterable[Need]], host: str
    ) -> None:
        """Raise AccessDeniedError if the table in force does not allow what an earlier one did."""
        current = self._current(account, host)
        if current is not account:
            for need in needs():
                self._check(current, need)

    def _check(self, account: Account, need: Need) -> None:
        """Raise AccessDeniedError if an account lacks what a request needs."""
        if not account.may(need, reply_topic(self.target.cluster)):
            raise _lacks(account, need)

    def _current(self, account: Account, host: str) -> Account:
        """Return an account as the table in force has it.  Raises AccessDeniedError."""
        name = account.key.name
        current = self.access.table.accounts.get(name)
        if current is None or current.key != account.key:
            raise _denied(f"access key {name} is not in force any more")
        if not current.takes(host):
            raise _denied(f"access key {name} does not count from {host}")
        return current


def _is_counted(connection: SignedConnection | None) -> bool:
    """Whether a request without a key is a failed attempt.

    The first few of a connection are one: a client that does not know of the keys asks several
    questions at once, and is to learn it from the answers.
    """
    if connection is None:
        return True
    connection.keyless += 1
    return connection.keyless == 1 or connection.keyless > _KEYLESS_AS_ONE


def denial(request: RemotingCommand, error: AccessDeniedError) -> RemotingCommand:
    """Return the answer to a refused request."""
    return request.response(error.code, remark=str(error), ext_fields={DENIED_FIELD: "true"})


def _denied(reason: str) -> AccessDeniedError:
    return AccessDeniedError(f"access denied: {reason}", code=ResponseCode.SYSTEM_ERROR)


async def _is_signed(
    secret: Secret, request: RemotingCommand, connection: SignedConnection | None
) -> bool:
    """Whether a request's signature is right, with checkpoints if its body is long.

    Raises ProtocolError for names or values that are not text.
    """
    fields, body = request.ext_fields, request.body
    is_long = len(body) > PIECE_SIZE
    if has_own_signature(fields):
        received = None if connection is None else connection.signatures
        if received is None:
            return False
        if is_long:
            return await with_checkpoints(received.admits_in_pieces(secret, request))
        return received.admits(secret, request)
    if is_long:
        return await with_checkpoints(is_signed_in_pieces(secret, fields, body))
    return is_signed_by(secret, fields, body)


def _lacks(account: Account, need: Need) -> AccessDeniedError:
    return _denied(f"access key {account.key.name} needs {need}")


def _key_of(request: RemotingCommand) -> str | None:
    try:
        return text_field(request.ext_fields, ACCESS_KEY_FIELD)
    except ProtocolError:
        return None


def _shown_key(request: RemotingCommand) -> str:
    """Return the name of a request's key for the log: a peer may send anything."""
    return ascii((_key_of(request) or "")[:_KEY_SHOWN_MAX])[1:-1] or "none"


def _check_answer(answer: Answer | None, account: Account) -> None:
    """Raise AccessDeniedError if an answer has a message that the account may not read."""
    if answer is None:
        return
    assert isinstance(answer, RemotingCommand), "queries are answered with commands"
    for record in _records_in(answer.body):
        check = check_record(record, 0, len(record), None, check_crc=False)
        need = _reading(check.topic, check.properties)
        if not account.may(need):
            raise _lacks(account, need)


def _records_in(body: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(body):
        size = int.from_bytes(body[position : position + 4], "big")
        assert size > 0, "a record is larger than its size field"
        yield body[position : position + size]
        position += size


def _reading(topic: bytes, properties: bytes) -> Need:
    """Return what reading a message needs; a delayed one is of the topic that it is for."""
    name = topic.decode(errors="surrogateescape")
    if name == SCHEDULE_TOPIC:
        name = message_codec.decode_properties(properties).get(PROPERTY_REAL_TOPIC, name)
    return Need(Subject.TOPIC, name, SUB)
