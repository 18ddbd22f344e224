"""``hastore sim``: clusters in virtual time; a seed decides a run and replays it."""

from __future__ import annotations

import itertools
import re
import time
from typing import TYPE_CHECKING, Any, Final

import rich_click as click

from hastore.quantities import ungrouped
from hastore_cli.app.command import ExampleCommand, LazyGroup, output_option
from hastore_cli.app.output import echo_json
from hastore_cli.app.terminal import say, tell, tell_text
from hastore_cli.settings.param_types import Number, WholeNumber, plain_digits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hastore.sim.shrink import Shrunk
    from hastore.sim.simulation import SimResult
    from hastore_cli.lab.sim_run import SeedTotals

SCHEMA: Final = "hastore.sim/1"
EXIT_VIOLATION: Final = 4
EXIT_INTERRUPTED: Final = 130
_SEED_LAST: Final = 200  # without --seeds and --minutes
_SEED_MAX: Final = 2**63 - 1
_SHRUNK_MAX: Final = 3  # failing seeds whose story is printed; the others are named
_SHRINK_MAX_S: Final = 60.0
_RANGE: Final = re.compile(r"(\d+)(?:\.\.(\d+))?", re.ASCII)


@click.group(
    cls=LazyGroup,
    examples=(
        "hastore sim run",
        "hastore sim run --seeds 1000..2000 --jobs 8",
        "hastore sim run --minutes 30",
        "hastore sim replay 17",
    ),
)
def sim() -> None:
    """Run whole clusters in virtual time, each seed with other faults."""


_groups_option: Final = click.option(
    "--groups",
    is_flag=True,
    help="Replica groups, whose nodes change their roles, instead of a master and its slaves.",
)


