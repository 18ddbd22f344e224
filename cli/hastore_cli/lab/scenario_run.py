"""Runs scenarios: prints the timeline as it happens and the verdict, and writes the run's folder.

A mistake in a scenario file is reported in one line with its place.  A story that raises has failed
like any other: it has a timeline, a history and a report.  With ``--spark`` the pipeline's job
``rpo`` checks the same history and logs again; both must count the same broken rules.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import tempfile
import traceback
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from hastore.errors import ConfigError, DiskError, HastoreError
from hastore.testing.leftovers import remove_directory
from hastore_cli.app.error_report import collapsed, leaves
from hastore_cli.app.terminal import fold, say_text, style, tell
from hastore_cli.node.options import RefusedError
from hastore_scenarios.judge.result import held_text, loss_text, puts_text, rto_text, unknown_text
from hastore_scenarios.report.run_folder import write_run
from hastore_scenarios.runner import WorldKind, run_one

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hastore.pipeline.spark.session import SparkSession
    from hastore_scenarios.judge.result import ScenarioResult
    from hastore_scenarios.judge.timeline import TimelineEntry
    from hastore_scenarios.story.scenario import Scenario


RUNS_DIRECTORY: Final = "hastore-runs"
_BAD: Final = frozenset({"kill", "pause", "exit", "stop"})
_TEXT_AT: Final = len("     0.000 s  ")  # where the text of a timeline's line begins
_FACT_AT: Final = len("  held  ")
_COLOURS: Final = {"held": "green", "broken": "red", "failed": "red", "skipped": "yellow"}


@attrs.frozen(kw_only=True)
class PlannedRun:
    """One run of a scenario, and its folders."""

    scenario: Scenario
    label: str  # its name among the scenarios of this command
    world: WorldKind
    seed: int
    folder: Path  # of the report
    directory: Path | None  # of the world; None: a temporary one


@attrs.frozen(kw_only=True)
class FinishedRun:
    """A finished run; ``folder``: of its report, None if it was skipped."""

    result: ScenarioResult
    label: str
    folder: Path | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**self.result.to_dict(), "out": None if self.folder is None else str(self.folder)}


def plan(
    chosen: Sequence[Scenario],
    *,
    world: WorldKind,
    seed: int,
    repeat: int,
    out: str | None,
    directory: str | None,
) -> list[PlannedRun]:
    """Return the runs to make.  Creates the folders first.  Raises DiskError."""
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    runs = []
    for each, label in zip(chosen, _labels(chosen), strict=True):
        for turn in range(repeat):
            number = f"-{turn + 1:0{len(str(repeat))}d}" if repeat > 1 else ""
            if out is None:
                folder = _fresh(Path(RUNS_DIRECTORY, f"{label}-{stamp}{number}"))
            else:
                is_only = len(chosen) == 1 and repeat == 1
                folder = Path(out) if is_only else Path(out, label + number)
            base = None if directory is None else Path(directory, label + number)
            runs.append(
                PlannedRun(
                    scenario=each,
                    label=label,
                    world=world,
                    seed=seed + turn,
                    folder=folder,
                    directory=base,
                )
            )
    if directory is not None:
        _make(Path(directory), "the worlds", "--directory")
    _make(runs[0].folder, "the report", "--out")
    return runs


def _labels(chosen: Sequence[Scenario]) -> list[str]:
    """Return a unique label for each scenario, for folders and the summary.

    Scenarios with one name in several files get the file's name in front, else a number.
    """
    files: dict[str, set[str]] = {}
    for each in chosen:
        files.setdefault(each.name, set()).add(each.path)
    labels: list[str] = []
    for each in chosen:
        is_one = len(files[each.name]) == 1
        wanted = label = each.name if is_one else f"{Path(each.path).stem}-{each.name}"
        turn = 1
        while label in labels or (label != each.name and label in files):
            turn += 1
            label = f"{wanted}.{turn}"
        labels.append(label)
    return labels


def _fresh(folder: Path) -> Path:
    number = 1
    path = folder
    while path.exists():
        number += 1
        path = folder.with_name(f"{folder.name}.{number}")
    return path


def _make(folder: Path, what: str, option: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(
            f"cannot make {folder} for {what}: {error.strerror}",
            path=str(folder),
            hint=f"name another place: {option} DIR",
        ) from error


def _leave_no_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def run_planned(planned: PlannedRun, *, quiet: bool) -> ScenarioResult:
    """Run one scenario and print its timeline; its world's directory stays."""
    each = planned.scenario
    if not quiet:
        number = f"{each.number:02d} " if each.number else ""
        seed = f", seed {planned.seed}" if planned.world is WorldKind.SIM else ""
        name = f"{number}{planned.label}"
        text = f"{name} ({planned.world.value}{seed}): {each.proves}"
        _tell_folded(text, name, style(name, bold=True), hang=len(number))
    base = planned.directory or Path(tempfile.mkdtemp(prefix=f"hastore-{each.name}-"))
    entries: list[TimelineEntry] = []
    nobody_reads = False

    def on_entry(entry: TimelineEntry) -> None:
        nonlocal nobody_reads
        entries.append(entry)
        if not quiet:
            try:
                for line in fold(f"  {entry}", hang=_TEXT_AT):
                    tell(styled(entry, line))
            except BrokenPipeError:
                nobody_reads = True  # not an error of the story
                raise

    try:
        with collapsed():
            return run_one(
                each,
                world=planned.world,
                seed=planned.seed,
                directory=base,
                keep=True,
                on_entry=on_entry,
            )
    except BaseException as error:
        is_storys = isinstance(error, (Exception, SystemExit)) and not nobody_reads
        result = crashed(error, each, base, entries) if is_storys else None
        if result is None:
            if planned.directory is None:
                remove_directory(base)
            _leave_no_empty(planned.folder)
            raise
        sim_seed = planned.seed if planned.world is WorldKind.SIM else None
        return attrs.evolve(result, world=planned.world.value, seed=sim_seed)


