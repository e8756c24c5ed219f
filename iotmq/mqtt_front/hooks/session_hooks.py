"""Ask and tell users' programs about connections and subscriptions of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from iotmq.hooks import Client, Deny, Message, Subscription
from iotmq.mqtt.codec.packets import Connect, Subscribe, Unsubscribe
from iotmq.mqtt.codec.subscription_options import QOS
from iotmq.mqtt.reason_codes import NOT_AUTHORIZED, SERVER_BUSY
from iotmq.mqtt_front.access.undecided import Undecided
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.hooks.hook_calls import HookCalls
from iotmq.mqtt_front.routing.refused_filters import refused_filter

REASON_CHARACTERS_MAX: Final = 256


class SessionHooks:
    """Ask and tell for a front end. Each question goes on at once when no program has its method."""

    def __init__(self, calls: HookCalls) -> None:
        self._calls = calls
        # Devices whose session is open, if anybody is to hear of its end.
        self._open: dict[Device, Client] = {}
        # Those whose CONNECT is held until programs have decided.
        self._undecided = Undecided()

    def before_connect(self, device: Device, connect: Connect, go_on: Callable[[], None]) -> None:
        """A CONNECT came."""
        if not self._calls.has("before_connect"):
            go_on()
            return
        client = Client(
            client_id=connect.client_id,
            user=connect.user_name,
            address=device.address,
            listener=device.peer.listener,
        )
        self._decide("before_connect", device, connect, client, go_on)

    def after_authenticate(
        self, device: Device, connect: Connect, client_id: str, go_on: Callable[[], None]
    ) -> None:
        """The device is known, and its session would open now, with its will."""
        go_on = partial(self._before_will, device, connect, client_id, go_on)
        if not self._calls.has("after_authenticate"):
            go_on()
            return
        client = Client(
            client_id=client_id,
            user=device.user,
            address=device.address,
            listener=device.peer.listener,
        )
        self._decide("after_authenticate", device, connect, client, go_on)

    def _before_will(
        self, device: Device, connect: Connect, client_id: str, go_on: Callable[[], None]
    ) -> None:
        """Ask about a will as about a message: whoever may not publish that leaves none either."""
        will = connect.will
        if will is None or not self._calls.has("before_publish"):
            go_on()
            return
        message = Message(
            client_id=client_id,
            topic=will.topic,
            payload=will.payload,
            qos=will.qos,
            is_retained=will.retain,
        )
        self._decide("before_publish", device, connect, [message], go_on)

    def _decide(
        self,
        method: str,
        device: Device,
        connect: Connect,
        asked: Client | list[Message],
        go_on: Callable[[], None],
    ) -> None:
        if not self._undecided.add(device, connect):
            device.refuse(SERVER_BUSY, "too many devices wait for hooks")
            return

        def answered(verdicts: Sequence[Deny | None]) -> None:
            self._undecided.remove(device)
            if device.close_reason is not None:
                return
            denied = verdicts[0]
            if denied is None:
                go_on()
            else:
                device.refuse(NOT_AUTHORIZED, denied.reason[:REASON_CHARACTERS_MAX])
            device.after_answer()

        self._calls.ask(method, (asked,), answered)

    def before_subscribe(
        self,
        device: Device,
        event: Subscribe,
        go_on: Callable[[Device, Subscribe], None],
    ) -> None:
        """A SUBSCRIBE came. `go_on` gets it with the filters refused that are denied."""
        if not self._calls.has("before_subscribe"):
            go_on(device, event)
            return

        def answered(verdicts: Sequence[Deny | None]) -> None:
            if device.close_reason is None:
                go_on(device, _without_denied(event, verdicts))
                device.after_answer()

        wanted = _subscriptions(event)
        arguments = (_client_of(device), wanted)
        self._calls.ask("before_subscribe", arguments, answered, count=len(wanted))

    # Told

    def opened(self, device: Device, is_resumed: bool) -> None:
        """A session is open (DeviceGroup.listeners)."""
        client = _client_of(device)
        if self._calls.has("after_disconnect"):
            self._open[device] = client
        if self._calls.has("after_connect"):
            self._calls.tell("after_connect", client, is_resumed)

    def subscribed(self, device: Device, event: Subscribe, codes: Sequence[int]) -> None:
        """A SUBSCRIBE was answered."""
        if self._calls.has("after_subscribe"):
            self._calls.tell("after_subscribe", _client_of(device), _subscriptions(event), tuple(codes))

    def unsubscribed(self, device: Device, event: Unsubscribe) -> None:
        """An UNSUBSCRIBE came."""
        if self._calls.has("after_unsubscribe"):
            self._calls.tell("after_unsubscribe", _client_of(device), tuple(event.filters))

    def lost(self, device: Device) -> None:
        """The connection is over."""
        client = self._open.pop(device, None)
        if client is not None and device.close_reason is not None:
            self._calls.tell("after_disconnect", client, device.close_reason.name)


def _client_of(device: Device) -> Client:
    return Client(
        client_id=device.client_id or "",
        user=device.user,
        address=device.address,
        listener=device.peer.listener,
    )


def _without_denied(event: Subscribe, verdicts: Sequence[Deny | None]) -> Subscribe:
    allowed = [
        (name if verdict is None else _denied_filter(verdict), options)
        for (name, options), verdict in zip(event.subscriptions, verdicts, strict=True)
    ]
    return event._replace(subscriptions=tuple(allowed))


def _denied_filter(verdict: Deny) -> str:
    return refused_filter(NOT_AUTHORIZED.v5_code, verdict.reason[:REASON_CHARACTERS_MAX])


def _subscriptions(event: Subscribe) -> list[Subscription]:
    return [
        Subscription(topic_filter=topic_filter, qos=options & QOS)
        for topic_filter, options in event.subscriptions
    ]
