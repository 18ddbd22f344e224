"""What clients sent and got: counts and rates for 28, 208 and 315, as RocketMQ names them.

::

    dispatched queues ─► TOPIC_PUT_NUMS topic            BROKER_PUT_NUMS cluster
    answers to pulls  ─► GROUP_GET_NUMS topic@group      BROKER_GET_NUMS cluster

Messages count as put when they are dispatched, so a put costs nothing here, and a slave counts
what its master was sent.  A node begins with 0 at its start and at each change of its role.

Invariant: at most ITEMS_MAX topics and groups are counted, those that changed last.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, final

import attrs
import trio

from hastore.concurrency.message_rate import MessageRate

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hastore.concurrency.message_rate import Window
    from hastore.store.queue.consume_queue import ConsumeQueue

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
BROKER_PUT_NUMS: Final = "BROKER_PUT_NUMS"
BROKER_GET_NUMS: Final = "BROKER_GET_NUMS"
ITEMS_MAX: Final = 4_096
MINUTE_S: Final = 60.0
HOUR_S: Final = 3_600.0
DAY_S: Final = 86_400.0
_WINDOWS: Final[tuple[Window, ...]] = (
    (10.0, 1.0),
    (MINUTE_S, 10.0),
    (600.0, MINUTE_S),
    (HOUR_S, 600.0),
    (2 * DAY_S, HOUR_S),
)
_TPS_WINDOWS_S: Final = (10.0, MINUTE_S, 600.0)  # of the three figures of 28


@final
@attrs.define(eq=False)
class Item:
    """Messages of a topic, a group or the node, and how often some came or were got."""

    messages: MessageRate = attrs.field(factory=lambda: MessageRate(_WINDOWS))
    times: MessageRate = attrs.field(factory=lambda: MessageRate(_WINDOWS))

    def add(self, count: int, now: float) -> None:
        """Count messages that came at once."""
        self.messages.mark(now)
        self.times.mark(now)
        self.messages.count += count
        self.times.count += 1

    def tps_text(self, now: float) -> str:
        """Return messages per second over 10 s, a minute and ten minutes, as 28 has them."""
        return " ".join(f"{self.messages.per_s(now, seconds):.2f}" for seconds in _TPS_WINDOWS_S)

    def snapshot(self, seconds: float, now: float) -> dict[str, Any]:
        """Return RocketMQ's BrokerStatsItem of the last ``seconds``."""
        count, times = self.messages.within(seconds, now), self.times.within(seconds, now)
        return {
            "sum": count,
            "tps": round(self.messages.per_s(now, seconds), 2),
            "avgpt": round(count / times, 2) if times else 0.0,
        }


@final
@attrs.define(eq=False)
class BrokerStats:
    """The counts of one node; times are trio's."""

    puts: Item = attrs.field(factory=Item, init=False)
    gets: Item = attrs.field(factory=Item, init=False)
    _items: OrderedDict[tuple[str, str], Item] = attrs.field(factory=OrderedDict, init=False)
    # Of each queue the offset up to which its messages are counted.
    _counted: dict[tuple[str, int], int] = attrs.field(factory=dict, init=False)

    def begin(self, queues: Iterable[ConsumeQueue]) -> None:
        """Leave out what the queues have already."""
        self._counted = {(each.topic, each.queue_id): each.max_offset for each in queues}

    def dispatched(self, queues: Iterable[ConsumeQueue]) -> None:
        """Count the messages of queues that grew."""
        now = trio.current_time()
        for queue in queues:
            key = queue.topic, queue.queue_id
            count = queue.max_offset - self._counted.get(key, queue.min_offset)
            self._counted[key] = queue.max_offset
            if count > 0:
                self.puts.add(count, now)
                self._item(TOPIC_PUT_NUMS, queue.topic).add(count, now)

    def pulled(self, topic: str, group: str, count: int) -> None:
        """Count the messages of one answer."""
        now = trio.current_time()
        self.gets.add(count, now)
        self._item(GROUP_GET_NUMS, f"{topic}@{group}").add(count, now)

    def _item(self, name: str, key: str) -> Item:
        item = self._items.get((name, key))
        if item is None:
            item = self._items[name, key] = Item()
            if len(self._items) > ITEMS_MAX:
                self._items.popitem(last=False)
        else:
            self._items.move_to_end((name, key))
        return item

    def find(self, name: str, key: str, cluster: str) -> Item | None:
        """Return what RocketMQ's names say; None if there is none."""
        if key == cluster and name in {BROKER_PUT_NUMS, BROKER_GET_NUMS}:
            return self.puts if name == BROKER_PUT_NUMS else self.gets
        return self._items.get((name, key))

    def consume_tps(self, topic: str, group: str) -> float:
        """Return how many messages per second a group got of a topic in the last minute."""
        item = self._items.get((GROUP_GET_NUMS, f"{topic}@{group}"))
        return 0.0 if item is None else item.messages.per_s(trio.current_time(), MINUTE_S)
