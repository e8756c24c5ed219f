"""SCRAM-SHA-256 by the vectors of its RFCs, and every field that a client may get wrong."""

from __future__ import annotations

import base64
import stringprep
import sys
from collections.abc import Callable
from itertools import chain

import pytest
from scram_client import ScramClient

from iotmq import limits
from iotmq.mqtt.auth import saslprep as saslprep_module
from iotmq.mqtt.auth.saslprep import saslprep
from iotmq.mqtt.auth.scram import prepare_password
from iotmq.mqtt_front.access.scram import (
    ScramError,
    ScramExchange,
    UnknownUsers,
    Verifier,
    is_password_of,
    make_verifier,
    parse_verifier,
)

# RFC 7677 section 3.
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
PENCIL = make_verifier(b"pencil", iterations=4_096, salt=SALT)


def test_the_exchange_of_rfc_7677() -> None:
    exchange = ScramExchange(nonce=SERVER_NONCE)
    first = exchange.first(f"n,,n=user,r={CLIENT_NONCE}".encode(), lambda name: PENCIL)
    assert first.decode() == f"r={CLIENT_NONCE}{SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    assert exchange.user == "user"
    final = exchange.final(
        f"c=biws,r={CLIENT_NONCE}{SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_what_is_kept_is_what_postgresql_keeps() -> None:
    """A verifier of `CREATE ROLE ... PASSWORD 'pencil'` with this salt reads the same."""
    text = str(PENCIL)
    assert text == (
        "SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$"
        "WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    )
    assert parse_verifier(text) == PENCIL
    assert is_password_of(PENCIL, b"pencil")
    assert not is_password_of(PENCIL, b"Pencil")
    assert not is_password_of(PENCIL, b"")


def test_salts_and_nonces_are_new_each_time() -> None:
    assert make_verifier(b"p", iterations=4_096).salt != make_verifier(b"p", iterations=4_096).salt
    answers = {ScramExchange().first(b"n,,n=u,r=x", lambda name: PENCIL) for _ in range(4)}
    assert len(answers) == 4


@pytest.mark.parametrize("flag", ["n,,", "y,,", "n,a=us=2Cer,"])
def test_client_and_server_agree(flag: str) -> None:
    names: list[str] = []

    def verifier_of(name: str) -> Verifier:
        names.append(name)
        return make_verifier(b"s3cret", iterations=4_096)

    client = ScramClient("us,er", "s3cret", flag=flag)
    exchange = ScramExchange()
    assert client.is_server(exchange.final(client.final(exchange.first(client.first(), verifier_of))))
    assert names == ["us,er"]


def test_extensions_behind_the_nonce_are_passed_over_and_signed() -> None:
    exchange = ScramExchange(nonce="s")
    exchange.first(b"n,,n=user,r=c,x=1,y=2", lambda name: PENCIL)
    assert exchange.user == "user"


def test_a_wrong_password_proves_nothing() -> None:
    client, exchange = ScramClient("user", "pencils"), ScramExchange()
    answer = client.final(exchange.first(client.first(), lambda name: PENCIL))
    with pytest.raises(ScramError, match="proof is wrong"):
        exchange.final(answer)


def test_a_name_without_a_user_is_asked_the_same_each_time_and_proves_nothing() -> None:
    unknown = UnknownUsers(b"secret")
    one, two = (unknown.verifier("nobody", iterations=4_096) for _ in range(2))
    assert one.salt == two.salt == UnknownUsers(b"secret").verifier("nobody", iterations=4_096).salt
    assert one.salt != unknown.verifier("somebody", iterations=4_096).salt
    assert one.salt != UnknownUsers(b"other").verifier("nobody", iterations=4_096).salt
    assert one.salt != UnknownUsers().verifier("nobody", iterations=4_096).salt
    assert len(one.salt) == len(make_verifier(b"p", iterations=4_096).salt)
    assert not is_password_of(one, b"")


NAME_MAX = limits.MQTT_USER_NAME_BYTES_MAX


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n",
        b"n,",
        b"n,,",
        b"n=user,r=x",
        b"p=tls-unique,,n=user,r=x",
        b"p=tls-exporter,,n=user,r=x",
        b"N,,n=user,r=x",
        b",,n=user,r=x",
        b"n,a=other,n=user,r=x",
        b"n,x,n=user,r=x",
        b"n,,m=ext,n=user,r=x",
        b"n,,r=x,n=user",
        b"n,,n=user",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=user,r=\xc3\xa4",
        b"n,,n=,r=x",
        b"n,,n=us=er,r=x",
        b"n,,n=us=2cer,r=x",
        b"n,,n=user=,r=x",
        b"n,,n=us\0er,r=x",
        b"n,,n=us\x07er,r=x",
        b"n,,n=us\xffer,r=x",
        b"n,,n=\xd8\xa7a,r=x",
        b"n,,n=" + b"a" * (NAME_MAX + 1) + b",r=x",
    ],
)
def test_first_messages_that_are_none(message: bytes) -> None:
    exchange = ScramExchange()
    with pytest.raises(ScramError):
        exchange.first(message, lambda name: PENCIL)
    assert exchange.user is None


def test_the_longest_name() -> None:
    exchange = ScramExchange()
    exchange.first(b"n,,n=" + b"a" * NAME_MAX + b",r=x", lambda name: PENCIL)
    assert exchange.user == "a" * NAME_MAX


def _other(change: Callable[[str], str]) -> Callable[[bytes], bytes]:
    return lambda message: change(message.decode()).encode()


