"""Metrics and health checks over HTTP: the pages, the answers, and limits against bad peers."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

import hastore
from hastore.broker.node.master import run_master
from hastore.broker.observe import metrics_server
from hastore.broker.observe.coordinator_status import NO_SPACE, CoordinatorStatus
from hastore.broker.observe.health import health
from hastore.broker.observe.metrics_server import LIMITS, open_metrics
from hastore.broker.observe.metrics_text import metrics_text
from hastore.broker.observe.node_status import AccessStatus
from hastore.broker.observe.sync_state_status import ProposalRow
from hastore.concurrency.tcp import connect
from hastore.config import MasterConfig, SlaveConfig
from hastore.env.real import real_env
from hastore.errors import ConfigError, ListenError, StoreLockedError
from hastore.message import Message
from hastore.status import ClientCertificates
from hastore.tls.tls_socket import connect_tls
from tests.patience import WITHIN_S
from tests.support.commands.in_process import master_on, put, store
from tests.support.nodes.configs import ANY_PORT, IMPATIENT
from tests.support.nodes.statuses import GROUP_MASTER, MASTER, MEMBER, SLAVE
from tests.support.tls import TIMEOUT_S, OwnCa
from tests.support.waiting import eventually

MIB = 1 << 20
STREAMING = attrs.evolve(
    SLAVE,
    state="streaming",
    master_link=attrs.evolve(
        SLAVE.master_link, state="streaming", reason=None, last_read_age_s=0.1, lag_bytes=MIB
    ),
)
LATE = attrs.evolve(MASTER.slaves[0], lag_bytes=1, lag_s=4.0, last_report_age_s=4.0)


# -- the page ------------------------------------------------------------------------------------


def samples(status):
    """All samples of a page by name and labels, read with Prometheus' own parser."""
    found = {}
    for family in text_string_to_metric_families(metrics_text(status).decode()):
        assert family.documentation
        assert family.type != "unknown"
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            assert key not in found, f"duplicate sample: {key}"
            found[key] = sample.value
    return found


STAGE = {"count": 7, "sum_s": 0.5, "max_s": 0.4, "buckets": [0, 0, 3, 0, 0, 4]}


@pytest.mark.parametrize(
    ("page", "status"),
    [("master.txt", attrs.evolve(MASTER, stages={"flush": STAGE})), ("slave.txt", STREAMING)],
)
def test_a_page_has_the_samples_of_the_first_version(page, status):
    """Dashboards and alerts rely on its names, types, labels and values."""

    def read(text):
        return {
            (family.name, family.type, family.documentation): {
                (sample.name, *sorted(sample.labels.items())): sample.value
                for sample in family.samples
            }
            for family in text_string_to_metric_families(text)
            if family.samples
        }

    written = (Path(__file__).parent / "metrics_pages" / page).read_text()
    assert read(metrics_text(status).decode()) == read(written)


def test_a_node_with_a_coordinator_has_its_lease_and_its_contact():
    """No other node has those samples; a slave has no lease."""
    coordinator = CoordinatorStatus(
        is_reachable=False,
        doing="it is master",
        lease_left_s=2.5,
        is_failsafe=True,
        epoch=7,
        last_contact_age_s=4.0,
    )
    names = ("reachable", "last_contact_age_seconds", "epoch", "lease_left_seconds", "failsafe")
    names = (*names, "alarm", "paused", "full")
    found = samples(attrs.evolve(GROUP_MASTER, coordinator=coordinator))
    values = [found[f"hastore_coordinator_{name}",] for name in names]
    assert values == [0, 4.0, 7, 2.5, 1, 0, 0, 0]
    slave = CoordinatorStatus(
        is_reachable=True, doing="x", alarm="restored", is_paused=True, etcd_alarms=(NO_SPACE,)
    )
    found = samples(attrs.evolve(MEMBER, coordinator=slave))
    known = {name for (name, *_) in found if name.startswith("hastore_coordinator_")}
    assert known == {
        f"hastore_coordinator_{name}"
        for name in ("reachable", "failsafe", "alarm", "paused", "full")
    }
    assert found["hastore_coordinator_full",] == 1
    assert (found["hastore_coordinator_alarm",], found["hastore_coordinator_paused",]) == (1, 1)
    assert not [name for (name, *_) in samples(MEMBER) if "coordinator" in name]


