"""Takes the pictures of the console for docs/images, of a made-up plant; needs the tools of the tests."""

from __future__ import annotations

import math
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "oracles"))

from console_browser import SETTINGS, Asked, Chromium, Rows, Stub, Theme, message  # noqa: E402
from gateway_process import GatewayProcess  # noqa: E402
from PIL import Image  # noqa: E402

PICTURES = ROOT / "docs" / "images"
NOW_MS = int(time.time() * 1000)
COLOURS = 96

TOPICS = [
    {
        "name": name,
        "brokers": ["broker-a", "broker-b"],
        "queues": 16,
        "is_readable": True,
        "is_writable": name != "archive",
        "is_system": False,
    }
    for name in ("alerts", "archive", "billing", "commands", "mqtt", "orders", "presence", "telemetry")
]
GROUPS = [
    {
        "name": name,
        "members": members,
        "model": "clustering" if members else None,
        "behind": behind,
        "consumed_per_s": per_s,
    }
    for name, members, behind, per_s in (
        ("alerting", 2, 1204, 88.0),
        ("archive-loader", 0, 48_112, 0.0),
        ("billing", 3, 0, 120.4),
        ("dashboards", 4, 12, 2210.5),
        ("firmware-rollout", 1, 0, 0.2),
    )
]
METRICS = {
    "iotmq_mqtt_connections": (14_800, 90, 0.0),
    "iotmq_mqtt_published_total": (4_200, 700, 1.0),
    "iotmq_mqtt_delivered_total": (6_100, 900, 2.0),
    "iotmq_mqtt_received_bytes_total": (900_000, 100_000, 0.0),
    "iotmq_mqtt_sent_bytes_total": (1_400_000, 200_000, 1.0),
    "iotmq_broker_records_total": (4_300, 700, 1.0),
    "iotmq_broker_pulled_records_total": (3_900, 500, 0.5),
    "iotmq_broker_sessions": (9_100, 4, 0.0),
    "iotmq_mqtt_dropped_total": (0, 0, 0.0),
}


def wave(count: int, base: float, height: float, phase: float) -> list[float]:
    drawn = random.Random(1)
    return [
        base + height * (math.sin(index / 30 + phase) + 0.3 * drawn.random()) for index in range(count)
    ]


def history(asked: Asked) -> dict[str, Any]:
    items = [
        {"name": name, "is_rate": True, "values": wave(360, *METRICS[name])}
        for name in asked.query_all("series")
        if name in METRICS
    ]
    return {"from_ms": int(asked.query["from_ms"]), "step_s": 10, "count": 360, "items": items}


def statistics(_asked: Asked) -> dict[str, Any]:
    counts = {
        name: [int(each) for each in wave(60, 3_000, 600, phase)]
        for phase, name in enumerate(("messages", "consumed", "sent_back"))
    }
    return {
        "from_ms": NOW_MS - 3_600_000,
        "step_ms": 60_000,
        "count": 60,
        "steps": [{"name": "", "counts": counts}],
        "sums": [],
        "oldest_ms": None,
        "problems": {},
    }


def telemetry(index: int) -> dict[str, Any]:
    payload = f'{{"celsius": {20 + index % 17 / 4}, "at": "2026-11-28T13:20:11Z", "ok": true, '
    payload += f'"sensor": {{"id": "t-{index}", "firmware": "2.4.1"}}}}'
    return message(
        index,
        topic="telemetry",
        mqtt_topic=f"plant/{index % 9}/line/{index % 4}/temperature",
        keys=[f"pump-{index % 40}"],
        payload=payload,
        stored_ms=NOW_MS - index * 1_700,
        born_ms=NOW_MS - index * 1_700 - 4,
    )


STUB = Stub(
    {
        "GET /me": {"name": "admin", "role": "administrator", "way": "password", "expires_ms": None},
        "GET /topics": Rows(TOPICS),
        "GET /groups": Rows(GROUPS),
        "GET /brokers": {
            "items": [
                {"cluster": "plant", "name": name, "broker_id": number, "address": "10.0.0.1:10911"}
                for name, number in (("broker-a", 0), ("broker-a", 1), ("broker-b", 0))
            ]
        },
        "GET /front-ends": {
            "items": [
                {"name": "front-1", "clients": 7411, "is_draining": False},
                {"name": "front-2", "clients": 7302, "is_draining": False},
            ]
        },
        "GET /alarms": Rows([]),
        "GET /history": history,
        "GET /statistics/groups": statistics,
        "GET /topics/telemetry": {"topic": TOPICS[-1], "queues": []},
        "GET /topics/telemetry/messages": {
            "items": [telemetry(index) for index in range(60)],
            "next_offset": None,
        },
        "GET /groups/alerting": {
            "group": GROUPS[0],
            "queues": [
                {
                    "topic": "telemetry",
                    "broker": "broker-a",
                    "queue": queue,
                    "end": 190_000 + queue,
                    "consumed": 189_900 - queue * 40,
                    "behind": 100 + queue * 41,
                    "last_consumed_ms": NOW_MS - queue * 5_000,
                }
                for queue in range(8)
            ],
            "consumers": [],
        },
        "POST /groups/alerting/offsets": {
            "items": [
                {"broker": "broker-a", "queue": queue, "before": before, "after": 190_000 + queue}
                for queue, before in enumerate(range(189_900, 189_580, -40))
            ],
            "skipped": 1_948,
            "repeated": 0,
            "is_preview": True,
        },
    }
)
SHOTS: tuple[tuple[str, str, str, Theme, tuple[str, ...]], ...] = (
    ("console-overview", "overview", "desk", "light", ()),
    ("console-phone", "overview", "phone", "dark", ()),
    ("console-move-group", "group?name=alerting", "desk", "light", ("text=Move…", "text=Look")),
    ("console-message-dark", "messages?topic=telemetry&by=offset", "desk", "dark", ("tbody .link",)),
)


def main() -> None:
    """Take them all."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        settings = Path(directory) / "iotmq.toml"
        settings.write_text(SETTINGS)
        with GatewayProcess(Path(directory) / "data", config=settings) as gateway:
            browser = Chromium()
            origin = f"http://127.0.0.1:{gateway.ports['http']}"
            for name, place, size, theme, clicks in SHOTS:
                with browser.page(origin, size=size, theme=theme, stub=STUB) as opened:
                    page = opened.show(place)
                    opened.settle()
                    for each in clicks:
                        page.locator(each).first.click()
                        opened.settle()
                    file = PICTURES / f"{name}.png"
                    page.screenshot(path=file)
                    Image.open(file).quantize(COLOURS).save(file, optimize=True)
            browser.stop()


if __name__ == "__main__":
    main()
