"""Listening, connecting and accepting through trio's sockets."""

import errno

import pytest
import trio

from hastore.concurrency.tcp import accept, bound_address, connect, describe, open_listener
from hastore.errors import ListenError, UnreachableError


@pytest.mark.parametrize(
    ("address", "text"),
    [(("127.0.0.1", 1), "127.0.0.1:1"), (("::1", 2), "[::1]:2"), (None, "-")],
)
def test_describes_addresses_as_people_type_them(address, text):
    """IPv6 addresses are in brackets."""
    assert describe(address) == text


async def test_connect_tries_every_address_of_a_name(monkeypatch):
    """Nothing listens at the first address, so it connects to the second."""
    listener = await open_listener(("127.0.0.1", 0), "a test")
    address = bound_address(listener)
    elsewhere = ("127.0.0.2", address[1])

    async def both(*_args, **_kwargs):
        return [(trio.socket.AF_INET, 0, 0, "", each) for each in (elsewhere, address)]

    with monkeypatch.context() as patch:
        patch.setattr(trio.socket, "getaddrinfo", both)
        sock = await connect(("a-name", address[1]), 5)
    assert sock.getpeername() == address
    sock.close()
    listener.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid", "a..b", "x" * 64 + ".b"])
async def test_unreachable_host_is_named(host):
    """A refused connection, an unknown name and an invalid one are one line each."""
    listener = await open_listener(("127.0.0.1", 0), "a test")
    port = bound_address(listener)[1]
    listener.close()
    with pytest.raises(UnreachableError, match=f"cannot connect to {host}:{port}: ") as caught:
        await connect((host, port), 5)
    assert "Errno" not in str(caught.value)


async def test_connect_times_out_without_an_answer(autojump_clock, monkeypatch):
    """The deadline covers the name look-up, too."""

    async def never(*_args, **_kwargs):
        await trio.sleep_forever()

    monkeypatch.setattr(trio.socket, "getaddrinfo", never)
    with pytest.raises(UnreachableError, match="no answer"):
        await connect(("somewhere", 1), 5)
    assert trio.current_time() == pytest.approx(5)


async def test_port_in_use_and_foreign_address_raise_listen_error():
    """Both errors name the address; the first has a hint."""
    listener = await open_listener(("127.0.0.1", 0), "slaves")
    with pytest.raises(ListenError, match="for slaves") as caught:
        await open_listener(bound_address(listener), "slaves")
    assert caught.value.hint
    with pytest.raises(ListenError):
        await open_listener(("192.0.2.1", 0), "slaves")
    listener.close()


class FailingListener:
    """A listener that raises the given errors, one each accept, then returns a peer."""

    def __init__(self, errors):
        self.errors = list(errors)

    async def accept(self):
        await trio.lowlevel.checkpoint()
        if self.errors:
            raise OSError(self.errors.pop(0), "on purpose")
        return "a socket", ("10.0.0.1", 5)


@pytest.mark.parametrize(
    "number",
    [errno.ECONNABORTED, errno.ENETDOWN, errno.EHOSTUNREACH, errno.ETIMEDOUT, errno.EMFILE],
)
async def test_accept_retries_after_transient_errors(autojump_clock, number):
    """They are errors of one peer's network, or a full descriptor table."""
    assert await accept(FailingListener([number] * 3)) == ("a socket", ("10.0.0.1", 5))


async def test_accept_raises_a_permanent_error():
    """EBADF will not go away, so there is no further attempt."""
    with pytest.raises(OSError, match="on purpose"):
        await accept(FailingListener([errno.EBADF]))


async def test_a_cancelled_listener_leaves_no_socket_open(monkeypatch):
    """One that is left open fails this test with a ResourceWarning."""
    with trio.CancelScope() as scope:

        async def cancel_and_resolve(*_args, **_kwargs):
            scope.cancel()
            return [(trio.socket.AF_INET, 0, 0, "", ("127.0.0.1", 0))]

        monkeypatch.setattr(trio.socket, "getaddrinfo", cancel_and_resolve)
        await open_listener(("127.0.0.1", 0), "a test")
    assert scope.cancelled_caught
