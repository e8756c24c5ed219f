"""Remember what a link has answered, by a keyed digest of everything that it was told.

Operations: a look for every CONNECT, an entry for every answer. Goals: a device that comes back costs
microseconds and no other thread; what is kept is worth nothing outside of this process; devices that make up
passwords push out no answer that was a yes. Plan: a table each for yes and for the rest, bounded by number
and bytes, out of which the oldest goes.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Final, TypeAlias

import msgspec

from iotmq import limits
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.verdicts import Accepted, Denied, NotMine

Answer: TypeAlias = Accepted | Denied | NotMine

_DIGEST_BYTES: Final = 16
# Of an entry with an identity that has nothing but a name: digest, tuples, times, texts.
_EACH_BYTES: Final = 512
# Objects of Python take so many times the bytes of the same as text.
_TEXT_FACTOR: Final = 4
_KEY: Final = secrets.token_bytes(32)
_encode = msgspec.json.Encoder(enc_hook=dict).encode


def digest(told: bytes) -> bytes:
    """Return what stands for these bytes in this process alone."""
    return hashlib.blake2b(told, digest_size=_DIGEST_BYTES, key=_KEY).digest()


class Answers:
    """Answers of one kind that one link gave. `find` may be called by every thread, the rest by one."""

    def __init__(self, count_max: int) -> None:
        """0 keeps none."""
        self._count_max = count_max
        # Digest -> answer, until when in monotonic seconds, about how many bytes; the oldest comes first.
        self._kept: dict[bytes, tuple[Answer, float, int]] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """Return about how many bytes they take."""
        return self._size

    def find(self, key: bytes, now_s: float) -> Answer | None:
        """Return the answer that was given to the same, if it still holds."""
        found = self._kept.get(key)
        return None if found is None or found[1] <= now_s else found[0]

    def keep(self, key: bytes, answer: Answer, until_s: float) -> None:
        """Remember an answer, in the place of a former one to the same."""
        if not self._count_max:
            return
        self._drop(key)
        size = _size_of(answer)
        if size > limits.MQTT_ANSWERS_BYTES_MAX:
            return
        while len(self._kept) >= self._count_max or self._size + size > limits.MQTT_ANSWERS_BYTES_MAX:
            self._drop(next(iter(self._kept)))
        self._kept[key] = (answer, until_s, size)
        self._size += size

    def _drop(self, key: bytes) -> None:
        former = self._kept.pop(key, None)
        if former is not None:
            self._size -= former[2]

    def check_invariants(self) -> None:
        """Assert what must always be true; for tests."""
        assert len(self._kept) <= self._count_max
        assert self._size == sum(size for _, _, size in self._kept.values())
        assert self._size <= limits.MQTT_ANSWERS_BYTES_MAX


def _size_of(answer: Answer) -> int:
    if isinstance(answer, Accepted):
        return _EACH_BYTES + _TEXT_FACTOR * _identity_size(answer.identity)
    return _EACH_BYTES + (len(answer.detail) if isinstance(answer, Denied) else 0)


def _identity_size(identity: Identity) -> int:
    if not (identity.attributes or identity.permissions or identity.roles or identity.groups):
        return len(identity.user or "")
    return len(_encode(identity))