def test_a_node_with_access_keys_counts_failed_attempts():
    """And says whether its file is in force; no other node has those samples."""
    access = AccessStatus(file="f", accounts=3, failed_attempts=7, fault="bad", hint=None)
    found = samples(attrs.evolve(MASTER, access=access))
    assert found["hastore_access_failed_attempts_total",] == 7
    assert found["hastore_access_file_refused",] == 1
    found = samples(attrs.evolve(SLAVE, access=attrs.evolve(access, fault=None)))
    assert found["hastore_access_file_refused",] == 0
    assert not [name for (name, *_) in samples(MASTER) if "access" in name]


def test_a_slave_of_a_replica_group_has_its_epochs_and_cuts():
    """No other node has those samples."""
    link = attrs.evolve(MEMBER.master_link, masters_epoch=6)
    found = samples(attrs.evolve(MEMBER, cuts=2, cut_bytes=300, seen_epoch=7, master_link=link))
    assert found["hastore_epoch",] == 5
    assert found["hastore_seen_epoch",] == 7
    assert found["hastore_ha_link_masters_epoch",] == 6
    assert (found["hastore_cuts_total",], found["hastore_cut_bytes_total",]) == (2, 300)
    for status in (MASTER, SLAVE):
        assert not [name for name, *_ in samples(status) if "epoch" in name or "cut" in name]


def test_the_master_of_a_replica_group_has_its_set_and_nodes():
    """Nodes by id; those of the set are in sync, and an observer is no node of the group."""
    nodes = GROUP_MASTER.sync_state.nodes
    observer = attrs.evolve(nodes[2], node_id=2, role="observer", ack_offset=7)
    group = attrs.evolve(
        GROUP_MASTER.sync_state, nodes=(*nodes, observer), confirm_lag_bytes=5, confirm_lag_s=0.5
    )
    found = samples(attrs.evolve(GROUP_MASTER, sync_state=group))
    two, three = ("node", "2"), ("node", "3")
    assert (found["hastore_epoch",], found["hastore_epoch_start_offset",]) == (7, 1_000_000)
    assert found["hastore_epoch_age_seconds",] == 720
    assert found["hastore_sync_state_set_members",] == 2
    assert found["hastore_sync_state_set_members_min",] == 2
    assert found["hastore_sync_state_set_proposal_age_seconds",] == 0
    assert found["hastore_confirm_lag_bytes",] == 5
    assert found["hastore_confirm_lag_seconds",] == 0.5
    assert [found["hastore_ha_node_in_sync", node] for node in (two, three)] == [1, 0]
    assert [found["hastore_ha_node_connected", node] for node in (two, three)] == [1, 0]
    assert found["hastore_ha_node_ack_offset", two] == 1_073_921
    assert found["hastore_ha_node_lag_bytes", two] == 0
    assert found["hastore_ha_node_lag_seconds", two] == 0
    assert ("hastore_ha_node_lag_bytes", three) not in found
    assert ("hastore_ha_node_in_sync", ("node", "1")) not in found
    proposal = ProposalRow(number=1, members=(1,), joined=(), left=(2,), why="", age_s=2.5)
    joins = attrs.evolve(nodes[2], role="pending")
    pending = attrs.evolve(group, proposal=proposal, nodes=(*nodes[:2], joins))
    found = samples(attrs.evolve(GROUP_MASTER, sync_state=pending))
    assert found["hastore_sync_state_set_proposal_age_seconds",] == 2.5
    assert found["hastore_ha_node_in_sync", three] == 0
    assert not [name for name, *_ in samples(MASTER) if "node" in name or "sync" in name]


