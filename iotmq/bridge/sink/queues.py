"""Decide which queues a batch of Spark spreads a topic over, and write that down for when it is repeated.

Rows with a key go to the queue of their key among these, as with every other producer. When the topic gets
another queue between two tries of a batch, the second try still has to use those of the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from iotmq.bridge.sink.errors import SinkTopicError

# What a mark has room for (`task`).
TEXT_BYTES_MAX: Final = 3_500
_WORDS: Final = re.compile(r"([0-9a-f]{8}) ([1-9][0-9]{0,9}) (\S+)")
_PART: Final = re.compile(r"([^:,]+):(\d{1,9})-(\d{1,9})")


class SinkQueue(NamedTuple):
    """One queue of a topic."""

    broker: str
    queue_id: int


class Written(NamedTuple):
    """Hold what a batch says beside its number: checksum of its messages, option batchBytes, queues."""

    checksum: int
    batch_bytes: int
    queues: tuple[SinkQueue, ...]

    def text(self) -> str:
        """Return it as it is sent."""
        return f"{self.checksum:08x} {self.batch_bytes} {queues_text(self.queues)}"


def queues_text(queues: Iterable[SinkQueue]) -> str:
    """Write sorted queues as ranges: ``broker-a:0-7,broker-b:0-3``."""
    parts: list[str] = []
    for broker, of_broker in groupby(queues, key=lambda queue: queue.broker):
        first = last = -2
        for _, queue_id in of_broker:
            if queue_id != last + 1:
                if last >= 0:
                    parts.append(f"{quote(broker, safe='')}:{first}-{last}")
                first = queue_id
            last = queue_id
        parts.append(f"{quote(broker, safe='')}:{first}-{last}")
    text = ",".join(parts)
    if len(text) > TEXT_BYTES_MAX:
        raise SinkTopicError(
            f"the queues of the topic take {len(text)} bytes to write down, more than {TEXT_BYTES_MAX}: "
            "it is at too many brokers for one writer"
        )
    return text


def read_written(text: str) -> Written:
    """Read what `Written.text` made; raises ValueError for anything else."""
    words = _WORDS.fullmatch(text)
    if words is None:
        raise ValueError(f"not written by this sink: {text!r}")
    queues: list[SinkQueue] = []
    for part in words[3].split(","):
        found = _PART.fullmatch(part)
        if found is None or int(found[3]) < int(found[2]) or int(found[3]) - int(found[2]) > 65_536:
            raise ValueError(f"no range of queues: {part!r}")
        broker = unquote(found[1])
        queues += [SinkQueue(broker, queue_id) for queue_id in range(int(found[2]), int(found[3]) + 1)]
    return Written(int(words[1], 16), int(words[2]), tuple(queues))
