"""Show configuration: brokers by cluster, topics and groups, as registries and brokers have it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import msgspec

from iotmq.client.admin.asking import Asking
from iotmq.client.transport.client import expect_success
from iotmq.client.transport.message import check_topic
from iotmq.client.transport.queue_tables import decode_answer
from iotmq.errors import RouteNotFoundError
from iotmq.remoting.codes import RequestCode, ResponseCode


class BrokerPlace(NamedTuple):
    """One broker process: id 0 is the master of the name."""

    cluster: str
    name: str
    broker_id: int
    address: str


class RoutedQueues(msgspec.Struct, frozen=True, rename="camel"):
    """Describe the queues of a topic at one broker, as the route names them."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    frozen_queues: tuple[int, ...] = ()


class TopicSettings(msgspec.Struct, frozen=True, rename="camel"):
    """A topic as a broker has it."""

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    order: bool = False
    frozen_queues: tuple[int, ...] = ()


class GroupSettings(msgspec.Struct, frozen=True, rename="camel"):
    """A consumer group as a broker has it."""

    group_name: str
    consume_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    consume_from_min_enable: bool = True
    notify_consumer_ids_changed_enable: bool = True
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1


class Configurations(Asking):
    """Asks registries and brokers through a client that is started; changes nothing."""

    async def brokers(self) -> list[BrokerPlace]:
        """List every broker, sorted."""
        table = await self._of_registry(
            _ClusterInfo, RequestCode.GET_BROKER_CLUSTER_INFO, {}, doing="listing brokers"
        )
        return sorted(
            BrokerPlace(group.cluster, group.broker_name, int(broker_id), address)
            for group in table.broker_addr_table.values()
            for broker_id, address in group.broker_addrs.items()
        )

    async def topics_of_cluster(self, cluster: str) -> list[str]:
        """List the names of a cluster's topics, sorted."""
        found = await self._of_registry(
            _TopicList,
            RequestCode.GET_TOPICS_BY_CLUSTER,
            {"cluster": cluster},
            doing=f"listing the topics of cluster {cluster}",
        )
        return sorted(found.topic_list)

    async def route(self, topic: str) -> list[RoutedQueues]:
        """Ask the registry for the route of a topic; RouteNotFoundError when it does not know it."""
        check_topic(topic)
        response = await self._client.registries.request(
            RequestCode.GET_ROUTE_INFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"}
        )
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            raise RouteNotFoundError(
                f"no route for topic {topic}: does it exist, and is its broker registered with "
                f"{self._client.registries.addresses_text}?"
            )
        answer = expect_success(response, f"route of topic {topic}")
        return sorted(
            decode_answer(answer.body, _Route, doing=f"route of topic {topic}").queue_datas,
            key=lambda queues: queues.broker_name,
        )

    async def topics(self, broker_names: Collection[str] = ()) -> dict[str, dict[str, TopicSettings]]:
        """Return the topics of each broker with their settings: broker name -> topic -> settings."""
        tables = await self._of_masters(
            _Topics, RequestCode.GET_ALL_TOPIC_CONFIG, doing="listing topics", broker_names=broker_names
        )
        return {name: found.topic_config_table for name, found in tables.items()}

    async def groups(self, broker_names: Collection[str] = ()) -> dict[str, dict[str, GroupSettings]]:
        """Return the groups of each broker with their settings: broker name -> group -> settings."""
        tables = await self._of_masters(
            _Groups,
            RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG,
            doing="listing groups",
            broker_names=broker_names,
        )
        return {name: found.subscription_group_table for name, found in tables.items()}


class _BrokerGroup(msgspec.Struct, rename="camel"):
    broker_name: str
    broker_addrs: dict[str, str]
    cluster: str = ""


class _ClusterInfo(msgspec.Struct, rename="camel"):
    broker_addr_table: dict[str, _BrokerGroup] = {}


class _TopicList(msgspec.Struct, rename="camel"):
    topic_list: list[str] = []


class _Route(msgspec.Struct, rename="camel"):
    queue_datas: list[RoutedQueues] = []


class _Topics(msgspec.Struct, rename="camel"):
    topic_config_table: dict[str, TopicSettings] = {}


class _Groups(msgspec.Struct, rename="camel"):
    subscription_group_table: dict[str, GroupSettings] = {}
