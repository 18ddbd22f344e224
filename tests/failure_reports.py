"""A pytest plugin: each failure is reported, even if pytest cannot render it.

pytest parses a failure's source to render it. CPython up to 3.11.7 keeps the parser's depth in one
place for all its users (gh-106905): if the collector runs a finalizer within `ast.parse`, and the
finalizer parses too (because its warning is rendered, say), the outer call raises SystemError. An
error in `pytest_runtest_makereport` ends the run with INTERNALERROR, and then no failure is listed.

Three measures: the collector is off while a report is made; a report that cannot be rendered is
replaced by a plain one; a run that ends with INTERNALERROR lists the failures so far.
"""

import contextlib
import gc
from collections.abc import Generator, Iterator

import pytest

_CHAIN_MAX = 20
_FRAMES_MAX = 60


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the collector, and so finalizers of cyclic garbage, out of the parser."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# trylast: the innermost wrapper, so that other plugins' wrappers always get a report.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replace a report that cannot be rendered by a plain one."""
    try:
        with _no_collection():
            return (yield)
    except Exception as fault:  # noqa: BLE001 - the test must be reported in any case
        assert call.when != "collect"
        return pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords=dict.fromkeys(item.keywords, 1),
            outcome="failed",
            longrepr=_plain_report(call.excinfo.value if call.excinfo else None, fault),
            when=call.when,
            duration=call.duration,
            start=call.start,
            stop=call.stop,
        )


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Do the same for a module that cannot be collected."""
    try:
        return (yield)
    except Exception as fault:  # noqa: BLE001 - as above
        return pytest.CollectReport(
            nodeid=collector.nodeid,
            outcome="failed",
            longrepr=_plain_report(None, fault),
            result=None,
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(
    session: pytest.Session, exitstatus: int | pytest.ExitCode
) -> Generator[None, object, object]:
    """List the failures even if the run itself broke, which pytest does not do."""
    result = yield
    terminal = session.config.pluginmanager.getplugin("terminalreporter")
    if exitstatus == pytest.ExitCode.INTERNAL_ERROR and terminal is not None:
        terminal.section("the run broke off; these tests had failed before", sep="=", red=True)
        for kind in ("failed", "error"):
            for report in terminal.getreports(kind):
                terminal.write_line(f"{kind.upper()} {report.nodeid}")
                terminal.write_line(str(report.longrepr))
    return result


def _plain_report(failure: BaseException | None, fault: BaseException) -> str:
    """Render both exceptions and their frames without parsing anything."""
    return (
        f"{_plain(failure)}\npytest could not render this failure; while it tried:\n{_plain(fault)}"
    )


def _plain(error: BaseException | None) -> str:
    """Render an exception, the members of a group, and the causes."""
    left = [] if error is None else [error]
    lines: list[str] = []
    seen: set[int] = set()
    while left and len(seen) < _CHAIN_MAX:
        error = left.pop(0)
        if id(error) in seen:
            continue
        seen.add(id(error))
        lines += _frames(error)
        try:
            lines.append(f"{type(error).__name__}: {error}")
        except Exception:  # noqa: BLE001 - its __str__ may be broken
            lines.append(type(error).__name__)
        parts = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
        left = [*parts, *filter(None, [error.__cause__ or error.__context__]), *left]
    return "\n".join(lines)


def _frames(error: BaseException) -> list[str]:
    """Return FILE:LINE: FUNCTION for each frame, the raising one last."""
    frames = []
    at = error.__traceback__
    while at is not None:
        code = at.tb_frame.f_code
        frames.append(f"{code.co_filename}:{at.tb_lineno}: {code.co_name}")
        at = at.tb_next
    return frames[-_FRAMES_MAX:]
