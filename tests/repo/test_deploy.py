"""The files of deploy/ start what there is, with settings that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from iotmq.commands.cli import parser
from iotmq.config.config import load_config

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_runs_a_command_that_there_is(unit: Path) -> None:
    (line,) = re.findall(r"^ExecStart=(.+)$", unit.read_text(), re.M)
    program, *words = shlex.split(line)
    assert Path(program).name == "iotmq"
    options = parser().parse_args(words)
    assert load_config(assignments=[f"mqtt.workers={options.workers}"]).mqtt.workers > 1


def test_the_listeners_of_the_example_are_good_ones() -> None:
    config = load_config(DEPLOY / "mqtt-listeners.toml", assignments=["mqtt.workers=4"])
    assert [listener.transport for listener in config.mqtt.listeners] == [
        *("tls", "tls", "tcp", "wss", "ws", "unix")
    ]
    assert [len(listener.certificates) for listener in config.mqtt.listeners] == [2, 1, 0, 1, 0, 0]
