"""What a front end asks brokers about exclusive subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fake_gateway import Front
from mqtt_core import CollectingSink

from iotmq import limits
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.sessions.exclusive import ExclusiveSubscriptions
from iotmq.ports.sessions import EXCLUSIVE, ExclusiveClaim, Refused, SessionSubscription
from iotmq.remoting.codes import ResponseCode


class TakingPort:
    """Brokers at which somebody else has the filters."""

    def __init__(self) -> None:
        self.claims: list[list[str]] = []

    def claim_exclusive(self, request: ExclusiveClaim, done: Callable[[list[Refused | None]], None]) -> None:
        self.claims.append(request.filters)
        done([Refused(ResponseCode.NO_PERMISSION, "taken")] * len(request.filters))


def test_a_session_with_very_many_of_them_claims_them_in_requests_that_a_broker_takes() -> None:
    most = limits.MQTT_SUBSCRIPTIONS_PER_PACKET_MAX
    names = [f"a/{number}" for number in range(most + 1)]
    port: Any = TakingPort()
    device, _ = Front(CollectingSink()).connect("d")
    lost: list[tuple[Device, list[str]]] = []
    exclusive = ExclusiveSubscriptions(port, is_enabled=True)
    exclusive.resume(
        device,
        [SessionSubscription(name, EXCLUSIVE, number, 0, 0) for number, name in enumerate(names)],
        lambda device, filters: lost.append((device, filters)),
    )
    assert port.claims == [names[:most], names[most:]]
    assert lost == [(device, names[:most]), (device, names[most:])]
    assert exclusive.lost == most + 1
