"""Groups and their members: who is told of which change."""

import attrs
import trio

from hastore.broker.groups.consumer_manager import ConsumerManager
from hastore.wire.heartbeat_data import ConsumerData, HeartbeatData, Subscription


@attrs.define(eq=False)
class Someone:
    name: str
    is_closed: bool = False
    told: list[str] = attrs.field(factory=list)
    peer: tuple[str, int] = ("10.0.0.1", 5)

    def notify(self, command):
        assert (command.code, command.flag) == (40, 2)
        self.told.append(command.ext_fields["consumerGroup"])


def beat(manager, client, *groups, version=1, topic="T", expression="*"):
    subscription = Subscription(topic=topic, expression=expression, version=version)
    consumers = tuple(ConsumerData(group=group, subscriptions=(subscription,)) for group in groups)
    manager.heartbeat(client, HeartbeatData(client_id=client.name, consumers=consumers), "CPP", 407)


async def test_members_are_told_who_comes_and_goes():
    """The first heartbeat, a farewell and a closed connection are changes; a repetition is none."""
    manager = ConsumerManager(1000)
    one, two = Someone("one"), Someone("two")
    beat(manager, one, "g")
    beat(manager, one, "g")
    assert (one.told, two.told) == (["g"], [])
    beat(manager, two, "g", "h")
    assert (one.told, two.told) == (["g"] * 2, ["g", "h"])
    assert manager.client_ids("g") == ["one", "two"]
    manager.unregister(two, "g")
    manager.unregister(two, "g")
    assert one.told == ["g"] * 3
    manager.client_gone(one)
    manager.client_gone(one)
    assert manager.client_ids("g") == []
    assert list(manager.groups) == ["h"]


async def test_a_heartbeat_is_the_whole_truth():
    """A group that a client's heartbeat names no more has lost that member."""
    manager = ConsumerManager(1000)
    one, two = Someone("one"), Someone("two")
    beat(manager, one, "g", "h")
    beat(manager, two, "g")
    told = len(two.told)
    beat(manager, one, "h")
    assert manager.client_ids("g") == ["two"]
    assert two.told[told:] == ["g"]
    beat(manager, two)
    assert list(manager.groups) == ["h"]


async def test_the_newest_subscription_counts_and_only_other_topics_are_a_change():
    """Two members with one subscription of different age do not keep changing it."""
    manager = ConsumerManager(1000)
    one, two = Someone("one"), Someone("two")
    beat(manager, one, "g", version=5, expression="new")
    beat(manager, two, "g", version=4, expression="old")
    assert manager.groups["g"].subscription("T").expression == "new"
    told = len(one.told)
    beat(manager, one, "g", version=5, expression="new")
    assert len(one.told) == told
    beat(manager, one, "g", topic="U")
    assert len(one.told) == told + 1
    assert manager.groups["g"].subscription("T") is None


async def test_a_silent_client_is_dropped(autojump_clock, nursery):
    """Without a heartbeat for the time-out a client is a member no more; others stay."""
    manager = ConsumerManager(1000)
    nursery.start_soon(manager.run)
    one, two = Someone("one"), Someone("two")
    beat(manager, one, "g")
    beat(manager, two, "g")
    for _ in range(3):
        await trio.sleep(0.6)
        beat(manager, two, "g")
    assert manager.client_ids("g") == ["two"]
    await trio.sleep(2)
    assert not manager.groups
    beat(manager, one, "g")
    assert manager.client_ids("g") == ["one"]


async def test_a_group_may_want_no_notifications():
    """What the group's configuration says is kept to."""
    manager = ConsumerManager(1000, notifies=lambda group: group != "quiet")
    one = Someone("one")
    beat(manager, one, "quiet", "loud")
    assert one.told == ["loud"]


async def test_a_closed_connection_becomes_no_member():
    """A heartbeat that is read after the end changes nothing."""
    manager = ConsumerManager(1000)
    beat(manager, Someone("one", is_closed=True), "g")
    assert not manager.groups


async def test_the_connections_are_told_in_rocketmqs_words():
    """203's body: each member, and the subscriptions by topic."""
    manager = ConsumerManager(1000)
    beat(manager, Someone("one"), "g")
    body = manager.connections("g")
    assert body["connectionSet"] == [
        {"clientAddr": "10.0.0.1:5", "clientId": "one", "language": "CPP", "version": 407}
    ]
    assert body["subscriptionTable"]["T"]["subString"] == "*"
    assert body["consumeType"] == "CONSUME_PASSIVELY"
    assert manager.connections("nobody") is None
