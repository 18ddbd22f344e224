"""``make demo``: one master, one slave, real messages, and faults; then a group that elects.

::

    D1 master ══► D2 slave        kill it, start it again, freeze it, let it run on
    D1 killed,    D2 master ══► D3 a new slave

Two processes on loopback, driven by the commands that a user would type; each is shown before it
runs, followed by its output, what that means, and whether it is as expected.  It ends with ``log
verify``, ``log diff``, the scenarios' checker, a timeline and a report.  Exit code 1 if anything
was not as expected.

``second_act`` follows where an etcd is there.  ``hastore_scenarios.demo.command`` starts it.
"""

from __future__ import annotations

import contextlib
import functools
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from hastore.config import HAConfig, StoreConfig
from hastore.env.real import real_env
from hastore.errors import ConfigError
from hastore.status import BrokerRole, FlushDiskType
from hastore_scenarios.demo.input import DemoInput, read_input
from hastore_scenarios.demo.place import DemoPlace
from hastore_scenarios.demo.report import judge_demo, write_report
from hastore_scenarios.demo.second_act import second_act
from hastore_scenarios.demo.stage import WAIT_S, DemoFailed, DemoStage
from hastore_scenarios.demo.terminal import grouped, speak_ascii
from hastore_scenarios.escaping_console import EscapingConsole
from hastore_scenarios.judge.history import EventKind
from hastore_scenarios.judge.log_image import log_end
from hastore_scenarios.story.world import ScenarioFailed
from hastore_scenarios.worlds.process.node_process import tail

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from rich.console import Console

    from hastore.broker.observe.node_status import NodeStatus
    from hastore_scenarios.judge.checker import Verdict
    from hastore_scenarios.judge.result import Act
    from hastore_scenarios.worlds.process.node_process import NodeProcess

TOPIC: Final = "Demo"
INPUT: Final = "lines.txt"
STREAM: Final = "stream.jsonl"  # the history of the stream in which the master is killed
MADE_UP: Final = ("-n", "3000", "--size", "64KiB")  # some 190 MB to catch up
FILE_SIZE: Final = ("--mapped-file-size", "64MiB")
SLAVE_TIMEOUT_MS: Final = 1_000
SLAVE_TIMEOUT: Final = "1s"  # the same, as an option
ANY_PORT: Final = "127.0.0.1:0"
WIDTH_MAX: Final = 100  # of a terminal; longer lines are hard to read
WIDTH: Final = 80  # without a terminal
KEEP_IT: Final = "make demo KEEP=DIR"

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DEFAULTS: Final = (StoreConfig(data_dir=""), HAConfig())


async def run_story(stage: DemoStage, given: DemoInput, *, spark: bool) -> Verdict:
    """Run the story from beginning to end; return the checker's verdict."""
    await start_both(stage)
    await produce_lines(stage, given)
    await kill_the_slave(stage)
    await start_it_again(stage)
    await freeze_the_slave(stage)
    in_time = await kill_the_master(stage)
    fork = await look_for_lost_messages(stage, in_time, spark=spark)
    await promote_the_slave(stage)
    await bring_back_the_former_master(stage)
    await verify_directories(stage, fork)
    return await check_every_answer(stage)


async def start_both(stage: DemoStage) -> None:
    """Start D1 and D2."""
    stage.step("A master and a slave")
    stage.say(
        "A SYNC_MASTER answers PUT_OK only once a slave has the message too. The system chooses"
        " the ports; a node writes its addresses into its directory, so D1 works as an address."
    )
    await start_master(
        stage,
        "D1",
        *("--broker-role", "SYNC_MASTER", "--slave-timeout", SLAVE_TIMEOUT),
        slave_timeout_ms=SLAVE_TIMEOUT_MS,
    )
    await start_slave(stage, "D2", master="D1")
    await stage.wait_in_step("D1", "D2")
    shown = await stage.run("status", "D1")
    stage.expect(
        "streaming" in shown.output,
        "the slave is connected and in step",
        "it reported the end of its log, and the master streams from there",
    )


