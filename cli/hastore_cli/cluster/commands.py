"""``hastore cluster``: the commands, their flags and their exit codes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import rich_click as click

from hastore.setting import Kind
from hastore_cli.acl.asking_command import AskingCommand
from hastore_cli.app.command import ExampleCommand, LazyGroup, output_option
from hastore_cli.cluster.target import target_options
from hastore_cli.settings.kinds import parse_value
from hastore_cli.settings.param_types import (
    DURATION_MS,
    ParsedType,
    WholeNumber,
    complete_directory,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from hastore.broker.observe.node_status import NodeStatus
    from hastore.cluster.group_records import GroupView, Keys
    from hastore.cluster.loss import Loss
    from hastore.cluster.operations import Change
    from hastore_cli.cluster.asking import Asked
    from hastore_cli.cluster.by_hand import Heard
    from hastore_cli.cluster.losses import LogAnswers
    from hastore_cli.cluster.report import Answers
    from hastore_cli.cluster.target import Target

_T = TypeVar("_T")
EXIT_DRY_RUN: Final = 10
_TIMEOUT: Final = "30s"
_CODES: Final = (
    "Exit code: 0 done, or nothing to do; 10 there is something to change (--dry-run); 6 refused;"
    " 3 etcd does not answer: it may have been done; 2 no such group."
)
_WAIT_CODES: Final = f"{_CODES[:-1]}; 5 it was not master in time."
_ID: Final = WholeNumber(min=1)
_IDS: Final = ParsedType("N,N", lambda text: parse_value(Kind.COUNTS, text), (), is_number=True)

_DIRECTORY: Final = click.Path(path_type=Path)

_dry_run: Final = click.option(
    "--dry-run", is_flag=True, help="Say what would change, and change nothing."
)
_timeout: Final = click.option(
    "--timeout",
    "timeout_ms",
    type=DURATION_MS,
    default=_TIMEOUT,
    show_default=True,
    metavar="TIME",
    help="How long to wait until it is master.",
)
_accept_loss: Final = click.option(
    "--accept-loss", is_flag=True, help="Also if acknowledged messages may be lost."
)
_force: Final = click.option(
    "--force-with-live-master", is_flag=True, help="Also while there is a master: depose it."
)
_nodes: Final = click.option(
    "--node",
    "nodes",
    multiple=True,
    metavar="H:P",
    shell_complete=complete_directory,
    help="Without a coordinator: a node's client port, or its directory; repeatable.",
)


@click.group(
    name="cluster",
    cls=LazyGroup,
    examples=(
        "hastore cluster status --etcd http://127.0.0.1:2379",
        "hastore cluster switchover --to 2 --dry-run",
        "hastore cluster failover --node D2 --node D3 --ids 1,2,3",
    ),
)
def cluster_group() -> None:
    """Show who is master in a replica group, and change it.

    The group's coordinator is named by --etcd, by $HASTORE_CLUSTER_ETCD, or by [cluster] of
    the configuration file.
    """


# -- looking -------------------------------------------------------------------------------------


@cluster_group.command(
    name="status",
    cls=AskingCommand,
    examples=(
        "hastore cluster status --etcd http://127.0.0.1:2379",
        "hastore cluster status --group g1 -o json | jq '.leader.id'",
        "hastore cluster status --node 127.0.0.1:10911 --node 127.0.0.1:10921",
    ),
    epilog="Exit code: 0 when it was shown; 3 etcd, or one of the nodes, does not answer; 2 no such"
    " group.",
)
@_nodes
@target_options
@output_option()
def status(*, nodes: tuple[str, ...], target: Target, output: str) -> int:
    """Show the group's epoch, its master, the SyncStateSet and each node.

    Each node is asked for its role and its log's end; of one that does not answer, what it wrote to
    etcd last is shown, with its age.
    """
    if nodes:
        return _node_status(nodes, output)
    from hastore_cli.app.terminal import tell
    from hastore_cli.cluster.report import status_json, status_lines

    asked, view, answers = _look_around(target)
    if output == "json":
        _echo(status_json(asked, view, answers))
        return 0
    for line in status_lines(asked, view, answers):
        tell(line)
    return 0


def _node_status(nodes: tuple[str, ...], output: str) -> int:
    from hastore_cli.app.terminal import say, tell
    from hastore_cli.cluster.by_hand import hear
    from hastore_cli.cluster.report import facts_json, facts_lines

    heard = _run(lambda: hear(nodes))
    if output == "json":
        _echo(facts_json(heard.nodes, heard.silent))
    else:
        for line in facts_lines(heard.nodes):
            tell(line)
    for text in heard.silent:
        say(f"{text} does not answer")
    return 3 if heard.silent else 0


@cluster_group.command(
    name="members",
    cls=ExampleCommand,
    examples=("hastore cluster members", "hastore cluster members -o json | jq '.nodes[].uuid'"),
    epilog="Exit code: 0 when they were shown; 3 etcd does not answer; 2 no such group.",
)
@target_options
@output_option()
def members(*, target: Target, output: str) -> None:
    """List the group's nodes: where each listens, its directory, its version."""
    from hastore_cli.app.terminal import tell
    from hastore_cli.cluster.report import members_json, members_lines

    asked, view, answers = _look_around(target)
    if output == "json":
        _echo(members_json(asked, view, answers))
        return
    for line in members_lines(view, answers):
        tell(line)


