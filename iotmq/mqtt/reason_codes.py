"""Why a connection was refused or ended: one value for the wire, the log and the metrics.

`Reason.name` is the metric label and the log word. `connack_code` is what MQTT 3.1.1 can say about it
in a CONNACK (table 3.1 of the specification); a connection that is past its CONNACK is just closed,
because 3.1.1 has no DISCONNECT from the server.
"""

from __future__ import annotations

from typing import Final, NamedTuple


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
        """True when the device broke a rule (logged and counted as bad input)."""
        return self in PEER_FAULTS


NORMAL: Final = Reason("normal", 0x00)
UNSPECIFIED_ERROR: Final = Reason("unspecified_error", 0x80)
CONNECTION_LOST: Final = Reason("connection_lost", 0x00)
MALFORMED_PACKET: Final = Reason("malformed_packet", 0x81)
PROTOCOL_ERROR: Final = Reason("protocol_error", 0x82)
UNSUPPORTED_PROTOCOL_VERSION: Final = Reason("unsupported_protocol_version", 0x84, 1)
CLIENT_ID_NOT_VALID: Final = Reason("client_id_not_valid", 0x85, 2)
SERVER_UNAVAILABLE: Final = Reason("server_unavailable", 0x88, 3)
SERVER_BUSY: Final = Reason("server_busy", 0x89, 3)
BAD_USER_NAME_OR_PASSWORD: Final = Reason("bad_user_name_or_password", 0x86, 4)
NOT_AUTHORIZED: Final = Reason("not_authorized", 0x87, 5)
BAD_AUTHENTICATION_METHOD: Final = Reason("bad_authentication_method", 0x8C)
SERVER_SHUTTING_DOWN: Final = Reason("server_shutting_down", 0x8B)
KEEP_ALIVE_TIMEOUT: Final = Reason("keep_alive_timeout", 0x8D)
CONNECT_TIMEOUT: Final = Reason("connect_timeout", 0x8D)
SESSION_TAKEN_OVER: Final = Reason("session_taken_over", 0x8E)
TOPIC_NAME_INVALID: Final = Reason("topic_name_invalid", 0x90)
PACKET_TOO_LARGE: Final = Reason("packet_too_large", 0x95)
RECEIVE_MAXIMUM_EXCEEDED: Final = Reason("receive_maximum_exceeded", 0x93)
TOPIC_ALIAS_INVALID: Final = Reason("topic_alias_invalid", 0x94)
QUOTA_EXCEEDED: Final = Reason("quota_exceeded", 0x97)
PAYLOAD_FORMAT_INVALID: Final = Reason("payload_format_invalid", 0x99)
CONNECTION_RATE_EXCEEDED: Final = Reason("connection_rate_exceeded", 0x9F, 3)
USE_ANOTHER_SERVER: Final = Reason("use_another_server", 0x9C, 3)
SERVER_MOVED: Final = Reason("server_moved", 0x9D, 3)
NOT_STORED: Final = Reason("not_stored", 0x80)
# Of a connection that was to carry MQTT in a WebSocket: its request, or a rule of RFC 6455 or section 6.
WEBSOCKET_REFUSED: Final = Reason("websocket_refused", 0x82)
WEBSOCKET_ERROR: Final = Reason("websocket_error", 0x82)

PEER_FAULTS: Final = frozenset(
    {
        MALFORMED_PACKET,
        PROTOCOL_ERROR,
        UNSUPPORTED_PROTOCOL_VERSION,
        CLIENT_ID_NOT_VALID,
        CONNECT_TIMEOUT,
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

# SUBACK return code for a refused filter [MQTT-3.9.3-2].
SUBACK_FAILURE: Final = 0x80

# Codes of MQTT 5 (section 2.4) that say nothing about the end of a connection.
NO_SUBSCRIPTION_EXISTED: Final = 0x11
DISCONNECT_WITH_WILL: Final = 0x04
PACKET_ID_NOT_FOUND: Final = 0x92
TOPIC_FILTER_INVALID: Final = 0x8F
CONTINUE_AUTHENTICATION: Final = 0x18
RE_AUTHENTICATE: Final = 0x19
SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: Final = 0x9E

# What a server may send in a CONNACK and in a DISCONNECT (sections 3.2.2.2, 3.14.2.1).
CONNACK_CODES: Final = frozenset(
    {0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A}
    | {0x9B, 0x9C, 0x9D, 0x9F}
)
SERVER_DISCONNECT_CODES: Final = frozenset(
    {0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98}
    | {0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2}
)

# What a client may send, by packet type (sections 3.4.2.1, 3.5.2.1, 3.6.2.1, 3.7.2.1, 3.14.2.1, 3.15.2.1).
_RECEIPT_CODES: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
CLIENT_CODES: Final = {
    4: _RECEIPT_CODES,
    5: _RECEIPT_CODES,
    6: frozenset({0x00, PACKET_ID_NOT_FOUND}),
    7: frozenset({0x00, PACKET_ID_NOT_FOUND}),
    14: frozenset(
        {0x00, DISCONNECT_WITH_WILL, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99}
    ),
    15: frozenset({CONTINUE_AUTHENTICATION, RE_AUTHENTICATE}),
}
