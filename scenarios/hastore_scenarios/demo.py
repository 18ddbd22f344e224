"""``make demo``: one master, one slave, real messages, and everything that can happen to them.

::

    D1 master ══► D2 slave        kill it, start it again, freeze it, let it run on
    D1 killed,    D2 master ══► D3 a new slave

Two processes on loopback, driven by the commands that anybody would type; each is shown before it
runs, followed by what it printed, what that means, and whether it is as it should be.  Ends with
``log verify``, ``log diff`` and a timeline.  Exit code 1 if anything was not as it should be.

    python -m hastore_scenarios.demo [FILE] [--keep DIR] [--spark]

In a clone it is ``make demo``, with FILE=PATH for other input and SPARK=1 to ask Spark, too.

FILE is any text; each line becomes a message.  By default it is this repository's own git history.
With --spark the question whether anything acknowledged was lost is asked of Spark, too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio
from rich.console import Console

from hastore_scenarios.demo_stage import WIDTH_MAX, DemoFailed, DemoStage
from hastore_scenarios.world import ScenarioFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hastore.broker.node_status import NodeStatus
    from hastore_scenarios.node_process import NodeProcess

TOPIC: Final = "Demo"
INPUT: Final = "history.txt"
STREAM: Final = "stream.jsonl"  # what became of each message while the master was killed
LINES_MAX: Final = 20_000
MADE_UP: Final = ("-n", "3000", "--size", "64KiB")  # some 190 MB to catch up
FILE_SIZE: Final = ("--mapped-file-size", "64MiB")
SLAVE_TIMEOUT: Final = "1s"
ANY_PORT: Final = "127.0.0.1:0"
_ROOT: Final = Path(__file__).resolve().parents[2]  # the clone: the demo is run from there


async def tell(stage: DemoStage, source: str, lines: int, *, spark: bool) -> None:
    """Tell the story from beginning to end."""
    await start_both(stage)
    await produce_lines(stage, source, lines)
    await kill_the_slave(stage)
    await start_it_again(stage)
    await freeze_the_slave(stage)
    in_time = await kill_the_master(stage)
    fork = await look_for_what_was_acknowledged(stage, in_time, spark=spark)
    await promote_the_slave(stage)
    await bring_back_the_former_master(stage)
    await look_at_what_is_left(stage, fork)


async def start_both(stage: DemoStage) -> None:
    """Bring up D1 and D2."""
    stage.step("A master and a slave")
    stage.say(
        "A SYNC_MASTER answers PUT_OK only once a slave has the message too. Ports are chosen"
        " freely; a node says where it listens in its directory, so D1 will do as an address."
    )
    master = await stage.start(
        "D1",
        "master",
        *("--data", "D1", *FILE_SIZE),
        *("--broker-role", "SYNC_MASTER", "--slave-timeout", SLAVE_TIMEOUT),
        *("--listen", ANY_PORT, "--ha-listen", ANY_PORT),
    )
    await start_slave(stage, "D2", master)
    await stage.wait_in_step("D1")
    shown = await stage.run("status", "D1")
    stage.expect(
        "streaming" in shown.output,
        "the slave is connected and in step",
        "it reported where its log ends, and the master streams from there",
    )


async def start_slave(stage: DemoStage, name: str, master: NodeProcess) -> None:
    """Start a slave of ``master``."""
    assert master.ha_address is not None
    host, port = master.ha_address
    await stage.start(name, "slave", "--data", name, *FILE_SIZE, "--master", f"{host}:{port}")


async def produce_lines(stage: DemoStage, source: str, lines: int) -> None:
    """Send the real input."""
    stage.step(f"Produce {lines:,} lines of {source}")
    shown = await stage.run("produce", TOPIC, INPUT, "--addr", "D1", note=f"produced {source}")
    stage.expect(
        shown.counts == {"SEND_OK": lines} and shown.exit_code == 0,
        f"all {lines:,} messages are SEND_OK, a client's word for PUT_OK",
        "each is in both logs; many travel at a time, so this is quick all the same",
    )


async def kill_the_slave(stage: DemoStage) -> None:
    """Lose D2."""
    stage.step("Kill the slave")
    await stage.kill("D2")
    await stage.wait_until("D1", "the slave is gone", lambda status: not status.slaves)
    shown = await stage.run("produce", TOPIC, INPUT, "-n", "100", "--addr", "D1")
    stage.expect(
        set(shown.counts) == {"SLAVE_NOT_AVAILABLE"} and shown.exit_code == 20,
        "every message is SLAVE_NOT_AVAILABLE, at once",
        "stored on the master, and the producer is told that this is the only copy",
    )
    stage.say("And some made-up load that does not wait, so that there is more to catch up with:")
    await stage.run("produce", TOPIC, *MADE_UP, "--no-wait", "--addr", "D1")


async def start_it_again(stage: DemoStage) -> None:
    """Bring D2 back and watch it catch up."""
    stage.step("Start the slave again")
    master = stage.nodes["D1"]
    end = (await stage.status("D1")).max_offset
    await start_slave(stage, "D2", master)
    began_s = trio.current_time()
    offset = 0
    with trio.move_on_after(15.0):
        while offset < end:
            offset = (await stage.status("D2")).max_offset
            took_s = trio.current_time() - began_s
            stage.say(f"{took_s:5.2f} s  D2 at {offset:>11,}  {end - offset:>11,} bytes behind")
            await trio.sleep(0.05)
    stage.expect(
        offset == end,
        "it has caught up",
        "it asked for exactly the bytes that it lacked: the log resumed, not copied anew",
    )
    await stage.wait_in_step("D1")
    shown = await stage.run("produce", TOPIC, INPUT, "-n", "100", "--addr", "D1")
    stage.expect(set(shown.counts) == {"SEND_OK"}, "puts are SEND_OK again", "a slave confirms")


async def freeze_the_slave(stage: DemoStage) -> None:
    """Stop D2 without closing its connection."""
    stage.step("Freeze the slave")
    await stage.freeze("D2")
    before = (await stage.status("D1")).max_offset
    shown = await stage.run("produce", TOPIC, INPUT, "-n", "3", "--addr", "D1")
    stage.expect(
        set(shown.counts) == {"FLUSH_SLAVE_TIMEOUT"} and shown.exit_code == 21,
        f"FLUSH_SLAVE_TIMEOUT after {SLAVE_TIMEOUT}",
        "the connection is open, so the master waited; nobody can say whether the slave has it",
    )
    await stage.unfreeze("D2")
    await stage.wait_in_step("D1")
    after = (await stage.status("D2")).max_offset
    stage.expect(
        after > before,
        "the slave has these messages now",
        "a wait that is given up never undoes an append",
    )


async def kill_the_master(stage: DemoStage) -> int:
    """Lose D1 in mid-stream; gives how much of the stream was acknowledged."""
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
        with trio.fail_after(20):
            shown = await stage.finish_command(producer, output="last.txt")
    finally:
        await producer.end()
    in_time = shown.counts.get("SEND_OK", 0)
    stage.expect(
        in_time > 0 and shown.exit_code == 3,
        f"{in_time:,} messages were SEND_OK, the last few have no answer",
        "for those nobody knows; a producer may look for them by their UNIQ_KEY",
    )
    return in_time


async def look_for_what_was_acknowledged(stage: DemoStage, in_time: int, *, spark: bool) -> int:
    """Hold what the producer was told against the log that is left; gives where that ends."""
    stage.step("Was anything acknowledged lost?")
    await stage.stop("D2")
    acknowledged, lost, end = await stage.count_lost(STREAM, "D2")
    stage.expect(
        lost == 0 and acknowledged == in_time,
        f"D2 has each of the {acknowledged:,} messages that were SEND_OK",
        f"looked up one by one: {STREAM} says what the producer was told, with every UNIQ_KEY",
    )
    if spark:
        shown = await stage.run("pipeline", "run", "rpo", STREAM, "D2", note="asked Spark as well")
        kept = re.search(r"^acknowledged kept +(\d+)", shown.output, re.MULTILINE)
        stage.expect(
            shown.exit_code == 0 and kept is not None and int(kept[1]) == acknowledged,
            "Spark comes to the same",
            "a join of the history with the log as tables; it works at any size",
        )
    return end


async def promote_the_slave(stage: DemoStage) -> None:
    """Make D2 the master, and give it a slave of its own."""
    stage.step("The slave's directory becomes the new master")
    master = await stage.start(
        "D2",
        "master",
        *("--data", "D2", *FILE_SIZE, "--broker-role", "SYNC_MASTER"),
        *("--listen", ANY_PORT, "--ha-listen", ANY_PORT),
    )
    shown = await stage.run("produce", TOPIC, INPUT, "-n", "3", "--addr", "D2")
    stage.expect(
        set(shown.counts) == {"SLAVE_NOT_AVAILABLE"},
        "it takes messages, alone for now",
        "a promotion is a start: the same directory, another role",
    )
    await start_slave(stage, "D3", master)
    await stage.wait_in_step("D2")
    shown = await stage.run("produce", TOPIC, INPUT, "--addr", "D2")
    stage.expect(
        set(shown.counts) == {"SEND_OK"},
        "with a new slave, SEND_OK again",
        "an empty slave gets the whole history first",
    )


async def bring_back_the_former_master(stage: DemoStage) -> None:
    """Start D1 as a slave of D2: it may hold messages that D2 never got."""
    stage.step("The former master comes back, as a slave")
    difference = await stage.first_difference("D1", "D2")
    await start_slave(stage, "D1", stage.nodes["D2"])
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
            "this time it died without a message that D2 has not",
        )
        await stage.wait_until("D2", "both follow", both_in_step)
    else:
        stage.expect(
            status.master_link.state == "diverged",
            "it is refused: the logs have parted",
            "it had messages, never acknowledged, that D2 has not; nothing is cut without a word",
        )
    await stage.stop("D1")


def both_in_step(status: NodeStatus) -> bool:
    """Whether two slaves have acknowledged everything."""
    return sum(row.state == "streaming" and row.lag_bytes == 0 for row in status.slaves) == 2


async def look_at_what_is_left(stage: DemoStage, fork: int) -> None:
    """Stop everything; verify and compare the directories."""
    stage.step("What is left on the disks")
    await stage.wait_in_step("D2")
    for name in ("D3", "D2"):
        await stage.stop(name)
    for name in ("D1", "D2"):
        shown = await stage.run("log", "verify", name, note=f"verified {name}")
        stage.expect(
            shown.exit_code == 0, f"{name} is whole", "every record's checksum and place is right"
        )
    shown = await stage.run("log", "diff", "D2", "D3", note="compared D2 with D3")
    stage.expect(
        shown.exit_code == 0, "D2 and D3 are equal, byte for byte", "that is what replication is"
    )
    await stage.run("log", "diff", "D1", "D2", note="compared D1 with D2")
    difference = await stage.first_difference("D1", "D2")
    stage.expect(
        difference is None or difference >= fork,
        f"D1 and D2 agree up to {fork}, where D2 was promoted",
        "behind it D1 may have what it never acknowledged, and D2 has what came since",
    )


async def run_demo(
    console: Console,
    directory: Path,
    source: str,
    lines: int,
    spark: bool = False,  # noqa: FBT001, FBT002 - trio.run passes positions only
) -> int:
    """Run it in ``directory``, which holds the input; gives the exit code."""
    stage = DemoStage(directory, console)
    began_s = trio.current_time()
    async with _processes_ended(stage):
        try:
            await tell(stage, source, lines, spark=spark)
        except (DemoFailed, ScenarioFailed, trio.TooSlowError) as error:
            stage.expect(False, str(error) or "a step took too long", "the demo ends here")
    stage.step("The whole story")
    stage.print_timeline()
    took = f"{trio.current_time() - began_s:.0f} s"
    console.print()
    if stage.failures:
        console.print(
            f"NOT AS IT SHOULD BE, {len(stage.failures)} times, in {took}:", style="bold red"
        )
        for failure in stage.failures:
            console.print(f"  {failure}", markup=False)
        console.print(f"  kept in {directory}", markup=False)
        return 1
    console.print(f"All of it as it should be, in {took}.", style="bold green")
    return 0


@contextlib.asynccontextmanager
async def _processes_ended(stage: DemoStage) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for node in stage.nodes.values():
            await node.process.end()


def write_input(file: str | None, path: Path) -> tuple[str, int]:
    """Write the lines to send to ``path``; gives what they are, and how many."""
    source, text = _read_input(file)
    lines = [line for line in text.splitlines() if line.strip()][:LINES_MAX]
    if not lines:
        raise DemoFailed(f"{source} holds no line of text")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return source, len(lines)


def _read_input(file: str | None) -> tuple[str, str]:
    if file is not None:
        try:
            return file, Path(file).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise DemoFailed(f"{file} cannot be read: {error.strerror}") from error
    with contextlib.suppress(OSError):
        git = subprocess.run(
            ["git", "log", "--stat"], cwd=_ROOT, capture_output=True, check=False, timeout=20
        )
        if git.returncode == 0 and git.stdout.strip():
            return "this repository's git history", git.stdout.decode(errors="replace")
    return "README.md", (_ROOT / "README.md").read_text(encoding="utf-8")


def main() -> int:
    """Read the command line, run, and clean up."""
    parser = argparse.ArgumentParser(prog="demo", description="A master, a slave, real messages.")
    parser.add_argument("file", nargs="?", default=os.environ.get("FILE") or None)
    parser.add_argument("--file", dest="file_option", help="the text to send, line by line")
    parser.add_argument("--keep", metavar="DIR", help="work in DIR and leave everything there")
    parser.add_argument(
        "--spark",
        action="store_true",
        default=bool(os.environ.get("SPARK")),
        help="ask Spark, too, whether anything acknowledged was lost",
    )
    arguments = parser.parse_args()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else WIDTH_MAX)
    directory = Path(arguments.keep or tempfile.mkdtemp(prefix="hastore-demo-")).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        source, lines = write_input(arguments.file_option or arguments.file, directory / INPUT)
        code = trio.run(run_demo, console, directory, source, lines, arguments.spark)
    except DemoFailed as error:
        print(f"error: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        code = 130
    if not arguments.keep and code != 1:
        shutil.rmtree(directory, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