def _parse_seeds(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> tuple[int, int | None] | None:
    if value is None:
        return None
    match = _RANGE.fullmatch(ungrouped(plain_digits(value.strip(), "the seeds")))
    if match is None:
        raise click.BadParameter(f"{value!r} is not a seed or a range: write 17, or 0..200")
    first = int(match[1])
    last = None if match[2] is None else int(match[2])
    if last is not None and last < first:
        raise click.BadParameter(f"{value!r} ends before it begins")
    if max(first, last or 0) > _SEED_MAX:
        raise click.BadParameter(f"{value!r}: a seed is at most {_SEED_MAX}")
    return first, last


@sim.command(
    cls=ExampleCommand,
    examples=(
        "hastore sim run",
        "hastore sim run --seeds 1000..2000",
        "hastore sim run --seeds 5000 --minutes 30 -o json",
        "hastore sim run --groups --seeds 0..100",
    ),
    epilog="Exit code: 0 all promises held, 4 a seed broke one, 130 after Ctrl-C.",
)
@click.option(
    "--seeds",
    callback=_parse_seeds,
    metavar="A..B",
    help=f"The seeds from A to B, both included; one seed: A. [default: 0..{_SEED_LAST}]",
)
@click.option(
    "--minutes",
    type=Number(min=0, min_open=True),
    help="Run seeds from A until the time is over or B is reached; at least one seed.",
)
@click.option("--jobs", type=WholeNumber(1, 256), help="Processes. [default: one per processor]")
@_groups_option
@output_option()
def run(
    *,
    seeds: tuple[int, int | None] | None,
    minutes: float | None,
    jobs: int | None,
    groups: bool,
    output: str,
) -> int:
    """Run seeds: faults for a while, then none; every promise is checked all the time."""
    from hastore_cli.lab.sim_run import (
        ProgressLine,
        default_jobs,
        print_tally,
        run_seeds,
        tally_dict,
    )

    say_trio_note()
    progress = ProgressLine()
    tally = run_seeds(
        _seeds(seeds, endless=minutes is not None),
        jobs=jobs or default_jobs(),
        seconds=None if minutes is None else minutes * 60,
        groups=groups,
        on_progress=progress.show,
    )
    progress.end()
    if output == "json":
        _print_json({**tally_dict(tally), "failed": _failed_json(tally)})
    else:
        _print_failed(tally)
        print_tally(tally)
    if tally.failed:
        return EXIT_VIOLATION
    return EXIT_INTERRUPTED if tally.was_interrupted else 0


def say_trio_note() -> None:
    """Say on stderr that a seed may be another run with this trio.  Raises ConfigError."""
    from hastore.sim.seams import trio_note

    note = trio_note()
    if note is not None:
        say(f"note: {note}")


def _seeds(seeds: tuple[int, int | None] | None, *, endless: bool) -> Iterator[int]:
    if seeds is None:
        first, last = 0, (None if endless else _SEED_LAST)
    else:
        first, last = seeds
        if last is None and not endless:
            last = first
    return itertools.count(first) if last is None else iter(range(first, last + 1))


def _print_failed(tally: SeedTotals) -> None:
    from hastore_cli.lab.sim_run import print_failed, print_shrunk

    for number, outcome in enumerate(tally.failed):
        print_failed(outcome)
        has_story = outcome.violation is not None and not tally.was_interrupted
        if has_story and number < _SHRUNK_MAX:
            failed = _simulate(outcome.seed, groups=outcome.groups)
            if failed.violation is not None:
                print_shrunk(_shrink(failed, groups=outcome.groups))
        if outcome.error is not None:
            tell_text(outcome.error)
        tell()


def _failed_json(tally: SeedTotals) -> list[dict[str, Any]]:
    from hastore_cli.lab.sim_run import replay_command

    return [
        {
            "seed": each.seed,
            "violation": each.violation,
            "error": each.error,
            "replay": replay_command(each.seed, groups=each.groups),
        }
        for each in tally.failed
    ]


@sim.command(
    cls=ExampleCommand,
    examples=(
        "hastore sim replay 17",
        "hastore sim replay 17 --trace > trace.txt",
        "hastore sim replay 17 -o json",
        "hastore sim replay --groups 17",
    ),
    epilog="Exit code: 0 all promises held, 4 one was broken, 130 after Ctrl-C.",
)
@click.argument("seed", type=WholeNumber(0, _SEED_MAX))
@click.option("--trace", is_flag=True, help="Every line, including the nodes' logs.")
@_groups_option
@output_option()
def replay(*, seed: int, trace: bool, groups: bool, output: str) -> int:
    """Repeat the run of a seed; a failing one is shrunk to the faults it needs."""
    from hastore_cli.lab.sim_run import (
        entries_dict,
        print_result,
        print_shrunk,
        print_timeline,
        result_dict,
    )

    say_trio_note()
    result = _simulate(seed, groups=groups)
    if output == "json":
        shrunk = None if result.ok else _shrink(result, groups=groups)
        content = {
            **result_dict(result),
            "timeline": entries_dict(result.timeline(everything=trace)),
        }
        if shrunk is not None:
            content["shrunk"] = {
                "faults": list(shrunk.kept),
                "of": shrunk.fired,
                "timeline": entries_dict(shrunk.result.timeline(everything=trace)),
            }
        _print_json(content)
    else:
        print_result(result)
        if trace or result.ok:
            print_timeline(result.timeline(everything=trace))
        if not result.ok:
            print_shrunk(_shrink(result, groups=groups))
        if result.traceback is not None:
            tell_text(result.traceback)
    return 0 if result.ok else EXIT_VIOLATION


def _simulate(seed: int, *, groups: bool) -> SimResult:
    from hastore_cli.lab.sim_run import simulation_of

    return simulation_of(groups=groups)(seed, keeps_trace=True)


def _shrink(failed: SimResult, *, groups: bool) -> Shrunk:
    """Find the faults that the failure needs, within ``_SHRINK_MAX_S``."""
    from hastore.sim.shrink import shrink
    from hastore_cli.lab.sim_run import simulation_of

    until = time.monotonic() + _SHRINK_MAX_S
    run = simulation_of(groups=groups)
    return shrink(failed, is_over=lambda: time.monotonic() > until, run=run)


def _print_json(content: dict[str, Any]) -> None:
    echo_json({"schema": SCHEMA, **content}, indent=2)
