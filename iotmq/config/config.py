"""The one config: typed sections from a TOML file, environment and `--set`, refused by name when wrong."""

from __future__ import annotations

import logging
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol, get_args, get_origin

import msgspec

from iotmq import limits
from iotmq.addresses import is_loopback
from iotmq.alarms.settings import AlarmSettings
from iotmq.broker.settings import BrokerSettings
from iotmq.config.setting_text import (
    Setting,
    allowed_values,
    annotated_type,
    element_struct_of,
    settings_of,
    struct_of,
    tag_field_of,
    tagged_structs_of,
    toml_value,
)
from iotmq.console.settings import HttpSettings
from iotmq.errors import ConfigError
from iotmq.history.settings import HistorySettings
from iotmq.log_format import LogSettings
from iotmq.mqtt_bridge.settings import BridgeSettings
from iotmq.mqtt_front.settings.authentication import NOBODY
from iotmq.mqtt_front.settings.listeners import TCP_NAME, WORKER_PLACE, ListenerSettings
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.mqtt_front.settings.plugins import AmqttLinkSettings
from iotmq.registry.settings import RegistrySettings
from iotmq.replication.settings import ReplicationSettings
from iotmq.secret_text import SECRET_SHOWN, hidden, read_secret
from iotmq.spelling import did_you_mean
from iotmq.store.settings import StoreSettings
from iotmq.telemetry.settings import TelemetrySettings

CONFIG_FILE_BYTES_MAX: Final = 1024 * 1024
# Settings of earlier versions that do nothing any more: told, and not refused.
REMOVED: Final = {"store.latest_enabled": "the last record of every MQTT topic is not kept any more"}
logger = logging.getLogger(__name__)

ON_COMMAND_LINE: Final = "--set"
_VARIABLE: Final = re.compile(r"IOTMQ_(DATA|[A-Z0-9]+(?:_[A-Z0-9]+)*(?:__[A-Z0-9]+(?:_[A-Z0-9]+)*)+)")


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set, for one role or for all of them in one process."""

    data: Annotated[str, msgspec.Meta(min_length=1)] = "data"
    """Directory of the log and everything derived from it. One process at a time, on a local disk with an
    honest fdatasync."""
    store: StoreSettings = StoreSettings()
    """The log on disk: sizes, durability, retention."""
    broker: BrokerSettings = BrokerSettings()
    """The native port, topics, groups and holds."""
    registry: RegistrySettings = RegistrySettings()
    """Where brokers announce themselves and clients ask."""
    mqtt: MqttSettings = MqttSettings()
    """The MQTT listeners, their limits and the routes."""
    bridges: Annotated[tuple[BridgeSettings, ...], msgspec.Meta(max_length=limits.BRIDGES_MAX)] = ()
    """Other MQTT brokers that get messages of the log, or whose messages come here."""
    replication: ReplicationSettings = ReplicationSettings()
    """Several brokers with one name, of which one is master at a time."""
    http: HttpSettings = HttpSettings()
    """The operator's port: metrics, health, readiness."""
    history: HistorySettings = HistorySettings()
    """History of the metrics of each process."""
    alarms: AlarmSettings = AlarmSettings()
    """When something is an alarm, and who is told."""
    log: LogSettings = LogSettings()
    """The log on standard error."""
    telemetry: TelemetrySettings = TelemetrySettings()
    """Export of metrics and traces by OpenTelemetry."""


def load_config(
    file: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    assignments: Iterable[str] = (),
    data: str | None = None,
) -> Config:
    """Read `file`, then `environment`, then `assignments` ("section.key=value", later ones win), then `data`.

    The variable of the setting `section.key` is IOTMQ_SECTION__KEY, with two underscores for each dot; that
    of `data` is IOTMQ_DATA. Other names without two underscores are not settings.
    Raises ConfigError that names every wrong setting, where it was set, what it means and what is allowed.
    """
    table, origins = ({}, {}) if file is None else _read_file(file)
    for name, text in sorted((environment or {}).items()):
        if (path := _setting_of_variable(name)) is not None:
            _assign(table, origins, path, text, origin=f"environment variable {name}")
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"--set {assignment}: the form is section.key=value")
        _assign(table, origins, path.strip(), text, origin=ON_COMMAND_LINE)
    if data is not None:
        table["data"] = data
        origins["data"] = "--data"
    return config_from_table(table, origins)


