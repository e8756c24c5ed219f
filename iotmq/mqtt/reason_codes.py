"""Reason codes of MQTT 5 (section 2.4): one table for the wire, the log, the metrics and people.

A `Reason` says why a connection was refused or ended. `Reason.name` is the metric label and the log word.
`connack_code` is what MQTT 3.1.1 can say about it in a CONNACK (table 3.1 of its specification); a connection
that is past its CONNACK is just closed, because 3.1.1 has no DISCONNECT from the server.
"""

from __future__ import annotations

from typing import Final, NamedTuple

# Where a code is allowed (sections 3.2.2.2, 3.4.2.1 to 3.7.2.1, 3.14.2.1, 3.15.2.1). The last four are what a
# client sends: PUBACK and PUBREC, PUBREL and PUBCOMP, DISCONNECT, AUTH.
_CONNACK, _SERVER_DISCONNECT, _RECEIPT, _RELEASE, _DISCONNECT, _AUTH = (1 << bit for bit in range(6))

_CODES: Final = {
    0x00: ("success", _RECEIPT | _RELEASE | _DISCONNECT),
    0x04: ("disconnect with the will", _DISCONNECT),
    0x10: ("no matching subscribers", _RECEIPT),
    0x11: ("no subscription existed", 0),
    0x18: ("continue authentication", _AUTH),
    0x19: ("re-authenticate", _AUTH),
    0x80: ("unspecified error", _CONNACK | _SERVER_DISCONNECT | _RECEIPT | _DISCONNECT),
    0x81: ("malformed packet", _CONNACK | _SERVER_DISCONNECT | _DISCONNECT),
    0x82: ("protocol error", _CONNACK | _SERVER_DISCONNECT | _DISCONNECT),
    0x83: ("implementation specific error", _CONNACK | _SERVER_DISCONNECT | _RECEIPT | _DISCONNECT),
    0x84: ("unsupported protocol version", _CONNACK),
    0x85: ("client identifier not valid", _CONNACK),
    0x86: ("bad user name or password", _CONNACK),
    0x87: ("not authorized", _CONNACK | _SERVER_DISCONNECT | _RECEIPT),
    0x88: ("server unavailable", _CONNACK),
    0x89: ("server busy", _CONNACK | _SERVER_DISCONNECT),
    0x8A: ("banned", _CONNACK),
    0x8B: ("server shutting down", _SERVER_DISCONNECT),
    0x8C: ("bad authentication method", _CONNACK),
    0x8D: ("keep alive timeout", _SERVER_DISCONNECT),
    0x8E: ("session taken over", _SERVER_DISCONNECT),
    0x8F: ("topic filter invalid", _SERVER_DISCONNECT),
    0x90: ("topic name invalid", _CONNACK | _SERVER_DISCONNECT | _RECEIPT | _DISCONNECT),
    0x91: ("packet identifier in use", _RECEIPT),
    0x92: ("packet identifier not found", _RELEASE),
    0x93: ("receive maximum exceeded", _SERVER_DISCONNECT | _DISCONNECT),
    0x94: ("topic alias invalid", _SERVER_DISCONNECT | _DISCONNECT),
    0x95: ("packet too large", _CONNACK | _SERVER_DISCONNECT | _DISCONNECT),
    0x96: ("message rate too high", _SERVER_DISCONNECT | _DISCONNECT),
    0x97: ("quota exceeded", _CONNACK | _SERVER_DISCONNECT | _RECEIPT | _DISCONNECT),
    0x98: ("administrative action", _SERVER_DISCONNECT | _DISCONNECT),
    0x99: ("payload format invalid", _CONNACK | _SERVER_DISCONNECT | _RECEIPT | _DISCONNECT),
    0x9A: ("retain not supported", _CONNACK | _SERVER_DISCONNECT),
    0x9B: ("QoS not supported", _CONNACK | _SERVER_DISCONNECT),
    0x9C: ("use another server", _CONNACK | _SERVER_DISCONNECT),
    0x9D: ("server moved", _CONNACK | _SERVER_DISCONNECT),
    0x9E: ("shared subscriptions not supported", _SERVER_DISCONNECT),
    0x9F: ("connection rate exceeded", _CONNACK | _SERVER_DISCONNECT),
    0xA0: ("maximum connect time", _SERVER_DISCONNECT),
    0xA1: ("subscription identifiers not supported", _SERVER_DISCONNECT),
    0xA2: ("wildcard subscriptions not supported", _SERVER_DISCONNECT),
}

# From this code on all are errors.
FIRST_ERROR: Final = 0x80

# The codes of a CONNACK of MQTT 3.1.1 in MQTT 5, and what that CONNACK says for a code of MQTT 5.
CONNECT_RETURN_CODES: Final = {1: 0x84, 2: 0x85, 3: 0x88, 4: 0x86, 5: 0x87}
_RETURN_CODES: Final = {code: number for number, code in CONNECT_RETURN_CODES.items()} | dict.fromkeys(
    (0x89, 0x97, 0x9C, 0x9D, 0x9F), 3
)
_RETURN_CODES[0x8A] = 5


def _allowed_in(place: int) -> frozenset[int]:
    return frozenset(code for code, (_, places) in _CODES.items() if places & place)


