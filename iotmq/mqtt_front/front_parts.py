"""The parts of a running front end, made when it starts and handed around as one bundle."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iotmq.mqtt_front.access.authentication import Authentication
from iotmq.mqtt_front.connection.device import DeviceGroup
from iotmq.mqtt_front.deliver.egress import Egress
from iotmq.mqtt_front.deliver.sys_topics import SysTopics
from iotmq.mqtt_front.limiting.guard import Guard
from iotmq.mqtt_front.listen.admission import Admission
from iotmq.mqtt_front.listen.listeners import Listeners
from iotmq.mqtt_front.permissions.permissions import Permissions
from iotmq.mqtt_front.publish.ingress import Ingress
from iotmq.mqtt_front.sessions.bridge_clients import BridgeClients
from iotmq.mqtt_front.sessions.drain import Drain
from iotmq.mqtt_front.sessions.durable_egress import DurableEgress
from iotmq.mqtt_front.sessions.sessions import ConnectedSessions
from iotmq.mqtt_front.sessions.shared_subscriptions import SharedSubscriptions
from iotmq.mqtt_front.sessions.subscriptions import Subscriptions
from iotmq.mqtt_front.tracing.traces import Traces

if TYPE_CHECKING:
    from iotmq.mqtt_front.hooks.hook_parts import HookParts
    from iotmq.mqtt_front.plugins.front_plugins import FrontPlugins


@dataclass(frozen=True, slots=True)
class FrontEndParts:
    """Bundle the parts of a running front end."""

    loop: asyncio.AbstractEventLoop
    ingress: Ingress
    group: DeviceGroup
    egress: Egress
    durable: DurableEgress | None
    shared: SharedSubscriptions | None
    subscriptions: Subscriptions
    sessions: ConnectedSessions
    authentication: Authentication
    permissions: Permissions
    sys_topics: SysTopics | None
    bridges: BridgeClients
    listeners: Listeners
    drain: Drain
    admission: Admission
    plugins: FrontPlugins | None
    guard: Guard
    hooks: HookParts | None
    traces: Traces
