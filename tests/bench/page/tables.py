"""The tables of docs/performance.md, as Markdown, by the name of their block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.bench.axes.measured import BARE, COLUMNS, EXTENSION, PURE, TITLES, number

VARIANTS = (EXTENSION, PURE, BARE)
NOT_MEASURED = "*not measured*"


def tables(kept: Mapping[str, Any]) -> dict[str, str]:
    """Return all tables; one that was not measured says so."""
    bench, gain = kept.get("bench", {}), kept.get("gain", {})
    axes = {axis["key"]: axis for axis in bench.get("axes", ())}
    written = {
        "machine": machine(bench),
        "bounds": bounds(bench.get("rows", ())),
        "possible": possible(bench.get("rows", ()), axes),
        "growth": growth(bench.get("growth", ())),
        "gain": gains(gain),
        "gain_versions": gain_versions(gain),
        "profile": profile(kept.get("profile", {})),
    }
    for key in (
        "producers", "tcp", "flush", "readable", "slaves", "queues", "bodies", "keys", "idle",
    ):  # fmt: skip
        written[key] = axis_table(axes[key]) if key in axes else NOT_MEASURED
    return written


def machine(bench: Mapping[str, Any]) -> str:
    """Return a paragraph about the machine."""
    found = bench.get("machine")
    if found is None:
        return NOT_MEASURED
    return (
        f"{found['cpu']}, {found['cores']} cores, {found['memory_gib']:.0f} GiB, Linux"
        f" {found['kernel']}, {found['file_system']}; Python {found['python']}"
        f" ({found['python_build']}; {found['python_round_ns']} ns a round of a fixed loop),"
        f" trio {found['trio']}."
    )


def bounds(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the bounds."""
    return _table(
        ("work", "bound", "measured", "reference", "", "ratio", "spread", ""),
        [
            (
                row["work"], row["bound"], number(row["ours"]), number(row["reference"]),
                row["unit"], f"{row['ratio']:.3g}",
                f"{min(row['ratios']):.2f}…{max(row['ratios']):.2f}",
                "holds" if row["holds"] else "**missed**",
            )
            for row in rows
        ],
    )  # fmt: skip


def axis_table(axis: Mapping[str, Any]) -> str:
    """Return one axis, a row for each point and variant."""
    figures = axis["figures"]
    rows = []
    for point in axis["points"]:
        for variant in VARIANTS:
            values = point["variants"].get(variant)
            if values is None:
                continue
            ratio = point["ratios"].get(f"{variant}:{BARE}")
            rows.append(
                (
                    point["label"] if variant == next(iter(point["variants"])) else "",
                    TITLES[variant],
                    *(number(values.get(figure)) for figure in figures),
                    f"{ratio['median']:.2f} ({ratio['min']:.2f}…{ratio['max']:.2f})"
                    if ratio
                    else "",
                )
            )
    head = ("", "", *(COLUMNS[figure] for figure in figures), "of bare (spread)")
    return _table(head, rows)


def possible(rows: Sequence[Mapping[str, Any]], axes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the references of the bounds and the bare loops of the axes, as far as measured."""
    references = {row["key"]: row for row in rows}
    found = []
    for key, what in (
        ("append", "pack, two checksums and a copy into a map, of 1 KiB"),
        ("latency", "ping-pong of 1.2 KiB and 8 bytes between two trio processes, p50"),
        ("catch_up", "`sendfile` → `recv_into` → copy into a map, 768 MiB"),
        ("recovery", "read a file and compare each body's checksum"),
    ):
        if key in references:
            found.append(
                (what, f"{number(references[key]['reference'])} {references[key]['unit']}")
            )
    for key, point, figure, unit, what in (
        ("readable", "16 KiB", "gb_per_s", "GB/s", "`sendfile` → `recv_into` → `pwrite`"),
        ("producers", "1 task", "p50_us", "µs", "a bare put, 1 task, p50"),
        ("producers", "64 tasks", "rate", "msg/s", "bare puts, 64 tasks"),
        ("tcp", "64 tasks", "rate", "msg/s", "bare puts over TCP, 64 tasks"),
        ("flush", "async slave, 16 tasks", "p50_us", "µs", "copy, `fdatasync`, 16 tasks, p50"),
        ("flush", "both synced, 16 tasks", "p50_us", "µs", "the same on two nodes at once, p50"),
        ("bodies", "4 MiB", "mib_per_s", "MiB/s", "bare puts of 4 MiB, 16 tasks"),
    ):
        found += [
            (what, f"{number(each['variants'][BARE][figure])} {unit}")
            for each in axes.get(key, {}).get("points", ())
            if each["label"] == point and BARE in each["variants"]
        ]
    return _table(("bare loop", ""), found)


def growth(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return how the cost grows."""
    return _table(
        ("", "", "step", "factor", "a message takes", ""),
        [
            (
                step["axis"], TITLES[step["variant"]], f"{step['start']} → {step['end']}",
                f"× {step['value']:.4g}", f"× {step['cost']:.3g}",
                "linear or better" if step["is_linear"] else "**worse than linear**",
            )
            for step in steps
        ],
    )  # fmt: skip


def gains(gain: Mapping[str, Any]) -> str:
    """Return the comparison with another version."""
    variants = ("pure", "extension", "interpreter")
    rows = []
    for case in gain.get("cases", ()):
        ratios = case["ratios"]
        cells = []
        for variant in variants:
            ratio = ratios.get(variant)
            if ratio is None:
                cells.append("")
                continue
            missed = "" if case["holds"].get(variant, True) else ", **missed**"
            cells.append(f"× {ratio['median']:.2f} ({ratio['min']:.2f}…{ratio['max']:.2f}){missed}")
        sign = "≤" if case["is_lower_better"] else "≥"
        rows.append(
            (
                case["title"], f"{number(case['values']['base'])} {case['unit']}", *cells,
                f"{sign} {case['pure_goal']:g}, {sign} {case['goal']:g}",
            )
        )  # fmt: skip
    head = ("", "before", "pure Python", "with the extension", "and another Python", "goals")
    return _table(head, rows)


def gain_versions(gain: Mapping[str, Any]) -> str:
    """Return which Pythons were compared."""
    titles = {
        "base": "before",
        "pure": "pure Python",
        "extension": "with the extension",
        "interpreter": "and another Python",
    }
    lines = [
        f"- {titles[variant]}: {version}" for variant, version in gain.get("variants", {}).items()
    ]
    return "\n".join(lines) or NOT_MEASURED


def profile(document: Mapping[str, Any]) -> str:
    """Return where the CPU time of a put goes."""
    columns = document.get("columns", ())
    rows = [
        (row["part"], *(number(row["cpu_us"].get(column)) for column in columns))
        for row in document.get("rows", ())
    ]
    return _table(("CPU µs a message", *columns), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return NOT_MEASURED
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
