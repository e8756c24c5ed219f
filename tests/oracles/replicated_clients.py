"""Clients of others at a replicated broker: each sends numbered messages, one after the other, all the time.

A message that fails is sent again until it is acknowledged, so within a queue the first copies have rising
numbers.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from itertools import pairwise
from typing import Any, Final

from piped_client import ClientFailedError, PipedClient

_PAUSE_S: Final = 0.02


class ForeignLoad:
    """A producer of a foreign client, and what became of its messages."""

    def __init__(self, kind: str, client: PipedClient, topic: str) -> None:
        """Bodies are `kind/number`."""
        self.kind = kind
        self.topic = topic
        self._client = client
        self._group = f"{kind}-producer"
        self.acknowledged_s: list[float] = []
        self.errors: list[str] = []
        self.not_ok: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._client.call("producer", group=self._group)
        self._thread.start()

    def stop(self) -> None:
        """Return when the last message is acknowledged."""
        self._is_over.set()
        self._thread.join(90)
        assert not self._thread.is_alive()

    @property
    def count(self) -> int:
        """How many messages were acknowledged: they have the numbers below it."""
        return len(self.acknowledged_s)

    @property
    def bodies(self) -> set[str]:
        """Everything acknowledged."""
        return {f"{self.kind}/{number}" for number in range(self.count)}

    def gap_s(self, begun_s: float, end_s: float) -> float:
        """The longest time without an acknowledgement in between."""
        times = [begun_s, *(at for at in self.acknowledged_s if begun_s < at < end_s), end_s]
        return max(after - before for before, after in pairwise(times))

    def _run(self) -> None:
        while not self._is_over.is_set():
            number = self.count
            words: dict[str, Any] = {"messages": [{"topic": self.topic, "body": f"{self.kind}/{number}"}]}
            if self.kind == "java":
                words["topic"] = self.topic
            while True:
                try:
                    results = self._client.call("send", group=self._group, within_s=60, **words)
                except ClientFailedError as error:
                    self.errors.append(str(error))
                    time.sleep(_PAUSE_S)
                    continue
                (result,) = results
                status = result["status"] if isinstance(result, dict) else result
                if status not in (0, "SEND_OK"):
                    self.not_ok.append(str(status))
                break
            self.acknowledged_s.append(time.monotonic())
            time.sleep(_PAUSE_S)


def numbers_by_queue(lines: list[dict[str, Any]], kind: str) -> dict[int, list[int]]:
    """What was received of one producer, the first copies of each queue in their order."""
    found: dict[int, dict[int, None]] = defaultdict(dict)
    for line in lines:
        of, _, number = line["body"].partition("/")
        if of == kind:
            found[line["queue_id"]].setdefault(int(number))
    return {queue_id: list(numbers) for queue_id, numbers in found.items()}