def test_only_a_node_with_a_metrics_port_imports_prometheus_client():
    """The import is slow, and a start without a metrics port must not wait for it."""
    code = (
        "import sys, hastore.broker.node.master, hastore.broker.node.slave\n"
        "assert not {'h11', 'prometheus_client'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_masters_page_has_its_puts_slaves_and_offsets():
    """The names are those of the design page, and an unknown value has no sample."""
    found = samples(MASTER)
    assert found["hastore_put_total", ("status", "PUT_OK")] == 12_345
    assert found["hastore_commitlog_flushed_offset",] == 1_073_905
    assert found["hastore_role", ("role", "SYNC_MASTER")] == 1
    assert found["hastore_role", ("role", "SLAVE")] == 0
    near, new = ("slave", "127.0.0.1:50212"), ("slave", "127.0.0.1:50213")
    assert found["hastore_ha_slaves",] == 1  # the other one has never reported
    assert found["hastore_ha_slave_lag_seconds_is_least", near] == 0
    assert found["hastore_ha_slave_lag_bytes", near] == 0
    assert ("hastore_ha_slave_lag_bytes", new) not in found
    assert found["hastore_ha_slave_state", near, ("state", "streaming")] == 1
    assert found["hastore_ha_slave_state", new, ("state", "streaming")] == 0


def test_a_slaves_page_has_its_link_but_no_puts():
    """A slave takes no puts, and an unknown lag has no sample."""
    found = samples(SLAVE)
    assert found["hastore_ha_link_state", ("state", "diverged")] == 1
    assert ("hastore_ha_link_lag_bytes",) not in found
    assert not any(name.startswith("hastore_put") for name, *_ in found)


def test_a_nodes_name_is_escaped():
    """A quote, a backslash and a newline in it leave the page readable."""
    name = 'a"b\\c\nd'
    found = samples(attrs.evolve(MASTER, name=name))
    assert any(("name", name) in key for key in found)


def test_stages_are_histograms():
    """Each stage has cumulative buckets that end with its count."""
    found = samples(attrs.evolve(MASTER, stages={"flush": STAGE}))
    name, which = "hastore_ha_ack_seconds_bucket", ("stage", "flush")
    values = [
        found[key]
        for le in ("4e-06", "1.6e-05", "6.4e-05", "+Inf")
        for key in found
        if key == (name, ("le", le), which)
    ]
    assert values == [3, 3, 7, 7]
    assert found["hastore_ha_ack_seconds_count", which] == 7


# -- health checks -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status", "ok", "why"),
    [
        ("/live", MASTER, True, "up 750 s"),
        ("/live", attrs.evolve(MASTER, state="failed", puts_refused_because="EIO"), False, "EIO"),
        ("/live", SLAVE, True, "up"),
        ("/ready", MASTER, True, "takes puts"),
        ("/ready", attrs.evolve(MASTER, puts_refused_because="disk full"), False, "disk full"),
        ("/ready", attrs.evolve(MASTER, state="stopping"), False, "stopping"),
        ("/ready", SLAVE, False, "master at 7, slave at 9"),
        ("/ready", STREAMING, True, "follows"),
        ("/master", MASTER, True, "takes puts"),
        ("/master", STREAMING, False, "is a slave"),
        (
            "/master",
            attrs.evolve(MASTER, acks_needed=1, slave_unavailable_because="none"),
            True,
            "SLAVE_NOT_AVAILABLE: none",
        ),
        (
            "/master",
            attrs.evolve(MASTER, acks_needed=1, slave_timeout_s=3.0, slaves=(LATE,)),
            True,
            "it takes puts; puts are FLUSH_SLAVE_TIMEOUT",
        ),
        ("/slave", MASTER, False, "is a master"),
        ("/slave", STREAMING, True, "follows"),
        ("/slave?lag=1MiB", STREAMING, True, "follows"),
        ("/slave?lag=1_048_576", STREAMING, True, "follows"),
        ("/slave?lag=1000KiB", STREAMING, False, "1.0 MiB behind, as far as it knows; more than"),
    ],
)
def test_a_health_check_returns_a_result_and_a_reason(path, status, ok, why):
    """A load balancer reads the status code, a person the reason."""
    path, _, query = path.partition("?")
    found = health(path, dict([query.split("=")] if query else []), status)
    assert found.ok is ok
    assert why in found.why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"last_read_age_s": 21.0}, "silent for 21.0 s"),
        ({"last_read_age_s": 31.0, "silent_max_s": 30.0}, "silent for 31.0 s"),
        ({"lag_bytes": None}, "not known yet"),
        ({"lag_bytes": 40 * MIB, "lag_is_estimate": True}, "about 40.0 MiB behind"),
    ],
)
def test_a_slave_that_may_lag_too_much_fails_its_check(changes, why):
    """Neither silence nor an unknown lag proves that a slave is close to its master."""
    link = attrs.evolve(STREAMING.master_link, **changes)
    found = health("/slave", {"lag": "16MiB"}, attrs.evolve(STREAMING, master_link=link))
    assert not found.ok
    assert why in found.why


