"""What a node, a log or etcd says cannot move the cursor: no command prints a control character.

A node answers each request with texts full of them, then refuses each with such a text, then
answers with values that are of the wrong kind.  That is one clear line, never a bug of hastore.
"""

import contextlib
import json
import re
import socket
import struct
import threading

import attrs
import pytest

from hastore_cli.app import terminal
from hastore_cli.app.terminal import escaped, rendered, style
from tests.support.commands.in_process import hastore_here
from tests.support.nodes.statuses import GROUP_MASTER, MASTER, SLAVE
from tests.support.store.log_builder import LogBuilder

EVIL = (
    "x\x1b[2J\x1b[31mFINE\x1b]0;title\x07\x1b]52;c;cm0=\x07"
    "\n\r\t\0\x08\x7f\x85\x9b\u202e\u2066\u200f\u2028 {}|'\""
)
# All but line ends, which end the lines of every command.
CONTROLS = re.compile(
    "[\0-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
COMMANDS = (
    "status ADDR",
    "status ADDR --extended",
    "status ADDR -o json",
    "check ADDR",
    "doctor ADDR",
    "doctor ADDR -o json",
    "explain ADDR",
    "explain ADDR -o json",
    "wait ADDR --healthy --replicas 3 --timeout 0s",
    "topic list -a --addr ADDR",
    "topic list -a --addr ADDR -o json",
    "topic describe T --addr ADDR",
    "group list --addr ADDR",
    "group describe g --addr ADDR",
    "group reset g T --to-beginning --dry-run --addr ADDR",
    "consume T -e --addr ADDR",
    "consume T -e -g g --addr ADDR",
    "get --offset 0 --addr ADDR",
    "get --key k -t T --addr ADDR",
    "produce T --addr ADDR",
)
ROW = {
    "status": EVIL, "count": 2, "first_ms": 1, "last_ms": 2**62, "topic": EVIL, "queue_id": 0,
    "first_offset": 7, "last_offset": 9, "reason": EVIL, "slave": EVIL, "waited_max_s": 1.0,
    "waited_min_s": 0.0,
}  # fmt: skip
EXPLANATION = {
    "name": EVIL, "role": EVIL, "address": EVIL, "ha_address": EVIL, "now_ms": 1,
    "slave_timeout_ms": 1, "put_counts": {EVIL: 3}, "slave_unavailable_because": EVIL,
    "weak": [ROW, ROW | {"status": "SLAVE_NOT_AVAILABLE", "slaves": [], "departed": {
        "address": EVIL, "reason": EVIL, "at_ms": 1}}],
    "acknowledged": [ROW],
}  # fmt: skip


def poisoned(value):
    """Return a JSON value with each of its texts followed by control characters."""
    match value:
        case str():
            return value + EVIL
        case dict():
            return {name: poisoned(one) for name, one in value.items()}
        case list() | tuple():
            return [poisoned(one) for one in value]
        case _:
            return value


TOPIC = {"topicName": EVIL, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
BODIES = {
    21: {"topicConfigTable": {"T": TOPIC | {"topicName": "T"}, f"T{EVIL}": TOPIC}},
    28: {"table": {EVIL: EVIL}},
    43: {"offsetTable": {"T@g": {"0": 1}, f"T{EVIL}@g": {"0": 1}, f"T@{EVIL}": {"0": 0}}},
    105: {
        "brokerDatas": [{"brokerName": EVIL, "cluster": EVIL, "brokerAddrs": {"0": EVIL}}],
        "queueDatas": [{"brokerName": EVIL, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}],
    },
    201: {"subscriptionGroupTable": {"g": {"groupName": "g"}, EVIL: {"groupName": EVIL}}},
    203: {"connectionSet": [{"clientId": EVIL, "clientAddr": EVIL, "language": EVIL}]},
    28101: EXPLANATION,
    28104: {"epochs": EVIL},
    28105: {"messages": {EVIL: 1}, "next": 9},
}
FIELDS = {"offset": "1", "timestamp": "1", "nextBeginOffset": "1", "minOffset": "0"}


def body_of(status):
    """Return the answer to 907 with a hastore node's status."""
    return {"hastore": status if isinstance(status, dict) else status.to_dict()}


class HostileNode:
    """A node that answers in a thread of its own, as ``answer(code)`` says."""

    def __init__(self):
        self.answer = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._converse, args=self._listener.accept()).start()

    def _converse(self, sock, _):
        with sock, contextlib.suppress(OSError, struct.error, ValueError):
            while True:
                size, word = struct.unpack("!II", sock.recv(8, socket.MSG_WAITALL))
                data = sock.recv(size - 4, socket.MSG_WAITALL) if size > 4 else b""
                request = json.loads(data[: word & 0xFFFFFF])
                code, remark, body = self.answer(request["code"])
                head = {
                    "code": code, "flag": 1, "opaque": request["opaque"], "remark": remark,
                    "language": "JAVA", "version": 1, "extFields": FIELDS,
                }  # fmt: skip
                head, body = json.dumps(head).encode(), json.dumps(body).encode()
                sock.sendall(struct.pack("!II", 4 + len(head) + len(body), len(head)) + head + body)

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def hostile(monkeypatch):
    """A hostile node; colours are on, so that none of its own passes for one of ours."""
    monkeypatch.setenv("COLUMNS", "200")
    node = HostileNode()
    thread = threading.Thread(target=node.serve)
    thread.start()
    yield node
    node.close()
    thread.join()


def run(command, address):
    """Run a command; it must end with an outcome of its own and print no control character."""
    words = [address if word == "ADDR" else word for word in command.split()]
    ended = hastore_here(*words, stdin=b"one\n")
    text = ended.stdout + ended.stderr
    found = CONTROLS.search(text)
    assert found is None, f"{command}: {text[max(found.start() - 60, 0) : found.end() + 20]!r}"
    assert "bug in hastore" not in text, f"{command}: {text}"
    assert "Traceback" not in text, f"{command}: {text}"
    return ended


@pytest.mark.parametrize("command", COMMANDS)
def test_texts_of_a_node_are_escaped(hostile, command):
    """A master, a slave and a member of a group whose texts all hold control characters."""
    for status in (MASTER, SLAVE, GROUP_MASTER):
        body = poisoned(body_of(status))
        hostile.answer = lambda code, body=body: (
            (0, None, body) if code == 907 else (0, EVIL, BODIES.get(code, {EVIL: EVIL}))
        )
        run(command, hostile.address)


@pytest.mark.parametrize("command", COMMANDS)
def test_refusals_of_a_node_are_escaped(hostile, command):
    """The remark of an error is the node's text, too."""
    hostile.answer = lambda _: (1, EVIL, {})
    assert run(command, hostile.address).returncode != 0


def wrong_values(status):
    """Yield a status with one value replaced by one of another kind, by far too much, or none."""
    whole = status.to_dict()
    for name, value in whole.items():
        for wrong in ([], {}, EVIL, -1, 2**62, 2**70, 1e300, float("nan"), None, True, [None]):
            if wrong != value:
                yield whole | {name: wrong}
        yield {key: one for key, one in whole.items() if key != name}


@pytest.mark.parametrize("status", [MASTER, SLAVE, GROUP_MASTER], ids=["master", "slave", "group"])
def test_malformed_status_is_one_clear_line(status):
    """Whatever a field holds: it is refused, or every command can show and judge it."""
    from hastore.broker.observe.findings import Limits
    from hastore.broker.observe.node_status import NodeStatus
    from hastore.errors import ProtocolError
    from hastore_cli.app.terminal import make_console
    from hastore_cli.status.check import check_status
    from hastore_cli.status.table import StatusTable
    from hastore_cli.status.wait import Wanted

    wanted = Wanted(role="master", lag_below=1, offset=1, replicas=1, healthy=True)
    console = make_console()
    refused = 0
    for data in wrong_values(status):
        try:
            found = NodeStatus.from_dict(data)
        except ProtocolError:
            refused += 1
            continue
        console.render_lines(StatusTable(grouped=True, width=80).render(found, extended=True))
        check_status(found, Limits.of(found))
        wanted.missing(found)
    assert refused > 500


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        ("status", 1),
        ("check", 3),
        ("explain", 1),
        ("doctor", 1),
        ("wait --healthy --timeout 0s", 1),
    ],
)
def test_malformed_answer_has_an_exit_code(hostile, command, exit_code):
    """It is named by the field that is wrong."""
    wrong = MASTER.to_dict() | {"max_offset": "many"}
    hostile.answer = lambda code: (0, None, body_of(wrong) if code == 907 else {"weak": 7})
    ended = run(f"{command} ADDR", hostile.address)
    assert ended.returncode == exit_code
    assert "max_offset" in ended.stdout + ended.stderr or command == "explain"


