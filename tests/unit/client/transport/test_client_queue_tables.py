"""Tables with queues as keys, in every form brokers and clients write them."""

from __future__ import annotations

import msgspec
import pytest

from iotmq.client.transport.queue_tables import by_queue, decode_answer
from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import ClientError

FIRST, SECOND = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)


class Answer(msgspec.Struct, rename="camel"):
    offset_table: dict[str, int]
    remark: str = ""


@pytest.mark.parametrize(
    "body",
    [
        b'{"offsetTable":{{"brokerName":"a","queueId":1,"topic":"T"}:5,{"brokerName":"a","queueId":0,"topic":"T"}:3}}',
        b'{"offsetTable":{"{\\"brokerName\\":\\"a\\",\\"queueId\\":1,\\"topic\\":\\"T\\"}":5,'
        b'"{\\"topic\\":\\"T\\",\\"brokerName\\":\\"a\\",\\"queueId\\":0}":3}}',
        b'{"offsetTable":{{"topic":"T", "queueId":1, "brokerName":"a"}: 5,\n'
        b'{"brokerName" : "a",\n   "queueId" : 0, "topic" : "T"} : 3}}\n',
        b'{"remark":"{{\\"brokerName\\":\\"a\\"","offsetTable":{{"brokerName":"a","queueId":1,"topic":"T"}:5,'
        b'{"brokerName":"a","queueId":0,"topic":"T"}:"3"}}',
    ],
)
def test_queues_as_keys_are_read(body: bytes) -> None:
    table = by_queue(decode_answer(body, Answer, doing="asking").offset_table)
    assert list(table.items()) == [(FIRST, 3), (SECOND, 5)]
    assert by_queue(decode_answer(memoryview(body), Answer, doing="asking").offset_table) == table
    assert (
        by_queue(decode_answer([body[:20], memoryview(body)[20:]], Answer, doing="asking").offset_table)
        == table
    )


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"offsetTable":{{"brokerName":"a"', b'{"offsetTable":5}', b"\xff"]
)
def test_what_is_no_answer_is_an_error(body: bytes) -> None:
    with pytest.raises(ClientError, match="cannot be read"):
        decode_answer(body, Answer, doing="asking")


@pytest.mark.parametrize("key", ["", "x", "5", '{"queueId":"x"}'])
def test_a_key_that_is_no_queue_is_an_error(key: str) -> None:
    with pytest.raises(ClientError, match="queue"):
        by_queue({key: 1})
