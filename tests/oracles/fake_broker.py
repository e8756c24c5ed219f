"""A registry and brokers in memory, slow and obvious, that do what a test's script says for a while."""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from typing import Any

from iotmq.client.transport.masters import Master
from iotmq.message.records.record import encode_record
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import Listening, RemotingServer, ServerConnection

SILENT = "silent"
CLOSE = "close"
CLOSE_AFTER = "close after doing it"


def split_batch(body: bytes) -> list[tuple[bytes, bytes, int]]:
    """(body, properties, flag) of each element of a batch body."""
    elements = []
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4])
        flag = int.from_bytes(body[at + 12 : at + 16])
        body_size = int.from_bytes(body[at + 16 : at + 20])
        properties_at = at + 22 + body_size
        elements.append((body[at + 20 : at + 20 + body_size], body[properties_at : at + size], flag))
        at += size
    return elements


class _Handler:
    """Counts requests and lets the script go first."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.requests: list[Command] = []
        self.script: dict[int, deque[Any]] = defaultdict(deque)
        self.server = RemotingServer(self, Listening(host=host, port=port))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def seen(self, code: int) -> list[Command]:
        return [request for request in self.requests if request.code == code]

    async def start(self) -> None:
        await self.server.start()

    async def stop(self) -> None:
        await self.server.stop()

    async def restart(self) -> None:
        """Stop and listen on the same port again."""
        port = self.server.port
        await self.server.stop()
        self.server = RemotingServer(self, Listening(port=port))
        await self.server.start()

    def handle(self, connection: ServerConnection, request: Command) -> Command | None:
        self.requests.append(request)
        script = self.script[request.code]
        step = script.popleft() if script else None
        if step == SILENT:
            return None
        if step == CLOSE:
            connection.close()
            return None
        if isinstance(step, int):
            return request.reply(step, remark=f"scripted {step}")
        answer = self.answer(connection, request)
        if step == CLOSE_AFTER:
            connection.close()
            return None
        return answer

    def answer(self, connection: ServerConnection, request: Command) -> Command | None:
        raise NotImplementedError

    def connection_lost(self, connection: ServerConnection) -> None:
        pass


class FakeRegistry(_Handler):
    """Knows the brokers it is given and answers 105, 106 and 206."""

    def __init__(self, *brokers: FakeBroker) -> None:
        super().__init__()
        self.brokers = list(brokers)

    def answer(self, connection: ServerConnection, request: Command) -> Command | None:
        if request.code == RequestCode.GET_ROUTE_INFO_BY_TOPIC:
            topic = request.ext["topic"]
            having = [broker for broker in self.brokers if topic in broker.topics]
            if not having:
                return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark="no route")
            body = {
                "brokerDatas": [broker.data() for broker in having],
                "filterServerTable": {},
                "queueDatas": [
                    {
                        "brokerName": broker.name,
                        "perm": broker.perms.get(topic, 6),
                        "readQueueNums": len(broker.topics[topic]),
                        "writeQueueNums": len(broker.topics[topic]),
                        "topicSysFlag": 0,
                    }
                    for broker in having
                ],
            }
            return request.reply(0, body=json.dumps(body).encode())
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            table = {broker.name: broker.data() for broker in self.brokers}
            return request.reply(0, body=json.dumps({"brokerAddrTable": table}).encode())
        if request.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_REGISTRY:
            topics = sorted({topic for broker in self.brokers for topic in broker.topics})
            return request.reply(0, body=json.dumps({"topicList": topics}).encode())
        return request.not_supported()


class WatchedRegistry(FakeRegistry):
    """Tells what `masters` is set to, and parks who knows it already."""

    def __init__(self, *brokers: FakeBroker) -> None:
        super().__init__(*brokers)
        self._masters: dict[str, Master] = {}
        self._version = 0
        self.parked: list[tuple[ServerConnection, Command]] = []
        self.make_answer: Callable[[Command], Command | None] | None = None

    def tell(self, **masters: Master) -> None:
        self._masters = masters
        self._version += 1
        parked, self.parked = self.parked, []
        for connection, request in parked:
            connection.reply(self._answer(request))

    def answer(self, connection: ServerConnection, request: Command) -> Command | None:
        if request.code != RequestCode.WATCH_MASTERS:
            return super().answer(connection, request)
        if self.make_answer is not None:
            return self.make_answer(request)
        if request.ext["version"] == str(self._version):
            self.parked.append((connection, request))
            return None
        return self._answer(request)

    def _answer(self, request: Command) -> Command:
        masters = {name: {"address": at, "epoch": epoch} for name, (at, epoch) in self._masters.items()}
        return request.reply(0, body=json.dumps({"version": str(self._version), "masters": masters}).encode())


class FakeBroker(_Handler):
    """Queues as lists of records; holds pulls, shares groups out, stores offsets."""

    def __init__(self, name: str = "broker-a", *, port: int = 0, auto_create: bool = True) -> None:
        super().__init__(port=port)
        self.name = name
        self.topics: dict[str, list[list[bytes]]] = {}
        self.perms: dict[str, int] = {}
        if auto_create:
            self.add_topic("TBW102", 8)
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.members: dict[str, dict[ServerConnection, str]] = defaultdict(dict)
        self.held: list[tuple[ServerConnection, Command]] = []
        self.given_back: Counter[int] = Counter()
        self.locks: dict[tuple[str, str, int], str] = {}
        self.position = 0

    def data(self) -> dict[str, Any]:
        return {"brokerName": self.name, "brokerAddrs": {"0": self.address}, "cluster": "c"}

    def add_topic(self, topic: str, queue_count: int = 4) -> None:
        self.topics[topic] = [[] for _ in range(queue_count)]

    def store(self, topic: str, queue_id: int, body: bytes, properties: bytes = b"", **fields: Any) -> int:
        queue = self.topics[topic][queue_id]
        record = encode_record(
            topic=topic,
            body=body,
            properties=properties,
            queue_id=queue_id,
            queue_offset=len(queue),
            position=self.position,
            **fields,
        )
        self.position += len(record)
        queue.append(record)
        self.wake()
        return len(queue) - 1

    def stored_bodies(self, topic: str) -> list[bytes]:
        return [
            record[88 : 88 + int.from_bytes(record[84:88])]
            for queue in self.topics.get(topic, [])
            for record in queue
        ]

    def wake(self) -> None:
        held, self.held = self.held, []
        for connection, request in held:
            answer = self._pull(connection, request)
            if answer is not None:
                connection.reply(answer)

    def release_holds(self) -> None:
        """Answer all held pulls with "nothing new"."""
        held, self.held = self.held, []
        for connection, request in held:
            connection.reply(self._nothing(request, 19, int(request.ext["queueOffset"])))

    def notify(self, group: str) -> None:
        for connection in self.members[group]:
            connection.send_oneway(
                Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})
            )

    def connection_lost(self, connection: ServerConnection) -> None:
        self.held = [entry for entry in self.held if entry[0] is not connection]
        for group, members in self.members.items():
            if members.pop(connection, None) is not None:
                self.notify(group)

    def answer(self, connection: ServerConnection, request: Command) -> Command | None:
        ext = request.ext
        match request.code:
            case RequestCode.HEART_BEAT:
                self._heartbeat(connection, json.loads(request.body_bytes()))
                return request.reply(0)
            case RequestCode.UNREGISTER_CLIENT:
                group = ext.get("consumerGroup", "")
                if self.members[group].pop(connection, None) is not None:
                    self.notify(group)
                return request.reply(0)
            case RequestCode.SEND_MESSAGE_V2 | RequestCode.SEND_BATCH_MESSAGE:
                return self._send(request)
            case RequestCode.PULL_MESSAGE:
                return self._pull(connection, request)
            case RequestCode.QUERY_CONSUMER_OFFSET:
                key = (ext["consumerGroup"], ext["topic"], int(ext["queueId"]))
                if key not in self.offsets:
                    return request.reply(ResponseCode.QUERY_NOT_FOUND, remark="none")
                return request.reply(0, ext={"offset": str(self.offsets[key])})
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                key = (ext["consumerGroup"], ext["topic"], int(ext["queueId"]))
                self.offsets[key] = int(ext["commitOffset"])
                return request.reply(0)
            case RequestCode.GET_MAX_OFFSET:
                return request.reply(
                    0, ext={"offset": str(len(self.topics[ext["topic"]][int(ext["queueId"])]))}
                )
            case RequestCode.GET_MIN_OFFSET | RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                return request.reply(0, ext={"offset": "0"})
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                ids = sorted(self.members[ext["consumerGroup"]].values())
                if not ids:
                    return request.reply(1, remark="no consumer for this group")
                return request.reply(0, body=json.dumps({"consumerIdList": ids}).encode())
            case RequestCode.CONSUMER_SEND_MESSAGE_BACK:
                self.given_back[int(ext["offset"])] += 1
                return request.reply(0)
            case RequestCode.LOCK_BATCH_QUEUES | RequestCode.UNLOCK_BATCH_QUEUES:
                return self._lock(request, json.loads(request.body_bytes()))
            case RequestCode.UPDATE_AND_CREATE_TOPIC:
                self.add_topic(ext["topic"], int(ext["writeQueueNums"]))
                return request.reply(0)
        return request.not_supported()

    def _lock(self, request: Command, body: dict[str, Any]) -> Command:
        locked = []
        for queue in body["mqSet"]:
            key = (body["consumerGroup"], queue["topic"], queue["queueId"])
            if request.code == RequestCode.UNLOCK_BATCH_QUEUES:
                if self.locks.get(key) == body["clientId"]:
                    del self.locks[key]
            elif self.locks.setdefault(key, body["clientId"]) == body["clientId"]:
                locked.append(queue)
        return request.reply(0, body=json.dumps({"lockOKMQSet": locked}).encode())

    def _heartbeat(self, connection: ServerConnection, body: dict[str, Any]) -> None:
        for consumer in body["consumerDataSet"]:
            group = consumer["groupName"]
            self.topics.setdefault(f"%RETRY%{group}", [[]])
            if self.members[group].get(connection) != body["clientID"]:
                self.members[group][connection] = body["clientID"]
                self.notify(group)

    def _send(self, request: Command) -> Command:
        ext = request.ext
        topic = ext["b"]
        if topic not in self.topics:
            if "TBW102" not in self.topics:
                return request.reply(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic {topic} does not exist")
            self.add_topic(topic, min(int(ext["d"]), 8))
        queue_id = int(ext["e"])
        properties = ext.get("i", "").encode()
        if ext["m"] == "true":
            elements = split_batch(request.body_bytes())
        else:
            elements = [(request.body_bytes(), properties, int(ext["h"]))]
        offsets = [
            self.store(topic, queue_id, body, props, flag=flag, sys_flag=int(ext["f"]))
            for body, props, flag in elements
        ]
        return request.reply(
            0,
            ext={
                "msgId": ",".join(f"{offset:032X}" for offset in offsets),
                "queueId": str(queue_id),
                "queueOffset": str(offsets[0]),
            },
        )

    def _nothing(self, request: Command, code: int, next_offset: int) -> Command:
        queue = self.topics[request.ext["topic"]][int(request.ext["queueId"])]
        return request.reply(
            code,
            ext={
                "suggestWhichBrokerId": "0",
                "nextBeginOffset": str(next_offset),
                "minOffset": "0",
                "maxOffset": str(len(queue)),
            },
        )

    def _pull(self, connection: ServerConnection, request: Command) -> Command | None:
        ext = request.ext
        queue = self.topics[ext["topic"]][int(ext["queueId"])]
        offset = int(ext["queueOffset"])
        if offset > len(queue):
            return self._nothing(request, 21, len(queue))
        if offset == len(queue):
            if int(ext["sysFlag"]) & 2 and int(ext["suspendTimeoutMillis"]) > 0:
                self.held.append((connection, request))
                return None
            return self._nothing(request, 19, offset)
        records = queue[offset : offset + int(ext["maxMsgNums"])]
        answer = self._nothing(request, 0, offset + len(records))
        answer.body = b"".join(records)
        return answer
