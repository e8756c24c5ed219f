"""The command line: what it prints, and what it answers to the shell."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import iotmq
from iotmq.commands import cli
from iotmq.config.config import Config, config_from_table
from iotmq.config.setting_text import reference

ROOT = Path(__file__).resolve().parents[3]


def exit_code(*arguments: str) -> int:
    """The code of one command line, argparse's own exits included."""
    try:
        return cli.main(arguments)
    except SystemExit as leaving:
        return int(leaving.code or 0)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out == f"iotmq {iotmq.__version__}\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--help") == 0
    text = capsys.readouterr().out
    for command in ("serve", "registry", "broker", "mqtt", "config", "produce", "consume"):
        assert f"\n    {command} " in text


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("sevre",),
        ("config",),
        ("serve", "--port", "1"),
        ("produce",),
        ("consume", "t", "--count", "x"),
        ("consume", "t", "--count", "-1"),
        ("consume", "t", "--from", "middle"),
    ],
)
def test_wrong_usage_is_answered_with_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == cli.EXIT_USAGE
    assert "usage: iotmq" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "command", "reason", "has_settings"),
    [
        ("serve --port 1884", "serve", "unrecognized arguments: --port 1884", True),
        ("store check DIR", "store check", "unrecognized arguments: DIR", True),
        ("users list NAME", "users list", "unrecognized arguments: NAME", True),
        ("admin topic list T", "admin topic list", "unrecognized arguments: T", False),
        ("consume", "consume", "the following arguments are required: TOPIC", False),
    ],
)
def test_wrong_usage_is_answered_by_the_command_itself(
    arguments: str, command: str, reason: str, has_settings: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments.split()) == cli.EXIT_USAGE
    text = capsys.readouterr().err
    assert text.startswith(f"usage: iotmq {command} [-h] ")
    settings = "; settings are given with --set SECTION.KEY=VALUE" if has_settings else ""
    assert text.endswith(f"iotmq {command}: error: {reason}\nsee iotmq {command} --help{settings}\n")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("sevre", "serve"),
        ("admin topik", "topic"),
        ("admin topic lis", "list"),
        ("store dump summry", "summary"),
        ("xyz", None),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest(
    arguments: str, meant: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments.split()) == cli.EXIT_USAGE
    reason = capsys.readouterr().err.splitlines()[-2]
    assert reason.endswith(f"); did you mean {meant}?" if meant else ")")


def test_a_valid_config_passes_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("[http]\nlisten_port = 8081\n")
    assert exit_code("config", "check", "--config", str(file), "--set", "log.level=debug") == 0
    assert "valid" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[mqtt.routes]]\nfilter = 'a/+'\ntopic = 't'\nwhen = ['{json:a} ~ 3']", "mqtt.routes[0].when[0]"),
        ("[[mqtt.routes]]\nfilter = 'a/+'\ntopic = 't'\nchecksum = {algorithm = 'foo'}", "foo"),
        ("[mqtt]\nroutes_file = '/nowhere/routes.toml'", "mqtt.routes_file"),
        ("[[bridges]]\nname = 'b'\naddress = 'mqtt://c'", "bridges[b]: a bridge has send, receive or both"),
        (
            "[[bridges]]\nname = 'b'\naddress = 'mqtt://c'\n[[bridges.send]]\nfilter = '#'\ntopic = '{x}'",
            "{x} is not known",
        ),
        (
            "[[bridges]]\nname = 'b'\naddress = 'mqtt://c'\n[[bridges.receive]]\nfilter = '#'\ntopic = '{x}'",
            "{x} is not known",
        ),
    ],
)
def test_the_check_refuses_routes_and_bridges_that_would_stop_a_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    assert exit_code("config", "check", "--config", str(file)) == cli.EXIT_USAGE
    assert said in capsys.readouterr().err


CHAIN = "[[mqtt.authentication.chain]]\nname = 'x'\n"
TLS_FILES = "tls_certificate_file = '/nowhere/cert.pem'\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[mqtt.authentication]\nusers_file = '/nowhere/users'", "/nowhere/users"),
        (
            CHAIN + "kind = 'jwt'\nalgorithms = ['ES256']\nkey_files = ['/nowhere/key.pem']",
            "/nowhere/key.pem",
        ),
        (CHAIN + "kind = 'sql'\nurl = 'magic://x'\nstatement = 'SELECT :user_name'", "x.url"),
        ("[mqtt.permissions]\npermissions_file = '/nowhere/rules.toml'", "/nowhere/rules.toml"),
        (
            "[[mqtt.listeners]]\nname = 'safe'\ntransport = 'tls'\n"
            "certificates = [{ certificate_file = '/nowhere/cert.pem' }]",
            "mqtt.listeners safe: ",
        ),
        ("[mqtt]\nbroker_tls_enabled = true\nbroker_tls_ca_file = '/nowhere/ca.pem'", "/nowhere/ca.pem"),
        ("[[mqtt.plugins.amqtt]]\nclass_path = 'nowhere.Plugin'", "nowhere"),
        ("[broker]\nacl_file = '/nowhere/accounts'", "/nowhere/accounts"),
        ("[registry]\naccess = 'everything'\nacl_file = '/nowhere/accounts'", "/nowhere/accounts"),
        ("[broker]\n" + TLS_FILES, "/nowhere/cert.pem"),
        ("[registry]\n" + TLS_FILES, "/nowhere/cert.pem"),
        ("[http]\n" + TLS_FILES, "/nowhere/cert.pem"),
    ],
)
def test_the_check_finds_files_that_would_stop_a_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    assert exit_code("config", "check", "--config", str(file)) == cli.EXIT_USAGE
    assert said in capsys.readouterr().err
    assert exit_code("config", "check", "--settings-only", "--config", str(file)) == 0


