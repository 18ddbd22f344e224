"""Finding scenarios: by name, by number, in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hastore.errors import ConfigError
from hastore_scenarios.registry import all_scenarios, find


def test_the_catalog_is_numbered_in_its_order() -> None:
    """Scenarios count from 1, each in the file of its number, each with something to prove."""
    scenarios = all_scenarios()
    assert [each.number for each in scenarios] == list(range(1, len(scenarios) + 1))
    for each in scenarios:
        assert Path(each.path).name.startswith(f"s{each.number:02d}_")
        assert each.title
        assert each.proves
        assert each.doc
        json.dumps(each.to_dict())


@pytest.mark.parametrize("name", ["sync-put", "sync_put", "1"])
def test_a_scenario_is_found_by_name_and_number(name: str) -> None:
    """Dashes or underscores, or the number."""
    (found,) = find(name)
    assert found.name == "sync-put"


def test_an_unknown_scenario_is_a_config_error_that_names_the_known() -> None:
    """The hint lists what there is."""
    with pytest.raises(ConfigError, match="no scenario 'nope'") as caught:
        find("nope")
    assert "sync-put" in (caught.value.hint or "")


def test_a_file_gives_its_own_scenarios(tmp_path: Path) -> None:
    """All marked functions of a file, not those that it imports."""
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
    """A missing, broken or empty file is one line with a hint, not a traceback."""
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        find(str(path))
    assert caught.value.hint


def test_a_directory_is_named_as_one(tmp_path: Path) -> None:
    """It is there, so it is not told that there is no such file."""
    path = tmp_path / "d.py"
    path.mkdir()
    with pytest.raises(ConfigError, match="is a directory") as caught:
        find(str(path))
    assert caught.value.hint


def test_the_documented_catalog_is_the_catalog() -> None:
    """docs/scenarios.md has a row for each scenario, in its order, with what it proves."""
    text = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text(encoding="utf-8")
    rows = [f"| {each.number} | `{each.name}` | {each.proves} |" for each in all_scenarios()]
    assert "\n".join(rows) in text
