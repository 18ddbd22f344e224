"""What ``hastore sim`` says: progress, the summary, and the story of a seed that failed."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final, final

import click

from hastore_cli.app.terminal import one_line, say, tell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore.sim.shrink import Shrunk
    from hastore.sim.simulation import SimResult
    from hastore.sim.trace import TraceEntry
    from hastore_cli.lab.sim_seeds import SeedOutcome, SeedTotals

_LINE_EVERY_S: Final = 10.0
_IN_PLACE_EVERY_S: Final = 0.2


@final
class ProgressLine:
    """A line on stderr, the first one soon: written over on a terminal, else every ten seconds."""

    def __init__(self) -> None:
        self._in_place = sys.stderr.isatty()
        self._every_s = _IN_PLACE_EVERY_S if self._in_place else _LINE_EVERY_S
        self._last = time.monotonic() - self._every_s

    def show(self, tally: SeedTotals) -> None:
        """Say how far it is, now and then."""
        now = time.monotonic()
        if now - self._last < self._every_s:
            return
        self._last = now
        text = (
            f"{tally.seeds} seeds, {tally.virtual_s:.0f} virtual s, {tally.faults} faults,"
            f" {tally.acknowledged} acknowledged, {len(tally.failed)} failed"
        )
        if self._in_place:
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)
        else:
            say(text)

    def end(self) -> None:
        """Take the line away."""
        if self._in_place:
            click.echo("\r\x1b[K", nl=False, err=True)


def tally_dict(tally: SeedTotals) -> dict[str, Any]:
    """Give the summary with stable keys."""
    return {
        "seeds": tally.seeds,
        "virtual_s": round(tally.virtual_s, 3),
        "faults": tally.faults,
        "boots": tally.boots,
        "puts": tally.puts,
        "acknowledged": tally.acknowledged,
        "served": tally.served,
        "violations": len(tally.failed),
        "cpu_s": round(tally.cpu_s, 3),
        "virtual_s_per_cpu_s": round(tally.rate, 1),
        "wall_s": round(tally.wall_s, 3),
        "interrupted": tally.was_interrupted,
    }


def print_tally(tally: SeedTotals) -> None:
    """Print the summary."""
    rows = (
        ("seeds", f"{tally.seeds}"),
        ("virtual time", f"{tally.virtual_s:.0f} s"),
        ("faults", f"{tally.faults}"),
        ("boots", f"{tally.boots}"),
        ("puts", f"{tally.puts}, {tally.acknowledged} acknowledged"),
        ("served", f"{tally.served} messages to consumers"),
        ("speed", f"{tally.rate:.0f} virtual s a CPU-second ({tally.cpu_s:.1f} s of CPU)"),
    )
    for name, value in rows:
        tell(f"{name:<13} {value}")
    count = len(tally.failed)
    verdict = click.style("none", fg="green") if not count else click.style(f"{count}", fg="red")
    tell(f"{'violations':<13} {verdict}" + (" (interrupted)" if tally.was_interrupted else ""))


def result_dict(result: SimResult) -> dict[str, Any]:
    """Give what became of a seed, with stable keys."""
    from hastore.sim.simulation import describe

    violation = result.violation
    return {
        "seed": result.seed,
        "config": describe(result.config),
        "trace_hash": result.trace_hash,
        "virtual_s": round(result.virtual_s, 3),
        "faults": result.faults,
        "boots": result.boots,
        "puts": result.puts,
        "acknowledged": result.acknowledged,
        "served": result.served,
        "violation": None
        if violation is None
        else {"rule": violation.name, "detail": violation.detail, "put": violation.put},
        "error": result.traceback,
    }


def entries_dict(entries: Sequence[TraceEntry]) -> list[dict[str, Any]]:
    """Give a timeline with stable keys."""
    return [{"at_s": round(each.at, 6), "who": each.who, "what": each.what} for each in entries]


def print_result(result: SimResult) -> None:
    """Print what became of a seed."""
    from hastore.sim.simulation import describe

    tell(f"seed {result.seed}: {describe(result.config)}")
    tell(
        f"  {result.virtual_s:.1f} virtual s, {result.faults} faults, {result.boots} boots,"
        f" {result.puts} puts, {result.acknowledged} acknowledged, {result.served} served"
    )
    tell(f"  trace hash  {result.trace_hash}")
    if result.violation is None:
        tell(f"  {click.style('held', fg='green')}")
    else:
        tell(f"  {click.style('broke', fg='red', bold=True)}  {result.violation}")


def print_timeline(entries: Sequence[TraceEntry]) -> None:
    """Print what happened, a line each."""
    for each in entries:
        line = f"  {each.at:10.3f}  {each.who:<9} {one_line(each.what)}"
        colour = "red" if each.who == "oracle" else "yellow" if _is_fault(each) else None
        tell(click.style(line, fg=colour) if colour else line)


def _is_fault(entry: TraceEntry) -> bool:
    return entry.what.startswith("fault ")


def print_shrunk(shrunk: Shrunk) -> None:
    """Say how small a failing seed has become, and show its timeline."""
    from hastore.sim.timeline import timeline

    tell(f"  with {len(shrunk.kept)} of its {shrunk.fired} faults ({shrunk.runs} runs), it goes:")
    print_timeline(timeline(shrunk.result))


def print_failed(outcome: SeedOutcome) -> None:
    """Name a seed that failed, and how to see it again."""
    what = outcome.violation or (outcome.error or "").strip().splitlines()[-1]
    failed = click.style("FAILED", fg="red", bold=True)
    tell(f"seed {outcome.seed} {failed}: {one_line(what)}")
    tell(f"  hastore sim replay {outcome.seed}")
