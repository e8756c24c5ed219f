"""The link of the authentication chain that asks plug-ins of amqtt."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence

from iotmq.metrics import Metric
from iotmq.mqtt.reason_codes import BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.links.link import LinkFailedError
from iotmq.mqtt_front.access.verdicts import NOT_MINE, Accepted, Credentials, Denied, NotMine
from iotmq.mqtt_front.plugins.combination import combined
from iotmq.mqtt_front.plugins.guards import guarded_answer
from iotmq.mqtt_front.plugins.host import PluginHost
from iotmq.mqtt_front.plugins.light_session import LightSession, session_of_credentials


class AmqttLink:
    """Asks all its plug-ins at a time. The plug-ins are started and stopped by who made them."""

    def __init__(self, name: str, hosts: Sequence[PluginHost]) -> None:
        self.name = name
        self._hosts = hosts

    async def start(self) -> None:
        """Nothing is to be done: see Plugins."""

    async def close(self) -> None:
        """Nothing is to be done: see Plugins."""

    async def decide(self, asked: Credentials) -> Accepted | Denied | NotMine:
        """Not mine when none has an opinion. LinkFailedError when one does not answer, and none says no."""
        password = _text(asked.password)
        session = session_of_credentials(asked, password)
        result = await combined(
            [(host.name, self._ask(host, asked, password, session)) for host in self._hosts]
        )
        if result.answer is None:
            return NOT_MINE
        if not result.is_final:
            raise LinkFailedError(f"plug-in {result.cause}")
        if not result.answer:
            has_password = asked.user_name is not None
            reason = BAD_USER_NAME_OR_PASSWORD if has_password else NOT_AUTHORIZED
            return Denied(reason, "plug-in", result.cause)
        attributes = {
            name: value
            for name, value in session.attributes.items()
            if isinstance(name, str) and isinstance(value, str)
        }
        user = self._proved(asked, result.agreed)
        return Accepted(Identity(user=user, attributes=attributes, decided_by=self.name))

    def _proved(self, asked: Credentials, agreed: Sequence[str]) -> str | None:
        """Return the name of the device: not what it says of itself, but what somebody has looked at."""
        proved = {host.plugin.known.proves for host in self._hosts if host.name in agreed}
        if "user" in proved:
            return asked.user_name
        return asked.client_id if "client id" in proved else None

    def _ask(
        self, host: PluginHost, asked: Credentials, password: str | None, session: LightSession
    ) -> Awaitable[bool | None]:
        may_ask, answer = guarded_answer(host.plugin.settings, host.plugin.known, asked, password)
        if not may_ask:
            return _answered(answer)
        return host.ask("authenticate", {"session": session})

    def metrics(self) -> Iterable[Metric]:
        """Return nothing: those of plug-ins are reported beside the chain."""
        return ()


async def _answered(answer: bool | None) -> bool | None:
    return answer


def _text(password: bytes | None) -> str | None:
    if password is None:
        return None
    try:
        return password.decode()
    except UnicodeDecodeError:
        return None
