"""The packets a swarm begins with, ready-made for the engine."""

import struct
from typing import Final

from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect, Will
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from loadtest.swarm.engine import STAMP_MAGIC

# [MQTT 5, 3.1.2.11.2]
SESSION_NEVER_EXPIRES: Final = 0xFFFF_FFFF


def connect_packet(
    client_id: str,
    *,
    keep_alive_s: int = 60,
    username: str | None = None,
    password: str | None = None,
    is_clean: bool = True,
    will: Will | tuple[str, bytes] | None = None,
    is_v5: bool = False,
    session_expiry_s: int | None = None,
) -> bytes:
    """A CONNECT of MQTT 3.1.1 or 5 [MQTT 3.1]; a `will` of topic and payload has QoS 1.

    With MQTT 5 a session that is not clean is kept for as long as the server likes, or for the expiry.
    """
    if session_expiry_s is None and not is_clean:
        session_expiry_s = SESSION_NEVER_EXPIRES
    packet = Connect(
        client_id,
        is_clean,
        keep_alive_s,
        Will(*will, qos=1, retain=False) if will is not None and not isinstance(will, Will) else will,
        username,
        None if password is None else password.encode(),
        packets.PROTOCOL_LEVEL_5 if is_v5 else packets.PROTOCOL_LEVEL_3_1_1,
        NO_PROPERTIES if session_expiry_s is None else Properties(session_expiry_s=session_expiry_s),
    )
    return packets.encode_connect(packet)


def subscribe_packet(topic_filter: str, qos: int, *, packet_id: int = 1, is_v5: bool = False) -> bytes:
    """A SUBSCRIBE of MQTT 3.1.1 or 5 with one filter [MQTT 3.8]."""
    return packets.encode_subscribe(packet_id, [(topic_filter, qos)], NO_PROPERTIES if is_v5 else None)


def unsubscribe_packet(topic_filter: str, *, packet_id: int = 2, is_v5: bool = False) -> bytes:
    """An UNSUBSCRIBE of MQTT 3.1.1 or 5 with one filter [MQTT 3.10]."""
    return packets.encode_unsubscribe(packet_id, [topic_filter], NO_PROPERTIES if is_v5 else None)


def stamp(publisher: int, sequence: int, time_ns: int) -> bytes:
    """The beginning of a payload that subscribers follow; `read_stamp` is the way back."""
    return struct.pack(">IIQQ", STAMP_MAGIC, publisher, sequence, time_ns)


def upgrade_request(host: str, port: int, path: str) -> bytes:
    """The request for a WebSocket; its key is anybody's [RFC 6455 section 1.3]."""
    return (
        f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n"
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
    ).encode()
