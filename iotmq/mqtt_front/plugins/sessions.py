"""Remember the devices of this front end in the shape that plug-ins know."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from iotmq.mqtt.codec.packets import Connect
from iotmq.mqtt_front.access.answers import digest
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.plugins.light_session import LightSession, session_of_connect, session_of_identity


class PluginSessions:
    """The sessions of devices by client id. Changed on the front end's loop, read anywhere."""

    def __init__(self, *, keeps_passwords: bool) -> None:
        """Passwords are kept only where a plug-in asks for them at each topic."""
        self._keeps_passwords = keeps_passwords
        self._sessions: dict[str, LightSession] = {}
        # Sessions that are not open yet -> the one that has the client id until then.
        self._former: dict[LightSession, LightSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def by_client_id(self) -> Mapping[str, LightSession]:
        return self._sessions

    def opening(self, identity: Identity | None, client_id: str, connect: Connect) -> LightSession:
        """A device is about to connect: plug-ins that are asked about its will are shown it."""
        session = session_of_connect(identity, client_id, connect)
        if self._keeps_passwords and connect.password is not None:
            session.password = connect.password.decode(errors="replace")
        former = self._sessions.get(client_id)
        if former is not None:
            self._former[session] = former
        self._sessions[client_id] = session
        return session

    def opened(self, session: LightSession) -> None:
        """Have it in the place of the one that had its client id: it has connected."""
        former = self._former.pop(session, None)
        if former is not None:
            former.disconnected()
        session.connected()

    def closed(self, session: LightSession) -> bool:
        """Forget a session, and return whether it was open; another one may have its client id since."""
        former = self._former.pop(session, None)
        was_open = session.last_connect_time is not None
        session.disconnected()
        if self._sessions.get(session.client_id) is session:
            if former is not None and not former.transitions.is_disconnected():
                self._sessions[session.client_id] = former
            else:
                del self._sessions[session.client_id]
        return was_open

    def shown(self, identity: Identity | None, client_id: str) -> LightSession:
        """Return the session of a device as plug-ins are asked about it."""
        session = self._sessions.get(client_id)
        if session is None or session.username != (None if identity is None else identity.user):
            # Of another front end, or of before: what is known of it is who it is.
            return session_of_identity(identity, client_id)
        if identity is not None:
            # It may have shown another token since.
            session.attributes.update(identity.attributes)
        return session


def proof_of(session: LightSession, identity: Identity | None) -> bytes:
    """Return what answers may depend on beside the names of a device, as a digest; empty for nothing."""
    attributes = {} if identity is None else dict(identity.attributes)
    if not attributes and session.password is None:
        return b""
    return digest(msgspec.msgpack.encode((session.password, attributes)))
