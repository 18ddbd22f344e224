"""Secrets stay where they are: not in tracebacks, configurations, arguments, reprs or `ps`.

What the tests' processes and nodes print, log and write is watched by ``tests.secret_watch``.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
from pathlib import Path

import attrs
import click
import pytest

from hastore.access.secret_file import read_secret_file
from hastore.broker.access.access_guard import AccessGuard
from hastore.broker.access.node_access import open_access
from hastore.cluster.etcd_client import EtcdConfig
from hastore.config import AccessConfig, MasterConfig, StoreConfig
from hastore.env.real import real_env
from hastore.trace import logger
from hastore_cli.app.log_output import LogConfig, set_up_logging
from hastore_cli.main import main, root
from tests.support.commands.running import command, environment, node
from tests.support.nodes.access_keys import (
    ACCOUNTS,
    ADMIN_KEY,
    SECRET,
    USER_KEY,
    write_key,
    write_private,
)
from tests.support.nodes.in_memory_target import InMemoryTarget
from tests.support.planted_secrets import PLANTED
from tests.support.waiting import wait_until


class Screen(io.StringIO):
    """A stderr that is a terminal, or not."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("form", ["json", "console", "auto"])
def test_a_traceback_shows_no_variables(tmp_path, monkeypatch, form, is_terminal):
    """They may be the bytes of a file of secrets; rich would show them."""
    acl = write_private(tmp_path / "acl.yml", ACCOUNTS)
    screen = Screen(is_terminal=is_terminal)
    monkeypatch.setattr("sys.stderr", screen)
    set_up_logging(LogConfig(format=form), colour=False)

    def parse():
        data, _ = read_secret_file(real_env().disk, acl)
        raise ValueError(len(data))

    try:
        parse()
    except ValueError:
        logger("access").exception("metrics_failed", next="report it")
    shown = screen.getvalue()
    assert "ValueError" in shown
    assert "in parse" in shown
    assert PLANTED not in shown


@pytest.mark.parametrize("debug", ["", "1"])
def test_a_bug_in_a_command_shows_no_variables(tmp_path, monkeypatch, capsys, debug):
    """One line; with HASTORE_DEBUG a traceback of lines of the source."""
    acl = write_private(tmp_path / "acl.yml", ACCOUNTS)
    monkeypatch.setenv("HASTORE_DEBUG", debug)

    def broken(data: bytes, path: str) -> None:
        raise TypeError(f"{path} has {len(data)} bytes")

    monkeypatch.setattr("hastore.access.permissions_file.parse_permissions", broken)
    assert main(["acl", "check", acl]) == 1
    shown = "".join(capsys.readouterr())
    assert "unexpected TypeError" in shown
    assert ("Traceback" in shown) is bool(debug)
    assert PLANTED not in shown


def test_check_config_shows_the_paths_of_secrets_only(run, tmp_path, monkeypatch):
    """Whatever way each was named: flags, the environment, the file."""
    acl = write_private(tmp_path / "acl.yml", ACCOUNTS)
    key = write_key(tmp_path / "key.toml", ADMIN_KEY)
    password = write_private(tmp_path / "password", SECRET)
    config = tmp_path / "hastore.toml"
    config.write_text(
        f"[node]\nid = 1\ngroup = 'g'\n[access]\nfile = '{acl}'\n[cluster]\n"
        f"etcd = 'http://127.0.0.1:1'\nuser = 'n1'\npassword_file = '{password}'\n"
        f"[tls]\ncert = '{tmp_path}/c.pem'\nkey = '{tmp_path}/k.pem'\n"
        f"key_password_file = '{password}'\n"
    )
    monkeypatch.setenv("HASTORE_ACCESS_KEY_FILE", key)
    monkeypatch.setenv("HASTORE_ACCESS_KEY", "the-admin")
    monkeypatch.setenv("HASTORE_ACCESS_SECRET", ADMIN_KEY.secret.reveal())
    code, shown, told = run(
        "node", "-c", config, "--data", tmp_path / "d", "--access-key-file", key, "--check-config"
    )
    assert code == 0, told
    assert shown.count(password) == 2
    assert f'key_file = "{key}"' in shown
    assert PLANTED not in shown + told


def options(group, context):
    """All options of all commands."""
    yield from (each for each in group.params if isinstance(each, click.Option))
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            yield from options(group.get_command(context, name), context)


def test_no_option_takes_a_secret():
    """The process list and the shell's history show arguments; a file's name may be there."""
    words = ("secret", "password", "token", "credential", "access_key", "access-key")
    found = {
        flag
        for option in options(root, click.Context(root))
        for flag in option.opts
        if any(word in flag for word in words)
    }
    assert found, "the options that name files"
    assert all(flag.endswith("-file") for flag in found), found


def test_the_process_list_shows_no_secret(tmp_path):
    """Of a node, and of a command that has its key in its environment."""
    acl = write_private(tmp_path / "acl.yml", ACCOUNTS)
    key = write_key(tmp_path / "key.toml", ADMIN_KEY)
    with node("master", tmp_path / "D", "--access-file", acl, "--access-key-file", key) as master:
        pair = {"HASTORE_ACCESS_KEY": "the-user"}
        pair["HASTORE_ACCESS_SECRET"] = USER_KEY.secret.reveal()
        consumer = subprocess.Popen(
            command("consume", "orders", "-g", "billing", "-f", "--addr", master.address),
            env=environment(**pair),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            wait_until(lambda: b"consume" in cmdline(consumer.pid))
            for pid in (consumer.pid, master.process.pid):
                assert PLANTED.encode() not in cmdline(pid)
                assert (Path(f"/proc/{pid}/environ").stat().st_mode & 0o077) == 0
            assert PLANTED.encode() in Path(f"/proc/{consumer.pid}/environ").read_bytes()
        finally:
            consumer.kill()
            consumer.communicate()
        assert master.stop() == 0


def cmdline(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_no_repr_and_no_json_has_a_secret(tmp_path):
    """Of what holds keys, permissions and passwords."""
    acl = write_private(tmp_path / "acl.yml", ACCOUNTS)
    config = MasterConfig(
        store=StoreConfig(data_dir=str(tmp_path / "d")),
        access=AccessConfig(file=acl, key_file=write_key(tmp_path / "k.toml", ADMIN_KEY)),
    )
    access = await open_access(AccessConfig(file=acl), real_env())
    holders = [
        config,
        access,
        access.table,
        *access.table.accounts.values(),
        ADMIN_KEY,
        AccessGuard(access, InMemoryTarget()),
        EtcdConfig(endpoints=("http://a:1",), user="n1", password=SECRET),
    ]
    for holder in holders:
        for text in (repr(holder), str(holder), f"{holder}", json.dumps(holder, default=str)):
            assert PLANTED not in text
    assert PLANTED not in json.dumps(attrs.asdict(access.status()))
    assert os.stat(acl).st_mode & 0o077 == 0  # noqa: PTH116
