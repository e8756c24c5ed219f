"""Every example of every page runs: settings load, programs type-check, commands print what is shown.

A comment in front of a block changes how it is treated:

- `<!-- not run: REASON -->`: only looked at, not run.
- `<!-- gateway -->`: settings that the gateway of this page has.
- `<!-- background: subscribes -->` or `consumes`: runs until the page ends. The next block runs when it has
  subscribed, or has asked for messages; at the end the output that is shown is waited for.
- `<!-- routes file -->`: the content of mqtt.routes_file.
- `<!-- settings of JOB -->`: the file of a job for Spark.
- `<!-- stopped -->`: runs after the gateway of the page has stopped.

Every page has a gateway of its own on free ports. `iotmq`, `mosquitto_pub` and `mosquitto_sub` are stand-ins
that add its ports; addresses with default ports are replaced in the text of a block.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import pytest
from eventually import eventually
from gateway_process import SMALL_STORE, GatewayProcess

from iotmq.broker.access.accounts_file import parse_accounts
from iotmq.commands.spark import all_jobs, find_job, read_job_settings
from iotmq.config.config import load_config
from iotmq.mqtt_front.routing.route_file import read_routes

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
COMMANDS: Final = re.compile(r"^(?:\$ |iotmq |mosquitto_|curl |make |python )", re.M)
LANGUAGES: Final = {"", "sh", "console", "python", "toml", "yaml", "json"}
DEADLINE_S: Final = 60
_OF_JOB: Final = "settings of "
READY_BY: Final = {
    "background: subscribes": "iotmq_mqtt_subscriptions",
    "background: consumes": "iotmq_broker_parked_pulls_total",
}


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    mark: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in {"sh", "console", "python"} and not self.mark.startswith("not run: ")


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    fence = re.compile(
        r"(?:^<!-- (?P<mark>(?:(?! -->).)*) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
    )
    return [
        Block(
            page,
            text.count("\n", 0, match.start("text")),
            match["language"],
            match["mark"] or "",
            match["text"],
        )
        for match in fence.finditer(text)
    ]


BLOCKS: Final = [block for page in PAGES for block in blocks_of(page)]
RUN_PAGES: Final = [page for page in PAGES if any(block.is_run for block in BLOCKS if block.page == page)]


def of_language(language: str) -> list[Block]:
    return [block for block in BLOCKS if block.language == language]


class PageRun:
    """The gateway of one page, and a directory in which its blocks run one after the other."""

    def __init__(self, directory: Path, gateway: GatewayProcess) -> None:
        self._directory = directory
        self._gateway = gateway
        self._environment = {
            **os.environ,
            "PATH": f"{directory / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }
        self._background: list[tuple[Block, subprocess.Popen[str], Path, str]] = []
        self._add_commands()
        for name in ("examples", "loadtest"):
            (directory / name).symlink_to(ROOT / name)
        (directory / ".venv" / "bin").mkdir(parents=True)
        (directory / ".venv" / "bin" / "activate").touch()

    def run(self, block: Block) -> None:
        """Run a block, and compare its output where it is shown."""
        if block.mark == "stopped":
            self._gateway.terminate()
        if block.language == "console":
            self._run_console(block)
            return
        done = self._run(self._words(block), block)
        if block.language == "python":
            assert done.stderr == "", f"{block.place} prints on standard error:\n{done.stderr}"

    def end(self) -> None:
        """Wait for what commands in the background have to print, and end them."""
        for block, process, output, shown in self._background:
            eventually(
                lambda output=output, shown=shown: not shown.strip() or is_shown(output.read_text(), shown),
                f"{block.place} prints what is shown",
                within_s=DEADLINE_S,
            )
            is_alive = process.poll() is None
            process.terminate()
            process.wait(timeout=DEADLINE_S)
            assert is_alive or process.returncode == 0, f"{block.place} ended: {output.read_text()}"

    def kill(self) -> None:
        for _block, process, _output, _shown in self._background:
            process.kill()
            process.wait()

    def _run_console(self, block: Block) -> None:
        for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
            command = re.match(r"(?:.*\\\n)*.*\n", part)
            assert command is not None
            shown = part[command.end() :]
            words = ["bash", "-euo", "pipefail", "-c", self._with_ports(command[0])]
            if block.mark in READY_BY:
                self._start(words, block, shown)
                continue
            output = self._run(words, block).stdout
            assert is_shown(output, shown), f"{block.place}: $ {command[0]}prints\n{output}and not\n{shown}"

    def _words(self, block: Block) -> list[str]:
        text = self._with_ports(block.text)
        if block.language == "python":
            return [sys.executable, "-W", "error", "-c", text]
        return ["bash", "-euo", "pipefail", "-c", text]

    def _run(self, words: list[str], block: Block) -> subprocess.CompletedProcess[str]:
        if block.mark in READY_BY:
            self._start(words, block, "")
            return subprocess.CompletedProcess(words, 0, "", "")
        done = subprocess.run(
            words,
            cwd=self._directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        printed = done.stdout + done.stderr
        assert done.returncode == 0, f"{block.place} ended with {done.returncode}:\n{printed}"
        return done

    def _start(self, words: list[str], block: Block, shown: str) -> None:
        """Start a command that goes on, and wait until it has begun to listen."""
        metric = READY_BY[block.mark]
        before = self._gateway.metric(metric)
        output = self._directory / f"background-{len(self._background)}"
        with output.open("w") as file:
            process = subprocess.Popen(
                words,
                cwd=self._directory,
                env={**self._environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self._background.append((block, process, output, shown))
        eventually(
            lambda: self._gateway.metric(metric) > before or process.poll() is not None,
            f"{block.place} listens",
            within_s=DEADLINE_S,
        )
        assert process.poll() is None, f"{block.place} ended:\n{output.read_text()}"

    def _with_ports(self, text: str) -> str:
        ports = self._gateway.ports
        for default, name in ((9876, "registry"), (8080, "http"), (1883, "mqtt"), (10911, "broker")):
            text = re.sub(rf"(?<=127\.0\.0\.1:){default}\b", str(ports[name]), text)
            text = re.sub(rf"(?<=localhost:){default}\b", str(ports[name]), text)
        text = text.replace("IotmqClient()", f'IotmqClient(ClientSettings(registries=("{self._registry}",)))')
        if "IotmqClient(ClientSettings" in text and "import ClientSettings" not in text:
            text = re.sub(r"^from iotmq\.client import ", r"\g<0>ClientSettings, ", text, flags=re.M)
        return re.sub(r'("127\.0\.0\.1",\s*(?:port=)?)1883', rf"\g<1>{ports['mqtt']}", text)

    @property
    def _registry(self) -> str:
        return f"127.0.0.1:{self._gateway.ports['registry']}"

    def _add_commands(self) -> None:
        """Programs with the names of the pages' commands that add the ports of this gateway."""
        (self._directory / "bin").mkdir()
        mqtt = f"-p {self._gateway.ports['mqtt']}"
        files = shlex.join(word for setting in SMALL_STORE for word in ("--set", setting))
        iotmq = f"""case "$1" in
            pub | sub | rr) set -- "$@" {mqtt} ;;
            produce | consume | tail | archive) set -- "$@" --registry {self._registry} ;;
            admin | sessions | bans) set -- "$@" --registry {self._registry} ;;
            store) set -- "$@" {files} ;;
            loadtest) [ "$2" != run ] || set -- "$@" --port {self._gateway.ports["mqtt"]} ;;
        esac
        exec {shlex.quote(sys.executable)} -m iotmq "$@"
        """
        self._add_command("iotmq", iotmq)
        for name in ("mosquitto_pub", "mosquitto_sub"):
            self._add_command(name, f'exec /usr/bin/{name} "$@" {mqtt}\n')

    def _add_command(self, name: str, text: str) -> None:
        path = self._directory / "bin" / name
        path.write_text(f"#!/bin/bash\n{text}")
        path.chmod(0o755)


