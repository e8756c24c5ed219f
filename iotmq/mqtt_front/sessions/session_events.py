"""Dispatch what brokers tell a front end by themselves to its parts."""

from __future__ import annotations

from iotmq.mqtt_front.sessions.drain import Drain
from iotmq.mqtt_front.sessions.durable_egress import DurableEgress
from iotmq.ports.inspections import Inspections


class SessionEvents:
    """`ports.sessions.SessionReceiver`; what comes per batch of records goes straight to its part."""

    def __init__(self, durable: DurableEgress, drain: Drain, inspections: Inspections) -> None:
        self.deliver_queued = durable.deliver_queued
        self.missed = durable.missed
        self.fenced = durable.fenced
        self.drain = drain.ordered
        self.inspect = inspections.ask
