"""The hint to install an extra is a command that works: hastore is on no package index."""

import json
import re
import subprocess
import sys
from importlib import metadata

import pytest

from hastore.install_source import command_of, install_command
from tests.support.repository import REPO_ROOT


def test_install_command_names_the_original_source(tmp_path):
    """It is a clone, a wheel, a URL or a repository; if it is unknown or gone, a placeholder."""
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


def test_install_command_of_this_installation():
    """Pip has recorded the source of this installation."""
    written = metadata.distribution("hastore").read_text("direct_url.json")
    found = install_command("spark", "jre")
    if written is None or not json.loads(written)["url"].startswith("file:"):
        pytest.skip("not installed from files")
    assert re.fullmatch(r"pip install (-e )?'.+\[spark,jre\]'", found)


def test_no_text_recommends_an_unpublished_package():
    """`pip install hastore` would install an unrelated package, or fail."""
    wrong = []
    for top in ("README.md", "docs", "cli", "hastore", "scenarios"):
        for path in [REPO_ROOT / top, *(REPO_ROOT / top).glob("**/*.*")]:
            if path.suffix in {".md", ".py"} and path.name != "install_source.py":
                text = path.read_text(encoding="utf-8")
                wrong += re.findall(r"pip install ['\"`]*hastore\b.*", text)
    assert wrong == []


def test_missing_package_hint_has_the_install_command():
    """The command runs with a package that cannot be imported."""
    code = (
        "import sys; sys.modules['pyspark'] = None; from hastore_cli.main import main;"
        " sys.exit(main(['pipeline', 'show', 'verify']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert b"  next  pip install " in done.stderr
    assert b"[spark]" in done.stderr
    assert b"'hastore[" not in done.stderr
