"""The wheel installs only our names, and its metadata is valid outside the repository."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.repository import REPO_ROOT

OURS = {"hastore", "hastore_cli", "hastore_scenarios", "pyspark_hastore", "pytest_hastore"}
BIN = Path(sys.executable).parent
# One worker builds the wheel once for all tests.
pytestmark = pytest.mark.xdist_group("packaging")


def run(*arguments, **options):
    """Run a command that must exit with 0; return the finished process."""
    done = subprocess.run(
        [str(each) for each in arguments], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def build(tree, target, out):
    """Build one archive, with the extension: a pure build would take it away from other tests."""
    command = (sys.executable, "-m", "hatchling", "build", "-t", target, "-d", out)
    run(*command, cwd=tree, env={**os.environ, "HASTORE_PURE": ""})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel of this work tree."""
    out = tmp_path_factory.mktemp("dist")
    build(REPO_ROOT, "wheel", out)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Build and unpack the source archive of this work tree."""
    out = tmp_path_factory.mktemp("sdist")
    build(REPO_ROOT, "sdist", out)
    (path,) = out.glob("*.tar.gz")
    shutil.unpack_archive(path, out)
    (folder,) = [each for each in out.iterdir() if each.is_dir()]
    return folder


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Install the wheel into a folder, without its dependencies."""
    target = tmp_path_factory.mktemp("site")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, "--no-deps", "--no-index", "--target", target, wheel)
    return target


def long_description(wheel):
    """Return the long description in the wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith("/METADATA")]
        return archive.read(name).decode().partition("\n\n")[2]


def test_top_level_names_are_ours(wheel):
    """Nothing is installed under a name that another project may use."""
    with zipfile.ZipFile(wheel) as archive:
        names = {each.partition("/")[0] for each in archive.namelist()}
    assert {each for each in names if not each.endswith(".dist-info")} == OURS


def test_report_templates_are_installed(installed, tmp_path):
    """The wheel alone, with its files that are not modules, can write a report."""
    story = "hastore_scenarios.registry.find('promotion')[0]"
    code = (
        "import hastore_scenarios.registry, hastore_scenarios.runner as runner\n"
        "from hastore_scenarios.report.page import render_page\n"
        f"result = runner.run_one({story}, world=runner.WorldKind.SIM, seed=7)\n"
        "print(render_page(result))"
    )
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    page = run(sys.executable, "-c", code, cwd=tmp_path, env=environment).stdout
    assert page.startswith("<!DOCTYPE html>")
    assert "--paper" in page
    assert (installed / "hastore" / "pipeline" / "report" / "report.html.jinja").is_file()


def test_the_source_archive_makes_the_same_wheel(unpacked, wheel, tmp_path):
    """Its files are those of the work tree, including README and licence."""
    for name in ("CHANGELOG.md", "LICENSE", "Makefile", "README.md", "pyproject.toml"):
        assert (unpacked / name).read_bytes() == (REPO_ROOT / name).read_bytes()
    (unpacked / "PKG-INFO").unlink()  # otherwise hatchling would make no description
    build(unpacked, "wheel", tmp_path)
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(tmp_path / wheel.name) as other:
        assert other.namelist() == one.namelist()
        assert all(other.read(name) == one.read(name) for name in one.namelist())


def test_check_wheel_contents_finds_nothing(wheel):
    """There are no stray files or duplicate modules, and the names match pyproject.toml."""
    run(BIN / "check-wheel-contents", wheel, cwd=REPO_ROOT)


def test_twine_finds_nothing(wheel):
    """The metadata is complete, and the long description can be rendered."""
    run(BIN / "twine", "check", "--strict", wheel)


def test_links_of_the_long_description_work_anywhere(wheel):
    """A link is absolute or names a heading of the page; its target is in the repository."""
    links = re.findall(r"\]\(([^)\s]+)\)", long_description(wheel))
    assert len(links) > 10
    relative = [each for each in links if not re.match(r"https?:|#", each)]
    assert not relative
    ours = [re.sub(r"#.*", "", each) for each in links if "/hastore/hastore/" in each]
    assert ours
    for link in ours:
        path = re.sub(r".*/(?:blob|raw|tree)/main/", "", link)
        assert (REPO_ROOT / path).exists(), link


@pytest.mark.parametrize("name", ["cli", "scenarios"])
def test_a_project_may_have_packages_named_cli_or_scenarios(installed, tmp_path, name):
    """The command ``hastore`` still runs in such a project."""
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('not yours')\n")
    path = os.pathsep.join([str(tmp_path), str(installed)])
    environment = {**os.environ, "PYTHONPATH": path}
    code = "import hastore_cli; print(hastore_cli.__file__)"
    where = run(sys.executable, "-c", code, cwd=tmp_path, env=environment).stdout
    assert where.startswith(str(installed))  # and not with this work tree
    done = run(installed / "bin" / "hastore", "version", cwd=tmp_path, env=environment)
    assert done.stdout.startswith("hastore ")
    run(installed / "bin" / "hastore", "scenario", "list", cwd=tmp_path, env=environment)
