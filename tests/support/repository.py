"""The files of this repository, for tests about the code and the documents."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

REPO_ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "cli/hastore_cli",
    "hastore",
    "pyspark_hastore",
    "pytest_hastore",
    "scenarios/hastore_scenarios",
)


@cache
def files() -> list[Path]:
    """Return every file that is committed or is about to be."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPO_ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip(f"{REPO_ROOT} is no git work tree")
    names = listing.stdout.decode().split("\0")
    return [path for name in sorted(names) if name and (path := REPO_ROOT / name).is_file()]


def blocks(document: str, language: str) -> list[str]:
    """Return the fenced blocks of one language in a document."""
    text = (REPO_ROOT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
