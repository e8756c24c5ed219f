"""Why a connection was refused or ended: one value for the wire, the log and the metrics.

`Reason.name` is the metric label and the log word. `connack_code` is what MQTT 3.1.1 can say about it
in a CONNACK (table 3.1 of the specification); a connection that is past its CONNACK is just closed,
because 3.1.1 has no DISCONNECT from the server.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Reason(NamedTuple):
    """A reason to end a connection. `v5_code` is the reason code MQTT 5 gives the same event."""

    name: str
    v5_code: int
    connack_code: int | None = None

    @property
    def is_peer_fault(self) -> bool:
        """True when the device broke a rule (logged and counted as bad input)."""
        return self in PEER_FAULTS


NORMAL: Final = Reason("normal", 0x00)
CONNECTION_LOST: Final = Reason("connection_lost", 0x00)
MALFORMED_PACKET: Final = Reason("malformed_packet", 0x81)
PROTOCOL_ERROR: Final = Reason("protocol_error", 0x82)
UNSUPPORTED_PROTOCOL_VERSION: Final = Reason("unsupported_protocol_version", 0x84, 1)
CLIENT_ID_NOT_VALID: Final = Reason("client_id_not_valid", 0x85, 2)
SERVER_UNAVAILABLE: Final = Reason("server_unavailable", 0x88, 3)
SERVER_BUSY: Final = Reason("server_busy", 0x89, 3)
BAD_USER_NAME_OR_PASSWORD: Final = Reason("bad_user_name_or_password", 0x86, 4)
NOT_AUTHORIZED: Final = Reason("not_authorized", 0x87, 5)
SERVER_SHUTTING_DOWN: Final = Reason("server_shutting_down", 0x8B)
KEEP_ALIVE_TIMEOUT: Final = Reason("keep_alive_timeout", 0x8D)
CONNECT_TIMEOUT: Final = Reason("connect_timeout", 0x8D)
SESSION_TAKEN_OVER: Final = Reason("session_taken_over", 0x8E)
TOPIC_NAME_INVALID: Final = Reason("topic_name_invalid", 0x90)
PACKET_TOO_LARGE: Final = Reason("packet_too_large", 0x95)
RECEIVE_MAXIMUM_EXCEEDED: Final = Reason("receive_maximum_exceeded", 0x93)
QUOTA_EXCEEDED: Final = Reason("quota_exceeded", 0x97)
UNACKNOWLEDGED_OVERFLOW: Final = Reason("unacknowledged_overflow", 0x93)
NOT_STORED: Final = Reason("not_stored", 0x80)

PEER_FAULTS: Final = frozenset(
    {
        MALFORMED_PACKET,
        PROTOCOL_ERROR,
        UNSUPPORTED_PROTOCOL_VERSION,
        CLIENT_ID_NOT_VALID,
        CONNECT_TIMEOUT,
        TOPIC_NAME_INVALID,
        PACKET_TOO_LARGE,
        RECEIVE_MAXIMUM_EXCEEDED,
        QUOTA_EXCEEDED,
    }
)

# SUBACK return code for a refused filter [MQTT-3.9.3-2].
SUBACK_FAILURE: Final = 0x80
