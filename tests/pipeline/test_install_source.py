"""The hint that names an extra names what pip can install: hastore is on no package index."""

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from hastore.pipeline.spark.install_source import command_of, install_command

ROOT = Path(__file__).resolve().parents[2]


def test_it_is_installed_from_where_it_came(tmp_path):
    """A clone, an editable one, a wheel's file, an address, a repository; all else is unknown."""
    clone, wheel = tmp_path / "my clone", tmp_path / "hastore-0.1.0-py3-none-any.whl"
    clone.mkdir()
    wheel.write_bytes(b"")
    for direct_url, command in (
        (None, "pip install 'PATH_OF_THE_CLONE[spark]'"),
        ({"url": clone.as_uri(), "dir_info": {}}, f"pip install '{clone}[spark]'"),
        (
            {"url": clone.as_uri(), "dir_info": {"editable": True}},
            f"pip install -e '{clone}[spark]'",
        ),
        ({"url": wheel.as_uri(), "archive_info": {}}, f"pip install '{wheel}[spark]'"),
        ({"url": "file:///gone/away", "dir_info": {}}, "pip install 'PATH_OF_THE_CLONE[spark]'"),
        (
            {"url": "https://example.org/hastore.whl", "archive_info": {}},
            "pip install 'hastore[spark] @ https://example.org/hastore.whl'",
        ),
        (
            {"url": "https://example.org/h.git", "vcs_info": {"vcs": "git", "commit_id": "ab"}},
            "pip install 'hastore[spark] @ git+https://example.org/h.git@ab'",
        ),
    ):
        assert command_of(direct_url, "[spark]") == command


def test_this_installation_is_known():
    """Pip has written down where it was installed from; else nobody can know."""
    written = metadata.distribution("hastore").read_text("direct_url.json")
    found = install_command("spark", "jre")
    if written is None or not json.loads(written)["url"].startswith("file:"):
        pytest.skip("not installed from files")
    assert re.fullmatch(r"pip install (-e )?'.+\[spark,jre\]'", found)


def test_no_text_names_a_package_that_nobody_has_published():
    """`pip install hastore` would fetch a stranger's package, or fail."""
    wrong = []
    for top in ("README.md", "docs", "cli", "hastore", "scenarios"):
        for path in [ROOT / top, *(ROOT / top).glob("**/*.*")]:
            if path.suffix in {".md", ".py"} and path.name != "install_source.py":
                text = path.read_text(encoding="utf-8")
                wrong += re.findall(r"pip install ['\"`]*hastore\b.*", text)
    assert wrong == []


def test_the_hint_of_a_missing_package_says_so():
    """By the command itself, with a package that cannot be imported."""
    code = (
        "import sys; sys.modules['pyspark'] = None; from hastore_cli.main import main;"
        " sys.exit(main(['pipeline', 'show', 'verify']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert b"  next  pip install " in done.stderr
    assert b"[spark]" in done.stderr
    assert b"'hastore[" not in done.stderr
