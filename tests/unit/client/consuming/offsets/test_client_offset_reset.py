"""The order to move to other offsets, in both forms brokers write it in."""

from __future__ import annotations

import pytest

from iotmq.client.consuming.offsets.offset_reset import read_offsets
from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import RequestError
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command

QUEUE = MessageQueue("T", "b", 1)


@pytest.mark.parametrize(
    "body",
    [
        b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:7}}',
        b'{"offsetTable":{"{\\"topic\\":\\"T\\",\\"brokerName\\":\\"b\\",\\"queueId\\":1}":7}}\n',
        b'{"offsetTable":[{"brokerName":"b","offset":7,"queueId":1,"topic":"T"}]}',
    ],
)
def test_every_form_is_read(body: bytes) -> None:
    order = Command.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {}, body)
    assert read_offsets(order) == {QUEUE: 7}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"offsetTable":7}', b'{"offsetTable":{"x":7}}', b"\xff{"])
def test_what_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        read_offsets(Command.request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, {}, body))