async def start_master(
    stage: DemoStage, name: str, *options: str, slave_timeout_ms: int
) -> NodeProcess:
    """Start a SYNC_MASTER on a directory, and record its settings in the history."""
    begun_s, end = stage.history.now_s(), await end_of_log(stage, name)
    ports = ("--listen", ANY_PORT, "--ha-listen", ANY_PORT)
    node = await stage.start(name, "master", "--data", name, *FILE_SIZE, *options, *ports)
    store, ha = _DEFAULTS
    role, flush = BrokerRole.SYNC_MASTER.value, FlushDiskType.ASYNC_FLUSH.value
    stage.history.event(
        EventKind.START_MASTER,
        name,
        f"{name}: started as {role}, {flush}",
        begun_s=begun_s,
        log_end=end,
        role=role,
        flush=flush,
        slave_timeout_ms=slave_timeout_ms,
        sync_flush_timeout_ms=store.sync_flush_timeout_ms,
        ha_slave_fallbehind_max=ha.ha_slave_fallbehind_max,
    )
    return node


async def start_slave(stage: DemoStage, name: str, *, master: str) -> None:
    """Start a slave of the master on directory ``master``."""
    begun_s, end = stage.history.now_s(), await end_of_log(stage, name)
    address = stage.nodes[master].ha_address
    assert address is not None
    host, port = address
    await stage.start(name, "slave", "--data", name, *FILE_SIZE, "--master", f"{host}:{port}")
    stage.history.event(
        EventKind.START_SLAVE,
        name,
        f"{name}: started as SLAVE of {master}, {FlushDiskType.ASYNC_FLUSH.value}",
        begun_s=begun_s,
        log_end=end,
        role="SLAVE",
        master=master,
        flows=True,
    )


async def end_of_log(stage: DemoStage, name: str) -> int:
    """Return the end of a directory's log."""
    path = str(stage.directory / name)
    return await trio.to_thread.run_sync(log_end, real_env().disk, path, abandon_on_cancel=True)


async def produce_lines(stage: DemoStage, given: DemoInput) -> None:
    """Send the real input."""
    lines = len(given.lines)
    many = "1 line" if lines == 1 else f"{grouped(lines)} lines"
    stage.step(f"Produce {many} of {given.source}")
    if given.cut_note is not None:
        stage.say(given.cut_note)
    stage.say(
        "--history records every message with its answer: the report at the end is drawn from"
        " that, and Spark can compare it with the logs."
    )
    shown = await stage.produce("D1", TOPIC, INPUT, note=f"produced {given.source}")
    stage.expect(
        shown.counts == {"PUT_OK": lines} and shown.exit_code == 0,
        f"all {grouped(lines)} messages are PUT_OK",
        "each is in both logs; many are in flight at a time, so this is still quick",
    )


async def kill_the_slave(stage: DemoStage) -> None:
    """Kill D2."""
    stage.step("Kill the slave")
    await stage.kill("D2")
    await stage.wait_until("D1", "the slave is gone", lambda status: not status.slaves)
    shown = await stage.produce("D1", TOPIC, INPUT, "-n", "100")
    stage.expect(
        set(shown.counts) == {"SLAVE_NOT_AVAILABLE"} and shown.exit_code == 20,
        "every message is SLAVE_NOT_AVAILABLE, at once",
        "stored on the master, and the producer knows that this is the only copy",
    )
    stage.say("And some generated load that does not wait, so that there is more to catch up with:")
    await stage.produce("D1", TOPIC, *MADE_UP, "--no-wait")


