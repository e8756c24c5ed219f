"""Changing consumer groups: delete (207), move to a time (222 and 220), start where another is (314)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from iotmq.broker.members.groups import ConsumerGroup, Member
from iotmq.broker.members.queue_locks import MessageQueue
from iotmq.broker.parts import BrokerParts
from iotmq.broker.pop.pops import Pops
from iotmq.broker.pop.states import Place
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.replies.sliced_reply import SlicedReplies, Work
from iotmq.broker.tables.subscription_groups import SYSTEM_GROUPS, group_of
from iotmq.broker.tables.system_topics import check_not_own
from iotmq.broker.tables.topics import known_topic
from iotmq.errors import RefusedError, RequestError
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import LanguageCode, RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection
from iotmq.store.queues.cold_steps import Steps

# Members of an older version would not understand code 220.
_RESET_VERSION_MIN: Final = 28
# The timestamp that stands for the end of every queue.
_NOW: Final = -1


class GroupChangesHandler(RequestProcessor):
    """Moves committed offsets, by way of the members where there are any: they commit what they hold.

    Consumers by message hold no offsets, so those of such a group are moved here.
    """

    def __init__(self, parts: BrokerParts, pops: Pops, sliced_replies: SlicedReplies) -> None:
        self._pops = pops
        self._sliced_replies = sliced_replies
        self._store = parts.store
        self._topics = parts.topics
        self._groups = parts.groups
        self._subscription_groups = parts.subscription_groups
        self._offsets = parts.offsets
        self._broker_name = parts.settings.name

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.DELETE_SUBSCRIPTION_GROUP: self._delete,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self._reset,
            RequestCode.CLONE_GROUP_OFFSET: self._clone,
        }

    def _delete(self, connection: ServerConnection, request: Command) -> Command | None:
        name = group_of(request, "groupName")
        check_not_own(name, SYSTEM_GROUPS, "groupName")
        # A tool asks every broker of a cluster, also those the group never came to.
        self._subscription_groups.delete(name)
        if request.boolean("removeOffset"):
            self._offsets.forget_group(name)
        return request.reply(ResponseCode.SUCCESS)

    def _reset(self, connection: ServerConnection, request: Command) -> Command | None:
        topic, group_name = request.text("topic"), group_of(request, "group")
        timestamp_ms = request.integer("timestamp", minimum=_NOW)
        request.text("isForce")
        is_forced = request.boolean("isForce")
        work = self._move(request, topic, group_name, timestamp_ms, is_forced=is_forced)
        return self._sliced_replies.answer(connection, request, work)

    def _move(
        self, request: Command, topic: str, group_name: str, timestamp_ms: int, *, is_forced: bool
    ) -> Work:
        wanted = yield from self._wanted_offsets(topic, group_name, timestamp_ms, is_forced=is_forced)
        is_moved = self._move_popped(group_name, topic, wanted)
        group = self._groups.consumer_group(group_name)
        if group is None and is_moved:
            return request.reply(ResponseCode.SUCCESS, body=_offset_table(wanted))
        if group is None:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"group {group_name} has no live consumer: set its offsets with code 15 "
                "(iotmq admin group reset-offset does)",
            )
        old = [member.client_id for member in group.members.values() if member.version < _RESET_VERSION_MIN]
        if old:
            raise RefusedError(
                f"the client {old[0]} is too old to be moved: stop it, and set the offsets with code 15"
            )
        ext = {
            "topic": topic,
            "group": group_name,
            "timestamp": str(timestamp_ms),
            # The C++ client aborts without it.
            "isForce": "true" if is_forced else "false",
        }
        yield from _tell(group, ext, wanted)
        return request.reply(ResponseCode.SUCCESS, body=_offset_table(wanted))

    def _move_popped(self, group: str, topic: str, wanted: Mapping[MessageQueue, int]) -> bool:
        """Move a group that consumes by message; False when it does not.

        What is in flight before the new offset counts as done.
        """
        places = {Place(group, topic, queue.queue_id): offset for queue, offset in wanted.items()}
        if not self._pops.is_popped(group, topic) and not any(map(self._pops.find, places)):
            return False
        for place, offset in places.items():
            self._offsets.commit(*place, offset)
            stored = self._store.find_queue(topic, place.queue_id)
            if stored is not None and self._pops.find(place) is not None:
                # Now, or what is in flight may become dead letters before somebody pops again.
                self._pops.open(place, stored, from_end=False)
        return True

    def _wanted_offsets(
        self, topic: str, group: str, timestamp_ms: int, *, is_forced: bool
    ) -> Steps[dict[MessageQueue, int]]:
        """Yield where each queue is to go on.

        Without force nobody is moved forward past what he has not seen.
        """
        config = self._topics.find(topic)
        if config is None:
            raise RefusedError(f"the field topic names the topic {topic}, which does not exist")
        wanted: dict[MessageQueue, int] = {}
        for queue_id in range(config.read_queue_nums):
            queue = self._store.find_queue(topic, queue_id)
            committed = self._offsets.find(group, topic, queue_id)
            if queue is None:
                offset = 0
            elif timestamp_ms == _NOW:
                offset = queue.max_offset
            else:
                found = yield from self._store.offset_at_time_steps(queue, timestamp_ms)
                offset = max(queue.min_offset, found)
            if not is_forced and committed is not None:
                offset = min(offset, committed)
            wanted[MessageQueue(broker_name=self._broker_name, queue_id=queue_id, topic=topic)] = offset
        return wanted

    def _clone(self, connection: ServerConnection, request: Command) -> Command | None:
        source, target = group_of(request, "srcGroup"), group_of(request, "destGroup")
        is_offline = request.boolean("offline")
        topic = request.text("topic", "")
        if topic:
            known_topic(self._topics, topic)
        live = None if is_offline else self._groups.consumer_group(source)
        subscribed = None if live is None else set(live.subscriptions)

        def clone(name: str, group: str) -> None:
            if group == source and self._topics.find(name) and (not subscribed or name in subscribed):
                for queue_id, offset in dict(self._offsets.of_topic(source, name)).items():
                    self._offsets.commit(target, name, queue_id, offset)

        pairs = iter([(topic, source)]) if topic else self._offsets.each_pair()
        return self._sliced_replies.answer(connection, request, _clone_steps(request, pairs, clone))


def _clone_steps(
    request: Command, pairs: Iterator[tuple[str, str]], clone: Callable[[str, str], None]
) -> Work:
    """Clone the offsets of one pair of topic and group after the other: there may be very many."""
    try:
        for pair in pairs:
            clone(*pair)
            yield None
    except GeneratorExit:
        # Nothing is cloned by half because who asked for it has gone.
        with suppress(RequestError):
            for pair in pairs:
                clone(*pair)
        raise
    return request.reply(ResponseCode.SUCCESS)


def _tell(group: ConsumerGroup, ext: dict[str, str], wanted: Mapping[MessageQueue, int]) -> Steps[None]:
    """Tell each connection of a group once; there may be very many, and very many queues."""
    reads_lists = {member.connection: _reads_lists(member) for member in group.members.values()}
    bodies = {
        is_list: _offset_list(wanted) if is_list else _offset_table(wanted)
        for is_list in set(reads_lists.values())
    }
    untold = deque(reads_lists.items())

    def tell_next() -> None:
        connection, is_list = untold.popleft()
        connection.send_oneway(
            Command.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, bodies[is_list], oneway=True)
        )

    try:
        while untold:
            tell_next()
            yield None
    finally:
        # A group is not moved by half because who asked for it has gone.
        while untold:
            tell_next()


def _reads_lists(member: Member) -> bool:
    """The C++ client's JSON has no objects as keys."""
    return member.language == LanguageCode.CPP


def _offset_table(offsets: Mapping[MessageQueue, int]) -> bytes:
    rows = [(msgspec.json.encode(queue), b"%d" % offset) for queue, offset in offsets.items()]
    return b'{"offsetTable":%s}' % lenient_json.encode_object_map(rows)


def _offset_list(offsets: Mapping[MessageQueue, int]) -> bytes:
    rows = [
        {
            "brokerName": queue.broker_name,
            "offset": offset,
            "queueId": queue.queue_id,
            "topic": queue.topic,
        }
        for queue, offset in offsets.items()
    ]
    return msgspec.json.encode({"offsetTable": rows})