CONNACK_CODES: Final = _allowed_in(_CONNACK)
SERVER_DISCONNECT_CODES: Final = _allowed_in(_SERVER_DISCONNECT)
CLIENT_CODES: Final = {
    4: _allowed_in(_RECEIPT),
    5: _allowed_in(_RECEIPT),
    6: _allowed_in(_RELEASE),
    7: _allowed_in(_RELEASE),
    14: _allowed_in(_DISCONNECT),
    15: _allowed_in(_AUTH),
}


def reason_text(code: int) -> str:
    """Name a reason code in words, with the number as the specification writes it."""
    return f"{_CODES[code][0] if code in _CODES else 'unknown reason'} (0x{code:02X})"


class Reason(NamedTuple):
    """A reason to end a connection. `v5_code` is the reason code MQTT 5 gives the same event.

    `server_reference` is where a device of MQTT 5 is sent, with the two reasons that say so (section 4.11).
    """

    name: str
    v5_code: int
    connack_code: int | None = None
    server_reference: str | None = None

    @property
    def is_peer_fault(self) -> bool:
        """Return whether the device broke a rule (logged and counted as bad input)."""
        return self in PEER_FAULTS


def _reason(code: int, name: str | None = None) -> Reason:
    """Return the reason of a code: of the table, or one of our own that MQTT 5 says with this code."""
    return Reason(name or _CODES[code][0].replace(" ", "_"), code, _RETURN_CODES.get(code))


NORMAL: Final = _reason(0x00, "normal")
UNSPECIFIED_ERROR: Final = _reason(0x80)
CONNECTION_LOST: Final = _reason(0x00, "connection_lost")
MALFORMED_PACKET: Final = _reason(0x81)
PROTOCOL_ERROR: Final = _reason(0x82)
UNSUPPORTED_PROTOCOL_VERSION: Final = _reason(0x84)
CLIENT_ID_NOT_VALID: Final = _reason(0x85, "client_id_not_valid")
SERVER_UNAVAILABLE: Final = _reason(0x88)
SERVER_BUSY: Final = _reason(0x89)
BAD_USER_NAME_OR_PASSWORD: Final = _reason(0x86)
NOT_AUTHORIZED: Final = _reason(0x87)
BAD_AUTHENTICATION_METHOD: Final = _reason(0x8C)
BANNED: Final = _reason(0x8A)
SERVER_SHUTTING_DOWN: Final = _reason(0x8B)
KEEP_ALIVE_TIMEOUT: Final = _reason(0x8D)
CONNECT_TIMEOUT: Final = _reason(0x8D, "connect_timeout")
PACKET_TIMEOUT: Final = _reason(0x98, "packet_timeout")
SESSION_TAKEN_OVER: Final = _reason(0x8E)
TOPIC_NAME_INVALID: Final = _reason(0x90)
PACKET_TOO_LARGE: Final = _reason(0x95)
RECEIVE_MAXIMUM_EXCEEDED: Final = _reason(0x93)
TOPIC_ALIAS_INVALID: Final = _reason(0x94)
QUOTA_EXCEEDED: Final = _reason(0x97)
ADMINISTRATIVE_ACTION: Final = _reason(0x98)
PAYLOAD_FORMAT_INVALID: Final = _reason(0x99)
CONNECTION_RATE_EXCEEDED: Final = _reason(0x9F)
USE_ANOTHER_SERVER: Final = _reason(0x9C)
SERVER_MOVED: Final = _reason(0x9D)
MAXIMUM_CONNECT_TIME: Final = _reason(0xA0)
NOT_STORED: Final = _reason(0x80, "not_stored")
# Of a connection that was to carry MQTT in a WebSocket: its request, or a rule of RFC 6455 or section 6.
WEBSOCKET_REFUSED: Final = _reason(0x82, "websocket_refused")
WEBSOCKET_ERROR: Final = _reason(0x82, "websocket_error")

PEER_FAULTS: Final = frozenset(
    {
        MALFORMED_PACKET,
        PROTOCOL_ERROR,
        UNSUPPORTED_PROTOCOL_VERSION,
        CLIENT_ID_NOT_VALID,
        CONNECT_TIMEOUT,
        PACKET_TIMEOUT,
        BAD_AUTHENTICATION_METHOD,
        TOPIC_NAME_INVALID,
        TOPIC_ALIAS_INVALID,
        PAYLOAD_FORMAT_INVALID,
        PACKET_TOO_LARGE,
        RECEIVE_MAXIMUM_EXCEEDED,
        QUOTA_EXCEEDED,
        WEBSOCKET_REFUSED,
        WEBSOCKET_ERROR,
    }
)

# Codes that say nothing about the end of a connection.
NO_SUBSCRIPTION_EXISTED: Final = 0x11
CONTINUE_AUTHENTICATION: Final = 0x18
RE_AUTHENTICATE: Final = 0x19
SUBACK_FAILURE: Final = FIRST_ERROR  # of a SUBACK before MQTT 5, too [MQTT-3.9.3-2]
TOPIC_FILTER_INVALID: Final = 0x8F
PACKET_ID_NOT_FOUND: Final = 0x92
RETAIN_NOT_SUPPORTED: Final = 0x9A
QOS_NOT_SUPPORTED: Final = 0x9B
SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0x9E