async def start_it_again(stage: DemoStage) -> None:
    """Start D2 again and watch it catch up."""
    stage.step("Start the slave again")
    end = (await stage.status("D1")).max_offset
    await start_slave(stage, "D2", master="D1")
    began_s = trio.current_time()
    offset = 0
    with trio.move_on_after(WAIT_S):
        while offset < end:
            offset = (await stage.status("D2")).max_offset
            took_s = trio.current_time() - began_s
            stage.say(
                f"{took_s:5.2f} s  D2 at {grouped(offset):>11}  {grouped(end - offset):>11}"
                " bytes behind"
            )
            await trio.sleep(0.05)
    stage.expect(
        offset == end,
        "it has caught up",
        "it asked for the missing bytes only: the log is resumed, not copied again",
    )
    await stage.wait_in_step("D1", "D2")
    shown = await stage.produce("D1", TOPIC, INPUT, "-n", "100")
    stage.expect(set(shown.counts) == {"PUT_OK"}, "puts are PUT_OK again", "a slave acknowledges")


async def freeze_the_slave(stage: DemoStage) -> None:
    """Freeze D2, whose connection stays open."""
    stage.step("Freeze the slave")
    await stage.freeze("D2")
    before = (await stage.status("D1")).max_offset
    shown = await stage.produce("D1", TOPIC, INPUT, "-n", "3")
    stage.expect(
        set(shown.counts) == {"FLUSH_SLAVE_TIMEOUT"} and shown.exit_code == 21,
        f"FLUSH_SLAVE_TIMEOUT after {SLAVE_TIMEOUT}",
        "the connection is open, so the master waited; it does not know whether the slave has it",
    )
    await stage.unfreeze("D2")
    await stage.wait_in_step("D1", "D2")
    after = (await stage.status("D2")).max_offset
    stage.expect(
        after > before,
        "the slave has these messages now",
        "a timed-out wait never undoes an append",
    )


async def kill_the_master(stage: DemoStage) -> int:
    """Kill D1 in mid-stream; return how many messages of the stream were acknowledged."""
    stage.step("Kill the master in mid-stream")
    made_up = ("-n", "1000000", "--size", "1KiB")
    command = ("produce", TOPIC, *made_up, "--history", STREAM, "--addr", "D1")
    end = (await stage.status("D1")).max_offset
    producer = stage.start_command(*command, output="last.txt")
    try:
        await stage.wait_until(
            "D1", "the stream is flowing", lambda status: status.max_offset > end + 3_000_000
        )
        await stage.kill("D1")
        with trio.fail_after(WAIT_S):
            shown = await stage.finish_command(producer, output="last.txt")
    finally:
        await producer.end()
    stage.take_puts("D1", STREAM)
    in_time = shown.counts.get("PUT_OK", 0)
    stage.expect(
        in_time > 0 and shown.exit_code == 3,
        f"{grouped(in_time)} messages were PUT_OK, the last few have no answer",
        "their outcome is unknown; a producer may look for them by their UNIQ_KEY",
    )
    return in_time


async def look_for_lost_messages(stage: DemoStage, in_time: int, *, spark: bool) -> int:
    """Look for each acknowledged message in the slave's log; return that log's end."""
    stage.step("Was an acknowledged message lost?")
    await stage.stop("D2")
    acknowledged, lost, end = await stage.count_lost(STREAM, "D2")
    stage.expect(
        lost == 0 and acknowledged == in_time,
        f"D2 has each of the {grouped(acknowledged)} messages that were PUT_OK",
        f"looked up one by one: {STREAM} has every answer, with its UNIQ_KEY",
    )
    if spark:
        shown = await stage.run("pipeline", "run", "rpo", STREAM, "D2", note="asked Spark as well")
        kept = re.search(r"^acknowledged kept +(\d[\d \xa0,]*)", shown.output, re.MULTILINE)
        stage.expect(
            shown.exit_code == 0
            and kept is not None
            and int(re.sub(r"\D", "", kept[1])) == acknowledged,
            "Spark finds the same",
            "a join of the history with the log as tables; it works at any size",
        )
    return end


