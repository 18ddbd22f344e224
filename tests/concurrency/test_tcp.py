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


class TwoAddresses:
    """A name with the addresses 127.0.0.2 and 127.0.0.1; a connection to the first waits."""

    def __init__(self, monkeypatch, port):
        self.port, self.opened = port, []
        make = trio.socket.socket

        def socket(*args):
            sock = make(*args)
            self.opened.append(sock)
            connect_really = sock.connect

            async def connect_to(resolved):
                if resolved[0] == "127.0.0.2":
                    await trio.sleep_forever()
                await connect_really(resolved)

            sock.connect = connect_to
            return sock

        monkeypatch.setattr(trio.socket, "getaddrinfo", self.find)
        monkeypatch.setattr(trio.socket, "socket", socket)

    async def find(self, *_args, **_kwargs):
        """Look the name up."""
        hosts = ("127.0.0.2", "127.0.0.1")
        return [(trio.socket.AF_INET, 0, 0, "", (host, self.port)) for host in hosts]


async def test_connect_does_not_wait_for_an_address_that_is_silent(monkeypatch):
    """A machine that is off, of a name with several, used up the whole time."""
    listener = await open_listener(("127.0.0.1", 0), "a test")
    port = bound_address(listener)[1]
    began = trio.current_time()
    with monkeypatch.context() as patch:
        name = TwoAddresses(patch, port)
        sock = await connect(("a-name", port), 5)
    assert trio.current_time() - began < 1
    assert sock.getpeername() == ("127.0.0.1", port)
    assert [each.fileno() == -1 for each in name.opened] == [True, False]
    sock.close()
    listener.close()


async def test_connect_to_several_addresses_leaves_nothing_open(monkeypatch):
    """One is silent and one refuses: the time is up, or the caller cancels."""
    listener = await open_listener(("127.0.0.1", 0), "a test")
    port = bound_address(listener)[1]
    listener.close()
    name = TwoAddresses(monkeypatch, port)
    with pytest.raises(UnreachableError, match="no answer"):
        await connect(("a-name", port), 0.5)
    with trio.move_on_after(0.1):
        await connect(("a-name", port), 5)
    assert len(name.opened) == 3
    assert all(each.fileno() == -1 for each in name.opened)


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
