"""Runs a scenario in a world of its own, then the checker.

::

    the story ── faults end, slaves catch up ── nodes stop ── the checker reads the logs

The checker also runs after a failed story, which may hide a lost message.  The directory (logs,
outputs, history) is kept unless everything held.
"""

from __future__ import annotations

import contextlib
import enum
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, assert_never

import attrs
import trio

from hastore.errors import ConfigError, HastoreError
from hastore.sim.guards import leak_guards
from hastore.sim.seams import run_by_seed
from hastore.testing.leftovers import remove_directory
from hastore_scenarios.judge.result import ScenarioResult
from hastore_scenarios.judge.timeline import Timeline
from hastore_scenarios.story.place import unawaited_recorded, with_place
from hastore_scenarios.story.world import ScenarioFailed, ScenarioSkipped
from hastore_scenarios.worlds.netns.world import NetnsWorld
from hastore_scenarios.worlds.process.world import ProcessWorld
from hastore_scenarios.worlds.sim.world import SimWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from hastore_scenarios.judge.checker import Verdict
    from hastore_scenarios.judge.history import Event
    from hastore_scenarios.judge.timeline import TimelineEntry
    from hastore_scenarios.story.scenario import Scenario
    from hastore_scenarios.worlds.staged_world import StagedWorld

    OnEntry = Callable[[TimelineEntry], None]
    OpenWorld = Callable[..., AbstractAsyncContextManager[StagedWorld[Any]]]

SCENARIO_WITHIN_S: Final = 900.0
E = TypeVar("E", bound=Exception)


class WorldKind(enum.Enum):
    """The kind of world that a story runs in."""

    PROCESS = "process"  # one process per node, on this machine's loopback
    NETNS = "netns"  # the same, each node in a network namespace of its own; needs root
    SIM = "sim"  # the same code in the simulator, in virtual time and by seed


def run_one(
    scenario: Scenario,
    *,
    world: WorldKind = WorldKind.PROCESS,
    seed: int = 0,
    directory: Path | None = None,
    keep: bool = False,
    on_entry: OnEntry | None = None,
) -> ScenarioResult:
    """Run one scenario in a world of that kind; blocks until it is over.

    ``seed`` is for the simulator only, where the same seed makes the same history byte by byte,
    with the same commit and the same minor version of trio.
    ``skipped`` of the result says what this machine lacks.  Raises ConfigError if ``directory`` is
    not empty.
    """
    base = _base(scenario, directory)
    stage = _Stage(scenario=scenario, base=base, keep=keep, on_entry=on_entry, kind=world)
    match world:
        case WorldKind.PROCESS:
            return trio.run(_run, stage)
        case WorldKind.SIM:
            opened = partial(SimWorld.open, seed=seed)
            stage = attrs.evolve(stage, seed=seed, open_world=opened)
            with leak_guards():
                return run_by_seed(seed, partial(_run, stage))
        case WorldKind.NETNS:
            return trio.run(_run, attrs.evolve(stage, open_world=NetnsWorld.open))
        case _:
            assert_never(world)


async def run_scenario(
    scenario: Scenario,
    directory: Path | None = None,
    keep: bool = False,  # noqa: FBT001, FBT002 - trio.run passes positions only
    on_entry: OnEntry | None = None,
) -> ScenarioResult:
    """Run one scenario on processes, in ``directory`` or a temporary one.

    Raises ConfigError if the directory is not empty.
    """
    base = _base(scenario, directory)
    return await _run(_Stage(scenario=scenario, base=base, keep=keep, on_entry=on_entry))


def _base(scenario: Scenario, directory: Path | None) -> Path:
    """Return the directory of a world.  Raises ConfigError if it is not empty."""
    base = directory or Path(tempfile.mkdtemp(prefix=f"hastore-{scenario.name}-"))
    if base.is_dir() and any(base.iterdir()):
        raise ConfigError(f"{base} is not empty", hint="a world begins in an empty directory")
    return base