@pytest.mark.parametrize(
    "change",
    [
        _other(lambda text: ""),
        _other(lambda text: text.partition(",p=")[0]),
        _other(lambda text: text.replace("c=biws", "c=eSws")),
        _other(lambda text: text.replace("c=biws", "c=biwsbiws")),
        _other(lambda text: text.replace("c=biws,", "")),
        _other(lambda text: text.replace("r=", "r=x")),
        _other(lambda text: text.replace("r=", "q=")),
        _other(lambda text: text.replace(",p=", ",x=1,p=")),
        _other(lambda text: text[:-4]),
        _other(lambda text: text + "="),
        _other(lambda text: text.partition(",p=")[0] + ",p=?"),
        _other(lambda text: text.partition(",p=")[0] + ",p="),
        _other(lambda text: text.partition(",p=")[0] + ",p=ä"),
        _other(lambda text: text.partition(",p=")[0] + ",p=" + base64.b64encode(bytes(31)).decode()),
        _other(lambda text: text.partition(",p=")[0] + ",p=" + base64.b64encode(bytes(32)).decode()),
        _other(lambda text: text.partition(",p=")[0] + ",p=" + base64.b64encode(bytes(33)).decode()),
        lambda message: message + b"\xff",
        lambda message: message + b"\0",
    ],
)
def test_final_messages_that_prove_nothing(change: Callable[[bytes], bytes]) -> None:
    client, exchange = ScramClient("user", "pencil"), ScramExchange()
    right = client.final(exchange.first(client.first(), lambda name: PENCIL))
    with pytest.raises(ScramError):
        exchange.final(change(right))


def kept(**fields: str) -> str:
    parts = {
        "method": "SCRAM-SHA-256",
        "iterations": "4096",
        "salt": base64.b64encode(bytes(16)).decode(),
        "stored": base64.b64encode(bytes(32)).decode(),
        "server": base64.b64encode(bytes(32)).decode(),
    } | fields
    return "{method}${iterations}:{salt}${stored}:{server}".format(**parts)


def sized(size: int) -> str:
    return base64.b64encode(bytes(size)).decode()


@pytest.mark.parametrize(
    "fields",
    [
        {"iterations": str(limits.SCRAM_ITERATIONS_MIN)},
        {"iterations": str(limits.SCRAM_ITERATIONS_MAX)},
        {"salt": sized(8)},
        {"salt": sized(limits.SCRAM_SALT_BYTES_MAX)},
    ],
)
def test_what_may_be_kept(fields: dict[str, str]) -> None:
    assert str(parse_verifier(kept(**fields))) == kept(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "SCRAM-SHA-1"},
        {"method": "md5"},
        {"iterations": "4095"},
        {"iterations": str(limits.SCRAM_ITERATIONS_MAX + 1)},
        {"iterations": "9" * 5_000},
        {"iterations": "-4096"},
        {"iterations": ""},
        {"iterations": "٤٠٩٦"},
        {"salt": sized(7)},
        {"salt": sized(limits.SCRAM_SALT_BYTES_MAX + 1)},
        {"salt": "AAAA AAAAAAA="},
        {"salt": "?"},
        {"stored": sized(31)},
        {"stored": sized(33)},
        {"stored": sized(32)[:-1]},
        {"stored": sized(32)[:-2] + "B="},
        {"server": sized(31)},
        {"server": ""},
        {"server": sized(32) + ":x"},
        {"server": sized(32) + " "},
    ],
)
def test_what_may_not_be_kept(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_verifier(kept(**fields))


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        # RFC 4013 section 3.
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("\u0627\u0628", "\u0627\u0628"),
        ("", ""),
    ],
)
def test_saslprep(text: str, prepared: str) -> None:
    assert saslprep(text) == prepared


@pytest.mark.parametrize("text", ["\x07", "\u0627\x31", "\u0627a\u0627", "a\u0627", "\ufffd", "\u2028"])
def test_saslprep_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"it |right"):
        saslprep(text)


@pytest.mark.slow
def test_what_saslprep_prohibits_is_what_the_tables_of_the_rfc_have() -> None:
    names = ("c12", "c21_c22", "c3", "c4", "c5", "c6", "c7", "c8", "c9")
    tables = [getattr(stringprep, f"in_table_{name}") for name in names]
    points = [chr(point) for point in range(sys.maxunicode + 1)]
    prohibited = set(chain.from_iterable(filter(is_in, points) for is_in in tables))
    assert set(filter(saslprep_module._PROHIBITED.match, points)) == prohibited
    mapped = dict.fromkeys(filter(stringprep.in_table_b1, points))
    mapped |= dict.fromkeys(filter(stringprep.in_table_c12, points), " ")
    assert {chr(point): text for point, text in saslprep_module._MAPPED.items()} == mapped


@pytest.mark.parametrize("more", [0, 1])
def test_text_at_the_limit_of_saslprep_and_past_it(more: int) -> None:
    """Before it is looked at, and when it has grown: U+3316 becomes six characters."""
    fits = limits.SASLPREP_CHARACTERS_MAX
    for text in ("\u00e4" * (fits + more), "\u3316" * (fits // 6) + "\u00e4" * (fits % 6 + more)):
        if more:
            with pytest.raises(ValueError, match=rf"has {fits + 1} characters"):
                saslprep(text)
        else:
            assert len(saslprep(text)) == fits


def test_saslprep_of_unassigned_characters_is_for_what_is_looked_up() -> None:
    with pytest.raises(ValueError, match="unassigned"):
        saslprep("\u0221")
    assert saslprep("\u0221", allows_unassigned=True) == "\u0221"


def test_passwords_without_a_prepared_form_are_taken_as_they_are() -> None:
    assert prepare_password("I\u00adX".encode()) == b"IX"
    assert prepare_password(b"\xff\0") == b"\xff\0"
    assert prepare_password(b"\x07") == b"\x07"
