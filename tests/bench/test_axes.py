"""The axes of the benchmark: each has rows, the bare loops move the bytes, typos are refused."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio

from hastore.native.in_use import extension
from tests.bench import __main__ as bench
from tests.bench.axes.axis import Axis
from tests.bench.axes.bare_log import BareLog
from tests.bench.axes.child import Child, cpu_s, unmap_files, uses_extension
from tests.bench.axes.growth import growth
from tests.bench.axes.load import STRETCH_MAX, Load, closed_loop, percentiles
from tests.bench.axes.measured import (
    BARE,
    EXTENSION,
    PURE,
    Point,
    Scale,
    in_turn,
    lines_of,
    node_variants,
)
from tests.bench.axes.put_axes import drop_cached, measure_load

TINY = Scale(
    seconds=0.01,
    count_min=50,
    rounds_min=1,
    rounds_max=1,
    log_mib=1,
    appended=1_000,
    idle_s=0.1,
    points_max=1,
)
ALL = {*node_variants(), BARE}


def run_bench(tmp_path: Path, *only: str, scale: Scale = TINY) -> tuple[int, dict]:
    """Run `make bench ONLY=…`; return the exit code and the JSON."""
    path = tmp_path / "bench.json"
    code = bench.main(["--dir", str(tmp_path), "--json", str(path), "--only", *only], scale)
    return code, json.loads(path.read_text())


@pytest.mark.parametrize(
    "key",
    [
        "tcp",
        *(pytest.param(key, marks=pytest.mark.soak) for key in ("keys", "producers", "flush")),
    ],
)
def test_an_axis_measures_all_variants(tmp_path: Path, key: str) -> None:
    """Every variant has a rate at the first point; ratios are taken of the bare loop."""
    code, document = run_bench(tmp_path, key)
    assert (code, document["failed"], document["schema"]) == (0, [], "hastore.bench/1")
    (axis,) = document["axes"]
    assert axis["key"] == key
    (point,) = axis["points"]
    assert set(point["variants"]) == ALL
    assert all(figures["rate"] > 0 for figures in point["variants"].values())
    assert {f"{variant}:{BARE}" for variant in node_variants()} <= set(point["ratios"])
    if key != "keys":
        for figures in point["variants"].values():
            assert {"p50_us", "p99_us", "p999_us", "cpu_us_master", "cpu_us_slave"} <= set(figures)
            assert figures["rss_mib"] > 1


@pytest.mark.soak
def test_catch_up_ends_when_consumers_can_read(tmp_path: Path) -> None:
    """It is readable at the earliest when it is there; the bare loop reads nothing."""
    code, document = run_bench(tmp_path, "readable,idle")
    readable, idle = document["axes"]
    assert code == 0
    for variant, figures in readable["points"][0]["variants"].items():
        assert 0 < figures["gb_per_s"] <= figures["copied_gb_per_s"]
        assert variant != BARE or figures["gb_per_s"] == figures["copied_gb_per_s"]
    assert [point["label"] for point in idle["points"]] == ["master", "slave"]
    for point in idle["points"]:
        assert set(point["variants"]) == set(node_variants())
        assert all(figures["rss_mib"] > 1 for figures in point["variants"].values())


@pytest.mark.soak
async def test_a_point_with_several_slaves_and_queues(tmp_path: Path) -> None:
    """All slaves take part, in the bare loop, too: each uses CPU."""
    load = Load(tasks=2, slaves=2, queues=3, body_size=100)
    (point,) = await measure_load("some", 2, load, tmp_path, TINY)
    assert set(point.rounds) == ALL
    for figures in point.to_dict()["variants"].values():
        assert figures["cpu_us_slave"] > 0
        assert figures["mib_per_s"] == pytest.approx(figures["rate"] * 100 / 2**20, rel=0.01)


def test_a_child_uses_the_extension_unless_it_is_pure(tmp_path: Path) -> None:
    """Both kinds are told apart by what their process has loaded."""
    options = {"load": attrs.asdict(Load()), "path": str(tmp_path / "m")}
    with Child("tests.bench.axes.master_child", is_pure=True, **options) as child:
        assert not uses_extension(child.pid)
        assert cpu_s(child.pid) > 0
    if extension is not None:
        with Child("tests.bench.axes.master_child", **options) as child:
            assert uses_extension(child.pid)


def test_a_child_that_ends_is_reported(tmp_path: Path) -> None:
    """A measurement with a dead child fails; it does not wait."""
    with pytest.raises(RuntimeError, match="ended with 1"):
        Child("tests.bench.axes.master_child", load={"no": "such"}, path=str(tmp_path))


async def test_bare_puts_arrive_at_the_peer_in_order(tmp_path: Path) -> None:
    """Its files have the bytes of all tasks, one after the other, beyond the end of a file, too."""
    file_size = 4 * 2**20
    count, size = 21, file_size // 10 + 1
    load = Load(body_size=size - 205)
    options = {"load": attrs.asdict(load), "path": str(tmp_path / "peer"), "file_size": file_size}
    with (
        Child("tests.bench.axes.bare_peer", **options) as peer,
        contextlib.closing(BareLog(tmp_path / "own" / "log", file_size=file_size)) as log,
    ):
        turns = iter(range(count))

        async def produce() -> None:
            for turn in turns:
                await log.put(bytes([turn % 251]) * size)

        async with trio.open_nursery() as nursery:
            log.connect(socket.create_connection(peer.greeting["address"]), nursery)
            async with trio.open_nursery() as producers:
                for _ in range(4):
                    producers.start_soon(produce)
            nursery.cancel_scope.cancel()
        end = log.end
    assert 2 * file_size < end == count * size  # the first file is gone
    expected = b"".join(bytes([turn % 251]) * size for turn in range(count))
    for name in ("own", "peer"):
        files = [tmp_path / name / "log" / str(number) for number in (1, 2)]
        assert sorted((tmp_path / name / "log").iterdir()) == files
        written = b"".join(file.read_bytes() for file in files)[: end - file_size]
        assert written == expected[file_size:], name


async def test_a_relay_answers_after_its_slave(tmp_path: Path) -> None:
    """Each message is answered, and the slave's file has it."""
    options = {"load": attrs.asdict(Load(over_tcp=True))}
    size = Load().record_size
    with (
        Child("tests.bench.axes.bare_peer", path=str(tmp_path / "slave"), **options) as slave,
        Child(
            "tests.bench.axes.bare_peer",
            path=str(tmp_path / "relay"),
            slave=slave.greeting["address"],
            **options,
        ) as relay,
        contextlib.closing(BareLog(None)) as log,
    ):
        async with trio.open_nursery() as nursery:
            log.connect(socket.create_connection(relay.greeting["address"]), nursery)
            for number in range(20):
                await log.put(bytes([number]) * size)
                with (tmp_path / "slave" / "log" / "0").open("rb") as file:
                    assert os.pread(file.fileno(), size, number * size) == bytes([number]) * size
            nursery.cancel_scope.cancel()


