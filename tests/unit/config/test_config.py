"""The config: what is taken, and how what is wrong is refused."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from iotmq import limits
from iotmq.config.config import CONFIG_FILE_BYTES_MAX, Config, config_from_table, load_config
from iotmq.config.setting_text import (
    SECRET_SHOWN,
    element_struct_of,
    hide_secrets,
    secrets_of,
    settings_of,
    struct_of,
    tagged_structs_of,
    toml_document,
)
from iotmq.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]

ROUTES = """
[mqtt]
listen_port = 1884

[[mqtt.routes]]
filter = "devices/+/telemetry"
topic = "telemetry"
key = "{1}"

[[mqtt.routes]]
filter = "logs/#"
topic = "logs"
"""


def write(directory: Path, text: str) -> Path:
    file = directory / "gateway.toml"
    file.write_text(text)
    return file


def refusal(text: str = "", tmp_path: Path | None = None, **arguments: object) -> str:
    file = write(tmp_path, text) if tmp_path else None
    with pytest.raises(ConfigError) as caught:
        load_config(file, **arguments)  # type: ignore[arg-type]
    return str(caught.value)


def test_everything_has_a_default() -> None:
    assert load_config() == Config()


def test_by_default_everything_listens_on_loopback() -> None:
    config = load_config()
    for section in (config.registry, config.broker, config.mqtt, config.http):
        assert section.listen_host == "127.0.0.1"
    ports = [section.listen_port for section in (config.registry, config.broker, config.mqtt, config.http)]
    assert ports == [9876, 10911, 1883, 8080]


def test_a_file_sets_values_and_routes_in_order(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, ROUTES))
    assert config.mqtt.listen_port == 1884
    assert [route.topic for route in config.mqtt.routes] == ["telemetry", "logs"]
    assert config.mqtt.routes[0].key == "{1}"
    assert config.broker == Config().broker


@pytest.mark.parametrize(
    "name",
    [
        "IOTMQ_MQTT___LISTEN_PORT",
        "IOTMQ_MQTT__LISTEN_PORT_",
        "IOTMQ_MQTT__listen_port",
        "IOTMQ___",
        "IOTMQ_A__",
    ],
)
def test_a_variable_that_is_nearly_a_setting_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"variable {name} is refused: the form is IOTMQ_SECTION__KEY"):
        load_config(environment={name: "1"})


def test_an_assignment_wins_over_the_file_and_the_last_one_wins(tmp_path: Path) -> None:
    file = write(tmp_path, '[http]\nlisten_port = 1\n[broker]\nname = "file"\n')
    config = load_config(
        file, assignments=["http.listen_port=2", "http.listen_port = 3", "data=else"], data="here"
    )
    assert config.http.listen_port == 3
    assert config.broker.name == "file"
    assert config.data == "here"


def test_the_environment_wins_over_the_file_and_an_assignment_over_both(tmp_path: Path) -> None:
    file = write(tmp_path, '[http]\nlisten_port = 1\n[broker]\nname = "file"\nidle_s = 7\n')
    environment = {
        "IOTMQ_BROKER__NAME": "variable",
        "IOTMQ_HTTP__LISTEN_PORT": "2",
        "IOTMQ_BROKER__REGISTRIES": "a:1, b:2",
        "IOTMQ_MQTT__AUTHENTICATION__ALLOW_ANONYMOUS": "true",
        "IOTMQ_DATA": "there",
    }
    config = load_config(file, environment=environment, assignments=["http.listen_port=3"])
    assert (config.broker.name, config.broker.idle_s) == ("variable", 7.0)
    assert config.http.listen_port == 3
    assert config.broker.registries == ("a:1", "b:2")
    assert config.mqtt.authentication.allow_anonymous is True
    assert config.data == "there"
    assert load_config(file, environment=environment, data="here").data == "here"


def test_variables_that_name_no_setting() -> None:
    others = ("IOTMQ_INTEROP", "IOTMQ", "PATH", "iotmq_mqtt__name", "IOTMQ_")
    assert load_config(environment=dict.fromkeys(others, "x")) == Config()
    with pytest.raises(ConfigError) as refused:
        load_config(environment={"IOTMQ_MQTT__LISTEN_PROT": "1", "IOTMQ_HTTP__LISTEN_PORT": "many"})
    assert "mqtt.listen_prot (environment variable IOTMQ_MQTT__LISTEN_PROT) is unknown" in str(refused.value)
    assert "did you mean mqtt.listen_port?" in str(refused.value)
    assert "http.listen_port" in str(refused.value)
    assert "environment variable IOTMQ_HTTP__LISTEN_PORT" in str(refused.value)
    with pytest.raises(ConfigError, match=r"nosuch \(environment variable IOTMQ_NOSUCH__PORT\) is unknown"):
        load_config(environment={"IOTMQ_NOSUCH__PORT": "1"})
    with pytest.raises(ConfigError, match="data is not a section"):
        load_config(environment={"IOTMQ_DATA": "d", "IOTMQ_DATA__X": "1"})


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("broker.name=b7", "b7"),
        ("broker.name=7", "7"),
        ("broker.name=true", "true"),
        ('broker.name="b7"', "b7"),
        ("broker.name='b7'", "b7"),
        ("broker.listen_host=0.0.0.0", "0.0.0.0"),
        ("broker.auto_create_topics=false", False),
        ("broker.idle_s=5", 5.0),
        ("broker.listen_port=10_912", 10912),
        ("broker.registries=a:1,b:2", ("a:1", "b:2")),
        ("broker.registries=a:1", ("a:1",)),
        ('broker.registries=["a:1", "b:2"]', ("a:1", "b:2")),
        ("broker.registries=", ()),
        ("log.level=error", "error"),
    ],
)
def test_an_assignment_is_read_as_its_setting_needs_it(assignment: str, expected: object) -> None:
    config = load_config(assignments=[assignment])
    section, key = assignment.split("=")[0].split(".")
    assert getattr(getattr(config, section), key) == expected


def test_routes_can_be_assigned() -> None:
    config = load_config(assignments=['mqtt.routes=[{filter = "a/+", topic = "a"}]'])
    assert config.mqtt.routes[0].filter == "a/+"


def test_an_unknown_setting_is_refused_with_the_nearest_one_and_its_line(tmp_path: Path) -> None:
    text = refusal("[http]\n\nlisten_prot = 8081\n", tmp_path)
    assert "http.listen_prot" in text
    assert "line 3" in text
    assert "did you mean http.listen_port?" in text
    assert "listen_host" in text


@pytest.mark.parametrize("assignment", ["htpp.listen_port=1", "nothing.at.all=1"])
def test_an_unknown_section_is_refused(assignment: str) -> None:
    text = refusal(assignments=[assignment])
    assert f"{assignment.split('.')[0]} (--set) is unknown" in text
    assert "name it SECTION.KEY; the sections are: store, broker" in text


def test_an_unknown_key_of_a_route_is_refused(tmp_path: Path) -> None:
    text = refusal(ROUTES + "queue = 3\n", tmp_path)
    assert "mqtt.routes[1].queue" in text
    assert "line 13" in text


def test_a_missing_key_of_a_route_is_named(tmp_path: Path) -> None:
    text = refusal('[[mqtt.routes]]\nfilter = "a"\n', tmp_path)
    assert "mqtt.routes[0]" in text
    assert "a route has a topic, or drop = true" in text
    assert "mqtt.routes[0].filter is missing" in refusal('[[mqtt.routes]]\ntopic = "T"\n', tmp_path)


@pytest.mark.parametrize(("port", "is_taken"), [(0, True), (65_535, True), (65_536, False), (-1, False)])
def test_a_port_is_taken_within_its_bounds(port: int, is_taken: bool) -> None:
    if is_taken:
        assert load_config(assignments=[f"http.listen_port={port}"]).http.listen_port == port
    else:
        text = refusal(assignments=[f"http.listen_port={port}"])
        assert f"http.listen_port = {port} (--set) is refused" in text
        assert "an integer from 0 to 65,535; default 8080" in text
        assert "TCP port of /metrics" in text


@pytest.mark.parametrize(
    ("assignment", "allowed"),
    [
        ("log.level=loud", '"debug", "info", "warning" or "error"'),
        ("broker.auto_create_topics=yes", "true or false"),
        ("http.listen_port=eighty", "an integer"),
        ("http.listen_host=", "text, not empty"),
        ("data=", "text, not empty"),
        ("broker.registries=nowhere", "a list"),
    ],
)
def test_a_bad_value_says_what_is_allowed(assignment: str, allowed: str) -> None:
    text = refusal(assignments=[assignment])
    assert assignment.split("=")[0] + " = " in text
    assert allowed in text


def test_everything_wrong_is_said_at_once(tmp_path: Path) -> None:
    text = refusal('[http]\nlisten_port = "x"\nwrong = 1\n[log]\nformat = "xml"\n[new]\n', tmp_path)
    for name in ("http.listen_port", "http.wrong", "log.format", "new is unknown"):
        assert name in text.replace(f" ({tmp_path / 'gateway.toml'} line 6)", "")


def test_a_section_has_to_be_a_table(tmp_path: Path) -> None:
    assert "http" in refusal("http = 8080\n", tmp_path)
    assert "has to be a table" in refusal("http = 8080\n", tmp_path)
    assert "not a section" in refusal("http = 8080\n", tmp_path, assignments=["http.listen_port=1"])


@pytest.mark.parametrize("assignment", ["", "=", "http.listen_port", "=5"])
def test_an_assignment_without_a_name_or_value_is_refused(assignment: str) -> None:
    assert "section.key=value" in refusal(assignments=[assignment])


def test_a_file_that_is_missing_broken_or_no_text_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml cannot be read"):
        load_config(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)
    assert "gateway.toml is not valid TOML" in refusal("[http\n", tmp_path)
    assert "gateway.toml is not valid TOML" in refusal("x = " + "[" * 10_000, tmp_path)
    (tmp_path / "gateway.toml").write_bytes(b"x = '\xff'\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(tmp_path / "gateway.toml")


@pytest.mark.parametrize(("extra", "is_taken"), [(0, True), (1, False)])
def test_a_file_is_read_up_to_its_limit(tmp_path: Path, extra: int, is_taken: bool) -> None:
    file = write(tmp_path, "#" * (CONFIG_FILE_BYTES_MAX + extra))
    if is_taken:
        load_config(file)
    else:
        with pytest.raises(ConfigError, match="more than"):
            load_config(file)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "gateway.example"])
def test_anonymous_mqtt_beyond_loopback_has_to_be_allowed_by_name(host: str) -> None:
    text = refusal(assignments=[f"mqtt.listen_host={host}"])
    assert "mqtt.listen_host" in text
    assert "mqtt.allow_anonymous_remote = true" in text
    config = load_config(assignments=[f"mqtt.listen_host={host}", "mqtt.allow_anonymous_remote=true"])
    assert config.mqtt.listen_host == host


def test_two_listeners_on_one_address_are_refused() -> None:
    text = refusal(assignments=["http.listen_port=1883"])
    assert "http.listen_port = 1883" in text
    assert "mqtt.listen_port" in text
    load_config(assignments=["http.listen_port=0", "mqtt.listen_port=0"])


def test_a_shown_config_reads_back_as_itself(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, ROUTES), assignments=['data=a "b"\\c', "log.format=json"])
    again = config_from_table(tomllib.loads(toml_document(config)))
    assert again == config


def variable(name: str) -> str:
    return "IOTMQ_" + name.upper().replace(".", "__")


def secret_settings(struct: type[msgspec.Struct] = Config, path: str = "") -> Iterator[tuple[str, bool]]:
    """The name of every secret, and whether it is in a list."""
    for setting in settings_of(struct):
        if setting.is_secret:
            yield path + setting.key, False
        elif inner := struct_of(setting.type):
            yield from secret_settings(inner, f"{path}{setting.key}.")
        elif inner := element_struct_of(setting.type):
            for name, _ in secret_settings(inner, f"{path}{setting.key}."):
                yield name, True


SECRETS = [name for name, is_in_list in secret_settings() if not is_in_list]


def test_secrets_are_neither_shown_nor_said() -> None:
    assert {"mqtt.broker_secret_key", "replication.etcd.password", "mqtt.tls_ticket_secret"} <= set(SECRETS)
    config = load_config(environment={variable(name): f"hidden-{name}" for name in SECRETS})
    shown = toml_document(config)
    assert "hidden" not in shown
    assert "hidden" not in repr(config)
    assert shown.count(SECRET_SHOWN) == len(SECRETS)
    assert {secret for _, _, secret in secrets_of(config)} == {f"hidden-{name}" for name in SECRETS}
    # A secret that is not set is seen not to be.
    assert 'broker_secret_key = ""' in toml_document(Config())
    for name in SECRETS:
        text = refusal(environment={variable(name): "hidden" * 20_000})
        assert name in text
        assert "hidden" not in text


def test_who_asks_a_service_is_not_shown() -> None:
    """A URL may have a name and a password in it."""
    url = "https://gateway:hidden@keys.example/set?of=us@here"
    link = {"kind": "http", "name": "keys", "url": url}
    config = config_from_table({"mqtt": {"authentication": {"chain": [link]}}})
    shown = toml_document(config)
    assert "hidden" not in shown
    assert f'"https://{SECRET_SHOWN}@keys.example/set?of=us@here"' in shown


def test_secrets_in_lists_are_hidden_too() -> None:
    token = {"name": "scraper", "token": "hidden-" * 5}
    config = config_from_table({"http": {"tokens": [token]}})
    assert config.http.tokens[0].token == token["token"]
    assert "hidden" not in repr(config) + toml_document(config)
    text = refusal(environment={"IOTMQ_HTTP__TOKENS": '[{name = "a b", token = "hidden-hidden-hidden"}]'})
    assert "http.tokens[0].name" in text
    assert "hidden" not in text


def test_secrets_with_names_are_hidden_and_may_be_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("hidden in a file")
    file.chmod(0o600)
    headers = {"authorization": {"file": str(file)}, "x-key": "hidden here"}
    link = {"kind": "http", "name": "service", "url": "https://service.example.com/", "headers": headers}
    table = {"mqtt": {"authentication": {"chain": [link]}}}
    config = config_from_table(table)
    (made,) = config.mqtt.authentication.chain
    assert made.headers == {"authorization": "hidden in a file", "x-key": "hidden here"}  # type: ignore[union-attr]
    assert "hidden" not in repr(config) + toml_document(config)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(config, enc_hook=str), type=Config)
    hide_secrets(again)
    assert again == config
    assert "hidden" not in repr(again)
    assert [secret for _, _, secret in secrets_of(again)] == ["hidden in a file", "hidden here"]
    headers["authorization"] = {"file": "/nowhere"}
    with pytest.raises(ConfigError, match=r"headers is refused: /nowhere cannot be read"):
        config_from_table(table)


def test_secrets_stay_hidden_behind_every_way_a_config_takes() -> None:
    config = load_config(environment={variable(name): f"hidden-{name}" for name in SECRETS})
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(config, enc_hook=str), type=Config)
    hide_secrets(again)
    assert again == config
    assert "hidden" not in repr(again)
    assert "hidden" not in repr(msgspec.structs.replace(again.broker, name="other"))


@pytest.mark.parametrize("name", SECRETS)
def test_no_secret_stands_on_a_command_line(name: str, tmp_path: Path) -> None:
    text = refusal(assignments=[f"{name}=hidden"])
    assert f"{name} (--set) is refused" in text
    assert "everybody on this machine can read a command line" in text
    assert "hidden" not in text
    file = tmp_path / "secret"
    file.write_text("hidden\n")
    file.chmod(0o600)
    config = load_config(assignments=[f'{name}={{file = "{file}"}}'])
    assert [secret for _, _, secret in secrets_of(config)] == ["hidden"]
    assert load_config(assignments=[f"{name}="]) == Config()


def test_no_secret_of_a_list_stands_on_a_command_line() -> None:
    assignment = 'http.tokens=[{name = "scraper", token = "hidden-hidden-hidden"}]'
    text = refusal(assignments=[assignment])
    assert "http.tokens[0].token is refused: everybody on this machine" in text
    assert "hidden" not in text


def test_a_secret_may_be_said_to_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_text("from a file\n")
    file.chmod(0o600)
    monkeypatch.setenv("ELSEWHERE", "from a variable")
    text = f"""
        [mqtt]
        broker_secret_key = {{file = "{file}"}}
        [broker]
        registry_secret_key = {{env = "ELSEWHERE"}}
        [replication]
        secret_key = {{command = ["echo", "from a command"]}}
    """
    config = load_config(write(tmp_path, text))
    assert config.mqtt.broker_secret_key == "from a file"
    assert config.broker.registry_secret_key == "from a variable"
    assert config.replication.secret_key == "from a command"
    again = load_config(environment={"IOTMQ_MQTT__BROKER_SECRET_KEY": f'{{file = "{file}"}}'})
    assert again.mqtt.broker_secret_key == "from a file"


def test_a_place_where_no_secret_is_is_named_with_its_setting(tmp_path: Path) -> None:
    text = refusal('[mqtt]\nbroker_secret_key = {file = "/nowhere"}\n', tmp_path)
    assert "mqtt.broker_secret_key" in text
    assert "line 2" in text
    assert "/nowhere cannot be read: No such file or directory" in text
    text = refusal('[mqtt]\nbroker_secret_key = {flie = "/nowhere"}\n', tmp_path)
    assert '{file = "NAME"}' in text


@pytest.mark.parametrize(
    ("http", "words"),
    [
        ({"listen_host": "0.0.0.0"}, "everybody who reaches this address could read the metrics"),
        ({"tls_client_ca_file": "x"}, "nothing is encrypted"),
        ({"tokens": [{"name": "a", "token": "x" * 16}] * 2}, 'has the name "a" twice'),
        (
            {"tokens": [{"name": "a", "token": "x" * (limits.HTTP_TOKEN_CHARACTERS_MIN - 1)}]},
            "tokens[0].token",
        ),
        (
            {
                "tokens": [
                    {"name": f"a{number}", "token": "x" * 16} for number in range(limits.HTTP_TOKENS_MAX + 1)
                ]
            },
            "http.tokens",
        ),
    ],
)
def test_http_settings_that_are_refused(http: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_table({"http": http})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "http",
    [
        {"allow_open_remote": True},
        {"tokens": [{"name": "a", "token": "x" * limits.HTTP_TOKEN_CHARACTERS_MIN}]},
        {"tls_certificate_file": "x", "tls_client_ca_file": "y"},
        {
            "tokens": [{"name": f"a{number}", "token": "x" * 16} for number in range(limits.HTTP_TOKENS_MAX)],
        },
    ],
)
def test_http_beyond_loopback_has_to_be_proved_or_allowed(http: dict[str, object]) -> None:
    assert config_from_table({"http": {"listen_host": "0.0.0.0", **http}})


@pytest.mark.parametrize(
    ("registry", "words"),
    [
        ({"access": "registrations"}, "nobody could prove anything"),
        ({"acl_file": "x"}, "registry.acl_file means nothing"),
        ({"certificate_names": ["x"]}, "registry.certificate_names means nothing"),
        ({"access": "everything", "tls_client_ca_file": "x"}, "without a certificate nothing is encrypted"),
    ],
)
def test_registry_settings_that_contradict_each_other(registry: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from_table({"registry": registry})
    assert words in str(caught.value)


def test_every_setting_has_a_meaning_and_a_valid_default() -> None:
    structs: list[tuple[str, type[msgspec.Struct]]] = [("", Config)]
    while structs:
        path, struct = structs.pop()
        for setting in settings_of(struct):
            assert setting.description.endswith("."), f"{path}{setting.key} needs a description"
            if inner := struct_of(setting.type) or element_struct_of(setting.type):
                structs.append((f"{path}{setting.key}.", inner))
            structs += [(f"{path}{setting.key}.", one) for one in tagged_structs_of(setting.type).values()]
    assert config_from_table(msgspec.to_builtins(Config())) == Config()


def test_a_setting_that_is_gone_is_told_and_not_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "iotmq.toml"
    file.write_text("[store]\nlatest_enabled = true\n")
    assert load_config(file) == load_config()
    (message,) = caplog.messages
    assert message.startswith(f"store.latest_enabled ({file} line 2) has no effect: ")


def test_secrets_by_name_are_read_and_hidden_each(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("Bearer of-mine\n")
    (tmp_path / "key").chmod(0o600)
    link = {"kind": "http", "name": "own", "url": "http://127.0.0.1:1/"}
    named = {"authorization": {"file": str(tmp_path / "key")}, "x-tenant": "hidden"}
    config = config_from_table({"mqtt": {"authentication": {"chain": [{**link, "headers": named}]}}})
    assert [text for _, _, text in secrets_of(config)] == ["Bearer of-mine", "hidden"]
    hide_secrets(config)
    assert [text for _, _, text in secrets_of(config)] == ["Bearer of-mine", "hidden"]
    assert "of-mine" not in repr(config)
    assert "hidden" not in repr(config)
    for wrong in ({f"h{number}": "x" for number in range(17)}, {"authorization": 1}, "Bearer of-mine"):
        with pytest.raises(ConfigError, match=r"chain\[0\]\.headers") as caught:
            config_from_table({"mqtt": {"authentication": {"chain": [{**link, "headers": wrong}]}}})
        assert "of-mine" not in str(caught.value)


def test_a_chain_of_tables_of_several_kinds_reads_back_without_its_secrets() -> None:
    chain = [
        {"kind": "users", "name": "users", "file": "x", "when_certificate": False},
        {"kind": "http", "name": "own", "url": "https://a/b", "headers": {"authorization": "Bearer of-mine"}},
        {"kind": "certificate", "name": "certificates", "attributes": {"site": "{l}"}},
    ]
    config = config_from_table({"mqtt": {"authentication": {"chain": chain}}})
    shown = toml_document(config)
    assert "of-mine" not in shown
    table = tomllib.loads(shown)
    links = table["mqtt"]["authentication"]["chain"]
    assert [link["kind"] for link in links] == ["users", "http", "certificate"]
    assert links[1]["headers"] == SECRET_SHOWN
    links[1]["headers"] = {"authorization": "Bearer of-mine"}
    assert config_from_table(table) == config
    for_workers = msgspec.msgpack.encode(config, enc_hook=str)
    assert msgspec.msgpack.decode(for_workers, type=Config) == config


def test_a_wrong_value_in_a_chain_is_named_with_its_place_and_without_its_secret(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(
        '[[mqtt.authentication.chain]]\nkind = "http"\nname = "own"\nurl = "https://a"\n'
        'headers = ["of-mine"]\ntimeout_s = 0\n'
    )
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    text = str(caught.value)
    assert "mqtt.authentication.chain[0].timeout_s = 0" in text
    assert "line 6" in text
    assert "of-mine" not in text
