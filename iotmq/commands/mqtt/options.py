"""Turn the options of `pub`, `sub` and `rr` into settings of a client."""

from __future__ import annotations

import argparse
import getpass
import os
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from iotmq.commands.mqtt.arguments import NEVER
from iotmq.commands.mqtt.property_options import read_properties
from iotmq.errors import ClientError, ConfigError
from iotmq.mqtt.codec.packets import PROTOCOL_LEVEL_5, Will
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt_client.address import DEFAULT_PORTS, Address, ParsedUrl, parse_url
from iotmq.mqtt_client.scram import ScramAuthenticator
from iotmq.mqtt_client.settings import Authenticator, MqttClientSettings, new_client_id
from iotmq.mqtt_client.tls import TlsOptions

_TLS_VERSIONS: Final = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}
_TEXT_BYTES_MAX: Final = 65_535
# What a topic filter has to keep to, for the texts of errors.
FILTER_RULE: Final = "+ has to be a level of its own, # a level of its own and the last one"
# How long a server keeps the session of a command that has lost its connection, for what is in flight.
_OUTAGE_S: Final = 60


@dataclass(frozen=True, slots=True)
class SharedOptions:
    """Hold the values of the shared options."""

    settings: MqttClientSettings
    properties: dict[str, Properties]
    # The topic of a URL; empty without.
    url_topic: str

    def properties_of(self, command: str) -> Properties:
        return self.properties.get(command, NO_PROPERTIES)


def read_shared_options(options: argparse.Namespace) -> SharedOptions:
    """ConfigError names the option that is wrong, and what to do about it."""
    _check_texts(options)
    properties = read_properties(options.properties)
    if properties and options.level != PROTOCOL_LEVEL_5:
        raise ConfigError("-D: properties are there with MQTT 5: leave -V away")
    server = _server(options)
    session = _session(options, properties.get("connect", NO_PROPERTIES))
    connect = properties.get("connect", NO_PROPERTIES)
    account = _account(options, server)
    try:
        settings = MqttClientSettings(
            address=server.address,
            client_id=_client_id(options),
            protocol_level=options.level,
            clean_session=not options.is_kept,
            session_expiry_s=session.expiry_s,
            ends_session=session.is_ended,
            keep_alive_s=options.keepalive,
            user_name=account.user_name,
            password=account.password,
            authenticator=account.authenticator,
            will=_will(options, properties.get("will", NO_PROPERTIES)),
            connect_properties=Properties(
                user_properties=connect.user_properties,
                request_problem_information=connect.request_problem_information,
                request_response_information=connect.request_response_information,
            ),
            tls=_tls(options),
            reconnects=not options.no_reconnect,
            **_given(
                in_flight_max=options.in_flight_max,
                receive_max=connect.receive_max,
                packet_bytes_max=connect.packet_bytes_max,
                topic_aliases_max=connect.topic_alias_max,
            ),
        )
    except ClientError as error:
        raise ConfigError(str(error)) from None
    return SharedOptions(settings, properties, server.topic)


def _check_texts(options: argparse.Namespace) -> None:
    """Texts of MQTT are UTF-8 and have 65,535 bytes at most; payloads and passwords are bytes."""
    for name, value in vars(options).items():
        if name in ("message", "password", "will_payload", "file"):
            continue
        words = _words(value)
        for word in words:
            try:
                size = len(word.encode())
            except UnicodeEncodeError:
                raise ConfigError(f"{word[:64]!a} is not UTF-8, which texts of MQTT are") from None
            if size > _TEXT_BYTES_MAX:
                raise ConfigError(
                    f"{word[:64]}... has {size} bytes; texts of MQTT have {_TEXT_BYTES_MAX} at most"
                )


