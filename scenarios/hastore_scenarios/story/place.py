"""Finds the line of a story's file that raised an error, or that did not await a coroutine."""

from __future__ import annotations

import contextlib
import linecache
import sys
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def frame_in(error: BaseException, path: str) -> traceback.FrameSummary | None:
    """Return the innermost frame of ``error`` in the file; None if there is none."""
    wanted = Path(path).resolve()
    frames = traceback.extract_tb(error.__traceback__)
    return next(
        (frame for frame in reversed(frames) if Path(frame.filename).resolve() == wanted), None
    )


def with_place(text: str, error: BaseException, path: str | None) -> str:
    """Return ``FILE:LINE in FUNCTION: text``, or only the text without a frame in the file."""
    frame = None if path is None else frame_in(error, path)
    return text if frame is None else f"{path}:{frame.lineno} in {frame.name}: {text}"


@contextlib.contextmanager
def unawaited_recorded(failures: list[str]) -> Iterator[None]:
    """Add every coroutine that the block drops without awaiting it to ``failures``.

    Python only warns, on stderr, and the action does not happen: a story without its put would
    pass.  Other warnings appear as usual.
    """
    depth = sys.get_coroutine_origin_tracking_depth()
    sys.set_coroutine_origin_tracking_depth(1)
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.filterwarnings(
                "always", message="coroutine .* was never awaited", category=RuntimeWarning
            )
            yield
    finally:
        sys.set_coroutine_origin_tracking_depth(depth)
        for warning in caught:
            origin = getattr(warning.source, "cr_origin", None)
            if origin:
                failures.append(_unawaited_text(warning.source, *origin[0]))
            else:
                warnings.warn_explicit(
                    warning.message, warning.category, warning.filename, warning.lineno
                )


def _unawaited_text(coroutine: object, path: str, line: int, function: str) -> str:
    name = getattr(coroutine, "__name__", "a coroutine")
    source = linecache.getline(path, line).strip()
    return (
        f"{path}:{line} in {function}: {name}() was never awaited: write await before it,"
        f" at: {source}"
    )
