"""Name the ways in which a server fails a load test, so that many devices with one trouble are one row."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from typing import Final

from iotmq.errors import ClientError, ConnectionClosedError
from iotmq.mqtt.client.events import Ending
from iotmq.mqtt.reason_codes import reason_text
from iotmq.mqtt_client.errors import ServerRefusedError

LOST: Final = "lost"
REPEATED: Final = "repeated"
MISSED: Final = "missed while away"
NO_ANSWER: Final = "no answer in time"
UNSENT: Final = "was due, and could not be sent in time"
NO_CONNECTION: Final = "no connection"
TOO_MANY_WAIT: Final = "too many messages wait for the server"
CLOSED: Final = "closed by the server"

_KINDS: Final = {
    0: CLOSED,
    errno.ECONNREFUSED: "refused: nobody listens there",
    errno.ECONNRESET: "reset by the server",
    errno.EPIPE: "reset by the server",
    errno.ETIMEDOUT: NO_ANSWER,
    errno.EPROTO: "the server broke a rule of MQTT",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
    errno.ENFILE: "too many open files on this machine (sysctl fs.file-max)",
    errno.EADDRNOTAVAIL: "no free port left: more source addresses, or sysctl net.ipv4.ip_local_port_range",
    errno.ENOMEM: "no memory left",
}


class Fault(Exception):  # noqa: N818 - an answer of the server's, not a mistake of the program's
    """A failure as Locust lists it: its text is the same for all devices that have it."""

    def __repr__(self) -> str:
        return str(self)


def fault_of_number(number: int) -> Fault:
    """Name an errno; 0 is a server that closed the connection."""
    return Fault(_KINDS.get(number) or os.strerror(number))


def fault_of_code(code: int) -> Fault:
    """Name a refusal, by its reason code of MQTT 5."""
    return Fault(f"refused by the server: {reason_text(code)}")


def fault_of_ending(ending: Ending) -> Fault:
    """Name the end of a connection that was not ours."""
    if ending.is_by_server:
        what = "refused" if "refused" in ending.text else "disconnected"
        return Fault(f"{what} by the server: {reason_text(ending.code)}")
    if "the server closed" in ending.text:
        return Fault(CLOSED)
    if "does not answer" in ending.text:
        return Fault(NO_ANSWER)
    if "broke a rule" in ending.text:
        # Which rule, but not which packet id: one row for all devices.
        return Fault(f"the server broke a rule of MQTT: {reason_text(ending.code)}")
    number = next((each for each in (errno.ECONNRESET, errno.EPIPE) if f"Errno {each}]" in ending.text), None)
    return Fault(ending.text) if number is None else fault_of_number(number)


def fault_of(error: BaseException) -> Fault:
    """Name what kept a connection from being made."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, TimeoutError):
        return Fault(NO_ANSWER)
    if isinstance(error, socket.gaierror):
        return Fault("the name of the server is unknown")
    if isinstance(error, ssl.SSLError):
        return Fault(f"TLS: {error.reason or 'handshake failed'}")
    if isinstance(error, OSError) and error.errno:
        return fault_of_number(error.errno)
    if isinstance(error, ServerRefusedError | ConnectionClosedError | ClientError | ConnectionError):
        return Fault(str(error))
    return Fault(f"{type(error).__name__}: {error}")
