"""Number the requests of one queue, so that the broker stores each of them once (numbered batches).

The broker remembers the last number of each producer, and every queue counts as a producer of its own here.
Its requests go one after the other, so a number that the broker has seen is a request that is stored. After
one whose fate is not certain a new batch of numbers begins, which the broker takes whatever was before.
"""

from __future__ import annotations

from typing import Final

from iotmq.errors import MessageRefusedError
from iotmq.limits import PROPERTIES_BYTES_MAX
from iotmq.message.properties import BATCH_NUMBER, NAME_END, PROPERTY_END
from iotmq.message.records.record import encode_batch

NUMBER_MAX: Final = (1 << 27) - 1
_BODY_AT: Final = 20
# The name, two separators, a producer of two numbers, and four more.
_MARK_BYTES_MAX: Final = 128


class SendNumbers:
    """Counts the requests of one queue. The next one is numbered when the last has ended."""

    __slots__ = ("_batch", "_number", "_producer")

    def __init__(self, producer: str) -> None:
        self._producer = producer
        self._batch = 0
        self._number = 0

    def mark(self, count: int) -> str:
        """Return the property of a request of `count` messages: the same until one of the next calls."""
        value = f"{self._producer} {self._batch} {self._number} 0 {count}"
        return f"{BATCH_NUMBER}{NAME_END}{value}{PROPERTY_END}"

    def stored(self) -> None:
        """Go on behind a request that is stored."""
        self._number += 1
        if self._number > NUMBER_MAX:
            self.restart()

    def restart(self) -> bool:
        """Begin a new batch of numbers; False when this one has just begun."""
        if not self._number:
            return False
        self.begin_anew()
        return True

    def begin_anew(self) -> None:
        """Begin a new batch of numbers: nobody knows whether the last request is stored."""
        self._batch += 1
        self._number = 0


def check_room_for_mark(properties_size: int) -> None:
    """Raise MessageRefusedError for properties that have no room for a mark behind them."""
    room = PROPERTIES_BYTES_MAX - _MARK_BYTES_MAX
    if properties_size > room:
        raise MessageRefusedError(
            f"properties, keys and tags take {properties_size} bytes, and those of an idempotent producer "
            f"may take {room}: put large values in the body"
        )


def marked_properties(properties: str, mark: str) -> str:
    """Return the properties of a message that goes alone with a mark behind them."""
    separator = "" if not properties or properties.endswith(PROPERTY_END) else PROPERTY_END
    return f"{properties}{separator}{mark}"


def marked_batch(elements: bytes | memoryview, mark: str) -> list[bytes | memoryview]:
    """Return the elements of a batch with a mark in the first of them, as buffers."""
    view = memoryview(elements)
    size = int.from_bytes(view[:4])
    body_end = _BODY_AT + int.from_bytes(view[16:_BODY_AT])
    properties = marked_properties(bytes(view[body_end + 2 : size]).decode("utf-8", "surrogateescape"), mark)
    first = (
        bytes(view[_BODY_AT:body_end]),
        properties.encode("utf-8", "surrogateescape"),
        int.from_bytes(view[12:16], signed=True),
    )
    return [encode_batch([first]), view[size:]]
