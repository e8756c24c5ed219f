"""Check a subscription by property before a client uses it: code 46."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from iotmq.broker.filters.consumer_filters import ConsumerFilters
from iotmq.broker.filters.subscription import SubscriptionData
from iotmq.broker.filters.tags import parse_tags
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection


class CheckClientBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Decode the filter that a client asks about, whoever asks."""

    subscription_data: SubscriptionData | None = None


class FilterHandler(RequestProcessor):
    """Answers with the code that pulls by the subscription would get."""

    def __init__(self, filters: ConsumerFilters) -> None:
        self._filters = filters

    def handlers(self) -> Mapping[int, Handler]:
        return {RequestCode.CHECK_CLIENT_CONFIG: self._check}

    def _check(self, connection: ServerConnection, request: Command) -> Command | None:
        subscription = lenient_json.decode_request(request.body, CheckClientBody).subscription_data
        if subscription is not None:
            if subscription.is_by_tag:
                parse_tags(subscription.expression)
            self._filters.check(subscription)
        return request.reply(ResponseCode.SUCCESS)
