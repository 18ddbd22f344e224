"""Reads topics and groups from a node, each from several requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hastore.client.pull_client import NO_GROUP
from hastore.errors import RequestFailedError
from hastore.wire.remoting_codes import ResponseCode
from hastore_cli.node.client import gather
from hastore_cli.topics.report import (
    ConnectedMember,
    GroupOnTopic,
    GroupView,
    QueueProgress,
    QueueView,
    ResetStep,
    TopicView,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hastore.wire.config_tables import TopicConfig
    from hastore_cli.consume.run import ConsumeStart
    from hastore_cli.node.client import NodeClient

# (topic, queue) → the offsets that the queue holds
Ranges = dict[tuple[str, int], range]


async def read_ranges(node: NodeClient, queues: Sequence[tuple[str, int]]) -> Ranges:
    """Return the offsets that queues hold."""

    async def ask(queue: tuple[str, int]) -> range:
        return await node.queue_range(*queue)

    return dict(zip(queues, await gather(ask, queues), strict=True))


# -- topics --------------------------------------------------------------------------------------


async def read_topics(node: NodeClient) -> list[TopicView]:
    """Return all topics, by name."""
    configs = await node.admin.topics()
    queues = [(name, i) for name, config in configs.items() for i in range(config.read_queue_nums)]
    ranges = await read_ranges(node, queues)
    return [_topic_view(config, ranges, {}) for config in configs.values()]


async def read_topic(node: NodeClient, name: str) -> tuple[TopicView, list[GroupOnTopic]]:
    """Return one topic, and the groups that have offsets on it."""
    config = await node.topic(name)
    queues = [(name, i) for i in range(config.read_queue_nums)]
    ranges = await read_ranges(node, queues)

    async def first_stored(queue: tuple[str, int]) -> int | None:
        return await node.admin.earliest_store_time_ms(*queue) if ranges[queue] else None

    times = dict(zip(queues, await gather(first_stored, queues), strict=True))
    offsets = await node.admin.consumer_offsets()
    groups = [
        GroupOnTopic(group, sum(p.lag for p in _progress(name, by_queue, ranges, config)))
        for (topic, group), by_queue in sorted(offsets.items())
        if topic == name
    ]
    return _topic_view(config, ranges, times), groups


def _topic_view(
    config: TopicConfig, ranges: Ranges, times: Mapping[tuple[str, int], int | None]
) -> TopicView:
    name = config.topic
    return TopicView(
        name=name,
        read_queues=config.read_queue_nums,
        write_queues=config.write_queue_nums,
        permissions=config.perm,
        queues=tuple(
            QueueView(
                queue_id=queue_id,
                min_offset=ranges[name, queue_id].start,
                max_offset=ranges[name, queue_id].stop,
                first_store_timestamp_ms=times.get((name, queue_id)),
            )
            for queue_id in range(config.read_queue_nums)
        ),
    )


# -- groups --------------------------------------------------------------------------------------


async def read_groups(node: NodeClient) -> list[GroupView]:
    """Return all groups, by name, with their members."""
    offsets = await node.admin.consumer_offsets()
    configs = await node.admin.topics()
    names = sorted({*await node.admin.groups(), *(group for _, group in offsets)})
    found = await gather(lambda name: _read_group(node, name, offsets, configs), names)
    # The name under which a consumer without a group pulls; it keeps no offsets.
    return [g for g in found if g.name != NO_GROUP or g.progress or g.members]


async def read_group(node: NodeClient, name: str, *, must_exist: bool = True) -> GroupView:
    """Return one group.  Raises RequestFailedError if it must exist and does not."""
    offsets = await node.admin.consumer_offsets()
    group = await _read_group(node, name, offsets, await node.admin.topics())
    if not must_exist or group.progress or group.members:
        return group
    if name not in await node.admin.groups():
        raise RequestFailedError(
            f"group {name} does not exist on {node.address}",
            code=ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            hint=f"list the groups: hastore group list --addr {node.address};"
            f" consuming creates one: hastore consume TOPIC -g {name}",
        )
    return group


async def _read_group(
    node: NodeClient,
    name: str,
    offsets: Mapping[tuple[str, str], Mapping[int, int]],
    configs: Mapping[str, TopicConfig],
) -> GroupView:
    by_topic = {topic: queues for (topic, group), queues in offsets.items() if group == name}
    queues = [
        (topic, queue_id)
        for topic, by_queue in sorted(by_topic.items())
        for queue_id in _queue_ids(configs.get(topic), by_queue)
    ]
    ranges = await read_ranges(node, queues)
    members = await node.admin.members(name)
    return GroupView(
        name=name,
        progress=tuple(
            progress
            for topic, by_queue in sorted(by_topic.items())
            for progress in _progress(topic, by_queue, ranges, configs.get(topic))
        ),
        members=tuple(
            ConnectedMember(
                client_id=str(member.get("clientId", "")),
                address=str(member.get("clientAddr", "")),
                language=str(member.get("language", "")),
            )
            for member in members
        ),
    )


def _queue_ids(config: TopicConfig | None, by_queue: Mapping[int, int]) -> list[int]:
    """Return the queues of a topic, and any others in which a group has an offset."""
    known = range(0 if config is None else config.read_queue_nums)
    return sorted({*known, *by_queue})


def _progress(
    topic: str, by_queue: Mapping[int, int], ranges: Ranges, config: TopicConfig | None
) -> list[QueueProgress]:
    queues = None if config is None else max(config.read_queue_nums, config.write_queue_nums)
    return [
        QueueProgress(
            topic=topic,
            queue_id=queue_id,
            offset=by_queue.get(queue_id),
            min_offset=held.start,
            max_offset=held.stop,
            topic_queues=queues,
        )
        for (name, queue_id), held in sorted(ranges.items())
        if name == topic
    ]


async def plan_reset(
    node: NodeClient,
    group: str,
    topics: Sequence[str],
    to: ConsumeStart,
    queue_id: int | None,
) -> list[ResetStep]:
    """Return the steps that move a group to ``to`` in the topics' queues."""
    offsets = await node.admin.consumer_offsets()
    queues = [
        (topic, i)
        for topic in topics
        for i in range((await node.topic(topic)).read_queue_nums)
        if queue_id in {None, i}
    ]
    ranges = await read_ranges(node, queues)

    async def step(queue: tuple[str, int]) -> ResetStep:
        topic, i = queue
        held = ranges[queue]
        return ResetStep(
            topic=topic,
            queue_id=i,
            offset=offsets.get((topic, group), {}).get(i),
            new_offset=await to.find(node, group, topic, i, held),
            min_offset=held.start,
            max_offset=held.stop,
        )

    return await gather(step, queues)