def test_status_of_another_version_is_read():
    """Fields that are not known are left out, and those that are missing have their defaults."""
    data = MASTER.to_dict()
    for field in attrs.fields(type(MASTER)):
        if field.default is not attrs.NOTHING:
            data.pop(field.name, None)
    assert type(MASTER).from_dict(data | {"new_field": [EVIL]}).max_offset == MASTER.max_offset


def test_texts_of_a_log_are_escaped(tmp_path):
    """Topics, keys and bodies of a log, in each command that reads one."""
    builder = LogBuilder()
    topic = EVIL.translate({0: None})
    for _ in range(2):
        builder.add(EVIL.encode(), topic=topic, key="k\x1b[2J")
    store = str(builder.write(tmp_path / "D1"))
    for command in (
        "log info ADDR --topics",
        "log cat ADDR",
        "log cat ADDR -o jsonl",
        "log find ADDR --topic x",
        "log verify ADDR",
        "log diff ADDR ADDR",
        "log epochs ADDR",
        "get --offset 0 --dir ADDR",
        "doctor ADDR",
        "log repair ADDR --dry-run",
    ):
        run(command, store)


def test_colours_are_those_of_this_program():
    """A text cannot bring its own, not even inside a coloured one."""
    text = style(f"bad {EVIL}", fg="red")
    assert rendered(text, colour=True) == f"\x1b[31m{escaped(f'bad {EVIL}')}\x1b[0m"
    assert rendered(text, colour=False) == escaped(f"bad {EVIL}")
    assert rendered("a\nb\tc", colour=False, keep="\n\t") == "a\nb\tc"
    guess = terminal._MARK.replace(terminal._MARK[1:], "0" * 16)
    assert "\x1b" not in rendered(f"{guess}31m", colour=True)
