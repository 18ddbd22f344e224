"""Signals in a block are held until its end."""

import os
import signal
import threading

import pytest

from hastore.pipeline.spark.held_signals import held_signals


class OwnHandlerError(Exception):
    """Raised by a program's own handler."""


@pytest.fixture
def handlers():
    """Yield a function that sets handlers; the original ones are restored after the test."""
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield signal.signal
    for number, handler in before.items():
        signal.signal(number, handler)


def test_ctrl_c_acts_at_once_and_raises_at_the_end(handlers):
    """The block continues, and its own error does not hide the interruption."""
    handlers(signal.SIGINT, signal.default_int_handler)
    events = []

    def block():
        with held_signals(lambda: events.append("acted")):
            os.kill(os.getpid(), signal.SIGINT)
            events.append("went on")
            raise ValueError

    with pytest.raises(KeyboardInterrupt):
        block()
    assert events == ["acted", "went on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_program_handler_runs_at_the_end_with_the_first_signal(handlers):
    """A second signal arrives while the first is handled."""

    def ask(number, frame):
        raise OwnHandlerError(number)

    handlers(signal.SIGTERM, ask)
    acted = []

    def act():
        if not acted:
            acted.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    handlers(signal.SIGINT, ask)
    with pytest.raises(OwnHandlerError) as asked, held_signals(act):
        os.kill(os.getpid(), signal.SIGTERM)
    assert asked.value.args == (signal.SIGTERM,)


def test_raises_keyboard_interrupt_if_the_handler_returns(handlers):
    """``act`` has ended the JVM, so the block's result must not be used."""
    received = []
    handlers(signal.SIGHUP, lambda number, _: received.append(number))
    with pytest.raises(KeyboardInterrupt), held_signals(lambda: None):
        os.kill(os.getpid(), signal.SIGHUP)
    assert received == [signal.SIGHUP]


def test_signals_without_a_python_handler_are_not_held(handlers):
    """An ignored signal stays ignored, even if the block sets a handler for it."""
    handlers(signal.SIGINT, signal.SIG_IGN)
    handlers(signal.SIGTERM, signal.SIG_DFL)
    with held_signals(lambda: pytest.fail("acted")) as held:
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as a SparkContext does
        held.hold()
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_handler_set_by_the_block_is_replaced_and_removed(handlers):
    """The signal is still held, and the handler is gone after the block."""
    handlers(signal.SIGINT, signal.default_int_handler)
    acted = []
    with held_signals(lambda: acted.append(True)) as held:
        signal.signal(signal.SIGINT, lambda *_: pytest.fail("called"))
        held.hold()
        assert signal.getsignal(signal.SIGINT) == held._record
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert acted == []


def test_other_threads_hold_no_signals():
    """Only the main thread may set handlers."""
    done = []

    def run():
        with held_signals(lambda: None):
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert done == [signal.getsignal(signal.SIGINT)]
