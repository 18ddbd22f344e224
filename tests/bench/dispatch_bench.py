"""How much dispatch slows appends, and whether it keeps up with 64 producers.

Both sides append the same 1 KiB messages to a fresh log, 64 of them between two checkpoints, like
64 producer tasks.  Ours also runs ReputMessageService until every message is in its
consume queue.  In a second row each message has a UNIQ_KEY and a key for the index.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path

import trio

from hastore.broker.node.dispatching import make_dispatching
from hastore.config import MIB, StoreConfig
from hastore.dispatch.dispatch_wake import DispatchWake
from hastore.env.real import real_env
from hastore.message import Message
from hastore.store.message_store import MessageStore
from tests.bench.nodes import BODY, TOPIC, scratch
from tests.support.bench.bound import Bound, Row

PAIRS = 5
COUNT = 150_000
FILE_SIZE = 512 * MIB
PRODUCERS = 64

DISPATCH = Bound(
    key="dispatch",
    work="append with dispatch, 64 producers",
    text="≥ 60 % of without",
    limit=0.60,
    at_least=True,
)
INDEXED = Bound(
    key="dispatch_keys",
    work="the same with two keys a message in the index",
    text="≥ 20 % of without",
    limit=0.20,
    at_least=True,
)
LAG = Bound(
    key="dispatch_lag",
    work="dispatch behind the log, at most",
    text="≤ 4 MiB",
    limit=1.0,
)
LAG_LIMIT_MIB = 4


async def bench_dispatch(directory: Path) -> list[Row]:
    """Measure messages a second, with and without dispatch, and the largest lag."""
    plain: list[tuple[float, float]] = []
    keyed: list[tuple[float, float]] = []
    lags: list[tuple[float, float]] = []
    for _ in range(PAIRS):
        for keys, pairs in ((0, plain), (2, keyed)):
            with scratch(directory, "dispatch") as path:
                ours, lag = await append_rate(path, keys=keys)
            with scratch(directory, "plain") as path:
                bare, _ = await append_rate(path, keys=keys, dispatch=False)
            pairs.append((ours, bare))
            lags.append((lag / MIB, LAG_LIMIT_MIB))
    return [
        Row.of_pairs(DISPATCH, plain, "messages/s", note="until the last message is dispatched"),
        Row.of_pairs(INDEXED, keyed, "messages/s", note="no bound of the architecture's"),
        Row.of_pairs(LAG, lags, "MiB"),
    ]


async def append_rate(
    path: Path, *, keys: int, dispatch: bool = True, count: int = COUNT
) -> tuple[float, int]:
    """Append messages; return messages a second, and dispatch's largest lag in bytes.

    Each has 0, 1 (UNIQ_KEY) or 2 ``keys`` for the index.
    """
    env = real_env()
    config = StoreConfig(data_dir=str(path), mapped_file_size=FILE_SIZE)
    store = MessageStore.open(
        env, config, store_host=("127.0.0.1", 10911), needs_queue_offsets=True
    )
    log = store.commit_log
    log.mapped_file_queue.offer(log.mapped_file_queue.create_file(0))
    dispatching = make_dispatching(env, store, lambda: log.max_offset, DispatchWake())
    reput = dispatching.reput_message_service
    messages = [_message(number, keys=keys) for number in range(count)]
    lag = 0
    async with trio.open_nursery() as nursery:
        if dispatch:
            nursery.start_soon(dispatching.run)
            await trio.sleep(0.01)
        gc.collect()
        began = time.perf_counter()
        for first in range(0, count, PRODUCERS):
            for message in messages[first : first + PRODUCERS]:
                log.append_message(message)
            if dispatch:
                reput.wakeup()
                lag = max(lag, log.max_offset - reput.reput_offset)
            await trio.lowlevel.checkpoint()
        if dispatch:
            await reput.catch_up()
        took_s = time.perf_counter() - began
        nursery.cancel_scope.cancel()
    assert not dispatch or reput.reput_offset == log.max_offset
    assert not dispatch or store.max_offset_in_queue(TOPIC, 1) == (count + 2) // 4
    store.close(clean=False)
    return count / took_s, lag


def _message(number: int, *, keys: int) -> Message:
    all_keys = {"UNIQ_KEY": f"7F00000100002A9F{number:016X}", "KEYS": f"order-{number}"}
    properties = dict(list(all_keys.items())[:keys])
    return Message(TOPIC, BODY, properties=properties or None, queue_id=number % 4)
