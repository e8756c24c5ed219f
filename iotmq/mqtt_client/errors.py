"""Define the errors between a client and its server."""

from __future__ import annotations

from typing import Final

from iotmq.errors import ConnectionClosedError, IotmqError
from iotmq.mqtt.client.events import Ending

# What another try cannot cure: the server refuses who we are or what we said, or another took our place.
_FINAL_CODES: Final = frozenset(
    {0x81, 0x82, 0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C, 0x8E, 0x90, 0x95, 0x99, 0x9A, 0x9B}
)


class ServerRefusedError(IotmqError):
    """The server refused the connection or a message; `code` is the reason code of MQTT 5 for it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class PublishRefusedError(ServerRefusedError):
    """The server refused this one message, by its acknowledgement."""


def is_final(ending: Ending) -> bool:
    """Return whether connecting again would end the same way."""
    return ending.is_by_server and ending.code in _FINAL_CODES


def error_of(ending: Ending) -> IotmqError:
    """Make the exception for the end of a connection."""
    if ending.is_by_server:
        return ServerRefusedError(ending.code, ending.text)
    return ConnectionClosedError(ending.text)