@cluster_group.command(
    name="history",
    cls=AskingCommand,
    examples=(
        "hastore cluster history",
        "hastore cluster history -o json | jq '.epochs[-1].lost'",
        "hastore cluster history --node D1 --node D2 --node D3",
    ),
    epilog="Exit code: 0 when it was shown, without the cuts of nodes of a version that cannot tell"
    " them; 3 etcd, or one of the nodes, does not answer; 2 no such group.",
)
@_nodes
@target_options
@output_option()
def history(*, nodes: tuple[str, ...], target: Target, output: str) -> int:
    """List the group's epochs: when each began, from which master to which, why, and what it cost.

    Lost is what the failover was known to lose; cut is what nodes have cut off their logs since,
    and keep in trimmed/. Without a coordinator (--node) the epochs are those of the newest log.
    """
    if nodes:
        return _node_history(nodes, output)
    from hastore_cli.app.terminal import say, tell
    from hastore_cli.cluster.asking import ask
    from hastore_cli.cluster.losses import addresses_of, ask_logs, too_old_lines
    from hastore_cli.cluster.report import history_json, history_lines

    async def run() -> tuple[Asked, GroupView, LogAnswers]:
        async with ask(target) as asked:
            view = await asked.view()
            return asked, view, await ask_logs(addresses_of(view))

    asked, view, answers = _run(run)
    if output == "json":
        _echo(history_json(asked, view, answers))
    elif view.history:
        for line in history_lines(view, answers):
            tell(line)
    else:
        say("the group has had no master yet")
    for line in too_old_lines(answers):
        say(line)
    for node_id in answers.silent:
        say(f"node {node_id} does not say what it has cut")
    return 3 if answers.silent else 0


def _node_history(nodes: tuple[str, ...], output: str) -> int:
    from hastore_cli.app.terminal import say, tell
    from hastore_cli.cluster.by_hand import hear
    from hastore_cli.cluster.losses import ask_logs, too_old_lines
    from hastore_cli.cluster.report import log_history_json, log_history_lines

    async def run() -> tuple[Heard, LogAnswers]:
        heard = await hear(nodes)
        return heard, await ask_logs(heard.addresses)

    heard, answers = _run(run)
    if not heard.addresses:
        raise click.UsageError(f"None of {', '.join(nodes)} is a node of a replica group.")
    newest = max(
        answers.logs.values(),
        key=lambda log: (log.epochs.end_epoch(log.end_offset) or 0, log.end_offset),
        default=None,
    )
    if output == "json":
        _echo(log_history_json(heard.nodes[0].group, newest, answers))
    elif newest is not None:
        for line in log_history_lines(newest, answers):
            tell(line)
    for line in too_old_lines(answers):
        say(line)
    for text in (*heard.silent, *(f"node {node_id}" for node_id in answers.silent)):
        say(f"{text} does not answer")
    return 3 if heard.silent or answers.silent or newest is None else 0


