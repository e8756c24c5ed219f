"""Define the hook between CONNECT and the session that decides who may connect."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from iotmq.metrics import Metric
from iotmq.mqtt.reason_codes import Reason


class Credentials(NamedTuple):
    """Hold the credentials of a device that wants to connect. Do not log the password."""

    client_id: str
    user_name: str | None
    password: bytes | None
    address: str | None
    """Without a port; None at a Unix socket."""
    listener: str
    certificate_identity: str | None = None


class Accepted(NamedTuple):
    """The device is `user`, None for nobody in particular; `data` is what its exchange says last."""

    user: str | None
    data: bytes | None = None


class Refused(NamedTuple):
    """The device may not connect. `cause` is a word for metrics, `detail` for the log; it is told neither."""

    reason: Reason
    cause: str
    detail: str = ""


class Question(NamedTuple):
    """The exchange goes on: what the device is asked."""

    data: bytes | None


class Exchange(Protocol):
    """One device's way through an authentication method of MQTT 5."""

    def step(self, data: bytes | None) -> Question | Accepted | Refused:
        """Take the data of the device's CONNECT or AUTH. It is called on the loop, and may not block."""


class Authenticator(Protocol):
    """Asked once per CONNECT, and for exchanges; everything happens on the event loop."""

    def start(self) -> None:
        """Begin what goes on beside the questions, such as looking for changes."""

    def close(self) -> None:
        """End that; nobody needs an answer any more."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the authentication methods that are offered."""

    def known(self, asked: Credentials) -> Accepted | None:
        """Return the answer when it costs nothing, because it was given before; None otherwise."""

    def authenticate(
        self,
        asked: Credentials,
        *,
        is_wanted: Callable[[], bool],
        done: Callable[[Accepted | Refused], None],
    ) -> None:
        """Call `done` once, at once or later, unless `is_wanted` has become false."""

    def exchange(self, method: str) -> Exchange:
        """Begin an exchange by one of `methods`."""

    def metrics(self) -> Iterable[Metric]:
        """Return the numbers of the authenticator."""
