"""The metrics port under hostile and mutated requests: an HTTP answer or a closed connection."""

import contextlib

import attrs
import trio
from hypothesis import given
from hypothesis import strategies as st

import hastore
from tests.hostile.corpus_files import mutations
from tests.hostile.handmade import NOT_OURS
from tests.hostile.hosted import hosted
from tests.patience import WITHIN_S
from tests.support.nodes.reading import master_config

MUTATIONS = 150
GET = b"GET /live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

REQUESTS = {
    "live": GET,
    "metrics": GET.replace(b"/live", b"/metrics"),
    "slave": GET.replace(b"/live", b"/slave?lag=16MiB"),
    "two in one": GET.replace(b"Connection: close\r\n", b"") + GET,
    "a wild lag": GET.replace(b"/live", b"/slave?lag=-9999999999999999999TiB&lag=&lag"),
    "a target of dots": GET.replace(b"/live", b"/../../etc/passwd"),
    "a target of percents": GET.replace(b"/live", b"/%00%ff%zz?%"),
    "a whole address": GET.replace(b"/live", b"http://[::1]:99999999/live"),
    "many fields": GET.replace(b"/live", b"/slave?" + b"a=b&" * 3_000),
    "POST": b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\nbody",
    "chunks": b"GET /live HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\nx",
    "both lengths": b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
    "a header without an end": b"GET /live HTTP/1.1\r\nX: " + b"x" * 100_000,
    "headers without an end": b"GET /live HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /live\r\n\r\n",
    "folded": b"GET /live HTTP/1.1\r\nHost: a\r\n  b\r\n\r\n",
}
STREAMS = NOT_OURS | REQUESTS


def opening(tmp_path):
    config = attrs.evolve(master_config(tmp_path), metrics_listen=("127.0.0.1", 0))
    return hastore.open_master(config)


async def answer_to(address, stream):
    """Send a stream and no more; return everything that comes back."""
    data = b""
    with trio.socket.socket() as sock, trio.fail_after(WITHIN_S):
        await sock.connect(address)
        with contextlib.suppress(OSError):
            left = memoryview(stream)
            while left:
                left = left[await sock.send(left) :]
            sock.shutdown(trio.socket.SHUT_WR)
            while more := await sock.recv(65_536):
                data += more
    return data


async def check(master, stream):
    """Check that only HTTP comes back, and that the next request is answered."""
    answer = await answer_to(master.metrics_address, stream)
    assert not answer or answer.startswith(b"HTTP/1.1 "), answer[:100]
    assert b"Traceback" not in answer
    live = await answer_to(master.metrics_address, GET)
    assert live.startswith(b"HTTP/1.1 200 "), live[:100]


async def test_hostile_and_mutated_requests_are_answered_or_closed(tmp_path):
    """After each stream a valid request is answered."""
    async with opening(tmp_path) as master:
        for name, stream in [*STREAMS.items(), *mutations(STREAMS, MUTATIONS, 4)]:
            try:
                await check(master, stream)
            except BaseException as error:
                error.add_note(f"stream: {name}: {stream[:200]!r}")
                raise


pieces = st.one_of(
    st.sampled_from(
        [b"GET ", b"HEAD ", b"/live", b"/metrics", b"/slave", b"?lag=", b"16MiB", b" "]
    ),
    st.sampled_from([b"HTTP/1.1", b"\r\n", b"\n", b"Host: a\r\n", b"\r\n\r\n", b"%", b"&"]),
    st.sampled_from([b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: "]),
    st.binary(max_size=20),
)


def test_random_requests_are_answered_or_closed(tmp_path):
    """The requests are assembled from pieces of requests."""
    with hosted(lambda: opening(tmp_path)) as run:

        @given(st.lists(pieces, max_size=12).map(b"".join))
        def run_example(stream):
            run.call(check, run.value, stream)

        run_example()