def test_the_check_names_lines_of_users_and_keys_of_the_console(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users, keys = tmp_path / "data" / "console" / "users", tmp_path / "keys"
    file = tmp_path / "gateway.toml"
    file.write_text(f"data = '{tmp_path / 'data'}'\n[http.sign_in]\napi_keys_file = '{keys}'\n")
    assert exit_code("config", "check", "--config", str(file)) == 0
    users.parent.mkdir(parents=True)
    users.write_text("# nobody\nada:boss:$argon2id$\n\nbob\n")
    keys.write_text("nonsense\n")
    capsys.readouterr()
    assert exit_code("config", "check", "--config", str(file)) == cli.EXIT_USAGE
    said = capsys.readouterr().err
    assert f"http.sign_in {users}: line 2: the role of ada" in said
    assert "\nline 4: " in said
    assert f"http.sign_in {keys}: line 1: " in said
    file.write_text(file.read_text() + "enabled = false\n")
    assert exit_code("config", "check", "--config", str(file)) == 0


def test_the_check_says_everything_at_once_and_passes_what_is_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users, file = tmp_path / "users", tmp_path / "gateway.toml"
    text = f"[mqtt.authentication]\nusers_file = '{users}'\n"
    file.write_text(text + "[broker]\nacl_file = '/nowhere/accounts'\n")
    assert exit_code("config", "check", "--config", str(file)) == cli.EXIT_USAGE
    said = capsys.readouterr().err
    assert str(users) in said
    assert "/nowhere/accounts" in said
    users.write_text("# nobody\n")
    users.chmod(0o600)
    file.write_text(text + CHAIN + "kind = 'users'\n")
    assert exit_code("config", "check", "--config", str(file)) == 0


@pytest.mark.parametrize("command", [("config", "check"), ("config", "show"), ("serve",), ("broker",)])
def test_a_wrong_setting_is_refused_by_name_without_a_traceback(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text("[http]\nlisten_prot = 8081\n")
    assert exit_code(*command, "--config", str(file), "--set", "mqtt.listen_host=0.0.0.0") == cli.EXIT_USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("iotmq: http.listen_prot")
    assert "Traceback" not in captured.err


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("serve", "--config", "/nowhere/gateway.toml") == cli.EXIT_USAGE
    assert "/nowhere/gateway.toml cannot be read" in capsys.readouterr().err


def test_the_shown_config_is_the_one_in_effect(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("config", "show", "--data", "here", "--set", "http.listen_port=9000") == 0
    config = config_from_table(tomllib.loads(capsys.readouterr().out))
    assert config.data == "here"
    assert config.http.listen_port == 9000


def test_the_reference_has_every_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("config", "reference") == 0
    text = capsys.readouterr().out
    assert text == reference(Config)
    for section in ("[store]", "[broker]", "[registry]", "[mqtt]", "[[mqtt.routes]]", "[http]", "[log]"):
        assert f"### {section}\n" in text


def test_a_property_needs_a_name_and_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("produce", "t", "body", "--property", "no-value") == cli.EXIT_USAGE
    assert "NAME=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("produce", "t", "body"), ("consume", "t", "--count", "1")])
def test_a_registry_that_is_not_there_is_named(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str], unused_tcp_port: int
) -> None:
    address = f"127.0.0.1:{unused_tcp_port}"
    assert exit_code(*command, "--registry", address) == cli.EXIT_FAILED
    error = capsys.readouterr().err
    assert error.startswith(f"iotmq: no registry answered: no connection to {address}: ")
    assert error.count(address) == 1
    assert "Traceback" not in error


@pytest.mark.parametrize("name", ["no/slash", "x" * 128, ""])
def test_a_topic_that_cannot_be_one_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("produce", name, "body") == cli.EXIT_FAILED
    assert "invalid topic name" in capsys.readouterr().err


def test_python_dash_m_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "iotmq", "--version"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == f"iotmq {iotmq.__version__}\n"


@pytest.mark.parametrize(
    ("code", "needless"),
    [
        ("cli.main(['config', 'check'])", {"uvloop", "aiohttp", "numpy", "pyarrow", "pyspark"}),
        ("cli.parser().format_help()", {"asyncio", "msgspec", "iotmq.commands.admin", "loadtest"}),
        (
            "import iotmq.assembly, iotmq.console.pages, iotmq.console.server.port",
            {"aiohttp", "iotmq.store.store", "iotmq.broker.broker", "iotmq.mqtt_front.server"}
            | {"iotmq.registry.server", "iotmq.client.transport.client", "iotmq.workers.supervisor"},
        ),
        (
            "import iotmq.store.store, iotmq.broker.broker, iotmq.mqtt_front.server",
            {"aiohttp", "iotmq.client.transport.client", "iotmq.member.replicated_broker"},
        ),
    ],
)
def test_nothing_is_loaded_without_need(code: str, needless: set[str]) -> None:
    code = f"import sys; from iotmq.commands import cli; {code}; print({needless!r} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "set()"
