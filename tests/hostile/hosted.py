"""A trio run in its own thread, for synchronous tests: hypothesis calls it for each example.

One node serves all examples of a test, so each meets what the earlier ones left behind.
"""

import contextlib
import threading

import trio


class Hosted:
    """The run: ``call`` runs an async function in it and returns its result."""

    def __init__(self):
        self.value = None
        self._ready = threading.Event()
        self._token = None
        self._end = None
        self._error = None

    def call(self, function, *args):
        """Run ``function(*args)`` in the hosted run."""
        return trio.from_thread.run(function, *args, trio_token=self._token)

    def _run(self, opening):
        async def main():
            async with opening() as value:
                self.value = value
                self._token = trio.lowlevel.current_trio_token()
                self._end = trio.Event()
                self._ready.set()
                await self._end.wait()

        try:
            trio.run(main)
        except BaseException as error:  # noqa: BLE001 - raised again where the block ends
            self._error = error
        finally:
            self._ready.set()


@contextlib.contextmanager
def hosted(opening):
    """Hold ``opening()``, an async context manager, open in a thread for the length of the block.

    An error in the thread is raised where the block ends.
    """
    run = Hosted()
    thread = threading.Thread(target=run._run, args=(opening,))
    thread.start()
    try:
        run._ready.wait()
        if run._error is None:
            yield run
    finally:
        with contextlib.suppress(trio.RunFinishedError):
            if run._token is not None:
                trio.from_thread.run_sync(run._end.set, trio_token=run._token)
        thread.join()
        if run._error is not None:
            raise run._error
