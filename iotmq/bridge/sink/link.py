"""Send numbered batches to one broker over one blocking connection, several ahead of their answers.

After a failure the connection is made anew, wherever the broker is then, and all that is not answered is sent
again in order. The broker knows by their numbers which of it are stored.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Final, NamedTuple

from iotmq.addresses import address_text
from iotmq.bridge.cluster import Address, Cluster, Connection
from iotmq.bridge.sink.errors import SinkOrderError, SinkRefusedError, SinkUnavailableError
from iotmq.errors import ConnectionClosedError, IotmqError, RequestTimeoutError
from iotmq.remoting.codes import NUMBERED_FIELD, RequestCode, ResponseCode
from iotmq.remoting.command import Command

_log = logging.getLogger("iotmq.bridge")

GROUP: Final = "iotmq-spark-sink"
# Stored, and as safe as it will be: with no slave there is none to wait for.
_STORED: Final = frozenset((ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE))
# Answers that a moment later may be different ones: stored but not safe yet, starting, stopping, overloaded.
_PASSING: Final = frozenset(
    (
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.TOO_MANY_WAITING,
    )
)


class Message(NamedTuple):
    """One numbered request: a batch, or a row that goes alone with its properties in the header."""

    topic: str
    queue_id: int
    body: bytes | memoryview
    properties: str
    is_alone: bool
    rows: str

    def command(self, broker: str) -> Command:
        """Return the request; a new one for each try, because a connection signs what it sends."""
        ext = {
            "a": GROUP,
            "b": self.topic,
            # No topic is made for a misspelt one.
            "c": "",
            "d": "1",
            "e": str(self.queue_id),
            "f": "0",
            "g": str(time.time_ns() // 1_000_000),
            "h": "0",
            "i": self.properties,
            "j": "0",
            "k": "false",
            "m": "false" if self.is_alone else "true",
            "n": broker,
            NUMBERED_FIELD: "true",
        }
        code = RequestCode.SEND_MESSAGE_V2 if self.is_alone else RequestCode.SEND_BATCH_MESSAGE
        return Command.request(code, ext, self.body)


class _Sent(NamedTuple):
    message: Message
    opaque: int


class BrokerLink:
    """The way to one broker. Answers come in the order of what was sent."""

    def __init__(self, cluster: Cluster, broker: str, address: Address, *, in_flight_bytes: int) -> None:
        self._cluster = cluster
        self._broker = broker
        self._address = address
        self._in_flight_bytes_max = in_flight_bytes
        self._sent: deque[_Sent] = deque()
        self._sent_on: Connection | None = None  # the connection of all that is on its way
        self._in_flight_bytes = 0
        self._patience = cluster.retry.patience()
        self._is_waiting = False

    def send(self, message: Message) -> None:
        """Send a message, once there is room for it; raises SinkError when earlier ones cannot be stored."""
        size = len(message.body)
        while self._sent and self._in_flight_bytes + size > self._in_flight_bytes_max:
            self._take_answer()
        self._in_flight_bytes += size
        try:
            self._sent.append(_Sent(message, self._connection().send(message.command(self._broker))))
        except (OSError, ConnectionClosedError) as error:
            self._sent.append(_Sent(message, -1))
            self._recover(str(error))

    def drain(self) -> None:
        """Wait until all that was sent is stored."""
        while self._sent:
            self._take_answer()

    def ask(self, command: Command, *, what: str) -> Command:
        """Ask something while nothing is on its way; a passing refusal is asked again."""
        while True:
            try:
                connection = self._connection()
                opaque = connection.send(command)
                answer = self._cluster.receive(connection, opaque, self._broker, self._address)
            except (OSError, ConnectionClosedError, RequestTimeoutError) as error:
                self._wait(what, str(error))
                continue
            if answer.code in _PASSING:
                self._wait(what, answer.remark or f"code {answer.code}")
                continue
            self._note_progress()
            return answer

    def _take_answer(self) -> None:
        message, opaque = self._sent[0]
        try:
            answer = self._cluster.receive(self._connection(), opaque, self._broker, self._address)
        except (OSError, ConnectionClosedError, RequestTimeoutError) as error:
            self._recover(str(error))
            return
        if answer.code in _STORED:
            self._sent.popleft()
            self._in_flight_bytes -= len(message.body)
            self._note_progress()
        elif answer.code in _PASSING:
            self._recover(answer.remark or f"code {answer.code}")
        else:
            self._refuse(message, answer)

    def _refuse(self, message: Message, answer: Command) -> None:
        self.forget()
        where = f"broker {self._broker} at {address_text(*self._address)}"
        if answer.code == ResponseCode.BATCH_OUT_OF_ORDER:
            raise SinkOrderError(
                f"{where} does not have what was sent to topic {message.topic!r} before {message.rows}: "
                f"{answer.remark}. It has lost that (a power cut, store.flush = 'async'), or has forgotten "
                "this writer. Repeat the batch: rows that the broker knows are not stored again"
            )
        raise SinkRefusedError(
            f"{where} refuses {message.rows} for topic {message.topic!r}, queue {message.queue_id} "
            f"(code {answer.code}): {answer.remark}{_way_out(answer.code)}"
        )

    def _recover(self, problem: str) -> None:
        """Send everything again that is not answered, until the connection takes it."""
        waiting = self._sent[0].message if self._sent else None
        what = "storing rows" if waiting is None else f"storing {waiting.rows} of topic {waiting.topic!r}"
        while True:
            self._wait(what, problem)
            messages = [sent.message for sent in self._sent]
            self._sent.clear()
            try:
                connection = self._connection()
                for message in messages:
                    self._sent.append(_Sent(message, connection.send(message.command(self._broker))))
                return
            except (OSError, ConnectionClosedError) as error:
                problem = str(error)
                self._sent = deque(_Sent(message, -1) for message in messages)

    def _wait(self, what: str, problem: str) -> None:
        """Pause before another try, and look where the broker is; SinkUnavailableError when time is up."""
        self.forget()
        where = f"broker {self._broker} at {address_text(*self._address)}"
        if not self._is_waiting:
            self._is_waiting = True
            _log.warning("%s: waiting for %s: %s", what, where, problem)
        if not self._patience.wait(f"{where}: {problem}"):
            raise SinkUnavailableError(
                f"{what}: {where} did not take it within the time of option retryTimeoutMs; last: {problem}"
            )
        try:
            self._address = self._cluster.broker_now(self._broker) or self._address
        except (OSError, IotmqError):
            # The registry may be away, too: the old address is tried again.
            pass

    def _note_progress(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            _log.warning("broker %s at %s answers again", self._broker, address_text(*self._address))
        self._patience = self._cluster.retry.patience()

    def _connection(self) -> Connection:
        """Return the connection; ConnectionClosedError when what is on its way went over another one.

        Others who ask the same broker give up a connection, too.
        """
        connection = self._cluster.connection(self._address)
        if self._sent and connection is not self._sent_on:
            raise ConnectionClosedError("the connection was given up")
        self._sent_on = connection
        return connection

    def forget(self) -> None:
        """Close the connection: what is on its way is not waited for."""
        self._cluster.drop(self._address)


def _way_out(code: int) -> str:
    if code == ResponseCode.MESSAGE_ILLEGAL:
        return ". Rows are limited by the broker's store.record_bytes_max, and batches by option batchBytes"
    if code == ResponseCode.NO_PERMISSION:
        return ". Open the topic or its queues, or give the account (option accessKey) the permission"
    if code == ResponseCode.TOPIC_NOT_EXIST:
        return ". Make the topic, and repeat the batch"
    return ""
