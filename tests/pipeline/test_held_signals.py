"""Signals that wait for the end of a block."""

import os
import signal
import threading

import pytest

from hastore.pipeline.spark.held_signals import held_signals


class Asked(Exception):
    """By a program's own handler."""


@pytest.fixture
def handlers():
    """Sets handlers; those of before are back behind the test."""
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield signal.signal
    for number, handler in before.items():
        signal.signal(number, handler)


def test_ctrl_c_acts_at_once_and_raises_at_the_end(handlers):
    """The block runs on, and its own error does not hide that it was interrupted."""
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


def test_the_programs_own_handler_has_the_last_word(handlers):
    """It is called with the signal that came first."""

    def ask(number, frame):
        raise Asked(number)

    handlers(signal.SIGTERM, ask)
    acted = []

    def act():
        if not acted:
            acted.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    handlers(signal.SIGINT, ask)
    with pytest.raises(Asked) as asked, held_signals(act):
        os.kill(os.getpid(), signal.SIGTERM)
    assert asked.value.args == (signal.SIGTERM,)


def test_a_handler_that_raises_nothing_does_not_go_unnoticed(handlers):
    """What the block was to make has been ended: it must not be used."""
    told = []
    handlers(signal.SIGHUP, lambda number, _: told.append(number))
    with pytest.raises(KeyboardInterrupt), held_signals(lambda: None):
        os.kill(os.getpid(), signal.SIGHUP)
    assert told == [signal.SIGHUP]


def test_what_python_does_not_handle_is_left_alone(handlers):
    """A signal that is ignored stays so, also where the block's code has set a handler for it."""
    handlers(signal.SIGINT, signal.SIG_IGN)
    handlers(signal.SIGTERM, signal.SIG_DFL)
    with held_signals(lambda: pytest.fail("acted")) as held:
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as a SparkContext does
        held.hold()
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_a_handler_that_the_block_has_set_waits_too(handlers):
    """And is gone behind it."""
    handlers(signal.SIGINT, signal.default_int_handler)
    acted = []
    with held_signals(lambda: acted.append(True)) as held:
        signal.signal(signal.SIGINT, lambda *_: pytest.fail("called"))
        held.hold()
        assert signal.getsignal(signal.SIGINT) == held._record
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert acted == []


def test_other_threads_have_no_signals_to_hold():
    """Only the main thread may set handlers."""
    done = []

    def run():
        with held_signals(lambda: None):
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert done == [signal.getsignal(signal.SIGINT)]
