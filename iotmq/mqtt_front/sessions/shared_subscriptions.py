"""SUBSCRIBE and UNSUBSCRIBE of `$share/GROUP/FILTER`, for sessions that are kept and for others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from iotmq.metrics import Metric, samples
from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec.subscription_options import QOS
from iotmq.mqtt.topics.topics import is_shared, split_shared
from iotmq.mqtt_front.connection.device import Device, DeviceGroup
from iotmq.mqtt_front.sessions.durable import DurableSession
from iotmq.mqtt_front.sessions.shared import RETRY_S, SharedEgress, SharedSession
from iotmq.ports.sessions import (
    Refused,
    SessionPort,
    SessionSubscription,
    SubscribeRequest,
    UnsubscribeRequest,
)

_log = logging.getLogger("iotmq.mqtt")

# A kept session would have to bring a packet id of QoS 2 to the same device again, whoever has the message.
_KEPT_QOS_MAX: Final = 1


class SharedSubscriptions:
    """The shared subscriptions of one front end's devices; `credit` as SharedEgress has it."""

    def __init__(self, group: DeviceGroup, port: SessionPort, *, credit: int) -> None:
        self._port = port
        self._loop = group.loop
        self._egress = SharedEgress(group, port, credit=credit)
        port.serve_shares(self._egress)

    def count_of(self, device: Device) -> int:
        """In how many groups a device takes part."""
        return len(device.shares.members) if isinstance(device.shares, SharedSession) else 0

    def subscribe(
        self, device: Device, filters: Mapping[str, int], done: Callable[[dict[str, int]], None]
    ) -> None:
        """Make a device a member, with the options wanted; `done` gets what each SUBACK says."""
        codes = {}
        wanted = {}
        for topic_filter, options in filters.items():
            try:
                split_shared(topic_filter)
            except ValueError as error:
                _log.debug("no shared subscription", extra={"client": device.client_id, "detail": str(error)})
                codes[topic_filter] = reason_codes.TOPIC_FILTER_INVALID
                continue
            if isinstance(device.session, DurableSession):
                options = _kept_options(options)
            wanted[topic_filter] = options
            codes[topic_filter] = options & QOS
        if not wanted:
            done(codes)
        elif isinstance(device.session, DurableSession):
            session = device.session
            self._port.subscribe(
                SubscribeRequest(
                    client_id=session.client_id, epoch=session.epoch, subscriptions=list(wanted.items())
                ),
                partial(self._subscribed, device, wanted, codes, done),
            )
        else:
            self._join(device, wanted, codes, done)

    def resume(self, device: Device, subscriptions: Iterable[SessionSubscription]) -> None:
        """A kept session is back at its device, which is a member again."""
        filters = {
            entry.topic_filter: _kept_options(entry.options)
            for entry in subscriptions
            if is_shared(entry.topic_filter)
        }
        if filters:
            self._resume(device, filters)

    def unsubscribe(self, device: Device, filters: Iterable[str]) -> None:
        """A device is no member any more; of a kept session the broker hears it with its other filters."""
        shared = [topic_filter for topic_filter in filters if is_shared(topic_filter)]
        if not shared:
            return
        self._egress.leave(device, shared)
        if not isinstance(device.session, DurableSession) and device.client_id is not None:
            self._port.unsubscribe(
                UnsubscribeRequest(client_id=device.client_id, epoch=device.epoch, filters=shared),
                _log_refusal,
            )

    def leave(self, device: Device) -> None:
        """A device is gone: brokers hear what it has done before they hear that."""
        self._egress.leave(device)

    def metrics(self) -> Iterable[Metric]:
        egress = self._egress
        yield from samples(
            ("members", "Local members of groups.", egress.member_count),
            ("delivered_total", "Messages written to members of groups.", egress.delivered),
            ("done_total", "Messages that members were done with.", egress.done),
            ("malformed_total", "Records handed out that are not messages.", egress.malformed),
            ("withdrawn_total", "Messages taken back before their device had room.", egress.withdrawn),
            ("refused_joins_total", "Members a broker refused.", egress.refused_joins),
            (
                "refused_reports_total",
                "Reports a broker did not take; it gets them again.",
                egress.refused_reports,
            ),
            prefix="iotmq_mqtt_share_",
        )

    def _subscribed(
        self,
        device: Device,
        wanted: Mapping[str, int],
        codes: dict[str, int],
        done: Callable[[dict[str, int]], None],
        found: list[SessionSubscription] | Refused,
    ) -> None:
        if isinstance(found, Refused):
            self._refuse(device, wanted, codes, found)
            done(codes)
        elif device.close_reason is not None:
            done(codes)
        else:
            self._join(device, wanted, codes, done)

    def _join(
        self,
        device: Device,
        wanted: Mapping[str, int],
        codes: dict[str, int],
        done: Callable[[dict[str, int]], None],
    ) -> None:
        assert device.client_id is not None

        def joined(refused: dict[str, Refused]) -> None:
            for topic_filter, why in refused.items():
                self._refuse(device, [topic_filter], codes, why)
            if refused and isinstance(device.session, DurableSession):
                # It is no member, and keeps no group.
                session = device.session
                self._port.unsubscribe(
                    UnsubscribeRequest(
                        client_id=session.client_id, epoch=session.epoch, filters=list(refused)
                    ),
                    _log_refusal,
                )
            done(codes)

        self._egress.join(device, device.client_id, wanted.items(), joined)

    def _refuse(
        self, device: Device, filters: Iterable[str], codes: dict[str, int], refused: Refused
    ) -> None:
        _log.warning("no shared subscription", extra={"client": device.client_id, "detail": refused.remark})
        codes.update(dict.fromkeys(filters, reason_codes.SUBACK_FAILURE))

    def _resume(self, device: Device, filters: Mapping[str, int]) -> None:
        if device.close_reason is not None or device.client_id is None:
            return

        def joined(refused: dict[str, Refused]) -> None:
            if refused and device.close_reason is None:
                codes: dict[str, int] = {}
                self._refuse(device, refused, codes, next(iter(refused.values())))
                again = {name: options for name, options in filters.items() if name in refused}
                self._loop.call_later(RETRY_S, self._resume, device, again)

        self._egress.join(device, device.client_id, filters.items(), joined)


def _kept_options(options: int) -> int:
    """Options as in `ports.sessions`, for a session that is kept."""
    return options & ~QOS | min(options & QOS, _KEPT_QOS_MAX)


def _log_refusal(refused: Refused | None) -> None:
    """Log an unsubscribe that failed: a broker that is away hears of it when the session ends."""
    if refused is not None:
        _log.debug("a shared subscription is not taken back", extra={"detail": refused.remark})
