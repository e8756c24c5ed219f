"""Keep the packet ids of QoS 2 messages that devices have sent and not released: a projection of the log.

Only kept sessions have such ids. The packet id is a property of the stored message (MQTT_PACKET_ID), and a
release (PUBREL) is a record of RECEIVED_TOPIC. So after any crash the log says which messages are stored.

A message under an id that is not released is the stored one if topic and body are the same, with DUP or
without [MQTT-4.3.3-10]. A different message takes the id over: its client has lost its state.

Body of a record of RECEIVED_TOPIC, and of a request that releases, for each id: size of the client id 2 |
client id | packet id 2. Packet id 0 stands for all of the client's. A mark's number is the digest of its
message (`received_marks`).
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from typing_extensions import Buffer

from iotmq import limits
from iotmq.broker.exactly_once.marks import Marks
from iotmq.broker.exactly_once.received_marks import collect_received, marked_elements
from iotmq.metrics import Metric, samples

if TYPE_CHECKING:
    from iotmq.store.kv.kv import KeyValueStore

NAME: Final = "received_ids"
FORMAT_VERSION: Final = 2
ALL: Final = 0

_U16: Final = struct.Struct(">H")

logger = logging.getLogger(__name__)


class ReceivedIds(Marks):
    """The marks of packet ids. For the store's thread alone."""

    def __init__(
        self,
        key_values: KeyValueStore,
        *,
        ids_max: int = limits.RECEIVED_IDS_MAX,
        bytes_max: int = limits.RECEIVED_IDS_BYTES_MAX,
    ) -> None:
        super().__init__(
            key_values, NAME, format_version=FORMAT_VERSION, count_max=ids_max, bytes_max=bytes_max
        )

    def collect(self, view: memoryview) -> None:
        collect_received(view, self.put, self.release_all)

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
            if digest == (digests[key] if key in digests else self.number(key)):
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
            keys = [key_of(client, packet_id)] if packet_id != ALL else self.keys_of(client)
            known = [key for key in keys if self.number(key) is not None]
            if known:
                found += known
                pieces += encode_release(client, packet_id)
        return found, bytes(pieces)

    def release_all(self, body: bytes) -> None:
        """Apply the releases of a stored record."""
        try:
            for client, packet_id in split_releases(body):
                for key in [key_of(client, packet_id)] if packet_id != ALL else self.keys_of(client):
                    self.release(key)
        except ValueError as error:
            logger.error("a record of packet ids cannot be read: %s", error)

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_broker_received_ids", "Packet ids of QoS 2 that devices have not released.", self.count),
            (
                "iotmq_broker_forgotten_received_ids_total",
                "Packet ids of QoS 2 dropped because there were too many.",
                self.forgotten_total,
            ),
        )


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