# -- changing ------------------------------------------------------------------------------------


@cluster_group.command(
    name="switchover",
    cls=ExampleCommand,
    examples=("hastore cluster switchover", "hastore cluster switchover --to 2 --dry-run"),
    epilog=_WAIT_CODES,
)
@click.option("--to", "to_id", type=_ID, metavar="ID", help="The next master. [default: the best]")
@click.option("--force", is_flag=True, help="Also to a node that cannot store, such as a full one.")
@_timeout
@_dry_run
@target_options
@output_option()
def switchover(
    *, to_id: int | None, force: bool, timeout_ms: int, dry_run: bool, target: Target, output: str
) -> int:
    """Let another member of the SyncStateSet become master; no message is lost.

    The master stops taking puts for a moment, until the other one has all of them. If that takes
    too long it takes the wish back and goes on.
    """
    from hastore.cluster import operations
    from hastore_cli.cluster.heard import hear, lags_in, refreshed

    statuses: dict[int, NodeStatus] = {}

    async def look(view: GroupView, group: str) -> None:
        statuses.update(await hear(view, view.members, group))

    def decide(keys: Keys, view: GroupView) -> Change:
        heard = {at: statuses[at] for at in statuses.keys() & view.members.keys()}
        lags = lags_in(view, heard)
        return operations.switchover(keys, refreshed(view, heard), to_id, lags=lags, force=force)

    return _become_master(target, decide, timeout_ms, output, dry_run=dry_run, look=look)


@cluster_group.command(
    name="failover",
    cls=AskingCommand,
    examples=(
        "hastore cluster failover --to 2 --dry-run",
        "hastore cluster failover --to 2 --accept-loss",
        "hastore cluster failover --node D2 --node D3 --ids 1,2,3",
    ),
    epilog=f"{_WAIT_CODES} Without a coordinator 3 means that no node answers.",
)
@click.option("--to", "to_id", type=_ID, metavar="ID", help="The next master.")
@_accept_loss
@_force
@_nodes
@click.option(
    "--ids",
    type=_IDS,
    metavar="N,N",
    envvar="HASTORE_NODE_GROUP_IDS",
    show_envvar=True,
    help="With --node: the ids of all nodes of the group, up or not.",
)
@_timeout
@_dry_run
@target_options
@output_option()
def failover(
    *,
    to_id: int | None,
    accept_loss: bool,
    force_with_live_master: bool,
    nodes: tuple[str, ...],
    ids: tuple[int, ...] | None,
    timeout_ms: int,
    dry_run: bool,
    target: Target,
    output: str,
) -> int:
    """Make a node master although the former one is gone, and no election helps.

    With a coordinator only that node may stand then. With --node, without a coordinator: these
    nodes, a majority of the group's ids, first give up the former master; then the one with the
    newest log becomes master.
    """
    if nodes:
        return _fail_over_by_hand(
            nodes,
            ids or target.ids,
            to_id,
            timeout_ms,
            output,
            accept_loss=accept_loss,
            force_with_live_master=force_with_live_master,
            dry_run=dry_run,
        )
    from hastore.cluster import operations
    from hastore_cli.app.output import wall_clock_ms
    from hastore_cli.cluster.losses import addresses_of, known_ids, survey_loss

    target.require_coordinator()
    if to_id is None:
        raise click.UsageError("Missing option '--to'.")
    found: list[Loss] = []

    async def look(view: GroupView, group: str) -> Loss:  # noqa: ARG001 - as a switchover's
        found.append(await survey_loss(addresses_of(view), known_ids(view), to_id))
        _tell_loss(found[0], output, dry_run=dry_run)
        return found[0]

    def decide(keys: Keys, view: GroupView) -> Change:
        return operations.failover(
            keys,
            view,
            to_id,
            at_ms=wall_clock_ms(),
            accept_loss=accept_loss,
            force_with_live_master=force_with_live_master,
            lost=found[0].at_least,
            confirmed=found[0].confirmed,
            uncounted=found[0].uncounted,
            uncounted_confirmed=found[0].uncounted_confirmed,
        )

    return _become_master(target, decide, timeout_ms, output, dry_run=dry_run, look=look)


