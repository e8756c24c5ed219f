"""Show the broker's counts by name (315), and the topics it made itself (305)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.reply_body import reply_json
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.replies.sliced_reply import SlicedReplies, Work
from iotmq.broker.statistics.statistics import (
    BROKER_STATISTIC_NAMES,
    STATISTIC_NAMES,
    WINDOWS,
    Statistic,
    topic_queue_and_group,
)
from iotmq.errors import RefusedError, RequestError
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection
from iotmq.store.queues.cold_steps import Steps

# How far a group is behind the end of the log, in bytes and in milliseconds, by (topic, queue id, group);
# None when it has consumed nothing.
Behind: TypeAlias = "Callable[[str, int, str], Steps[tuple[int, int] | None]]"

_FALL_SIZE: Final = "GROUP_GET_FALL_SIZE"
_FALL_TIME: Final = "GROUP_GET_FALL_TIME"
_ALL_NAMES: Final = sorted((*STATISTIC_NAMES, _FALL_SIZE, _FALL_TIME))


class StatisticsHandler(RequestProcessor):
    """Answers with the last minute, hour and day of one name and key."""

    def __init__(
        self,
        parts: BrokerParts,
        behind: Behind,
        sliced_replies: SlicedReplies,
        *,
        address: Callable[[], str],
    ) -> None:
        """`address()` is the broker's own, as HOST:PORT."""
        self._statistics = parts.statistics
        self._behind = behind
        self._sliced_replies = sliced_replies
        self._cluster = parts.settings.cluster
        self._system_topics = sorted(parts.system_topics)
        self._address = address

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.VIEW_BROKER_STATS_DATA: self._view,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self._list_system_topics,
        }

    def _view(self, connection: ServerConnection, request: Command) -> Command | None:
        name = request.text("statsName")
        key = request.text("statsKey")
        if name in (_FALL_SIZE, _FALL_TIME):
            return self._sliced_replies.answer(connection, request, self._measure(request, name, key))
        if name not in STATISTIC_NAMES:
            raise RefusedError(
                f"the field statsName is {name[:40]!r}; there are {', '.join(_ALL_NAMES[:3])} and others"
            )
        if name in BROKER_STATISTIC_NAMES and key != self._cluster:
            raise _nothing_of(name, key)
        return _shown(
            request, name, key, {window: self._statistics.find(name, key, window) for window in WINDOWS}
        )

    def _measure(self, request: Command, name: str, key: str) -> Work:
        """Measure the values that are not counted; they are the same in every window."""
        parts = topic_queue_and_group(key)
        if parts is None:
            raise _nothing_of(name, key)
        behind = yield from self._behind(*parts)
        if behind is None:
            raise _nothing_of(name, key)
        value = behind[0] if name == _FALL_SIZE else behind[1]
        found = dict.fromkeys(WINDOWS, Statistic(sum=value, tps=0.0, average=float(value)))
        return _shown(request, name, key, found)

    def _list_system_topics(self, connection: ServerConnection, request: Command) -> Command | None:
        body = {"brokerAddr": self._address(), "topicList": self._system_topics}
        return reply_json(request, body)


def _shown(request: Command, name: str, key: str, found: Mapping[str, Statistic | None]) -> Command:
    if found["minute"] is None:
        raise _nothing_of(name, key)
    body = {f"stats{window.capitalize()}": _shape(statistic) for window, statistic in found.items()}
    return reply_json(request, body)


def _nothing_of(name: str, key: str) -> RequestError:
    return RefusedError(f"the field statsKey is {key[:80]!r}: {name} has nothing of it")


def _shape(statistic: Statistic | None) -> dict[str, float | int]:
    statistic = statistic or Statistic(0, 0.0, 0.0)
    return {"avgpt": statistic.average, "sum": statistic.sum, "tps": statistic.tps}
