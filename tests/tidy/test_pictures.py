"""The README's pictures show what the programs draw today."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from tests.pictures.__main__ import FOLDER, PICTURES
from tests.tidy.test_tidy import REPO_ROOT


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_is_drawn_today(name: str) -> None:
    """The simulator's runs are the same everywhere, and so is what is drawn of them."""
    kept = (FOLDER / name).read_text(encoding="utf-8")
    assert PICTURES[name]() == kept, f"docs/pictures/{name} is stale: make pictures"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_can_stand_alone(name: str) -> None:
    """It is XML, small, needs nothing from elsewhere, and leaves no variable to a page's style."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    ET.fromstring(text)
    assert len(text) < 40_000
    without_namespace = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|@font-face|@import|<script|var\(", without_namespace)


def test_every_picture_is_shown() -> None:
    """And the README shows no other."""
    shown = re.findall(
        r"!\[[^]]+\]\(docs/pictures/([^)]+)\)", (REPO_ROOT / "README.md").read_text()
    )
    assert sorted(shown) == sorted(PICTURES) == sorted(path.name for path in FOLDER.iterdir())
