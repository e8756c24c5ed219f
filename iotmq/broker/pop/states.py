"""Keep what groups have popped: a projection of the log.

Column family; the place of a queue is group, 0x00, topic, 0x00, queue id 4:

    0x01 | place              version 8 | next offset 8
    0x02 | place | number 8   block (pop_queue)
    0x03 | place              1: the group consumes the topic by message; the queue id is ALL_QUEUES

Body of a record of POP_TOPIC, for each queue: size of the place 2 | place | size of the change 4 | change
(pop_queue); an empty change: nothing is known of the queue any more. A dead letter ends its message with the
property POP_DONE, the same in base64: so there is a dead letter exactly when the message is done.
"""

from __future__ import annotations

import base64
import binascii
import logging
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from iotmq.broker.pop.pop_changes import collect_pops
from iotmq.broker.pop.pop_queue import PopQueue
from iotmq.errors import StoreCorruptError
from iotmq.store.kv.kv_projection import KeyValueProjection, after_prefix

if TYPE_CHECKING:
    from iotmq.store.kv.kv import KeyValueStore

NAME: Final = "pops"
FORMAT_VERSION: Final = 1
ALL_QUEUES: Final = 0xFFFF_FFFF
POP_MODE: Final = b"\x01"

_HEAD_TAG: Final = b"\x01"
_BLOCK_TAG: Final = b"\x02"
_MODE_TAG: Final = b"\x03"
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_HEAD: Final = struct.Struct(">QQ")
_CHANGE: Final = struct.Struct(">QQB")
_BLOCK: Final = struct.Struct(">QH")
_ALL: Final = b"\0" + _U32.pack(ALL_QUEUES)
_NO_POPS: Final = 1 << 62

logger = logging.getLogger(__name__)


class Place(NamedTuple):
    """A queue as one group has it."""

    group: str
    topic: str
    queue_id: int

    def encode(self) -> bytes:
        return b"%s\0%s\0%s" % (self.group.encode(), self.topic.encode(), _U32.pack(self.queue_id))


def decode_place(data: bytes) -> Place:
    """Raise ValueError when it is none."""
    group, topic, queue_id = data.split(b"\0", 2)
    if len(queue_id) != _U32.size:
        raise ValueError(f"a queue id of {len(queue_id)} bytes")
    return Place(group.decode(), topic.decode(), _U32.unpack(queue_id)[0])


def encode_change(place: Place, change: bytes) -> bytes:
    """Encode a change of one queue, empty when it is to be forgotten, as records have it."""
    name = place.encode()
    return b"%s%s%s%s" % (_U16.pack(len(name)), name, _U32.pack(len(change)), change)


def encode_burial(place: Place, change: bytes) -> bytes:
    """Encode the change that a dead letter makes, as its property POP_DONE."""
    return base64.b64encode(encode_change(place, change))


