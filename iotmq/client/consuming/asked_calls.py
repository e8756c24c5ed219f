"""Have interceptors see what a consumer returns to a program that asks, and when that is consumed."""

from __future__ import annotations

from collections.abc import Sequence

from iotmq.client.transport.interceptors import Consuming, ConsumingColumns, Interceptors
from iotmq.client.transport.message import StoredMessage
from iotmq.client.transport.routes import MessageQueue
from iotmq.message.records.columns import Columns


class AskedCalls:
    """The calls of interceptors around what one pull consumer returns."""

    def __init__(self, interceptors: Interceptors, group: str) -> None:
        self._messages = interceptors.for_consumer(group)
        self._columns = interceptors.for_columns(group)
        self._open: list[Consuming | ConsumingColumns] = []
        """The calls that have begun: one for each task that asks."""

    def returned(self, queue: MessageQueue, messages: Sequence[StoredMessage]) -> None:
        """Tell of messages that the program gets."""
        if self._messages is not None:
            self._open.append(self._messages.begin(queue, messages, is_asked=True))

    def returned_columns(self, queue: MessageQueue, columns: Columns) -> None:
        """Tell of columns that the program gets."""
        if self._columns is not None:
            self._open.append(self._columns.begin(queue, columns, is_asked=True))

    def finish(self, error: BaseException | None = None) -> None:
        """Tell that what was returned is consumed, or that the program has failed."""
        if not self._open:
            return
        ended, self._open = self._open, []
        for consuming in ended:
            if isinstance(consuming, Consuming):
                assert self._messages is not None
                self._messages.end(consuming, () if error is None else consuming.messages, error)
            else:
                assert self._columns is not None
                self._columns.end(consuming, error)
