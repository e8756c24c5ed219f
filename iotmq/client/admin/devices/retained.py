"""Read the retained messages of several brokers, each of which may have one for a topic, and end them.

A topic's messages go to another broker when queues come and go. The last one counts, by the clock of the
front end that sent it to its broker: a broker may store one late, when nobody waits for its answer any more.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from iotmq.client.admin.asking import Asking
from iotmq.client.admin.cursors import decode_cursor, encode_cursor
from iotmq.client.sending.device_messages import DEVICE_TOPIC, device_message
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.calls import ask_masters
from iotmq.client.transport.message import StoredMessage
from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import BrokerError, ClientError
from iotmq.message.errors import MessageFormatError
from iotmq.message.properties import MQTT_TOPIC
from iotmq.message.records.record import decode_record, property_value
from iotmq.ports.sessions import Refused, RetainedRecords
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command

_TOPIC = MQTT_TOPIC.encode()
_PAGE_BYTES: Final = 1024 * 1024


class RetainedPage(NamedTuple):
    """A part of the retained messages of a filter."""

    messages: list[StoredMessage]
    next_cursor: str | None
    """The cursor of the part behind it; None behind the last one."""


class RetainedAdmin(Asking):
    """Ask all brokers for retained messages, and end them; needs a started client."""

    async def page(self, topic_filter: str, cursor: str = "", *, count: int = 256) -> RetainedPage:
        """Return retained messages whose MQTT topics match a filter; a part ends at a megabyte, too.

        CursorError for a cursor of another list.
        """
        last_topic = decode_cursor(cursor, "retained", bytes) or b""
        answers = await self._read(topic_filter, base64.b64encode(last_topic).decode(), count)
        merged = merged_page([_records_of(answer) for answer in answers.values()])
        if isinstance(merged, Refused):
            raise BrokerError(merged.code, f"retained messages of {topic_filter}: {merged.remark}")
        records = [decode_record(view) for view in merged.records]
        messages = [
            StoredMessage(MessageQueue(record.topic, "", record.queue_id), record) for record in records
        ]
        if merged.after is None:
            return RetainedPage(messages, None)
        # The brokers write the last topic as base64; it would be twice as long to write that so again.
        return RetainedPage(messages, encode_cursor("retained", base64.b64decode(merged.after)))

    async def delete(self, mqtt_topic: str, producer: Producer) -> list[str]:
        """End what is retained for an MQTT topic at each broker that has something; returns their names."""
        message = device_message(mqtt_topic, b"", topic=DEVICE_TOPIC, qos=1, retain=True)
        answers = await self._read(mqtt_topic, "", 1)
        names = sorted(name for name, answer in answers.items() if answer.body)
        for name in names:
            await producer.send(message, queue=MessageQueue(DEVICE_TOPIC, name, 0))
        return names

    async def _read(self, topic_filter: str, after: str, count: int) -> dict[str, Command]:
        ext = {
            "filter": topic_filter,
            "after": after,
            "maxNums": str(count),
            "maxMsgBytes": str(_PAGE_BYTES),
        }
        doing = f"reading the retained messages of {topic_filter[:100]}"
        return await ask_masters(self._client, RequestCode.READ_RETAINED, ext, doing=doing)


def _records_of(answer: Command) -> RetainedRecords:
    return RetainedRecords(list(_split(answer.body_bytes())), answer.ext.get("after"))


def _split(body: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        if size < 4 or at + size > len(body):
            raise ClientError("the records of an answer do not fill it")
        yield body[at : at + size]
        at += size


def merged_page(answers: Sequence[RetainedRecords | Refused]) -> RetainedRecords | Refused:
    """Return the next page of all, up to the topic that each of them has come to.

    All answers begin at the same topic. A broker that is away has none. Another refusal is one of the whole.
    """
    pages = []
    for answer in answers:
        if not isinstance(answer, Refused):
            pages.append(answer)
        elif answer.code != ResponseCode.SERVICE_NOT_AVAILABLE or len(answers) == 1:
            return answer
    if not pages:
        return answers[-1] if answers else RetainedRecords([], None)
    if len(answers) == 1:
        return pages[0]
    try:
        return _merged(pages)
    except (binascii.Error, MessageFormatError) as error:
        return Refused(ResponseCode.SYSTEM_ERROR, f"retained messages of a broker cannot be read: {error}")


def _merged(pages: Sequence[RetainedRecords]) -> RetainedRecords:
    # (topic, as the brokers write it) up to which each has told everything.
    ends = [
        (base64.b64decode(page.after, validate=True), page.after) for page in pages if page.after is not None
    ]
    end, after = min(ends) if ends else (None, None)
    last: dict[bytes, tuple[tuple[int, int], memoryview]] = {}
    for page in pages:
        for view in page.records:
            record = decode_record(view)
            topic = property_value(record.properties, _TOPIC) or b""
            found = ((record.born_timestamp_ms, record.store_timestamp_ms), memoryview(view))
            if (end is None or topic <= end) and (topic not in last or last[topic][0] < found[0]):
                last[topic] = found
    return RetainedRecords([last[topic][1] for topic in sorted(last)], after)
