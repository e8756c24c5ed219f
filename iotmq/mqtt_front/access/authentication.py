"""Authenticate devices before their session opens: passwords, AUTH exchanges, certificates, or nobody.

A connection whose password is looked at is not read meanwhile; one in an exchange is read for AUTH and
DISCONNECT alone (mqtt.server.connection). Both have `connect_timeout_s` from the connection's beginning, as
its CONNECT has. A live connection that begins again has as long for that, and its traffic goes on.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Final

from iotmq import limits
from iotmq.clock import Clock
from iotmq.metrics import Metric, samples, samples_by
from iotmq.mqtt.codec.packets import Auth, Connect
from iotmq.mqtt.reason_codes import (
    BAD_USER_NAME_OR_PASSWORD,
    CONNECT_TIMEOUT,
    CONNECTION_RATE_EXCEEDED,
    NOT_AUTHORIZED,
    SERVER_BUSY,
    SERVER_UNAVAILABLE,
)
from iotmq.mqtt_front.access.failed_attempts import FailedAttempts
from iotmq.mqtt_front.access.file_authenticator import Exchange, FileAuthenticator
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.undecided import Undecided
from iotmq.mqtt_front.access.verdicts import Accepted, Credentials, Denied, Question
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.settings.mqtt import MqttSettings

_log: Final = logging.getLogger("iotmq.mqtt")


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
    opens: Callable[[Device, Connect], None],
    clock: Clock,
) -> Authentication:
    """As the settings say. ConfigError when the users cannot be read."""
    wanted = settings.authentication
    return Authentication(
        FileAuthenticator(wanted, loop) if wanted.users_file else None,
        opens,
        clock,
        allow_anonymous=wanted.allow_anonymous,
        exchange_timeout_s=settings.connect_timeout_s,
        failures_per_minute_max=wanted.failures_per_minute_max,
    )


class Authentication:
    """Stands between a CONNECT and `opens`, which gets the devices that may connect, their `user` set."""

    def __init__(
        self,
        authenticator: FileAuthenticator | None,
        opens: Callable[[Device, Connect], None],
        clock: Clock,
        *,
        allow_anonymous: bool,
        exchange_timeout_s: float,
        failures_per_minute_max: int,
    ) -> None:
        """Without an authenticator everybody may connect."""
        self._authenticator = authenticator
        self._opens = opens
        self._clock = clock
        self._allow_anonymous = allow_anonymous
        self._exchange_timeout_s = exchange_timeout_s
        self._failures = FailedAttempts(failures_per_minute_max)
        self._is_stopping = False
        # In the order in which they began, which is that of their deadlines.
        self._running: dict[Device, _Running] = {}
        self._undecided = Undecided()
        self._accepted: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    def start(self) -> None:
        """Once, before the first CONNECT."""
        if self._authenticator is not None:
            self._authenticator.start()

    def stop(self) -> None:
        """Stop deciding: devices accepted from now on are dropped. May be called twice."""
        self._is_stopping = True
        if self._authenticator is not None:
            self._authenticator.close()

    def connect(self, device: Device, connect: Connect) -> None:
        """A CONNECT came."""
        authenticator = self._authenticator
        if connect.properties.authentication_method is not None:
            assert authenticator is not None, "the connection core takes no method that there is not"
            asked = _credentials(device, connect)
            if self._may_ask(device, connect, asked):
                running = self._begin(authenticator, connect, asked)
                self._step(device, running, connect.properties.authentication_data)
        elif device.peer.is_certificate_user and device.peer.certificate_identity is not None:
            self._check_certificate(device, connect, device.peer.certificate_identity)
        elif authenticator is None:
            self._opens(device, connect)
        else:
            self._check_password(authenticator, device, connect)

    def received(self, device: Device, auth: Auth) -> None:
        """An AUTH came; the connection core has seen to it that it is one that may come."""
        assert self._authenticator is not None, "the connection core takes no AUTH without a method"
        if device.close_reason is not None:
            return
        running = self._running.get(device)
        if running is None:
            asked = _credentials(device, None)
            if not self._may_ask(device, None, asked):
                return
            running = self._begin(self._authenticator, None, asked)
        self._step(device, running, auth.data)

    def lost(self, device: Device) -> None:
        """The connection is over."""
        self._running.pop(device, None)
        self._undecided.remove(device)

    def tick(self, now_s: float) -> None:
        """End connections whose exchange takes too long."""
        late = takewhile(lambda entry: entry[1].deadline_s <= now_s, self._running.items())
        for device, running in tuple(late):
            del self._running[device]
            self._undecided.remove(device)
            self._refused["timeout"] += 1
            is_connecting = running.connect is not None
            device.close(CONNECT_TIMEOUT if is_connecting else NOT_AUTHORIZED, "AUTH takes too long")
            device.finish()

    def metrics(self) -> Iterable[Metric]:
        if self._authenticator is not None:
            yield from self._authenticator.metrics()
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

    def _check_certificate(self, device: Device, connect: Connect, identity: str) -> None:
        """The listener has verified the certificate; its name has to be one that a user could have."""
        if identity.isprintable() and 0 < len(identity.encode()) <= limits.MQTT_USER_NAME_BYTES_MAX:
            self._accept(device, connect, "certificate", identity)
        else:
            detail = f"the certificate's name {identity[:64]!a} is none for a user"
            self._refuse(device, _credentials(device, connect), Denied(NOT_AUTHORIZED, "certificate", detail))

    # Passwords

    def _check_password(self, authenticator: FileAuthenticator, device: Device, connect: Connect) -> None:
        asked = _credentials(device, connect)
        if connect.user_name is None:
            if connect.password is not None:
                self._refuse(device, asked, Denied(BAD_USER_NAME_OR_PASSWORD, "credentials", "no user name"))
            elif self._allow_anonymous:
                self._accept(device, connect, "anonymous", None)
            else:
                self._refuse(device, asked, Denied(NOT_AUTHORIZED, "anonymous", "no user name"))
            return
        # Before anything is done with a name and a password that anybody may have made up.
        if self._is_blocked(device, asked):
            return
        known = authenticator.known(asked)
        if known is not None:
            self._prove(asked)
            self._accept(device, connect, "remembered", known.user)
        elif self._has_room(device, connect, asked):
            authenticator.authenticate(
                asked,
                is_wanted=lambda: device.close_reason is None,
                done=partial(self._decided, device, connect, asked),
            )

    def _decided(
        self, device: Device, connect: Connect, asked: Credentials, verdict: Accepted | Denied
    ) -> None:
        """The authenticator has answered, maybe long after."""
        self._undecided.remove(device)
        if device.close_reason is not None:
            return
        if isinstance(verdict, Accepted):
            self._prove(asked)
            self._accept(device, connect, "password", verdict.user)
        else:
            self._refuse(device, asked, verdict)
        device.after_answer()

    # Exchanges

    def _begin(
        self, authenticator: FileAuthenticator, connect: Connect | None, asked: Credentials
    ) -> _Running:
        deadline_s = self._clock.monotonic_s() + self._exchange_timeout_s
        return _Running(authenticator.exchange(), connect, asked, deadline_s)

    def _step(self, device: Device, running: _Running, data: bytes | None) -> None:
        verdict = running.exchange.step(data)
        if isinstance(verdict, Question):
            self._running.setdefault(device, running)
            device.ask_authentication(verdict.data)
            return
        self._running.pop(device, None)
        self._undecided.remove(device)
        if isinstance(verdict, Denied):
            self._refuse(device, running.asked, verdict)
        elif running.connect is not None:
            device.accept_authentication(verdict.data)
            self._accept(device, running.connect, "exchange", verdict.user)
        elif verdict.user != device.user:
            # The session is that of the first one.
            self._refuse(device, running.asked, Denied(NOT_AUTHORIZED, "other user", f"as {verdict.user!a}"))
        else:
            self._accepted["again"] += 1
            device.accept_authentication(verdict.data)

    # Verdicts

    def _accept(self, device: Device, connect: Connect, how: str, user: str | None) -> None:
        if self._is_stopping:
            device.refuse(SERVER_UNAVAILABLE)
            return
        self._accepted[how] += 1
        device.user = None if user is None else sys.intern(user)
        device.identity = Identity(user=device.user, decided_by=how)
        self._opens(device, connect)

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
                "user": asked.user_name,
                **device.peer.with_address(device.transport).shown,
            },
        )
        device.refuse(refused.reason)

    def _prove(self, asked: Credentials) -> None:
        self._failures.prove(asked.address, asked.user_name)

    def _may_ask(self, device: Device, connect: Connect | None, asked: Credentials) -> bool:
        """Return whether the device may be asked who it is; one that may not is refused."""
        return not self._is_blocked(device, asked) and self._has_room(device, connect, asked)

    def _is_blocked(self, device: Device, asked: Credentials) -> bool:
        """Refuse a device whose address has failed too often; True also for one that has gone."""
        if device.close_reason is not None:
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


def _credentials(device: Device, connect: Connect | None) -> Credentials:
    """Collect the credentials of a device at its CONNECT, or later."""
    return Credentials(
        client_id=device.client_id or "" if connect is None else connect.client_id,
        user_name=device.user if connect is None else connect.user_name,
        password=None if connect is None else connect.password,
        address=device.peer.address_on(device.transport),
        listener=device.peer.listener,
        certificate_identity=device.peer.certificate_identity,
    )
