"""``hastore log info|epochs|cat|verify|diff``: inspect commit logs, with or without a running node.

The directories are only read: nothing is locked, created or changed.  A log in use is read up to
its current end.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

import rich_click as click

from hastore_cli.app.command import ExampleCommand, LazyGroup, output_option
from hastore_cli.app.output import echo_json, wall_clock_ms
from hastore_cli.log.options import DIR, DIR_HELP, open_log, quiet_logging, unconfirmed_option
from hastore_cli.messages.printer import (
    FORMAT_HELP,
    MessagePrinter,
    format_option,
    raw_option,
)
from hastore_cli.settings.config_file import config_option, read_store_config
from hastore_cli.settings.param_types import WholeNumber

if TYPE_CHECKING:
    from hastore.env.interface import Disk
    from hastore.store.tools.derived_verify import DerivedReport
    from hastore.store.tools.log_directory import LogDirectory
    from hastore.store.tools.log_verify import VerifyReport
    from hastore_cli.messages.printer import MessageFormat


_DERIVED: Final = ("consumequeue", "index")
_INSPECTING: Final = ["info", "epochs", "cat", "find", "tail", "verify", "diff"]


@click.group(
    name="log",
    cls=LazyGroup,
    lazy={
        "find": ("log.find_commands:find", "Find messages by key, tag, body, time, ..."),
        "tail": ("log.find_commands:tail", "Print the last messages, and follow new ones."),
        "repair": ("log.repair_commands:repair", "Repair a damaged log, best from a replica."),
        "rebuild": ("log.repair_commands:rebuild", "Build consume queues and index again."),
    },
    examples=(
        "hastore log info D1",
        "hastore log find D1 -k o-17",
        "hastore log tail D1 -f",
        "hastore log verify D1 && hastore log diff D1 D2",
        "hastore log cat D1 -t orders -n 10",
    ),
)
@click.rich_config(
    {
        "theme": "default-slim",
        "commands_before_options": True,
        "max_width": 100,
        "command_groups": {
            "hastore log": [
                {"name": "Inspect (nothing is changed)", "commands": _INSPECTING},
                {"name": "Repair (no node may run on it)", "commands": ["repair", "rebuild"]},
            ]
        },
    }
)
def log_group() -> None:
    """Inspect a store's directory, RocketMQ's or hastore's, in use or not; repair it."""


@log_group.command(
    cls=ExampleCommand,
    examples=("hastore log info D1", "hastore log info D1 -o json | jq '.topics'"),
    epilog=DIR_HELP,
)
@click.argument("dir", type=DIR)
@output_option()
def info(dir: str, output: str) -> None:  # noqa: A002 - the argument's name in --help
    """Show files, offsets, messages, times and topics.

    Walks the records without checking checksums; `hastore log verify` does that.
    """
    from hastore.store.tools.log_info import read_info
    from hastore_cli.app.progress_bar import reading_bar
    from hastore_cli.app.terminal import tell
    from hastore_cli.log.json import info_json
    from hastore_cli.log.text import info_lines

    disk, log = open_log(dir)
    with reading_bar("reading", log.size) as on_progress:
        found = read_info(disk, log, on_progress=on_progress)
    if output == "json":
        echo_json(info_json(found))
        return
    for line in info_lines(found):
        tell(line)


@log_group.command(
    cls=ExampleCommand,
    examples=("hastore log epochs D1", "hastore log epochs D1 -o json | jq '.epochs[-1]'"),
    epilog=f"{DIR_HELP}\n\nExit code: 4 when the epochs do not fit the log, or cannot be read.",
)
@click.argument("dir", type=DIR)
@output_option()
def epochs(dir: str, output: str) -> None:  # noqa: A002
    """Show the epochs of a log: offsets, bytes, messages and times of each.

    Every master of a RocketMQ 5 group with a controller begins one (epochFileCheckpoint).
    """
    from hastore.errors import EpochFileError, LogDamagedError
    from hastore.store.tools.log_epochs import read_epochs
    from hastore_cli.app.progress_bar import reading_bar
    from hastore_cli.app.terminal import tell
    from hastore_cli.log.json import epochs_json
    from hastore_cli.log.text import epoch_lines

    quiet_logging()
    disk, log = open_log(dir)
    with reading_bar("reading", log.size) as on_progress:
        found = read_epochs(disk, log, on_progress=on_progress)
    if output == "json":
        echo_json(epochs_json(found))
    else:
        for line in epoch_lines(found):
            tell(line)
    sys.stdout.flush()
    if found.damaged_at is not None:
        raise LogDamagedError(
            f"{log.path} is damaged at offset {found.damaged_at}",
            path=log.path,
            physic_offset=found.damaged_at,
            hint=f"hastore log verify {dir}",
        )
    fault = next(found.faults, None)
    if fault is not None:
        assert found.path is not None
        hint = "compare it with another node of the group: hastore log diff DIR DIR2"
        raise EpochFileError(f"{found.path}: {fault}", path=found.path, hint=hint)


