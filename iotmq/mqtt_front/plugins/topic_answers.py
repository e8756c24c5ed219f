"""Remember what plug-ins have answered about topics."""

from __future__ import annotations

from typing import Final, NamedTuple

from iotmq import limits

# Beside the texts of an entry: the tuples, the place in the table.
_EACH_BYTES: Final = 300


class Asked(NamedTuple):
    """A question whose answer holds for a while."""

    client_id: str
    user: str | None
    action: str
    topic: str
    proof: bytes = b""
    """Digest of what else an answer may depend on, such as a token."""


class TopicAnswers:
    """A table out of which the oldest answer goes. On one event loop."""

    def __init__(self, *, bytes_max: int = limits.MQTT_PLUGIN_ANSWERS_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        # Question -> answer, and until when in monotonic seconds.
        self._kept: dict[Asked, tuple[bool | None, float]] = {}
        self.size = 0
        """About how many bytes they take."""

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, asked: Asked, now_s: float) -> tuple[bool | None] | None:
        """Return the answer in a tuple, if it still holds."""
        found = self._kept.get(asked)
        return None if found is None or found[1] <= now_s else (found[0],)

    def keep(self, asked: Asked, answer: bool | None, until_s: float) -> None:
        """Remember an answer, in the place of a former one."""
        self._drop(asked)
        size = _size_of(asked)
        while self._kept and self.size + size > self._bytes_max:
            self._drop(next(iter(self._kept)))
        self._kept[asked] = (answer, until_s)
        self.size += size

    def clear(self) -> None:
        """Forget everything."""
        self._kept.clear()
        self.size = 0

    def _drop(self, asked: Asked) -> None:
        if self._kept.pop(asked, None) is not None:
            self.size -= _size_of(asked)


def _size_of(asked: Asked) -> int:
    return _EACH_BYTES + len(asked.client_id) + len(asked.user or "") + len(asked.topic)
