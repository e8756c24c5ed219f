"""Webhooks: notifications by HTTP, in the form of Alertmanager's, signed."""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from iotmq.alarms.notification import Notification
from iotmq.alarms.receivers.alert import notification_body
from iotmq.alarms.receivers.http_post import HttpPost
from iotmq.alarms.settings import WebhookSettings
from iotmq.clock import Clock


class Webhook:
    """A Sender."""

    def __init__(self, settings: WebhookSettings, clock: Clock) -> None:
        """ConfigError when the roots of its certificate cannot be used."""
        self._settings = settings
        self._clock = clock
        self._http = HttpPost(settings.url, settings.headers, ca_file=settings.ca_file)

    async def send(self, notification: Notification) -> None:
        body = msgspec.json.encode(notification_body(self._settings.name, notification))
        headers = {}
        if self._settings.secret:
            time_s = self._clock.now_ms() // 1000
            headers["X-Iotmq-Signature"] = signature(self._settings.secret, time_s, body)
        await self._http.post(body, headers)

    async def close(self) -> None:
        await self._http.close()


def signature(secret: str, time_s: int, body: bytes) -> str:
    """Return the value of the header X-Iotmq-Signature: who has the secret can tell who sent it, and when."""
    digest = hmac.new(secret.encode(), b"%d." % time_s + body, hashlib.sha256).hexdigest()
    return f"t={time_s},v1={digest}"
