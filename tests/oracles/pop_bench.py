"""A whole broker over a real store, without sockets, and consumers that pop; started again at will."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any, NamedTuple

from eventually import eventually, until
from fake_connection import FakeConnection
from manual_clock import ManualClock
from store_model import wait_flushed

from iotmq.broker.broker import Broker
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.subscription_groups import SubscriptionGroupConfig
from iotmq.broker.writing.message_writer import RefusedBatch, StoredBatch
from iotmq.errors import RequestError
from iotmq.message.hosts import encode_host
from iotmq.message.properties import encode_properties
from iotmq.message.records.record import Record, encode_batch, iter_records
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST = encode_host("127.0.0.1", 10911)


class Popped(NamedTuple):
    """A message with its receipt."""

    record: Record
    receipt: str

    @property
    def body(self) -> bytes:
        return self.record.body


class Bench:
    """One broker, with topic T of 2 queues and group G. `restart` keeps the log and the saved offsets."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.settings = settings
        self.connection = FakeConnection()
        self.flush = "async"
        self.segment_bytes = 16 << 20

    async def start(self) -> None:
        self.store = Store.open(
            self.directory / "data",
            StoreSettings(segment_bytes=self.segment_bytes, flush=self.flush),  # type: ignore[arg-type]
            store_host=HOST,
            clock=self.clock,
        )
        settings = BrokerSettings(listen_port=0, registries=(), cluster="C", **self.settings)
        self.broker = Broker(
            settings, self.store, directory=self.directory, store_host=HOST, clock=self.clock
        )
        self.pops = self.broker.native._pops
        await self.broker.start()
        self.broker.topics.ensure("T", queues=2)
        if self.broker.subscription_groups.find("G") is None:
            self.group()

    def group(self, name: str = "G", *, retry_max_times: int = 16) -> None:
        self.broker.subscription_groups.put(
            SubscriptionGroupConfig(group_name=name, retry_max_times=retry_max_times)
        )

    async def restart(self, *, is_killed: bool = False) -> None:
        """After a kill the offsets are those of the last save."""
        offsets = self.directory / "config" / "consumerOffset.json"
        kept = offsets.read_bytes() if offsets.exists() else None
        await self.close()
        if is_killed:
            offsets.unlink(missing_ok=True)
            if kept is not None:
                offsets.write_bytes(kept)
        await self.start()

    async def close(self) -> None:
        await self.broker.stop()
        assert self.store.check() == []
        self.store.close()

    def put(self, *bodies: bytes, queue_id: int = 0, topic: str = "T", **properties: str) -> None:
        answers: list[StoredBatch | RefusedBatch] = []
        self.broker.writer.append(
            topic,
            queue_id,
            encode_batch([(body, encode_properties(properties), 0) for body in bodies]),
            born_timestamp_ms=1,
            born_host=HOST,
            done=answers.append,
        )
        self.broker.writer.write_out()

    def move(self, seconds: float) -> None:
        """Move the clock, and do everything whose time has come."""
        self.clock.advance(seconds)
        self.broker.expire()
        self.pops.check_invariants()

    async def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
        """The answer to a request, when it comes."""
        request = Command.request(code, ext, body)
        connection = FakeConnection()
        try:
            answer = self.broker.requests.handle(connection, request)  # type: ignore[arg-type]
        except RequestError as error:
            return request.reply(error.code, remark=str(error))
        if answer is None:
            await until(lambda: connection.replies)
            [answer] = connection.replies
        self.pops.check_invariants()
        return answer

    def pop_ext(self, **changes: str) -> dict[str, str]:
        return {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": "-1",
            "maxMsgNums": "32",
            "invisibleTime": "10000",
            "pollTime": "0",
            "bornTime": "0",
            "initMode": "0",
            "expType": "TAG",
            "exp": "*",
            "order": "false",
            **changes,
        }

    async def pop(self, **changes: str) -> list[Popped]:
        """Pop now; nothing when there is nothing."""
        answer = await self.ask(RequestCode.POP_MESSAGE, self.pop_ext(**changes))
        if answer.code == ResponseCode.POLLING_TIMEOUT:
            return []
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return popped(answer)

    def wait(self, **changes: str) -> FakeConnection:
        """Pop, and wait; its answer comes to the connection."""
        connection = FakeConnection()
        ext = self.pop_ext(**{"pollTime": "15000", **changes})
        request = Command.request(RequestCode.POP_MESSAGE, ext)
        answer = self.broker.requests.handle(connection, request)  # type: ignore[arg-type]
        if answer is not None:
            connection.reply(answer)
        return connection

    def held(self, message: Popped, **changes: str) -> dict[str, str]:
        return {
            "consumerGroup": "G",
            "topic": message.record.topic,
            "queueId": str(message.record.queue_id),
            "offset": str(message.record.queue_offset),
            "extraInfo": message.receipt,
            **changes,
        }

    async def ack(self, *messages: Popped, **changes: str) -> list[int]:
        """Acknowledge one by one; the codes of the answers."""
        answers = [
            await self.ask(RequestCode.ACK_MESSAGE, self.held(message, **changes)) for message in messages
        ]
        return [answer.code for answer in answers]

    async def ack_many(self, *messages: Popped) -> int:
        """Acknowledge messages in one request, as RocketMQ's clients put it together."""
        acks: dict[tuple[str, str], dict[str, Any]] = {}
        for message in messages:
            start, popped_ms, invisible, *_, queue_id, offset = message.receipt.split(" ")
            ack = acks.setdefault(
                (queue_id, popped_ms),
                {"c": "G", "t": "T", "r": "0", "so": int(start), "q": int(queue_id), "rq": 0}
                | {"pt": int(popped_ms), "it": int(invisible), "b": 0},
            )
            ack["b"] |= 1 << int(offset) - int(start)
        for ack in acks.values():
            bits = ack["b"].to_bytes((ack["b"].bit_length() + 7) // 8, "little")
            ack["b"] = base64.b64encode(bits).decode()
        body = json.dumps({"brokerName": "b", "acks": list(acks.values())}).encode()
        return (await self.ask(RequestCode.BATCH_ACK_MESSAGE, {}, body)).code

    async def change(self, message: Popped, invisible_ms: int) -> Popped | int:
        """Have a message invisible for so long from now on; its new receipt, or the code of a refusal."""
        answer = await self.ask(
            RequestCode.CHANGE_MESSAGE_INVISIBLE_TIME, self.held(message, invisibleTime=str(invisible_ms))
        )
        if answer.code != ResponseCode.SUCCESS:
            return answer.code
        offset, queue_id = message.record.queue_offset, message.record.queue_id
        receipt = f"{offset} {answer.ext['popTime']} {invisible_ms} 0 0 b {queue_id} {offset}"
        return message._replace(receipt=receipt)

    def trim(self) -> None:
        """Let three days pass, and the log go as far as it may."""
        wait_flushed(self.store)
        self.clock.advance(80 * 3_600)
        self.store.delete_expired()

        def is_done() -> bool:
            self.clock.advance(1)
            self.store.retain()
            return self.store.min_position > 0

        eventually(is_done, "the log begins later")

    async def set_mode(self, mode: str, *, topic: str = "T") -> int:
        body = json.dumps(
            {"topic": topic, "consumerGroup": "G", "mode": mode, "popShareQueueNum": 0}
        ).encode()
        return (await self.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, body)).code

    async def assigned(self, client_id: str = "c1", **changes: str) -> list[tuple[int, str]]:
        """What a consumer is told: queue ids and modes."""
        wanted = {"topic": "T", "consumerGroup": "G", "clientId": client_id, "strategyName": "AVG"}
        body = json.dumps({**wanted, "messageModel": "CLUSTERING", **changes}).encode()
        answer = await self.ask(RequestCode.QUERY_ASSIGNMENT, {}, body)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        found = json.loads(answer.body_bytes())["messageQueueAssignments"]
        return sorted((each["messageQueue"]["queueId"], each["mode"]) for each in found)

    def dead_letters(self, group: str = "G") -> list[Record]:
        self.broker.writer.write_out()
        queue = self.store.find_queue(f"%DLQ%{group}", 0)
        if queue is None:
            return []
        read = self.store.read(queue, 0, records_max=1_000, bytes_max=1 << 20)
        return [record for view in read.views for record in iter_records(view)]

    async def settle(self) -> None:
        """Let the loop do what it has scheduled."""
        for _ in range(5):
            await asyncio.sleep(0)


def popped(answer: Command) -> list[Popped]:
    """Read the messages of an answer with their receipts, as clients make these."""
    views = answer.body if isinstance(answer.body, list) else [answer.body]
    records = [record for view in views for record in iter_records(view)]
    starts = [each.split(" ") for each in answer.ext["startOffsetInfo"].split(";")]
    start_of = {int(queue_id): start for _, queue_id, start in starts}
    named = {
        (int(queue_id), int(offset))
        for _, queue_id, offsets in (each.split(" ") for each in answer.ext["msgOffsetInfo"].split(";"))
        for offset in offsets.split(",")
    }
    assert named == {(record.queue_id, record.queue_offset) for record in records}
    times = f"{answer.ext['popTime']} {answer.ext['invisibleTime']} {answer.ext['reviveQid']} 0 b"
    return [
        Popped(record, f"{start_of[record.queue_id]} {times} {record.queue_id} {record.queue_offset}")
        for record in records
    ]
