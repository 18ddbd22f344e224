"""A pytest plugin: a test fails if one of its secrets is in anything that hastore has written.

::

    stdout, stderr and log of the test's own process ── each phase's report ──┐
    stdout and stderr of processes ── Popen.communicate ──────────────────────┼── PLANTED in it
    files below tmp_path: logs of nodes, node.json, … ── before it is removed ┘

``tests.support.planted_secrets`` says which files may have secrets.
"""

from __future__ import annotations

import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.planted_secrets import LeakedSecretError, check_files, check_text

if TYPE_CHECKING:
    from collections.abc import Generator

_PATCH = pytest.StashKey[pytest.MonkeyPatch]()
_communicate = subprocess.Popen.communicate


def _checked_communicate(
    process: subprocess.Popen[Any], *arguments: Any, **named: Any
) -> tuple[Any, Any]:
    """Do as ``Popen.communicate``, which ``subprocess.run`` and ``check_output`` call, too."""
    written = _communicate(process, *arguments, **named)
    for name, data in zip(("stdout", "stderr"), written, strict=True):
        check_text(data, f"{name} of {process.args}")
    return written


def pytest_configure(config: pytest.Config) -> None:
    """Check what processes write to pipes."""
    patch = config.stash[_PATCH] = pytest.MonkeyPatch()
    patch.setattr(subprocess.Popen, "communicate", _checked_communicate)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave ``subprocess`` as it was."""
    config.stash[_PATCH].undo()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any],
) -> Generator[None, object, object]:
    """Check the files of ``tmp_path`` once those who use it have ended."""
    value = yield
    if fixturedef.argname == "tmp_path":
        # Runs before the fixture's own end, which removes them, and after all that depends on it.
        fixturedef.addfinalizer(partial(check_files, value))
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Check what the phase itself has written; fail it if it did not fail."""
    report = yield
    for title, content in report.sections:
        if title.endswith(call.when):
            try:
                check_text(content, title)
            except LeakedSecretError as leak:
                report.outcome = "failed"
                report.longrepr = f"{report.longrepr or ''}\n{leak}"
    return report
