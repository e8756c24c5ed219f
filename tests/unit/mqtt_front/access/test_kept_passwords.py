"""What is kept of passwords: argon2id hashes beside verifiers of SCRAM, in one file of users."""

from __future__ import annotations

from pathlib import Path

import pytest
from scram_client import ScramClient, prove, scram_connect
from users_site import REFUSED, line_of, running

from iotmq import limits
from iotmq.commands.cli import main
from iotmq.credentials.argon2 import make as make_argon2
from iotmq.mqtt.codec import packets
from iotmq.mqtt_front.access.kept_passwords import (
    check_kept,
    cost_of,
    is_password_of,
    pretended,
)
from iotmq.mqtt_front.access.users_file import parse_users, write_users

HASH = make_argon2(b"pmup", memory_kib=64, rounds=1)
# Made by the reference implementation: echo -n password | argon2 somesalt -id -t 2 -m 6 -p 1 -l 24
FOREIGN = "$argon2id$v=19$m=64,t=2,p=1$c29tZXNhbHQ$"


def argon2(memory_kib: int = 64, rounds: int = 1, lanes: int = 1, salt: str = "c29tZXNhbHQ") -> str:
    return f"$argon2id$v=19$m={memory_kib},t={rounds},p={lanes}${salt}${'A' * 43}"


def test_passwords_and_hashes() -> None:
    check_kept(HASH)
    assert is_password_of(HASH, b"pmup")
    assert not is_password_of(HASH, b"pump")
    assert not is_password_of(HASH, b"pmup\0")
    assert make_argon2(b"pmup", memory_kib=64, rounds=1) != HASH, "a salt of its own"
    assert "m=19456,t=2,p=1" in make_argon2(b"x")


@pytest.mark.parametrize("kept", [HASH, line_of("pump").partition(":")[2].strip()], ids=["argon2id", "scram"])
def test_what_is_pretended_costs_the_same_and_is_nobody_s(kept: str) -> None:
    made = pretended(cost_of(kept))
    check_kept(made)
    assert cost_of(made) == cost_of(kept)
    assert made != pretended(cost_of(kept))
    assert not is_password_of(made, b"pmup")


def test_costs_at_their_limits_and_past_them() -> None:
    check_kept(argon2(limits.ARGON2_MEMORY_KIB_MAX, limits.ARGON2_ROUNDS_MAX, limits.ARGON2_LANES_MAX))
    for wrong in (
        argon2(limits.ARGON2_MEMORY_KIB_MAX + 1),
        argon2(rounds=limits.ARGON2_ROUNDS_MAX + 1),
        argon2(memory_kib=8 * limits.ARGON2_LANES_MAX * 2, lanes=limits.ARGON2_LANES_MAX + 1),
        argon2(memory_kib=15, lanes=2),
        argon2(rounds=0),
        argon2(lanes=0),
    ):
        with pytest.raises(ValueError, match="are allowed"):
            check_kept(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "$argon2id$",
        "$argon2id$v=16$m=64,t=1,p=1$c29tZXNhbHQ$" + "A" * 43,
        argon2(salt="short"),
        argon2(salt="$$$$$$$$$$$$"),
        argon2() + "$",
        argon2() + "\n",
        FOREIGN,
    ],
)
def test_what_is_no_hash(text: str) -> None:
    with pytest.raises(ValueError, match="it is not"):
        check_kept(text)


async def test_both_kinds_in_one_file(tmp_path: Path) -> None:
    write_users(tmp_path / "users", f"hashed:{HASH}\n{line_of('pump')}".encode())
    async with running(tmp_path / "users") as site:
        for _ in range(2):
            assert await site.code("hashed", b"pmup") == 0
            assert await site.code("pump", b"pmup") == 0
        assert await site.code("hashed", b"pump") == 4
        assert await site.code("nobody", b"pump") == 4
        assert site.number("iotmq_mqtt_password_checks_total") == 4
        # Who has a hash has no exchange, which looks as for a name that is not there.
        for name in ("hashed", "nobody"):
            client, scram = await site.dial(), ScramClient(name, "pmup")
            client.send(scram_connect(scram))
            assert (await prove(client, scram))[:2] == (packets.CONNACK, 0x87)
        assert site.number(REFUSED, cause="exchange") == 2


async def test_unknown_names_take_as_long_where_most_are_hashed(tmp_path: Path) -> None:
    write_users(tmp_path / "users", f"a:{HASH}\nb:{HASH}\n{line_of('pump')}".encode())
    async with running(tmp_path / "users") as site:
        assert cost_of(site.users._pretended("nobody")) == cost_of(HASH)
        assert await site.code("nobody", b"pump") == 4
        assert site.number(REFUSED, cause="user") == 1


def test_iotmq_users_writes_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret, file = tmp_path / "secret", tmp_path / "users"
    secret.write_text("pmup\n")
    words = ["--file", str(file), "--password-file", str(secret)]
    assert main(["users", "add", "hashed", "--hash", "argon2id", *words]) == 0
    assert main(["users", "add", "pump", *words]) == 0
    users = parse_users(file.read_bytes())
    assert str(users.kept("hashed")).startswith("$argon2id$")
    assert str(users.kept("pump")).startswith("SCRAM-SHA-256$")
    for name in ("hashed", "pump"):
        assert main(["users", "check", name, *words]) == 0
    secret.write_text("wrong\n")
    assert main(["users", "check", "hashed", *words]) == 1
    assert main(["users", "add", "pump", *words, "--set", "mqtt.authentication.password_hash=argon2id"]) == 0
    assert str(parse_users(file.read_bytes()).kept("pump")).startswith("$argon2id$")
    assert main(["users", "add", "x", "--hash", "argon2id", "--iterations", "5000", *words]) != 0
    assert "--iterations is for" in capsys.readouterr().err
    assert main(["users", "remove", "hashed", "--file", str(file)]) == 0
    assert list(parse_users(file.read_bytes())) == ["pump"]
