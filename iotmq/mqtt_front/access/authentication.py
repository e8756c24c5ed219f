"""Authenticate devices before their session opens: by chains of links, AUTH exchanges, certificates.

A connection whose credentials are looked at is not read meanwhile; one in an exchange is read for AUTH and
DISCONNECT alone (mqtt.server.connection). Both have `connect_timeout_s` from the connection's beginning, as
its CONNECT has. A live connection that begins again has as long for that, and its traffic goes on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, Protocol

from iotmq import limits
from iotmq.clock import Clock
from iotmq.credentials.failed_attempts import FailedAttempts
from iotmq.metrics import Metric, samples, samples_by
from iotmq.mqtt.codec.packets import Auth, Connect
from iotmq.mqtt.reason_codes import (
    BAD_AUTHENTICATION_METHOD,
    BAD_USER_NAME_OR_PASSWORD,
    CONNECT_TIMEOUT,
    CONNECTION_RATE_EXCEEDED,
    NOT_AUTHORIZED,
    SERVER_BUSY,
    SERVER_UNAVAILABLE,
)
from iotmq.mqtt_front.access.client_ids import ClientIds
from iotmq.mqtt_front.access.exchanges import Exchange, Presented
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.undecided import Undecided
from iotmq.mqtt_front.access.verdicts import Accepted, Credentials, Denied, Question
from iotmq.mqtt_front.connection.deadlines import Deadlines
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.settings.authentication import NOBODY
from iotmq.mqtt_front.settings.mqtt import MqttSettings

if TYPE_CHECKING:
    from iotmq.mqtt_front.access.chain import Chain, Decision
    from iotmq.mqtt_front.access.chains import Chains, PluginLink

_log: Final = logging.getLogger("iotmq.mqtt")

# The shortest signature of a token has 43 characters.
_TOKEN_CHARACTERS_MIN: Final = 64
_TOKEN_CHARACTERS_SHOWN: Final = 16
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class Opens(Protocol):
    """Gets the devices that may connect, `user` and `identity` set."""

    def __call__(self, device: Device, connect: Connect, client_id: str) -> None:
        """`client_id` is the device's; empty for any new one."""


@dataclass(frozen=True, slots=True)
class AccessEvents:
    """Hold what happens when it is known who a device is."""

    opens: Opens
    renewed: Callable[[Device], None] = lambda _device: None
    """A device that is connected has another identity of the same user."""
    audit: Callable[..., None] = lambda _event, **_fields: None
    """Takes an event and its fields."""


@dataclass(frozen=True, slots=True)
class _Running:
    """An exchange under way. `connect` is None for a device that is connected already."""

    exchange: Exchange
    connect: Connect | None
    asked: Credentials
    deadline_s: float


def open_authentication(
    settings: MqttSettings,
    loop: asyncio.AbstractEventLoop,
    clock: Clock,
    deadlines: Deadlines,
    events: AccessEvents,
    plugin_link: PluginLink | None = None,
) -> Authentication:
    """As the settings say. ConfigError when a link cannot be used, such as a file of users."""
    wanted = settings.authentication
    chains = None
    if wanted.is_asked:
        # Loaded only where somebody is asked.
        from iotmq.mqtt_front.access.chains import Chains

        chains = Chains(settings, loop, clock, plugin_link)
    return Authentication(settings, chains, clock, deadlines, events)


