"""Plug-ins as users write them for amqtt, for tests."""

from __future__ import annotations

import asyncio
import enum
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from amqtt.contexts import Action
from amqtt.plugins.base import BaseAuthPlugin, BasePlugin, BaseTopicPlugin

released = threading.Event()
"""What blocks its thread is blocked until this is set, or its seconds are over."""


class Kind(enum.StrEnum):
    YES = "yes"
    NO = "no"
    NONE = "none"
    FAIL = "fail"
    IMPOSSIBLE = "impossible"
    SLEEP = "sleep"
    BLOCK = "block"


async def act(kind: str, seconds: float) -> Any:
    match kind:
        case Kind.SLEEP:
            await asyncio.sleep(seconds)
        case Kind.BLOCK:
            released.wait(seconds)
        case Kind.FAIL:
            raise RuntimeError("as broken plug-ins do")
    return {Kind.NO: False, Kind.NONE: None, Kind.IMPOSSIBLE: "yes"}.get(Kind(kind), True)


class Scripted(BaseAuthPlugin):
    """Does what the password says, or else its option."""

    made = 0

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        type(self).made += 1

    async def authenticate(self, *, session: Any) -> bool | None:
        kind = self.config.kind or session.password
        session.attributes["seen-by"] = type(self).__name__
        answer: bool | None = await act(kind, self.config.seconds)
        return answer

    @dataclass
    class Config:
        kind: Kind | None = None
        seconds: float = 1.0
        some_file: Path | None = None
        some_list: list[str] = field(default_factory=list)


class ScriptedTopics(BaseTopicPlugin):
    """Does what the first level of the topic says; remembers what it was asked.

    What ends with "unseen" may be subscribed and not received.
    """

    asked: ClassVar[list[tuple[str, str, str]]] = []

    async def topic_filtering(
        self, *, session: Any = None, topic: str | None = None, action: Action | None = None
    ) -> bool | None:
        assert topic is not None
        assert action is not None
        self.asked.append((session.username, topic, action.value))
        if topic.endswith("/unseen") and action is Action.RECEIVE:
            return False
        answer: bool | None = await act(topic.split("/")[0], 1.0)
        return answer

    @dataclass
    class Config:
        pass


class Listening(BasePlugin[Any]):
    """Remembers what it was told."""

    told: ClassVar[list[tuple[str, dict[str, Any]]]] = []

    async def on_broker_pre_start(self) -> None:
        self.told.append(("pre_start", {}))

    async def on_broker_post_start(self) -> None:
        self.told.append(("post_start", {}))

    async def on_broker_pre_shutdown(self) -> None:
        self.told.append(("pre_shutdown", {}))

    async def on_broker_post_shutdown(self) -> None:
        self.told.append(("post_shutdown", {}))

    async def close(self) -> None:
        self.told.append(("close", {}))

    async def on_broker_client_connected(self, *, client_id: str, client_session: Any) -> None:
        assert self.context.get_session(client_id) is client_session
        self.told.append(("connected", {"client_id": client_id, "session": client_session}))

    async def on_broker_client_disconnected(self, *, client_id: str, client_session: Any) -> None:
        self.told.append(("disconnected", {"client_id": client_id, "session": client_session}))

    async def on_broker_client_subscribed(self, *, client_id: str, topic: str, qos: int) -> None:
        self.told.append(("subscribed", {"client_id": client_id, "topic": topic, "qos": qos}))
        if topic == "publish/that":
            await self.context.broadcast_message("from/plugin", b"hello", 1)

    async def on_broker_client_unsubscribed(self, *, client_id: str, topic: str) -> None:
        self.told.append(("unsubscribed", {"client_id": client_id, "topic": topic}))
        raise RuntimeError("as broken plug-ins do")

    async def on_broker_message_received(self, *, client_id: str, message: Any) -> None:
        raise AssertionError("nobody tells it messages")


class NotAsynchronous(BaseAuthPlugin):
    """Has a method that is no coroutine."""

    def authenticate(self, *, session: Any) -> bool:  # type: ignore[override]
        return True


class DoesNotStart(BaseAuthPlugin):
    """Fails, or takes for ever."""

    async def on_broker_pre_start(self) -> None:
        if self.config.blocks:
            released.wait(30)
        raise RuntimeError("no service there")

    @dataclass
    class Config:
        blocks: bool = False


class NoConfig(BaseAuthPlugin):
    """Has options of the old kind."""

    Config = dict
