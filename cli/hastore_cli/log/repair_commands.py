"""``hastore log repair`` and ``hastore log rebuild``, which change a directory."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import rich_click as click

from hastore.quantities import format_address
from hastore_cli.acl.asking_command import AskingCommand, ha_client_tls
from hastore_cli.app.command import ExampleCommand, output_option
from hastore_cli.app.output import echo_json
from hastore_cli.cluster.target import target_options
from hastore_cli.log.options import DIR, quiet_logging
from hastore_cli.node.options import RefusedError
from hastore_cli.settings.config_file import config_option, read_store_config
from hastore_cli.settings.param_types import complete_directory

if TYPE_CHECKING:
    from hastore.ha.log_fetch import GroupLogReader
    from hastore.store.tools.log_directory import LogDirectory
    from hastore.store.tools.repair.plan import RepairPlan
    from hastore.store.tools.repair.source import DirectorySource, RepairSource
    from hastore_cli.cluster.target import Target

_KEPT_SIZE_MAX: Final = 64 * 1024 * 1024
EXIT_DRY_RUN: Final = 10


@click.command(
    cls=AskingCommand,
    examples=(
        "hastore log repair D1 --dry-run",
        "hastore log repair D1 --from-replica D2",
        "hastore log repair D1 --from-replica db1:10912   # a master's HA port",
        "hastore log repair D1 --backup /mnt/old --yes    # loses what is damaged",
        "hastore log repair D1 --yes --etcd http://127.0.0.1:2379",
    ),
    epilog="Changed bytes are first copied to --backup or DIR/trimmed. Exit code: 0 repaired, or"
    " nothing to repair; 10 a repair is needed (--dry-run); 4 it cannot be repaired this way; 6"
    " refused: a node runs on it, messages would be lost and --yes is missing, or no other node of"
    " its group could be elected; 3 etcd does not answer.",
)
@click.argument("dir", type=DIR)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and change nothing.")
@click.option(
    "--from-replica",
    metavar="DIR|H:P",
    shell_complete=complete_directory,
    help="Take the bytes from a replica: its directory, or a master's HA port.",
)
@click.option(
    "--backup", type=click.Path(file_okay=False), metavar="DIR", help="Copy old bytes there."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask, even if messages are lost.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Also if no other node of the replica group may be elected then. Implies --yes.",
)
@target_options
@output_option()
def repair(
    *,
    dir: str,  # noqa: A002 - the argument's name in --help
    dry_run: bool,
    from_replica: str | None,
    backup: str | None,
    yes: bool,
    accept_loss: bool,
    target: Target,
    output: str,
) -> int:
    """Repair a damaged log with a replica's bytes, or by removing what cannot be read.

    Reads the whole log first. With a replica nothing is lost. Without one a damaged range becomes
    fillers, which every reader passes over, so that later offsets stay valid; a damaged end is cut
    off. A torn end needs no repair: the node's next start trims it. A node of a replica group that
    may lack messages then is not elected before it has compared its log with its master's. --etcd
    names the coordinator, which says whether another node may be elected meanwhile.
    """
    from hastore.env.real import real_env
    from hastore.store.index.service import INDEX_DIR
    from hastore.store.tools.log_directory import find_log
    from hastore.store.tools.repair.log_repair import apply_repair, is_unfinished
    from hastore.store.tools.repair.lost import lost_messages
    from hastore.store.tools.repair.plan import plan_repair
    from hastore_cli.app.progress_bar import reading_bar
    from hastore_cli.app.terminal import say, say_next, tell
    from hastore_cli.log.json import lost_size, repair_json
    from hastore_cli.log.text import done_lines, plan_lines

    quiet_logging()
    env = real_env()
    log = find_log(env.disk, dir)
    source = None if from_replica is None else _source(from_replica, log)
    with reading_bar("reading", log.size) as on_progress:
        plan = plan_repair(env.disk, dir, source=source, on_progress=on_progress)
    lost = lost_messages(env.disk, plan.data_dir, plan.lost)
    if output == "table":
        for line in plan_lines(plan, lost):
            tell(line)
    is_needed = not plan.is_empty or is_unfinished(env.disk, plan.data_dir)
    if dry_run or not is_needed:
        if output == "json":
            echo_json(repair_json(plan, lost, None))
        unfinished = ": an earlier repair is to be finished" if plan.is_empty else ""
        say(f"nothing changed (--dry-run){unfinished}" if is_needed else "nothing to repair")
        return EXIT_DRY_RUN if is_needed else 0
    if plan.is_lossy and not accept_loss:
        _check_is_not_needed(plan, target)
    if lost_size(plan) and not yes and not accept_loss:
        _confirm_loss(plan, dir)
    size = sum(part.stop - part.start for part in plan.parts)
    with reading_bar("repairing", size) as on_progress:
        report = apply_repair(env, plan, source=source, backup_dir=backup, on_progress=on_progress)
    if output == "json":
        echo_json(repair_json(plan, lost, report))
    else:
        for line in done_lines(plan, report):
            tell(line)
    has_index = env.disk.exists(f"{plan.data_dir}/{INDEX_DIR}")
    if lost_size(plan) and has_index:  # it still names the lost messages, which verify calls damage
        say_next(f"hastore log rebuild {dir} --index, then hastore log verify {dir}")
    else:
        say_next(f"hastore log verify {dir}")
    return 0


def _source(text: str, log: LogDirectory) -> RepairSource:
    """Return the replica that a name means, for the repair of a log.

    Raises ConfigError, WrongNodeError for a directory of another replica group.
    """
    from hastore.env.real import RealDisk
    from hastore.errors import ConfigError
    from hastore.store.tools.repair.source import DirectorySource
    from hastore_cli.node.address import find_node

    if ":" in text and not Path(text).is_dir() and not text.startswith(("/", ".")):
        try:
            return MasterSource(find_node(text).address, _reader_of(log))
        except ConfigError as error:
            raise ConfigError(
                str(error), hint="name a replica's directory, or HOST:PORT of a master's HA port"
            ) from None
    source = DirectorySource(RealDisk(), text)
    _check_is_same_group(log, source)
    return source


def _reader_of(log: LogDirectory) -> GroupLogReader | None:
    """Return who reads the log of the group's master; None of a log of no replica group."""
    from hastore.env.real import real_env
    from hastore.ha.log_fetch import GroupLogReader
    from hastore.store.epoch_file import EPOCH_FILE, EpochFile
    from hastore.store.node_identity import read_identity

    env = real_env()
    identity = None if log.root is None else read_identity(env.disk, log.root)
    if identity is None:
        return None
    return GroupLogReader(
        epochs=EpochFile(env.disk, f"{log.root}/{EPOCH_FILE}").load(),
        seen_epoch=identity.seen_epoch,
        randomness=env.randomness,
    )


