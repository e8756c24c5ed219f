"""`iotmq routes`: what becomes of a message, in words and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iotmq.commands.cli import main

CONFIG = """
[[mqtt.routes]]
name = "alarms"
filter = "devices/+/telemetry"
topic = "alarms"
when = ["{json:temperature} > 30"]
key = "{1}"
tags = "{property:unit}"
properties = { site = "{json:site}" }

[[mqtt.routes]]
name = "meters"
filter = "meters/#"
topic = "meters"
qos_max = 1
expiry_s = 60
checksum = { algorithm = "modbus" }

[[mqtt.routes]]
filter = "strict/+"
topic = "meters"
quarantine_answer = "refuse"
checksum = { algorithm = "modbus" }

[[mqtt.routes]]
filter = "noise/#"
drop = true

[[mqtt.routes]]
filter = "some/+"
topic = "some"
key = "{1}"
sample_one_in = 1000000
sample_by = "key"
store = false

[[mqtt.rewrites]]
filter = "old/#"
pattern = "^old/(.+)$"
template = "meters/$1"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "gateway.toml"
    path.write_text(CONFIG)
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["routes", *words])
    said = capsys.readouterr()
    return code, said.out + said.err


def shown(capsys: pytest.CaptureFixture[str], config: Path, *words: str) -> dict[str, str]:
    code, text = run(capsys, "test", *words, "--config", str(config))
    assert code == 0, text
    return {line[:12].strip(): line[13:] for line in text.splitlines()}


def test_a_message_and_the_conditions_that_it_meets(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    payload = '{"temperature": 31, "site": "north"}'
    found = shown(capsys, config, "devices/7/telemetry", payload, "--property", "unit=C", "--queues", "4")
    assert found.pop("goes to").startswith("alarms, queue ")
    assert found == {
        "topic": "devices/7/telemetry",
        "route": "alarms (filter devices/+/telemetry)",
        "key": "7",
        "tags": "C",
        "property": "site = north",
        "QoS": "0",
    }


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ('{"temperature": 21.5}', "it is 21.5"),
        ('{"temperature": "hot"}', "it is 'hot'"),
        ('{"temperature": []}', "it is a list or an object"),
        ("{}", "it is not there"),
        ("no", "not there (no JSON"),
    ],
)
def test_the_condition_that_is_not_met_is_named(
    capsys: pytest.CaptureFixture[str], config: Path, payload: str, why: str
) -> None:
    found = shown(capsys, config, "devices/7/telemetry", payload)
    assert found["passed over"].startswith("alarms: {json:temperature} > 30 is not met, it is ")
    assert why in found["passed over"]
    assert found["route"] == "default (filter #)"
    assert found["goes to"].startswith("mqtt, ")


def test_checks_and_what_goes_on(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    found = shown(capsys, config, "$delayed/5/old/1", "--hex", "010300000002c40b", "--qos", "2")
    assert found["topic"] == "meters/1"
    assert found["check"] == "the checksum modbus is right"
    assert found["QoS"] == "1 (instead of 2, because of qos_max)"
    assert found["expires"] == "after 60 s (instead of none, because of the route)"
    assert found["delayed"] == "5 s"
    bad = shown(capsys, config, "meters/1", "--hex", "020300000002c40b")
    assert "the checksum modbus of the frame is 0x0BC4" in bad["put aside"]
    assert bad["goes to"].startswith("mqtt-quarantine, ")
    assert "answer" not in bad
    refused = shown(capsys, config, "strict/1", "--hex", "020300000002c40b", "--qos", "1")
    assert refused["answer"] == "payload format invalid (0x99) with MQTT 5, else success"
    assert shown(capsys, config, "meters/1", "", "--retain")["goes to"].startswith("meters, ")


def test_what_goes_nowhere(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    assert shown(capsys, config, "noise/x")["dropped"] == "the route drops its messages"
    assert "not in the sample of one in 1000000" in shown(capsys, config, "some/1")["dropped"]


def test_json_for_programs(capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path) -> None:
    frame = tmp_path / "frame"
    frame.write_bytes(b"bad")
    _, text = run(capsys, "test", "meters/1", "--file", str(frame), "--json", "--config", str(config))
    found = json.loads(text)
    assert (found["route"], found["goes_to"], found["is_put_aside"]) == ("meters", "mqtt-quarantine", True)


@pytest.mark.parametrize(
    "words",
    [
        ("a/+",),
        ("a", "--hex", "xyz"),
        ("a", "--file", "/does/not/exist"),
        ("a", "--property", "noequals"),
        ("a", "--queues", "0"),
        ("$delayed/x/a",),
        ("$SYS/broker/uptime",),
        ("$delayed/5/$SYS/broker/uptime",),
    ],
)
def test_what_cannot_be_tried_is_said(
    capsys: pytest.CaptureFixture[str], config: Path, words: tuple[str, ...]
) -> None:
    code, text = run(capsys, "test", *words, "--config", str(config))
    assert code == 2
    assert text


def test_routes_that_are_never_used(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    assert run(capsys, "check", "--config", str(config)) == (0, "5 routes, 0 never used\n")
    config.write_text(CONFIG + '[[mqtt.routes]]\nfilter = "noise/x"\ntopic = "T"\n')
    code, text = run(capsys, "check", "--config", str(config))
    assert code == 1
    assert "mqtt.routes[5] (noise/x) is never used: mqtt.routes[3] (noise/#) takes all" in text


def test_placeholders_that_stand_for_nothing(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    config.write_text(
        CONFIG
        + '[[mqtt.routes]]\nfilter = "x/+/y"\ntopic = "T"\nkey = "{2}{3}"\nwhen = ["{4} exists"]\n'
        + '[[mqtt.routes]]\nfilter = "z/#"\ntopic = "T"\nkey = "{9}"\n'
    )
    code, text = run(capsys, "check", "--config", str(config))
    assert code == 1
    assert text.splitlines() == [
        "mqtt.routes[5].when[0] has {4}, but the last level of x/+/y is {2}",
        "mqtt.routes[5].key has {3}, but the last level of x/+/y is {2}",
        "7 routes, 0 never used",
    ]