@log_group.command(
    cls=ExampleCommand,
    examples=(
        "hastore log cat D1",
        "hastore log cat D1 --from-offset 1073741824 -n 10",
        "hastore log cat D1 -t orders -o jsonl | jq -r .body",
        "hastore log cat D1 -F '%O %t/%p @ %o %k %s\\n'",
    ),
    epilog=f"{DIR_HELP}\n\n{FORMAT_HELP}\n\nExit code: 4 when something could not be read.",
)
@click.argument("dir", type=DIR)
@click.option(
    "--from-offset",
    type=WholeNumber(min=0),
    default=0,
    metavar="OFFSET",
    help="Begin with the first message at this offset or after it.",
)
@click.option("-n", "--count", type=WholeNumber(min=1), metavar="N", help="At most N messages.")
@click.option("-t", "--topic", metavar="TOPIC", help="Only this topic.")
@unconfirmed_option
@click.option("--bodies/--no-bodies", default=True, help="With or without the bodies.")
@raw_option
@format_option
@output_option("table", "json", "jsonl")
def cat(
    dir: str,  # noqa: A002
    *,
    from_offset: int,
    count: int | None,
    topic: str | None,
    unconfirmed: bool,
    output: str,
    template: MessageFormat | None,
    bodies: bool,
    raw: bool,
) -> None:
    """Print messages, one per line.

    Behind damage only messages are printed that their consume queue names; the others may have been
    planted in a body, and are counted. A binary body is shown as the beginning of its hex, and in
    JSON as body_base64.
    """
    from hastore_cli.app.terminal import say
    from hastore_cli.log.find_commands import Damage
    from hastore_cli.log.json import CAT_SCHEMA
    from hastore_cli.log.search import MessageFilter, search

    disk, log = open_log(dir)
    printer = MessagePrinter(output, schema=CAT_SCHEMA, template=template, bodies=bodies, raw=raw)
    damage = Damage(printer)
    with printer:
        for entry in search(
            disk,
            log,
            MessageFilter(topic=topic),
            from_offset=from_offset,
            unconfirmed=unconfirmed,
        ):
            damage.show(entry)
            if printer.shown == count:
                break
    if not printer.shown:
        of_topic = "" if topic is None else f" of topic {topic}"
        say(f"no messages{of_topic} from offset {from_offset} on")
    damage.raise_if_any(log.path, dir)


@log_group.command(
    cls=ExampleCommand,
    examples=(
        "hastore log verify D1",
        "hastore log verify D1 --log-only",
        "hastore log verify D1 -o json | jq '.findings, .derived.findings'",
    ),
    epilog=f"{DIR_HELP} Exit code: 0 intact, 4 damaged; warnings alone are 0.",
)
@click.argument("dir", type=DIR)
@click.option("--log-only", is_flag=True, help="Leave consume queues and index out.")
@config_option
@output_option()
def verify(*, dir: str, log_only: bool, config_flag: str | None, output: str) -> None:  # noqa: A002
    """Check every record: checksums, lengths, offsets, files, and fields without a checksum.

    Then checks consume queues and index, if there are any: they must hold each record's unit and
    keys, and nothing else. Names damage by offset, with topic and key if they can be read, and
    continues after it. Something odd that may have been written that way is a warning.
    """
    from hastore.store.tools.log_verify import verify_log
    from hastore_cli.app.progress_bar import reading_bar
    from hastore_cli.app.terminal import tell
    from hastore_cli.log.json import derived_json, verify_json
    from hastore_cli.log.text import derived_lines, read_line, verify_lines

    disk, log = open_log(dir)
    started = time.perf_counter()
    with reading_bar("checking", log.size) as on_progress:
        report = verify_log(disk, log, now_ms=wall_clock_ms(), on_progress=on_progress)
    seconds = time.perf_counter() - started
    derived = None if log_only else _verify_derived(disk, log, config_flag)
    if output == "json":
        document = verify_json(report, seconds)
        echo_json(document | {"derived": None if derived is None else derived_json(derived)})
    else:
        for line in verify_lines(report):
            tell(line)
        for line in () if derived is None else derived_lines(derived):
            tell(line)
        tell(read_line(report, seconds))
    _refuse_damage(report, dir)
    if derived is not None:
        _refuse_derived_damage(derived, dir)