def _check_is_same_group(log: LogDirectory, source: DirectorySource) -> None:
    """Raise WrongNodeError if a node of a group is to be repaired from another group's log."""
    from hastore.env.real import RealDisk
    from hastore.errors import WrongNodeError
    from hastore.store.node_identity import read_identity

    disk = RealDisk()
    own = None if log.root is None else read_identity(disk, log.root)
    other = None if source.root is None else read_identity(disk, source.root)
    if own is not None and other is not None and own.group != other.group:
        raise WrongNodeError(
            f"{log.root} belongs to {own}, and {source.root} to {other}",
            path=source.name,
            hint=f"name a node of {own.group}: its directory, or its master's HA port",
        )


def _check_is_not_needed(plan: RepairPlan, target: Target) -> None:
    """Check that another node of the group may be elected while this one is not verified.

    Raises OperationRefusedError, ConfigError, and CoordinatorUnreachableError without an answer.
    """
    from hastore.cluster.operations import check_repair
    from hastore.env.real import RealDisk
    from hastore.store.node_identity import read_identity
    from hastore_cli.app.error_report import collapsed

    identity = read_identity(RealDisk(), plan.data_dir)
    if identity is None or (identity.coordinator is None and not target.has_coordinator):
        return
    if not target.has_coordinator:
        raise RefusedError(
            f"{plan.data_dir} belongs to {identity}, which may lack messages after this repair;"
            " only its coordinator says whether another node may be elected",
            hint="name it: --etcd URL; or --from-replica, which loses nothing; else --accept-loss",
        )
    import trio

    from hastore_cli.cluster.asking import ask

    named = target.of_group(identity.group, f"{plan.data_dir} belongs to {identity}")

    async def run() -> None:
        async with ask(named) as asked:
            check_repair(await asked.view(), identity.node_id, identity.uuid)

    with collapsed():
        trio.run(run)


