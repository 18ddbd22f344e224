"""The output folder of a run: its history, its result and its report.

::

    DIR/  history.jsonl   every put and every action, one JSON object a line
          result.json     the result, its timeline, outages and losses
          report.html     the same, drawn: one self-contained page
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hastore_scenarios.judge.judgement import HISTORY_FILE
from hastore_scenarios.report.page import render_page

if TYPE_CHECKING:
    from hastore_scenarios.judge.result import ScenarioResult

REPORT_FILE: Final = "report.html"
RESULT_FILE: Final = "result.json"


def write_run(
    result: ScenarioResult, folder: Path, *, keeps_world: bool = True, again: str | None = None
) -> Path:
    """Write the folder of a run whose directory still exists; return the page's path.

    ``keeps_world``: whether that directory stays; otherwise the result does not name it.
    ``again``: the command that repeats the run, if it is not ``hastore scenario run``.
    Existing files are replaced.  Raises OSError if the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if result.directory is not None:
        history = Path(result.directory) / HISTORY_FILE
        if history.is_file() and history.parent != folder:
            shutil.copyfile(history, folder / HISTORY_FILE)
    if not keeps_world:
        result = result.with_directory_removed()
    content = json.dumps(result.to_dict(), indent=2)
    (folder / RESULT_FILE).write_text(content + "\n", encoding="utf-8")
    page = folder / REPORT_FILE
    page.write_text(render_page(result, again=again), encoding="utf-8")
    return page
