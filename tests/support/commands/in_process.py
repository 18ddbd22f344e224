"""Nodes and commands in one process: the real code on real sockets, without subprocesses.

``call`` runs a command in a thread beside the nodes' event loop, as `hastore …` would run in its
own process; ``run_command`` runs one in a test without an event loop.  ``hastore_here`` stands in
for ``running.hastore``, with an input, a directory and variables of its own: a Python takes half a
second of CPU to start, so only tests of what a process adds start one.
"""

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import trio

import hastore
from hastore.broker.node.master import Master
from hastore.broker.node.slave import Slave
from hastore.config import MasterConfig, SlaveConfig, StoreConfig
from hastore.message import Message, PutMessageResult
from hastore.status import BrokerRole
from hastore_cli.main import main
from tests.support.commands.running import environment
from tests.support.nodes.configs import ANY_PORT, IMPATIENT
from tests.support.planted_secrets import check_text
from tests.support.waiting import eventually, wait_until

Outcome = tuple[int, str, str]  # exit code, stdout, stderr


def store(directory: str | Path, **changes: Any) -> StoreConfig:
    """Return the configuration of a small store."""
    return StoreConfig(data_dir=str(directory), mapped_file_size=1 << 20, **changes)


@contextlib.asynccontextmanager
async def master_on(
    directory: str | Path, *, role: BrokerRole = BrokerRole.SYNC_MASTER, **changes: Any
) -> AsyncIterator[Master]:
    """Run a master with a client port."""
    config = MasterConfig(
        store=changes.pop("store", None) or store(directory),
        role=role,
        listen=ANY_PORT,
        ha_listen=ANY_PORT,
        ha=changes.pop("ha", IMPATIENT),
        **changes,
    )
    async with hastore.open_master(config) as master:
        yield master


@contextlib.asynccontextmanager
async def slave_of(master: Master, directory: str | Path, **changes: Any) -> AsyncIterator[Slave]:
    """Run a slave with a client port, caught up when the block begins."""
    config = SlaveConfig(
        store=changes.pop("store", None) or store(directory),
        master=master.ha_address,
        master_client=changes.pop("master_client", master.address),
        listen=ANY_PORT,
        ha=IMPATIENT,
        **changes,
    )
    async with hastore.open_slave(config) as slave:
        await eventually(lambda: master.status().slave_unavailable_because is None)
        await eventually(lambda: slave.max_offset == master.max_offset)
        yield slave


async def put(master: Master, count: int = 1, size: int = 100) -> PutMessageResult:
    """Put messages, one after the other; return the last result."""
    result = None
    for number in range(count):
        result = await master.put(Message("orders", b"x" * size, queue_id=number % 4))
    assert result is not None
    return result


def at(node: Master | Slave) -> str:
    """Return HOST:PORT of a node's client port."""
    assert node.address is not None
    host, port = node.address
    return f"{host}:{port}"


def run_command(capsysbinary: pytest.CaptureFixture[bytes], *arguments: object) -> Outcome:
    """Run a command in this thread; return exit code, stdout and stderr."""
    code = main([str(argument) for argument in arguments])
    captured = capsysbinary.readouterr()
    check_text(captured.out + captured.err, f"the output of {arguments}")
    return code, captured.out.decode(), captured.err.decode()


async def call(*arguments: object) -> Outcome:
    """Run a command in a thread; return exit code, stdout and stderr."""
    written = io.BytesIO(), io.BytesIO()
    out, err = (io.TextIOWrapper(each, "utf-8", newline="", write_through=True) for each in written)

    def run() -> int:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return main([str(argument) for argument in arguments])

    code = await trio.to_thread.run_sync(run)
    shown, told = (each.getvalue().decode() for each in written)
    check_text(shown + told, f"the output of {arguments}")
    return code, shown, told


async def call_json(*arguments: object) -> tuple[int, Any]:
    """Run a command with `-o json`; return the exit code and its parsed output."""
    code, out, err = await call(*arguments, "-o", "json")
    assert out, err
    return code, json.loads(out)


def hastore_here(
    *arguments: object, stdin: bytes = b"", cwd: Path | None = None, **extra: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in this thread; return stdout and stderr as text.

    Its streams are files, as a command may want their descriptors; PYTHONIOENCODING names their
    encoding.
    """
    encoding = extra.get("PYTHONIOENCODING", "utf-8")
    words = [str(argument) for argument in arguments]
    with contextlib.ExitStack() as stack:
        given, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(stdin)
        given.seek(0)
        for name, file in (("stdin", given), ("stdout", out), ("stderr", err)):
            stream = io.TextIOWrapper(file, encoding, newline="", write_through=name != "stdin")
            stack.enter_context(stream)
            stack.enter_context(mock.patch.object(sys, name, stream))
        stack.enter_context(mock.patch.dict(os.environ, environment(**extra), clear=True))
        stack.enter_context(mock.patch.object(tempfile, "tempdir", None))  # TMPDIR counts
        stack.enter_context(_logging_restored())
        if cwd is not None:
            stack.enter_context(contextlib.chdir(cwd))
        code = main(words)
        sys.stdout.flush()
        sys.stderr.flush()
        texts = []
        for file in (out, err):
            file.seek(0)
            data = file.read()
            check_text(data, f"the output of {words}")
            texts.append(data.decode(encoding))
    return subprocess.CompletedProcess(["hastore", *words], code, *texts)


def wait_for_status(
    where: Path, condition: Callable[[dict[str, Any]], object], key_file: str = ""
) -> dict[str, Any]:
    """Poll a node until its status fulfils the condition; return that status."""
    answers: list[subprocess.CompletedProcess[str]] = []

    def is_so() -> bool:
        answers[:] = [hastore_here("status", where, "-o", "json", HASTORE_ACCESS_KEY_FILE=key_file)]
        return answers[0].returncode == 0 and bool(condition(json.loads(answers[0].stdout)))

    wait_until(is_so, lambda: answers[0].stdout + answers[0].stderr)
    return _parsed(answers[0])


def status_of(where: Path) -> dict[str, Any]:
    """Return a node's current status."""
    done = hastore_here("status", where, "-o", "json")
    assert done.returncode == 0, done.stderr
    return _parsed(done)


def _parsed(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(done.stdout)
    return status


@contextlib.contextmanager
def _logging_restored() -> Iterator[None]:
    """Undo what a command has set up for its records."""
    logger = logging.getLogger("hastore")
    handlers, propagate, level = logger.handlers[:], logger.propagate, logger.level
    raises = logging.raiseExceptions
    try:
        yield
    finally:
        logger.handlers[:] = handlers
        logger.propagate = propagate
        logger.setLevel(level)
        logging.raiseExceptions = raises
