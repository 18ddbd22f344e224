"""Examples in docs/formats.md, by section, for tests that read and write them."""

from __future__ import annotations

import itertools

from tests.support.repository import REPO_ROOT


def examples_in_the_docs(title: str) -> dict[str, str]:
    """Return the JSON of each key's example: the block after the paragraph that begins with it."""
    text = (REPO_ROOT / "docs" / "formats.md").read_text()
    section = text.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return {
        paragraph.split("`")[1]: block.removeprefix("```json\n").removesuffix("\n```")
        for paragraph, block in itertools.pairwise(section.split("\n\n"))
        if block.startswith("```json\n")
    }
