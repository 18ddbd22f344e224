"""The C extension is optional: to install, to import, and to use."""

import json
import os
import subprocess
import sys
import zipfile

import pytest

from tests.support.repository import REPO_ROOT

# One worker, as other tests of this folder: a build replaces the extension in the work tree.
pytestmark = pytest.mark.xdist_group("packaging")


def build_wheel(out, **environment):
    """Build the wheel of this work tree; return its path and what the build printed."""
    command = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out))
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=REPO_ROOT,
        env={**os.environ, **environment},
    )
    (path,) = out.glob("*.whl")
    return path, done.stdout + done.stderr


def extensions_in(wheel):
    """Return the names of the compiled files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if name.endswith(".so")]


def test_without_a_compiler_the_wheel_is_pure(tmp_path):
    """The build succeeds, says why there is no extension, and fits every platform."""
    wheel, said = build_wheel(tmp_path, PATH=str(tmp_path), HASTORE_PURE="")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert extensions_in(wheel) == []
    assert "the C extension was not built: " in said


def test_pure_build_on_request(tmp_path):
    """``HASTORE_PURE=1`` builds the wheel for every platform."""
    wheel, _ = build_wheel(tmp_path, HASTORE_PURE="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert extensions_in(wheel) == []


@pytest.mark.parametrize(
    ("pure", "expected"), [("1", "not in use: HASTORE_PURE is set"), ("0", "")]
)
def test_version_says_which_code_is_in_use(pure, expected):
    """``hastore version`` shows the extension's file, or why it is not in use."""
    done = subprocess.run(
        (sys.executable, "-m", "hastore_cli", "version", "-o", "json"),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HASTORE_PURE": pure},
    )
    extension = json.loads(done.stdout)["extension"]
    if pure == "1":
        assert extension == "not in use: HASTORE_PURE is set"
    else:
        assert extension.startswith(("in use: ", "not in use: "))


def test_extension_of_another_version_is_not_used(tmp_path):
    """One that was built from older sources is refused: its functions may take something else."""
    fake = tmp_path / "fake.py"
    fake.write_text(
        "import sys, types\n"
        "old = types.ModuleType('hastore.native._native')\n"
        "old.INTERFACE, old.__file__ = 0, 'old.so'\n"
        "sys.modules['hastore.native._native'] = old\n"
        "from hastore.native import in_use\n"
        "print(in_use.extension, in_use.state)\n"
    )
    done = subprocess.run(
        (sys.executable, str(fake)),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HASTORE_PURE": ""},
    )
    expected = "None not in use: old.so is of another version; install hastore again\n"
    assert done.stdout == expected
