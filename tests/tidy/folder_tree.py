"""The tree of folders in docs/architecture.md: ``python -m tests.tidy.folder_tree`` writes it.

A line is a folder and the first sentence of the docstring in its ``__init__.py``.
"""

import ast
import re
from textwrap import wrap

from tests.support.repository import PACKAGES, REPO_ROOT, files

PAGE = REPO_ROOT / "docs/architecture.md"
WIDTH = 100
TEXT_AT = 30


def folder_tree() -> str:
    """Return the lines of all packages, as the page shows them."""
    lines = []
    for file in files():
        folder = file.parent.relative_to(REPO_ROOT)
        package = next((each for each in PACKAGES if folder.is_relative_to(each)), None)
        if package is None or file.name != "__init__.py":
            continue
        depth = len(folder.relative_to(package).parts)
        name = "    " * depth + (folder.name if depth else str(folder)) + "/"
        docstring = (ast.get_docstring(ast.parse(file.read_text())) or "").replace("``", "")
        (sentence,) = re.findall(r"\A.+?\.(?=\s|\Z)", docstring, re.DOTALL)
        text = wrap(sentence, WIDTH - TEXT_AT)
        lines += [f"{name:<{TEXT_AT}}{text[0]}", *(" " * TEXT_AT + more for more in text[1:])]
    return "\n".join(lines) + "\n"


def page_with_tree() -> str:
    """Return the page with its tree replaced by the current one."""
    head, heading, rest = PAGE.read_text().partition("## Folders\n")
    before, fence, block = rest.partition("```\n")
    return "".join((head, heading, before, fence, folder_tree(), block[block.index("```\n") :]))


if __name__ == "__main__":
    PAGE.write_text(page_with_tree())
