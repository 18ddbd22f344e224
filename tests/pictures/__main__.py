"""``make pictures``: draw the README's pictures into docs/pictures, from runs of the simulator.

    report.svg   the head of the report of `hastore scenario run promotion --world sim --seed 7`
    status.svg   `hastore status a b c` of a master, a slave in step, and one that is catching up

They are the same, byte for byte, on every machine; a test compares them.
"""

from __future__ import annotations

from pathlib import Path

from tests.pictures.report_picture import report_picture
from tests.pictures.status_picture import status_picture

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
PICTURES = {"report.svg": report_picture, "status.svg": status_picture}


def main() -> None:
    """Draw all of them."""
    FOLDER.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
        print(f"wrote docs/pictures/{name}")


if __name__ == "__main__":
    main()
