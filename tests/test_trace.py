"""Log events in programs that hastore is a part of: one record is a sentence, and has its pairs."""

import json
import logging
import logging.handlers
import os
import queue
import re
import subprocess
import sys

import pytest

from hastore.trace import audit, logger
from tests.support.repository import REPO_ROOT, blocks

DOCUMENT = "docs/embedding.md"


def logged_by(program, directory):
    """Run a program in a process of its own; return the lines that it wrote to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(REPO_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done.stderr.splitlines()


@pytest.fixture
def messages():
    """The messages of all records of hastore, as a plain handler of the program gets them."""
    found = []

    class Plain(logging.Handler):
        def emit(self, record):
            found.append(self.format(record))

    handler, log = Plain(), logging.getLogger("hastore")
    level, propagate = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield found
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate


def test_the_documents_program_logs_sentences(tmp_path):
    """``basicConfig`` is all that it needs; the document shows its first lines."""
    program, _ = blocks(DOCUMENT, "python")
    shown = blocks(DOCUMENT, "text")[0].splitlines()
    lines = logged_by(program, tmp_path)
    head = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING) hastore: (?=[^{]*$)")
    assert all(head.match(line) for line in lines), lines

    def sentences(of):
        return [re.sub(r":\d{2,}", ":PORT", head.sub("", line)) for line in of]

    assert sentences(lines)[: len(shown)] == sentences(shown)


def test_the_documents_formatter_gets_the_names_and_values(tmp_path):
    """As JSON lines, without the events that its filter names."""
    _, setting_up = blocks(DOCUMENT, "python")
    events = """
from hastore.trace import logger
logger("ha").info("ha_slave_connected", slave="h:1", at=5)
logger("ha").info("ha_copying", master="h:2", copied_bytes=7)
logging.getLogger("hastore.x").warning("from %s", "elsewhere")
"""
    first, second = map(json.loads, logged_by(setting_up + events, tmp_path))
    assert first.pop("timestamp").startswith("20")
    assert first == {
        "event": "ha_slave_connected",
        "slave": "h:1",
        "at": 5,
        "part": "ha",
        "level": "info",
        "logger": "hastore",
    }
    assert second == {"event": "from elsewhere", "logger": "hastore.x"}


def test_a_message_is_a_sentence_with_its_next_step(messages):
    """An event without a template is its name in words, and its pairs."""
    log = logger("ha")
    log.info("ha_slave_connected", slave="h:1", at=5)
    log.warning("tail_was_scanned", physic_offset=7, next="look at 100% of it")
    log.debug("ha_slave_connected", slave="h:2", at=6)
    audit("promise", who="admin", outcome="done", peer="h:3")
    assert messages == [
        "slave h:1 connected, at offset 5",
        "tail was scanned: physic offset 7; next: look at 100% of it",
        "admin at h:3: promise is done",
    ]


def test_a_message_is_one_line_whatever_a_peer_says(messages):
    """Control characters and line ends are escaped."""
    logger("ha").info("ha_peer_refused", peer="h:1", kind="k", reason="\x1b[2J\nINFO hastore: no")
    (text,) = messages
    assert text.endswith(r"\x1b[2J\nINFO hastore: no")


def test_a_traceback_follows_its_message(messages):
    """As for any record of ``logging``."""
    try:
        raise OSError("gone")
    except OSError:
        logger("broker").exception("metrics_failed")
    (text,) = messages
    assert text.startswith("a page of the metrics port failed\nTraceback")
    assert text.endswith("OSError: gone")


def test_a_queue_of_records_keeps_the_sentence(messages):
    """``QueueHandler`` makes text of a record before another thread or process gets it."""
    records = queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(records)
    logging.getLogger("hastore").addHandler(handler)
    try:
        logger("ha").info("ha_slave_connected", slave="h:1", at=5)
    finally:
        logging.getLogger("hastore").removeHandler(handler)
    assert records.get_nowait().getMessage() == messages[0] == "slave h:1 connected, at offset 5"
