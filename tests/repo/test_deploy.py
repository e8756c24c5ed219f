"""The files of deploy/ start what there is, with settings that there are, and no more rights than needed."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from unit_sandbox import missing_tools, values

from iotmq.commands.cli import EXIT_USAGE, main, parser
from iotmq.config.config import load_config

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
EXPOSURE_MAX = 2.0

each_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
needs_systemd_analyze = pytest.mark.skipif(missing_tools() is not None, reason=str(missing_tools()))


def words_of(unit: Path) -> list[str]:
    """The command line of a unit; of a template that of the instance "a"."""
    (line,) = values(unit, "ExecStart")
    return shlex.split(line.replace("%i", "a"))


def analyze(unit: Path, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """systemd-analyze of a unit, with a program in place of the one that is not installed here."""
    program = shutil.which("true")
    copy = directory / unit.name.replace("@.", "@a.")
    copy.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={program}", unit.read_text(), flags=re.M))
    return subprocess.run(
        ["systemd-analyze", *words, str(copy)], capture_output=True, text=True, check=False, timeout=60
    )


def test_there_is_a_unit_for_each_role() -> None:
    assert sorted(words_of(unit)[1] for unit in UNITS) == ["broker", "mqtt", "registry", "serve"]


@each_unit
def test_a_unit_runs_a_command_that_there_is(unit: Path) -> None:
    program, *words = words_of(unit)
    assert Path(program).name == "iotmq"
    options = parser().parse_args(words)
    assert str(options.config).startswith("/etc/iotmq/")
    if options.role == "mqtt":
        assert load_config(assignments=[f"mqtt.workers={options.workers}"]).mqtt.workers > 1
    else:
        # Its data is where the unit may write, and each instance has another place.
        (state,) = values(unit, "StateDirectory")
        assert options.data == f"/var/lib/{state.replace('%i', 'a')}"


@pytest.mark.interop
@needs_systemd_analyze
@each_unit
def test_a_unit_exposes_little(unit: Path, tmp_path: Path) -> None:
    said = analyze(unit, tmp_path, "security", "--offline=true", "--no-pager")
    assert said.returncode == 0, said.stderr
    (exposure,) = re.findall(r"Overall exposure level for \S+: ([0-9.]+)", said.stdout)
    assert float(exposure) < EXPOSURE_MAX, said.stdout


@pytest.mark.interop
@needs_systemd_analyze
@each_unit
def test_systemd_understands_every_line(unit: Path, tmp_path: Path) -> None:
    said = analyze(unit, tmp_path, "verify", "--man=no")
    assert (said.returncode, said.stderr) == (0, "")


@each_unit
def test_a_unit_is_restarted_for_ever_but_not_after_a_wrong_setting(
    unit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert values(unit, "Restart") == ["always"]
    assert values(unit, "StartLimitIntervalSec") == ["0"]
    assert values(unit, "RestartPreventExitStatus") == [str(EXIT_USAGE)]
    role = words_of(unit)[1]
    assert main([role, "--set", "mqtt.listen_port=none"]) == EXIT_USAGE
    assert "mqtt.listen_port" in capsys.readouterr().err


@each_unit
def test_a_unit_hears_of_the_process_itself(unit: Path) -> None:
    assert values(unit, "Type") == ["notify"]
    # Of the main process, which is the default: workers have no word.
    assert values(unit, "NotifyAccess") == []
    (seconds,) = values(unit, "WatchdogSec")
    assert int(seconds) > 0


def test_all_units_have_the_same_limits() -> None:
    blocks = {unit.read_text().partition("# No rights")[2].partition("# Only what")[0] for unit in UNITS}
    (block,) = blocks
    assert "SystemCallFilter=" in block


def test_the_user_of_the_units_is_made() -> None:
    (name,) = re.findall(r"^u (\S+)", (DEPLOY / "sysusers.d" / "iotmq.conf").read_text(), re.M)
    assert {user for unit in UNITS for user in values(unit, "User")} == {name}


def test_the_listeners_of_the_example_are_good_ones() -> None:
    config = load_config(DEPLOY / "mqtt-listeners.toml", assignments=["mqtt.workers=4"])
    assert [listener.transport for listener in config.mqtt.listeners] == [
        *("tls", "tls", "tcp", "wss", "ws", "unix")
    ]
    assert [len(listener.certificates) for listener in config.mqtt.listeners] == [2, 1, 0, 1, 0, 0]
