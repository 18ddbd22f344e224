"""Compares decoding to Arrow outside Spark with a bare loop that checks the same bytes."""

from __future__ import annotations

from pathlib import Path

from hastore.columnar.log_schema import COLUMNS
from tests.bench_pipeline.bare_loop import bare_s, decode_s
from tests.support.bench.bound import Bound, Row

PAIRS = 5
FILES = 2  # of each pair, taken in rotation
TRIES = 4  # in a row; the fastest counts, because other guests share the machine
LIMIT = 0.50


def bench_decode(store: Path, body: str) -> list[Row]:
    """Measure the table without and with bodies, in CPU seconds, so that waiting does not count."""
    files = sorted((store / "commitlog").iterdir())
    pairs: dict[str, list[tuple[float, float]]] = {"table": [], "all": []}
    body_only: dict[str, list[float]] = {"table": [], "all": []}
    columns = {"table": [name for name in COLUMNS if name != "body"], "all": list(COLUMNS)}
    for index in range(PAIRS):
        first = index * FILES % max(len(files) - FILES + 1, 1)
        part = files[first : first + FILES]
        size = sum(file.stat().st_size for file in part)
        start = int(part[0].name)
        speeds: dict[str, float] = {}
        works = [
            ("bare", lambda part=part: _bare(part, checks_records=False)),
            ("checking", lambda part=part: _bare(part, checks_records=True)),
            *(
                (key, lambda names=names, start=start, size=size: decode_s(
                    store, names, start, start + size
                ))
                for key, names in columns.items()
            ),
        ]  # fmt: skip
        rows = set()
        for key, work in works if index % 2 else reversed(works):
            tries = [work() for _ in range(TRIES)]
            speeds[key] = size / min(took_s for took_s, _ in tries) / 1e6
            rows |= {count for _, count in tries}
        assert len(rows) == 1, rows
        for key, found in pairs.items():
            found.append((speeds[key], speeds["checking"]))
            body_only[key].append(speeds[key] / speeds["bare"])
    return [
        Row.of_pairs(
            Bound(
                key=f"decode_{key}_{body}",
                work=f"to Arrow, {body}, {text}",
                text="≥ 50 % of a bare loop",
                limit=LIMIT,
                at_least=True,
            ),
            pairs[key],
            "MB/s of CPU",
            note="the loop checks what the decoder does: each body's CRC and each __CRC32#; of one"
            f" that checks bodies alone {sorted(body_only[key])[PAIRS // 2]:.2f}",
        )
        for key, text in (("table", "all columns but body"), ("all", "all 24 columns"))
    ]


def _bare(files: list[Path], *, checks_records: bool) -> tuple[float, int]:
    found = [bare_s(file, checks_records=checks_records) for file in files]
    return sum(took_s for took_s, _ in found), sum(records for _, records in found)
