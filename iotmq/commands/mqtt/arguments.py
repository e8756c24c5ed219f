"""The options that `pub`, `sub` and `rr` share. Names and letters are those of Mosquitto's clients.

Nothing is loaded for them that other commands do not need: `iotmq.commands.mqtt.options` reads what they say.
"""

from __future__ import annotations

import argparse
from typing import Final

PROTOCOL_LEVEL_5: Final = 5
_VERSIONS: Final = {
    "31": 3,
    "311": 4,
    "5": 5,
    "mqttv31": 3,
    "mqttv311": 4,
    "mqttv5": 5,
    "3.1": 3,
    "3.1.1": 4,
    "5.0": 5,
}
# A session expiry for ever.
NEVER: Final = 0xFFFFFFFF


def add_shared_options(command: argparse.ArgumentParser) -> None:
    """Everything about the connection. `-h` is the host, as people are used to; help is `--help`."""
    command.add_argument("--help", action="help", help="show this help and exit")
    server = command.add_argument_group("server")
    server.add_argument("-h", "--host", metavar="HOST", help="(127.0.0.1)")
    server.add_argument("-p", "--port", type=_port, metavar="PORT", help="(1883, or 8883 with TLS)")
    server.add_argument("--unix", metavar="PATH", help="a Unix socket instead of host and port")
    server.add_argument(
        "-L",
        "--url",
        metavar="URL",
        help="mqtt(s)://[USER[:PASSWORD]@]HOST[:PORT]/TOPIC, or ws(s)://HOST[:PORT]/PATH",
    )
    server.add_argument(
        "-V",
        "--protocol-version",
        dest="level",
        type=_version,
        default=PROTOCOL_LEVEL_5,
        metavar="31|311|5",
        help="(5)",
    )
    server.add_argument("-k", "--keepalive", type=_u16, default=60, metavar="SECONDS", help="(60)")
    server.add_argument(
        "--no-reconnect",
        action="store_true",
        help="fail when the connection is lost, instead of making it anew",
    )
    _add_session_options(command)
    _add_account_options(command)
    _add_tls_options(command)
    _add_will_options(command)
    command.add_argument(
        "-D",
        "--property",
        dest="properties",
        action="append",
        default=[],
        nargs="+",
        metavar="WORD",
        help="-D connect|publish|subscribe|unsubscribe|will PROPERTY VALUE, or ... user-property NAME VALUE",
    )
    command.add_argument("--quiet", action="store_true", help="print no error messages")
    command.add_argument(
        "-W",
        "--timeout",
        dest="timeout_s",
        type=_seconds,
        metavar="SECONDS",
        help="end after this time, with 27",
    )


def _add_session_options(command: argparse.ArgumentParser) -> None:
    session = command.add_argument_group("session")
    name = session.add_mutually_exclusive_group()
    name.add_argument("-i", "--id", dest="client_id", metavar="ID", help="client id (one made by chance)")
    name.add_argument("-I", "--id-prefix", metavar="PREFIX", help="client id is this and the process id")
    session.add_argument(
        "-c",
        "--disable-clean-session",
        dest="is_kept",
        action="store_true",
        help="keep the session of this id",
    )
    session.add_argument(
        "-x",
        "--session-expiry-interval",
        dest="session_expiry_s",
        type=_expiry,
        metavar="SECONDS",
        help="how long the server keeps the session; -1 for ever (with -c), else none is left behind",
    )
    session.add_argument(
        "-M",
        "--max-inflight",
        dest="in_flight_max",
        type=_in_flight,
        metavar="N",
        help="messages without answer",
    )


def _add_account_options(command: argparse.ArgumentParser) -> None:
    account = command.add_argument_group("account")
    account.add_argument("-u", "--username", metavar="NAME")
    account.add_argument(
        "--auth-method",
        choices=("SCRAM-SHA-256",),
        help="prove the password without sending it, and have the server prove that it knows it",
    )
    secret = account.add_mutually_exclusive_group()
    secret.add_argument("-P", "--pw", "--password", dest="password", help="others can see it: prefer a file")
    secret.add_argument("--password-file", metavar="FILE", help="its first line is the password; - is stdin")
    secret.add_argument("--ask-password", action="store_true", help="ask for it on the terminal")


def _add_tls_options(command: argparse.ArgumentParser) -> None:
    tls = command.add_argument_group("TLS (any of these switches it on)")
    tls.add_argument("--cafile", metavar="FILE", help="certificates to trust (those of the machine)")
    tls.add_argument("--capath", metavar="DIR")
    tls.add_argument("--cert", metavar="FILE", help="our certificate")
    tls.add_argument("--key", metavar="FILE", help="its key")
    tls.add_argument("--insecure", action="store_true", help="accept any server certificate")
    tls.add_argument("--tls-alpn", metavar="PROTOCOL")
    tls.add_argument(
        "--tls-version", choices=("tlsv1.2", "tlsv1.3"), help="the oldest that will do (tlsv1.2)"
    )
    tls.add_argument("--tls", "--tls-use-os-certs", dest="tls", action="store_true", help="just TLS")


def _add_will_options(command: argparse.ArgumentParser) -> None:
    will = command.add_argument_group("will")
    will.add_argument("--will-topic", metavar="TOPIC")
    will.add_argument("--will-payload", metavar="TEXT")
    will.add_argument("--will-qos", type=int, choices=(0, 1, 2), metavar="0|1|2")
    will.add_argument("--will-retain", action="store_true")


# Types of options -------------------------------------------------------------------------------------


def _between(text: str, least: int, most: int) -> int:
    number = int(text)
    if not least <= number <= most:
        raise argparse.ArgumentTypeError(f"{text} is not between {least} and {most}")
    return number


def _port(text: str) -> int:
    return _between(text, 1, 65_535)


def _u16(text: str) -> int:
    return _between(text, 0, 65_535)


def _in_flight(text: str) -> int:
    return _between(text, 1, 65_535)


def _expiry(text: str) -> int:
    return NEVER if text in ("-1", "\u221e") else _between(text, 0, NEVER)


def _version(text: str) -> int:
    try:
        return _VERSIONS[text.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{text} is none of 31, 311 and 5") from None


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"invalid number of seconds: {text}")
    return number