async def promote_the_slave(stage: DemoStage) -> None:
    """Make D2 the master, and start a slave for it."""
    stage.step("The slave's directory becomes the new master")
    defaults = _DEFAULTS[1].slave_timeout_ms
    await start_master(stage, "D2", "--broker-role", "SYNC_MASTER", slave_timeout_ms=defaults)
    shown = await stage.produce("D2", TOPIC, INPUT, "-n", "3")
    stage.expect(
        set(shown.counts) == {"SLAVE_NOT_AVAILABLE"},
        "it takes messages, alone for now",
        "a promotion is a start: the same directory, another role",
    )
    await start_slave(stage, "D3", master="D2")
    await stage.wait_in_step("D2", "D3")
    shown = await stage.produce("D2", TOPIC, INPUT)
    stage.expect(
        set(shown.counts) == {"PUT_OK"},
        "with a new slave, PUT_OK again",
        "an empty slave gets the whole history first",
    )


async def bring_back_the_former_master(stage: DemoStage) -> None:
    """Start D1 as a slave of D2: it may hold messages that D2 does not have."""
    stage.step("The former master comes back, as a slave")
    difference = await stage.first_difference("D1", "D2")
    await start_slave(stage, "D1", master="D2")
    expected = "streaming" if difference is None else "diverged"
    status = await stage.wait_until(
        "D1",
        f"its link is {expected}",
        lambda status: status.master_link is not None and status.master_link.state == expected,
    )
    await stage.run("status", "D1")
    assert status.master_link is not None
    if difference is None:
        stage.expect(
            status.master_link.state == "streaming",
            "it follows",
            "this time D2 has all of its messages",
        )
        await stage.wait_until("D2", "both follow", both_in_step)
    else:
        stage.expect(
            status.master_link.state == "diverged",
            "it is refused: the logs have diverged",
            "it has messages, never acknowledged, that D2 does not have; nothing is discarded",
        )
    await stage.stop("D1")


def both_in_step(status: NodeStatus) -> bool:
    """Whether two slaves have acknowledged everything."""
    return sum(row.state == "streaming" and row.lag_bytes == 0 for row in status.slaves) == 2


async def verify_directories(stage: DemoStage, fork: int) -> None:
    """Stop everything; verify and compare the directories."""
    stage.step("The directories at the end")
    status = await stage.wait_in_step("D2", "D3")
    stage.history.event(
        EventKind.CAUGHT_UP,
        "D3",
        "D3: has caught up with D2",
        max_offset=status.slaves[0].ack_offset,
        master_max_offset=status.max_offset,
    )
    stage.history.event(EventKind.END, text="the story is over")
    for name in ("D3", "D2"):
        await stage.stop(name)
    for name in ("D1", "D2"):
        shown = await stage.run("log", "verify", name, note=f"verified {name}")
        stage.expect(
            shown.exit_code == 0, f"{name} is intact", "every record's checksum and place is right"
        )
    shown = await stage.run("log", "diff", "D2", "D3", note="compared D2 with D3")
    stage.expect(
        shown.exit_code == 0, "D2 and D3 are equal, byte for byte", "as replication promises"
    )
    await stage.run("log", "diff", "D1", "D2", note="compared D1 with D2")
    difference = await stage.first_difference("D1", "D2")
    stage.expect(
        difference is None or difference >= fork,
        f"D1 and D2 agree up to {grouped(fork)}, where D2 was promoted",
        "from there on, D1 may have unacknowledged messages, and D2 has later ones",
    )


async def check_every_answer(stage: DemoStage) -> Verdict:
    """Let the scenarios' checker compare every answer with the logs."""
    verdict = await judge_demo(stage.history, stage.directory, ("D1", "D2", "D3"))
    stage.note("did", "compared every answer with the three logs")
    stage.expect(
        verdict.ok,
        f"the checker has compared {grouped(verdict.operations)} answers with"
        f" {grouped(verdict.records)} records",
        "promised messages are there, in place, once; refused ones are not"
        if verdict.ok
        else "; ".join(map(str, verdict.violations[:3])),
    )
    return verdict