async def test_a_closed_loop_goes_on_until_it_has_enough() -> None:
    """It stretches for slow puts, at most STRETCH_MAX times; each task puts once at least."""
    puts = 0

    async def put() -> None:
        nonlocal puts
        puts += 1
        await trio.lowlevel.checkpoint()

    measured = await closed_loop(put, 3, 0.0, 1)
    assert measured["count"] == puts == 3
    measured = await closed_loop(put, 3, 1000.0 / STRETCH_MAX * 1e-6, 10**9)
    assert measured["count"] < 10**9
    soon = trio.current_time()
    measured = await closed_loop(put, 3, 0.01, 0)
    assert trio.current_time() - soon >= 0.01


@pytest.mark.parametrize(
    ("count", "known"),
    [(1, []), (5, ["p50_us"]), (200, ["p50_us"]), (300, ["p50_us", "p99_us"])],
)
def test_a_percentile_needs_messages_above_it(count: int, known: list[str]) -> None:
    """Three, so that one slow message is not a percentile."""
    found = percentiles([n / 1e6 for n in range(count, 0, -1)])
    assert [name for name, value in found.items() if value is not None] == known
    assert found["p50_us"] is None or found["p50_us"] == pytest.approx(count // 2 + 1)


def rounds_of(rates: dict[str, list[float]]) -> tuple[dict[str, Callable], list[str]]:
    """Return samplers that play back some rates, and the record of who was asked."""
    asked: list[str] = []

    def sampler(variant: str) -> Callable:
        left = iter(rates[variant])

        def sample() -> dict:
            asked.append(variant)
            return {"rate": next(left)}

        return sample

    return {variant: sampler(variant) for variant in rates}, asked


def test_variants_are_measured_in_turn_until_they_agree() -> None:
    """Backwards in every other round; ratios within a tenth are enough, after some rounds."""
    samplers, asked = rounds_of({PURE: [10, 20, 10.5], BARE: [20, 20, 20]})
    rounds = in_turn(samplers, Scale(rounds_min=1, rounds_max=3))
    assert asked == [PURE, BARE]
    samplers, asked = rounds_of({PURE: [10, 20, 10.5], BARE: [20, 20, 20]})
    rounds = in_turn(samplers, Scale(rounds_min=2, rounds_max=3))
    assert asked == [PURE, BARE, BARE, PURE, PURE, BARE]
    ratios = Point("here", 1, rounds).to_dict()["ratios"]
    assert ratios == {"pure:bare": {"median": 0.525, "min": 0.5, "max": 1.0, "rounds": 3}}


def test_pages_of_large_bodies_are_used_again(tmp_path: Path) -> None:
    """What a round has read or written leaves the cache, mapped or not; its bytes stay."""
    file = tmp_path / "log" / "0"
    file.parent.mkdir()
    file.write_bytes(b"x" * 1024 * 1024)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as mapped:
        mapped[: 512 * 1024] = b"y" * 512 * 1024

        def resident() -> int:
            lines = iter(Path("/proc/self/smaps").read_text().splitlines())
            assert any(line.endswith(str(file)) for line in lines)
            return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))

        assert resident() >= 512
        unmap_files(str(tmp_path))
        assert resident() == 0
        drop_cached(file)
        assert mapped[:] == b"y" * 512 * 1024 + b"x" * 512 * 1024


