"""The README's pictures are what the programs draw now."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from hastore.native.in_use import extension
from tests.pictures.__main__ import FOLDER, PICTURES
from tests.support.repository import REPO_ROOT


@pytest.mark.skipif(
    extension is None,
    reason="the pictures show runs with the C extension; without it a run takes other steps",
)
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_up_to_date(name: str) -> None:
    """The simulator's runs are the same on every machine, and so are their pictures."""
    kept = (FOLDER / name).read_text(encoding="utf-8")
    assert PICTURES[name]() == kept, f"docs/pictures/{name} is stale: make pictures"


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small_and_self_contained(name: str) -> None:
    """It is XML without references to other files and without CSS variables."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    ET.fromstring(text)
    assert len(text) < 40_000
    without_namespace = text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|@font-face|@import|<script|var\(", without_namespace)


def test_the_readme_shows_every_picture() -> None:
    """It shows no other pictures."""
    shown = re.findall(
        r"!\[[^]]+\]\(docs/pictures/([^)]+)\)", (REPO_ROOT / "README.md").read_text()
    )
    assert sorted(shown) == sorted(PICTURES) == sorted(path.name for path in FOLDER.iterdir())
