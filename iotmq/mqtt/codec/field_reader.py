"""A cursor over the fields of one rare packet, in the data types of MQTT 5 section 1.5."""

from __future__ import annotations

from typing import ClassVar, Self

from iotmq import limits
from iotmq.mqtt.codec.framing import decode_variable_integer
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import MALFORMED_PACKET, PROTOCOL_ERROR
from iotmq.mqtt.topics import topics


class FieldReader:
    """Reads fields one after the other; reading past the end is a malformed packet.

    What a device may send is limited by what a record can hold; a reader of what servers send has limits of
    its own.
    """

    properties_bytes_max: ClassVar[int] = limits.MQTT_PROPERTIES_BYTES_MAX
    user_properties_max: ClassVar[int] = limits.MQTT_USER_PROPERTIES_MAX

    __slots__ = ("_at", "_body", "_end", "packet")

    def __init__(self, body: bytes, packet: str) -> None:
        """`packet` is what errors call it."""
        self._body = body
        self._at = 0
        self._end = len(body)
        self.packet = packet

    @property
    def is_at_end(self) -> bool:
        return self._at == self._end

    def check_end(self) -> None:
        """Raise MqttProtocolError for bytes that no field has taken."""
        if not self.is_at_end:
            raise MqttProtocolError(MALFORMED_PACKET, f"{self.packet} has bytes behind its last field")

    def take(self, size: int) -> bytes:
        end = self._at + size
        if end > self._end:
            raise MqttProtocolError(MALFORMED_PACKET, f"{self.packet} ends in the middle of a field")
        piece = self._body[self._at : end]
        self._at = end
        return piece

    def rest(self) -> bytes:
        """Read the rest of the packet."""
        return self.take(self._end - self._at)

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def variable_integer(self) -> int:
        """Read a variable byte integer of one to four bytes, in the shortest form [MQTT-1.5.5-1]."""
        value, taken = decode_variable_integer(self._body, self._at)
        if taken >= 0:
            digits = self.take(taken or self._end - self._at + 1)
            if taken == 1 or digits[-1]:
                return value
        raise MqttProtocolError(
            MALFORMED_PACKET, f"{self.packet} has a variable byte integer that is not in its shortest form"
        )

    def binary(self) -> bytes:
        return self.take(self.u16())

    def text(self, what: str) -> str:
        return topics.decode_text(self.binary(), what=what)

    def value(self, what: str) -> str:
        """Text that is a value for somebody else."""
        return topics.decode_value(self.binary(), what=what)

    def packet_id(self) -> int:
        packet_id = self.u16()
        if packet_id == 0:  # [MQTT-2.3.1-1], MQTT 5 [MQTT-2.2.1-3]
            raise MqttProtocolError(PROTOCOL_ERROR, f"{self.packet} has packet id 0")
        return packet_id

    def part(self, size: int, packet: str) -> Self:
        """A reader of the next `size` bytes alone."""
        return type(self)(self.take(size), packet)
