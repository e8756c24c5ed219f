"""Devices with rights, on topics whose routes ask something of each message: rights come first."""

from __future__ import annotations

from pathlib import Path

from permissions_site import NOT_AUTHORIZED, rule_text, running

from iotmq.mqtt.codec.properties import NO_PROPERTIES
from iotmq.mqtt_front.settings.routes import ChecksumSettings, RouteSettings

ROUTES = (
    RouteSettings(filter="d/+/json", topic="Json", when=("{json:a} = 1",)),
    RouteSettings(
        filter="d/+/frame",
        topic="Frames",
        checksum=ChecksumSettings(algorithm="modbus"),
        quarantine_answer="refuse",
    ),
    RouteSettings(filter="d/+/noise", drop=True),
    RouteSettings(filter="d/#", topic="Rest", key="{client_id}"),
)
FRAME = bytes.fromhex("0103020017f84a")
NOT_VALID = 0x99


async def test_what_is_not_allowed_is_refused_whatever_its_route(tmp_path: Path) -> None:
    rules = rule_text("allow", "all", "d/%c/#")
    async with running(tmp_path / "permissions.toml", rules, routes=ROUTES) as site:
        client = await site.connect(level=5)
        for name, payload in (("json", b'{"a": 1}'), ("frame", FRAME), ("noise", b""), ("other", b"")):
            # The second time the topic is known.
            for _ in range(2):
                refused = await site.published(client, f"d/e/{name}", payload, properties=NO_PROPERTIES)
                assert refused == NOT_AUTHORIZED
                assert await site.published(client, f"d/c/{name}", payload, properties=NO_PROPERTIES) == 0
        bad = await site.published(client, "d/c/frame", FRAME[:-1] + b"\0", properties=NO_PROPERTIES)
        assert bad == NOT_VALID
        await client.ping()
        stored = [
            (handed.topic, message.topic) for handed in site.gateway.handed for message in handed.messages
        ]
        assert stored == [
            *[("Json", "d/c/json")] * 2,
            *[("Frames", "d/c/frame")] * 2,
            *[("Rest", "d/c/other")] * 2,
            ("mqtt-quarantine", ""),
        ]
