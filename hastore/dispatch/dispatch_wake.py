"""Starts the passes of a dispatch: soon, or now that much has gathered.

Made before the dispatch, because services that it depends on already notify it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import attrs

from hastore.concurrency.wait_notify_object import WaitNotifyObject

if TYPE_CHECKING:
    from collections.abc import Callable


@final
@attrs.define(eq=False)
class DispatchWake:
    """What a node's ReputMessageService sleeps on."""

    start: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)  # a pass, soon
    enough: WaitNotifyObject = attrs.field(factory=WaitNotifyObject, init=False)  # ends the wait
    # Returns whether enough has gathered; the service sets it.
    has_enough: Callable[[], bool] = attrs.field(default=lambda: False, init=False)

    def notify_confirmed(self) -> None:
        """Start a pass, now if there is enough: after an acknowledgement, a flush or a frame.

        After an append ``start.wakeup`` does, whether or not the append confirms itself.
        """
        self.start.wakeup()
        if self.enough.sleeper is not None and self.has_enough():
            self.enough.wakeup()
