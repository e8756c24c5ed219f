"""Explain what becomes of a message, without publishing it (`iotmq routes test`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from iotmq.client.transport.routes import queue_of_key
from iotmq.mqtt.reason_codes import reason_text
from iotmq.mqtt_front.routing.route_conditions import Condition
from iotmq.mqtt_front.routing.route_fields import RoutedMessage, text_of
from iotmq.mqtt_front.routing.routes import Route, Router, Target


@dataclass
class Outcome:
    """The way of a message, in words and values."""

    topic: str
    passed_over: list[str] = field(default_factory=list)
    """Routes whose filter matches, each with the condition that is not met."""
    route: str = ""
    filter: str = ""
    goes_to: str = ""
    """Broker topic; empty: nowhere."""
    queue: int | None = None
    why: str = ""
    """Why it goes nowhere, or into quarantine."""
    key: str = ""
    tags: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    is_stored: bool = False
    is_put_aside: bool = False
    qos: int = 0
    qos_why: str = ""
    """Why it is not that of the message."""
    expiry_s: int | None = None
    expiry_why: str = ""
    """Why it is not that of the message."""
    answer: str = ""
    """Answer to the device, where it is no success."""
    checks: list[str] = field(default_factory=list)
    """Found to be right beside conditions: a checksum, JSON, a sample."""


def explain(
    router: Router, message: RoutedMessage, *, qos: int, queue_count: int, is_retained: bool = False
) -> Outcome:
    """Say what becomes of a message, and why; `queue_count` queues are taken for its broker topic."""
    expiry = message.properties.get("message_expiry_s")
    outcome = Outcome(message.topic, qos=qos, expiry_s=expiry if isinstance(expiry, int) else None)
    for route in router.matching(message.topic):
        put_aside = ""
        failing = _failing(message, *route.topic_conditions, *route.property_conditions)
        if failing is None:
            put_aside = route.put_aside(message)
            failing = None if put_aside else _failing(message, *route.json_conditions)
        if failing is None:
            target = route.target(message, put_aside=put_aside)
            _decide(outcome, target, message, route=route, is_deletion=is_retained and not message.payload)
            break
        outcome.passed_over.append(
            f"{route.label}: {failing.text} is not met, it is {_shown(failing, message)}"
        )
    if outcome.goes_to:
        outcome.queue = queue_of_key(outcome.key, queue_count)
    return outcome


def _failing(message: RoutedMessage, *conditions: Condition) -> Condition | None:
    return next((each for each in conditions if not each.is_met(message)), None)


def _shown(failing: Condition, message: RoutedMessage) -> str:
    value = failing.source.read(message)
    if value is None:
        return f"not there ({message.invalid_json})" if message.invalid_json else "not there"
    return repr(text_of(value)) if isinstance(value, str) else text_of(value) or "a list or an object"


def _decide(
    outcome: Outcome, target: Target, message: RoutedMessage, *, route: Route, is_deletion: bool
) -> None:
    outcome.route, outcome.filter = route.label, route.filter
    outcome.key, outcome.tags, outcome.properties = target.key, target.tags, dict(target.properties)
    outcome.goes_to, outcome.is_stored = target.topic, target.is_stored
    rules = target.rules
    if rules is None:
        return
    if rules.is_dropped:
        outcome.why = "the route drops its messages"
        return
    wrong = "" if is_deletion else target.put_aside
    if route.settings.invalid_json == "quarantine" and not wrong and not is_deletion:
        outcome.checks.append("the payload is JSON")
    if rules.checksum is not None and not wrong and not is_deletion:
        wrong = rules.checksum.wrong_in(message.payload)
        if not wrong:
            outcome.checks.append(f"the checksum {rules.checksum.name} is right")
    if wrong:
        outcome.why, outcome.is_put_aside, outcome.is_stored = wrong, True, True
        outcome.goes_to, outcome.tags, outcome.properties = rules.quarantine_topic, "", {}
        if outcome.qos and route.settings.quarantine_answer == "refuse":
            outcome.answer = f"{reason_text(0x99)} with MQTT 5, else success"
        return
    if target.is_left_out:
        outcome.goes_to, outcome.why = (
            "",
            f"its key is not in the sample of one in {route.settings.sample_one_in}",
        )
        return
    if route.settings.sample_one_in > 1:
        is_by_key = route.settings.sample_by == "key"
        what = "its key is in the sample of" if is_by_key else "taken is"
        outcome.checks.append(f"{what} one in {route.settings.sample_one_in}")
    if outcome.qos > rules.qos_max:
        outcome.qos_why = f"instead of {outcome.qos}, because of qos_max"
        outcome.qos = rules.qos_max
    expiry_s = rules.expiry_of(outcome.expiry_s)
    if expiry_s != outcome.expiry_s:
        before = "none" if outcome.expiry_s is None else f"{outcome.expiry_s} s"
        outcome.expiry_why = f"instead of {before}, because of the route"
        outcome.expiry_s = expiry_s
