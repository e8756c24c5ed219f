"""Hear what a front end decides about connections, and say what it decides about a message that has come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Protocol, TypeAlias

from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.topics.reply import REPLY_PREFIX
from iotmq.mqtt.topics.topics import BRIDGE_PREFIX
from iotmq.mqtt_front.audit import Audit
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.permissions.questions import AskedPolicy
from iotmq.mqtt_front.permissions.refusals import Refusals
from iotmq.mqtt_front.permissions.rule import PUBLISH, Use
from iotmq.mqtt_front.permissions.topic_template import Subject
from iotmq.mqtt_front.publish.ingress import Ingress

Facts: TypeAlias = Mapping[str, str | int | bool | list[str] | None]

# What audit records tell of connections, and the words for it in a trace. The others are told otherwise.
_HEARD: Final = {
    "connected": ("session", "opened"),
    "kicked": ("session", "disconnected"),
    "refused": ("authentication", "refused"),
}


class Hearing(Protocol):
    """Writes decisions about those that are named in them."""

    def heard(self, kind: str, facts: Facts, *, topic: str | None = None) -> None: ...


class Decisions:
    """The decisions of one front end."""

    def __init__(self, ingress: Ingress, refusals: Refusals, audit: Audit) -> None:
        self._ingress = ingress
        self._refusals = refusals
        self._audit = audit

    def hear(self, hearing: Hearing | None) -> None:
        """Tell `hearing` of what is refused, and of sessions; None: nobody."""
        if hearing is None:
            self._refusals.heard = self._audit.heard = None
            return

        def refused(subject: Subject, what: str, topic: str, rule: str, detail: str) -> None:
            facts = {
                "client": subject.client_id,
                "address": subject.address,
                "result": "refused",
                "what": what,
                "rule": rule,
                "detail": detail or None,
            }
            hearing.heard("permission", facts, topic=topic)

        def recorded(event: str, fields: Facts) -> None:
            known = _HEARD.get(event)
            if known is not None:
                hearing.heard(known[0], {"result": known[1]} | dict(fields))

        self._refusals.heard = refused
        self._audit.heard = recorded

    def of_publish(self, device: Device, facts: Facts, topic: str) -> Iterator[tuple[str, Facts]]:
        """Yield what rules and routes say about a message; what they refuse is heard when they do."""
        if device.bridge is not None or topic.startswith((REPLY_PREFIX, BRIDGE_PREFIX)):
            # Under another name, or no message.
            return
        targets = self._ingress.targets
        try:
            name, place, is_delayed = targets.explain(device, topic.encode())
        except MqttProtocolError:
            # It ends the connection, which is told.
            return
        if name is None:
            yield "routing", {"result": "refused", "detail": "the topic cannot be rewritten"}
            return
        if device.rights is not None:
            policy = device.rights.policy
            if isinstance(policy, AskedPolicy) and not policy.is_known(PUBLISH, name):
                yield "permission", {"result": "asked", "what": "publish", "detail": "plug-ins are asked"}
                return
            use = Use(
                PUBLISH,
                qos=_number(facts, "qos"),
                is_retained=bool(facts.get("retain")),
                is_delayed=is_delayed,
                payload_bytes=_number(facts, "payload_bytes"),
            )
            decision = policy.may_publish(name, use)
            if not decision.is_allowed:
                return
            yield "permission", {"result": "allowed", "what": "publish", "rule": decision.rule}
        lane = None if place is None else self._ingress.lanes[place]
        if lane is not None:
            yield (
                "routing",
                {
                    "result": "waits for its time" if lane.is_delayed else "goes to a queue",
                    "renamed": name if name != topic and not is_delayed else None,
                    "broker_topic": lane.topic,
                    "queue": lane.queue_id,
                    "is_stored": lane.is_stored,
                },
            )


def _number(facts: Facts, name: str) -> int:
    value = facts.get(name)
    return value if isinstance(value, int) else 0
