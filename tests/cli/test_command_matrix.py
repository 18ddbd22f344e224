"""Every command that asks a node × plain, TLS, mutual TLS × every kind of access key."""

import re
from pathlib import Path

import attrs
import pytest
import rich_click as click
import trio

import hastore
from hastore.broker.access.node_access import NodeAccess
from hastore.config import AccessConfig
from hastore.message import Message
from hastore.testing.loop_thread import LoopThread
from hastore_cli.acl.asking_command import AskingCommand
from hastore_cli.main import root
from tests.support.commands.in_process import at, run_command
from tests.support.nodes.access_keys import (
    ACCOUNTS,
    ADMIN_KEY,
    POOR_KEY,
    SECRET,
    UNKNOWN_KEY,
    USER_KEY,
    WRONG_KEY,
    write_key,
    write_private,
)
from tests.support.nodes.group_nodes import node_config, promote
from tests.support.nodes.tls_files import TRANSPORTS, make_tls_files
from tests.support.repository import REPO_ROOT
from tests.support.waiting import eventually

ANY, USER, ADMIN = "any key", "SUB or PUB", "admin"


@attrs.frozen(kw_only=True)
class Row:
    """A command: its arguments (A is the node), what it needs, how it ends if it has that."""

    arguments: str
    needs: str = ADMIN
    code: int = 0
    denied: int = 7


ROWS = {
    "cluster status": Row(arguments="--node A", needs=ANY),
    "cluster history": Row(arguments="--node A"),
    # The master lives: refused for safety.
    "cluster failover": Row(arguments="--node A --to 1 --dry-run", code=6),
    "produce": Row(arguments="orders -n 1 --size 8 --addr A", needs=USER),
    "consume": Row(arguments="orders -g billing --from beginning -e --addr A", needs=USER),
    "get": Row(arguments="-k k -t orders --addr A", needs=USER),
    "topic create": Row(arguments="orders --queues 8 --addr A"),
    "topic describe": Row(arguments="orders --addr A"),
    "topic list": Row(arguments="--addr A"),
    "topic delete": Row(arguments="orders --dry-run --addr A", code=10),
    # The group has no offsets yet.
    "group describe": Row(arguments="other --addr A", code=1),
    "group list": Row(arguments="--addr A"),
    "group delete": Row(arguments="other --dry-run --addr A", code=1),
    "group reset": Row(arguments="other --to beginning --dry-run --addr A", code=1),
    "status": Row(arguments="A", needs=ANY),
    "explain": Row(arguments="A"),
    "doctor": Row(arguments="A", needs=ANY, denied=3),
    "check": Row(arguments="A", needs=ANY, denied=3),  # UNKNOWN
    "wait": Row(arguments="A --role master --timeout 0s", needs=ANY),
    "pipeline run import": Row(arguments="ROWS --to A"),
}
OF_THE_HA_PORT = {"log repair"}  # which has no access keys: test_tls
KEYS = {
    "no key": None,
    "unknown key": UNKNOWN_KEY,
    "wrong signature": WRONG_KEY,
    "no permission": POOR_KEY,
    "right key": USER_KEY,
    "admin": ADMIN_KEY,
}
HAS = {"no permission": {ANY}, "right key": {ANY, USER}, "admin": {ANY, USER, ADMIN}}