def write_folder(result: ScenarioResult, planned: PlannedRun, *, keep: bool) -> FinishedRun:
    """Write the run's folder; remove the world if the run passed, unless ``keep``."""
    folder = None
    keeps_world = keep or not (result.passed or result.skipped is not None)
    if result.history is not None and result.skipped is None:
        try:
            write_run(result, planned.folder, keeps_world=keeps_world)
        except OSError as error:
            raise DiskError(
                f"cannot write {planned.folder}: {error.strerror}",
                path=str(planned.folder),
                hint=f"name another place: --out DIR; the world is in {result.directory}",
            ) from error
        folder = planned.folder
    else:
        _leave_no_empty(planned.folder)
    if not keeps_world and result.directory is not None:
        remove_directory(Path(result.directory))
        result = result.with_directory_removed()
    return FinishedRun(result=result, label=planned.label, folder=folder)


def styled(entry: TimelineEntry, text: str) -> str:
    """Return the text of a timeline's entry, coloured by its kind."""
    if entry.text.startswith("NOT AS EXPECTED") or entry.kind in _BAD:
        return style(text, fg="red")
    if entry.kind in {"link", "disk"}:
        return style(text, fg="yellow")
    if entry.kind == "expect":
        return style(text, fg="green")
    return style(text, bold=True) if entry.kind == "say" else text


def print_finished(finished: FinishedRun) -> None:
    """Print the result of a run: verdict, RTO, RPO, report, kept directory."""
    result = finished.result
    held = held_text(result)
    word = style(held, fg=_COLOURS[held], bold=held != "held")
    if result.skipped is not None:
        _tell_folded(f"  {held}  {result.skipped}", held, word)
        tell()
        return
    puts = puts_text(result.put_counts)
    if result.passed:
        assert result.verdict is not None
        text = (
            f"  {held}  passed in {result.duration_s:.1f} s: {puts};"
            f" {result.verdict.records} records checked"
        )
        _tell_folded(text, held, word)
    else:
        failed = style("FAILED", fg="red", bold=True)
        text = f"  {held}  FAILED after {result.duration_s:.1f} s: {puts}"
        _tell_folded(text, f"{held}  FAILED", f"{word}  {failed}")
        for line in result.why.splitlines():
            _tell_folded(f"    {line}", hang=6)
    _tell_folded("  rto   " + "  ".join(rto_text(result.outages, result.unmeasured)))
    if result.verdict is not None and result.verdict.loss is not None:
        loss = result.verdict.loss
        _tell_folded("  rpo   " + "  ".join(loss_text(loss)) + f"; {unknown_text(loss)}")
    if finished.folder is not None:
        tell(f"  out   {finished.folder / 'report.html'}")
    if result.directory is not None:
        tell(f"  kept  {result.directory}")
    tell()


def _tell_folded(text: str, plain: str = "", styled: str = "", *, hang: int = _FACT_AT) -> None:
    """Print a folded sentence; ``styled`` replaces ``plain`` in its first line."""
    first, *more = fold(text, hang=hang)
    tell(first.replace(plain, styled, 1) if plain else first)
    for line in more:
        tell(line)


# -- one story -----------------------------------------------------------------------------------


def find_named(name_or_file: str) -> tuple[Scenario, ...]:
    """Return the scenarios of a name or file.  Raises ConfigError with the line of a mistake."""
    from hastore_scenarios.registry import find

    try:
        return find(name_or_file)
    except ConfigError as error:
        if error.__cause__ is None:
            raise
        if os.environ.get("HASTORE_DEBUG"):
            say_text("".join(traceback.format_exception(error.__cause__)))
        where = _where(error.__cause__, name_or_file)
        if where is None:
            raise
        raise ConfigError(
            where, hint="hastore scenario new FILE.py writes one that works"
        ) from error


