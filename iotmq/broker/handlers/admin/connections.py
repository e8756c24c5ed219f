"""Show connected clients: consumers of a group (203), producers of a group (204) and all of them (328), the
groups of a topic (300), and every client with its groups (LIST_CLIENTS, ours)."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from iotmq import limits
from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.client_views import (
    ClientListView,
    ProducerConnectionView,
    ProducerTableView,
    client_views,
    connection_view,
    consumer_connection_view,
    producer_view,
)
from iotmq.broker.replies.reply_body import reply_json
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.tables.topics import known_topic
from iotmq.errors import RefusedError, RequestError
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection


class ConnectionHandler(RequestProcessor):
    """Shows the live groups; changes nothing."""

    def __init__(self, parts: BrokerParts) -> None:
        self._topics = parts.topics
        self._groups = parts.groups
        self._offsets = parts.offsets
        self._clock = parts.clock

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self._producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self._all_producers,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._groups_of_topic,
            RequestCode.LIST_CLIENTS: self._clients,
        }

    def _consumers(self, connection: ServerConnection, request: Command) -> Command | None:
        name = request.text("consumerGroup")
        group = self._groups.consumer_group(name)
        if group is None:
            raise RequestError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"the field consumerGroup names the group {name}, which has no live consumer",
            )
        return reply_json(request, consumer_connection_view(group), instead=_too_many_members(name))

    def _producers(self, connection: ServerConnection, request: Command) -> Command | None:
        name = request.text("producerGroup")
        producers = self._groups.producers(name)
        if not producers:
            raise RefusedError(f"the field producerGroup names the group {name}, which has no live producer")
        view = ProducerConnectionView(connection_set=[connection_view(member) for member in producers])
        return reply_json(request, view, instead=_too_many_members(name))

    def _all_producers(self, connection: ServerConnection, request: Command) -> Command | None:
        view = ProducerTableView(
            data={
                name: [producer_view(member, self._clock) for member in members.values()]
                for name, members in self._groups.producer_groups()
            }
        )
        instead = "ask for one group, or with our request LIST_CLIENTS in parts"
        return reply_json(request, view, instead=instead)

    def _groups_of_topic(self, connection: ServerConnection, request: Command) -> Command | None:
        topic = known_topic(self._topics, request.text("topic")).topic_name
        names = dict.fromkeys(
            group.name for group in self._groups.consumer_groups() if topic in group.subscriptions
        )
        names.update(dict.fromkeys(self._offsets.groups_of(topic)))
        instead = "too many groups consume this topic to list them"
        return reply_json(request, {"groupList": list(names)}, instead=instead)

    def _clients(self, connection: ServerConnection, request: Command) -> Command | None:
        after = request.text("after", "")
        clients_max = request.integer(
            "maxNums", limits.CLIENTS_LISTED_MAX, minimum=1, maximum=limits.CLIENTS_LISTED_MAX
        )
        wanted = request.text("clientId", "")
        all_ids = self._groups.client_ids()
        behind = (
            [wanted] if wanted in all_ids else [] if wanted else [name for name in all_ids if name > after]
        )
        names = heapq.nsmallest(clients_max, behind)
        view = ClientListView(
            clients=client_views(self._groups, self._clock, names),
            count=len(all_ids),
            next_after=names[-1] if len(names) < len(behind) else None,
        )
        return reply_json(request, view, instead="ask for fewer with the field maxNums")


def _too_many_members(group: str) -> str:
    return f"group {group} has too many members; our request LIST_CLIENTS shows them in parts"