def is_shown(output: str, shown: str) -> bool:
    """Whether an output is the one a page shows, in which `...` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in shown.strip().split("..."))
    return re.fullmatch(pattern, output.strip(), re.S) is not None


@contextmanager
def page_run(page: Path, directory: Path) -> Iterator[PageRun]:
    config = directory / "gateway.toml"
    config.write_text("\n".join(block.text for block in blocks_of(page) if block.mark == "gateway"))
    with GatewayProcess(directory / "data", config=config) as gateway, ExitStack() as ending:
        run = PageRun(directory, gateway)
        ending.callback(run.kill)
        yield run
        run.end()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", RUN_PAGES, ids=lambda page: page.stem)
def test_commands_and_programs_of_a_page_run(page: Path, tmp_path: Path) -> None:
    with page_run(page, tmp_path) as run:
        for block in blocks_of(page):
            if block.is_run:
                run.run(block)


@pytest.mark.slow
def test_a_wrong_command_and_a_wrong_output_fail(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    with page_run(page, tmp_path) as run:
        with pytest.raises(AssertionError, match="ended with 2"):
            run.run(Block(page, 1, "sh", "", "iotmq pub -t a --no-such-option\n"))
        with pytest.raises(AssertionError, match="and not"):
            run.run(Block(page, 1, "console", "", "$ echo one\ntwo\n"))


@pytest.mark.parametrize("block", of_language("toml"), ids=lambda block: block.place)
def test_settings_load(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = block.text.replace("/run/secrets", str(tmp_path))
    # Where a page says that secrets are, they are.
    for name in set(re.findall(rf'"({tmp_path}/[^"]+)"', text)):
        Path(name).touch(0o600)
        Path(name).write_text("a-secret-of-this-page")
    for name in re.findall(r'env = "(\w+)"', text):
        monkeypatch.setenv(name, "a-secret-of-this-page")
    config = tmp_path / "gateway.toml"
    config.write_text(text)
    if block.mark == "routes file":
        assert read_routes(config)
    elif block.mark.startswith(_OF_JOB):
        assert read_job_settings(find_job(block.mark.removeprefix(_OF_JOB)), config)
    else:
        load_config(config)


@pytest.mark.parametrize("block", of_language("yaml"), ids=lambda block: block.place)
def test_accounts_and_what_others_read_load(block: Block) -> None:
    if found := re.search(r"^(scrape_configs|providers):", block.text, re.MULTILINE):
        assert msgspec.yaml.decode(block.text)[found[1]]
    else:
        assert parse_accounts(block.text.encode()).by_key


@pytest.mark.parametrize("block", of_language("json"), ids=lambda block: block.place)
def test_json_is_json(block: Block) -> None:
    for line in block.text.splitlines() if block.text.count("\n{") else [block.text]:
        json.loads(line)


@pytest.mark.slow
def test_programs_have_the_right_types(tmp_path: Path) -> None:
    """Of the pages; those of `examples/` are checked with iotmq."""
    for number, block in enumerate(of_language("python")):
        name = f"{block.page.stem.replace('-', '_')}_{number}.py"
        (tmp_path / name).write_text(f"# {block.place}\n{block.text}")
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\ncheck_untyped_defs = true\nignore_missing_imports = true\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(config), *map(str, tmp_path.glob("*.py"))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_blocks_have_a_language_and_those_without_hold_no_commands() -> None:
    assert [block.place for block in BLOCKS if block.language not in LANGUAGES] == []
    assert [block.place for block in BLOCKS if not block.language and COMMANDS.search(block.text)] == []


def test_marks_are_known() -> None:
    known = {"", "gateway", "stopped", "routes file", *READY_BY, *(_OF_JOB + name for name in all_jobs())}
    assert [
        block.place
        for block in BLOCKS
        if block.mark not in known and not block.mark.startswith(("not run: ", "reference: ", "metrics: "))
    ] == []
