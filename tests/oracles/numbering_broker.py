"""A broker in memory that knows numbered batches."""

from __future__ import annotations

from fake_broker import FakeBroker, split_batch

from iotmq.message.properties import decode_properties
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection


class NumberingBroker(FakeBroker):
    """Remembers the last number of each producer, in the slow and obvious way."""

    def __init__(self, *, queues: int = 1) -> None:
        super().__init__()
        self.add_topic("T", queues)
        self.last: dict[str, tuple[int, int]] = {}
        self.found = 0

    def answer(self, connection: ServerConnection, request: Command) -> Command | None:
        if request.code == RequestCode.LAST_BATCH_NUMBER:
            return request.reply(0)
        if (
            request.code not in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
            or "isNumbered" not in request.ext
        ):
            return super().answer(connection, request)
        properties = request.ext["i"].encode()
        count = 1
        if request.code == RequestCode.SEND_BATCH_MESSAGE:
            elements = split_batch(bytes(request.body))
            properties, count = elements[0][1], len(elements)
        producer, batch, number, skipped, said_count = decode_properties(properties)["BATCH_NUMBER"].split()
        assert (int(skipped), int(said_count)) == (0, count)
        wanted = int(batch), int(number)
        last = self.last.get(producer)
        if last is not None and wanted <= last:
            self.found += 1
            return request.reply(0, ext={"msgId": "", "queueId": "0", "queueOffset": "0"})
        if wanted[1] and (last is None or wanted != (last[0], last[1] + 1)):
            return request.reply(ResponseCode.BATCH_OUT_OF_ORDER, remark="not the next")
        self.last[producer] = wanted
        return super().answer(connection, request)
