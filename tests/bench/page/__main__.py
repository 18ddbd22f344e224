"""Write the figures of docs/performance.md and draw its plot, from what was measured.

    python -m tests.bench.page [build/bench.json] [build/gain.json] [build/profile.json]

The files are told apart by their ``schema``; what is not given stays as it was.  They are kept
together in docs/performance.json, so that a test can tell whether page and plot are those of one
measurement.  A block of the page between ``<!-- NAME -->`` and ``<!-- end -->`` is a table of
``tables``.  Figures of a part (`make bench ONLY=…`) replace those of that part only.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.page.plot import plot
from tests.bench.page.tables import tables

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = DOCS / "performance.md"
KEPT = DOCS / "performance.json"
PLOT = DOCS / "performance.svg"
PARTS = {"hastore.bench/1": "bench", "hastore.gain/1": "gain", "hastore.profile/1": "profile"}
LISTS = ("rows", "axes", "cases", "growth")
CHANGING = {"load_before", "python_round_ns"}  # of one machine, from run to run
BLOCK = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(arguments: Sequence[str]) -> None:
    """Add the given files to what is kept, then write all."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for argument in arguments:
        try:
            document = without_paths(json.loads(Path(argument).read_text()))
            part = PARTS[document["schema"]]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            sys.exit(f"{argument} is no file that make bench, gain or profile_puts wrote: {error}")
        kept[part] = document if part == "profile" else merged(kept.get(part, {}), document)
    KEPT.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page_of(PAGE.read_text(), kept))
    PLOT.write_text(plot(kept), encoding="utf-8")
    print(f"wrote {PAGE.name}, {KEPT.name} and {PLOT.name}")


def without_paths(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without the paths of the machine, which mean nothing elsewhere."""
    result = copy.deepcopy(document)
    result.get("machine", {}).pop("python_path", None)
    for variant, version in result.get("variants", {}).items():
        result["variants"][variant] = version.partition(": ")[0]
    return result


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return the new document, with those rows and axes of the old one that it does not have."""
    if old and _without_load(old["machine"]) != _without_load(new["machine"]):
        if _names(old) - _names(new):
            sys.exit("these figures are another machine's: measure the whole there")
        return new
    result = {**old, **new}
    if "variants" in old and "variants" in new:
        result["variants"] = old["variants"] | new["variants"]
    for name in LISTS:
        if name in old and name in new:
            result[name] = _merged_list(old[name], new[name])
    return result


def _without_load(machine: dict[str, Any]) -> dict[str, Any]:
    return {name: figure for name, figure in machine.items() if name not in CHANGING}


def _merged_list(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    known = {_name_of(each) for each in old}
    mine = {_name_of(each) for each in new}
    result: list[dict[str, Any]] = []
    replaced: set[object] = set()
    for each in old:
        name = _name_of(each)
        if name not in mine:
            result.append(each)
        elif name not in replaced:
            replaced.add(name)
            result += [other for other in new if _name_of(other) == name]
    return result + [each for each in new if _name_of(each) not in known]


def _name_of(each: dict[str, Any]) -> object:
    return each.get("title") or each.get("key") or each["axis"]


def _names(document: dict[str, Any]) -> set[object]:
    """Return what a document has figures of."""
    return {_name_of(each) for name in LISTS for each in document.get(name, ())}


def page_of(text: str, kept: dict[str, Any]) -> str:
    """Return the page with its tables written again."""
    written = tables(kept)
    return BLOCK.sub(lambda block: f"{block[1]}{written[block[2]]}\n{block[3]}", text)


if __name__ == "__main__":
    main(sys.argv[1:])