def _verify_derived(disk: Disk, log: LogDirectory, config_flag: str | None) -> DerivedReport | None:
    """Check consume queues and index; return None if there is neither."""
    from hastore.store.tools.derived_verify import verify_derived
    from hastore_cli.app.progress_bar import reading_bar

    if log.root is None or not any(disk.list_dir(f"{log.root}/{name}") for name in _DERIVED):
        return None
    if log.unfinished_cut is not None:
        return None  # a finding of the log's verification says so
    quiet_logging()
    config = read_store_config(log.root, config_flag)
    with reading_bar("checking queues and index", log.size) as on_progress:
        return verify_derived(disk, log.root, log, config, on_progress=on_progress)


def _refuse_derived_damage(report: DerivedReport, directory: str) -> None:
    """Raise LogDamagedError if consume queues or index are damaged."""
    from hastore.errors import LogDamagedError
    from hastore.store.tools.log_finding import Severity

    damage = [f for f in report.findings if f.severity is Severity.DAMAGE]
    if not damage:
        return
    sys.stdout.flush()
    count = report.count(Severity.DAMAGE)
    raise LogDamagedError(
        f"the log of {report.path} is intact, its consume queues or index are damaged: {count}"
        f" place{'s' * (count != 1)}",
        path=report.path,
        physic_offset=damage[0].physic_offset,
        hint=f"build them again: hastore log rebuild {directory} --consumequeue --index",
    )


def _refuse_damage(report: VerifyReport, directory: str) -> None:
    """Raise LogDamagedError, exit code 4, if the log is damaged."""
    from hastore.errors import LogDamagedError
    from hastore.store.tools.log_finding import Severity

    damage = [f for f in report.findings if f.severity is Severity.DAMAGE]
    if report.is_whole or not damage:
        return
    sys.stdout.flush()
    first = damage[0].physic_offset
    more = report.count(Severity.DAMAGE) - 1
    places = f" and {more} more place{'s' * (more != 1)}" if more else ""
    hint = f"plan a repair: hastore log repair {directory} --from-replica DIR --dry-run"
    if first >= report.max_offset and not report.set_aside.records:
        hint = (
            f"if no node is writing it: the next start trims a torn end and keeps its bytes; {hint}"
        )
    raise LogDamagedError(
        f"{report.path} is damaged at offset {first}{places}",
        path=report.path,
        physic_offset=first,
        hint=hint,
    )


@log_group.command(
    cls=ExampleCommand,
    examples=("hastore log diff D1 D2", "hastore log diff D1 D2 -o json | jq .verdict"),
    epilog=f"{DIR_HELP} Exit code: 0 equal or one is ahead of the other, 4 different,"
    " or both damaged alike in the range that is compared.",
)
@click.argument("dir", type=DIR)
@click.argument("dir2", type=DIR)
@output_option()
def diff(dir: str, dir2: str, output: str) -> None:  # noqa: A002
    """Compare two logs by offset, up to the end of the shorter one.

    Names the first difference with the message there on each side, and which log is behind by how
    much.
    """
    from hastore.errors import LogDamagedError
    from hastore.store.tools.log_diff import DiffVerdict, diff_logs
    from hastore_cli.app.progress_bar import reading_bar
    from hastore_cli.app.terminal import tell
    from hastore_cli.log.json import diff_json
    from hastore_cli.log.text import diff_lines

    disk, left = open_log(dir)
    _, right = open_log(dir2)
    with reading_bar("comparing", min(left.size, right.size)) as on_progress:
        report = diff_logs(disk, left, right, on_progress=on_progress)
    if output == "json":
        echo_json(diff_json(report))
    else:
        for line in diff_lines(report):
            tell(line)
    offset, damage = report.first_difference, report.damage
    if damage is None and report.verdict in {DiffVerdict.EQUAL, DiffVerdict.PREFIX}:
        return
    sys.stdout.flush()
    what = f"differ at offset {offset}" if offset is not None else "have no offset in common"
    if damage is not None:
        offset = damage.physic_offset
        what = f"are equal, and both damaged at offset {offset}"
    raise LogDamagedError(
        f"{left.path} and {right.path} {what}",
        path=left.path,
        physic_offset=report.common_from if offset is None else offset,
        hint=f"hastore log verify {dir}; hastore log verify {dir2}",
    )