def load_sections(file: Path, sections: Mapping[str, type[msgspec.Struct]]) -> dict[str, msgspec.Struct]:
    """Read a file with other settings than those of the gateway: each section is a struct of its own.

    The one named "" has what stands outside of the others. Raises ConfigError, as `load_config` does.
    """
    table, origins = _read_file(file)
    problems: list[str] = []
    read: dict[str, msgspec.Struct] = {}
    for name, struct in sorted(sections.items(), reverse=True):
        found = _struct(struct, table.pop(name, {}) if name else table, name, origins, problems)
        if found is not None:
            read[name] = found
    if problems:
        raise ConfigError("\n".join(problems))
    return read


def is_variable_of_setting(name: str) -> bool:
    """Return whether an environment variable is for a setting."""
    return _VARIABLE.fullmatch(name) is not None


def config_from_table(table: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> Config:
    """A config from plain tables. `origins` says where a setting was set, for the error text."""
    problems: list[str] = []
    config = _struct(Config, table, "", origins or {}, problems)
    if not problems:
        assert isinstance(config, Config)
        problems = list(_contradictions(config))
    if problems:
        raise ConfigError("\n".join(problems))
    assert isinstance(config, Config)
    return config


# Reading ----------------------------------------------------------------------------------------------


def _read_file(file: Path) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        with file.open("rb") as stream:
            content = stream.read(CONFIG_FILE_BYTES_MAX + 1)
        if len(content) > CONFIG_FILE_BYTES_MAX:
            raise ConfigError(f"{file} has more than {CONFIG_FILE_BYTES_MAX:,} bytes")
        text = content.decode()
        return tomllib.loads(text), _line_origins(file, text)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text (byte {error.start})") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from error


def _line_origins(file: Path, text: str) -> dict[str, str]:
    """Return where each `key = value` line of the file stands; good enough for error texts."""
    origins: dict[str, str] = {}
    section = ""
    counts: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*(\[\[?)\s*([\w.-]+)\s*\]", line):
            section = header[2]
            if header[1] == "[[":
                counts[section] = counts.get(section, -1) + 1
                section = f"{section}[{counts[section]}]"
            origins.setdefault(section, f"{file} line {number}")
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            origins.setdefault(f"{section}.{key[1]}".lstrip("."), f"{file} line {number}")
    return origins


def _setting_of_variable(name: str) -> str | None:
    """The path of the setting a variable of the environment is for; None for every other variable."""
    if found := _VARIABLE.fullmatch(name):
        return found[1].lower().replace("__", ".")
    if name.startswith("IOTMQ_") and "__" in name:
        raise ConfigError(
            f"environment variable {name} is refused: the form is IOTMQ_SECTION__KEY, in capitals and with "
            "two underscores between section and key"
        )
    return None


def _assign(table: dict[str, Any], origins: dict[str, str], path: str, text: str, *, origin: str) -> None:
    """Put the value that `text` means for the setting of that path into the table; its type decides."""
    origins[path] = origin
    *sections, key = path.split(".")
    kind: Any = Config
    for depth, section in enumerate(sections, 1):
        # For a section that is unknown as a whole.
        origins.setdefault(".".join(sections[:depth]), origin)
        setting = _setting_of(kind, section)
        kind = None if setting is None else setting.type
        inner = table.setdefault(section, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{path} ({origin}): {section} is not a section")
        table = inner
    setting = _setting_of(kind, key)
    value = _parse(text.strip(), None if setting is None else setting.type)
    if setting is not None and setting.is_secret and (said := _table_in(text)) is not None:
        value = said
    table[key] = value


def _setting_of(kind: Any, key: str) -> Setting | None:
    """Return a key of a struct type; None for keys that are unknown, which are refused later."""
    if struct := struct_of(kind):
        for setting in settings_of(struct):
            if setting.key == key:
                return setting
    return None


def _table_in(text: str) -> dict[str, Any] | None:
    """Return the inline table that the text is, which says where a secret is; None for another text."""
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _parse(text: str, kind: Any) -> Any:
    """Return the value that `text` means for a setting of type `kind`; text that fits nothing stays text."""
    try:
        value = tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except (tomllib.TOMLDecodeError, RecursionError):
        value = text
    is_list = get_origin(kind) in (tuple, list)
    if is_list and not isinstance(value, list):
        return [_parse(part.strip(), get_args(kind)[0]) for part in text.split(",") if part.strip()]
    if not is_list and _takes_text(kind) and not isinstance(value, str):
        return text
    return value


def _takes_text(kind: Any) -> bool:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return all(isinstance(value, str) for value in get_args(kind))
    return kind is str


# Checking ---------------------------------------------------------------------------------------------


def _struct(
    struct: type[msgspec.Struct], table: Any, path: str, origins: Mapping[str, str], problems: list[str]
) -> msgspec.Struct | None:
    """Return the struct that `table` describes. What is wrong goes into `problems`, everything at once."""
    settings = {setting.key: setting for setting in settings_of(struct)}
    if not isinstance(table, Mapping):
        problems.append(f"{path}{_at(path, origins)} has to be a table, not {toml_value(table)}")
        return None
    before = len(problems)
    values: dict[str, Any] = {}
    for key, value in table.items():
        inner_path = f"{path}.{key}".lstrip(".")
        setting = settings.get(key)
        if inner_path in REMOVED:
            at = _at(inner_path, origins)
            logger.warning("%s%s has no effect: %s; delete it", inner_path, at, REMOVED[inner_path])
        elif setting is None:
            problems.append(_unknown(inner_path, key, struct, path, origins))
        else:
            values[key] = _value(setting, value, inner_path, origins, problems)
    for key, setting in settings.items():
        if setting.default is msgspec.NODEFAULT and key not in table:
            inner_path = f"{path}.{key}".lstrip(".")
            problems.append(f"{inner_path} is missing{_at(path, origins)}{_meaning(setting)}")
    if len(problems) > before:
        return None
    try:
        return struct(**values)
    except (ValueError, TypeError) as error:
        problems.append(f"{path or 'the config'}{_at(path, origins)} is refused: {error}")
        return None


def _value(setting: Setting, value: Any, path: str, origins: Mapping[str, str], problems: list[str]) -> Any:
    if setting.is_secret:
        return _secret(setting, value, path, origins, problems)
    if struct := struct_of(setting.type):
        return _struct(struct, value, path, origins, problems)
    if (element := element_struct_of(setting.type)) and isinstance(value, list):
        read = [
            _struct(element, inner, f"{path}[{index}]", origins, problems)
            for index, inner in enumerate(value)
        ]
        if None in read:
            return None
        value = read
    if (tagged := tagged_structs_of(setting.type)) and isinstance(value, list):
        read = [
            _tagged_struct(tagged, inner, f"{path}[{index}]", origins, problems)
            for index, inner in enumerate(value)
        ]
        if None in read:
            return None
        value = read
    try:
        return msgspec.convert(value, annotated_type(setting), strict=True)
    except msgspec.ValidationError:
        shown = toml_value(value)
        if len(shown) > 200:
            shown = shown[:200] + "..."
        problems.append(f"{path} = {shown}{_at(path, origins)} is refused{_meaning(setting)}")
        return None


def _tagged_struct(
    structs: Mapping[str, type[msgspec.Struct]],
    table: Any,
    path: str,
    origins: Mapping[str, str],
    problems: list[str],
) -> msgspec.Struct | None:
    """Return the struct that `table` describes, of those that it says by its tag."""
    (key,) = {tag_field_of(struct) for struct in structs.values()}
    assert key is not None, "structs of a union have tags"
    tag = table.get(key) if isinstance(table, Mapping) else None
    if not isinstance(tag, str) or tag not in structs:
        shown = "missing" if tag is None else f"{toml_value(tag)}, which is unknown"
        known = ", ".join(map(toml_value, structs))
        problems.append(f"{path}.{key}{_at(path, origins)} is {shown}\n    allowed: {known}")
        return None
    inner = {name: value for name, value in table.items() if name != key}
    return _struct(structs[tag], inner, path, origins, problems)


def _secret(setting: Setting, value: Any, path: str, origins: Mapping[str, str], problems: list[str]) -> Any:
    """Return the secret, or a table of several that have names."""
    at = _at(path, origins)
    is_on_command_line = _origin_of(path, origins) == ON_COMMAND_LINE
    try:
        if get_origin(setting.type) is dict and isinstance(value, Mapping):
            value = {
                name: _secret_text(inner, path, is_on_command_line=is_on_command_line)
                for name, inner in value.items()
            }
        else:
            value = _secret_text(value, path, is_on_command_line=is_on_command_line)
        read = msgspec.convert(value, annotated_type(setting), strict=True)
    except ConfigError as error:
        problems.append(f"{path}{at} is refused: {error}\n    meaning: {setting.description}")
        return None
    except msgspec.ValidationError:
        problems.append(f"{path} = {SECRET_SHOWN}{at} is refused{_meaning(setting)}")
        return None
    return hidden(read)


def _secret_text(value: Any, path: str, *, is_on_command_line: bool) -> Any:
    """Return the text of a secret, as far as it is one. ConfigError for one that cannot be had."""
    if isinstance(value, Mapping):
        # As plain text: what it is converted to is another object.
        return str(read_secret(value))
    if value and is_on_command_line:
        raise ConfigError(
            "everybody on this machine can read a command line. Say where the secret is instead: --set "
            f'\'{path}={{file = "NAME"}}\', or {{env = "VARIABLE"}}, or {{command = ["PROGRAM"]}}'
        )
    if isinstance(value, str) and len(value.encode()) > limits.SECRET_BYTES_MAX:
        raise ConfigError(f"it has more than {limits.SECRET_BYTES_MAX} bytes")
    return value


def _origin_of(path: str, origins: Mapping[str, str]) -> str | None:
    """Return where a setting, or the nearest part around it that is known, was set."""
    while path and path not in origins:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return origins.get(path)


def _meaning(setting: Setting) -> str:
    has_default = setting.default is not msgspec.NODEFAULT and setting.default is not None
    default = f"; default {toml_value(setting.default)}" if has_default else ""
    return (
        f"\n    allowed: {allowed_values(setting.type, setting.meta)}{default}"
        f"\n    meaning: {setting.description}"
    )


def _unknown(
    path: str, key: str, struct: type[msgspec.Struct], section: str, origins: Mapping[str, str]
) -> str:
    known = [setting.key for setting in settings_of(struct)]
    hint = did_you_mean(key, {name: f"{section}.{name}".lstrip(".") for name in known})
    whole = "name it SECTION.KEY; the sections are" if struct is Config else "there are"
    where = f"[{section}] has" if section else whole
    names = [name for name in known if struct is not Config or name != "data"]
    return f"{path}{_at(path, origins)} is unknown{hint}\n    {where}: {', '.join(names)}"


def _at(path: str, origins: Mapping[str, str]) -> str:
    origin = origins.get(path)
    return f" ({origin})" if origin else ""


def _contradictions(config: Config) -> Iterable[str]:
    """Find combinations of settings that are refused."""
    yield from _listener_contradictions(config.mqtt)
    yield from _chain_contradictions(config.mqtt)
    yield from config.replication.problems()
    yield from config.registry.problems()
    yield from config.alarms.problems()
    mode = config.replication.mode
    if mode == "elected" and not config.broker.listen_port:
        yield "broker.listen_port = 0 is refused: other members reach this one by replication.members"
    # Replication has the port behind it, and may have the one two before.
    if mode == "static" and not 3 <= config.broker.listen_port < 65_535:
        yield f"broker.listen_port = {config.broker.listen_port} is refused with replication.mode = static"
    longest = f"{config.mqtt.name}-{config.mqtt.workers}".encode()
    if config.mqtt.workers > 1 and len(longest) > limits.FRONT_END_NAME_BYTES_MAX:
        yield (
            f"mqtt.name is refused: with the numbers of {config.mqtt.workers} workers behind it, it has more "
            f"than {limits.FRONT_END_NAME_BYTES_MAX} bytes"
        )
    taken: dict[tuple[str, int], str] = {}
    for place, listener in _mqtt_places(config.mqtt):
        if listener.is_on_network:
            yield from _taken_twice(taken, place, listener)
    yield from _http_contradictions(config.http)
    for section in ("registry", "broker", "http"):
        yield from _taken_twice(taken, section, getattr(config, section))


def _http_contradictions(http: HttpSettings) -> Iterable[str]:
    if http.tls_client_ca_file and not http.tls_certificate_file:
        yield "http.tls_client_ca_file is refused: without http.tls_certificate_file nothing is encrypted"
    if not is_loopback(http.listen_host) and not http.has_to_be_proved and not http.allow_open_remote:
        yield (
            f"http.listen_host = {toml_value(http.listen_host)} is refused: everybody who reaches this "
            "address could read the metrics\n"
            "    allowed: a loopback address; [[http.tokens]] or http.tls_client_ca_file, so that who asks "
            "has to show a token or a certificate; or http.allow_open_remote = true where that is meant"
        )
    names = [token.name for token in http.tokens]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"http.tokens has the name {toml_value(name)} twice"


class _Listening(Protocol):
    """Settings of something that listens."""

    @property
    def listen_host(self) -> str: ...

    @property
    def listen_port(self) -> int: ...


def _taken_twice(taken: dict[tuple[str, int], str], section: str, settings: _Listening) -> Iterable[str]:
    """A complaint when the section has the address of another one in `taken`, where it stands afterwards."""
    address = (settings.listen_host, settings.listen_port)
    if settings.listen_port and address in taken:
        yield (
            f"{section}.listen_port = {settings.listen_port} is refused: {taken[address]}.listen_port "
            "has the same address"
        )
    taken.setdefault(address, section)


def _mqtt_places(mqtt: MqttSettings) -> Iterable[tuple[str, ListenerSettings]]:
    """Yield every listener for devices with the path of its settings."""
    first = 1 if mqtt.tcp_enabled else 0
    for index, listener in enumerate(mqtt.all_listeners):
        yield "mqtt" if index < first else f"mqtt.listeners[{index - first}]", listener


def _chain_contradictions(mqtt: MqttSettings) -> Iterable[str]:
    for problem in mqtt.authentication.problems:
        yield f"mqtt.authentication.{problem} is refused"
    names = {link.name for link in mqtt.authentication.chain}
    asking = [link.name for link in mqtt.authentication.chain if isinstance(link, AmqttLinkSettings)]
    if asking and not mqtt.plugins.amqtt:
        yield (
            f"mqtt.authentication.chain with the link {asking[0]} is refused: it asks plug-ins, and there is "
            "none in [[mqtt.plugins.amqtt]]"
        )
    client_ids = mqtt.authentication.client_ids
    for place, listener in _mqtt_places(mqtt):
        has_users = listener.client_identity_is_user and mqtt.has_to_be_proved_at(listener)
        if client_ids != "any" and not mqtt.asks_at(listener.name) and not has_users:
            nobody = f"{place}.chain = {toml_value([NOBODY])}"
            where = nobody if listener.chain == (NOBODY,) else f"neither a users_file nor a chain at {place}"
            yield (
                f"mqtt.authentication.client_ids = {toml_value(client_ids)} is refused with {where}: who is "
                "asked nothing there could have a user's"
            )
        chain = listener.chain or ()
        unknown = [name for name in chain if name not in names] if chain != (NOBODY,) else []
        if unknown:
            yield (
                f"{place}.chain = {toml_value(chain)} is refused: there is no link {unknown[0]}\n"
                f"    allowed: {', '.join(sorted(names)) or 'nothing, without mqtt.authentication.chain'}"
            )


def _listener_contradictions(mqtt: MqttSettings) -> Iterable[str]:
    if not mqtt.tcp_enabled and not mqtt.listeners:
        yield "mqtt.tcp_enabled = false is refused: without mqtt.listeners no device could connect"
    names: dict[str, str] = {TCP_NAME: "mqtt.listen_port"}
    for place, listener in _mqtt_places(mqtt):
        is_proved = mqtt.has_to_be_proved_at(listener)
        if listener.is_reachable and not mqtt.allow_anonymous_remote and not is_proved:
            what, allowed = f"listen_host = {toml_value(listener.listen_host)}", "a loopback address; "
            if listener.proxy_protocol:
                what, allowed = "proxy_protocol = true", ""
            yield (
                f"{place}.{what} is refused: anybody who reaches "
                f"{'the load balancer' if listener.proxy_protocol else 'this address'} could publish and "
                "subscribe without a name or password\n"
                f"    allowed: {allowed}mqtt.authentication.users_file or a chain, without "
                "allow_anonymous, so that devices have to prove who they are; or "
                "mqtt.allow_anonymous_remote = true where that is meant"
            )
        if (
            listener.transport in ("ws", "wss")
            and is_loopback(listener.listen_host)
            and not listener.allowed_origins
            and not is_proved
        ):
            yield (
                f"{place}.allowed_origins = [] is refused: any page in a browser of this machine could "
                "publish and subscribe without a name or password\n"
                '    allowed: the origins of your pages; ["*"] where all are meant; or '
                "mqtt.authentication.users_file or a chain, without allow_anonymous"
            )
        if place != "mqtt" and listener.name in names:
            yield (
                f"{place}.name = {toml_value(listener.name)} is refused: {names[listener.name]} has that name"
            )
        names.setdefault(listener.name, place)
        if mqtt.workers > 1 and not listener.is_on_network and WORKER_PLACE not in listener.socket_path:
            yield (
                f"{place}.socket_path = {toml_value(listener.socket_path)} is refused: with mqtt.workers "
                f"above 1 it has to have {WORKER_PLACE} in it, because each worker has a socket of its own"
            )
    limited: set[str] = set()
    for number, own in enumerate(mqtt.device_limits.listeners):
        if own.listener not in {listener.name for listener in mqtt.all_listeners} - limited:
            why = "has limits before" if own.listener in limited else "is no listener"
            yield (
                f"mqtt.device_limits.listeners[{number}].listener = {toml_value(own.listener)} is refused: "
                f"{own.listener} {why}"
            )
        limited.add(own.listener)
