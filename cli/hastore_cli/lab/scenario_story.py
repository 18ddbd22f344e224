"""Somebody's own scenario file: where its mistakes are, in one line each.

A story that raises has failed like any other: its timeline, its history and its report are there.
"""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from hastore.errors import ConfigError, DiskError, HastoreError
from hastore_cli.app.error_report import leaves
from hastore_cli.node.node_options import RefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hastore_scenarios.judge.result import ScenarioResult
    from hastore_scenarios.story.registry import Scenario
    from hastore_scenarios.story.timeline import TimelineEntry


def find_named(name_or_file: str) -> tuple[Scenario, ...]:
    """Give the scenarios of a name or file; ConfigError names the line of a file's mistake."""
    from hastore_scenarios.story.registry import find

    try:
        return find(name_or_file)
    except ConfigError as error:
        if error.__cause__ is None:
            raise
        if os.environ.get("HASTORE_DEBUG"):
            traceback.print_exception(error.__cause__)
        where = _where(error.__cause__, name_or_file)
        if where is None:
            raise
        raise ConfigError(
            where, hint="hastore scenario new FILE.py writes one that works"
        ) from error


def write_template(file: str, *, force: bool) -> None:
    """Write a new scenario file; what is there already stays unless ``force``."""
    from hastore_scenarios.story.template import template

    path = Path(file)
    if path.suffix != ".py":
        raise ConfigError(f"{file} is no name of a Python file", hint=f"{path.stem or 'story'}.py")
    try:
        with path.open("w" if force else "x", encoding="utf-8") as sink:
            sink.write(template(file, path.stem))
    except FileExistsError:
        raise RefusedError(f"{file} is there already", hint="--force replaces it") from None
    except OSError as error:
        raise DiskError(f"cannot write {file}: {error.strerror}", path=file) from error


def crashed(
    error: BaseException, each: Scenario, directory: Path, entries: Sequence[TimelineEntry]
) -> ScenarioResult | None:
    """Give the result of a story that raised ``error``; None for what is not the story's."""
    from hastore_scenarios.judge.history import load_history
    from hastore_scenarios.judge.judgement import HISTORY_FILE
    from hastore_scenarios.judge.result import ScenarioResult

    where = _where(error, each.path)
    if where is None:
        return None
    if os.environ.get("HASTORE_DEBUG"):
        traceback.print_exception(error)
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
    """``FILE:LINE in FUNCTION: Kind: text, at: source``; None where the file had no part in it."""
    from hastore_scenarios.story.story_place import frame_in

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
