"""The demo: what a newcomer sees first must work, whatever text it is given."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPO_ROOT = Path(__file__).resolve().parents[2]


def run_demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the demo as `make demo` does, its output not a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "hastore_scenarios.demo", *arguments],
        cwd=REPO_ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
        check=False,
    )


def test_the_demo_tells_its_story_to_the_end(tmp_path: Path) -> None:
    """Every status and both tools appear, all is as it should be, in under a minute, uncoloured."""
    text = tmp_path / "lines.txt"
    text.write_text("".join(f"line {n}: grüße\n" for n in range(300)))
    began = time.monotonic()
    done = run_demo(str(text), "--keep", str(tmp_path / "kept"))
    took_s = time.monotonic() - began
    assert done.returncode == 0, done.stdout
    assert took_s < 60
    for words in (
        "300  100.0 %",
        "SLAVE_NOT_AVAILABLE",
        "FLUSH_SLAVE_TIMEOUT",
        "hastore log verify D1",
        "hastore log diff D1 D2",
        "The whole story",
        "All of it as it should be",
    ):
        assert words in done.stdout
    assert "\x1b" not in done.stdout
    assert str(tmp_path / "kept") not in done.stdout
    assert (tmp_path / "kept" / "D1" / "commitlog").is_dir()


@pytest.mark.parametrize(
    ("content", "message"), [(None, "cannot be read: No such file"), ("\n \n", "no line of text")]
)
def test_an_input_that_cannot_be_used_is_one_line(
    tmp_path: Path, content: str | None, message: str
) -> None:
    """FILE=… of the environment is heeded, and a bad one ends without a traceback."""
    path = tmp_path / "input.txt"
    if content is not None:
        path.write_text(content)
    done = run_demo(FILE=str(path))
    assert done.returncode == 1
    assert re.fullmatch(rf"error: .*{message}.*\n", done.stdout)
