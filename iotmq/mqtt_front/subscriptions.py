"""SUBSCRIBE and UNSUBSCRIBE: what is granted, who is told, and what is retained for a new filter."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from iotmq.client.ports import GatewayPort
from iotmq.client.session_ports import (
    Refused,
    SessionPort,
    SessionSubscription,
    SubscribeRequest,
    UnsubscribeRequest,
)
from iotmq.mqtt import packets, reason_codes
from iotmq.mqtt_front.device import Device
from iotmq.mqtt_front.durable import DurableSession
from iotmq.mqtt_front.egress import Egress
from iotmq.mqtt_front.retained_egress import RetainedEgress
from iotmq.mqtt_front.sys_topics import SysTopics

_log: Final = logging.getLogger("iotmq.mqtt")

_GRANTED_QOS_MAX: Final = 2


class Subscriptions:
    """The subscriptions of the sessions connected to one front end."""

    def __init__(
        self,
        egress: Egress,
        gateway: GatewayPort,
        *,
        per_session_max: int,
        port: SessionPort | None,
        retained: RetainedEgress | None,
        sys_topics: SysTopics | None,
    ) -> None:
        """`port` and `retained` are there together, and not without sessions that are kept."""
        self._egress = egress
        self._gateway = gateway
        self._per_session_max = per_session_max
        self._port = port
        self._retained = retained
        self._sys_topics = sys_topics
        self.count = 0
        """Subscriptions of connected sessions."""

    def subscribe(self, device: Device, event: packets.Subscribe) -> None:
        """Answer a SUBSCRIBE: at once, or when a broker has taken what is new."""
        if device.subscriptions is None:
            device.subscriptions = {}
        if isinstance(device.session, DurableSession):
            self._subscribe_durably(device, device.session, event)
            return
        codes: list[int] = []
        new_filters: list[tuple[int, str]] = []
        for topic_filter, qos in event.subscriptions:
            is_known = topic_filter in device.subscriptions
            if not is_known and len(device.subscriptions) >= self._per_session_max:
                codes.append(reason_codes.SUBACK_FAILURE)
                continue
            granted = min(qos, _GRANTED_QOS_MAX)
            filter_id = self._egress.subscribe(topic_filter, device, granted)
            if filter_id is not None:
                new_filters.append((filter_id, topic_filter))
            device.subscriptions[topic_filter] = granted
            self.count += not is_known
            codes.append(granted)
        if not new_filters:
            device.send_suback(event.packet_id, codes)
            self._send_retained(device, _granted(event, codes))
            return

        def attached(is_attached: bool) -> None:
            if not is_attached:
                refused = {topic_filter for _, topic_filter in new_filters}
                self._drop(device, tuple(refused & (device.subscriptions or {}).keys()))
                for place, (topic_filter, _) in enumerate(event.subscriptions):
                    if topic_filter in refused:
                        codes[place] = reason_codes.SUBACK_FAILURE
            device.send_suback(event.packet_id, codes)
            self._send_retained(device, _granted(event, codes))
            device.after_answer()

        self._gateway.attach(new_filters, attached)

    def unsubscribe(self, device: Device, event: packets.Unsubscribe) -> None:
        """Answer an UNSUBSCRIBE, as `subscribe` does."""
        if isinstance(device.session, DurableSession):
            self._unsubscribe_durably(device, device.session, event)
            return
        self._drop(device, [name for name in event.filters if name in (device.subscriptions or {})])
        if self._sys_topics is not None:
            self._sys_topics.unsubscribe(device, event.filters)
        device.send_unsuback(event.packet_id)  # also when nothing was subscribed [MQTT-3.10.4-5]

    def take_over(self, device: Device, found: Iterable[SessionSubscription]) -> None:
        """A session that was kept is the device's: it has its filters already."""
        device.subscriptions = {entry.topic_filter: entry.options & 3 for entry in found}
        self.count += len(device.subscriptions)
        if self._sys_topics is not None:
            self._sys_topics.resume(device, device.subscriptions.items())

    def drop_all(self, device: Device) -> None:
        """The connection is over. A session that is kept has its filters at the broker."""
        if self._retained is not None:
            self._retained.forget(device)
        if self._sys_topics is not None:
            self._sys_topics.forget(device)
        if not device.subscriptions:
            return
        if device.session is not None:
            self.count -= len(device.subscriptions)
            device.subscriptions.clear()
        else:
            self._drop(device, tuple(device.subscriptions))

    def _drop(self, device: Device, filters: Iterable[str]) -> None:
        subscriptions = device.subscriptions
        if subscriptions is None:  # nothing was ever subscribed
            return
        unused = []
        for topic_filter in dict.fromkeys(filters):
            del subscriptions[topic_filter]
            self.count -= 1
            filter_id = self._egress.unsubscribe(topic_filter, device)
            if filter_id is not None:
                unused.append(filter_id)
        if unused:
            self._gateway.detach(unused)

    def _send_retained(self, device: Device, subscriptions: Collection[tuple[str, int]]) -> None:
        if self._retained is not None:
            self._retained.send(device, subscriptions)
        if self._sys_topics is not None:
            self._sys_topics.subscribe(device, subscriptions)

    # Sessions that are kept ---------------------------------------------------------------------------

    def _subscribe_durably(self, device: Device, session: DurableSession, event: packets.Subscribe) -> None:
        """As `subscribe`, but the broker keeps the filters and what comes for them."""
        assert self._port is not None
        assert device.subscriptions is not None
        known = device.subscriptions
        wanted: dict[str, int] = {}
        codes: list[int] = []
        for topic_filter, qos in event.subscriptions:
            if topic_filter not in known and len(known) + len(wanted) >= self._per_session_max:
                codes.append(reason_codes.SUBACK_FAILURE)
                continue
            wanted[topic_filter] = min(qos, _GRANTED_QOS_MAX)
            codes.append(wanted[topic_filter])

        def subscribed(found: list[SessionSubscription] | Refused) -> None:
            if isinstance(found, Refused):
                _log.warning("no subscription", extra={"client": device.client_id, "detail": found.remark})
                device.send_suback(event.packet_id, [reason_codes.SUBACK_FAILURE] * len(codes))
            else:
                device.send_suback(event.packet_id, codes)
                if not session.is_ended:
                    self.count += len(wanted.keys() - known.keys())
                    # Under the text that the session has already: there are many of these.
                    same_text = {entry.topic_filter: entry.topic_filter for entry in found}
                    known.update((same_text.get(name, name), granted) for name, granted in wanted.items())
                    session.add(found)
                    self._send_retained(device, wanted.items())
            device.after_answer()

        if wanted:
            request = SubscribeRequest(
                client_id=session.client_id, epoch=session.epoch, subscriptions=list(wanted.items())
            )
            self._port.subscribe(request, subscribed)
        else:
            device.send_suback(event.packet_id, codes)

    def _unsubscribe_durably(
        self, device: Device, session: DurableSession, event: packets.Unsubscribe
    ) -> None:
        assert self._port is not None
        assert device.subscriptions is not None
        for topic_filter in event.filters:
            if device.subscriptions.pop(topic_filter, None) is not None:
                self.count -= 1
        session.remove(event.filters)
        if self._sys_topics is not None:
            self._sys_topics.unsubscribe(device, event.filters)

        def unsubscribed(refused: Refused | None) -> None:
            if refused is None:
                device.send_unsuback(event.packet_id)
            else:
                # There is no UNSUBACK that says no before MQTT 5.
                device.close(reason_codes.SERVER_UNAVAILABLE, refused.remark)
            device.after_answer()

        request = UnsubscribeRequest(
            client_id=session.client_id, epoch=session.epoch, filters=list(event.filters)
        )
        self._port.unsubscribe(request, unsubscribed)


def _granted(event: packets.Subscribe, codes: Sequence[int]) -> list[tuple[str, int]]:
    """The filters of a SUBSCRIBE that were not refused."""
    return [
        (topic_filter, code)
        for (topic_filter, _), code in zip(event.subscriptions, codes, strict=True)
        if code != reason_codes.SUBACK_FAILURE
    ]