def asking_commands(command, context, path=()):
    """Yield the names of all commands that ask a node."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            yield from asking_commands(command.get_command(context, name), context, (*path, name))
    elif isinstance(command, AskingCommand):
        yield " ".join(path)


def test_every_command_that_asks_a_node_has_a_row():
    """Here, and in the docs."""
    asking = set(asking_commands(root, click.Context(root))) - OF_THE_HA_PORT
    assert asking == set(ROWS)
    page = (REPO_ROOT / "docs/security.md").read_text()
    table = page.split("| command | needs | refused |\n|---|---|---|\n")[1].split("\n\n")[0]
    rows = dict(line.strip("| ").split(" | ", 1) for line in table.splitlines())
    assert {name.strip("`") for name in rows} == set(ROWS)
    for name, row in ROWS.items():
        needs, _, code = rows[f"`{name}`"].rpartition(" | ")
        assert int(code.split(",")[0]) == row.denied
        assert {ANY: needs == ANY, ADMIN: needs == ADMIN, USER: "on the topic" in needs}[row.needs]


@pytest.fixture(scope="module", params=TRANSPORTS)
def there(request, tmp_path_factory):
    """A master of a replica group with access keys, which is reached in one way only."""
    directory = tmp_path_factory.mktemp("matrix")
    files = make_tls_files(directory / "tls")
    rows = directory / "rows.jsonl"
    rows.write_text('{"topic": "orders", "queue_id": 0, "body": "aGVsbG8="}\n')
    (directory / "empty.toml").touch()
    config = node_config(
        directory / "data",
        1,
        (1,),
        access=AccessConfig(file=write_private(directory / "acl.yml", ACCOUNTS)),
        tls=files.of_transport(request.param),
    )
    loop = LoopThread()

    async def serve(*, task_status):
        async with hastore.open_node(config) as node:
            master = await promote(node)
            await master.put(Message("orders", b"x", properties={"KEYS": "k"}))
            queues = master.message_store.consume_queues
            await eventually(lambda: queues.max_physic_offset == master.max_offset)
            task_status.started((node.access, at(master)))
            await trio.sleep_forever()

    access, address = loop.call(lambda: loop.nursery.start(serve))
    ca, flags = ("--tls-ca", files.authority.ca), ()
    if request.param != "plain":
        flags = ca
    if request.param == "mutual TLS":
        own = files.authority.issue("client")
        flags = (*ca, "--tls-cert", own.cert, "--tls-key", own.key)
    yield There(directory, request.param, address, access, ca, flags)
    loop.close()


@attrs.frozen
class There:
    """A node, and how a command reaches it."""

    directory: Path
    transport: str
    address: str
    access: NodeAccess
    ca: tuple
    flags: tuple

    def arguments(self, row):
        """Return the words of a command line."""
        places = {"A": self.address, "ROWS": self.directory / "rows.jsonl"}
        return [places.get(word, word) for word in row.arguments.split()]


@pytest.fixture
def run(there, monkeypatch, capsysbinary):
    """Run a command with a key and flags; return its exit code and what it says."""
    monkeypatch.setenv("HASTORE_CONFIG", str(there.directory / "empty.toml"))

    def run(name, arguments, key, flags):
        there.access.attempts._recent.clear()
        monkeypatch.delenv("HASTORE_ACCESS_KEY_FILE", raising=False)
        if key is not None:
            path = write_key(there.directory / "key.yml", key)
            monkeypatch.setenv("HASTORE_ACCESS_KEY_FILE", path)
        code, shown, told = run_command(capsysbinary, *name.split(), *arguments, *flags)
        assert SECRET not in shown + told
        return code, " ".join((shown + told).split())

    return run


@pytest.mark.parametrize("name", ROWS)
def test_each_command_ends_as_its_key_says(there, run, name):
    """However the node is reached; a refusal names the reason."""
    row = ROWS[name]
    for kind, key in KEYS.items():
        may = row.needs in HAS.get(kind, set())
        code, said = run(name, there.arguments(row), key, there.flags)
        denied = 23 if (name, kind) == ("produce", "no permission") else row.denied
        assert code == (row.code if may else denied), (kind, said)
        assert ("access denied: " in said) is not may, (kind, said)


@pytest.mark.parametrize("name", ROWS)
def test_each_command_says_what_tls_lacks(there, run, name):
    """The node has not read the key then; one without TLS is as far away as one that is stopped."""
    row = ROWS[name]
    wrong = {
        "plain": [(there.ca, "TLS")],
        "TLS": [((), "did not answer|not answer|no answer")],
        "mutual TLS": [(there.ca, "wants a certificate"), ((), "did not answer|not answer")],
    }
    for flags, match in wrong[there.transport]:
        code, said = run(name, there.arguments(row), ADMIN_KEY, flags)
        is_cut = name == "wait" and there.transport == "plain"  # as by a node that stops
        assert code == (3 if row.denied == 3 or not flags or is_cut else 7), said
        assert re.search(match, said), said