def test_a_point_is_printed_with_a_line_for_each_variant() -> None:
    """An unknown figure is a dash; a note follows."""
    rounds = {EXTENSION: [{"rate": 3000.0, "p50_us": None}], BARE: [{"rate": 6000.0}]}
    lines = lines_of(Point("1 task", 1, rounds, note="so"), ("rate", "p50_us"))
    assert [line.split() for line in lines] == [
        ["1", "task", "extension", "3,000", "-", "0.50", "0.50…0.50"],
        ["bare", "loop", "6,000", "-"],
        ["so"],
    ]


def test_growth_is_named_where_it_is_worse_than_linear() -> None:
    """A step from 1 to 5 slaves may cost 5 times as much, and a tolerance."""

    def points(*rates: float) -> list[Point]:
        return [
            Point(str(value), value, {PURE: [{"rate": rate}]})
            for value, rate in zip((1, 5, 20), rates, strict=True)
        ]

    steps = growth({"slaves": points(100, 20, 3), "producers": points(1, 1, 1)})
    assert [(step.variant, step.is_linear) for step in steps] == [(PURE, True), (PURE, False)]
    assert steps[1].to_dict()["cost"] == pytest.approx(20 / 3)
    assert "WORSE THAN LINEAR" in str(steps[1])


def test_a_name_that_is_none_is_refused_with_the_list(capsys: pytest.CaptureFixture) -> None:
    """Nothing is measured then; `bounds`, single bounds and axes are names."""
    with pytest.raises(SystemExit) as refused:
        bench.main(["--only", "tcp,procuders"])
    assert refused.value.code == 2
    said = capsys.readouterr().err
    assert "no such name: procuders" in said
    assert "bounds, append," in said
    assert all(axis.key in said for axis in bench.axes())


def test_a_failed_measurement_is_named_and_the_rest_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The exit code is 1, the JSON has what was measured and what was not."""

    async def fine(_path: Path, _scale: Scale) -> list[Point]:
        return [Point("fine", 1, {PURE: [{"rate": 1.0}]})]

    async def broken(_path: Path, _scale: Scale) -> list[Point]:
        raise RuntimeError("no room")

    parts = {"this": broken, "that": fine}
    monkeypatch.setattr(bench, "axes", lambda: [Axis("tcp", "both", ("rate",), parts)])
    code, document = run_bench(tmp_path, "tcp", scale=attrs.evolve(TINY, points_max=2))
    assert code == 1
    assert document["failed"] == ["tcp: this"]
    assert [point["label"] for point in document["axes"][0]["points"]] == ["fine"]
    output = capsys.readouterr()
    assert "could not be measured: tcp: this" in output.out
    assert "no room" in output.err