def _tell_loss(loss: Loss, output: str, *, dry_run: bool) -> None:
    """Say what a failover would lose: on stdout if that was all that was asked for."""
    from hastore_cli.app.terminal import say, tell
    from hastore_cli.cluster.losses import loss_lines, silent_lines

    to = tell if dry_run and output != "json" else say
    for line in loss_lines(loss):
        to(line)
    for line in silent_lines(loss):
        say(line)


@contextlib.contextmanager
def _loss_in_refusals(loss: Loss | None, output: str, *, dry_run: bool) -> Iterator[None]:
    """Say in JSON, too, what would be lost, if it is refused to change anything for that."""
    from hastore.errors import OperationRefusedError
    from hastore_cli.cluster.report import CHANGE_SCHEMA

    try:
        yield
    except OperationRefusedError as error:
        if loss is not None and dry_run and output == "json":
            refused = {"what": str(error), "done": False, "loss": loss.to_json()}
            _echo({"schema": CHANGE_SCHEMA, **refused})
        raise


def _fail_over_by_hand(
    nodes: tuple[str, ...],
    ids: tuple[int, ...] | None,
    to_id: int | None,
    timeout_ms: int,
    output: str,
    *,
    accept_loss: bool,
    force_with_live_master: bool,
    dry_run: bool,
) -> int:
    import trio

    from hastore.cluster.by_hand import plan
    from hastore_cli.cluster.by_hand import fail_over, hear, wait_for_master
    from hastore_cli.cluster.losses import survey_loss

    async def run() -> tuple[str, dict[str, Any]]:
        heard = await hear(nodes)
        known = ids or next((n.configured_ids for n in heard.nodes if n.configured_ids), None)
        addresses = heard.addresses
        best_id = min(heard.nodes, key=lambda each: each.rank).node_id
        chosen_id = best_id if to_id is None else to_id
        loss = None
        if chosen_id in addresses:
            loss = await survey_loss(addresses, {*addresses, *(known or ())}, chosen_id)
            _tell_loss(loss, output, dry_run=dry_run)
        with _loss_in_refusals(loss, output, dry_run=dry_run):
            planned = plan(
                heard.nodes,
                ids,
                to_id,
                accept_loss=accept_loss,
                force_with_live_master=force_with_live_master,
            )
        lost = None if loss is None else loss.to_json()
        what = f"node {planned.master_id} becomes master of epoch {planned.epoch}"
        what += f"; {planned.loss}" if planned.loss else ""
        if dry_run:
            return what, {"to": planned.master_id, "epoch": planned.epoch, "loss": lost}
        began = trio.current_time()
        master_id = await fail_over(heard, planned, known, accept_loss=accept_loss, chosen=to_id)
        await wait_for_master(heard, master_id, planned.epoch, timeout_ms / 1_000)
        took_s = trio.current_time() - began
        what = f"node {master_id} is master of epoch {planned.epoch}, after {took_s:.1f} s"
        done = {"to": master_id, "epoch": planned.epoch, "took_s": round(took_s, 3)}
        return what, done | {"loss": lost}

    what, values = _run(run)
    return _report(what, values, output, dry_run=dry_run)


