"""Log events as sentences: every logged event reads well and shows only pairs that it has."""

import ast
import functools
import json
import logging
import pty
import re
from collections import defaultdict
from pathlib import Path

import pytest

from hastore.log_sentences import SENTENCES, fields_of, next_of, sentence_of
from hastore.trace import logger
from hastore_cli.app.log_output import LogConfig, set_up_logging
from tests.support.repository import REPO_ROOT

LEVELS = ("info", "warning", "error", "exception")
# Events about peers: `PeerLog` adds the peer's name to the pairs of its `note`.
PEER_PAIRS = {
    "ha_slave_connected": {"slave", "at"},
    "ha_slave_gone": {"slave", "reason"},
    "ha_slave_refused": {"slave", "kind", "reason"},
    "ha_peer_refused": {"peer", "kind", "reason"},
    "client_refused": {"peer", "kind", "reason"},
    "quota_used_up": {"peer", "kind", "reason"},
    "metrics_refused": {"peer", "kind", "reason"},
    "access_denied": {"peer", "kind", "code", "reason"},
}
# Stands for pairs that a caller passes as `**pairs`.
SPREAD = "**"


@functools.cache
def logged_events() -> dict[str, list[tuple[str, frozenset[str]]]]:
    """Every event that a node may log at info or above: its places in the code and its pairs."""
    found = defaultdict(list)
    for root in ("hastore", "cli/hastore_cli"):
        for path in sorted(Path(REPO_ROOT, root).rglob("*.py")):
            text = path.read_text()
            if "_log" not in text and ".log" not in text:
                continue  # parsing is slow
            for call in ast.walk(ast.parse(text)):
                if not isinstance(call, ast.Call) or not call.args:
                    continue
                where = f"{path.relative_to(REPO_ROOT)}:{call.lineno}"
                event = call.args[0]
                is_log = (
                    isinstance(call.func, ast.Attribute)
                    and call.func.attr in LEVELS
                    and ast.unparse(call.func.value).endswith(("_log", ".log"))
                )
                if is_log:
                    assert isinstance(event, ast.Constant), f"{where}: an event's name is a string"
                    pairs = frozenset(each.arg or SPREAD for each in call.keywords)
                    found[event.value].append((where, pairs))
                elif len(call.args) > 1 and ast.unparse(event) == "_log":  # a PeerLog
                    name = call.args[1]
                    assert isinstance(name, ast.Constant), where
                    found[name.value].append((where, frozenset(PEER_PAIRS[name.value])))
    return found


def test_logged_events_finds_every_form_of_call():
    """Calls about peers, calls over several lines, and calls in the command line tool."""
    events = logged_events()
    assert {"ha_slave_refused", "torn_tail_trimmed", "ready", "metrics_failed"} <= events.keys()
    assert len(events) > 60


def test_every_event_reads_as_a_sentence():
    """No underscores, `key=value` or braces remain, and each pair has its place."""
    wrong = []
    for event, calls in logged_events().items():
        templates = SENTENCES.get(event, ())
        named = {name for template in templates for name in fields_of(template)}
        for where, pairs in calls:
            text = sentence_of(event, {name: f"<{name}>" for name in pairs - {SPREAD}})
            if re.search(r"[a-z]_[a-z]|[{}=]", re.sub("<.*?>", "", text)):
                wrong.append(f"{where}: {text}")
            omitted = set(re.findall("<(.*?)>", text)) - named
            if templates and omitted:
                wrong.append(f"{where}: mention or omit {omitted}: {text}")
    assert wrong == []


def test_every_template_fits_a_logged_event():
    """A template with a pair that no caller passes would never be used."""
    events = logged_events()
    unused = [
        f"{event}: {template}"
        for event, templates in SENTENCES.items()
        for template in templates
        if not any(
            SPREAD in pairs or fields_of(template) <= pairs for _, pairs in events.get(event, ())
        )
    ]
    assert unused == []


def test_cut_of_a_log_is_one_sentence():
    """With the number of messages of each topic, where there are any."""
    pairs = {
        "physic_offset": 2060,
        "end_offset": 6185,
        "size": 4125,
        "epochs": [1, 2],
        "messages": {"orders": 12, "audit": 3},
        "reason": "the master's log goes on differently",
        "saved": ["trimmed/00000000000000002060-7"],
    }
    assert sentence_of("log_cut", pairs) == (
        "cut the log at offset 2060, because the master's log goes on differently: 4125 bytes of"
        " epoch 1, 2 moved to trimmed/00000000000000002060-7; messages among them: orders 12,"
        " audit 3"
    )
    text = sentence_of("log_cut", {**pairs, "messages": {}})
    assert text.endswith("moved to trimmed/00000000000000002060-7 (epochs 1, 2)")


def test_event_without_a_template_shows_its_name_and_pairs():
    """So an event added without a template can still be read."""
    text = sentence_of("tail_was_scanned", {"physic_offset": 7, "files": ["a", "b"], "part": "ha"})
    assert text == "tail was scanned: physic offset 7, files a, b"
    assert sentence_of("Some library's own line", {}) == "Some library's own line"


