"""The requests that concern a node's role: NOTIFY_BROKER_ROLE_CHANGED (1008), and promises.

::

    masterAddress    client port of the group's master, HOST:PORT; empty: the group has none
    masterBrokerId   its node id: this node's own means that it becomes master
    masterEpoch      its epoch
    body             optional, {"syncStateSet": [1, 2, 3]}: the members that the epoch begins with

RocketMQ's controller sends it to brokers (5.x, ``NotifyBrokerRoleChangedRequestHeader``).  The
answer says that the change has begun; ``status`` shows when it is done.

A master that its coordinator does not answer asks the members of its set, with hastore's own code
28103, to promise that they do not stand for election for a while::

    group, epoch, masterId    whose master asks
    ttlMs                     for how long
    nonce                     the answer's body

Without access keys nothing proves who sends 1008; with them hastore's own signature does
(``broker.access.access_guard``).  Either way it is taken only from the node's own machine, unless
its configuration says otherwise.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Final, final

import attrs

from hastore.broker.request_target import PromiseWish, RoleWish
from hastore.errors import HastoreError, ProtocolError, RequestFailedError
from hastore.quantities import parse_address
from hastore.wire import liberal_json
from hastore.wire.remoting_codes import ResponseCode
from hastore.wire.remoting_command import integer_field, required_text_field, text_field

if TYPE_CHECKING:
    from hastore.broker.reply import Answer, ClientConnection
    from hastore.broker.request_target import RequestTarget
    from hastore.wire.remoting_command import RemotingCommand


PROMISE_MS_MAX: Final = 3_600_000


@final
@attrs.define(eq=False)
class RoleProcessor:
    """Answers the request on behalf of ``target``."""

    target: RequestTarget

    async def role_changed(
        self, request: RemotingCommand, client: ClientConnection
    ) -> Answer | None:
        """Begin the change.  Raises RequestFailedError or ProtocolError for one that is refused."""
        control = self.target.role_control
        if control is None:
            raise RequestFailedError(
                f"the role of {self.target.name} is fixed: it is no node of a replica group whose"
                " role may change (hastore node)",
                code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            )
        if not control.takes_remote_roles and not _is_own_machine(client):
            raise RequestFailedError(
                f"{client.peer[0]} may not change the role of {self.target.name}: only requests"
                " from its own machine may, unless it has [node] remote_roles = true",
                code=ResponseCode.NO_PERMISSION,
            )
        wish = _wish_in(request)
        try:
            await control.change_role(wish)
        except RequestFailedError:
            raise
        except HastoreError as error:
            raise RequestFailedError(str(error), code=ResponseCode.SYSTEM_ERROR) from error
        return request.response(ResponseCode.SUCCESS)

    def promise(self, request: RemotingCommand) -> RemotingCommand:
        """Answer a master that its coordinator does not; the nonce comes back.

        Raises RequestFailedError if this node does not promise, ProtocolError for a malformed one.
        """
        control, fields = self.target.role_control, request.ext_fields
        if control is None:
            raise RequestFailedError(
                f"{self.target.name} is in no replica group whose roles a coordinator decides",
                code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            )
        nonce = required_text_field(fields, "nonce")
        ttl_ms = integer_field(fields, "ttlMs")
        if not 0 < ttl_ms <= PROMISE_MS_MAX:
            raise ProtocolError(f"ttlMs is {ttl_ms}, not 1 to {PROMISE_MS_MAX}")
        control.promise(
            PromiseWish(
                group=required_text_field(fields, "group"),
                epoch=integer_field(fields, "epoch"),
                master_id=integer_field(fields, "masterId", bits=64),
                ttl_s=ttl_ms / 1000,
            )
        )
        return request.response(ResponseCode.SUCCESS, body=nonce.encode())


def _is_own_machine(client: ClientConnection) -> bool:
    """Whether the peer is on this machine: on loopback, or with the address that it reached."""
    peer = client.peer[0]
    if peer == client.local_address[0]:
        return True
    address = ipaddress.ip_address(peer.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _wish_in(request: RemotingCommand) -> RoleWish:
    fields = request.ext_fields
    address_text = text_field(fields, "masterAddress")
    epoch = integer_field(fields, "masterEpoch")
    if not address_text or address_text == "null":
        return RoleWish(epoch=epoch)
    try:
        address = parse_address(address_text)
    except ValueError as error:
        raise ProtocolError(f"masterAddress: {error}") from error
    if epoch < 1:
        raise ProtocolError(f"masterEpoch is {epoch}: a master's epochs begin at 1")
    return RoleWish(
        epoch=epoch,
        master_id=integer_field(fields, "masterBrokerId", bits=64),
        master_address=address,
        members=_members_in(request.body),
    )


def _members_in(body: bytes) -> frozenset[int] | None:
    if not body:
        return None
    ids = liberal_json.loads_object(body, "the SyncStateSet").get("syncStateSet")
    if ids is None:
        return None
    if (
        not isinstance(ids, list)
        or not ids
        or any(type(each) is not int or each < 1 for each in ids)
    ):
        raise ProtocolError(f"the syncStateSet is {ids!r}, not a list of node ids")
    return frozenset(ids)
