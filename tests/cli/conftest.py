"""Fixtures: a function that runs a command in the test process, and an etcd for commands."""

import functools

import pytest

from hastore.config import CoordinatorConfig
from tests.support.commands.in_process import run_command
from tests.support.etcd import etcd_of_kind, preferred_kind


@pytest.fixture
def run(capsysbinary):
    """A function that runs a command and returns its exit code, stdout and stderr."""
    return functools.partial(run_command, capsysbinary)


@pytest.fixture
def etcd(tmp_path, monkeypatch):
    """An etcd that the commands find by the environment; no other configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    with etcd_of_kind(preferred_kind(), tmp_path / "etcd") as server:
        url = server.endpoint
        monkeypatch.setenv("HASTORE_CLUSTER_ETCD", url)
        yield CoordinatorConfig(endpoints=(url,), ttl_ms=3_000)