def test_pairs_missing_from_the_template_follow_in_brackets():
    """So a pair added after its template was written is not lost."""
    pairs = {"slave": "h:1", "at": 5, "version": 3, "more": 2, "others": 0}
    assert sentence_of("ha_slave_connected", pairs) == (
        "slave h:1 connected, at offset 5 (version 3); 2 more like it from there"
    )


def test_first_template_with_values_for_all_pairs_is_used():
    """None and an empty list do not count as values."""
    assert sentence_of("file_deleted", {"path": "P", "reason": "expired", "held_by": []}) == (
        "deleted P (expired)"
    )
    assert sentence_of("file_deleted", {"path": "P", "reason": "expired", "held_by": ["a"]}) == (
        "deleted P (expired), which was still needed by a"
    )


def test_sizes_and_times_are_formatted_for_people():
    """A copying slave shows its progress, its rate and the time left."""
    pairs = {"master": "m:1", "at": 5, "end": 9, "copied_bytes": 1288490189, "percent": 35}
    pairs |= {"total_bytes": 3650722202, "bytes_per_s": 220200960, "left_s": 10}
    assert sentence_of("ha_copying", pairs) == (
        "copying from m:1: 1.2 GiB of 3.4 GiB (35 %), 210.0 MiB/s, about 10 s left"
    )
    assert sentence_of("ha_copying", {**pairs, "left_s": 1800}).endswith("about 30 min left")
    unknown = {**pairs, "end": None, "total_bytes": None, "percent": None, "left_s": None}
    assert sentence_of("ha_copying", unknown) == "copying from m:1: 1.2 GiB so far, 210.0 MiB/s"


def test_next_step_is_separate_unless_the_template_has_it():
    """It looks like the next step below a command's error."""
    assert next_of("ha_gave_up", {"reason": "r", "next": "do this"}) == "do this"
    assert next_of("ha_gave_up", {"reason": "r", "next": None}) is None
    assert next_of("queue_offset_moved", {"next": 7}) is None


@pytest.fixture
def restored_logger():
    """Restores the hastore logger after the test."""
    log = logging.getLogger("hastore")
    before = log.handlers[:], log.propagate, log.level, logging.raiseExceptions
    yield
    log.handlers[:], log.propagate, logging.raiseExceptions = before[0], before[1], before[3]
    log.setLevel(before[2])


def written_to(stderr, config, monkeypatch, *, colour=False):
    monkeypatch.setattr("sys.stderr", stderr)
    set_up_logging(config, colour=colour)
    log = logger("ha")
    log.info("ha_slave_connected", slave="127.0.0.1:41234", at=0)
    log.error("ha_gave_up", state="diverged", reason="not the\nsame log", next="compare the two")
    stderr.flush()


@pytest.mark.usefixtures("restored_logger")
def test_terminal_gets_sentences(monkeypatch):
    """Time of day, sentence and next step; line breaks in a peer's text are removed."""
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal, open(ours, "rb", buffering=0) as screen:  # noqa: PTH123
        written_to(terminal, LogConfig(), monkeypatch)
        shown = b""
        while not shown.endswith(b"compare the two\r\n"):
            shown += screen.read(4096)
    assert re.sub(r"\d\d:\d\d:\d\d", "TIME", shown.decode().replace("\r\n", "\n")) == (
        "TIME  slave 127.0.0.1:41234 connected, at offset 0\n"
        "TIME  error: replication has stopped (diverged): not the same log\n"
        "          next  compare the two\n"
    )


@pytest.mark.usefixtures("restored_logger")
def test_sentences_fold_at_words_on_a_narrow_terminal(monkeypatch):
    """Addresses are never split."""
    monkeypatch.setenv("COLUMNS", "40")
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal, open(ours, "rb", buffering=0) as screen:  # noqa: PTH123
        written_to(terminal, LogConfig(), monkeypatch)
        shown = b""
        while not shown.endswith(b"compare the two\r\n"):
            shown += screen.read(4096)
    assert re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", shown.decode()).split("\r\n")[:2] == [
        "HH:MM:SS  slave 127.0.0.1:41234",
        "          connected, at offset 0",
    ]


@pytest.mark.usefixtures("restored_logger")
def test_log_file_gets_event_names_and_pairs(monkeypatch, tmp_path):
    """JSON, or lines of pairs with --log-format console, so that programs can read them."""
    with open(tmp_path / "log", "w") as file:  # noqa: PTH123
        written_to(file, LogConfig(), monkeypatch)
    records = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [record["event"] for record in records] == ["ha_slave_connected", "ha_gave_up"]
    assert (records[0]["slave"], records[0]["at"]) == ("127.0.0.1:41234", 0)
    with open(tmp_path / "log", "w") as file:  # noqa: PTH123
        written_to(file, LogConfig(format="console"), monkeypatch)
    assert "ha_slave_connected" in (tmp_path / "log").read_text()
    assert "slave=127.0.0.1:41234" in (tmp_path / "log").read_text()
