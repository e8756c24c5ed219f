"""Giving a topic more queues or fewer while it is in use.

A queue is *open* (takes messages), *frozen* (takes none, is still read), *closed* (takes none because
`writeQueueNums` ends before it, is still read), or gone. A topic grows at its end; it shrinks by freezing
queues, waiting until every group has consumed them, and removing the last ones: queue numbers have no gaps,
because clients count from 0. `writeQueueNums` ends behind the last open queue, so that producers that know
nothing of freezing leave the queues at the end alone. Frozen queues before it are left alone by producers
that read `frozenQueues` in the route; what others send there goes to an open queue.

A removed queue keeps its messages until retention takes them: if the topic grows again, it is back with
them, and groups go on where they were.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

import msgspec

from iotmq import limits
from iotmq.broker.members.groups import Groups
from iotmq.broker.tables.consumer_offsets import ConsumerOffsets
from iotmq.broker.tables.topics import TopicConfig
from iotmq.errors import RefusedError
from iotmq.store.store import Store


class QueueState(msgspec.Struct, kw_only=True, rename="camel"):
    """One queue of a topic. `behind`: what each group has still to consume; complete when all are 0."""

    queue_id: int
    state: Literal["open", "frozen", "closed"]
    min_offset: int
    max_offset: int
    behind: dict[str, int]
    is_drained: bool


class TopicState(msgspec.Struct, kw_only=True, rename="camel"):
    """The body of the answer to code 30040 and of the changes, 30041 to 30044."""

    topic: str
    read_queue_nums: int
    write_queue_nums: int
    queues: list[QueueState]


def grown(topic: TopicConfig, queue_count: int) -> TopicConfig:
    """Add queues up to a count. RequestError (1) when there are more, or that is too many."""
    if not topic.queue_count <= queue_count <= limits.QUEUES_PER_TOPIC_MAX:
        raise RefusedError(
            f"the field queueNums is {queue_count}: topic {topic.topic_name} has {topic.queue_count} queues "
            f"and may grow to {limits.QUEUES_PER_TOPIC_MAX}; to have fewer, freeze and remove queues"
        )
    if queue_count == topic.queue_count and topic.read_queue_nums == queue_count:
        return topic
    return _with_frozen(topic, topic.frozen, read_queue_nums=queue_count, open_until=queue_count)


def frozen(topic: TopicConfig, queue_ids: Collection[int]) -> TopicConfig:
    """Freeze queues. RequestError (1) when one is not there or none would stay open."""
    _check_exist(topic, queue_ids)
    if not set(topic.open_queues) - set(queue_ids):
        raise RefusedError(
            f"the field queueIds would freeze every queue of topic {topic.topic_name}: leave one open, or "
            "take the topic's write permission (code 17, perm 4)"
        )
    return _with_frozen(
        topic,
        {*topic.frozen, *queue_ids},
        read_queue_nums=topic.read_queue_nums,
        open_until=topic.write_queue_nums,
    )


def thawed(topic: TopicConfig, queue_ids: Collection[int]) -> TopicConfig:
    """Open frozen queues again. RequestError (1) when one is not there."""
    _check_exist(topic, queue_ids)
    return _with_frozen(
        topic,
        set(topic.frozen) - set(queue_ids),
        read_queue_nums=topic.read_queue_nums,
        open_until=max(topic.write_queue_nums, *(queue_id + 1 for queue_id in queue_ids)),
    )


def shrunk(
    topic: TopicConfig, queue_count: int, states: Iterable[QueueState], *, is_forced: bool
) -> TopicConfig:
    """Remove queues. RequestError (1) when one that goes is open, or (unless forced) not drained."""
    if not 1 <= queue_count <= topic.queue_count:
        raise RefusedError(
            f"the field queueNums is {queue_count}: topic {topic.topic_name} has {topic.queue_count} queues, "
            "and keeps one at least"
        )
    going = [state for state in states if state.queue_id >= queue_count]
    opened = [state.queue_id for state in going if state.state == "open"]
    if opened:
        raise RefusedError(
            f"queues {_listed(opened)} of topic {topic.topic_name} still take messages: freeze them first "
            "(code 30042, iotmq admin topic freeze)"
        )
    full = [state for state in going if not state.is_drained]
    if full and not is_forced:
        raise RefusedError(
            f"queue {full[0].queue_id} of topic {topic.topic_name} is not drained: "
            f"{_who_is_behind(full[0])}. Wait until it is, or remove it by force, which leaves its messages "
            "unconsumed"
        )
    return _with_frozen(
        topic,
        [queue_id for queue_id in topic.frozen if queue_id < queue_count],
        read_queue_nums=queue_count,
        open_until=topic.write_queue_nums,
    )


def queue_states(
    topic: TopicConfig, *, store: Store, offsets: ConsumerOffsets, groups: Groups
) -> list[QueueState]:
    """Return every queue of a topic, with how far the groups that consume the topic are behind.

    Those are the groups with a committed offset in the topic and the live ones that subscribe to it;
    broadcasting ones keep their offsets to themselves and do not count.
    """
    name = topic.topic_name
    consuming = set(offsets.groups_of(name))
    for live in groups.consumer_groups():
        if live.is_broadcasting:
            consuming.discard(live.name)
        elif name in live.subscriptions:
            consuming.add(live.name)
    committed = {group: offsets.of_topic(group, name) for group in sorted(consuming)}
    states: list[QueueState] = []
    for queue_id in range(topic.queue_count):
        queue = store.find_queue(name, queue_id)
        first, end = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        on_way = 0 if queue is None else queue.next_offset - end
        behind = {
            group: max(0, end - max(first, of_group.get(queue_id, first)))
            for group, of_group in committed.items()
        }
        is_consumed = bool(behind) and not any(behind.values())
        states.append(
            QueueState(
                queue_id=queue_id,
                state=_state_of(topic, queue_id),
                min_offset=first,
                max_offset=end,
                behind=behind,
                is_drained=not on_way and (first == end or is_consumed),
            )
        )
    return states


def _state_of(topic: TopicConfig, queue_id: int) -> Literal["open", "frozen", "closed"]:
    if queue_id in topic.frozen:
        return "frozen"
    return "open" if queue_id < topic.write_queue_nums else "closed"


def _with_frozen(
    topic: TopicConfig, queue_ids: Iterable[int], *, read_queue_nums: int, open_until: int
) -> TopicConfig:
    """Queues below `open_until` are open unless frozen."""
    frozen_ids = tuple(sorted(queue_ids))
    open_ids = [
        queue_id for queue_id in range(min(open_until, read_queue_nums)) if queue_id not in frozen_ids
    ]
    return msgspec.structs.replace(
        topic,
        read_queue_nums=read_queue_nums,
        write_queue_nums=open_ids[-1] + 1 if open_ids else 0,
        frozen_queues=frozen_ids or msgspec.UNSET,
    )


def _check_exist(topic: TopicConfig, queue_ids: Collection[int]) -> None:
    missing = [queue_id for queue_id in sorted(queue_ids) if not 0 <= queue_id < topic.read_queue_nums]
    if missing or not queue_ids:
        raise RefusedError(
            f"the field queueIds names {_listed(missing) or 'no queue'}: topic {topic.topic_name} has the "
            f"queues 0 to {topic.read_queue_nums - 1}"
        )


def _who_is_behind(state: QueueState) -> str:
    late = [f"group {group} has {count} messages to go" for group, count in state.behind.items() if count]
    return ", ".join(late[:3]) or "it has messages, and no group consumes the topic"


def _listed(queue_ids: Iterable[int]) -> str:
    return ", ".join(map(str, queue_ids))
