"""A group without a coordinator: asks its nodes, and makes one of them master.

``hastore.cluster.by_hand`` decides; RocketMQ's request 1008 tells the nodes.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.client.admin import AdminClient
from hastore.cluster.by_hand import NodeFacts, Plan, check_promises, choose
from hastore.errors import HastoreError, OperationRefusedError, UnreachableError
from hastore.quantities import format_address
from hastore_cli.acl.access_key import access_key
from hastore_cli.acl.asking_command import client_tls
from hastore_cli.app.terminal import say
from hastore_cli.cluster.asking import TimedOutError
from hastore_cli.node.address import NamedNode, find_node
from hastore_cli.node.client import gather

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LOOK_AGAIN_S: Final = 0.1
_CHANGE_TIME_MAX_S: Final = 10.0
_REST_TIME_MAX_S: Final = 3.0


@final
@attrs.frozen
class Heard:
    """What the nodes say, and the addresses of those that did not answer."""

    nodes: tuple[NodeFacts, ...]
    silent: tuple[str, ...]

    @property
    def addresses(self) -> dict[int, tuple[str, int]]:
        """The client ports of those that are nodes of a group, by id."""
        return {each.node_id: each.address for each in self.nodes if each.node_id is not None}


async def hear(addresses: Sequence[str]) -> Heard:
    """Ask all nodes at once.  Raises UnreachableError if none answers."""

    async def ask(text: str) -> NodeFacts | HastoreError:
        try:
            node = find_node(text)
            return NodeFacts.of(node.address, await node.status())
        except UnreachableError as error:
            return error

    answers = await gather(ask, addresses)
    errors = [each for each in answers if isinstance(each, HastoreError)]
    if len(errors) == len(answers):
        raise errors[0]
    silent = [
        text
        for text, answer in zip(addresses, answers, strict=True)
        if isinstance(answer, HastoreError)
    ]
    return Heard(tuple(each for each in answers if isinstance(each, NodeFacts)), tuple(silent))


async def fail_over(
    heard: Heard, planned: Plan, ids: Sequence[int] | None, *, accept_loss: bool, chosen: int | None
) -> int:
    """Let the nodes give up the former master, then make one of them master; return which.

    The node is the planned one, unless the promises show a newer log.  Raises
    OperationRefusedError if too few nodes promise, and the error of the node that is to be master.
    """
    promised, failure = [], None
    for node in heard.nodes:
        try:
            await _name_master(node, heard.nodes, planned.nobodys_epoch, None)
        except HastoreError as error:
            say(f"node {node.node_id} was not told: {error}")
            failure = error
        else:
            promised.append(node)
    if not promised:
        assert failure is not None, "there is a node"
        raise failure

    def is_enough(nodes: Sequence[NodeFacts]) -> bool:
        try:
            check_promises(nodes, ids, planned.nobodys_epoch)
        except OperationRefusedError:
            return accept_loss
        return True

    again = await _hear_again([format_address(node.address) for node in promised], is_enough)
    if not accept_loss:
        check_promises(again.nodes, ids, planned.nobodys_epoch)
    master_id, _ = choose(again.nodes, chosen, accept_loss=accept_loss)
    master = next(node for node in again.nodes if node.node_id == master_id)
    for node in (*(each for each in again.nodes if each is not master), master):
        try:
            await _name_master(node, again.nodes, planned.epoch, master)
        except HastoreError as error:
            if node is master:
                raise
            say(f"node {node.node_id} was not told who is master: {error}")
    return master_id


async def _hear_again(
    addresses: Sequence[str], is_enough: Callable[[Sequence[NodeFacts]], bool]
) -> Heard:
    """Ask nodes until all answer, which they may not do while they change their roles.

    Once those that answer are enough, the others, which may have died, get _REST_TIME_MAX_S.
    """
    began = trio.current_time()
    with trio.move_on_after(_CHANGE_TIME_MAX_S):
        while True:
            with contextlib.suppress(UnreachableError):
                heard = await hear(addresses)
                if not heard.silent:
                    return heard
                is_late = trio.current_time() - began > _REST_TIME_MAX_S
                if is_late and is_enough(heard.nodes):
                    return heard
            await trio.sleep(_LOOK_AGAIN_S)
    return await hear(addresses)


async def _name_master(
    node: NodeFacts, members: Sequence[NodeFacts], epoch: int, master: NodeFacts | None
) -> None:
    async with AdminClient.connect(
        node.address, access_key=access_key(), tls=client_tls()
    ) as admin:
        await admin.change_role(
            epoch=epoch,
            master_id=None if master is None else master.node_id,
            master_address=None if master is None else master.address,
            members=[each.node_id for each in members if each.node_id is not None],
        )


async def wait_for_master(heard: Heard, master_id: int, epoch: int, timeout_s: float) -> None:
    """Wait until a node is master of an epoch.  Raises TimedOutError."""
    address = next(node.address for node in heard.nodes if node.node_id == master_id)
    with trio.move_on_after(timeout_s):
        while True:
            facts = None
            with contextlib.suppress(UnreachableError):  # it opens its log as a master's
                facts = NodeFacts.of(address, await NamedNode(address).status())
            if facts is not None and facts.is_master and facts.last_epoch == epoch:
                return
            if facts is not None and facts.seen_epoch > epoch:
                raise OperationRefusedError(
                    f"node {master_id} has seen epoch {facts.seen_epoch} meanwhile: somebody else"
                    " changes roles, too",
                    hint="hastore cluster status --node HOST:PORT for each",
                )
            await trio.sleep(_LOOK_AGAIN_S)
    raise TimedOutError(
        f"node {master_id} was not master within {timeout_s:g} s",
        hint=f"hastore status {format_address(address)}; its log says why",
    )