def split_changes(body: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield place and change of each part of a body. Raises ValueError when it is malformed."""
    at = 0
    while at < len(body):
        if at + 2 > len(body):
            raise ValueError("a change ends in the size of its place")
        place_end = at + 2 + _U16.unpack_from(body, at)[0]
        if place_end + 4 > len(body):
            raise ValueError("a change ends in its place")
        end = place_end + 4 + _U32.unpack_from(body, place_end)[0]
        if end > len(body):
            raise ValueError("a change has not as many bytes as it says")
        yield body[at + 2 : place_end], body[place_end + 4 : end]
        at = end


class _Changes:
    """Collect the keys that are not in the database yet (store.kv_projection.Collector); None: removed."""

    def __init__(self, states: PopStates) -> None:
        self._states = states
        self.entries: dict[bytes, bytes | None] = {}

    @property
    def count(self) -> int:
        return len(self.entries)

    def collect(self, view: memoryview) -> None:
        if self._states.is_looking:
            collect_pops(view, self._states.apply_changes, self._states.apply_burial)

    def items(self) -> tuple[list[bytes], list[bytes]]:
        kept = [(key, value) for key, value in self.entries.items() if value is not None]
        return [key for key, _ in kept], [value for _, value in kept]

    def clear(self) -> None:
        self.entries.clear()


class PopStates(KeyValueProjection):
    """The projection. For the store's thread alone.

    Like marks (exactly_once.marks) it reads only the stretches of the log that `begin_append` has announced,
    and all of it while it catches up.
    """

    def __init__(self, key_values: KeyValueStore) -> None:
        self._changes = _Changes(self)
        self.is_looking = True
        self._changed_until = _NO_POPS
        super().__init__(key_values, NAME, format_version=FORMAT_VERSION, collector=self._changes)

    def begin_append(self) -> None:
        """Announce an append with changes."""
        self._changed_until = _NO_POPS

    def end_append(self, end_position: int) -> None:
        """Note that the log ends at `end_position` now, and has no more changes than were announced."""
        self._changed_until = end_position

    def apply(self, view: memoryview, start_position: int, end_position: int) -> None:
        self.is_looking = start_position < self._changed_until
        super().apply(view, start_position, end_position)

    def apply_changes(self, body: bytes) -> None:
        """Take in a record of POP_TOPIC."""
        try:
            for place, change in split_changes(body):
                decode_place(place)
                self._apply(place, change)
        except (ValueError, struct.error) as error:
            logger.error("a record of popped messages cannot be read: %s", error)

    def apply_burial(self, group: bytes, value: bytes) -> None:
        """Take in what a dead letter of a group ends. Of one that was copied or made up nothing comes."""
        try:
            for name, change in split_changes(base64.b64decode(value, validate=True)):
                place = decode_place(name)
                version = _U64.unpack_from(change)[0] if change else 0
                if place.group.encode() == group and version == self._version(name) + 1:
                    self._apply(name, change)
        except (ValueError, struct.error, binascii.Error) as error:
            logger.error("a dead letter of a popped message cannot be read: %s", error)

    def queues(self) -> dict[Place, PopQueue]:
        """Return all that is known, as state machines. Raises StoreError when the database is damaged."""
        self._check_known()
        found = dict(self._space.scan(_HEAD_TAG, after_prefix(_BLOCK_TAG)))
        for key, value in self._changes.entries.items():
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
        queues: dict[bytes, PopQueue] = {}
        for key, value in found.items():
            if key.startswith(_HEAD_TAG):
                version, next_offset = _HEAD.unpack(value)
                queues[key[1:]] = PopQueue(next_offset, version=version)
        # In order, so that each key's offsets come as they follow one another.
        for key, value in sorted(found.items()):
            if key.startswith(_BLOCK_TAG):
                queue = queues.get(key[1:-8])
                if queue is None:
                    raise StoreCorruptError("the database has popped messages of an unknown queue")
                queue.restore_block(_U64.unpack(key[-8:])[0], value)
        return {decode_place(name): queue for name, queue in queues.items()}

    def pop_modes(self) -> set[tuple[str, str]]:
        """Return the (group, topic) that are consumed by message."""
        self._check_known()
        found = {key[1:] for key, _ in self._space.scan(_MODE_TAG, after_prefix(_MODE_TAG))}
        for key, value in self._changes.entries.items():
            if key.startswith(_MODE_TAG):
                (found.discard if value is None else found.add)(key[1:])
        return {decode_place(name)[:2] for name in found}

    def _write(self, marker: bytes) -> None:
        keys, values = self._collector.items()
        removed = [key for key, value in self._changes.entries.items() if value is None]
        self._space.write([*keys, b"\0"], [*values, marker], removed_keys=removed)

    def _apply(self, place: bytes, change: bytes) -> None:
        entries = self._changes.entries
        if place.endswith(_ALL):
            entries[_MODE_TAG + place] = change or None
            return
        if not change:
            self._forget_blocks(place)
            entries[_HEAD_TAG + place] = None
            return
        version, next_offset, is_whole = _CHANGE.unpack_from(change)
        blocks: list[tuple[bytes, bytes | None]] = []
        at = _CHANGE.size
        while at < len(change):
            number, size = _BLOCK.unpack_from(change, at)
            at += _BLOCK.size
            if at + size > len(change):
                raise ValueError("a block has not as many bytes as it says")
            blocks.append((_BLOCK_TAG + place + _U64.pack(number), change[at : at + size] or None))
            at += size
        if is_whole:
            self._forget_blocks(place)
        entries[_HEAD_TAG + place] = _HEAD.pack(version, next_offset)
        entries.update(blocks)

    def _forget_blocks(self, place: bytes) -> None:
        prefix = _BLOCK_TAG + place
        size = len(prefix) + 8
        entries = self._changes.entries
        of_place = [key for key in entries if len(key) == size and key.startswith(prefix)]
        stored: Iterable[tuple[bytes, bytes]] = self._space.scan(prefix, after_prefix(prefix))
        for key in [*of_place, *(key for key, _ in stored if len(key) == size)]:
            entries[key] = None

    def _version(self, place: bytes) -> int:
        key = _HEAD_TAG + place
        value = self._changes.entries[key] if key in self._changes.entries else self._space.get(key)
        return 0 if value is None else int(_HEAD.unpack(value)[0])