@pytest.mark.parametrize(
    "text",
    ["", "-1", "16 XB", "1e9", "16MI", "16\N{KELVIN SIGN}", "\N{ARABIC-INDIC DIGIT ONE}", "0.3KiB"],
)
def test_a_lag_that_is_not_a_size_is_refused(text):
    """The check guesses nothing."""
    with pytest.raises(ValueError, match=r"^lag=.* is not a size: write bytes, or 16MiB$"):
        health("/slave", {"lag": text}, STREAMING)


def test_a_refused_lag_is_shown_shortened():
    """A request may be long; its answer is not."""
    with pytest.raises(ValueError, match=r"lag='x{40}' is not a size") as caught:
        health("/slave", {"lag": "x" * 4_000}, STREAMING)
    assert len(str(caught.value)) < 100


# -- the listener --------------------------------------------------------------------------------


class FixedNode:
    """A node whose status never changes."""

    def status(self):
        """A master's status."""
        return MASTER


@contextlib.asynccontextmanager
async def serving(node=None):
    """Open a metrics server, for ``node`` if there is one."""
    async with open_metrics(ANY_PORT) as server:
        if node is not None:
            server.serve(node)
        yield server


async def talk(server, data, *, half_close=False):
    """Send bytes and return all that is received up to the end."""
    stream = await trio.open_tcp_stream(*server.address)
    async with stream:
        await stream.send_all(data)
        if half_close:
            await stream.send_eof()
        received = b""
        with trio.fail_after(WITHIN_S):
            while more := await stream.receive_some(65_536):
                received += more
        return received


def request(path, method="GET", more=""):
    """A request that asks the server to close the connection."""
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n".encode()


def split(reply):
    """Return the status code and the body of a reply."""
    head, _, body = reply.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def test_a_node_that_opens_its_store_is_live_but_not_ready():
    """A long check of the log's end is no reason to kill the node."""
    async with serving() as server:
        assert split(await talk(server, request("/live")))[0] == 200
        for path in ("/ready", "/master", "/metrics"):
            assert split(await talk(server, request(path)))[0] == 503


async def test_each_path_has_its_page():
    """Metrics are text, health is JSON, and any other path is 404 with a list of the pages."""
    async with serving(FixedNode()) as server:
        code, body = split(await talk(server, request("/metrics")))
        assert code == 200
        assert b"hastore_put_total" in body
        code, body = split(await talk(server, request("/slave?lag=16MiB")))
        assert (code, json.loads(body)["ok"]) == (503, False)
        code, body = split(await talk(server, request("/nothing")))
        assert (code, json.loads(body)["pages"][0]) == (404, "/metrics")


async def test_a_connection_is_kept_for_the_next_request():
    """Pipelined requests get one answer each."""
    async with serving(FixedNode()) as server:
        first = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"
        reply = await talk(server, first + first + request("/live"))
        assert reply.count(b"HTTP/1.1 200") == 3
        await eventually(lambda: server.connections == 0)


@pytest.mark.parametrize("fails", ["status", "send"])
async def test_a_page_that_fails_closes_only_its_connection(fails, monkeypatch):
    """The answer is 500 if none has begun; the next page is served."""

    class Broken(FixedNode):
        """A node whose status has a bug."""

        def status(self):
            """Raise an unexpected error."""
            raise KeyError("K")

    async with serving(FixedNode()) as server:
        if fails == "status":
            server.serve(Broken())
            assert split(await talk(server, request("/metrics")))[0] == 500
        else:
            with monkeypatch.context() as patch:
                patch.setattr(metrics_server, "_json", None)
                assert await talk(server, request("/live")) == b""
        server.serve(FixedNode())
        assert split(await talk(server, request("/live")))[0] == 200
        assert split(await talk(server, request("/slave?lag=16%E2%84%AA")))[0] == 400
        # A misspelt or empty limit is an error, not the absence of one.
        for target in ("/slave?lagg=3", "/slave?lag=", "/slave?lag=3&x", "/slave?lag=x&lag=3"):
            assert split(await talk(server, request(target)))[0] == 400, target
        for target in ("/slave?lag=3&lag=16MiB", "/slave?lag=3&lag=3"):
            code, reason = split(await talk(server, request(target)))
            assert (code, b"twice" in reason) == (400, True), target


