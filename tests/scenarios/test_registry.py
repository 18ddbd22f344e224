"""Finding scenarios: by name, by number, in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hastore.errors import ConfigError
from hastore_scenarios.registry import all_scenarios, find
from tests.scenarios.passing import REPEATED, is_quick
from tests.support.repository import REPO_ROOT


def test_the_catalog_is_numbered_from_1() -> None:
    """Each scenario's file carries its number, and each scenario states what it proves."""
    scenarios = all_scenarios()
    assert [each.number for each in scenarios] == list(range(1, len(scenarios) + 1))
    for each in scenarios:
        assert Path(each.path).name.startswith(f"s{each.number:02d}_")
        assert each.title
        assert each.proves
        assert each.doc
        json.dumps(each.to_dict())


def test_a_story_left_to_the_soak_has_its_faults_in_make_test() -> None:
    """What it names is a file of tests, or a story that `make test` runs on processes."""
    quick = {each.name for each in all_scenarios() if is_quick(each)}
    assert REPEATED.keys() <= {each.name for each in all_scenarios()}
    for name, where in REPEATED.items():
        assert where in quick or (REPO_ROOT / "tests" / f"{where}.py").is_file(), name


@pytest.mark.parametrize("name", ["sync-put", "sync_put", "1"])
def test_a_scenario_is_found_by_name_and_number(name: str) -> None:
    """A name may be written with dashes or underscores."""
    (found,) = find(name)
    assert found.name == "sync-put"


def test_an_unknown_scenario_is_a_config_error() -> None:
    """The hint lists the known scenarios."""
    with pytest.raises(ConfigError, match="no scenario 'nope'") as caught:
        find("nope")
    assert "sync-put" in (caught.value.hint or "")


def test_a_file_yields_the_scenarios_it_defines(tmp_path: Path) -> None:
    """Scenarios that the file imports are left out."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from hastore_scenarios import scenario\n"
        "from hastore_scenarios.catalog.s01_sync_put import sync_put\n"
        "@scenario(title='Mine', proves='something')\n"
        "async def my_story(world):\n"
        "    '''What it does.'''\n"
    )
    (found,) = find(str(path))
    assert (found.name, found.title, found.doc) == ("my-story", "Mine", "What it does.")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_of_that_name", "cannot be imported: ModuleNotFoundError"),
        ("x = 1", "holds no scenario"),
        (None, "there is no file"),
    ],
)
def test_a_file_without_scenarios_is_a_config_error(
    tmp_path: Path, text: str | None, message: str
) -> None:
    """A missing, broken or empty file causes an error with a hint, not a traceback."""
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        find(str(path))
    assert caught.value.hint


def test_a_directory_is_reported_as_a_directory(tmp_path: Path) -> None:
    """The error does not claim that the file is missing."""
    path = tmp_path / "d.py"
    path.mkdir()
    with pytest.raises(ConfigError, match="is a directory") as caught:
        find(str(path))
    assert caught.value.hint


def test_docs_list_every_scenario() -> None:
    """docs/scenarios.md has a row for each scenario, in catalog order, with what it proves."""
    text = (REPO_ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
    rows = [f"| {each.number} | `{each.name}` | {each.proves} |" for each in all_scenarios()]
    assert "\n".join(rows) in text
