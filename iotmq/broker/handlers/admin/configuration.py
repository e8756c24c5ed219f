"""Show and change the broker's configuration: topics (17, 21), groups (200, 201), offsets (43, 45), settings
(25, 26), runtime info (28)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from iotmq import limits
from iotmq.broker.parts import BrokerParts
from iotmq.broker.replies.reply_body import reply_json
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.scheduled.delay_offsets import DelayOffsets
from iotmq.broker.tables.subscription_groups import SubscriptionGroupConfig
from iotmq.broker.tables.system_topics import check_not_own
from iotmq.broker.tables.topics import (
    BENCHMARK_TOPIC,
    TEMPLATE_TOPIC,
    UNSENDABLE_TOPICS,
    TopicConfig,
)
from iotmq.errors import RefusedError, RequestError
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.properties_text import parse_properties, properties_text
from iotmq.remoting.server import ServerConnection

_PERMISSION_MAX = 15
_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")


class AdminHandler(RequestProcessor):
    """Shows and changes what the broker is configured to do.

    A change is in effect at once, and answered when it is on the disk (replies/reply_after_registration.py).
    """

    def __init__(
        self, parts: BrokerParts, delay_offsets: DelayOffsets, runtime_info: Callable[[], Mapping[str, str]]
    ) -> None:
        self._settings = parts.changed_settings
        self._clock = parts.clock
        self._topics = parts.topics
        self._subscription_groups = parts.subscription_groups
        self._offsets = parts.offsets
        self._delay_offsets = delay_offsets
        self._runtime_info = runtime_info
        # Topics the broker depends on; their configuration is not a client's to change.
        self._fixed_topics = UNSENDABLE_TOPICS | {
            TEMPLATE_TOPIC,
            BENCHMARK_TOPIC,
            parts.settings.cluster,
            parts.settings.name,
        }

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._put_topic,
            RequestCode.GET_ALL_TOPIC_CONFIG: self._all_topics,
            RequestCode.GET_TOPIC_CONFIG: self._one_topic,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP: self._put_group,
            RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG: self._all_groups,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._all_offsets,
            RequestCode.GET_ALL_DELAY_OFFSET: self._all_delay_offsets,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime,
            RequestCode.UPDATE_BROKER_CONFIG: self._change_settings,
            RequestCode.GET_BROKER_CONFIG: self._settings_as_text,
        }

    def _put_topic(self, connection: ServerConnection, request: Command) -> Command | None:
        name = request.text("topic")
        request.text("defaultTopic")
        queues_max = limits.QUEUES_PER_TOPIC_MAX
        read_queues = request.integer("readQueueNums", minimum=1, maximum=queues_max)
        write_queues = request.integer("writeQueueNums", minimum=1, maximum=queues_max)
        permission = request.integer("perm", minimum=0, maximum=_PERMISSION_MAX)
        filter_type = request.text("topicFilterType")
        if filter_type not in _FILTER_TYPES:
            raise RefusedError(f"the field topicFilterType is not one of {', '.join(_FILTER_TYPES)}")
        check_not_own(name, self._fixed_topics, "topic")
        current = self._topics.find(name)
        self._topics.put(
            TopicConfig(
                topic_name=name,
                read_queue_nums=read_queues,
                write_queue_nums=write_queues,
                frozen_queues=msgspec.UNSET if current is None else current.frozen_below(read_queues),
                perm=permission,
                topic_filter_type=filter_type,
                topic_sys_flag=request.integer("topicSysFlag", 0, minimum=0, maximum=2**31 - 1),
                order=request.boolean("order"),
            )
        )
        return request.reply(ResponseCode.SUCCESS)

    def _all_topics(self, connection: ServerConnection, request: Command) -> Command | None:
        return request.reply(ResponseCode.SUCCESS, body=self._topics.encode())

    def _one_topic(self, connection: ServerConnection, request: Command) -> Command | None:
        name = request.text("topic")
        config = self._topics.find(name)
        if config is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST, f"the field topic names {name}, which does not exist"
            )
        return reply_json(request, config)

    def _put_group(self, connection: ServerConnection, request: Command) -> Command | None:
        config = lenient_json.decode_request(request.body, SubscriptionGroupConfig)
        if not 0 <= config.retry_queue_nums <= limits.QUEUES_PER_TOPIC_MAX:
            raise RefusedError(f"the field retryQueueNums must be in 0..{limits.QUEUES_PER_TOPIC_MAX}")
        self._subscription_groups.put(config)
        return request.reply(ResponseCode.SUCCESS)

    def _all_groups(self, connection: ServerConnection, request: Command) -> Command | None:
        return request.reply(ResponseCode.SUCCESS, body=self._subscription_groups.encode())

    def _all_offsets(self, connection: ServerConnection, request: Command) -> Command | None:
        return request.reply(ResponseCode.SUCCESS, body=self._offsets.encode())

    def _all_delay_offsets(self, connection: ServerConnection, request: Command) -> Command | None:
        return request.reply(ResponseCode.SUCCESS, body=self._delay_offsets.encode())

    def _runtime(self, connection: ServerConnection, request: Command) -> Command | None:
        return reply_json(request, {"table": dict(self._runtime_info())})

    def _settings_as_text(self, connection: ServerConnection, request: Command) -> Command | None:
        version = msgspec.json.encode(self._settings.version).decode()
        return request.reply(
            ResponseCode.SUCCESS, ext={"version": version}, body=properties_text(self._settings.as_texts())
        )

    def _change_settings(self, connection: ServerConnection, request: Command) -> Command | None:
        values = parse_properties(request.body_bytes())
        self._settings.change(values, self._clock.now_ms())
        return request.reply(ResponseCode.SUCCESS)
