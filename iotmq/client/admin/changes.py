"""Change topics, groups and settings at all brokers and registries concerned."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from iotmq.addresses import address_text
from iotmq.client.admin.configs import Configurations
from iotmq.client.admin.groups import GroupViews
from iotmq.client.consuming.offsets import offsets
from iotmq.client.consuming.offsets.offset_reset import read_offsets
from iotmq.client.transport.calls import ask, asking, master_addresses
from iotmq.client.transport.client import ClientTransport, expect_success
from iotmq.client.transport.message import DEAD_LETTER_PREFIX, RETRY_PREFIX, check_group, check_topic
from iotmq.client.transport.routes import PERMISSION_READ, MessageQueue
from iotmq.errors import (
    BrokerError,
    ClientError,
    ConnectionClosedError,
    IotmqError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from iotmq.message.errors import MessageFormatError
from iotmq.message.message_ids import parse_offset_message_id
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.properties_text import parse_properties, properties_text

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
# What stands for the end of every queue.
END_MS: Final = -1


class _Table(msgspec.Struct):
    table: dict[str, str] = {}


class ResetOffsets(msgspec.Struct, kw_only=True):
    """The new offsets of a group. `is_live`: its members were told to move; otherwise the offsets are set."""

    offsets: dict[MessageQueue, int]
    is_live: bool


class SkippedQueue(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of a queue that a group does not get: from `begin` up to, not including, `end`."""

    queue: MessageQueue
    begin: int
    end: int
    in_flight: int
    """Messages that consumers by message hold, or that were to come again to them."""


