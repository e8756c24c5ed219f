"""Keep a client's session across connections (MQTT 3.1.1 section 4.1): messages not done, both ways.

An outgoing message of QoS 1 or 2 is in one of three places, in the order in which it was given:

    waiting     --window has room-->  publishing    PUBLISH was sent; again with DUP after a reconnect
    publishing  --PUBACK-->           done
    publishing  --PUBREC-->           releasing     PUBREL was sent; again after a reconnect
    releasing   --PUBCOMP-->          done

Of what comes with QoS 2 the packet ids between PUBLISH and PUBREL are kept, so that a message is handed on
once.
"""

from __future__ import annotations

from collections import deque

from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties

_PACKET_ID_MAX = 65_535


class OutgoingMessage:
    """A message to be published. `token` is the caller's, and comes back with the end of QoS 1 and 2."""

    __slots__ = ("packet_id", "payload", "properties", "qos", "retain", "token", "topic")

    def __init__(
        self,
        topic: bytes,
        payload: bytes,
        *,
        qos: int,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
        token: object = None,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.token = token
        # 0 while it waits.
        self.packet_id = 0


class ClientSession:
    """Give the same one to each connection of a client."""

    def __init__(self) -> None:
        self.waiting: deque[OutgoingMessage] = deque()
        # By packet id. Dicts keep the order in which PUBLISH, or PUBREL, has to be sent again
        # [MQTT-4.6.0-1, -4].
        self.publishing: dict[int, OutgoingMessage] = {}
        self.releasing: dict[int, OutgoingMessage] = {}
        self.received: set[int] = set()
        # Packet ids of SUBSCRIBE and UNSUBSCRIBE without an answer, and how many filters they have.
        self.asking: dict[int, int] = {}
        self._last_packet_id = 0

    @property
    def unfinished_count(self) -> int:
        """Outgoing messages that are not done."""
        return len(self.waiting) + len(self.publishing) + len(self.releasing)

    @property
    def has_free_packet_id(self) -> bool:
        """Return whether `new_packet_id` has one."""
        return len(self.publishing) + len(self.releasing) + len(self.asking) < _PACKET_ID_MAX

    def begin_publishing(self, message: OutgoingMessage) -> None:
        """The first in `waiting` gets its packet id."""
        message.packet_id = self.new_packet_id()
        self.publishing[message.packet_id] = message

    def new_packet_id(self) -> int:
        """Return a packet id that nothing outgoing has [MQTT-2.2.1-4]; OverflowError when there is none."""
        for _ in range(_PACKET_ID_MAX):
            packet_id = self._last_packet_id = self._last_packet_id % _PACKET_ID_MAX + 1
            if (
                packet_id not in self.publishing
                and packet_id not in self.releasing
                and packet_id not in self.asking
            ):
                return packet_id
        raise OverflowError("all 65,535 packet ids are in flight")

    def forget(self) -> list[OutgoingMessage]:
        """The server has no session: what it may not have had waits again, as if it was new.

        Returns the messages that are done because the server has said that it has them.
        """
        done = list(self.releasing.values())
        self.waiting.extendleft(reversed(self.publishing.values()))
        for message in self.publishing.values():
            message.packet_id = 0
        self.publishing.clear()
        self.releasing.clear()
        self.received.clear()
        return done
