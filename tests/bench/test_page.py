"""docs/performance.md is what docs/performance.json says, and so is its plot."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.bench.gain import __main__ as gain
from tests.bench.page import __main__ as page
from tests.bench.page.__main__ import BLOCK, KEPT, PAGE, PLOT, merged, page_of, without_paths
from tests.bench.page.plot import LINES, PANELS, plot
from tests.bench.page.tables import NOT_MEASURED, tables
from tests.bench.profile_puts import part_of, shares


def kept() -> dict:
    """Return what the page is made of."""
    return json.loads(KEPT.read_text())


def test_the_page_and_the_plot_are_those_of_one_measurement() -> None:
    """`python -m tests.bench.page` writes both from the kept figures."""
    assert page_of(PAGE.read_text(), kept()) == PAGE.read_text()
    assert plot(kept()) == PLOT.read_text(encoding="utf-8")


def test_every_table_is_on_the_page_once() -> None:
    """A block that no table fills would fail the writing; a table without a block is lost."""
    assert sorted(found[2] for found in BLOCK.finditer(PAGE.read_text())) == sorted(tables({}))


def test_what_was_not_measured_says_so() -> None:
    """An empty JSON gives a page without figures, and an empty plot."""
    assert {text for name, text in tables({}).items()} == {NOT_MEASURED}
    ET.fromstring(plot({}))


def test_the_plot_has_a_line_for_each_variant_in_each_panel() -> None:
    """Each line has a mark at each point; a rate ten times as high is higher up."""
    variants = {variant: {"rate": 1e4, "p99_us": 1e3} for variant in LINES}
    fast = {variant: {"rate": 1e5, "p99_us": 1e4} for variant in LINES}
    points = [
        {"label": "1 task", "value": 1, "variants": variants},
        {"label": "256 tasks", "value": 256, "variants": fast},
    ]
    axes = [{"key": key, "points": points} for key, _ in PANELS]
    drawn = ET.fromstring(plot({"bench": {"axes": axes}}))
    lines = [each for each in drawn if each.tag.endswith("polyline")]
    assert len(lines) == 2 * len(PANELS) * len(LINES)
    for line in lines:
        (left, low), (right, high) = (
            map(float, point.split(",")) for point in line.get("points", "").split()
        )
        assert left < right
        assert low > high  # y grows downwards


def test_a_part_replaces_only_what_it_measured() -> None:
    """Rows, axes and steps of other parts stay, in their order."""
    old = {
        "rows": [{"key": "a", "n": 1}, {"key": "b", "n": 1}],
        "axes": [{"key": "x", "title": "X", "n": 1}],
        "growth": [{"axis": "x", "n": 1}, {"axis": "x", "n": 2}, {"axis": "y", "n": 1}],
        "took_s": 5,
        "machine": {"cpu": "one", "load_before": 0.1},
    }
    before = copy.deepcopy(old)
    new = {
        "rows": [{"key": "b", "n": 2}],
        "axes": [{"key": "z", "title": "Z", "n": 2}],
        "growth": [{"axis": "x", "n": 3}],
        "took_s": 7,
        "machine": {"cpu": "one", "load_before": 0.2},
    }
    assert merged(old, new) == {
        "rows": [{"key": "a", "n": 1}, {"key": "b", "n": 2}],
        "axes": [{"key": "x", "title": "X", "n": 1}, {"key": "z", "title": "Z", "n": 2}],
        "growth": [{"axis": "x", "n": 3}, {"axis": "y", "n": 1}],
        "took_s": 7,
        "machine": {"cpu": "one", "load_before": 0.2},
    }
    assert old == before
    assert merged({}, new) == new
    elsewhere = {"machine": {"cpu": "other", "load_before": 0.1}}
    with pytest.raises(SystemExit, match="another machine"):
        merged(old, {**new, **elsewhere})
    assert merged(new, {**new, **elsewhere}) == {**new, **elsewhere}


def test_paths_of_the_machine_are_left_out() -> None:
    """Those of its Python, and of the extension."""
    document = {
        "machine": {"python": "3.11.7", "python_path": "/home/me/bin/python"},
        "variants": {"extension": "python 3.11.7, extension in use: /home/me/_native.so"},
    }
    assert without_paths(document) == {
        "machine": {"python": "3.11.7"},
        "variants": {"extension": "python 3.11.7, extension in use"},
    }
    assert without_paths({"schema": "x"}) == {"schema": "x"}


@pytest.mark.parametrize("text", [None, "not JSON", "[]", "{}", '{"schema": "other/1"}'])
def test_a_file_that_is_not_measured_is_refused(tmp_path: Path, text: str | None) -> None:
    """Its name is told, and nothing is written."""
    path = tmp_path / "figures.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit, match=r"figures\.json is no file that make bench"):
        page.main([str(path)])


def test_a_python_without_hastore_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is measured."""
    (tmp_path / "python").touch()
    for name, missing in (("none", "none"), ("python", "hastore")):
        with pytest.raises(SystemExit):
            gain.main(["--base", str(tmp_path / name)])
        assert f"no file {tmp_path / missing}: name the python" in capsys.readouterr().err


@pytest.mark.soak
def test_one_driver_measures_several_pythons_in_turn(tmp_path: Path) -> None:
    """This Python stands in for the other version, too: all variants have figures and ratios."""
    path = tmp_path / "gain.json"
    case = gain.Case("submit-64", "64 in flight", "rate", "msg/s", 1e9, 0.0)
    arguments = ["--base", sys.executable, "--rounds", "1", "--seconds", "0.05"]
    assert gain.main([*arguments, "--json", str(path)], [case]) == 0
    document = json.loads(path.read_text())
    (measured,) = document["cases"]
    assert document["schema"] == "hastore.gain/1"
    assert set(measured["values"]) == {"base", "pure", "extension"} == set(document["variants"])
    assert all(value > 0 for value in measured["values"].values())
    assert measured["ratios"]["base"]["median"] == 1
    assert measured["holds"] == {"extension": False, "pure": True}
    assert "64 in flight" in tables({"gain": document})["gain"]


@pytest.mark.parametrize(
    ("figure", "ratio", "goal", "holds"),
    [("rate", 1.5, 1.4, True), ("rate", 1.3, 1.4, False), ("p50_us", 0.7, 0.75, True)],
)
def test_a_goal_is_a_least_rate_or_a_greatest_time(
    figure: str, ratio: float, goal: float, holds: bool
) -> None:
    """Times are better the smaller they are."""
    assert gain.reaches(gain.Case("c", "c", figure, "", goal, goal), ratio, goal) is holds


def test_a_sample_counts_for_its_innermost_known_frame() -> None:
    """Both versions' paths, trio's, and C functions without a file."""
    put = (
        "<module> (gain/driver.py:3);run (trio/_core/_run.py:9);submit (hastore/broker/puts/p.py:1)"
    )
    assert part_of(f"{put};crc32") == part_of(put) == "put: validate, wait, decide"
    assert part_of(f"{put};put (hastore/store/queue/consume_queue.py:7)").startswith("dispatch")
    assert part_of(f"{put};put (hastore/store/consume_queue.py:7)").startswith("dispatch")
    assert part_of(f"{put};append (hastore/store/commit_log.py:7)").startswith("append")
    assert part_of("main (x.py:1);run (trio/_core/_run.py:9);heappop (heapq.py:1)").startswith(
        "trio"
    )
    assert part_of("main (x.py:1)") == "the rest"
    assert shares(f"{put} 3\nmain (x.py:1) 1\n") == {
        "put: validate, wait, decide": 0.75,
        "the rest": 0.25,
    }
