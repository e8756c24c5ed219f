"""Make the way to tell a receiver of the settings."""

from __future__ import annotations

from iotmq.alarms.receivers.sender import Sender
from iotmq.alarms.settings import AnyReceiver, EmailSettings, WebhookSettings
from iotmq.clock import Clock

# What each is made with is loaded for those that there are.


def sender_of(settings: AnyReceiver, clock: Clock) -> Sender:
    """Make it. ConfigError when a file cannot be used, or a library is missing."""
    if isinstance(settings, WebhookSettings):
        from iotmq.alarms.receivers.webhook import Webhook

        return Webhook(settings, clock)
    if isinstance(settings, EmailSettings):
        from iotmq.alarms.receivers.email import Email

        return Email(settings, clock)
    from iotmq.alarms.receivers.alertmanager import Alertmanager

    return Alertmanager(settings, clock)
