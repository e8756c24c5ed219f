"""Keep the turns in the exchange of AUTH packets of one connection (MQTT 5 section 4.12).

    CONNECT with a method   -> it is the server's turn
    the server asks (0x18)  -> the client's turn: AUTH 0x18, and before the CONNACK only DISCONNECT beside it
    the client answers      -> the server's turn
    the server accepts      -> nobody's turn, until the client begins again with AUTH 0x19

There is one of these for a connection whose CONNECT had a method, and none for any other.
"""

from __future__ import annotations

from typing import Final

from iotmq import limits
from iotmq.mqtt.codec.packets import Auth
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import (
    CONTINUE_AUTHENTICATION,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    RE_AUTHENTICATE,
)

_SERVER: Final = 1
_CLIENT: Final = 2
_NOBODY: Final = 3


class EnhancedAuthentication:
    """The method of a connection, and where its exchange is. MqttProtocolError for a client out of turn."""

    __slots__ = ("_turn", "final_data", "method")

    def __init__(self, method: str, data: bytes | None) -> None:
        """Begin an exchange after a CONNECT with these authentication properties."""
        _check_size(data)
        self.method = method
        # What the CONNACK is to say; set while a session opens for a client that was accepted.
        self.final_data: bytes | None = None
        self._turn = _SERVER

    def client_sent(self, auth: Auth) -> None:
        """An AUTH came."""
        if auth.method != self.method:  # [MQTT-4.12.0-5], [MQTT-4.12.1-1]
            raise MqttProtocolError(PROTOCOL_ERROR, "AUTH has another authentication method than CONNECT")
        _check_size(auth.data)
        if auth.reason_code == RE_AUTHENTICATE and self._turn != _NOBODY:
            raise MqttProtocolError(PROTOCOL_ERROR, "AUTH begins anew while an exchange is under way")
        if auth.reason_code == CONTINUE_AUTHENTICATION and self._turn != _CLIENT:  # [MQTT-4.12.0-3]
            raise MqttProtocolError(PROTOCOL_ERROR, "AUTH goes on with an exchange that does not wait for it")
        self._turn = _SERVER

    def server_asks(self, data: bytes | None) -> Properties:
        """Return the properties of an AUTH 0x18, by which the server asks."""
        assert self._turn == _SERVER, "the client has not answered yet"
        self._turn = _CLIENT
        return self._properties(data)

    def server_accepts(self, data: bytes | None) -> Properties:
        """The exchange is over: what AUTH 0x00 says, or the CONNACK adds [MQTT-4.12.0-5]."""
        self._turn = _NOBODY
        self.final_data = None
        return self._properties(data)

    def _properties(self, data: bytes | None) -> Properties:
        return Properties(authentication_method=self.method, authentication_data=data or None)


def _check_size(data: bytes | None) -> None:
    if data is not None and len(data) > limits.MQTT_AUTHENTICATION_DATA_BYTES_MAX:
        raise MqttProtocolError(
            QUOTA_EXCEEDED,
            f"{len(data)} bytes of authentication data, at most {limits.MQTT_AUTHENTICATION_DATA_BYTES_MAX}"
            " are allowed",
        )
