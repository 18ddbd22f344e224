"""Plain bytes instead of TLS: only to a port that has never completed a handshake."""

from __future__ import annotations

import contextlib
import json

import attrs
import pytest
import trio

import hastore
from hastore.concurrency.tcp import bound_address, describe, open_listener
from hastore.config import SlaveConfig, StoreConfig
from hastore.env.real import real_env
from hastore.errors import TlsError
from hastore.message import Message
from hastore.status import TlsMode
from hastore.store.log.store_directory import TLS_PEERS_FILE
from hastore.tls.connecting import connect_client_port
from hastore.tls.tls_contexts import open_tls
from hastore.tls.tls_peers import PEERS_MAX, TlsPeers
from hastore.tls.tls_socket import accept_tls
from tests.patience import WITHIN_S
from tests.support.nodes.configs import ANY_PORT, QUICK
from tests.support.nodes.tls_files import make_tls_files, master_with_tls
from tests.support.waiting import eventually

PERMISSIVE, ENFORCING, DISABLED = TlsMode.PERMISSIVE, TlsMode.ENFORCING, TlsMode.DISABLED
REFUSED = "has completed a TLS handshake before, and takes none now"
_CLIENT_HELLO = 0x16


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return make_tls_files(tmp_path_factory.mktemp("tls"))


@attrs.define(eq=False)
class Port:
    """A port whose next connections take TLS, or are ended in some way; it keeps what it reads."""

    address: tuple[str, int]
    tls: object
    takes: str = "tls"
    first_bytes: list[int] = attrs.field(factory=list)  # of each connection

    async def serve(self, sock):
        with sock, contextlib.suppress(OSError, TlsError):
            if self.takes == "tls":
                encrypted = await accept_tls(sock, self.tls.server, WITHIN_S)
                await encrypted.recv(1)
                return
            first = await sock.recv(1)
            self.first_bytes += first
            if first == bytes([_CLIENT_HELLO]):
                if self.takes == "text":
                    await sock.send(b"HTTP/1.1 400\r\n\r\n")
                elif self.takes == "reset":
                    zero = b"\x01\0\0\0\0\0\0\0"
                    sock.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, zero)


@contextlib.asynccontextmanager
async def port(files, **kind):
    """Listen on a free loopback port."""
    tls = await open_tls(files.config(), real_env())
    listener = await open_listener(ANY_PORT, "clients")
    made = Port(bound_address(listener), tls, **kind)

    async def accept_all(nursery):
        while True:
            sock, _ = await listener.accept()
            nursery.start_soon(made.serve, sock)

    with listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept_all, nursery)
            yield made
            nursery.cancel_scope.cancel()


async def contexts(files, mode=PERMISSIVE, data_dir=None):
    """A node's, which remembers in a directory or in memory."""
    return await open_tls(files.config(mode), real_env(), data_dir)


async def connect(made, tls, plain=b"\0"):
    with await connect_client_port(made.address, WITHIN_S, tls.client) as sock:
        await sock.send(plain)


def logged(caplog, event):
    return [each.msg for each in caplog.records if each.msg["event"] == event]


@pytest.mark.parametrize("kind", ["close", "reset", "text"])
async def test_a_port_that_never_had_tls_is_asked_in_plain_bytes_and_the_log_says_so(
    files, caplog, kind
):
    """Once for each address, with the reason and the next step."""
    own = await contexts(files)
    async with port(files, takes=kind) as made:
        for count in (1, 2):
            await connect(made, own)
            await eventually(lambda count=count: made.first_bytes == [_CLIENT_HELLO, 0] * count)
        (line,) = logged(caplog, "asked_in_plain_bytes")
        assert line["address"] == describe(made.address)
        assert line["reason"]
        assert line["next"]


@pytest.mark.parametrize("mode", [PERMISSIVE, ENFORCING])
@pytest.mark.parametrize("kind", ["close", "reset", "text"])
async def test_a_port_that_had_tls_is_never_asked_in_plain_bytes(files, tmp_path, kind, mode):
    """Whoever resets its handshakes, or answers them, gets no plain byte: not after a restart."""
    async with port(files) as made:
        await connect(made, await contexts(files, mode, str(tmp_path)))
        made.takes = kind
        for _ in range(2):  # each time another process, as it were
            own = await contexts(files, PERMISSIVE, str(tmp_path))
            with pytest.raises(TlsError, match=REFUSED) as caught:
                await connect(made, own)
            assert TLS_PEERS_FILE in caught.value.hint
            assert str(caught.value).startswith(describe(made.address))
        await eventually(lambda: made.first_bytes == [_CLIENT_HELLO] * 2)
        stored = json.loads((tmp_path / TLS_PEERS_FILE).read_text())
        assert stored == {"addresses": [describe(made.address)]}
        made.takes = "tls"
        await connect(made, own)


