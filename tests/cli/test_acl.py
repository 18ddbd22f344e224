"""`hastore acl`, and commands that sign with a key."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import trio

from hastore.access.key_file import read_key_file
from hastore.access.permissions_file import parse_permissions
from hastore.config import AccessConfig
from hastore.env.real import real_env
from hastore.errors import ConfigError
from hastore.status import BrokerRole
from hastore_cli.acl.access_key import access_key
from tests.support.commands.in_process import at, hastore_here, master_on
from tests.support.commands.running import hastore
from tests.support.nodes.access_keys import (
    ACCOUNTS,
    ADMIN_KEY,
    POOR_KEY,
    SECRET,
    USER_KEY,
    WRONG_KEY,
    write_key,
    write_private,
)


@pytest.fixture
def acl(tmp_path):
    return write_private(tmp_path / "acl.yml", ACCOUNTS)


def test_check_lists_accounts_without_secrets(run, acl):
    """What a node would take, line by line."""
    code, shown, told = run("acl", "check", acl)
    assert code == 0
    assert shown.splitlines() == [
        "the-admin  admin",
        "the-user  topics DENY  orders=PUB|SUB  groups DENY  billing=SUB",
        "the-poor  topics DENY  groups DENY",
    ]
    assert SECRET not in shown + told


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (ACCOUNTS + "- accessKey: short\n", 0o600, "line 11: secretKey is missing"),
        (ACCOUNTS, 0o644, "has mode 0644: others may read its secrets"),
        (None, None, "No such file"),
    ],
)
def test_check_names_what_a_node_would_refuse(run, tmp_path, text, mode, said):
    """With the next step, and exit code 2."""
    path = tmp_path / "bad.yml"
    if text is not None:
        write_private(path, text)
        path.chmod(mode)
    code, shown, told = run("acl", "check", path)
    assert (code, shown) == (2, "")
    assert said in " ".join(told.split())
    assert "next" in told
    assert SECRET not in told


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["the-user", "SEND_MESSAGE_V2", "orders"], 0, "yes  PUB on topic orders: topicPerms"),
        (["the-user", "310", "other"], 7, "no   PUB on topic other: defaultTopicPerm: DENY"),
        (["the-user", "11", "orders", "-g", "billing"], 0, "yes  SUB on group billing"),
        (["the-user", "11", "orders", "-g", "x"], 7, "no   SUB on group x: defaultGroupPerm: DENY"),
        (["the-user", "17", "orders"], 7, "no   admin: admin: false"),
        (["the-admin", "17"], 0, "yes  admin: admin: true"),
        (["the-poor", "907"], 0, "GET_BROKER_HA_STATUS (907) needs any key"),
        (["the-user", "33", "orders"], 0, "yes  SUB on topic orders"),
        (["the-user", "36", "other", "-g", "billing"], 7, "no   SUB on topic other"),
    ],
)
def test_explain_names_the_line_that_decides(run, acl, arguments, code, said):
    """Exit code 0 or 7."""
    found, shown, _ = run("acl", "explain", "--file", acl, *arguments)
    assert found == code
    assert said in shown
    assert shown.splitlines()[-1].endswith("allowed" if code == 0 else "denied")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody-key", "310", "orders"], "has no account of access key nobody-key"),
        (["the-user", "310"], "SEND_MESSAGE_V2 (310) is about a topic"),
        (["the-user", "33"], "VIEW_MESSAGE_BY_ID (33) is about a topic"),
        (["the-user", "38"], "is about a consumer group"),
        (["the-user", "999"], "no rule allows request 999"),
    ],
)
def test_explain_says_what_it_must_know(run, acl, arguments, said):
    """A question without an answer is a mistake."""
    code, _, told = run("acl", "explain", "--file", acl, *arguments)
    assert code == 2
    assert said in " ".join(told.split())


def test_explain_finds_the_file_of_the_configuration(run, acl, tmp_path, monkeypatch):
    """The one that the node reads."""
    config = tmp_path / "hastore.toml"
    config.write_text(f'[access]\nfile = "{acl}"\n')
    monkeypatch.setenv("HASTORE_CONFIG", str(config))
    assert run("acl", "explain", "the-admin", "17")[0] == 0
    monkeypatch.setenv("HASTORE_CONFIG", str(tmp_path / "none.toml"))
    code, _, told = run("acl", "explain", "the-admin", "17")
    assert (code, "none.toml: No such file" in told) == (2, True)
    monkeypatch.setenv("HASTORE_CONFIG", os.devnull)
    code, _, told = run("acl", "explain", "the-admin", "17")
    assert (code, "no permissions file is named" in told) == (2, True)


def test_keygen_writes_a_key_that_only_its_owner_reads(run, tmp_path, monkeypatch):
    """Its secret is printed nowhere; with its permissions it is an account."""
    monkeypatch.chdir(tmp_path)
    old = os.umask(0)
    try:
        code, shown, told = run("acl", "keygen", "reader-key")
    finally:
        os.umask(old)
    path = tmp_path / "reader-key.toml"
    assert (code, stat.S_IMODE(path.stat().st_mode)) == (0, 0o600)
    key = read_key_file(real_env().disk, str(path))
    assert key.name == "reader-key"
    assert len(key.secret.reveal()) >= 40
    assert key.secret.reveal() not in shown + told
    accounts = parse_permissions(b"[[accounts]]\n" + path.read_bytes(), "acl.toml").accounts
    assert accounts["reader-key"].key == key
    code, _, told = run("acl", "keygen", "reader-key")
    assert (code, "stays as it is" in told) == (6, True)
    assert read_key_file(real_env().disk, str(path)) == key
    for name in ("short", "with space", 'quo"te-key', "../outside"):
        assert run("acl", "keygen", name)[0] == 2
    assert [each.name for each in tmp_path.iterdir()] == ["reader-key.toml"]


def test_the_next_step_of_keygen_makes_a_file_that_check_accepts(run, tmp_path, monkeypatch):
    """Typed into a shell whose umask lets others read; then again, for a second account."""
    monkeypatch.chdir(tmp_path)
    for name in ("reader-key", "writer key's.toml"):
        key = "reader-key" if name == "reader-key" else "writer-key"
        out = () if name == key else ("--out", name)
        code, _, told = run("acl", "keygen", key, *out)
        assert code == 0
        step = told.partition("next  ")[2]
        subprocess.run(["sh", "-c", f"umask 022; {step}"], check=True)
        code, shown, told = run("acl", "check", "acl.toml")
        assert (code, f"{key}  topics DENY" in shown) == (0, True), told


# -- commands with a key ---------------------------------------------------------------------------


def test_a_key_comes_from_the_environment_or_the_configuration(tmp_path):
    """A file of its own first, then the two variables, then the file that the node uses."""
    own = write_key(tmp_path / "own.yml", USER_KEY)
    nodes = write_key(tmp_path / "nodes.yml", ADMIN_KEY)
    config = tmp_path / "hastore.toml"
    config.write_text(f'[access]\nkey_file = "{nodes}"\n')
    there = {"HASTORE_CONFIG": str(config)}
    pair = {"HASTORE_ACCESS_KEY": "the-poor", "HASTORE_ACCESS_SECRET": POOR_KEY.secret.reveal()}
    assert access_key({**there, **pair, "HASTORE_ACCESS_KEY_FILE": own}) == USER_KEY
    assert access_key({**there, **pair}) == POOR_KEY
    assert access_key(there) == ADMIN_KEY
    assert access_key({"HASTORE_CONFIG": os.devnull}) is None
    with pytest.raises(ConfigError, match="HASTORE_ACCESS_SECRET is not set"):
        access_key({"HASTORE_ACCESS_KEY": "the-poor"})
    Path(own).chmod(0o604)
    with pytest.raises(ConfigError, match="mode 0604"):
        access_key({"HASTORE_ACCESS_KEY_FILE": own})


async def test_commands_ask_a_node_with_their_key(tmp_path, acl):
    """produce, consume, status, topic and explain: allowed by the key, or exit code 7."""
    access = AccessConfig(file=acl)
    async with master_on(tmp_path / "d", role=BrokerRole.ASYNC_MASTER, access=access) as master:
        address = at(master)
        said = []

        async def ask(key, *arguments, stdin=b""):
            master.access.attempts._recent.clear()
            path = write_key(tmp_path / "key.toml", key) if key is not None else ""
            # The others take signals, which only a main thread can.
            is_here = arguments[0] in {"topic", "status", "explain"}
            done = await trio.to_thread.run_sync(
                partial(
                    hastore_here if is_here else hastore,
                    *arguments,
                    stdin=stdin,
                    HASTORE_ACCESS_KEY_FILE=path,
                )
            )
            said.append(done.stdout + done.stderr)
            return done.returncode, done.stdout, " ".join(done.stderr.split())

        where = ("--addr", address)
        for key in (None, WRONG_KEY):
            for command in (
                ("produce", "orders", *where),
                ("produce", "orders", "--addr", f"{address},localhost:{master.address[1]}"),
                ("consume", "orders", "-e", *where),
                ("consume", "orders", "-e", "--addr", f"{address},localhost:{master.address[1]}"),
                ("topic", "list", *where),
                ("status", address),
            ):
                code, _, told = await ask(key, *command, stdin=b"hello\n")
                assert code == 7, (command, told)
                assert "access denied: " in told
                assert " next " in told
        code, _, told = await ask(USER_KEY, "produce", "orders", *where, stdin=b"hello\n")
        assert code == 0, told
        code, shown, told = await ask(USER_KEY, "produce", "other", *where, stdin=b"hello\n")
        assert code == 23
        assert "needs PUB on topic other" in " ".join((shown + told).split())
        code, shown, told = await ask(
            USER_KEY, "consume", "orders", "-g", "billing", "--from", "beginning", "-e", *where
        )
        assert (code, "hello" in shown) == (0, True), told
        assert (await ask(USER_KEY, "topic", "list", *where))[0] == 7
        code, shown, _ = await ask(ADMIN_KEY, "topic", "list", *where)
        assert (code, "orders" in shown) == (0, True)
        code, shown, _ = await ask(POOR_KEY, "status", address)
        assert (code, "ASYNC_MASTER" in shown) == (0, True)
        assert (await ask(POOR_KEY, "explain", address))[0] == 7
        assert not any(SECRET in text for text in said)


def test_a_node_prints_no_secret_and_takes_none_as_an_argument(run, acl, tmp_path):
    """--check-config has the path of each file; no flag takes a secret."""
    key = write_key(tmp_path / "key.yml", ADMIN_KEY)
    code, shown, told = run(
        "master", "--data", tmp_path / "d", "--access-file", acl, "--access-key-file", key,
        "--check-config",
    )  # fmt: skip
    assert code == 0
    assert f'file = "{acl}"' in shown
    assert SECRET not in shown + told


def test_only_a_yaml_file_needs_pyyaml(tmp_path):
    """A node without keys, or with keys in TOML, runs where it is not installed."""
    script = "import sys, hastore_cli.node.runner; assert 'yaml' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
