"""The fault matrix in docs/testing.md matches the suite: every name in it exists."""

import ast
import re
from functools import cache

import pytest

from hastore.sim.faults import KINDS
from hastore.sim.group.group_faults import WRONG_CLOCK
from hastore_scenarios.registry import all_scenarios
from tests.support.repository import REPO_ROOT

ROWS = range(1, 23)
NEEDS_TLS = {16}
ROW = re.compile(r"^\| (\d+) \|(?:[^|]*\|){2}([^|]*)\|$", re.MULTILINE)
NAME = re.compile(r"`([^`]+)`(\*?)")


def matrix() -> dict[int, list[tuple[str, bool]]]:
    """Return the names in each row, and whether each is marked as soak."""
    text = (REPO_ROOT / "docs" / "testing.md").read_text()
    section = text.split("\n## The fault matrix\n")[1].split("\n## ")[0]
    return {
        int(number): [(name, star == "*") for name, star in NAME.findall(cell)]
        for number, cell in ROW.findall(section)
    }


@cache
def suite_of(file: str) -> dict[str, bool]:
    """Return the tests of a file, and whether each runs in the soak only."""
    tree = ast.parse((REPO_ROOT / "tests" / f"{file}.py").read_text())
    return {
        node.name: any(ast.unparse(mark) == "pytest.mark.soak" for mark in node.decorator_list)
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def fault_of(name: str, is_soak: bool) -> str | None:
    """Return what is wrong with a name; None if it is correct."""
    kind, _, rest = name.partition(":")
    if "::" in name:
        file, test = name.split("::")
        found = suite_of(file).get(test)
        if found is None:
            return f"{name} is not there"
        return None if found == is_soak else f"{name}: the star is wrong"
    known = {
        "sim": {*KINDS, WRONG_CLOCK},
        "scenario": {scenario.name for scenario in all_scenarios()},
    }
    return None if rest in known.get(kind, ()) else f"{name} is not there"


@pytest.mark.parametrize("row", ROWS)
def test_each_row_names_existing_tests(row: int) -> None:
    """Names are tests, scenarios and kinds of faults; at least one runs in `make test`."""
    names = matrix()[row]
    faults = [fault for name, is_soak in names if (fault := fault_of(name, is_soak))]
    assert not faults
    assert row in NEEDS_TLS or any(not is_soak for _, is_soak in names)


def test_the_matrix_has_all_rows_and_all_kinds_of_faults() -> None:
    """A clean stop is the simulator's only kind of fault that no row names."""
    found = matrix()
    assert list(found) == list(ROWS)
    named = {name for names in found.values() for name, _ in names}
    assert {f"sim:{kind}" for kind in KINDS} - named == {"sim:stop"}
