"""Write programs that a front end calls at what devices do, and name them in `mqtt.hooks`.

A program is a class, derived from `Hooks`; it overrides the methods it wants, as plain functions or
coroutines. Nothing is called that it does not override.

The front end calls them in a thread beside its own: coroutines on the event loop of that thread, plain
functions in some further threads, so that they may wait. Methods called `before_...` and
`after_authenticate` decide: the device waits for the answer, and one that is late
(`mqtt.hook_timeout_s`) or raises an error denies. Other methods are told what has happened, in the
order in which it happened for a device; when they fall behind, what they were not told is counted.

`before_deliver` is the exception: it is a plain function, called on the front end's own loop for every
message to a device, and must return within microseconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TypeAlias, TypeVar

import msgspec


class Deny(msgspec.Struct, frozen=True):
    """Say no, as the answer of a method; `reason` goes to the log, and to devices of MQTT 5."""

    reason: str = ""


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """A connection of a device."""

    client_id: str
    """Empty before the session opens, if the device wants one from the server."""
    user: str | None = None
    """The user it proved to be; in `before_connect`, the one it says it is."""
    address: str | None = None
    listener: str = ""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a device published, or is to get."""

    client_id: str
    """The device's."""
    topic: str
    payload: bytes
    qos: int
    is_retained: bool


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """A filter that a device asks for."""

    topic_filter: str
    """As the device sent it, with `$share/GROUP/` in front where it has that."""
    qos: int


_Result = TypeVar("_Result")
MayWait: TypeAlias = Awaitable[_Result] | _Result
"""The result of a method: the value, or, of a coroutine, something to wait for."""
Answer: TypeAlias = MayWait[Deny | None]
"""None lets it pass."""
Answers: TypeAlias = MayWait[Sequence[Deny | None] | None]
"""An answer for each, in the same order; None lets all pass."""
Nothing: TypeAlias = MayWait[None]


class Hooks:
    """Override what you want to know, or to decide. One object serves all devices of a front-end process."""

    def started(self) -> Nothing:
        """The front end is about to listen; an error here keeps it from starting."""

    def stopped(self) -> Nothing:
        """The front end has stopped."""

    # These decide

    def before_connect(self, client: Client) -> Answer:
        """A device has sent its CONNECT; nobody has looked at its password yet."""

    def after_authenticate(self, client: Client) -> Answer:
        """The device has proved who it is, and its session is about to open."""

    def before_subscribe(self, client: Client, subscriptions: Sequence[Subscription]) -> Answers:
        """A device wants subscriptions; an answer for each."""

    def before_publish(self, messages: Sequence[Message]) -> Answers:
        """Devices have published; an answer for each. All messages of a turn of the loop come together.

        A will comes alone, at the CONNECT, which is refused when the answer is no.
        """

    def before_deliver(self, message: Message) -> Deny | None:
        """A device is to get a message. Called on the front end's loop, for each: return at once."""

    # These are told

    def after_connect(self, client: Client, is_resumed: bool) -> Nothing:
        """A session is open; `is_resumed`: it was there before."""

    def after_subscribe(
        self, client: Client, subscriptions: Sequence[Subscription], codes: Sequence[int]
    ) -> Nothing:
        """A SUBSCRIBE was answered: for each filter the QoS granted, or a code of 128 and above."""

    def after_unsubscribe(self, client: Client, filters: Sequence[str]) -> Nothing:
        """A device gave filters back."""

    def after_publish(self, messages: Sequence[Message]) -> Nothing:
        """Messages of devices are on their way to the broker, unless rules or routes refuse them."""

    def after_deliver(self, messages: Sequence[Message]) -> Nothing:
        """Messages were handed to the connections of devices."""

    def after_disconnect(self, client: Client, reason: str) -> Nothing:
        """A connection whose session was open is over; `reason` as in iotmq_mqtt_closed_total."""


DECIDING = (
    "before_connect",
    "after_authenticate",
    "before_subscribe",
    "before_publish",
    "before_deliver",
)
"""Methods whose answer counts."""
TOLD = (
    "after_connect",
    "after_subscribe",
    "after_unsubscribe",
    "after_publish",
    "after_deliver",
    "after_disconnect",
)
"""Methods that are told what has happened."""
