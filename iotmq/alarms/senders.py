"""Make the way to tell a receiver of the settings."""

from __future__ import annotations

from iotmq.alarms.receivers.alertmanager import Alertmanager
from iotmq.alarms.receivers.email import Email
from iotmq.alarms.receivers.sender import Sender
from iotmq.alarms.receivers.webhook import Webhook
from iotmq.alarms.settings import AnyReceiver, EmailSettings, WebhookSettings
from iotmq.clock import Clock


def sender_of(settings: AnyReceiver, clock: Clock) -> Sender:
    """Make it. ConfigError when a file cannot be used, or a library is missing."""
    if isinstance(settings, WebhookSettings):
        return Webhook(settings, clock)
    if isinstance(settings, EmailSettings):
        return Email(settings, clock)
    return Alertmanager(settings, clock)
