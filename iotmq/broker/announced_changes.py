"""Answers to requests that made or changed a topic: given once the registries have been told.

A client that was answered asks a registry next: a consumer for the route of the topic just made, a member
of a group for its retry topic. RocketMQ's brokers register before they answer, and clients count on it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from iotmq.broker.topics import TopicTable
from iotmq.remoting.command import Command
from iotmq.remoting.server import RequestHandler, ServerConnection

WhenTold: TypeAlias = Callable[[Callable[[], None]], None]
"""Calls what it is given once every registry has been told what holds now."""


class AnnouncedChanges:
    """Hands requests on; implements remoting's RequestHandler."""

    def __init__(self, handler: RequestHandler, topics: TopicTable, when_told: WhenTold) -> None:
        self._handler = handler
        self._topics = topics
        self._when_told = when_told

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        before = self._topics.version
        response = self._handler.handle(connection, request)
        if response is None or self._topics.version is before or request.is_oneway:
            return response
        self._when_told(partial(connection.reply, response))
        return None

    def connection_lost(self, connection: ServerConnection) -> None:
        self._handler.connection_lost(connection)
