"""Apache's C++ client with an access key: permitted, refused, and what it is told."""

import json

import attrs
import pytest
import trio

import hastore
from hastore.config import AccessConfig
from tests.integration.stock_client import CONSUMER, PRODUCER, find_stock_python, run
from tests.patience import PROCESS_WITHIN_S
from tests.support.nodes.access_keys import (
    ACCOUNTS,
    POOR_KEY,
    SECRET,
    USER_KEY,
    WRONG_KEY,
    write_private,
)
from tests.support.nodes.reading import master_config


@pytest.fixture(scope="module")
def stock_python():
    return find_stock_python()


def with_key(script, client, key):
    """A script of the stock client whose client signs."""
    name, secret = key.name, key.secret.reveal()
    start = f"{client}.start()"
    credentials = f"{client}.set_session_credentials({name!r}, {secret!r}, 'ALIYUN')"
    assert start in script
    return script.replace(start, f"{credentials}\n{start}")


@pytest.fixture
async def master(tmp_path):
    access = AccessConfig(file=write_private(tmp_path / "acl.yml", ACCOUNTS))
    config = attrs.evolve(master_config(tmp_path / "m"), access=access)
    async with hastore.open_master(config) as running:
        yield running


async def test_stock_clients_send_and_consume_with_a_key(stock_python, master, tmp_path):
    """Routes, messages, heartbeats, pulls and offsets are signed as hastore checks them."""
    producer = with_key(PRODUCER, "producer", USER_KEY)
    await run(stock_python, producer, master.address, tmp_path, "orders", 0, 20, 10)
    consumer = with_key(CONSUMER, "consumer", USER_KEY)
    lines = await run(
        stock_python, consumer, master.address, tmp_path,
        "orders", "billing", "*", "no", 20, PROCESS_WITHIN_S,
    )  # fmt: skip
    rows = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    assert sorted(row["number"] for row in rows) == list(range(20))
    assert master.status().access.failed_attempts == 0


READ_ONLY = ACCOUNTS.replace("orders=PUB|SUB", "orders=SUB")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (WRONG_KEY, "access denied: unknown access key, or wrong signature"),
        (POOR_KEY, "access denied: access key the-poor needs PUB or SUB on topic orders"),
        (USER_KEY, "access denied: access key the-user needs PUB on topic orders"),
    ],
)
async def test_a_stock_producer_is_refused(stock_python, master, tmp_path, key, said):
    """Nothing is stored.  Its exception never says why; its log has hastore's words."""
    write_private(tmp_path / "acl.yml", READ_ONLY)
    for _ in range(2):
        await master.access.look()
    done = await trio.run_process(
        [
            stock_python,
            "-c",
            with_key(PRODUCER, "producer", key),
            f"127.0.0.1:{master.address[1]}",
            *("orders", "0", "1", "0"),
        ],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env={"HOME": str(tmp_path)},
    )
    assert done.returncode != 0
    assert b"ProducerSendSyncFailed" in done.stderr
    assert master.max_offset == 0
    logs = [each.read_text() for each in (tmp_path / "logs").rglob("*") if each.is_file()]
    assert said in "".join(logs)
    assert SECRET not in "".join(logs)
