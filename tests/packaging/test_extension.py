"""The C extension is optional: to install, to import, and to use."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile

import pytest

from hatch_build import compile_extension
from tests.support.repository import REPO_ROOT

# One worker, as other tests of this folder: a build takes a core for seconds.
pytestmark = pytest.mark.xdist_group("packaging")


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Return a copy of what a wheel is built of: a build without the extension removes it."""
    folder = tmp_path_factory.mktemp("tree")
    for name in ("cli", "hastore", "pyspark_hastore", "pytest_hastore", "scenarios"):
        shutil.copytree(
            REPO_ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
    for name in ("pyproject.toml", "hatch_build.py", "README.md"):
        shutil.copy(REPO_ROOT / name, folder)
    return folder


@pytest.fixture
def left(tree):
    """Return the file of the extension, as an earlier build has left it."""
    path = tree / "hastore/native" / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    path.write_bytes(b"old")
    return path


def build_wheel(tree, out, **environment):
    """Build the wheel of a tree; return its path and what the build printed."""
    command = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out))
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=tree,
        env={**os.environ, **environment},
    )
    (path,) = out.glob("*.whl")
    return path, done.stdout + done.stderr


def extensions_in(wheel):
    """Return the names of the compiled files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if name.endswith(".so")]


def test_without_a_compiler_the_wheel_is_pure(tree, left, tmp_path):
    """The build succeeds, says why there is no extension, and fits every platform."""
    wheel, said = build_wheel(tree, tmp_path, PATH=str(tmp_path), HASTORE_PURE="")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert extensions_in(wheel) == []
    assert "the C extension was not built: " in said
    assert not left.exists()


def test_pure_build_on_request(tree, left, tmp_path):
    """``HASTORE_PURE=1`` builds the wheel for every platform."""
    wheel, _ = build_wheel(tree, tmp_path, HASTORE_PURE="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert extensions_in(wheel) == []
    assert not left.exists()


def test_with_a_compiler_an_old_extension_is_replaced(tree, left, tmp_path):
    """The wheel has the new one."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    wheel, _ = build_wheel(tree, tmp_path, HASTORE_PURE="")
    assert extensions_in(wheel) == [f"hastore/native/{left.name}"]
    assert left.read_bytes()[:4] == b"\x7fELF"


def test_make_clean_removes_the_extension(tree, left):
    """It was built here."""
    shutil.copy(REPO_ROOT / "Makefile", tree)
    subprocess.run(("make", "-s", "clean"), check=True, cwd=tree)
    assert not left.exists()


def test_warnings_of_the_compiler_are_errors(tmp_path):
    """Nobody reads those of an install."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    sources = sorted((REPO_ROOT / "hastore/native").glob("*.c"))
    assert compile_extension(sources, tmp_path / "built.so", "-Werror") is None
    (tmp_path / "unused.c").write_text("int f(int unused) { return 0; }\n")
    assert compile_extension([tmp_path / "unused.c"], tmp_path / "built.so", "-Werror") is not None


@pytest.mark.parametrize("pure", ["1", "0", ""])
def test_version_says_which_code_is_in_use(pure):
    """``hastore version`` shows the extension's file, or why it is not in use."""
    done = subprocess.run(
        (sys.executable, "-m", "hastore_cli", "version", "-o", "json"),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "HASTORE_PURE": pure},
    )
    command = (sys.executable, "-c", "from hastore.native import in_use; print(in_use.state)")
    state = subprocess.run(
        command, capture_output=True, text=True, check=True,
        env={**os.environ, "HASTORE_PURE": pure},
    )  # fmt: skip
    extension = json.loads(done.stdout)["extension"]
    assert extension == state.stdout.rstrip("\n")
    if pure == "1":
        assert extension == "not in use: HASTORE_PURE is set"


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
