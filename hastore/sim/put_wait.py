"""How a simulated producer waits for an answer: beside the master's process, or as part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import attrs
import trio

from hastore.sim.sockets import HOST
from hastore.sim.violation import ViolationError

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from hastore.broker.node.master import Master
    from hastore.concurrency.group_commit_request import GroupCommitRequest
    from hastore.sim.cluster import SimNode
    from hastore.sim.put import Put

_GIVES_UP_SHARE: Final = 0.1  # of the waits
_GIVES_UP_MAX_S: Final = 0.01
_LONGER: Final = 5  # times
_HANG_S: Final = 1.0  # of a task whose put is decided


@final
@attrs.define(eq=False)
class PutWait:
    """Waits for a put; with ``in_process``, as a task of its master, by ``Master.wait_for``.

    Such a task is stopped with the master's process (SIGSTOP), and some waits are cancelled early.
    """

    on_violation: Callable[[ViolationError], None]
    timeout_s: float
    in_process: Random | None = None  # chooses which

    def burst(self, size: int, *, is_parallel: bool) -> tuple[int, bool]:
        """Return how many messages a producer puts in a burst, and whether all at once.

        ``in_process``, one after the other and more of them: only then one put waits at a time.
        """
        return (size, is_parallel) if self.in_process is None else (size * _LONGER, False)

    async def __call__(
        self,
        node: SimNode,
        master: Master,
        request: GroupCommitRequest,
        put: Put,
        done: trio.Event,
    ) -> None:
        """Wait until ``request``, to ``node``'s master, is decided: ``done`` is set then."""
        timeout_s = self.timeout_s
        if self.in_process is None:
            with trio.move_on_after(timeout_s):
                await done.wait()
            return
        if self.in_process.random() < _GIVES_UP_SHARE:
            timeout_s = self.in_process.uniform(0, _GIVES_UP_MAX_S)
        token = HOST.set(node.host)
        try:
            with trio.move_on_after(timeout_s):
                await master.wait_for(request)
        finally:
            HOST.reset(token)
        now = trio.current_time()
        if put.status is not None and now > max(put.at, node.went_on_at) + _HANG_S:
            text = f"put {put.number} was answered at {put.at:.3f} s, its task woke at {now:.3f} s"
            self.on_violation(ViolationError("hang", text, put=put.number))