class Authentication:
    """Stands between a CONNECT and the opening of its session."""

    def __init__(
        self,
        settings: MqttSettings,
        chains: Chains | None,
        clock: Clock,
        deadlines: Deadlines,
        events: AccessEvents,
    ) -> None:
        """Without chains everybody may connect, but where certificates say who a device is."""
        self.chains = chains
        self._clock = clock
        self._deadlines = deadlines
        self._events = events
        self._exchange_timeout_s = settings.connect_timeout_s
        # Where it is said that nobody is asked.
        self._open_listeners = {each.name for each in settings.all_listeners if each.chain == (NOBODY,)}
        self._client_ids = ClientIds(settings.authentication)
        self._failures = FailedAttempts(settings.authentication.failures_per_minute_max)
        self._is_stopping = False
        # In the order in which they began, which is that of their deadlines.
        self._running: dict[Device, _Running] = {}
        # Those about whom a link is being asked.
        self._deciding: dict[Device, Decision] = {}
        self._undecided = Undecided()
        self._accepted: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    def start(self) -> None:
        """Once, before the first CONNECT."""
        if self.chains is not None:
            self.chains.start()

    def stop(self) -> None:
        """Stop deciding: devices accepted from now on are dropped. May be called twice."""
        self._is_stopping = True
        if self.chains is not None:
            self.chains.close()

    async def wait_stopped(self) -> None:
        """Wait until everything has stopped, but not for long."""
        if self.chains is not None:
            await self.chains.wait_closed()

    def connect(self, device: Device, connect: Connect) -> None:
        """A CONNECT came."""
        certificate = device.peer.certificate
        if certificate is not None:
            # Nobody asks for more of it, and it would be kept as long as the connection.
            device.peer = dataclasses.replace(device.peer, certificate=None)
        chain = None if self.chains is None else self.chains.of(device.peer.listener)
        method = connect.properties.authentication_method
        if method is not None:
            asked = _credentials(device, connect, certificate)
            self._begin(device, chain, method, connect, asked, connect.properties.authentication_data)
        elif device.peer.is_certificate_user and device.peer.certificate_identity is not None:
            self._check_certificate(device, connect, device.peer.certificate_identity)
        elif chain is not None:
            self._check(device, chain, connect, _credentials(device, connect, certificate))
        elif device.peer.is_certificate_user and device.peer.listener not in self._open_listeners:
            detail = "it has no certificate, and there is no link that could know it by anything else"
            asked = _credentials(device, connect, None)
            self._refuse(device, asked, Denied(NOT_AUTHORIZED, "certificate", detail))
        else:
            self._events.opens(device, connect, connect.client_id)

    def received(self, device: Device, auth: Auth) -> None:
        """An AUTH came; the connection core has seen to it that it is one that may come."""
        assert self.chains is not None, "the connection core takes no AUTH without a method"
        if device.close_reason is not None:
            return
        running = self._running.get(device)
        if running is None:
            chain = self.chains.of(device.peer.listener)
            self._begin(device, chain, auth.method, None, _credentials(device, None, None), auth.data)
        else:
            self._step(device, running, auth.data)

    def lost(self, device: Device) -> None:
        """The connection is over."""
        self._forget(device)

    def tick(self, now_s: float) -> None:
        """End connections whose exchange takes too long."""
        late = takewhile(lambda entry: entry[1].deadline_s <= now_s, self._running.items())
        for device, running in tuple(late):
            self._forget(device)
            self._refused["timeout"] += 1
            is_connecting = running.connect is not None
            device.close(CONNECT_TIMEOUT if is_connecting else NOT_AUTHORIZED, "AUTH takes too long")
            device.finish()

    def metrics(self) -> Iterable[Metric]:
        if self.chains is not None:
            yield from self.chains.metrics()
            text = "Devices whose authentication is under way or waits."
            yield from samples(("iotmq_mqtt_undecided_connections", text, len(self._undecided)))
        yield from samples_by(
            "how",
            "iotmq_mqtt_authenticated_total",
            "Devices that may connect, by how that was known.",
            self._accepted,
        )
        yield from samples_by(
            "cause",
            "iotmq_mqtt_authentication_refused_total",
            "Devices that may not connect, by cause.",
            self._refused,
        )
        text = "Addresses that failed so often within a minute that they are refused for the rest of it."
        yield from samples(("iotmq_mqtt_failing_addresses_total", text, self._failures.exceeded_total))

    # The chain

    def _check_certificate(self, device: Device, connect: Connect, name: str) -> None:
        """The listener has verified the certificate; its name has to be one that a user could have."""
        asked = _credentials(device, connect, None)
        if name.isprintable() and 0 < len(name.encode()) <= limits.MQTT_USER_NAME_BYTES_MAX:
            identity = Identity(user=name, decided_by=device.peer.listener)
            self._accept(device, connect, asked, Accepted(identity), "certificate")
        else:
            detail = f"the certificate's name {name[:64]!a} is none for a user"
            self._refuse(device, asked, Denied(NOT_AUTHORIZED, "certificate", detail))

    def _check(self, device: Device, chain: Chain, connect: Connect, asked: Credentials) -> None:
        # Before anything is done with a name and a password that anybody may have made up.
        if self._is_blocked(device, asked):
            return
        decision = chain.decision(asked, partial(self._decided, device, chain, connect))
        if decision.look():
            self._settle(device, chain, connect, decision)
        elif self._has_room(device, connect, asked):
            self._ask(device, decision)

    def _ask(self, device: Device, decision: Decision) -> None:
        assert self.chains is not None, "there is a chain"
        self._deciding[device] = decision
        self.chains.ask(decision)

    def _decided(self, device: Device, chain: Chain, connect: Connect | None, decision: Decision) -> None:
        """Links have answered, maybe long after."""
        if decision.is_given_up or device.close_reason is not None:
            return
        self._forget(device)
        self._settle(device, chain, connect, decision)
        device.after_answer()

    def _settle(self, device: Device, chain: Chain, connect: Connect | None, decision: Decision) -> None:
        asked, verdict = decision.asked, decision.verdict
        if verdict is None and decision.is_through:
            verdict = chain.end(asked)
        if verdict is None:
            verdict = Denied(SERVER_UNAVAILABLE, "failed", "the authentication chain broke")
        if isinstance(verdict, Denied):
            self._refuse(device, asked, verdict)
        elif connect is None:
            self._renew(device, asked, verdict)
        else:
            self._prove(asked)
            if asked.token is not None:
                device.accept_authentication(verdict.data)
            self._accept(device, connect, asked, verdict, decision.how or "anonymous")

    # Exchanges

    def _begin(
        self,
        device: Device,
        chain: Chain | None,
        method: str,
        connect: Connect | None,
        asked: Credentials,
        data: bytes | None,
    ) -> None:
        exchange = None if chain is None else chain.exchange(method, asked)
        if exchange is None:
            detail = f"nobody takes the method {method[:64]!a} here"
            self._refuse(device, asked, Denied(BAD_AUTHENTICATION_METHOD, "exchange", detail))
        elif self._may_ask(device, connect, asked):
            deadline_s = self._clock.monotonic_s() + self._exchange_timeout_s
            self._step(device, _Running(exchange, connect, asked, deadline_s), data)

    def _step(self, device: Device, running: _Running, data: bytes | None) -> None:
        verdict = running.exchange.step(data)
        if isinstance(verdict, (Question, Presented)):
            self._running.setdefault(device, running)
            if isinstance(verdict, Question):
                device.ask_authentication(verdict.data)
            else:
                self._check_token(device, running, verdict.token)
            return
        self._forget(device)
        if isinstance(verdict, Denied):
            self._refuse(device, running.asked, verdict)
        elif running.connect is None:
            self._renew(device, running.asked, verdict)
        else:
            device.accept_authentication(verdict.data)
            self._accept(device, running.connect, running.asked, verdict, "exchange")

    def _check_token(self, device: Device, running: _Running, token: bytes) -> None:
        """Ask the chain about a token; the device is in question already."""
        assert self.chains is not None, "there is a chain"
        chain = self.chains.of(device.peer.listener)
        assert chain is not None, "exchanges are those of a chain"
        asked = running.asked._replace(token=token)
        decision = chain.decision(asked, partial(self._decided, device, chain, running.connect))
        if decision.look():
            self._forget(device)
            self._settle(device, chain, running.connect, decision)
        else:
            self._ask(device, decision)

    def _renew(self, device: Device, asked: Credentials, accepted: Accepted) -> None:
        """A device that is connected has proved again who it is; the session is that of the first one."""
        identity = accepted.identity
        if identity.user != device.user or accepted.client_id not in (None, device.client_id):
            self._refuse(device, asked, Denied(NOT_AUTHORIZED, "other user", f"as {identity.user!a}"))
        elif _bridge_of(identity) != _bridge_of(device.identity):
            # Its topics are those below its prefix for as long as it is connected.
            self._refuse(device, asked, Denied(NOT_AUTHORIZED, "other user", "as another bridge"))
        elif not self._set_expiry(device, identity):
            self._refuse(device, asked, _ENDED)
        else:
            self._accepted["again"] += 1
            device.identity = identity
            self._deadlines.watch(device, self._clock.monotonic_s())
            self._events.renewed(device)
            device.accept_authentication(accepted.data)

    # Verdicts

    def _accept(
        self, device: Device, connect: Connect, asked: Credentials, accepted: Accepted, how: str
    ) -> None:
        if self._is_stopping:
            device.refuse(SERVER_UNAVAILABLE)
            return
        identity = accepted.identity
        client_id = self._client_ids.chosen(accepted, connect.client_id)
        if isinstance(client_id, Denied):
            self._refuse(device, asked, client_id)
            return
        if not self._set_expiry(device, identity):
            self._refuse(device, asked, _ENDED)
            return
        self._accepted[how] += 1
        device.identity = identity
        device.user = None if identity.user is None else sys.intern(identity.user)
        self._events.opens(device, connect, client_id)

    def _set_expiry(self, device: Device, identity: Identity) -> bool:
        """Have the connection end with its token; False when that has ended."""
        if identity.expires_at_s is None:
            device.expires_s = 0.0
            return True
        left_s = identity.expires_at_s - self._clock.now_ms() / 1000
        device.expires_s = self._clock.monotonic_s() + left_s
        return left_s > 0

    def _refuse(self, device: Device, asked: Credentials, refused: Denied) -> None:
        self._refused[refused.cause] += 1
        if refused.reason in (BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED):
            self._failures.add(asked.address, asked.user_name, self._clock.monotonic_s())
        # The log itself stops floods.
        _log.warning(
            "a device may not connect",
            extra={
                "cause": refused.cause,
                "detail": refused.detail,
                "client": asked.client_id,
                "user": shown_user(asked.user_name),
                **device.peer.with_address(device.transport).shown,
            },
        )
        self._events.audit(
            "refused",
            client=asked.client_id,
            user=shown_user(asked.user_name),
            address=asked.address,
            listener=asked.listener,
            certificate=asked.certificate_identity,
            reason=refused.reason.name,
            cause=refused.cause,
            detail=refused.detail,
        )
        device.refuse(refused.reason)

    def _forget(self, device: Device) -> None:
        """The device is known, or gone."""
        self._running.pop(device, None)
        self._undecided.remove(device)
        decision = self._deciding.pop(device, None)
        if decision is not None:
            decision.give_up()

    def _prove(self, asked: Credentials) -> None:
        self._failures.prove(asked.address, asked.user_name)

    def _may_ask(self, device: Device, connect: Connect | None, asked: Credentials) -> bool:
        """Return whether the device may be asked who it is; one that may not is refused."""
        return not self._is_blocked(device, asked) and self._has_room(device, connect, asked)

    def _is_blocked(self, device: Device, asked: Credentials) -> bool:
        """Refuse a device that nobody is asked about; True also for one that has gone.

        Its names have control characters, which services take for something else or leave out, or its
        address has failed too often.
        """
        if device.close_reason is not None:
            return True
        if any(map(_CONTROL.search, filter(None, (asked.user_name, asked.certificate_identity)))):
            detail = "its user name, or that in its certificate, has control characters"
            self._refuse(device, asked, Denied(BAD_USER_NAME_OR_PASSWORD, "credentials", detail))
            return True
        if not self._failures.is_exceeded(asked.address, asked.user_name, self._clock.monotonic_s()):
            return False
        self._refuse(device, asked, Denied(CONNECTION_RATE_EXCEEDED, "address", "it has failed too often"))
        return True

    def _has_room(self, device: Device, connect: Connect | None, asked: Credentials) -> bool:
        """Count a device among those whose credentials are being checked, or refuse it."""
        if self._undecided.add(device, connect):
            return True
        detail = "too many devices are being asked who they are"
        self._refuse(device, asked, Denied(SERVER_BUSY, "busy", detail))
        return False


_ENDED: Final = Denied(NOT_AUTHORIZED, "expired", "its token has ended")


def shown_user(name: str | None) -> str | None:
    """Return a user name for the log; of a token in its place only the beginning, which proves nothing."""
    if name is None or name.count(".") != 2 or len(name) < _TOKEN_CHARACTERS_MIN:
        return name
    return f"{name[:_TOKEN_CHARACTERS_SHOWN]}..."


def _bridge_of(identity: Identity | None) -> tuple[bool, str | None]:
    if identity is None or not identity.is_bridge:
        return False, None
    return True, identity.attributes.get("bridge_prefix")


def _credentials(
    device: Device, connect: Connect | None, certificate: Mapping[str, Any] | None
) -> Credentials:
    """Collect the credentials of a device at its CONNECT, or later."""
    return Credentials(
        client_id=device.client_id or "" if connect is None else connect.client_id,
        user_name=device.user if connect is None else connect.user_name,
        password=None if connect is None else connect.password,
        address=device.peer.address_on(device.transport),
        listener=device.peer.listener,
        certificate_identity=device.peer.certificate_identity,
        certificate=certificate,
        protocol_level=device.protocol_level,
    )
