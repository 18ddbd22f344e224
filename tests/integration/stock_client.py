"""Apache's C++ client (PyPI: rocketmq), an independent peer in its own process."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import trio

from tests.patience import PROCESS_WITHIN_S

REQUIREMENT = "rocketmq==0.4.4"
SCRATCH = Path(__file__).resolve().parents[2] / "build" / "stock-client"

PRODUCER = textwrap.dedent(
    """
    import sys
    from rocketmq.client import Message, Producer

    producer = Producer("stock-producer", timeout=60_000)
    producer.set_namesrv_addr(sys.argv[1])
    producer.start()
    for number in range(int(sys.argv[3]), int(sys.argv[4])):
        message = Message(sys.argv[2])
        message.set_keys("k%d" % number)
        message.set_tags("ab"[number % 2])
        message.set_body("%d " % number + "x" * int(sys.argv[5]))
        result = producer.send_sync(message)
        assert int(result.status) == 0, result
    producer.shutdown()
    """
)

# Sends a number every 50 ms, each until it is stored; the number of failed sends ends the line.
STUBBORN_PRODUCER = textwrap.dedent(
    """
    import sys, time
    from rocketmq.client import Message, Producer

    producer = Producer("stubborn-producer", timeout=3_000)
    producer.set_namesrv_addr(sys.argv[1])
    producer.start()
    for number in range(int(sys.argv[3])):
        failed = 0
        while True:
            message = Message(sys.argv[2])
            message.set_body("%d " % number)
            try:
                if int(producer.send_sync(message).status) == 0:
                    break
            except Exception:
                pass
            failed += 1
            time.sleep(0.2)
        print(number, failed, flush=True)
        time.sleep(0.05)
    producer.shutdown()
    """
)

# Prints each message as a line of JSON.  A group named ..._returns returns each number that ends in
# 7 once; this client then also returns the rest of the pull, handled or not.  Such a group ends
# when both 7 and 17 have come again.
CONSUMER = textwrap.dedent(
    """
    import json, sys, threading, time
    from rocketmq.client import PushConsumer, RecvMessage

    address, topic, group, expression, orderly, wanted, patience_s = sys.argv[1:]
    returns = group.endswith("_returns")
    lock = threading.Lock()
    count = 0
    came_again = set()

    def text(value):
        return value.decode() if isinstance(value, bytes) else value

    def take(_, handle):
        global count
        message = RecvMessage(handle)
        number = int(text(message.body).split()[0])
        again = returns and message.reconsume_times == 0 and number % 10 == 7
        row = {
            "number": number, "size": len(text(message.body)), "queue": message.queue_id,
            "offset": message.queue_offset, "again": again, "keys": text(message.keys),
            "times": message.reconsume_times, "topic": text(message.topic),
        }
        with lock:
            print(json.dumps(row), flush=True)
            count += 1
            if message.reconsume_times:
                came_again.add(number)
        return 1 if again else 0

    consumer = PushConsumer(group, orderly=orderly == "yes")
    consumer.set_namesrv_addr(address)
    consumer.subscribe(topic, lambda message: None, expression)
    consumer._register_callback(take)
    consumer.start()
    deadline = time.monotonic() + float(patience_s)
    while time.monotonic() < deadline:
        if count >= int(wanted) and (not returns or {7, 17} <= came_again):
            break
        time.sleep(0.05)
    time.sleep(0.5)  # one too many would come now
    consumer.shutdown()
    """
)


def find_stock_python() -> str:
    """Return an interpreter that has the client, this one or one in ``build``, or skip the test."""
    reason = _import_fault(sys.executable)
    if reason is None:
        return sys.executable
    python = SCRATCH / "bin" / "python"
    if not python.exists():
        reason = _install()
    if python.exists():
        reason = _import_fault(str(python))
    if reason is not None:
        pytest.skip(f"the stock client {REQUIREMENT} is not available here: {reason}")
    return str(python)


def _import_fault(python: str) -> str | None:
    call = [python, "-c", "import rocketmq.client"]
    found = subprocess.run(call, capture_output=True, check=False)
    if found.returncode == 0:
        return None
    return found.stderr.decode(errors="replace").strip().splitlines()[-1]


def _install() -> str | None:
    """Make an environment elsewhere and move it into place, in case another run does the same."""
    made = SCRATCH.with_name(f"stock-client.{os.getpid()}")
    try:
        for call in (
            [sys.executable, "-m", "venv", str(made)],
            [str(made / "bin" / "python"), "-m", "pip", "install", "-q", REQUIREMENT],
        ):
            subprocess.run(call, capture_output=True, check=True, timeout=PROCESS_WITHIN_S)
        with contextlib.suppress(OSError):  # another run was first
            made.rename(SCRATCH)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return None


async def run(
    python: str, script: str, address: tuple[str, int] | str, home: Path, *args: object
) -> str:
    """Run one of the scripts against a node, or ``A;B;C``; its log goes below ``home``."""
    where = address if isinstance(address, str) else f"{address[0]}:{address[1]}"
    with trio.fail_after(PROCESS_WITHIN_S * 2):
        done = await trio.run_process(
            [python, "-c", script, where, *map(str, args)],
            capture_stdout=True,
            env={**os.environ, "HOME": str(home)},
        )
    return done.stdout.decode()


async def produce(python, node, home, topic, numbers, *, size=0):
    """Send each number of a range, padded with ``size`` bytes."""
    await run(python, PRODUCER, node.address, home, topic, numbers.start, numbers.stop, size)


async def consume(
    python,
    node,
    home,
    topic,
    group,
    *,
    wanted,
    tags="*",
    orderly=False,
    patience_s=PROCESS_WITHIN_S,
):
    """Push-consume until ``wanted`` messages have come; return them in the order of arrival."""
    is_orderly = "yes" if orderly else "no"
    lines = await run(
        python, CONSUMER, node.address, home, topic, group, tags, is_orderly, wanted, patience_s
    )
    return [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