class AdminChanges:
    """Change brokers and registries; each method raises BrokerError naming the one that refuses.

    What concerns all brokers goes to the masters; what concerns all registries must reach each of them,
    because they know nothing of one another: one that does not answer is an error, once the others know.
    """

    def __init__(self, client: ClientTransport) -> None:
        self._client = client
        self._configurations = Configurations(client)
        self._groups = GroupViews(client)

    # Topics.

    async def update_topic(
        self,
        topic: str,
        *,
        read_queues: int,
        write_queues: int,
        permissions: int = 6,
        is_ordered: bool = False,
        broker_names: Collection[str] = (),
    ) -> list[str]:
        """Make a topic, or give it these values, at the brokers named (all); returns their names."""
        check_topic(topic)
        ext = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": str(read_queues),
            "writeQueueNums": str(write_queues),
            "perm": str(permissions),
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "true" if is_ordered else "false",
        }
        names = await self._ask_masters(
            RequestCode.UPDATE_AND_CREATE_TOPIC, ext, broker_names, f"topic {topic}"
        )
        if is_ordered:
            value = ";".join(f"{name}:{write_queues}" for name in names)
            await self.put_value(ORDER_NAMESPACE, topic, value)
        return names

    async def pause_topic(self, topic: str, broker_names: Collection[str] = ()) -> list[str]:
        """Let nobody read a topic, which still takes messages; returns the names of the brokers that have it.

        RouteNotFoundError when none has. It stays paused over restarts, until `resume_topic`.
        """
        return await self._set_readable(topic, broker_names, is_readable=False)

    async def resume_topic(self, topic: str, broker_names: Collection[str] = ()) -> list[str]:
        """Let a paused topic be read again; returns the names of the brokers that have it."""
        return await self._set_readable(topic, broker_names, is_readable=True)

    async def delete_topic(self, topic: str) -> list[str]:
        """Delete a topic with its messages and offsets, everywhere; returns the brokers' names."""
        ext = {"topic": topic}
        doing = f"deleting topic {topic}"
        names = await self._ask_masters(RequestCode.DELETE_TOPIC_IN_BROKER, ext, (), doing)
        await self._tell_registries(RequestCode.DELETE_TOPIC_IN_REGISTRY, ext, doing)
        return names

    async def clean_unused_topics(self, broker_names: Collection[str] = ()) -> list[str]:
        """Delete what is left of topics that are not configured; returns the brokers' names."""
        return await self._ask_masters(
            RequestCode.CLEAN_UNUSED_TOPIC, {}, broker_names, "cleaning unused topics"
        )

    async def delete_expired(self, broker_names: Collection[str] = ()) -> list[str]:
        """Delete log files past their age now; returns the brokers' names."""
        return await self._ask_masters(
            RequestCode.DELETE_EXPIRED_COMMIT_LOG, {}, broker_names, "deleting expired files"
        )

    # Groups.

    async def update_group(
        self, group: str, settings: Mapping[str, Any], broker_names: Collection[str] = ()
    ) -> list[str]:
        """Make a group, or change it: `settings` as in SubscriptionGroupConfig, such as retryMaxTimes."""
        check_group(group)
        body = msgspec.json.encode({**settings, "groupName": group})
        return await self._ask_masters(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, broker_names, f"group {group}", body
        )

    async def change_group(
        self, group: str, settings: Mapping[str, Any], broker_names: Collection[str] = ()
    ) -> list[str]:
        """As `update_group`, but settings that are not named stay as they are at each broker."""
        check_group(group)
        changed: list[str] = []
        for broker, groups in sorted((await self._configurations.groups(broker_names)).items()):
            known = msgspec.to_builtins(groups[group]) if group in groups else {}
            changed += await self.update_group(group, {**known, **settings}, [broker])
        return changed

    async def pause_group(self, group: str, broker_names: Collection[str] = ()) -> list[str]:
        """Give a group no messages; its offsets stay. It stays paused over restarts, until `resume_group`.

        Returns the brokers' names.
        """
        return await self.change_group(group, {"consumeEnable": False}, broker_names)

    async def resume_group(self, group: str, broker_names: Collection[str] = ()) -> list[str]:
        """Give a paused group messages again; returns the brokers' names."""
        return await self.change_group(group, {"consumeEnable": True}, broker_names)

    async def delete_group(self, group: str, *, with_offsets: bool = True) -> list[str]:
        """Delete a group with its retry and dead letter topics, everywhere; returns the brokers' names."""
        check_group(group)
        names = await self._ask_masters(
            RequestCode.DELETE_SUBSCRIPTION_GROUP,
            {"groupName": group, "removeOffset": "true" if with_offsets else "false"},
            (),
            f"deleting group {group}",
        )
        for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
            await self.delete_topic(prefix + group)
        return names

    async def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int, *, is_forced: bool = True
    ) -> ResetOffsets:
        """Move a group to a time (END_MS: the end). Live members are told, else offsets are set.

        Without force no queue goes forward.
        """
        check_group(group)
        route = await self._client.routes.find_for_reading(topic, timeout_s=1.0)
        moved: dict[MessageQueue, int] = {}
        is_live = False
        ext = {
            "topic": topic,
            "group": group,
            "timestamp": str(timestamp_ms),
            "isForce": "true" if is_forced else "false",
        }
        for name in sorted({queue.broker_name for queue in route.readable}):
            address = route.master(name)
            if address is None:
                raise RouteNotFoundError(f"broker {name} of topic {topic} has no master now")
            with asking(f"moving group {group} at broker {name}"):
                response = await self._client.request(
                    address, Command.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext)
                )
            if response.code == ResponseCode.CONSUMER_NOT_ONLINE:
                queues = [queue for queue in route.readable if queue.broker_name == name]
                moved.update(await self._reset_offline(group, queues, timestamp_ms, is_forced=is_forced))
                continue
            expect_success(response, f"moving group {group} at broker {name}")
            is_live = True
            moved.update(read_offsets(response))
        return ResetOffsets(offsets=moved, is_live=is_live)

    async def skip_to_now(
        self, group: str, topics: Collection[str] = (), *, only_look: bool = False
    ) -> list[SkippedQueue]:
        """Let a group go on at the end of its queues, in all topics it consumes or in some.

        Returns what is skipped, without the queues that have nothing to skip; with `only_look` nothing is
        changed. What consumers by message have in flight counts as done. ClientError when the group does not
        consume one of `topics`.
        """
        found = (await self._groups.progress(group)).queues
        live = await self._groups.connections(group)
        consumed = {queue.topic for queue in found}
        for topic in () if live is None else live.subscription_table.keys() - consumed:
            # A new group may have committed nothing of it, or there is no such topic yet.
            with suppress(RouteNotFoundError):
                found.update((await self._groups.progress(group, topic)).queues)
                consumed.add(topic)
        for topic in topics:
            if topic not in consumed:
                raise ClientError(f"group {group} has no offsets in topic {topic}")
        wanted = set(topics) or consumed
        found = {queue: lag for queue, lag in found.items() if queue.topic in wanted}
        ends: dict[MessageQueue, int] = {}
        if not only_look:
            for topic in sorted(wanted):
                ends.update((await self.reset_offsets(group, topic, END_MS)).offsets)
        return [
            SkippedQueue(queue=queue, begin=lag.consumer_offset, end=end, in_flight=lag.in_flight)
            for queue, lag in sorted(found.items())
            if (end := lag.broker_offset if only_look else ends.get(queue, 0)) > lag.consumer_offset
        ]

    async def clone_offsets(
        self, source: str, target: str, topic: str = "", *, is_offline: bool = True
    ) -> list[str]:
        """Copy the offsets of a group to another one, in one topic or in all; returns the brokers' names."""
        check_group(source)
        check_group(target)
        ext = {"srcGroup": source, "destGroup": target, "offline": "true" if is_offline else "false"}
        broker_names: set[str] = set()
        if topic:
            ext["topic"] = topic
            route = await self._client.routes.find_for_reading(topic, timeout_s=1.0)
            broker_names = {queue.broker_name for queue in route.readable}
        return await self._ask_masters(
            RequestCode.CLONE_GROUP_OFFSET, ext, broker_names, f"cloning the offsets of group {source}"
        )

    async def resume_transaction(self, message_id: str) -> None:
        """Have a producer asked again about a transaction that was given up.

        `message_id` is the one with the place of its message in TRANS_CHECK_MAX_TIME_TOPIC.
        """
        try:
            host, port, _ = parse_offset_message_id(message_id)
        except MessageFormatError as error:
            raise ClientError(str(error)) from error
        address = address_text(host, port)
        await ask(
            self._client,
            address,
            RequestCode.RESUME_CHECK_HALF_MESSAGE,
            {"msgId": message_id},
            doing=f"resuming transaction {message_id}",
        )

    # Brokers and registries.

    async def broker_settings(self, broker_name: str) -> dict[str, str]:
        """Return every setting of a broker."""
        (address,) = (await master_addresses(self._client, [broker_name])).values()
        response = await ask(
            self._client,
            address,
            RequestCode.GET_BROKER_CONFIG,
            {},
            doing=f"settings of broker {broker_name}",
        )
        return parse_properties(response.body_bytes())

    async def change_broker_settings(
        self, settings: Mapping[str, str], broker_names: Collection[str] = ()
    ) -> list[str]:
        """Change settings of running brokers; returns their names."""
        return await self._ask_masters(
            RequestCode.UPDATE_BROKER_CONFIG, {}, broker_names, "settings", properties_text(settings)
        )

    async def registry_settings(self) -> dict[str, dict[str, str]]:
        """Return every setting of each registry, by its address."""
        found: dict[str, dict[str, str]] = {}
        for address in self._client.registries.addresses:
            response = await ask(
                self._client,
                address,
                RequestCode.GET_REGISTRY_CONFIG,
                {},
                doing=f"settings of registry {address}",
            )
            found[address] = parse_properties(response.body_bytes())
        return found

    async def change_registry_settings(self, settings: Mapping[str, str]) -> None:
        """Change settings of all registries."""
        await self._tell_registries(
            RequestCode.UPDATE_REGISTRY_CONFIG, {}, "settings", properties_text(settings)
        )

    async def set_writable(self, broker_name: str, *, is_writable: bool) -> int:
        """Take the write permission of all topics of a broker from the routes, or give it back.

        Lasts until the broker's topics change. Returns how many topics it has.
        """
        code = RequestCode.ADD_WRITE_PERM_OF_BROKER if is_writable else RequestCode.WIPE_WRITE_PERM_OF_BROKER
        field = "addTopicCount" if is_writable else "wipeTopicCount"
        answers = await self._tell_registries(
            code, {"brokerName": broker_name}, f"write permission of broker {broker_name}"
        )
        count = max(answer.integer(field, 0) for answer in answers)
        if count == 0:
            raise RouteNotFoundError(
                f"no broker named {broker_name} has topics: registered are "
                f"{', '.join(sorted(await self._client.registries.cluster())) or 'none'}"
            )
        return count

    # Key-value settings of the registries.

    async def put_value(self, namespace: str, key: str, value: str) -> None:
        """Set a value at every registry."""
        ext = {"namespace": namespace, "key": key, "value": value}
        await self._tell_registries(RequestCode.PUT_KV_CONFIG, ext, f"value {namespace}/{key}")

    async def delete_value(self, namespace: str, key: str) -> None:
        """Delete a value at every registry."""
        ext = {"namespace": namespace, "key": key}
        await self._tell_registries(RequestCode.DELETE_KV_CONFIG, ext, f"value {namespace}/{key}")

    async def value(self, namespace: str, key: str) -> str | None:
        """Return the value of a key, None when there is none."""
        response = await self._client.registries.request(
            RequestCode.GET_KV_CONFIG, {"namespace": namespace, "key": key}
        )
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return expect_success(response, f"value {namespace}/{key}").text("value")

    async def values(self, namespace: str) -> dict[str, str]:
        """Return all values of a namespace."""
        response = await self._client.registries.request(
            RequestCode.GET_KV_LIST_BY_NAMESPACE, {"namespace": namespace}
        )
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return {}
        body = expect_success(response, f"values of {namespace}").body_bytes()
        try:
            return msgspec.json.decode(body, type=_Table).table
        except msgspec.DecodeError as error:
            raise BrokerError(1, f"the registry's values of {namespace} cannot be read: {error}") from error

    # ------------------------------------------------------------------------------------------------

    async def _set_readable(
        self, topic: str, broker_names: Collection[str], *, is_readable: bool
    ) -> list[str]:
        changed: list[str] = []
        for broker, topics in sorted((await self._configurations.topics(broker_names)).items()):
            found = topics.get(topic)
            if found is not None:
                permissions = found.perm | PERMISSION_READ if is_readable else found.perm & ~PERMISSION_READ
                changed += await self.update_topic(
                    topic,
                    read_queues=found.read_queue_nums,
                    write_queues=found.write_queue_nums,
                    permissions=permissions,
                    is_ordered=found.order,
                    broker_names=[broker],
                )
        if not changed:
            raise RouteNotFoundError(f"no broker has topic {topic}")
        return changed

    async def _reset_offline(
        self, group: str, queues: list[MessageQueue], timestamp_ms: int, *, is_forced: bool
    ) -> dict[MessageQueue, int]:
        moved: dict[MessageQueue, int] = {}
        for queue in queues:
            if timestamp_ms == END_MS:
                offset = await offsets.max_offset(self._client, queue)
            else:
                offset = await offsets.offset_at_time(self._client, queue, timestamp_ms)
            if not is_forced:
                stored = await offsets.stored_offset(self._client, group, queue)
                offset = offset if stored is None else min(stored, offset)
            await offsets.commit_offset(self._client, group, queue, offset)
            moved[queue] = offset
        return moved

    async def _ask_masters(
        self, code: int, ext: Mapping[str, str], broker_names: Collection[str], doing: str, body: bytes = b""
    ) -> list[str]:
        """Ask masters one by one; returns their names. BrokerError for the first refusal."""
        masters = await master_addresses(self._client, broker_names)
        for name, address in sorted(masters.items()):
            await ask(self._client, address, code, ext, body, doing=f"{doing} at broker {name}")
        return sorted(masters)

    async def _tell_registries(
        self, code: int, ext: dict[str, str], doing: str, body: bytes = b""
    ) -> list[Command]:
        """Send a request to every registry; an error names those that did not accept it."""
        answers: list[Command] = []
        failures: list[tuple[str, IotmqError]] = []
        for address in self._client.registries.addresses:
            try:
                response = await self._client.request(address, Command.request(code, ext, body))
                answers.append(expect_success(response, f"{doing} at registry {address}"))
            except (BrokerError, ConnectionClosedError, RequestTimeoutError) as error:
                failures.append((address, error))
        if not failures:
            return answers
        if len(failures) == len(self._client.registries.addresses) == 1:
            raise failures[0][1]
        text = "; ".join(str(error) for _, error in failures)
        raise ClientError(
            f"{doing}: {len(answers)} of {len(answers) + len(failures)} registries have it. Do it again when "
            f"the others answer: {text}"
        )