async def test_head_returns_a_status_without_a_body():
    """The status is that of a GET."""
    async with serving(FixedNode()) as server:
        code, body = split(await talk(server, request("/metrics", "HEAD")))
        assert (code, body) == (200, b"")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (request("/metrics", "POST"), 405),
        (request("/metrics", "DELETE"), 405),
        (request("/live", more="Content-Length: 5\r\n"), 413),
        (request("/live", more="Transfer-Encoding: chunked\r\n"), 413),
        (request("/live", more="X: " + "x" * 50_000 + "\r\n"), 431),
        (b"GET /live HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"\0\0\0\5hello\r\n\r\n", 400),
        (b"GET /" + b"a" * 100_000, 431),
    ],
    ids=["post", "delete", "body", "chunks", "headers", "no-host", "no-http", "long-path"],
)
async def test_only_plain_get_requests_are_accepted(data, code):
    """Other requests get an error code, and their connection is closed."""
    async with serving(FixedNode()) as server:
        reply = await talk(server, data)
        assert split(reply)[0] == code
        await eventually(lambda: server.connections == 0)
        assert split(await talk(server, request("/live")))[0] == 200


async def test_a_request_that_comes_a_byte_at_a_time_is_cut_off(monkeypatch):
    """The whole request has one deadline, however often a byte arrives."""
    monkeypatch.setattr(metrics_server, "REQUEST_TIMEOUT_S", 0.3)
    async with serving(FixedNode()) as server:
        stream = await trio.open_tcp_stream(*server.address)
        sent = 0
        with contextlib.suppress(trio.BrokenResourceError):
            while sent < 1_000:
                await stream.send_all(b"G")
                await trio.sleep(0.02)
                sent += 1
        assert sent < 1_000
        await stream.aclose()


