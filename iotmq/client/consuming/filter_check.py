"""Ask brokers to check an SQL92 filter before it is used (request 46)."""

from __future__ import annotations

import msgspec

from iotmq.client.transport.client import ClientTransport
from iotmq.client.transport.subscriptions import Subscription, SubscriptionData, subscription_data
from iotmq.errors import ClientClosedError, ConnectionClosedError, RequestTimeoutError, SubscriptionError
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command

# What a broker says that knows the question and refuses the filter.
_REFUSALS = (ResponseCode.SYSTEM_ERROR, ResponseCode.SUBSCRIPTION_PARSE_FAILED)


class _CheckClient(msgspec.Struct, rename="camel"):
    """The body of request 46."""

    client_id: str
    group: str
    subscription_data: SubscriptionData


async def check_filter(client: ClientTransport, group: str, subscription: Subscription) -> None:
    """Raise SubscriptionError when one of the topic's brokers refuses an SQL92 expression.

    Subscriptions by tag pass, and all when no broker of the topic is known or answers: pulls will tell.
    """
    if not subscription.is_sql:
        return
    route = client.routes.known(subscription.topic)
    by_broker = {} if route is None else route.addresses
    addresses = [address for by_id in by_broker.values() for address in by_id.values()]
    body = msgspec.json.encode(_CheckClient(client.client_id, group, subscription_data(subscription)))
    for address in addresses:
        try:
            response = await client.request(
                address, Command.request(RequestCode.CHECK_CLIENT_CONFIG, {}, body)
            )
        except (ConnectionClosedError, RequestTimeoutError, ClientClosedError):
            continue
        if response.code in _REFUSALS:
            raise SubscriptionError(
                f"the subscription to {subscription.topic} is refused by {address}: {response.remark}"
            )
