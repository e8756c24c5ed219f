"""Settings of one route: where messages go, and what is asked of them (`[[mqtt.routes]]`)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from iotmq import limits

_Hexadecimal = Annotated[str, Meta(pattern=r"^0[xX][0-9A-Fa-f]{1,16}$")]
_Template = Annotated[str, Meta(max_length=1_024)]
_MaybeTopic = Annotated[str, Meta(pattern=r"^[%|a-zA-Z0-9_-]*$", max_length=limits.TOPIC_BYTES_MAX)]


class ChecksumSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The checksum (CRC) in the payloads of a route; frames with another one are put aside."""

    algorithm: Annotated[str, Meta(max_length=64)] = ""
    """Name of the checksum: modbus, ccitt, x-25, crc-32, or any other that crcmod knows. Empty: one of your
    own (polynomial), or none at all."""
    width: Literal[8, 16, 24, 32, 64] = 16
    """Bits of a checksum of your own; this and the next four are as the catalogues of CRCs have them."""
    polynomial: _Hexadecimal = "0x0"
    """Polynomial of the checksum without its highest bit, such as "0x8005"."""
    initial: _Hexadecimal = "0x0"
    """Value that the register of the checksum begins with."""
    reversed: bool = False
    """Whether the lowest bit of each byte comes first, and the result is reversed (refin and refout)."""
    xor_out: _Hexadecimal = "0x0"
    """Value that is added to the result by exclusive or."""
    position: Literal["end", "start"] = "end"
    """The end of the payload that the checksum stands at."""
    distance: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """Bytes between that end and the checksum, which the checksum does not cover."""
    byte_order: Literal["usual", "big", "little"] = "usual"
    """Which byte of it comes first: the highest (big) or the lowest (little). Usual: little for reversed
    ones, such as modbus and x-25, and big for others, such as ccitt."""
    skip_first: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """Bytes at the beginning of what it covers that it leaves out, such as a sync byte. It covers all that is
    before it, or, at the start, all that is behind it."""
    skip_last: Annotated[int, Meta(ge=0, le=65_535)] = 0
    """Bytes at the end of what it covers that it leaves out."""

    @property
    def is_wanted(self) -> bool:
        """Return whether there is a checksum at all."""
        return bool(self.algorithm) or int(self.polynomial, 16) != 0


class RouteSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the messages of some MQTT topics go; the first route that matches decides."""

    filter: Annotated[str, Meta(min_length=1, max_length=limits.MQTT_TOPIC_BYTES_MAX)]
    """MQTT topic filter, such as devices/+/telemetry."""
    topic: _MaybeTopic = ""
    """Broker topic the messages are stored under; only a route with drop has none."""
    name: Annotated[str, Meta(max_length=64, pattern=r"^[^\x00-\x1f\x7f]*\Z")] = ""
    """Name of the route in logs and in iotmq routes test; empty: its place."""
    when: Annotated[tuple[_Template, ...], Meta(max_length=limits.MQTT_ROUTE_CONDITIONS_MAX)] = ()
    """Conditions, all of which a message has to meet, such as "{json:kind} = 'alarm'". The operators are =,
    !=, <, <=, >, >=, exists and missing; values are numbers, true, false, and text in quotes."""
    key: _Template = "{topic}"
    """Key of a message: text with {0}, {1}, ... for the levels of the MQTT topic and {topic} for all of it;
    {client_id} and {user} of the device; {property:NAME} for a user property, {content_type},
    {response_topic} and {correlation_data} of MQTT 5; {json:a.b.0} for a field of a JSON payload. Messages of
    one key stay in one queue, in order. Where nothing is left the key is the topic."""
    tags: _Template = ""
    """Tag of a message for native consumers' filters; placeholders as in key; empty = none."""
    properties: dict[str, _Template] = {}
    """Properties that the record gets: names with templates as in key. What comes out empty is left out."""
    checksum: ChecksumSettings = ChecksumSettings()
    """The checksum in the payload, if it has one."""
    invalid_json: Literal["absent", "quarantine"] = "absent"
    """Absent: a payload that is no JSON, or past mqtt.json_bytes_max, has none of the fields that are asked
    for. Quarantine: it is put aside with the reason."""
    quarantine_topic: _MaybeTopic = ""
    """Broker topic of what is put aside; empty: mqtt.quarantine_topic. No device gets it."""
    quarantine_answer: Literal["success", "refuse"] = "success"
    """Answer to a message of QoS 1 or 2 that is put aside: success, or, from MQTT 5 on, that its payload is
    not valid (0x99)."""
    drop: bool = False
    """True: the messages are acknowledged, and go nowhere."""
    store: bool = True
    """False: live subscribers get the message, the log does not; an acknowledgement promises nothing then."""
    qos_max: Annotated[int, Meta(ge=0, le=2)] = 2
    """Highest QoS the messages go on with. The device is answered as it asked for."""
    sample_one_in: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 1
    """Take one message in so many; the others are acknowledged and go nowhere. 1 takes all."""
    sample_by: Literal["count", "key"] = "count"
    """Count: the first message that comes to a front end, and then each Nth. Key: all messages of one key in
    N, always the same ones."""
    expiry_s: Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)] = 0
    """Message expiry interval of messages that have none, in seconds; 0 leaves them without."""
    expiry_s_max: Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)] = 0
    """Longest message expiry interval, in seconds; longer ones, and messages without one, get this one. 0 =
    no limit."""

    def __post_init__(self) -> None:
        """Raise ValueError for a route that says nothing, or two things that cannot both be."""
        if self.drop == bool(self.topic):
            raise ValueError("a route has a topic, or drop = true, and not both")
        if self.drop and (self.checksum.is_wanted or self.sample_one_in > 1):
            raise ValueError("drop = true drops all messages: neither a checksum nor a sample is looked at")
        if self.expiry_s_max and self.expiry_s > self.expiry_s_max:
            raise ValueError(f"expiry_s = {self.expiry_s} is longer than expiry_s_max = {self.expiry_s_max}")
        if self.checksum.algorithm and int(self.checksum.polynomial, 16):
            raise ValueError("checksum has an algorithm and a polynomial: one of them says which it is")


class RoutesFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of mqtt.routes_file."""

    routes: Annotated[tuple[RouteSettings, ...], Meta(max_length=limits.MQTT_ROUTES_MAX)] = ()
