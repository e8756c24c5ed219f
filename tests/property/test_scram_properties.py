"""Any bytes as messages of SCRAM, as files of users and as names: only the errors that are allowed."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st
from scram_client import ScramClient

from iotmq.mqtt.auth.saslprep import saslprep
from iotmq.mqtt_front.access.scram import ScramError, ScramExchange, make_verifier, parse_verifier
from iotmq.mqtt_front.access.users_file import UsersFileError, parse_users, with_users, without_user

VERIFIER = make_verifier(b"pencil", iterations=4_096)

# Pieces that messages and lines are made of, in any order.
PIECES = st.sampled_from(
    [
        *(b"n", b"y", b"p=x", b",", b"=", b"a=", b"n=user", b"r=nonce", b"m=", b"c=biws", b"p=AAAA", b"=2C"),
        *(b":SCRAM-SHA-256$", b"4096:", b"AAAAAAAAAAAAAAAA", b"$", b":", b"\n", b"#", b"user", b"\xc3\xa4"),
        *(b"\0", b"\xff", str(VERIFIER).encode(), f"u:{VERIFIER}\n".encode()),
    ]
)
MESSAGES = st.one_of(st.binary(max_size=80), st.lists(PIECES, max_size=10).map(b"".join))


@settings(max_examples=300, deadline=None)
@given(MESSAGES, MESSAGES)
@example(b"n,,n=user,r=nonce", b"c=biws,r=nonce,p=AAAA")
def test_no_message_but_the_right_one_gets_through(first: bytes, final: bytes) -> None:
    exchange = ScramExchange(nonce="ours")
    try:
        answer = exchange.first(first, lambda name: VERIFIER)
    except ScramError:
        assert exchange.user is None
        return
    assert answer.startswith(b"r=")
    assert exchange.user
    try:
        exchange.final(final)
    except ScramError:
        return
    raise AssertionError("a proof was made up")


@settings(max_examples=100, deadline=None)
@given(st.text(min_size=1, max_size=20), st.integers(0, 300), st.integers(1, 255))
def test_a_proof_with_a_byte_changed_is_none(name: str, at: int, change: int) -> None:
    client, exchange = ScramClient(name, "pencil"), ScramExchange()
    try:
        message = bytearray(client.final(exchange.first(client.first(), lambda name: VERIFIER)))
    except (ScramError, UnicodeEncodeError):
        return
    message[at % len(message)] ^= change
    try:
        exchange.final(bytes(message))
    except ScramError:
        return
    raise AssertionError("a changed message was taken")


@settings(max_examples=300, deadline=None)
@given(MESSAGES)
def test_a_file_is_users_or_an_error_that_says_where(data: bytes) -> None:
    try:
        users = parse_users(data)
    except UsersFileError as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert said.startswith("line ")
        return
    for name in users:
        assert users.verifier(name) == parse_verifier(str(users.kept(name)))
    changed = with_users(data, {"a new one": VERIFIER})
    assert list(parse_users(changed)) == [*users, "a new one"]
    assert list(parse_users(without_user(changed, "a new one"))) == list(users)
    for name in users:
        assert list(parse_users(without_user(data, name))) == [each for each in users if each != name]


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=12))
def test_a_prepared_text_is_its_own_prepared_text(text: str) -> None:
    try:
        prepared = saslprep(text, allows_unassigned=True)
    except ValueError:
        return
    assert saslprep(prepared, allows_unassigned=True) == prepared
