"""The built wheel in an empty venv outside this repository, used by a new project's tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import REPO_ROOT

DOCUMENT = REPO_ROOT / "docs" / "testing-with-hastore.md"


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command without the environment variables of this repository's venv."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME"} and "PYTEST" not in name
    }
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=kept,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.soak
def test_an_empty_project_uses_the_wheel(tmp_path):
    """Only pytest is installed beside it; the document's examples pass with warnings as errors."""
    built = run(
        sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
        "--wheel-dir", tmp_path / "dist", REPO_ROOT, cwd=tmp_path,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (wheel,) = (tmp_path / "dist").glob("hastore-*.whl")

    made = run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    python = tmp_path / "venv" / "bin" / "python"
    installed = run(python, "-m", "pip", "install", "--quiet", wheel, "pytest", cwd=tmp_path)
    if installed.returncode != 0:
        pytest.skip(f"packages cannot be installed here: {installed.stderr.strip()[-300:]}")

    project = tmp_path / "project"
    project.mkdir()
    examples = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    (project / "test_orders.py").write_text("\n\n".join(examples))
    done = run(python, "-W", "error", "-m", "pytest", "-v", "-W", "error", cwd=project)
    assert done.returncode == 0, done.stdout + done.stderr
    count = sum(example.count("def test_") for example in examples)
    assert count >= 3
    assert f"{count} passed" in done.stdout
    assert str(REPO_ROOT) not in done.stdout
