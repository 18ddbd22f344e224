"""Open files: a node that may have too few for all its connections says so when it starts."""

import resource

import pytest

from hastore.config import MasterConfig, SlaveConfig, StoreConfig
from hastore_cli.node import runner
from hastore_cli.node.runner import FILES_OF_A_STORE, raise_file_limit

STORE = StoreConfig(data_dir="d")
MASTER = MasterConfig(store=STORE)
SLAVE = SlaveConfig(store=STORE, master=("127.0.0.1", 1))
WANTED = {"master": 1_000 + 64 + FILES_OF_A_STORE, "slave": 1_000 + FILES_OF_A_STORE}


@pytest.mark.parametrize(("config", "node"), [(MASTER, "master"), (SLAVE, "slave")])
@pytest.mark.parametrize("spare", [-1, 0])
def test_too_few_open_files_are_told(config, node, spare, monkeypatch, caplog):
    """With the limit and with what would be enough; where there is enough nothing is said."""
    limits = {resource.RLIMIT_NOFILE: (256, WANTED[node] + spare)}
    monkeypatch.setattr(runner.resource, "getrlimit", lambda what: limits[what])
    monkeypatch.setattr(runner.resource, "setrlimit", limits.__setitem__)
    raise_file_limit(config)
    assert limits[resource.RLIMIT_NOFILE][0] == WANTED[node] + spare
    told = [record.msg for record in caplog.records]
    if spare < 0:
        assert (told[0]["limit"], told[0]["wanted"]) == (WANTED[node] - 1, WANTED[node])
        assert "connections_max" in told[0]["next"]
    else:
        assert not told