async def test_enforcing_never_falls_back(files):
    """Not to an address that is new, either."""
    async with port(files, takes="close") as made:
        with pytest.raises(TlsError, match="cut off"):
            await connect(made, await contexts(files, ENFORCING))
        assert made.first_bytes == [_CLIENT_HELLO]


async def test_without_a_directory_it_is_remembered_in_memory(files):
    """Over a change of the certificate, but not by another process."""
    own = await contexts(files)
    async with port(files) as made:
        await connect(made, own)
        made.takes = "close"
        assert await own.reload()
        with pytest.raises(TlsError, match=REFUSED) as caught:
            await connect(made, own)
        assert "take the address out of this process" not in caught.value.hint
        await connect(made, await contexts(files))


async def test_another_port_of_the_machine_is_another_address(files, tmp_path):
    """What one has shown says nothing of the other."""
    own = await contexts(files, data_dir=str(tmp_path))
    async with port(files) as made, port(files, takes="close") as other:
        await connect(made, own)
        await connect(other, own)
        await eventually(lambda: other.first_bytes == [_CLIENT_HELLO, 0])


async def test_a_damaged_file_is_replaced_and_a_failed_write_repeated(files, tmp_path, caplog):
    """Its backup counts; what is no address does not."""
    config = tmp_path / "config"
    config.mkdir()
    (config / "tlsPeers.json").write_bytes(b"\0\0")
    (config / "tlsPeers.json.bak").write_text('{"addresses": ["n2:1", 5, null, "n3:1"]}')
    peers = await TlsPeers.of_directory(str(tmp_path), real_env())
    assert [peers.knows((host, 1)) for host in ("n2", "n3", "n4")] == [True, True, False]
    config.rename(tmp_path / "away")
    config.write_text("a file where the folder was")
    await peers.completed(("n4", 1))
    assert peers.knows(("n4", 1))
    assert len(logged(caplog, "tls_peers_not_written")) == 1
    config.unlink()
    (tmp_path / "away").rename(config)
    await peers.completed(("n4", 1))
    stored = await TlsPeers.of_directory(str(tmp_path), real_env())
    assert stored.knows(("n4", 1))


@pytest.mark.parametrize("content", ["{}", '{"addresses": 5}', '{"addresses": null}', ""])
async def test_a_file_without_addresses_knows_none(tmp_path, content):
    """Whatever else it holds."""
    (tmp_path / "config").mkdir()
    (tmp_path / TLS_PEERS_FILE).write_text(content)
    assert not (await TlsPeers.of_directory(str(tmp_path), real_env())).knows(("n2", 1))


async def test_of_too_many_addresses_the_one_used_longest_ago_is_forgotten():
    """A group has a few; addresses that come and go, as pods have, displace none in use."""
    peers = TlsPeers()
    for number in range(PEERS_MAX):
        await peers.completed(("n", number))
    await peers.completed(("n", 0))
    await peers.completed(("n", PEERS_MAX))
    assert peers.knows(("n", 0))
    assert not peers.knows(("n", 1))
    assert peers.knows(("n", 2))
    assert peers.knows(("n", PEERS_MAX))


async def test_a_known_address_is_not_written_again(tmp_path):
    """Every handshake would write the file."""
    peers = await TlsPeers.of_directory(str(tmp_path), real_env())
    (tmp_path / "config").mkdir()
    for number in (1, 2):
        await peers.completed(("n", number))
    (file,) = (tmp_path / "config").glob("tlsPeers.json")
    before = file.stat()
    await peers.completed(("n", 1))
    after = file.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


async def test_a_slave_whose_masters_tls_goes_away_copies_nothing_in_plain_bytes(files, tmp_path):
    """Also after its restart; its status names the address and the file."""
    config = SlaveConfig(
        store=StoreConfig(data_dir=str(tmp_path / "slave"), mapped_file_size=1 << 24),
        master=("127.0.0.1", 1),
        listen=ANY_PORT,
        ha=QUICK,
        tls=files.config(PERMISSIVE),
    )
    made = master_with_tls(tmp_path / "master", files.config(PERMISSIVE))
    async with hastore.open_master(made) as master:
        await master.put(Message("orders", b"x"))
        address, ha_address = master.address, master.ha_address
        config = attrs.evolve(config, master=ha_address, master_client=address)
        async with hastore.open_slave(config) as slave:
            await eventually(lambda: slave.status().table_copies.age_s is not None)
    made = attrs.evolve(made, listen=address, ha_listen=ha_address, tls=files.config(DISABLED))
    async with hastore.open_master(made), hastore.open_slave(config) as slave:
        await eventually(lambda: REFUSED in (slave.status().table_copies.reason or ""))
        assert TLS_PEERS_FILE in slave.status().table_copies.hint
        assert slave.status().table_copies.age_s is None