async def test_silent_connections_are_evicted_for_new_ones(monkeypatch):
    """Connections per address are limited; the first without a request is evicted."""
    monkeypatch.setattr(metrics_server, "REQUEST_TIMEOUT_S", 600.0)  # no connection times out
    async with serving(FixedNode()) as server, contextlib.AsyncExitStack() as stack:

        async def connected():
            return await stack.enter_async_context(await trio.open_tcp_stream(*server.address))

        scraper = await connected()
        await scraper.send_all(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " in await scraper.receive_some(4_096)
        silent = [await connected() for _ in range(LIMITS.per_address_max * 3)]
        assert split(await talk(server, request("/live")))[0] == 200
        assert server.connections <= LIMITS.per_address_max
        with trio.fail_after(WITHIN_S):
            assert await silent[0].receive_some(1) == b""
        await scraper.send_all(request("/live"))
        assert b" 200 " in await scraper.receive_some(4_096)  # kept, because it has sent a request


async def test_the_total_number_of_connections_is_limited(monkeypatch):
    """A silent peer is evicted for a new one, and there is room again when others leave."""
    monkeypatch.setattr(metrics_server, "LIMITS", attrs.evolve(LIMITS, per_address_max=1_000))
    monkeypatch.setattr(metrics_server, "REQUEST_TIMEOUT_S", 600.0)  # no connection times out
    async with serving(FixedNode()) as server:
        async with trio.open_nursery() as nursery:
            count = LIMITS.connections_max + 1
            streams = [await trio.open_tcp_stream(*server.address) for _ in range(count)]
            with trio.fail_after(WITHIN_S):
                assert await streams[0].receive_some(1) == b""
            assert server.connections == LIMITS.connections_max
            assert split(await talk(server, request("/live")))[0] == 200
            for stream in streams:
                nursery.start_soon(stream.aclose)
        await eventually(lambda: server.connections == 0)
        assert split(await talk(server, request("/live")))[0] == 200


async def test_a_connection_without_a_request_is_closed_early(monkeypatch):
    """A first request has a deadline from the connection on; the next one may come later."""
    monkeypatch.setattr(metrics_server, "REQUEST_TIMEOUT_S", 0.2)
    async with serving(FixedNode()) as server:
        async with await trio.open_tcp_stream(*server.address) as stream:
            with trio.fail_after(WITHIN_S):
                assert await stream.receive_some(1) == b""


async def test_a_peer_that_does_not_read_is_cut_off(monkeypatch):
    """Its answers fill the socket, then it is closed: each connection's memory is bounded."""
    monkeypatch.setattr(metrics_server, "REQUEST_TIMEOUT_S", 0.2)
    async with serving(FixedNode()) as server:
        stream = await trio.open_tcp_stream(*server.address)
        ask = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
        with contextlib.suppress(trio.BrokenResourceError), trio.fail_after(WITHIN_S):
            while True:
                await stream.send_all(ask * 100)
        await eventually(lambda: server.connections == 0)
        await stream.aclose()


async def test_a_metrics_port_is_opened_only_if_configured():
    """A configured port that is in use raises ListenError."""
    async with open_metrics(None) as server:
        assert server.address is None
    async with serving() as server:
        with pytest.raises(ListenError, match="metrics"):
            async with open_metrics(server.address):
                pass


async def test_real_nodes_answer_by_their_role(tmp_path):
    """A master and its slave get a load balancer's requests."""
    slave_config = {"listen": ANY_PORT, "metrics_listen": ANY_PORT, "ha": IMPATIENT}
    async with master_on(tmp_path / "m", metrics_listen=ANY_PORT) as master:
        config = SlaveConfig(store=store(tmp_path / "s"), master=master.ha_address, **slave_config)
        async with hastore.open_slave(config) as slave:
            await eventually(lambda: master.status().slave_unavailable_because is None)
            await put(master, 3)
            ports = [
                attrs.make_class("At", ["address"])(n.metrics_address) for n in (master, slave)
            ]
            codes = [
                [split(await talk(at, request(path)))[0] for at in ports]
                for path in ("/live", "/ready", "/master", "/slave?lag=16MiB")
            ]
            assert codes == [[200, 200], [200, 200], [200, 503], [503, 200]]
            text = split(await talk(ports[0], request("/metrics")))[1].decode()
            families = {f.name: f for f in text_string_to_metric_families(text)}
            lag = [s.value for s in families["hastore_ha_slave_lag_seconds"].samples]
            assert lag == [0]
            stages = {s.labels["stage"] for s in families["hastore_ha_ack_seconds"].samples}
            assert stages == {"append", "flush", "sent", "acknowledged"}
            assert master.status().metrics_address is not None


async def test_a_failed_start_with_metrics_raises_the_error_itself(tmp_path):
    """It is not wrapped in an exception group, and the metrics port is free again."""
    async with master_on(tmp_path / "m", metrics_listen=ANY_PORT) as master:
        config = attrs.evolve(master.config, listen=ANY_PORT, ha_listen=ANY_PORT)
        with pytest.raises(StoreLockedError):
            await run_master(config, real_env())
        port = master.metrics_address
    async with open_metrics(port) as server:
        assert server.address == port


async def test_a_cancelled_node_with_metrics_stops_cleanly(tmp_path):
    """As without metrics, the log is flushed and the ``abort`` file is removed."""
    config = MasterConfig(
        store=store(tmp_path / "m"), listen=None, ha_listen=ANY_PORT, metrics_listen=ANY_PORT
    )
    async with trio.open_nursery() as nursery:
        master = await nursery.start(run_master, config, real_env())
        master.submit(Message("orders", b"x"))
        assert (tmp_path / "m" / "abort").exists()
        nursery.cancel_scope.cancel()
    assert not (tmp_path / "m" / "abort").exists()


# -- over HTTPS ----------------------------------------------------------------------------------


async def test_metrics_over_https_can_demand_a_certificate(tmp_path, caplog):
    """Plain HTTP, and a scraper without a certificate, get nothing."""
    ca = OwnCa()
    tls = attrs.evolve(ca.config(ca.cert()), client_certificates=ClientCertificates.REQUIRED)
    async with master_on(
        tmp_path / "m", metrics_listen=ANY_PORT, metrics_tls=True, tls=tls
    ) as master:
        address = master.metrics_address

        async def ask(context=None):
            sock = await connect(address, TIMEOUT_S)
            with sock, contextlib.suppress(OSError):
                if context is not None:
                    sock = await connect_tls(sock, context, "127.0.0.1", TIMEOUT_S)
                await sock.send(b"GET /live HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n")
                answer = b""
                while data := await sock.recv(4096):
                    answer += data
                sock.close()
                return answer
            return b""

        assert b"200 OK" in await ask(ca.client())
        assert await ask(ca.client(has_cert=False)) == b""
        assert b"200 OK" not in await ask()

        def is_logged(kind):
            return any(
                "metrics_refused" in line and kind in line for line in caplog.text.splitlines()
            )

        await eventually(lambda: is_logged("no-certificate") and is_logged("plain-text"))


def test_https_needs_a_certificate(tmp_path):
    """It is named."""
    config = MasterConfig(store=store(tmp_path / "m"))
    with pytest.raises(ConfigError, match="metrics over HTTPS need a certificate"):
        attrs.evolve(config, metrics_tls=True)
