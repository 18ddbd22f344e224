"""A child that receives bare messages: a slave, or with ``slave`` (an address) a client port.

A slave writes what it receives by pwrite and answers each read with 8 bytes.  A client port passes
the messages on to the slave and answers each message with REPLY_SIZE bytes, all of one read
in one send.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import trio

from tests.bench.axes.bare_log import (
    FILE_SIZE,
    RECEIVE_SIZE,
    BareFiles,
    BareLog,
    BareQueues,
    tune,
)
from tests.bench.axes.child import Answer, options, serve
from tests.bench.axes.load import Load

REPLY_SIZE = 144  # about that of a SendMessage answer


async def main(given: dict[str, Any]) -> None:
    """Listen, greet, and serve the one connection."""
    load, path = Load(**given["load"]), Path(given["path"])
    listener = socket.create_server(("127.0.0.1", 0))
    async with trio.open_nursery() as nursery:
        if "slave" in given:
            slave = socket.create_connection(tuple(given["slave"]))
            nursery.start_soon(relay, listener, slave, path, load)
        else:
            file_size = given.get("file_size", FILE_SIZE)
            nursery.start_soon(receive, listener, path, load, file_size)
        await serve({"address": list(listener.getsockname())}, _nothing)
        nursery.cancel_scope.cancel()


async def receive(listener: socket.socket, path: Path, load: Load, file_size: int) -> None:
    """Be a slave."""
    sock = await _accept(listener)
    files = BareFiles(path / "log", file_size)
    queues = BareQueues(path / "queues", load.queues)
    buffer = memoryview(bytearray(RECEIVE_SIZE))
    end = records = 0
    while True:
        await trio.lowlevel.wait_readable(sock)
        count = sock.recv_into(buffer[: file_size - end % file_size])
        if not count:
            return
        os.pwrite(files.descriptor(end), buffer[:count], end % file_size)
        if load.is_slave_flushed:
            files.sync(end)
        end += count
        sock.send(end.to_bytes(8, "big"))
        queues.add(end // load.record_size - records)
        records = end // load.record_size


async def relay(listener: socket.socket, slave: socket.socket, path: Path, load: Load) -> None:
    """Be a client port: append what comes to a log with a slave, answer what the slave has."""
    sock = await _accept(listener)
    log = BareLog(path / "log")
    answered = 0

    def answer(offset: int) -> None:
        nonlocal answered
        records = offset // load.record_size - answered // load.record_size
        if records:
            answered = offset
            sock.send(offset.to_bytes(8, "big") * (records * REPLY_SIZE // 8))

    log.on_released = answer
    async with trio.open_nursery() as nursery:
        log.connect(slave, nursery)
        while True:
            await trio.lowlevel.wait_readable(sock)
            data = sock.recv(65_536)
            if not data:
                nursery.cancel_scope.cancel()
                return
            log.append(data)


async def _accept(listener: socket.socket) -> socket.socket:
    await trio.lowlevel.wait_readable(listener)
    sock, _ = listener.accept()
    tune(sock)
    return sock


async def _nothing() -> Answer:
    return {}


if __name__ == "__main__":
    trio.run(main, options())
