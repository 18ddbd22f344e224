"""``hastore scenario``: stories about failures, run on real processes, judged by the checker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from cli.example_command import ExampleCommand
from cli.lazy_group import LazyGroup
from cli.terminal import tell

if TYPE_CHECKING:
    from scenarios.registry import Scenario
    from scenarios.result import ScenarioResult
    from scenarios.timeline import TimelineEntry

SCHEMA: Final = "hastore.scenarios/1"
EXIT_FAILED: Final = 1
EXIT_VIOLATION: Final = 4

_output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"], case_sensitive=False),
    default="table",
    show_default=True,
)


@click.group(
    cls=LazyGroup,
    examples=(
        "hastore scenario list",
        "hastore scenario run flush-slave-timeout",
        "hastore scenario run --all -o json",
        "hastore scenario run my_story.py --keep",
    ),
)
def scenario() -> None:
    """Stories of a master, its slaves and what goes wrong, each judged by a checker."""


@scenario.command(name="list", cls=ExampleCommand, examples=("hastore scenario list",))
@_output_option
def list_scenarios(*, output: str) -> None:
    """List the catalog."""
    from scenarios.registry import all_scenarios

    found = all_scenarios()
    if output == "json":
        _print_json({"scenarios": [each.to_dict() for each in found]})
        return
    from rich.table import Table

    from cli.terminal import make_console

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
@click.argument("name")
@_output_option
def show(*, name: str, output: str) -> None:
    """Show what a scenario proves, and its text."""
    from pathlib import Path

    from scenarios.registry import find

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
        tell(Path(path).read_text(encoding="utf-8"))


@scenario.command(
    cls=ExampleCommand,
    examples=(
        "hastore scenario run sync-put",
        "hastore scenario run 1 2 3",
        "hastore scenario run my_story.py --directory /tmp/story",
        "hastore scenario run --all -o json > scenarios.json",
        "hastore scenario run promotion --spark",
    ),
    epilog="Exit code: 0 all passed, 4 the checker found a broken promise, 1 a story failed.",
)
@click.argument("names", nargs=-1, metavar="[NAME|FILE.py]...")
@click.option("--all", "run_all", is_flag=True, help="Every scenario of the catalog.")
@click.option("--keep", is_flag=True, help="Keep logs and histories of what passed, too.")
@click.option(
    "--directory", type=click.Path(), help="Where the worlds live. [default: a temporary one]"
)
@click.option(
    "--spark", is_flag=True, help="Hold the histories against the logs on Spark, too: both agree."
)
@_output_option
def run(
    *,
    names: tuple[str, ...],
    run_all: bool,
    keep: bool,
    directory: str | None,
    spark: bool,
    output: str,
) -> int:
    """Run scenarios by name or number, or those of a file, one after the other."""
    from scenarios.registry import all_scenarios, find

    if bool(names) == run_all:
        raise click.UsageError("give the names of scenarios, or --all")
    chosen = all_scenarios() if run_all else [each for name in names for each in find(name)]
    as_json = output == "json"
    if spark:
        from cli.scenario_spark import refuse_without_spark

        refuse_without_spark()
    results = [_run_one(each, directory, keep=keep, spark=spark, quiet=as_json) for each in chosen]
    if spark:
        results = _judge_by_spark(results, keep=keep, quiet=as_json)
    failed = [result for result in results if not result.passed]
    if as_json:
        _print_json(
            {
                "passed": len(results) - len(failed),
                "failed": len(failed),
                "results": [result.to_dict() for result in results],
            }
        )
    elif len(results) > 1:
        names_of_failed = ", ".join(result.name for result in failed)
        tell(
            f"{len(results) - len(failed)} of {len(results)} scenarios passed"
            + (f"; failed: {names_of_failed}" if failed else "")
        )
    return _exit_code(failed)


def _run_one(
    each: Scenario, directory: str | None, *, keep: bool, spark: bool, quiet: bool
) -> ScenarioResult:
    from pathlib import Path

    import trio

    from cli.error_report import collapsed
    from scenarios.runner import run_scenario

    if not quiet:
        tell(click.style(f"{each.number:02d} {each.name}", bold=True) + f": {each.proves}")
    base = None if directory is None else Path(directory) / each.name
    with collapsed():
        result = trio.run(run_scenario, each, base, keep or spark, None if quiet else _print_entry)
    if not quiet:
        _print_result(result, is_kept=keep or not result.passed)
    return result


def _judge_by_spark(
    results: list[ScenarioResult], *, keep: bool, quiet: bool
) -> list[ScenarioResult]:
    """Have Spark look at what was kept; then remove what passed, unless told otherwise."""
    import shutil

    from cli.scenario_spark import judge_by_spark

    judged = []
    for result in judge_by_spark(results):
        if not quiet:
            _print_spark(result)
        if result.passed and not keep:
            assert result.directory is not None
            shutil.rmtree(result.directory)
            result = result.with_directory_removed()  # noqa: PLW2901
        judged.append(result)
    return judged


def _print_spark(result: ScenarioResult) -> None:
    told = result.spark
    if told is None:
        tell(f"spark  {result.name}: nothing was put")
    elif result.disagreements:
        tell(f"spark  {result.name}: {click.style('NOT AS THE CHECKER SAYS', fg='red', bold=True)}")
        for line in result.disagreements:
            tell(f"    {line}")
    else:
        verdict = click.style(told["verdict"], fg="green" if told["verdict"] == "kept" else "red")
        tell(
            f"spark  {result.name}: {verdict}, {told['puts']} puts, {told['acknowledged_kept']}"
            f" acknowledged and kept, {told['acknowledged_lost']} lost; the checker agrees"
        )


def _print_entry(entry: TimelineEntry) -> None:
    tell(f"  {entry}")


def _print_result(result: ScenarioResult, *, is_kept: bool) -> None:
    puts = ", ".join(f"{count} {label}" for label, count in result.put_counts.items())
    if result.passed:
        assert result.verdict is not None
        passed = click.style("passed", fg="green")
        tell(f"  {passed} in {result.duration_s:.1f} s: {puts or 'no puts'}")
        tell(f"  checked {result.verdict.records} records in the logs that are left")
    else:
        tell(f"  {click.style('FAILED', fg='red', bold=True)} after {result.duration_s:.1f} s")
        for line in result.why.splitlines():
            tell(f"    {line}")
    if is_kept and result.directory is not None:
        tell(f"  kept    {result.directory}")
    tell()


def _exit_code(failed: list[ScenarioResult]) -> int:
    if not failed:
        return 0
    broken = any(result.verdict is not None and not result.verdict.ok for result in failed)
    return EXIT_VIOLATION if broken else EXIT_FAILED


def _print_json(content: dict[str, Any]) -> None:
    tell(json.dumps({"schema": SCHEMA, **content}, indent=2))