@cluster_group.command(
    name="pause", cls=ExampleCommand, examples=("hastore cluster pause",), epilog=_CODES
)
@_dry_run
@target_options
@output_option()
def pause(*, dry_run: bool, target: Target, output: str) -> int:
    """Stop elections, as before work on the machines; a master that leads goes on.

    If it dies meanwhile, the group has no master until `hastore cluster resume`.
    """
    from hastore.cluster import operations

    return _change(target, operations.pause, output, dry_run=dry_run)


@cluster_group.command(
    name="resume", cls=ExampleCommand, examples=("hastore cluster resume",), epilog=_CODES
)
@_dry_run
@target_options
@output_option()
def resume(*, dry_run: bool, target: Target, output: str) -> int:
    """Let elections go on."""
    from hastore.cluster import operations

    return _change(target, operations.resume, output, dry_run=dry_run)


@cluster_group.command(
    name="init",
    cls=ExampleCommand,
    examples=("hastore cluster init --dry-run", "hastore cluster init --ids 1,2,3"),
    epilog=_CODES,
)
@click.option(
    "--ids", type=_IDS, metavar="N,N", help="The first members. [default: all that are up]"
)
@click.option(
    "--force",
    is_flag=True,
    help="Also if nodes have logs: begin with the newest one. What etcd has stays, unless it cannot"
    " be read, or the alarm is raised and no node is master.",
)
@_dry_run
@target_options
@output_option()
def init(
    *, ids: tuple[int, ...] | None, force: bool, dry_run: bool, target: Target, output: str
) -> int:
    """Let a group begin whose nodes do not begin by themselves.

    Nodes with empty directories that all name the same --group-ids need no init.
    """
    from hastore.cluster import operations

    def decide(keys: Keys, view: GroupView) -> Change:
        return operations.init(keys, view, ids, force=force)

    return _change(target, decide, output, dry_run=dry_run, is_repair=True)


@cluster_group.command(
    name="remove",
    cls=ExampleCommand,
    examples=("hastore cluster remove 3 --dry-run", "hastore cluster remove 3"),
    epilog=_CODES,
)
@click.argument("node_id", type=_ID, metavar="ID")
@_dry_run
@target_options
@output_option()
def remove(*, node_id: int, dry_run: bool, target: Target, output: str) -> int:
    """Forget a node that is down: it leaves the SyncStateSet, and its id is free.

    Its directory is not touched. A node that is started with this id again is a new one.
    """
    from hastore.cluster import operations

    def decide(keys: Keys, view: GroupView) -> Change:
        return operations.remove(keys, view, node_id)

    return _change(target, decide, output, dry_run=dry_run)


@cluster_group.command(
    name="reinit",
    cls=ExampleCommand,
    examples=("hastore cluster reinit /var/lib/hastore/n3 --dry-run", "hastore cluster reinit D3"),
    epilog=_CODES,
)
@click.argument("directory", type=_DIRECTORY, metavar="DIR", shell_complete=complete_directory)
@_dry_run
@target_options
@output_option()
def reinit(*, directory: Path, dry_run: bool, target: Target, output: str) -> int:
    """Let a node begin again with an empty directory: its next start copies the master's log.

    On the node's machine, with the node stopped. It leaves the SyncStateSet first. DIR is kept
    beside itself under another name, DIR.before-TIME, until you remove it.
    """
    from hastore.cluster import operations
    from hastore_cli.app.terminal import say_next
    from hastore_cli.cluster import directories
    from hastore_cli.cluster.asking import ask

    target.require_coordinator()
    if not directory.is_symlink():
        directory = directory.resolve()  # for its own name, and its parent's
    identity = directories.identity_of(directory)
    target = target.of_group(identity.group, f"{directory} belongs to {identity}")

    def decide(keys: Keys, view: GroupView) -> Change:
        return operations.reinit(keys, view, identity.node_id, identity.uuid)

    async def run() -> Change:
        async with ask(target) as asked:
            change, _ = await asked.change(decide, dry_run=dry_run)
            return change

    with directories.locked(directory):
        kept = directories.place_beside(directory)
        change = _run(run)
        if not dry_run:
            directories.set_aside(directory, kept)
    values = {"node": identity.node_id, "kept": str(kept)}
    code = _report(f"{change.what}; {directory} is kept as {kept}", values, output, dry_run=dry_run)
    if not dry_run:
        say_next(f"start node {identity.node_id} as before: it copies its master's log")
    return code


