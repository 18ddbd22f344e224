"""``hastore scenario``: stories about failures, real or simulated, checked by the checker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import rich_click as click
from click.shell_completion import CompletionItem

from hastore_cli.app.command import ExampleCommand, LazyGroup, output_option
from hastore_cli.app.output import echo_json
from hastore_cli.app.terminal import style, tell, tell_text
from hastore_cli.settings.param_types import WholeNumber

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hastore_cli.lab.scenario_run import FinishedRun
    from hastore_scenarios.judge.result import ScenarioResult

SCHEMA: Final = "hastore.scenarios/1"
EXIT_FAILED: Final = 1
EXIT_VIOLATION: Final = 4


def _complete_name(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete the names of the catalog; without a match, files."""
    from hastore_scenarios.registry import all_scenarios

    found = [each for each in all_scenarios() if each.name.startswith(incomplete)]
    if not found:
        return [CompletionItem(incomplete, type="file")]
    return [CompletionItem(each.name, help=each.title) for each in found]


@click.group(
    cls=LazyGroup,
    examples=(
        "hastore scenario list",
        "hastore scenario run flush-slave-timeout",
        "hastore scenario run --all -o json",
        "hastore scenario new my_story.py",
        "hastore scenario run my_story.py --world sim --seed 7",
    ),
)
def scenario() -> None:
    """Run stories of a master, its slaves and failures, each checked against its logs."""


@scenario.command(name="list", cls=ExampleCommand, examples=("hastore scenario list",))
@output_option()
def list_scenarios(*, output: str) -> None:
    """List the catalog."""
    from hastore_scenarios.registry import all_scenarios

    found = all_scenarios()
    if output == "json":
        _print_json({"scenarios": [each.to_dict() for each in found]})
        return
    from rich.table import Table

    from hastore_cli.app.terminal import make_console

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("no", justify="right")
    table.add_column("name", style="cyan", no_wrap=True)
    table.add_column("proves")
    for each in found:
        table.add_row(str(each.number), each.name, each.proves)
    make_console().print(table)


@scenario.command(
    cls=ExampleCommand, examples=("hastore scenario show sync-put", "hastore scenario show 3")
)
@click.argument("name", metavar="NAME|NUMBER|FILE.py", shell_complete=_complete_name)
@output_option()
def show(*, name: str, output: str) -> None:
    """Show what a scenario proves, and its source."""
    from pathlib import Path

    from hastore_scenarios.registry import find

    found = find(name)
    if output == "json":
        _print_json({"scenarios": [each.to_dict() for each in found]})
        return
    for each in found:
        tell(f"{each.name}: {each.title}")
        tell(f"  proves  {each.proves}")
        tell(f"  file    {each.path}")
        tell()
    for path in dict.fromkeys(each.path for each in found):
        tell_text(Path(path).read_text(encoding="utf-8"))


@scenario.command(
    cls=ExampleCommand,
    examples=(
        "hastore scenario new my_story.py",
        "hastore scenario run my_story.py",
        "hastore scenario run my_story.py --world sim --seed 7",
    ),
)
@click.argument("file", metavar="FILE.py", type=click.Path(dir_okay=False))
@click.option("--force", is_flag=True, help="Replace an existing file.")
def new(*, file: str, force: bool) -> None:
    """Write a scenario of your own: a short story that passes, with comments to extend it."""
    from hastore_cli.lab.scenario_run import write_template

    write_template(file, force=force)
    tell(f"wrote {file}")
    tell(f"  next  hastore scenario run {file}")
    tell(f"        hastore scenario run {file} --world sim --seed 7")


