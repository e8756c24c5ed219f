"""SCRAM-SHA-256 of the client: the vector of its RFC, our server's half, and servers not to be trusted."""

from __future__ import annotations

import pytest

from iotmq import limits
from iotmq.errors import ClientError
from iotmq.mqtt_client.scram import ScramAuthenticator
from iotmq.mqtt_front.access.scram import ScramError, ScramExchange, make_verifier

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = f"r={NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()


def test_the_exchange_of_rfc_7677() -> None:
    client = ScramAuthenticator("user", b"pencil", nonce=NONCE)
    assert client.first() == f"n,,n=user,r={NONCE}".encode()
    assert client.answer(SERVER_FIRST) == (
        f"c=biws,r={NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,".encode()
        + b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.finish(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    with pytest.raises(ClientError, match="proved"):
        client.finish(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5=")


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("ann", b"secret"),
        ("a,n=n", "p\u00e4\u00df".encode()),
        ("\u2168", "\u00aa".encode()),
        ("x", b"\xff\xfe"),
    ],
)
def test_our_server_takes_it(name: str, password: bytes) -> None:
    verifier = make_verifier(password, iterations=limits.SCRAM_ITERATIONS_MIN)
    client, server = ScramAuthenticator(name, password), ScramExchange()
    client.finish(server.final(client.answer(server.first(client.first(), lambda _: verifier))))
    other = ScramAuthenticator(name, password + b"x")
    exchange = ScramExchange()
    answer = other.answer(exchange.first(other.first(), lambda _: verifier))
    with pytest.raises(ScramError):
        exchange.final(answer)


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"\xff",
        b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode(),
        f"r={NONCE}x,s=?,i=4096".encode(),
        f"r={NONCE}x,s=,i=4096".encode(),
        f"r={NONCE}x,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=x".encode(),
        f"r={NONCE}x,s=W22ZaJ0SNY7soEsUEjb6gQ==,i={limits.SCRAM_ITERATIONS_MIN - 1}".encode(),
        f"r={NONCE}x,s=W22ZaJ0SNY7soEsUEjb6gQ==,i={limits.SCRAM_ITERATIONS_MAX + 1}".encode(),
        f"m=x,r={NONCE}x,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode(),
    ],
)
def test_a_server_that_asks_for_something_else_gets_no_proof(challenge: bytes) -> None:
    client = ScramAuthenticator("user", b"pencil", nonce=NONCE)
    with pytest.raises(ClientError):
        client.answer(challenge)
    with pytest.raises(ClientError, match="proved"):
        client.finish(b"v=")


def test_a_name_that_cannot_be_one() -> None:
    with pytest.raises(ClientError, match="user name"):
        ScramAuthenticator("a\x00b", b"x")