@attrs.frozen(kw_only=True)
class _Stage:
    """Where and how one story runs."""

    scenario: Scenario
    base: Path
    keep: bool
    on_entry: OnEntry | None
    kind: WorldKind = WorldKind.PROCESS
    seed: int | None = None
    open_world: OpenWorld = ProcessWorld.open


async def _run(stage: _Stage) -> ScenarioResult:
    """Return the result of the story, also if this machine lacks something or no world opens."""
    began_s = trio.current_time()
    try:
        return await _run_in_world(stage)
    except (ScenarioSkipped, ScenarioFailed) as reason:
        is_skip = isinstance(reason, ScenarioSkipped)
        remove_directory(stage.base)
        return ScenarioResult(
            name=stage.scenario.name,
            title=stage.scenario.title,
            proves=stage.scenario.proves,
            failure=None if is_skip else str(reason),
            verdict=None,
            timeline=(),
            put_counts={},
            duration_s=trio.current_time() - began_s,
            directory=None,
            world=stage.kind.value,
            seed=stage.seed,
            skipped=str(reason) if is_skip else None,
        )


async def _run_in_world(stage: _Stage) -> ScenarioResult:
    """Run the story, settle the world, and run the checker, even after failures."""
    scenario, base, on_entry = stage.scenario, stage.base, stage.on_entry
    began_s = trio.current_time()
    timeline = Timeline(on_entry)

    def take(event: Event) -> None:
        timeline.take(world.history, event)

    failures: list[str] = []
    skips: list[ScenarioSkipped] = []
    verdict: Verdict | None = None
    async with stage.open_world(base, on_event=take) as world:
        with trio.move_on_after(SCENARIO_WITHIN_S) as deadline:
            try:
                with (
                    _collected(failures, skips, scenario.path),
                    unawaited_recorded(failures),
                ):
                    await scenario.function(world)
            finally:
                timeline.add_puts(world.history)
            with _collected(failures):
                await world.settle()
        if deadline.cancelled_caught:
            failures.append(f"not over within {SCENARIO_WITHIN_S:g} s")
        with _collected(failures):
            verdict = await world.judge()
        put_counts = world.history.put_counts
        outputs = {node.name: node.output() for node in world.nodes.values()}
    if skips and not failures:
        assert verdict is not None
        if verdict.ok:
            raise skips[0]
    result = ScenarioResult(
        name=scenario.name,
        title=scenario.title,
        proves=scenario.proves,
        failure="\n".join(failures) or None,
        verdict=verdict,
        timeline=tuple(timeline.entries),
        history=world.history,
        put_counts=put_counts,
        duration_s=trio.current_time() - began_s,
        directory=str(base),
        outputs=outputs,
        world=stage.kind.value,
        seed=stage.seed,
    )
    if result.passed and not stage.keep:
        remove_directory(base)
        result = result.with_directory_removed()
    return attrs.evolve(result, outputs={}) if result.passed else result


@contextlib.contextmanager
def _collected(
    failures: list[str], skips: list[ScenarioSkipped] | None = None, path: str | None = None
) -> Iterator[None]:
    """Record failures and skips that the block raises; programmer errors pass.

    A story's own nursery, and that of a ``load`` block, raises groups.  The text of an error from a
    line of the file at ``path`` begins with that line.
    """
    try:
        yield
    except* ScenarioSkipped as group:
        if skips is None:
            raise
        skips.extend(_leaves(group))
    except* ScenarioFailed as group:
        failures.extend(with_place(str(failed), failed, path) for failed in _leaves(group))
    except* HastoreError as group:
        failures.extend(
            with_place(f"{type(error).__name__}: {error}", error, path) for error in _leaves(group)
        )


def _leaves(group: ExceptionGroup[E]) -> Iterator[E]:
    """Yield the errors of a group and of its nested groups."""
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
