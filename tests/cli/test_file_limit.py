"""A node warns at start if it may open too few files for all its connections."""

import resource

import pytest

from hastore.config import MasterConfig, SlaveConfig, StoreConfig
from hastore_cli.node import runner
from hastore_cli.node.runner import FILES_OF_A_STORE, raise_file_limit

STORE = StoreConfig(data_dir="d")
MASTER = MasterConfig(store=STORE)
SLAVE = SlaveConfig(store=STORE, master=("127.0.0.1", 1))
WANTED = {"master": 1_016 + 64 + FILES_OF_A_STORE, "slave": 1_016 + FILES_OF_A_STORE}


@pytest.mark.parametrize(("config", "node"), [(MASTER, "master"), (SLAVE, "slave")])
@pytest.mark.parametrize("spare", [-1, 0])
def test_low_limit_of_open_files_is_reported(config, node, spare, monkeypatch, caplog):
    """The event has the limit and the number wanted; a sufficient limit logs nothing."""
    limits = {resource.RLIMIT_NOFILE: (256, WANTED[node] + spare)}
    monkeypatch.setattr(runner.resource, "getrlimit", lambda what: limits[what])
    monkeypatch.setattr(runner.resource, "setrlimit", limits.__setitem__)
    raise_file_limit(config)
    assert limits[resource.RLIMIT_NOFILE][0] == WANTED[node] + spare
    events = [record.msg for record in caplog.records]
    if spare < 0:
        assert (events[0]["limit"], events[0]["wanted"]) == (WANTED[node] - 1, WANTED[node])
        assert "connections_max" in events[0]["next"]
    else:
        assert not events