def _confirm_loss(plan: RepairPlan, directory: str) -> None:
    from hastore.quantities import format_size
    from hastore_cli.log.json import lost_size

    size = format_size(lost_size(plan))
    if sys.stdin is None or not sys.stdin.isatty():
        raise RefusedError(
            f"nothing changed: the messages in {size} would be lost",
            hint=f"a replica loses nothing: hastore log repair {directory} --from-replica"
            " DIR|H:P; else add --yes",
        )
    if not click.confirm(f"the messages in these {size} will be lost; continue?", err=True):
        raise RefusedError("nothing changed", hint="a replica loses nothing: --from-replica")


@click.command(
    cls=ExampleCommand,
    examples=(
        "hastore log rebuild D1 --consumequeue --index",
        "hastore log rebuild D1 --index -c /etc/hastore/hastore.toml",
    ),
    epilog="If killed, the store has the old files or the new ones. Exit code: 0 done; 4 done, but"
    " the log is damaged; 6 refused: a node runs on it, a directory to build is a mount point or a"
    " link, or messages behind damage would be left out and --accept-loss is missing.",
)
@click.argument("dir", type=DIR)
@click.option("--consumequeue", is_flag=True, help="Build the consume queues again.")
@click.option("--index", is_flag=True, help="Build the index of keys again.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Leave out what looks like messages behind damage, and no consume queue names.",
)
@config_option
@output_option()
def rebuild(
    *,
    dir: str,  # noqa: A002
    consumequeue: bool,
    index: bool,
    accept_loss: bool,
    config_flag: str | None,
    output: str,
) -> None:
    """Build consume queues and index again from the log; no node may run on the directory.

    The log is only read. New files are built beside the old ones, which they replace at the end.
    """
    from hastore.env.real import real_env
    from hastore.errors import LogDamagedError
    from hastore.store.tools.rebuild import rebuild as rebuild_store
    from hastore_cli.app.progress_bar import reading_bar
    from hastore_cli.app.terminal import tell
    from hastore_cli.log.json import rebuild_json
    from hastore_cli.log.options import open_log
    from hastore_cli.log.text import rebuild_lines

    if not consumequeue and not index:
        raise click.UsageError("say what to build: --consumequeue, --index, or both")
    quiet_logging()
    config = read_store_config(dir, config_flag)
    _, log = open_log(dir)
    with reading_bar("building", log.size) as on_progress:
        report = rebuild_store(
            real_env(),
            dir,
            config,
            consume_queues=consumequeue,
            index=index,
            accept_loss=accept_loss,
            on_progress=on_progress,
        )
    if output == "json":
        echo_json(rebuild_json(dir, report, consume_queues=consumequeue, index=index))
    else:
        for line in rebuild_lines(dir, report, consume_queues=consumequeue, index=index):
            tell(line)
    if report.unreadable:
        sys.stdout.flush()
        raise LogDamagedError(
            f"{log.path} has {report.unreadable} unreadable places, which were skipped",
            path=log.path,
            physic_offset=report.end_offset,
            hint=f"hastore log verify {dir}",
        )


# -- a replica as the source of a repair ---------------------------------------------------------


@final
class MasterSource:
    """A RepairSource that asks a master, and keeps recent answers.

    A commit log's bytes are the same on all replicas, so a master's can replace damaged ones.
    ``reader``: of a replica group, whose master speaks autoswitch.
    """

    def __init__(self, address: tuple[str, int], reader: GroupLogReader | None = None) -> None:
        self.name = format_address(address)
        self._reader = reader
        self._address = address
        self._kept: dict[tuple[int, int], bytes] = {}

    def read(self, physic_offset: int, size: int) -> bytes:
        """Return exactly these bytes.

        Raises LogDamagedError if the master does not hold
        them, UnreachableError, ProtocolError, DeposedMasterError.
        """
        asked = (physic_offset, size)
        data = self._kept.get(asked)
        if data is None:
            import trio

            from hastore.ha.log_fetch import fetch_range
            from hastore_cli.app.error_report import collapsed

            tls = ha_client_tls()
            fetch = partial(
                fetch_range, self._address, physic_offset, size, tls, reader=self._reader
            )
            with collapsed():
                data = trio.run(fetch)
            if size + sum(map(len, self._kept.values())) > _KEPT_SIZE_MAX:
                self._kept.clear()
            self._kept[asked] = data
        return data
