"""Keep the packet ids of QoS 2 messages that devices have sent and not released: a projection of the log.

Only kept sessions have such ids. The packet id is a property of the stored message (MQTT_PACKET_ID), and a
release (PUBREL) is a record of RECEIVED_TOPIC. So after any crash the log says which messages are stored.

A message under an id that is not released is the stored one if topic and body are the same, with DUP or
without [MQTT-4.3.3-10]. A different message takes the id over: its client has lost its state.

Column family `received_ids`; most ids are released before they are written to it:

    0x01 | key (received_marks)     position of the record 8 | digest 8
    0x02 | position 8               key; finds the oldest id
    0x03                            count 8 | size in bytes 8

Body of a record of RECEIVED_TOPIC, and of a request that releases, for each id: size of the client id 2 |
client id | packet id 2. Packet id 0 stands for all of the client's.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from typing_extensions import Buffer

from iotmq import limits
from iotmq.broker.exactly_once.received_marks import collect_received, marked_elements
from iotmq.metrics import Metric, samples
from iotmq.store.kv.kv_projection import CountedProjection, after_prefix

if TYPE_CHECKING:
    from iotmq.store.kv.kv import KeyValueStore

NAME: Final = "received_ids"
FORMAT_VERSION: Final = 2
ALL: Final = 0

_TAG: Final = b"\x01"
_ORDER_TAG: Final = b"\x02"
_ORDER_END: Final = b"\x03"
_TOTALS_KEY: Final = b"\x03"
_POSITION: Final = struct.Struct(">Q")
_VALUE: Final = struct.Struct(">QQ")
_U16: Final = struct.Struct(">H")
# What an id costs beside its key, which is there twice: tags, positions, what RocksDB has for two entries.
_ENTRY_BYTES: Final = 64
_NO_MARKS: Final = -1
_ALL_MARKS: Final = 1 << 62
# So many ids that the log has lost are released with each stretch that is applied: some milliseconds.
TRIMMED_AT_ONCE: Final = 256

logger = logging.getLogger(__name__)


class _Entry(NamedTuple):
    """A packet id in memory: the position of its record, None once released, and the one in the database."""

    position: int | None
    digest: int
    stored: int | None


class _Changes:
    """Collect the changes since the last write (store.kv_projection.Collector)."""

    def __init__(self, projection: ReceivedIds) -> None:
        self._projection = projection
        self.entries: dict[bytes, _Entry] = {}
        # Client id -> keys of it that are not released.
        self.keys_of: dict[bytes, set[bytes]] = {}

    def put(self, key: bytes, position: int, digest: int, stored: int | None) -> None:
        self.entries[key] = _Entry(position, digest, stored)
        self.keys_of.setdefault(_client_of(key), set()).add(key)

    def release(self, key: bytes, stored: int | None) -> None:
        client = _client_of(key)
        keys = self.keys_of.get(client)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self.keys_of[client]
        if stored is None:
            del self.entries[key]
        else:
            self.entries[key] = _Entry(None, 0, stored)

    @property
    def count(self) -> int:
        return len(self.entries)

    def collect(self, view: memoryview) -> None:
        if self._projection.is_looking:
            collect_received(view, self._projection.put, self._projection.release_all)

    def items(self) -> tuple[list[bytes], list[bytes]]:
        keys: list[bytes] = []
        values: list[bytes] = []
        for key, entry in self.entries.items():
            if entry.position is not None:
                position = _POSITION.pack(entry.position)
                keys += (_TAG + key, _ORDER_TAG + position)
                values += (_VALUE.pack(entry.position, entry.digest), key)
        return keys, values

    def clear(self) -> None:
        self.entries.clear()
        self.keys_of.clear()


class ReceivedIds(CountedProjection):
    """The projection. For the store's thread alone.

    It reads only the stretches of the log that have marked messages, as announced by `begin_append`; while it
    catches up at a start, it reads all.
    """

    totals_key = _TOTALS_KEY

    def __init__(
        self,
        key_values: KeyValueStore,
        *,
        ids_max: int = limits.RECEIVED_IDS_MAX,
        bytes_max: int = limits.RECEIVED_IDS_BYTES_MAX,
    ) -> None:
        self._changes = _Changes(self)
        self._ids_max = ids_max
        self._bytes_max = bytes_max
        self.forgotten_total = 0
        self.is_looking = True
        self._marked_until = _ALL_MARKS
        # What was appended and is not applied yet: key -> (end of its batch, digest; None for a release).
        # And the same by batch, in order.
        self._recent: dict[bytes, tuple[int, int | None]] = {}
        self._recent_batches: deque[tuple[int, list[bytes]]] = deque()
        # What the database has of messages before it is released.
        self._forgotten_until = 0
        # What is before it is unknown, and released by and by.
        self._min_position = 0
        super().__init__(key_values, NAME, format_version=FORMAT_VERSION, collector=self._changes)

    def _load(self) -> None:
        super()._load()
        self._forgotten_until = 0

    def clear(self, position: int) -> None:
        """Delete everything; the log is applied again from `position` on."""
        super().clear(position)
        self._forgotten_until = 0

    # What is appended

    def begin_append(self) -> None:
        """Announce an append of marked messages or releases."""
        self._marked_until = _ALL_MARKS

    def end_append(self, digests: Mapping[bytes, int | None], end_position: int) -> None:
        """Note what was appended: the log ends at `end_position` now.

        `digests` has the digest of each stored message by its key, None for a released key; it is empty when
        nothing was stored.
        """
        self._marked_until = end_position
        if digests and self.applied_position < end_position:
            self._recent.update((key, (end_position, digest)) for key, digest in digests.items())
            self._recent_batches.append((end_position, list(digests)))

    def digest(self, key: bytes) -> int | None:
        """Return the digest of the message stored under this packet id; None when there is none."""
        recent = self._recent.get(key)
        if recent is not None:
            return recent[1]
        entry = self._entry(key)
        if entry is None or entry.position is None or entry.position < self._min_position:
            return None
        return entry.digest

    def new_elements(self, elements: Buffer) -> tuple[Buffer, dict[bytes, int | None]]:
        """Return the elements of a batch that are not stored yet, and the digests of those that are marked.

        Raises StoreError while the ids are not known.
        """
        self._check_known()
        view = memoryview(elements)
        digests: dict[bytes, int | None] = {}
        parts: list[memoryview] = []
        at = 0
        for key, digest, start, end in marked_elements(elements):
            if digest == (digests[key] if key in digests else self.digest(key)):
                parts.append(view[at:start])
                at = end
            else:
                digests[key] = digest
        if not at:
            return elements, digests
        parts.append(view[at:])
        return b"".join(parts), digests

    def known_releases(self, body: bytes) -> tuple[list[bytes], bytes]:
        """Return the keys that a release names and this broker has, and a release of just these.

        Raises ValueError for a malformed release, and StoreError while the ids are not known.
        """
        self._check_known()
        found: list[bytes] = []
        pieces = bytearray()
        for client, packet_id in split_releases(body):
            keys = [key_of(client, packet_id)] if packet_id != ALL else self._keys_of(client)
            known = [key for key in keys if self.digest(key) is not None]
            if known:
                found += known
                pieces += encode_release(client, packet_id)
        return found, bytes(pieces)

    # What is applied

    def apply(self, view: memoryview, start_position: int, end_position: int) -> None:
        self.is_looking = start_position < self._marked_until
        super().apply(view, start_position, end_position)
        while self._recent_batches and self._recent_batches[0][0] <= end_position:
            position, keys = self._recent_batches.popleft()
            for key in keys:
                if self._recent.get(key, (_NO_MARKS,))[0] == position:
                    del self._recent[key]
        if self._forgotten_until < self._min_position:
            self._forget_trimmed()
        while self.count > self._ids_max or self.size_bytes > self._bytes_max:
            self._forget_oldest()

    def put(self, key: bytes, position: int, digest: int) -> None:
        """Add a marked message in place of any other with its packet id."""
        before = self._entry(key)
        if before is None or before.position is None:
            self.count += 1
            self.size_bytes += 2 * len(key) + _ENTRY_BYTES
        self._changes.put(key, position, digest, None if before is None else before.stored)

    def release_all(self, body: bytes) -> None:
        """Apply the releases of a stored record."""
        try:
            for client, packet_id in split_releases(body):
                for key in [key_of(client, packet_id)] if packet_id != ALL else self._keys_of(client):
                    self._release(key)
        except ValueError as error:
            logger.error("a record of packet ids cannot be read: %s", error)

    def trim(self, min_position: int) -> None:
        """Forget ids whose messages retention has deleted: their devices have been away for that long.

        They are unknown from now on, and released some at a time with what is applied next: there may be very
        many.
        """
        # All of it is in the database then.
        super().trim(min_position)
        self._min_position = max(self._min_position, min_position)

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_broker_received_ids", "Packet ids of QoS 2 that devices have not released.", self.count),
            (
                "iotmq_broker_forgotten_received_ids_total",
                "Packet ids of QoS 2 dropped because there were too many.",
                self.forgotten_total,
            ),
        )

    def _release(self, key: bytes) -> None:
        entry = self._entry(key)
        if entry is None or entry.position is None:
            return
        self.count -= 1
        self.size_bytes -= 2 * len(key) + _ENTRY_BYTES
        self._changes.release(key, entry.stored)

    def _forget_oldest(self) -> None:
        """Release the id whose message is the oldest."""
        # Those before are in the database until the next write, and are not to be passed over one by one.
        start = _ORDER_TAG + _POSITION.pack(self._forgotten_until)
        for order_key, key in self._space.scan(start, _ORDER_END):
            self._forgotten_until = position = _POSITION.unpack(order_key[1:])[0]
            if self._position(key) == position:
                self.forgotten_total += 1
                self._release(key)
                return
        # Every id of the database is released; those in memory are in the order of the log.
        for key, entry in self._changes.entries.items():
            if entry.position is not None:
                self.forgotten_total += 1
                self._release(key)
                return
        raise AssertionError(f"{self.count} packet ids are counted and none is there")

    def _forget_trimmed(self) -> None:
        """Release some of what is before the start of the log."""
        start, stop = (_ORDER_TAG + _POSITION.pack(at) for at in (self._forgotten_until, self._min_position))
        some = list(islice(self._space.scan(start, stop), TRIMMED_AT_ONCE))
        for order_key, key in some:
            position = _POSITION.unpack(order_key[1:])[0]
            if self._position(key) == position:
                self._release(key)
            self._forgotten_until = position + 1
        if len(some) < TRIMMED_AT_ONCE:
            self._forgotten_until = self._min_position

    def _position(self, key: bytes) -> int | None:
        entry = self._entry(key)
        return None if entry is None else entry.position

    def _entry(self, key: bytes) -> _Entry | None:
        entry = self._changes.entries.get(key)
        if entry is None:
            value = self._space.get(_TAG + key)
            if value is not None:
                position, digest = _VALUE.unpack(value)
                entry = _Entry(position, digest, position)
        return entry

    def _keys_of(self, client: bytes) -> set[bytes]:
        """Return all keys that a client has here."""
        if not self.count and not self._recent:
            return set()
        prefix = client + b"\0"
        return {
            *(key[1:] for key, _ in self._space.scan(_TAG + prefix, after_prefix(_TAG + prefix))),
            *self._changes.keys_of.get(client, ()),
            *(key for key in self._recent if key.startswith(prefix)),
        }

    def _removed_keys(self) -> list[bytes]:
        removed: list[bytes] = []
        for key, entry in self._changes.entries.items():
            if entry.position is None:
                removed.append(_TAG + key)
            if entry.stored is not None and entry.stored != entry.position:
                removed.append(_ORDER_TAG + _POSITION.pack(entry.stored))
        return removed

    def check_invariants(self) -> None:
        """Raise AssertionError when the books disagree. For tests."""
        stored = {key[1:]: _VALUE.unpack(value)[0] for key, value in self._space.scan(_TAG, _ORDER_TAG)}
        order = {key: _POSITION.unpack(at[1:])[0] for at, key in self._space.scan(_ORDER_TAG, _ORDER_END)}
        assert order == stored, "the order is not that of the ids"
        for key, entry in self._changes.entries.items():
            assert entry.stored == stored.get(key), "a change is about another value"
            if entry.position is None:
                del stored[key]
            else:
                stored[key] = entry.position
        assert self.count == len(stored), f"{self.count} counted, {len(stored)} there"
        size_bytes = sum(2 * len(key) + _ENTRY_BYTES for key in stored)
        assert self.size_bytes == size_bytes, f"{self.size_bytes} bytes counted, {size_bytes} there"
        unreleased = {key for key, entry in self._changes.entries.items() if entry.position is not None}
        assert unreleased == {key for keys in self._changes.keys_of.values() for key in keys}
        noted = {key for _, keys in self._recent_batches for key in keys}
        assert self._recent.keys() <= noted, "a recent id would never leave"


def key_of(client: bytes, packet_id: int) -> bytes:
    """Return the key of a message, as received_marks has it."""
    return b"%s\0%d" % (client, packet_id)


def encode_release(client: bytes, packet_id: int) -> bytes:
    """Encode the release of one packet id, or of ALL."""
    return _U16.pack(len(client)) + client + _U16.pack(packet_id)


def split_releases(body: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield (client id, packet id) of each part of a release. Raises ValueError when it is malformed."""
    at = 0
    while at < len(body):
        if at + 2 > len(body):
            raise ValueError("a release ends in the size of a client id")
        client_end = at + 2 + _U16.unpack_from(body, at)[0]
        if client_end + 2 > len(body):
            raise ValueError("a release ends in a client id or packet id")
        yield body[at + 2 : client_end], _U16.unpack_from(body, client_end)[0]
        at = client_end + 2


def _client_of(key: bytes) -> bytes:
    return key.rpartition(b"\0")[0]
