"""Remember the devices of this front end in the shape that plug-ins know."""

from __future__ import annotations

from collections.abc import Mapping

from iotmq.mqtt.codec.packets import Connect
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.plugins.light_session import LightSession, session_of_connect


class PluginSessions:
    """The sessions of connected devices by client id. Changed on the front end's loop, read anywhere."""

    def __init__(self, *, keeps_passwords: bool) -> None:
        """Passwords are kept only where a plug-in asks for them at each topic."""
        self._keeps_passwords = keeps_passwords
        self._sessions: dict[str, LightSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def by_client_id(self) -> Mapping[str, LightSession]:
        return self._sessions

    def opened(self, identity: Identity | None, client_id: str, connect: Connect) -> LightSession:
        """A device has connected; it takes the place of the one that had its client id."""
        session = session_of_connect(identity, client_id, connect)
        if self._keeps_passwords and connect.password is not None:
            session.password = connect.password.decode(errors="replace")
        former = self._sessions.get(client_id)
        if former is not None:
            former.disconnected()
        self._sessions[client_id] = session
        return session

    def closed(self, client_id: str, session: LightSession) -> None:
        """The connection of this session is over; another one may have its client id since."""
        session.disconnected()
        if self._sessions.get(client_id) is session:
            del self._sessions[client_id]
