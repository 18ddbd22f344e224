"""A failure that cannot be rendered is still reported, and the run continues."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.repository import REPO_ROOT

# As in this project: a warning is an error, and so is pluggy's warning about a hook that raises.
_SETTINGS = "[pytest]\nfilterwarnings = error\n"

_TESTS = """
def test_that_fails():
    value = 1
    assert value == 2, "the failure's own words"

def test_that_passes():
    pass
"""

# Long enough for the collector to run while it is parsed.
_LONG_TESTS = _TESTS + "".join(f"value_{n} = {n} + {n}\n" for n in range(1000))

# A parser that fails as CPython 3.11.7's can.
_BROKEN_PARSER = """
import ast, pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    parse = ast.parse
    def broken(*args, **kwargs):
        raise SystemError("AST constructor recursion depth mismatch (before=102, after=123)")
    ast.parse = broken
    try:
        return (yield)
    finally:
        ast.parse = parse
"""

# Creates garbage whose finalizer parses; the collector finds it while the parser runs.
_PARSING_GARBAGE = """
import ast, gc, pytest

class Parses:
    def __init__(self):
        self.itself = self
    def __del__(self):
        parse("x = 1")

parse = ast.parse

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    thresholds = gc.get_threshold()
    gc.set_threshold(100)
    def late(*args, **kwargs):
        for _ in range(80):
            Parses()
        return parse(*args, **kwargs)
    ast.parse = late
    try:
        return (yield)
    finally:
        ast.parse = parse
        gc.set_threshold(*thresholds)
"""

# The run itself breaks, after a failure was reported.
_BROKEN_RUN = """
def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed:
        raise SystemError("the run is broken")
"""


def _run(
    directory: Path, plugin: str, *options: str, tests: str = _TESTS
) -> subprocess.CompletedProcess[str]:
    """Run pytest in a separate process with the harmful `plugin`."""
    (directory / "pytest.ini").write_text(_SETTINGS)
    (directory / "test_pair.py").write_text(tests)
    (directory / "harm.py").write_text(plugin)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.failure_reports", "-p", "harm"),
            *("-p", "no:cacheprovider", "-q", *options),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=directory,
        env={**environ, "PYTHONPATH": f"{directory}{os.pathsep}{REPO_ROOT}"},
    )


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "workers"])
def test_an_unrenderable_failure_is_reported_and_the_run_continues(tmp_path, options):
    """Pytest cannot parse the failing source; it names the test anyway and runs the rest."""
    run = _run(tmp_path, _BROKEN_PARSER, *options)
    assert "INTERNALERROR" not in run.stdout + run.stderr
    assert "1 failed, 1 passed" in run.stdout
    assert "FAILED test_pair.py::test_that_fails" in run.stdout
    assert "the failure's own words" in run.stdout
    assert "AST constructor recursion depth mismatch" in run.stdout
    assert run.returncode == 1


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="only 3.11 collects within the parser")
def test_finalizers_do_not_run_while_a_failure_is_rendered(tmp_path):
    """A finalizer that parses would break the parser that is already running."""
    run = _run(tmp_path, _PARSING_GARBAGE, tests=_LONG_TESTS)
    assert "INTERNALERROR" not in run.stdout + run.stderr
    assert "could not render" not in run.stdout
    assert "1 failed, 1 passed" in run.stdout


def test_a_broken_run_lists_its_failures(tmp_path):
    """It ends with INTERNALERROR, for which pytest itself lists none."""
    run = _run(tmp_path, _BROKEN_RUN)
    assert "INTERNALERROR" in run.stdout + run.stderr
    assert "FAILED test_pair.py::test_that_fails" in run.stdout
    assert "the failure's own words" in run.stdout
    assert run.returncode == pytest.ExitCode.INTERNAL_ERROR


def test_the_suite_uses_the_plugin(pytestconfig):
    """The current run is protected, too."""
    assert pytestconfig.pluginmanager.has_plugin("tests.failure_reports")
