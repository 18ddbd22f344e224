"""``hastore``: the root of the command tree and the one place where errors become exit codes.

Exit codes: 0 done, 1 failed, 2 usage, 3 unreachable, 4 damage, 5 not in time, 6 refused for safety,
7 login or TLS, 10 a dry run, 20 / 21 / 22 stored but weaker than asked, 23 rejected, 130 / 143 a
stop by SIGINT / SIGTERM. A node that SIGTERM stopped cleanly ends with 0.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING, Final

import rich_click as click

from hastore_cli.app.command import LazyGroup
from hastore_cli.app.error_report import report
from hastore_cli.app.terminal import show_all_text, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS: Final = {
    "master": ("node.commands:master", "Run a master: takes messages, streams to slaves."),
    "slave": ("node.commands:slave", "Run a slave: copies a master's log and acknowledges."),
    "node": ("node.commands:node", "Run a node of a replica group, whose role may change."),
    "up": ("lab.up_command:up", "Run a replica group on this machine, to try things with."),
    "cluster": (
        "cluster.commands:cluster_group",
        "Show who is master in a replica group; change it.",
    ),
    "config": ("config_files.commands:config_group", "Write a node's configuration file."),
    "acl": ("acl.commands:acl_group", "Check and explain permissions; make access keys."),
    "produce": (
        "produce.command:produce",
        "Send lines as messages, and print each outcome.",
    ),
    "consume": (
        "consume.command:consume",
        "Print a topic's messages, then new ones as they come.",
    ),
    "get": ("consume.get:get", "Get single messages by id, offset, key or time."),
    "topic": ("topics.topic_commands:topic_group", "List, create and describe topics."),
    "group": ("topics.group_commands:group_group", "List, describe and reset groups of consumers."),
    "status": ("status.command:status", "Show a node: offsets, slaves, lag, refusals."),
    "explain": ("status.explain:explain", "Explain why the last puts were not PUT_OK."),
    "doctor": (
        "doctor.command:doctor",
        "Find faults in ports, links, disks, clocks and logs.",
    ),
    "check": ("status.check:check", "Check a node as a Nagios plugin does."),
    "wait": ("status.wait:wait", "Wait until a node is in the state asked for."),
    "log": ("log.commands:log_group", "Inspect and repair a log directory without a node."),
    "pipeline": (
        "pipeline.commands:pipeline_group",
        "Check, compare and archive logs on Spark.",
    ),
    "scenario": (
        "lab.scenario_commands:scenario",
        "Run failure stories, on processes or simulated.",
    ),
    "sim": ("lab.sim_commands:sim", "Run clusters in virtual time, by seed."),
    "completion": ("app.about:completion", "Print a shell's completion script."),
    "version": ("app.about:version", "Print the versions of hastore and its parts."),
}

_PANELS: Final = (
    ("Run nodes", ["master", "slave", "node", "up", "cluster", "config", "acl"]),
    ("Messages", ["produce", "consume", "get", "topic", "group"]),
    ("Observe", ["status", "explain", "doctor", "check", "wait"]),
    ("Files", ["log"]),
    ("Data", ["pipeline"]),
    ("Lab", ["scenario", "sim"]),
    ("Other", ["completion", "version"]),
)


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001
    if value and not ctx.resilient_parsing:
        from hastore_cli.app.about import hastore_version

        tell(f"hastore {hastore_version()}")
        ctx.exit()


@click.group(
    name="hastore",
    cls=LazyGroup,
    lazy=_COMMANDS,
    context_settings={
        "auto_envvar_prefix": "HASTORE",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
    examples=(
        "# three terminals, or & after the first two",
        "hastore master --data D1 --broker-role SYNC_MASTER",
        "hastore slave --data D2 --master 127.0.0.1:10912",
        "echo hello | hastore produce orders",
        "hastore status",
    ),
    epilog="Colour only on a terminal; NO_COLOR=1 turns it off. HASTORE_DEBUG=1 shows tracebacks.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
@click.rich_config(
    {
        "theme": "default-slim",
        "commands_before_options": True,
        "max_width": 100,
        "command_groups": {
            "hastore": [{"name": name, "commands": commands} for name, commands in _PANELS]
        },
    }
)
def root() -> None:
    """Run the nodes of a replicated commit log, send and read messages, check nodes and logs."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises."""
    _prepare_streams()
    _forbid_core_dumps()
    try:
        code = root.main(
            args=None if arguments is None else list(arguments),
            prog_name="hastore",
            standalone_mode=False,
        )
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - no caller is left: everything becomes an exit code
        return report(error)
    return code if isinstance(code, int) else 0


def _forbid_core_dumps() -> None:
    """Keep the kernel from writing the memory of a node, or of a command, to a file.

    Keys and passwords are in it.  The limit also holds for what this process starts.  Where
    core_pattern is a pipe, the program behind it decides; systemd-coredump heeds the limit.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _prepare_streams() -> None:
    """Let every stream take every text.

    Without stderr (``2>&-``) messages are lost.  Without stdout (``>&-``) the first data is an
    error, as for any tool: its descriptor is one for reading, so no other file gets its number.
    """
    if sys.stdout is None:
        descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        sys.stdout = open(descriptor, "w")  # noqa: PTH123, SIM115 - as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        show_all_text(stream)
