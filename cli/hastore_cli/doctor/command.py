"""``hastore doctor``: check nodes, and what is between them, for faults."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from typing import TYPE_CHECKING, Final

import rich_click as click
from click.core import ParameterSource

from hastore_cli.acl.asking_command import AskingCommand
from hastore_cli.app.command import output_option
from hastore_cli.app.output import echo_json
from hastore_cli.cluster.target import URLS, target_of
from hastore_cli.node.options import node_asked
from hastore_cli.settings.config_file import config_option_of
from hastore_cli.settings.param_types import complete_directory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.config import CoordinatorConfig
    from hastore_cli.app.interpreter import Interpreter
    from hastore_cli.doctor.facts import Facts
    from hastore_cli.doctor.rules import Diagnosis

SCHEMA: Final = "hastore.doctor/1"
_STYLES: Final = {"ok": "green", "warn": "yellow", "bad": "red", "unknown": "yellow"}


@click.command(
    cls=AskingCommand,
    examples=(
        "hastore doctor",
        "hastore doctor 127.0.0.1:10911 127.0.0.1:10921   # a master and its slave",
        "hastore doctor D1 D2 --full                      # every byte of both logs",
        "hastore doctor D1 --etcd http://127.0.0.1:2379     # and etcd",
        "hastore doctor D1 -o json | jq '.findings[] | select(.result != \"ok\")'",
    ),
    epilog="Exit code: 0 when nothing is bad (a warning is not), 1 when something is, 4 when logs"
    " differ, 3 when no node answers and no store's directory was named.",
)
@click.argument("addrs", nargs=-1, metavar="[ADDR|DIR]...", shell_complete=complete_directory)
@click.option(
    "--full", is_flag=True, help="Compare all bytes of the logs, not only the end and samples."
)
@click.option(
    "--etcd",
    type=URLS,
    metavar="URL,URL",
    envvar=["HASTORE_CLUSTER_ETCD", "HASTORE_CLUSTER_ENDPOINTS"],
    show_envvar=True,
    help="The coordinator of a replica group: URLs of etcd servers.",
)
@config_option_of("A node's configuration, for [cluster].")
@output_option()
def doctor(
    addrs: tuple[str, ...],
    output: str,
    *,
    full: bool,
    etcd: tuple[str, ...] | None,
    config_flag: str | None,
) -> int:
    """Find faults in ports, links, disks, clocks and configuration, gaps, and logs that differ.

    Name a master together with its slaves to have them compared, too. ADDR is the HOST:PORT of a
    node's client port; DIR a data directory, whether a node runs on it or not.
    Nothing is changed. [default: the
    node of this directory or configuration, else 127.0.0.1:10911] [env: HASTORE_ADDR]
    """
    import attrs
    import trio

    from hastore_cli.app.error_report import collapsed
    from hastore_cli.app.interpreter import this_interpreter
    from hastore_cli.doctor.coordinator import with_coordinator

    coordinator = target_of(etcd, None, None, config_flag).coordinator
    asked = addrs or (node_asked(),)
    with collapsed():
        nodes, findings = trio.run(
            partial(_examine, tuple(dict.fromkeys(asked)), coordinator, is_full=full)
        )
    flags = _coordinator_flags(etcd, config_flag, is_known=bool(coordinator.endpoints))
    findings = [
        attrs.evolve(each, next_step=with_coordinator(each.next_step, flags))
        if each.next_step
        else each
        for each in findings
    ]
    python = this_interpreter()
    if output == "json":
        echo_json(_to_json(findings) | {"python": python._asdict()}, indent=2)
    else:
        _print(findings, python)
    return _exit_code(nodes, findings)


def _coordinator_flags(
    etcd: tuple[str, ...] | None, config_flag: str | None, *, is_known: bool
) -> str:
    """Return the flags by which another command finds the coordinator that this one has asked."""
    if not is_known:
        return "--etcd URL,URL"
    context = click.get_current_context()
    assert context is not None
    source = context.get_parameter_source("etcd")
    if etcd and source is ParameterSource.COMMANDLINE:
        return f"--etcd {','.join(etcd)}"
    return "" if config_flag is None else f"-c {shlex.quote(config_flag)}"


async def _examine(
    asked: Sequence[str], coordinator: CoordinatorConfig, *, is_full: bool
) -> tuple[list[Facts], list[Diagnosis]]:
    from hastore.env.real import RealDisk
    from hastore_cli.doctor.coordinator import ask_coordinator, check_coordinator, not_asked
    from hastore_cli.doctor.facts import gather_facts
    from hastore_cli.doctor.group_files import check_group_files
    from hastore_cli.doctor.logs import compare_logs
    from hastore_cli.doctor.rules import diagnose

    nodes = await gather_facts(asked)
    findings = [*diagnose(nodes), *check_group_files(nodes, RealDisk())]
    if coordinator.endpoints:
        findings += check_coordinator(await ask_coordinator(coordinator))
    else:
        findings += not_asked(nodes)
    return nodes, [*findings, *await compare_logs(nodes, is_full=is_full)]


def _exit_code(nodes: Sequence[Facts], findings: Sequence[Diagnosis]) -> int:
    from hastore.errors import ProtocolError, TlsError
    from hastore_cli.doctor.logs import CHECK
    from hastore_cli.doctor.rules import Result

    bad = [finding for finding in findings if finding.result is Result.BAD]
    if any(finding.check == CHECK for finding in bad):
        return 4
    is_answered = any(
        isinstance(facts.error, ProtocolError) and not isinstance(facts.error, TlsError)
        for facts in nodes
    )
    silent = all(facts.status is None and not facts.has_store_directory for facts in nodes)
    if silent and not is_answered:
        return 3
    return 1 if bad else 0


def _to_json(findings: Sequence[Diagnosis]) -> dict[str, object]:
    order = ("bad", "warn", "unknown", "ok")
    results = {finding.result.value for finding in findings}
    return {
        "schema": SCHEMA,
        "result": next((result for result in order if result in results), "ok"),
        "findings": [
            {
                "node": finding.node,
                "check": finding.check,
                "result": finding.result.value,
                "what": finding.what,
                "next": finding.next_step,
            }
            for finding in findings
        ],
    }


def _print(findings: Sequence[Diagnosis], python: Interpreter) -> None:
    from hastore_cli.app.terminal import folded, one_line, style, tell

    node_width = max(len(one_line(finding.node)) for finding in findings)
    check_width = max(len(finding.check) for finding in findings)
    for finding in findings:
        word = finding.result.value
        styled = style(f"{word:<8}", fg=_STYLES[word], bold=word == "bad")
        node = f"{one_line(finding.node):<{node_width}}"
        head = f"{styled}{node}  {finding.check:<{check_width}}  "
        tell(folded(head, one_line(finding.what), sys.stdout))
        if finding.next_step and word != "ok":
            blank = " " * (8 + node_width)
            tell(f"{blank}  {'next':>{check_width}}  {one_line(finding.next_step)}")
    tell(folded("this command: ", one_line(str(python)), sys.stdout))