@scenario.command(
    cls=ExampleCommand,
    examples=(
        "hastore scenario run sync-put",
        "hastore scenario run 1 2 3",
        "hastore scenario run promotion --world sim --seed 7 --repeat 20",
        "hastore scenario run my_story.py --out /tmp/story",
        "hastore scenario run --all -o json > scenarios.json",
        "hastore scenario run promotion --spark",
    ),
    epilog=(
        "Exit code: 0 all passed (or skipped: this machine lacks something), 4 the checker found a"
        " broken promise, 1 a story failed. The folder of a run has history.jsonl, result.json and"
        " report.html; the logs are kept if something was wrong."
    ),
)
@click.argument(
    "names", nargs=-1, metavar="[NAME|NUMBER|FILE.py]...", shell_complete=_complete_name
)
@click.option("--all", "run_all", is_flag=True, help="Every scenario of the catalog.")
@click.option(
    "--world",
    type=click.Choice(["process", "sim", "netns"]),
    default="process",
    show_default=True,
    help="Real processes; the simulator, in virtual time; processes in network namespaces (root).",
)
@click.option(
    "--seed",
    type=WholeNumber(min=0),
    default=None,
    help="The seed of a run of --world sim. [default: 0]",
)
@click.option(
    "--repeat",
    type=WholeNumber(min=1),
    default=1,
    metavar="N",
    help="Run each N times; in the simulator each time with the next seed.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False),
    metavar="DIR",
    help="Folder of the report; several runs get a folder each. [default: hastore-runs/NAME-TIME]",
)
@click.option("--keep", is_flag=True, help="Also keep the logs of runs that passed.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False),
    help="Folder of the nodes' directories. [default: a temporary one]",
)
@click.option(
    "--spark",
    is_flag=True,
    help="Also compare the histories with the logs on Spark: both must agree.",
)
@output_option()
def run(
    *,
    names: tuple[str, ...],
    run_all: bool,
    world: str,
    seed: int | None,
    repeat: int,
    out: str | None,
    keep: bool,
    directory: str | None,
    spark: bool,
    output: str,
) -> int:
    """Run scenarios by name or number, or those of a file, one after the other."""
    if names and run_all:
        raise click.UsageError("--all runs every scenario of the catalog: leave the names out")
    if not names and not run_all:
        raise click.UsageError("name scenarios, or use --all")
    if seed is not None and world != "sim":
        raise click.UsageError("--seed is for --world sim: other worlds have none")
    if spark:
        if world == "sim":
            raise click.UsageError("--spark reads logs from disks: leave --world sim out")
        from hastore_cli.lab.scenario_run import refuse_without_spark

        refuse_without_spark()
    from hastore_cli.lab.scenario_run import (
        find_named,
        plan,
        print_finished,
        run_planned,
        write_folder,
    )
    from hastore_scenarios.registry import all_scenarios
    from hastore_scenarios.runner import WorldKind

    if world == "sim":
        from hastore_cli.lab.sim_commands import say_trio_note

        say_trio_note()
    chosen = all_scenarios() if run_all else [each for name in names for each in find_named(name)]
    runs = plan(
        chosen,
        world=WorldKind(world),
        seed=seed or 0,
        repeat=repeat,
        out=out,
        directory=directory,
    )
    as_json = output == "json"
    results: Iterable[ScenarioResult] = (run_planned(each, quiet=as_json) for each in runs)
    if spark:
        results = _checked_by_spark(list(results), quiet=as_json)
    finished = []
    for planned, result in zip(runs, results, strict=True):
        finished.append(write_folder(result, planned, keep=keep))
        if not as_json:
            print_finished(finished[-1])
    return _sum_up(finished, as_json=as_json)


def _sum_up(finished: list[FinishedRun], *, as_json: bool) -> int:
    skipped = sum(each.result.skipped is not None for each in finished)
    failed = [each for each in finished if not each.result.passed and each.result.skipped is None]
    passed = len(finished) - len(failed) - skipped
    if as_json:
        _print_json(
            {
                "passed": passed,
                "failed": len(failed),
                "skipped": skipped,
                "results": [each.to_dict() for each in finished],
            }
        )
    elif len(finished) > 1:
        names_of_failed = ", ".join(dict.fromkeys(each.label for each in failed))
        tell(
            f"{passed} of {len(finished)} scenarios passed"
            + (f", {skipped} skipped" if skipped else "")
            + (f"; failed: {names_of_failed}" if failed else "")
        )
    if not failed:
        return 0
    verdicts = [each.result.verdict for each in failed]
    broken = any(verdict is not None and not verdict.ok for verdict in verdicts)
    return EXIT_VIOLATION if broken else EXIT_FAILED


def _checked_by_spark(
    results: Sequence[ScenarioResult], *, quiet: bool
) -> Iterator[ScenarioResult]:
    """Yield the results with Spark's verdict on the kept logs."""
    from hastore_cli.lab.scenario_run import check_by_spark

    for checked in check_by_spark(results):
        if not quiet:
            _print_spark(checked)
        yield checked


def _print_spark(result: ScenarioResult) -> None:
    facts = result.spark
    if facts is None:
        tell(f"spark  {result.name}: nothing was put")
    elif result.disagreements:
        verdict = style("DISAGREES WITH THE CHECKER", fg="red", bold=True)
        tell(f"spark  {result.name}: {verdict}")
        for line in result.disagreements:
            tell(f"    {line}")
    else:
        verdict = style(facts["verdict"], fg="green" if facts["verdict"] == "kept" else "red")
        tell(
            f"spark  {result.name}: {verdict}, {facts['puts']} puts, {facts['acknowledged_kept']}"
            f" acknowledged and kept, {facts['acknowledged_lost']} lost; the checker agrees"
        )


def _print_json(content: dict[str, Any]) -> None:
    echo_json({"schema": SCHEMA, **content}, indent=2)