def _words(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [word for one in value for word in _words(one)] if isinstance(value, list) else []


def _given(**fields: int | None) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _server(options: argparse.Namespace) -> ParsedUrl:
    """Host, port and the rest, from whichever options say it."""
    if options.url is not None:
        if options.host is not None or options.port is not None or options.unix is not None:
            raise ConfigError("-L says where the server is: leave -h, -p and --unix away")
        try:
            parsed = parse_url(options.url)
        except ClientError as error:
            raise ConfigError(f"-L {error}") from None
        if _wants_tls(options) and not parsed.address.is_secure:
            raise ConfigError(f"-L {options.url}: with TLS it is mqtts:// or wss://")
        return parsed
    if options.unix is not None:
        if options.host is not None or options.port is not None:
            raise ConfigError("--unix says where the server is: leave -h and -p away")
        return ParsedUrl(Address("unix", "", 0, options.unix), None, None, "")
    is_secure = _wants_tls(options) or options.port == DEFAULT_PORTS["mqtts"]
    scheme: Final = "mqtts" if is_secure else "mqtt"
    port = options.port if options.port is not None else DEFAULT_PORTS[scheme]
    return ParsedUrl(Address(scheme, options.host or "127.0.0.1", port), None, None, "")


def _wants_tls(options: argparse.Namespace) -> bool:
    names = ("tls", "cafile", "capath", "cert", "insecure", "tls_alpn", "tls_version")
    return any(getattr(options, name) for name in names)


def _tls(options: argparse.Namespace) -> TlsOptions:
    if options.key is not None and options.cert is None:
        raise ConfigError("--key needs --cert")
    return TlsOptions(
        ca_file=options.cafile,
        ca_directory=options.capath,
        certificate_file=options.cert,
        key_file=options.key,
        is_unverified=options.insecure,
        alpn=(options.tls_alpn,) if options.tls_alpn else (),
        minimum=_TLS_VERSIONS[options.tls_version or "tlsv1.2"],
    )


class _Session(NamedTuple):
    expiry_s: int
    is_ended: bool


def _session(options: argparse.Namespace, connect: Properties) -> _Session:
    """A session that is not to be kept is there for a lost connection all the same, and ended by us."""
    if options.session_expiry_s is not None and connect.session_expiry_s is not None:
        raise ConfigError("-x and -D connect session-expiry-interval say the same: leave one away")
    given = options.session_expiry_s if options.session_expiry_s is not None else connect.session_expiry_s
    if options.level != PROTOCOL_LEVEL_5:
        if given is not None:
            raise ConfigError("-x: session expiry is there with MQTT 5: leave -V away")
        return _Session(0, is_ended=False)
    if given is not None:
        return _Session(given, is_ended=False)
    if options.is_kept:
        return _Session(NEVER, is_ended=False)
    return _Session(_OUTAGE_S, is_ended=True)


def _client_id(options: argparse.Namespace) -> str:
    if options.id_prefix is not None:
        return f"{options.id_prefix}{os.getpid()}"
    if options.client_id is not None:
        return str(options.client_id)
    if options.is_kept:
        raise ConfigError("-c keeps the session of an id: name it with -i")
    return new_client_id()


class _Account(NamedTuple):
    user_name: str | None
    password: bytes | None
    authenticator: Callable[[], Authenticator] | None = None


def _account(options: argparse.Namespace, server: ParsedUrl) -> _Account:
    """With an authentication method CONNECT has neither name nor password: the exchange has."""
    user_name = options.username if options.username is not None else server.user_name
    password = _password(options, server.password)
    if options.auth_method is None:
        return _Account(user_name, password)
    if user_name is None or password is None:
        raise ConfigError("--auth-method needs -u and a password: -P or --password-file")
    if options.level != PROTOCOL_LEVEL_5:
        raise ConfigError("--auth-method is there with MQTT 5: leave -V away")
    try:
        ScramAuthenticator(user_name, password)
    except ClientError as error:
        raise ConfigError(f"-u {user_name}: {error}") from None
    return _Account(None, None, partial(ScramAuthenticator, user_name, password))


def _password(options: argparse.Namespace, of_url: bytes | None) -> bytes | None:
    if options.password is not None:
        return os.fsencode(options.password)
    if options.password_file is not None:
        try:
            if options.password_file == "-":
                return sys.stdin.buffer.readline().rstrip(b"\r\n")
            with Path(options.password_file).open("rb") as file:
                return file.readline().rstrip(b"\r\n")
        except OSError as error:
            raise ConfigError(f"--password-file {options.password_file}: {error.strerror}") from None
    if options.ask_password:
        try:
            return getpass.getpass("Password: ").encode()
        except EOFError:
            raise ConfigError("--ask-password needs a terminal: use --password-file") from None
    return of_url


def _will(options: argparse.Namespace, properties: Properties) -> Will | None:
    if options.will_topic is None:
        has_more = options.will_payload is not None or options.will_qos is not None or options.will_retain
        if has_more or properties is not NO_PROPERTIES:
            raise ConfigError("a will needs --will-topic")
        return None
    return Will(
        options.will_topic,
        os.fsencode(options.will_payload or ""),
        options.will_qos or 0,
        options.will_retain,
        properties,
    )
