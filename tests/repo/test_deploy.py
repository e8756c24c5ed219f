"""The files of deploy/ start what there is, with settings that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from iotmq.cli import parser
from iotmq.config import load_config

UNITS = sorted((Path(__file__).resolve().parents[2] / "deploy" / "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_runs_a_command_that_there_is(unit: Path) -> None:
    (line,) = re.findall(r"^ExecStart=(.+)$", unit.read_text(), re.M)
    program, *words = shlex.split(line)
    assert Path(program).name == "iotmq"
    options = parser().parse_args(words)
    assert load_config(assignments=[f"mqtt.workers={options.workers}"]).mqtt.workers > 1
