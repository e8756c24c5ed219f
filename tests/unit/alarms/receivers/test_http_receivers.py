"""Webhooks and the API of an Alertmanager, at a service that answers as the test says."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json

import pytest
from aiohttp import web
from http_service import serving
from manual_clock import ManualClock
from msgspec.structs import replace

from iotmq import limits
from iotmq.alarms.alarm import Acknowledgement, Alarm, alarm_id
from iotmq.alarms.notification import Notification
from iotmq.alarms.receivers.alert import ALERTS_MAX, notification_body, time_text
from iotmq.alarms.receivers.sender import DeliveryError
from iotmq.alarms.receivers.webhook import signature
from iotmq.alarms.senders import sender_of
from iotmq.alarms.settings import AlertmanagerSettings, WebhookSettings
from iotmq.errors import ConfigError

LABELS = (("group", "orders"),)
LAG = Alarm(
    id=alarm_id("group-behind", LABELS),
    name="group-behind",
    labels=LABELS,
    level="warning",
    owner="us",
    says="the group orders is behind",
    what_to_do="Hurry.",
    state="firing",
    value=12.5,
    since_ms=1_700_000_000_000,
    fired_ms=1_700_000_030_000,
)
ENDED = replace(LAG, state="ended", ended_ms=1_700_000_090_123)
FIRES = Notification((("alertname", "group-behind"),), (LAG,), ())
CLOCK = ManualClock()


async def test_a_webhook_gets_what_alertmanager_sends() -> None:
    async with serving() as service:
        service.says({})
        hook = sender_of(WebhookSettings(name="ops", url=service.url("/hook")), CLOCK)
        await hook.send(FIRES)
        await hook.close()
    assert service.asked == [
        {
            "version": "4",
            "groupKey": '{}:{alertname="group-behind"}',
            "truncatedAlerts": 0,
            "status": "firing",
            "receiver": "ops",
            "groupLabels": {"alertname": "group-behind"},
            "commonLabels": {
                "alertname": "group-behind",
                "group": "orders",
                "severity": "warning",
                "source": "iotmq",
            },
            "commonAnnotations": {
                "summary": "the group orders is behind",
                "description": "Hurry.",
                "owner": "us",
                "value": "12.5",
            },
            "externalURL": "",
            "alerts": [
                {
                    "status": "firing",
                    "labels": {
                        "group": "orders",
                        "alertname": "group-behind",
                        "severity": "warning",
                        "source": "iotmq",
                    },
                    "annotations": {
                        "summary": "the group orders is behind",
                        "description": "Hurry.",
                        "owner": "us",
                        "value": "12.5",
                    },
                    "startsAt": "2023-11-14T22:13:50.000Z",
                    "endsAt": "0001-01-01T00:00:00Z",
                    "generatorURL": "",
                    "fingerprint": LAG.id,
                }
            ],
            "notificationReason": "changed",
        }
    ]


def test_ends_come_first_and_the_state_is_that_of_the_group() -> None:
    other = replace(ENDED, id="other", name="other")
    body = notification_body("ops", Notification((), (LAG,), (other,)))
    assert [each["status"] for each in body["alerts"]] == ["resolved", "firing"]
    assert body["status"] == "firing"
    assert body["alerts"][0]["endsAt"] == "2023-11-14T22:14:50.123Z"
    assert notification_body("ops", Notification((), (), (ENDED,)))["status"] == "resolved"


@pytest.mark.parametrize("extra", [0, 1])
def test_so_many_alerts_are_in_a_notification(extra: int) -> None:
    body = notification_body("ops", Notification((), (LAG,) * (ALERTS_MAX + extra), ()))
    assert (len(body["alerts"]), body["truncatedAlerts"]) == (ALERTS_MAX, extra)


def test_what_is_known_of_an_alarm_is_said() -> None:
    known = replace(LAG, is_flapping=True, acknowledged=Acknowledgement(by="ann", at_ms=1))
    (alert,) = notification_body("ops", Notification((), (known,), ()))["alerts"]
    assert alert["annotations"]["acknowledged_by"] == "ann"
    assert alert["annotations"]["flapping"]


async def test_a_webhook_is_signed() -> None:
    bodies: list[bytes] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.read())
        return web.Response()

    async with serving() as service:
        service.answer = answer
        settings = WebhookSettings(name="ops", url=service.url("/"), secret="hush", headers={"x-own": "yes"})
        hook = sender_of(settings, CLOCK)
        await hook.send(FIRES)
        await hook.close()
    (headers,) = service.headers
    lowered = {name.lower(): value for name, value in headers.items()}
    time_s = CLOCK.now_ms() // 1000
    digest = hmac.new(b"hush", f"{time_s}.".encode() + bodies[0], hashlib.sha256).hexdigest()
    assert lowered["x-iotmq-signature"] == f"t={time_s},v1={digest}"
    assert lowered["x-own"] == "yes"
    assert signature("other", time_s, bodies[0]) != lowered["x-iotmq-signature"]


@pytest.mark.parametrize("status", [302, 400, 404, 500, 503])
async def test_an_answer_that_is_no_success_is_a_failure(status: int) -> None:
    async with serving() as service:
        service.says(b"nobody is at home", status=status, headers={"Location": service.url("/else")})
        hook = sender_of(WebhookSettings(name="ops", url=service.url("/")), CLOCK)
        with pytest.raises(DeliveryError, match=rf"status {status}: 'nobody is at home'"):
            await hook.send(FIRES)
        await hook.close()
    assert service.count == 1, "no redirect is followed"


async def test_a_long_answer_is_not_read_to_its_end() -> None:
    async with serving() as service:
        service.says(b"x" * (limits.ALARM_ANSWER_BYTES_MAX + 1))
        hook = sender_of(WebhookSettings(name="ops", url=service.url("/")), CLOCK)
        await hook.send(FIRES)
        service.says(b"x" * (limits.ALARM_ANSWER_BYTES_MAX + 1), status=500)
        with pytest.raises(DeliveryError) as failed:
            await hook.send(FIRES)
        assert len(str(failed.value)) < 300
        await hook.close()


async def test_a_receiver_that_is_back_is_told() -> None:
    is_dead = True

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not is_dead:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            (size,) = (line[15:] for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(size))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    hook = sender_of(WebhookSettings(name="ops", url=f"http://127.0.0.1:{port}/"), CLOCK)
    with pytest.raises(DeliveryError):
        await hook.send(FIRES)
    is_dead = False
    await hook.send(FIRES)
    await hook.close()
    server.close()


def test_roots_that_are_none_are_refused() -> None:
    settings = WebhookSettings(name="ops", url="https://localhost/", ca_file="/nowhere.pem")
    with pytest.raises(ConfigError, match=r"/nowhere\.pem"):
        sender_of(settings, CLOCK)


async def test_an_alertmanager_gets_all_that_fires_for_three_minutes() -> None:
    paths: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        paths.append(request.path)
        posted.append(json.loads(await request.read()))
        return web.Response()

    posted: list[list[dict[str, object]]] = []
    async with serving() as service:
        service.answer = answer
        manager = sender_of(AlertmanagerSettings(name="am", url=service.url("/base/")), CLOCK)
        await manager.send(Notification((), (LAG,), (replace(ENDED, id="other"),)))
        await manager.close()
    assert paths == ["/base/api/v2/alerts"]
    ((ended, firing),) = posted
    assert ended["endsAt"] == time_text(ENDED.ended_ms)
    assert firing["startsAt"] == time_text(LAG.fired_ms)
    assert firing["endsAt"] == time_text(CLOCK.now_ms() + 180_000)
    assert firing["labels"] == {
        "group": "orders",
        "alertname": "group-behind",
        "severity": "warning",
        "source": "iotmq",
    }
