"""Show plug-ins a device in the shape of amqtt's session, in a fortieth of its memory."""

from __future__ import annotations

import time
from typing import Any, Final

from iotmq.mqtt.codec.packets import Connect
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.verdicts import Credentials


class _State:
    """Stands for the state machine of a session."""

    __slots__ = ("state",)

    def __init__(self, state: str) -> None:
        self.state = state

    def is_connected(self) -> bool:
        return self.state == "connected"

    def is_new(self) -> bool:
        return self.state == "new"

    def is_disconnected(self) -> bool:
        return self.state == "disconnected"


_STATES: Final = {name: _State(name) for name in ("new", "connected", "disconnected")}


class CertificateShim:
    """Stands for the encrypted connection of a device whose certificate the listener has verified."""

    __slots__ = ("_der",)

    def __init__(self, der: bytes) -> None:
        self._der = der

    def getpeercert(self, binary_form: bool = False) -> bytes:
        """Return the certificate in DER; its decoded form is not there."""
        if not binary_form:
            raise NotImplementedError("iotmq gives plug-ins certificates in binary form only")
        return self._der


class LightSession:
    """Has the fields of a session that plug-ins may read; they may add their own."""

    __slots__ = (
        "__dict__",
        "attributes",
        "broker_uri",
        "clean_session",
        "client_id",
        "is_anonymous",
        "keep_alive",
        "last_connect_time",
        "last_disconnect_time",
        "parent",
        "password",
        "remote_address",
        "remote_port",
        "ssl_object",
        "transitions",
        "username",
        "will_flag",
        "will_message",
        "will_qos",
        "will_retain",
        "will_topic",
    )

    def __init__(self, client_id: str, username: str | None, password: str | None = None) -> None:
        self.client_id = client_id
        self.username = username
        self.password = password
        self.remote_address: str | None = None
        self.remote_port: int | None = None
        self.clean_session: bool | None = None
        self.keep_alive = 0
        self.will_flag = False
        self.will_topic: str | None = None
        self.will_message: bytes | None = None
        self.will_qos: int | None = None
        self.will_retain: bool | None = None
        self.ssl_object: CertificateShim | None = None
        self.is_anonymous = False
        self.attributes: dict[str, Any] = {}
        self.parent = 0
        self.broker_uri: str | None = None
        self.last_connect_time: int | None = None
        self.last_disconnect_time: int | None = None
        self.transitions = _STATES["new"]

    def __repr__(self) -> str:
        return f"LightSession(clientId={self.client_id}, state={self.transitions.state})"

    def connected(self) -> None:
        """The session has opened."""
        self.transitions = _STATES["connected"]
        self.last_connect_time = int(time.time())

    def disconnected(self) -> None:
        """The connection is over."""
        self.transitions = _STATES["disconnected"]
        self.last_disconnect_time = int(time.time())


def session_of_credentials(asked: Credentials, password: str | None) -> LightSession:
    """Return the session of a device that wants to connect."""
    session = LightSession(asked.client_id, asked.user_name, password)
    session.remote_address = asked.address
    if asked.certificate is not None:
        session.ssl_object = CertificateShim(asked.certificate["der"])
    return session


def session_of_identity(identity: Identity | None, client_id: str) -> LightSession:
    """Return the session of a device of which no more is known than who it is."""
    session = LightSession(client_id, None if identity is None else identity.user)
    session.is_anonymous = session.username is None
    if identity is not None:
        session.attributes.update(identity.attributes)
    session.transitions = _STATES["connected"]
    return session


def session_of_connect(identity: Identity | None, client_id: str, connect: Connect) -> LightSession:
    """Return the session of a device that is about to connect, without its password."""
    session = session_of_identity(identity, client_id)
    session.transitions = _STATES["new"]
    session.clean_session = connect.clean_session
    session.keep_alive = connect.keep_alive_s
    will = connect.will
    if will is not None:
        session.will_flag = True
        session.will_topic = will.topic
        session.will_message = will.payload
        session.will_qos = will.qos
        session.will_retain = bool(will.retain)
    return session