@cluster_group.command(
    name="adopt",
    cls=ExampleCommand,
    examples=(
        "hastore cluster adopt /var/lib/hastore/a --node-id 1 --group g1 --dry-run",
        "hastore cluster adopt D1 --node-id 1 --group g1 --etcd http://127.0.0.1:2379",
    ),
    epilog=_CODES,
)
@click.argument("directory", type=_DIRECTORY, metavar="DIR", shell_complete=complete_directory)
@click.option("--node-id", type=_ID, required=True, metavar="ID", help="The node's id from now on.")
@_dry_run
@target_options
@output_option()
def adopt(*, directory: Path, node_id: int, dry_run: bool, target: Target, output: str) -> int:
    """Let a group begin with the log of a classic master, which becomes its epoch 1.

    On the master's machine, with all nodes stopped. The group's other nodes start with empty
    directories and copy it: nothing says how far the log of a classic slave is the same. The
    classic protocol does not accept DIR afterwards.
    """
    from hastore.cluster import operations
    from hastore.cluster.group_records import Incarnation
    from hastore.errors import HastoreError
    from hastore_cli.app.terminal import say_next
    from hastore_cli.cluster import directories
    from hastore_cli.cluster.asking import ask

    target.require_coordinator()
    if target.group is None:
        raise click.UsageError("Missing option '--group'.")
    group = target.group
    drawn = Incarnation(node_id, "00000000-0000-0000-0000-000000000000", 1)  # for the check only

    async def run() -> str:
        async with ask(target, may_be_new=True) as asked:
            change = operations.adopt(asked.keys, await asked.view(), drawn, "")
            if dry_run:
                return change.what
            identity, token = directories.adopt_directory(directory, node_id, group)
            node = Incarnation(node_id, identity.uuid, identity.starts)
            try:
                await asked.change(
                    lambda keys, view: operations.adopt(keys, view, node, token), dry_run=False
                )
            except HastoreError as error:
                error.hint = f"{directory} is {identity} now, and the group has no state: start it"
                error.hint += " with --etcd, then: hastore cluster init --force"
                raise
            return change.what

    with directories.locked(directory):
        begin = directories.check_adoptable(directory)
        what = _run(run)
    values = {"node": node_id, "group": group, "begin": begin}
    code = _report(f"{what}, from {begin} on: epoch 1", values, output, dry_run=dry_run)
    if not dry_run:
        say_next(
            f"hastore node --data {directory} --node-id {node_id} --node-group {group}"
            " --etcd …; the others with empty directories"
        )
    return code


@cluster_group.command(
    name="clear-alarm",
    cls=ExampleCommand,
    examples=("hastore cluster clear-alarm",),
    epilog=_CODES,
)
@_dry_run
@target_options
@output_option()
def clear_alarm(*, dry_run: bool, target: Target, output: str) -> int:
    """Take the alarm back, once its cause is gone: nodes may become master again.

    A node raises it that knows more than etcd does: etcd was restored to an earlier time, or the
    node's directory is of another group. Without an alarm, confirm the epoch that began although no
    member was proven.
    """
    from hastore.cluster import operations

    return _change(target, operations.clear_alarm, output, dry_run=dry_run)


# -- the runs ------------------------------------------------------------------------------------