def write_template(file: str, *, force: bool) -> None:
    """Write a new scenario file.  Raises RefusedError if it exists, unless ``force``."""
    from hastore_scenarios.story.template import template

    path = Path(file)
    if path.suffix != ".py":
        raise ConfigError(
            f"{file} is not the name of a Python file", hint=f"{path.stem or 'story'}.py"
        )
    try:
        with path.open("w" if force else "x", encoding="utf-8") as sink:
            sink.write(template(file, path.stem))
    except FileExistsError:
        raise RefusedError(f"{file} exists already", hint="--force replaces it") from None
    except OSError as error:
        raise DiskError(f"cannot write {file}: {error.strerror}", path=file) from error


def crashed(
    error: BaseException, each: Scenario, directory: Path, entries: Sequence[TimelineEntry]
) -> ScenarioResult | None:
    """Return the result of a story that raised ``error``; None if the error is not the story's."""
    from hastore_scenarios.judge.history import load_history
    from hastore_scenarios.judge.judgement import HISTORY_FILE
    from hastore_scenarios.judge.result import ScenarioResult

    where = _where(error, each.path)
    if where is None:
        return None
    if os.environ.get("HASTORE_DEBUG"):
        say_text("".join(traceback.format_exception(error)))
    try:
        with (directory / HISTORY_FILE).open(encoding="utf-8") as lines:
            history = load_history(lines)
    except OSError:
        history = None
    return ScenarioResult(
        name=each.name,
        title=each.title,
        proves=each.proves,
        failure=where,
        verdict=None,
        timeline=tuple(entries),
        put_counts={} if history is None else history.put_counts,
        duration_s=entries[-1].time_s if entries else 0.0,
        directory=str(directory),
        history=history,
    )


def _where(error: BaseException, path: str) -> str | None:
    """Return ``FILE:LINE in FUNCTION: Kind: text, at: source``; None if it is not in the file."""
    from hastore_scenarios.story.place import frame_in

    wanted = Path(path).resolve()
    for leaf in leaves(error):
        if isinstance(leaf, SyntaxError) and Path(leaf.filename or "").resolve() == wanted:
            source = (leaf.text or "").strip()
            return f"{path}:{leaf.lineno}: SyntaxError: {leaf.msg}, at: {source}"
        if isinstance(leaf, HastoreError) or not isinstance(leaf, (Exception, SystemExit)):
            continue
        last = frame_in(leaf, path)
        if last is not None:
            what = traceback.format_exception_only(leaf)[-1].strip()
            return f"{path}:{last.lineno} in {last.name}: {what}, at: {last.line}"
    return None


# -- the same verdict by Spark -------------------------------------------------------------------


def refuse_without_spark() -> None:
    """Raise ConfigError if Spark or Java is missing, before a story runs."""
    from hastore_cli.pipeline.run import needs_extra

    with needs_extra():
        if importlib.util.find_spec("pyspark") is None:
            raise ModuleNotFoundError(name="pyspark")
        from hastore.pipeline.spark.java_home import find_java_home

        find_java_home()


def check_by_spark(results: Sequence[ScenarioResult]) -> Iterator[ScenarioResult]:
    """Yield each result with Spark's verdict; their directories must exist."""
    from hastore_cli.pipeline.run import running_spark

    with running_spark() as spark:
        for result in results:
            yield _checked(spark, result)


def _checked(spark: SparkSession, result: ScenarioResult) -> ScenarioResult:
    from hastore.pipeline.rpo.job import rpo
    from hastore_scenarios.judge.account import Account
    from hastore_scenarios.judge.history import load_history
    from hastore_scenarios.judge.judgement import HISTORY_FILE
    from hastore_scenarios.judge.presence import count_broken, disagreements

    assert result.directory is not None
    folder = Path(result.directory)
    path = folder / HISTORY_FILE
    with path.open(encoding="utf-8") as lines:
        history = load_history(lines)
    nodes = [
        name
        for name in dict.fromkeys(event.node for event in history.events if event.node is not None)
        if _has_log(folder / name)
    ]
    if not nodes or not history.operations:
        return result
    found = rpo(spark, str(path), [glob.escape(str(folder / node)) for node in nodes])
    summary = found.summary
    foreign = sum(line["foreign"] for line in summary["by_survivor"])
    account = Account.of(history.events)
    counts = count_broken(summary["tallies"], foreign, nodes, account)
    facts: dict[str, Any] = {
        name: value for name, value in summary.items() if isinstance(value, int | str)
    }
    facts["rules"] = {rule.value: count for rule, count in counts.items()}
    facts["disagreements"] = (
        [] if result.verdict is None else list(disagreements(counts, result.verdict.counts))
    )
    return attrs.evolve(result, spark=facts)


def _has_log(directory: Path) -> bool:
    from hastore.env.real import real_env
    from hastore.errors import NotAStoreError
    from hastore.store.tools.log_directory import find_log

    try:
        find_log(real_env().disk, str(directory))
    except NotAStoreError:
        return False
    return True
