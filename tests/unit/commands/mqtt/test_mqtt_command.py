"""Options of `iotmq pub`, `sub` and `rr`: what they come to, what is refused, how messages are written."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from iotmq.commands import cli
from iotmq.commands.mqtt.options import SharedOptions, read_shared_options
from iotmq.commands.mqtt.output_format import compile_format
from iotmq.commands.mqtt.subscribing import Selection, message_writer
from iotmq.errors import ConfigError
from iotmq.mqtt.client.input import ReceivedMessage
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt_client.address import Address


def parse(*words: str) -> argparse.Namespace:
    return cli.parser().parse_args(words)


def shared(*words: str, command: str = "pub") -> SharedOptions:
    needed = ("-n",) if command == "pub" else ()
    return read_shared_options(parse(command, *needed, *words))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What is said about a command line that is wrong."""
    assert cli.main(words) == cli.EXIT_USAGE
    return capsys.readouterr().err


# Where the server is ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "mqtt://127.0.0.1:1883"),
        (("-h", "broker", "-p", "1884"), "mqtt://broker:1884"),
        (("-p", "8883"), "mqtts://127.0.0.1:8883"),
        (("--cafile", "x"), "mqtts://127.0.0.1:8883"),
        (("--insecure", "-p", "1"), "mqtts://127.0.0.1:1"),
        (("--unix", "/run/mqtt.sock"), "unix:/run/mqtt.sock"),
        (("-L", "mqtt://broker/a/b"), "mqtt://broker:1883"),
        (("-L", "mqtts://broker:1/a"), "mqtts://broker:1"),
        (("-L", "ws://broker"), "ws://broker:8083/mqtt"),
        (("-L", "wss://[::1]:443/path?x=1"), "wss://[::1]:443/path?x=1"),
        (("-L", "unix:/run/mqtt.sock"), "unix:/run/mqtt.sock"),
    ],
)
def test_the_server(words: tuple[str, ...], expected: str) -> None:
    assert str(shared(*words).settings.address) == expected


def test_a_url_has_an_account_and_a_topic() -> None:
    found = shared("-L", "mqtt://ann:s%C3%A4cret@broker/a%20b/c")
    assert found.settings.address == Address("mqtt", "broker", 1883)
    assert (found.settings.user_name, found.settings.password) == ("ann", "s\u00e4cret".encode())
    assert found.url_topic == "a b/c"
    # What is said beside it wins.
    assert shared("-L", "mqtt://ann:x@broker/t", "-u", "bob").settings.user_name == "bob"


def test_a_password_comes_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"first line \r\nsecond\n")
    assert shared("-u", "x", "--password-file", str(secret)).settings.password == b"first line "


# Sessions, wills, properties --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "clean", "expiry_s", "is_ended"),
    [
        ((), True, 60, True),
        (("-c", "-i", "x"), False, 0xFFFFFFFF, False),
        (("-c", "-i", "x", "-x", "30"), False, 30, False),
        (("-x", "-1"), True, 0xFFFFFFFF, False),
        (("-x", "0"), True, 0, False),
        (("-D", "connect", "session-expiry-interval", "7"), True, 7, False),
        (("-V", "311"), True, 0, False),
        (("-V", "mqttv31", "-c", "-i", "x"), False, 0, False),
    ],
)
def test_the_session(words: tuple[str, ...], clean: bool, expiry_s: int, is_ended: bool) -> None:
    found = shared(*words).settings
    assert (found.clean_session, found.session_expiry_s, found.ends_session) == (clean, expiry_s, is_ended)


def test_client_ids() -> None:
    assert shared("-i", "me").settings.client_id == "me"
    assert re.fullmatch(r"pre\d+", shared("-I", "pre").settings.client_id)
    assert shared().settings.client_id != shared().settings.client_id


def test_a_will_with_its_properties() -> None:
    found = shared(
        "--will-topic", "w", "--will-payload", "gone", "--will-qos", "2", "--will-retain",
        "-D", "will", "will-delay-interval", "5", "-D", "will", "user-property", "a", "b",
    )  # fmt: skip
    properties = Properties(will_delay_s=5, user_properties=(("a", "b"),))
    assert found.settings.will == Will("w", b"gone", 2, True, properties)


def test_payloads_and_passwords_are_bytes() -> None:
    found = shared("-u", "x", "-P", "\udcff", "--will-topic", "w", "--will-payload", "\udcfe")
    assert found.settings.password == b"\xff"
    assert found.settings.will is not None
    assert found.settings.will.payload == b"\xfe"


def test_properties_go_where_they_belong() -> None:
    found = shared(
        "-D", "connect", "receive-maximum", "7", "-D", "connect", "user-property", "a", "1",
        "-D", "publish", "correlation-data", "\u00e4", "-D", "publish", "user-property", "b", "2",
        "-D", "publish", "user-property", "b", "3", "-D", "publish", "payload-format-indicator", "1",
    )  # fmt: skip
    assert found.settings.receive_max == 7
    assert found.settings.connect_properties == Properties(user_properties=(("a", "1"),))
    assert found.properties_of("publish") == Properties(
        correlation_data="\u00e4".encode(), user_properties=(("b", "2"), ("b", "3")), payload_format=1
    )
    assert found.properties_of("subscribe") == Properties()


