"""Clients: heartbeat (34), goodbye (35), members of a group (38), telling members of changes (40), and
checking a subscription by property before it is used (46)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from iotmq import limits
from iotmq.broker.filters.consumer_filters import ConsumerFilters
from iotmq.broker.filters.subscription import SubscriptionData, check_client_id, decode_heartbeat
from iotmq.broker.filters.tags import parse_tags
from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.reply_body import reply_json
from iotmq.broker.replies.request_table import Handler
from iotmq.broker.tables.subscription_groups import SubscriptionGroupConfig
from iotmq.broker.tables.topics import RETRY_PREFIX
from iotmq.event_loop import LoopSlice, NextTurn
from iotmq.message.compression import methods_here
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import BATCH_COMPRESSION_FIELD, RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection, absent_connection


class ConsumerIds(msgspec.Struct, kw_only=True, rename="camel"):
    """The answer to code 38."""

    consumer_id_list: list[str]


class CheckClientBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Decode the filter that a client asks about, whoever asks."""

    subscription_data: SubscriptionData | None = None


class ClientHandler:
    """Keeps the live groups up to date and tells their members."""

    def __init__(self, parts: BrokerParts, filters: ConsumerFilters) -> None:
        self._groups = parts.groups
        self._filters = filters
        self._subscription_groups = parts.subscription_groups
        self._topics = parts.topics
        self._knows = {BATCH_COMPRESSION_FIELD: ",".join(methods_here())}
        # Groups whose change nobody was told yet, and of the one before them the connections not told yet.
        self._changed: dict[str, None] = {}
        self._told_group = ""
        self._untold: deque[ServerConnection] = deque()
        self._next_turn = NextTurn(self._tell)

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: self._unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: self._check,
        }

    def connection_lost(self, connection: ServerConnection) -> None:
        self._notify(self._groups.connection_lost(connection))

    def expire(self) -> None:
        """Drop silent clients; call every ten seconds or so."""
        self._notify(self._groups.expire())

    def restore(self) -> None:
        """Have the consumers of a former master back, until their next heartbeat."""
        self._groups.restore(absent_connection())

    def _heartbeat(self, connection: ServerConnection, request: Command) -> Command | None:
        heartbeat = decode_heartbeat(request.body)
        changed = self._groups.heartbeat(
            connection, heartbeat, language=request.language, version=request.version
        )
        turn = LoopSlice()
        for consumer in heartbeat.consumer_data_set or ():
            self._filters.register(consumer.group_name, consumer.subscription_data_set or (), turn)
            group = self._subscription_groups.find_or_create(consumer.group_name)
            if group is not None:
                self._ensure_retry_topic(group)
        self._notify(changed)
        return request.reply(ResponseCode.SUCCESS, ext=self._knows)

    def _unregister(self, connection: ServerConnection, request: Command) -> Command | None:
        client_id = request.text("clientID")
        check_client_id(client_id)
        self._notify(
            self._groups.unregister(
                connection,
                client_id,
                producer_group=request.ext.get("producerGroup"),
                consumer_group=request.ext.get("consumerGroup"),
            )
        )
        return request.reply(ResponseCode.SUCCESS)

    def _consumer_list(self, connection: ServerConnection, request: Command) -> Command | None:
        name = request.text("consumerGroup")
        group = self._groups.consumer_group(name)
        if group is None:
            return request.reply(ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {name}")
        return reply_json(request, ConsumerIds(consumer_id_list=list(group.members)))

    def _check(self, connection: ServerConnection, request: Command) -> Command | None:
        """Answer with the code that pulls by the subscription would get."""
        subscription = lenient_json.decode_request(request.body, CheckClientBody).subscription_data
        if subscription is not None:
            if subscription.is_by_tag:
                parse_tags(subscription.expression)
            self._filters.check(subscription)
        return request.reply(ResponseCode.SUCCESS)

    def _ensure_retry_topic(self, group: SubscriptionGroupConfig) -> None:
        """Consumers look for the route of their retry topic right after the first heartbeat."""
        name = RETRY_PREFIX + group.group_name
        if group.retry_queue_nums > 0 and len(name.encode()) <= limits.TOPIC_BYTES_MAX:
            self._topics.ensure(name, queues=group.retry_queue_nums)

    def tell(self, group: str) -> None:
        """Have a group's members look again for what they are to consume."""
        if self._groups.consumer_group(group) is not None:
            self._notify([group])

    def _notify(self, changed: Iterable[str]) -> None:
        """Tell members of groups that members or subscriptions changed: very many over several turns."""
        is_under_way = bool(self._changed or self._untold)
        for name in changed:
            if self._groups.consumer_group(name) is None:
                self._filters.group_left(name)
            else:
                self._changed[name] = None
        if not is_under_way:
            self._tell()

    def _tell(self) -> None:
        """Tell some members now, and the others in the turns that follow."""
        turn = LoopSlice()
        while (self._changed or self._untold) and turn.take():
            if not self._untold:
                self._told_group = next(iter(self._changed))
                # From here on a change is told anew.
                del self._changed[self._told_group]
                self._untold = self._connections_of(self._told_group)
            while self._untold and turn.take():
                self._untold.popleft().send_oneway(
                    Command.request(
                        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                        {"consumerGroup": self._told_group},
                        oneway=True,
                    )
                )
        if self._changed or self._untold:
            self._next_turn.schedule()

    def _connections_of(self, name: str) -> deque[ServerConnection]:
        """Return the connections of a group's members, each once; none when they are not to be told."""
        group = self._groups.consumer_group(name)
        config = self._subscription_groups.find(name)
        if group is None or (config is not None and not config.notify_consumer_ids_changed_enable):
            return deque()
        return deque(dict.fromkeys(member.connection for member in group.members.values()))