async def run_demo(given: DemoInput, console: Console, keep: str | None, *, spark: bool) -> int:
    """Run the demo to its end or to a signal; return the exit code."""
    code = 0
    caught = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    with trio.open_signal_receiver(*caught) as signals:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                nonlocal code
                async for number in signals:
                    code = 128 + number
                    nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            # Signals are only delivered at an await: the directory is always removed.
            try:
                with DemoPlace.open(keep) as place:
                    code = await _in_place(given, console, place, spark=spark)
            except (BrokenPipeError, SystemExit):  # the reader is gone: rich has closed stdout
                code = 1
            except (ConfigError, OSError) as error:
                _print_error(error)
                code = 1
            nursery.cancel_scope.cancel()
    return code


async def _in_place(given: DemoInput, console: Console, place: DemoPlace, *, spark: bool) -> int:
    # A path is never wrapped, so that it can be copied.
    console.print(f"Works in {place.directory}", markup=False, soft_wrap=True)
    stays = "It stays." if place.keeps else f"It is removed at the end; {KEEP_IT} keeps it."
    console.print(stays, markup=False)
    (place.directory / INPUT).write_bytes(given.text)
    stage = DemoStage(place.directory, console)
    began_s = trio.current_time()
    verdict: Verdict | None = None
    acts: list[Act] = []
    async with _processes_ended(stage):
        try:
            verdict = await run_story(stage, given, spark=spark)
            acts += await second_act(stage)
        except (DemoFailed, ScenarioFailed, trio.TooSlowError) as error:
            stage.expect(False, str(error) or "a step took too long", "the demo ends here")
    stage.step("The whole story")
    stage.print_timeline()
    took_s = trio.current_time() - began_s
    place.keeps = place.keeps or bool(stage.failures)
    page = write_report(
        stage.history,
        place,
        verdict=verdict,
        acts=acts,
        failures=stage.failures,
        outputs={each.stem: tail(each) for each in sorted(place.directory.glob("D?.log"))},
        duration_s=took_s,
        again="make demo",
    )
    console.print()
    _print_end(console, stage.failures, took_s)
    facts = {"cut": given.cut_note, "report": _shown(page)}
    if place.keeps:
        facts["kept"] = f"{place.directory}: the commands above can be repeated there"
    else:
        facts["gone"] = f"{place.directory}; {KEEP_IT} keeps it"
    for name, text in facts.items():
        if text is not None:
            stage.fact(name, text)
    return 1 if stage.failures else 0


def _print_end(console: Console, failures: list[str], took_s: float) -> None:
    if not failures:
        console.print(f"Everything as expected, in {took_s:.0f} s.", style="bold green")
        return
    console.print(f"NOT AS EXPECTED, {len(failures)} times, in {took_s:.0f} s:", style="bold red")
    for failure in failures:
        console.print(f"  {failure}", markup=False)


def _shown(path: Path) -> str:
    """Return a path relative to the working directory if it is inside."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


@contextlib.asynccontextmanager
async def _processes_ended(stage: DemoStage) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for node in stage.nodes.values():
            await node.process.end()


def run(file: str | None, keep: str | None, *, spark: bool) -> int:
    """Run the demo with the options of the command line; return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        speak_ascii(stream)
    console = EscapingConsole(highlight=False, markup=False)
    console.width = min(console.width, WIDTH_MAX) if sys.stdout.isatty() else WIDTH
    try:
        given = read_input(file)
    except ConfigError as error:
        _print_error(error)
        return 1
    return trio.run(functools.partial(run_demo, given, console, keep, spark=spark))


def _print_error(error: ConfigError | OSError) -> None:
    console = EscapingConsole(stderr=True, highlight=False, markup=False, soft_wrap=True)
    console.print(f"error: {error}")
    hint = getattr(error, "hint", None)
    if hint is not None:
        console.print(f"  next  {hint}")
