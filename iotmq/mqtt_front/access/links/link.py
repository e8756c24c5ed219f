"""Define what a link of the authentication chain is.

A link only decides. It runs on the event loop of the chain (`access_loop`), never on that of the front end,
and what would hold that up, such as hashing, it does in threads of its own. Time limits, the answers that are
remembered, turns and waiting are the chain's business (`chain_link`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from iotmq.credentials.service_client import ServiceFailedError
from iotmq.metrics import Metric
from iotmq.mqtt_front.access.verdicts import Accepted, Credentials, Denied, NotMine

_encode = msgspec.msgpack.Encoder().encode


class LinkFailedError(ServiceFailedError):
    """The service of a link did not answer, or not as it has to; the text is for the operator."""


class Link(Protocol):
    """One means to decide about devices. Its constructor raises ConfigError for settings that are no use.

    It may have two more methods, for the thread of the front end: `told(asked: Credentials) -> bytes | None`
    is all that its answer depends on (None: the answer is not to be remembered), and everything that the
    device says without it. `exchange(method: str) -> Exchange | None` begins an exchange of MQTT 5.
    """

    name: str

    async def start(self) -> None:
        """Begin, before the first question; what it raises has it called again a second later."""

    async def decide(self, asked: Credentials) -> Accepted | Denied | NotMine:
        """Decide about one device. LinkFailedError when that is not possible now."""

    async def close(self) -> None:
        """Stop; no question comes any more."""

    def metrics(self) -> Iterable[Metric]:
        """Return its samples at this moment; on the thread of the front end."""


def told_everything(asked: Credentials) -> bytes:
    """Return all that a device says of itself, as bytes that nothing else has."""
    return _encode(asked)