def test_the_window_is_what_servers_are_known_to_take() -> None:
    assert [shared("-V", version).settings.window for version in ("311", "5")] == [20, 256]
    assert shared("-V", "311", "-M", "100").settings.window == 100


# What is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("pub", "-m", "x"), "-t"),
        (("pub", "-m", "x", "-t", "a/+"), "-t a/+"),
        (("pub", "-l", "-t", "a", "--repeat", "2"), "--repeat"),
        (("pub", "-f", "/no/such/file", "-t", "a", "-p", "1"), "-f /no/such/file"),
        (("pub", "-n", "-t", "a", "-c"), "-i"),
        (("pub", "-n", "-t", "a", "-L", "mqtt://x", "-p", "1"), "-L"),
        (("pub", "-n", "-t", "a", "-L", "http://x"), "http://x"),
        (("pub", "-n", "-t", "a", "-L", "mqtt://x:y"), "-L"),
        (("pub", "-n", "-t", "a", "-L", "unix:"), "unix"),
        (("pub", "-n", "-t", "a", "-L", "mqtt://x", "--insecure"), "mqtts"),
        (("pub", "-n", "-t", "a", "--unix", "s", "-h", "x"), "--unix"),
        (("pub", "-n", "-t", "a", "--key", "k"), "--cert"),
        (("pub", "-n", "-t", "a", "-P", "x", "-V", "311"), "user name"),
        (("pub", "-n", "-t", "a", "--password-file", "/no/such/file"), "--password-file"),
        (("pub", "-n", "-t", "a", "--will-payload", "x"), "--will-topic"),
        (("pub", "-n", "-t", "a", "-V", "311", "-x", "5"), "-V"),
        (("pub", "-n", "-t", "a", "-V", "311", "-D", "publish", "content-type", "x"), "-V"),
        (("pub", "-n", "-t", "a", "-x", "5", "-D", "connect", "session-expiry-interval", "7"), "-x"),
        (("pub", "-n", "-t", "a", "-D", "publis", "content-type", "x"), "publish"),
        (("pub", "-n", "-t", "a", "-D", "publish", "contenttype", "x"), "content-type"),
        (("pub", "-n", "-t", "a", "-D", "publish"), "content-type"),
        (("pub", "-n", "-t", "a", "-D", "publish", "content-type"), "VALUE"),
        (("pub", "-n", "-t", "a", "-D", "publish", "user-property", "x"), "a name and a value"),
        (("pub", "-n", "-t", "a", "-D", "publish", "message-expiry-interval", "x"), "message-expiry"),
        (("pub", "-n", "-t", "a", "-D", "publish", "payload-format-indicator", "2"), "between 0 and 1"),
        (("pub", "-n", "-t", "a", *("-D", "publish", "content-type", "x") * 2), "once"),
        (("pub", "-n", "-t", "a", "--auth-method", "SCRAM-SHA-256"), "-u"),
        (("pub", "-n", "-t", "a", "--auth-method", "SCRAM-SHA-256", "-u", "x", "-P", "y", "-V", "311"), "-V"),
        (("pub", "-n", "-t", "a\udcff"), "UTF-8"),
        (("pub", "-n", "-t", "a" * 65_536), "65535"),
        (("pub", "-n", "-t", "a", "--will-topic", "\u00e4" * 32_768), "65536 bytes"),
        (("pub", "-n", "-t", "a", "-D", "publish", "content-type", "\udcff"), "UTF-8"),
        (("sub",), "-t"),
        (("sub", "-t", "a/#/b"), "-t a/#/b"),
        (("sub", "-t", "a", "-T", "a+"), "-T a+"),
        (("sub", "-t", "a", "-V", "311", "--no-local"), "--no-local"),
        (("sub", "-t", "a", "-F", "%z"), "%z"),
        (("sub", "-t", "a", "-F", "\\q"), "\\q"),
        (("sub", "-t", "a", "-F", "%@"), "%@"),
        (("sub", "-t", "a", "-D", "subscribe", "subscription-identifier", "0"), "between 1"),
        (("rr", "-t", "a", "-n", "-V", "311"), "-e"),
        (("rr", "-t", "a", "-n", "-e", "a/+"), "-e"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    words: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert named in refused(capsys, *words)


@pytest.mark.parametrize(
    "words",
    [
        ("pub", "-t", "a"),
        ("pub", "-t", "a", "-m", "x", "-n"),
        ("pub", "-t", "a", "-m", "x", "-q", "3"),
        ("pub", "-t", "a", "-n", "-p", "65536"),
        ("pub", "-t", "a", "-n", "-k", "65536"),
        ("pub", "-t", "a", "-n", "-M", "0"),
        ("pub", "-t", "a", "-n", "-V", "4"),
        ("pub", "-t", "a", "-n", "-W", "0"),
        ("pub", "-t", "a", "-n", "-x", "4294967296"),
        ("pub", "-t", "a", "-n", "--repeat", "-1"),
        ("pub", "-t", "a", "-n", "-P", "x", "--password-file", "y"),
        ("sub", "-t", "a", "-C", "-1"),
        ("sub", "-t", "a", "-q", "x"),
    ],
)
def test_values_out_of_range_are_wrong_usage(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        cli.main(words)
    assert leaving.value.code == cli.EXIT_USAGE
    assert "usage: iotmq" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["pub", "sub", "rr"])
def test_help_is_there_without_the_letter(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        cli.main((command, "--help"))
    assert leaving.value.code == 0
    assert "-h HOST" in capsys.readouterr().out


def test_a_server_that_is_not_there_is_named_with_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(("pub", "-p", "1", "-t", "a", "-m", "x")) == cli.EXIT_FAILED
    assert re.search(r"mqtt://127.0.0.1:1: .*-h and -p", capsys.readouterr().err)
    assert cli.main(("pub", "-p", "1", "-t", "a", "-m", "x", "--quiet")) == cli.EXIT_FAILED
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("option", ["--cafile", "--cert"])
def test_a_file_that_is_not_there_is_named(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(("pub", "-n", "-t", "a", option, "/no/such/file")) == cli.EXIT_FAILED
    assert "/no/such/file" in capsys.readouterr().err


# Output -----------------------------------------------------------------------------------------------

FULL = ReceivedMessage(
    "a/b", b"hi\xff", qos=1, is_retained=True, packet_id=7,
    properties=Properties(
        content_type="text", correlation_data=b"\x01c", message_expiry_s=9, payload_format=0,
        response_topic="r", subscription_identifiers=(3, 4), topic_alias=2,
        user_properties=(("n", "v"), ("n", "w")),
    ),
)  # fmt: skip
BARE = ReceivedMessage("t", b"x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t %p %q %r %l %m", b"a/b hi\xff 1 1 3 7"),
        ("%x %X", b"6869ff 6869FF"),
        ("%A %C %D %E %F %R %S", b"2 text \x01c 9 0 r 3 4"),
        ("%P", b"n:v n:w"),
        ("100%% \\t\\n\\\\\\e\\0", b"100% \t\n\\\x1b\0"),
        ("", b""),
    ],
)
def test_formats(text: str, expected: bytes) -> None:
    assert compile_format(text, b"\n")(FULL) == expected + b"\n"


def test_what_a_message_does_not_have_is_empty() -> None:
    assert compile_format("[%A%C%D%E%F%R%S%P]", b"")(BARE) == b"[]"


@pytest.mark.parametrize(
    ("payload", "letter", "expected"),
    [
        (b'{"a": 1}', "J", '"payload":{"a":1}'),
        (b'{"a": 1}', "j", '"payload":"{\\"a\\": 1}"'),
        (b"no json", "J", '"payload":"no json"'),
        (b"\xff", "j", '"payload_base64":"/w=="'),
    ],
)
def test_json(payload: bytes, letter: str, expected: str) -> None:
    line = compile_format(f"%{letter}", b"\n")(ReceivedMessage("t", payload)).decode()
    assert line.startswith('{"tst":"')
    assert '"topic":"t","qos":0,"retain":0' in line
    assert line.endswith(expected + "}\n")


def test_times() -> None:
    line = compile_format("%@Y-%@m %U %I", b"")(BARE).decode()
    assert re.fullmatch(r"\d{4}-\d\d \d+\.\d{9} \d{4}-\d\d-\d\dT[\d:]{8}[+-]\d{4}", line)


@pytest.mark.parametrize(
    ("words", "expected"),
    [((), b"x\n"), (("-N",), b"x"), (("-v",), b"t x\n"), (("-F", "<%p>", "-N"), b"<x>")],
)
def test_ways_to_write(words: tuple[str, ...], expected: bytes) -> None:
    assert message_writer(parse("sub", "-t", "t", *words))(BARE) == expected


@pytest.mark.parametrize(
    ("words", "written", "is_over"),
    [
        ((), "abcd", False),
        (("-C", "4"), "abcd", True),
        (("-R",), "cd", False),
        (("-T", "keep/#", "-T", "live/d"), "c", False),
        (("--retained-only",), "ab", True),
        (("--retained-only", "-T", "keep/a"), "b", True),
    ],
)
def test_which_messages_are_written(words: tuple[str, ...], written: str, is_over: bool) -> None:
    batch = [
        ReceivedMessage(f"{where}/{name}", name.encode(), is_retained=where == "keep")
        for where, name in (("keep", "a"), ("keep", "b"), ("live", "c"), ("live", "d"))
    ]
    selection = Selection(parse("sub", "-t", "#", *words))
    assert b"".join(message.payload for message in selection.select(batch)).decode() == written
    assert selection.is_over is is_over


def test_a_count_bounds_what_is_asked_for() -> None:
    selection = Selection(parse("sub", "-t", "#", "-C", "3"))
    assert selection.missing == 3
    selection.select([BARE])
    assert selection.missing == 2


def test_config_errors_are_usage_errors() -> None:
    with pytest.raises(ConfigError, match="-D"):
        shared("-D", "nothing")