def _run(work: Callable[[], Awaitable[_T]]) -> _T:
    import trio

    from hastore_cli.app.error_report import collapsed

    with collapsed():
        return trio.run(work)


def _look_around(target: Target) -> tuple[Asked, GroupView, Answers]:
    """Return a group as etcd has it, and what its nodes that are up answer."""
    from hastore.errors import CoordinatorError, HastoreError
    from hastore_cli.app.output import wall_clock_ms
    from hastore_cli.cluster.asking import ask
    from hastore_cli.cluster.heard import hear
    from hastore_cli.cluster.report import Answers

    async def run() -> tuple[Asked, GroupView, Answers]:
        async with ask(target) as asked:
            view, alarms = await asked.whatever_is_there(), frozenset[str]()
            with contextlib.suppress(CoordinatorError):  # a user may read keys alone
                alarms = await asked.store.alarms()
            failures: dict[int, HastoreError] = {}
            statuses = await hear(view, view.members, asked.group, failures=failures)
            answers = Answers(
                now_ms=wall_clock_ms(), statuses=statuses, failures=failures, etcd_alarms=alarms
            )
            return asked, view, answers

    return _run(run)


def _change(
    target: Target,
    decide: Callable[[Keys, GroupView], Change],
    output: str,
    *,
    dry_run: bool,
    is_repair: bool = False,
) -> int:
    from hastore_cli.cluster.asking import ask

    async def run() -> Change:
        async with ask(target) as asked:
            change, _ = await asked.change(decide, dry_run=dry_run, is_repair=is_repair)
            return change

    change = _run(run)
    return _report(change.what, {}, output, dry_run=dry_run, has_changes=bool(change.writes))


def _become_master(
    target: Target,
    decide: Callable[[Keys, GroupView], Change],
    timeout_ms: int,
    output: str,
    *,
    dry_run: bool,
    look: Callable[[GroupView, str], Awaitable[Loss | None]],
) -> int:
    """Change something by which a node becomes master, and wait until it is.

    ``look`` asks the nodes of the named group before; it returns what would be lost, if anything.
    """
    import trio

    from hastore_cli.app.terminal import say
    from hastore_cli.cluster.asking import ask

    async def run() -> tuple[str, dict[str, Any]]:
        async with ask(target) as asked:
            loss = await look(await asked.view(), asked.group)
            values = {} if loss is None else {"loss": loss.to_json()}
            with _loss_in_refusals(loss, output, dry_run=dry_run):
                change, view = await asked.change(decide, dry_run=dry_run)
            to_id = change.to_id
            assert to_id is not None, change
            if dry_run:
                return change.what, {"to": to_id, **values}
            began = trio.current_time()
            say(change.what)
            before = 0 if view.state is None else view.state.epoch
            epoch = await asked.wait_for_master(to_id, before, timeout_ms / 1_000)
            took_s = trio.current_time() - began
            what = f"node {to_id} is master of epoch {epoch}, after {took_s:.1f} s"
            return what, {"to": to_id, "epoch": epoch, "took_s": round(took_s, 3), **values}

    what, values = _run(run)
    return _report(what, values, output, dry_run=dry_run)


def _report(
    what: str,
    values: dict[str, Any],
    output: str,
    *,
    dry_run: bool,
    has_changes: bool = True,
) -> int:
    """Print what was done, or would be; return the exit code."""
    from hastore_cli.app.terminal import say, tell
    from hastore_cli.cluster.report import CHANGE_SCHEMA

    if output == "json":
        done = has_changes and not dry_run
        _echo({"schema": CHANGE_SCHEMA, "what": what, "done": done, **values})
    else:
        tell(what)
    if not dry_run:
        return 0
    say("nothing changed (--dry-run)" if has_changes else "nothing to change")
    return EXIT_DRY_RUN if has_changes else 0


def _echo(value: object) -> None:
    from hastore_cli.app.output import echo_json

    echo_json(value)
