"""Checks of passwords: bounded in number, and slower for who guesses."""

from __future__ import annotations

import asyncio
import threading

import pytest
from eventually import soon
from manual_clock import ManualClock

from iotmq import limits
from iotmq.console.access.console_users import ConsoleUser
from iotmq.console.access.passwords import Passwords, SignInFailedError, TooManyAttemptsError
from iotmq.console.settings import SignInSettings
from iotmq.credentials import argon2

USERS = {
    name: ConsoleUser(name, "operator", argon2.make(f"password of {name}".encode(), memory_kib=64, rounds=1))
    for name in ("ada", "bob")
}


class Door:
    def __init__(self, **settings: int) -> None:
        self.clock = ManualClock()
        self.passwords = Passwords(SignInSettings(**settings), self.clock)

    async def tries(self, name: str, password: str = "wrong", address: str = "192.0.2.1") -> str:
        try:
            return (await self.passwords.check(USERS, name, password, address)).role
        except SignInFailedError:
            return "wrong"
        except TooManyAttemptsError:
            return "too many"


async def test_the_right_password_opens_and_nothing_else_does() -> None:
    door = Door(failures_per_minute_max=100)
    assert await door.tries("ada", "password of ada") == "operator"
    for name, password in (
        ("ada", ""),
        ("ada", "password of bob"),
        ("ada", "password of ada "),
        ("ADA", "password of ada"),
        ("", ""),
        ("nobody", "password of ada"),
        ("ada", "p" * (limits.CONSOLE_PASSWORD_BYTES_MAX + 1)),
        ("a" * 100_000, "x"),
    ):
        assert await door.tries(name, password) == "wrong"


async def test_an_address_that_guesses_waits_for_a_minute() -> None:
    door = Door(failures_per_minute_max=3)
    for name in ("ada", "bob", "nobody"):
        assert await door.tries(name) == "wrong"
    assert await door.tries("ada", "password of ada") == "too many"
    assert await door.tries("ada", "password of ada", "192.0.2.2") == "operator"
    door.clock.advance(60)
    assert await door.tries("ada", "password of ada") == "operator"


async def test_guesses_at_the_same_time_are_no_more_than_those_one_after_the_other() -> None:
    door = Door(failures_per_minute_max=2, failures_of_user_max=100)
    outcomes = await asyncio.gather(*(door.tries("ada", f"guess {number}") for number in range(10)))
    assert outcomes.count("wrong") <= 2 + limits.CONSOLE_HASHES_AT_ONCE - 1
    assert set(outcomes) == {"wrong", "too many"}


async def test_who_was_right_from_there_before_is_let_in_beside_one_who_guesses() -> None:
    door = Door(failures_per_minute_max=2)
    assert await door.tries("ada", "password of ada") == "operator"
    for _ in range(2):
        await door.tries("bob")
    assert await door.tries("bob", "password of bob") == "too many"
    assert await door.tries("ada", "password of ada") == "operator"


async def test_a_user_who_is_guessed_at_from_everywhere_is_locked_for_new_addresses() -> None:
    door = Door(failures_of_user_max=5)
    assert await door.tries("ada", "password of ada", "192.0.2.1") == "operator"
    for number in range(5):
        assert await door.tries("ada", address=f"198.51.100.{number}") == "wrong"
    assert await door.tries("ada", "password of ada", "198.51.100.99") == "too many"
    assert await door.tries("ada", "password of ada", "192.0.2.1") == "operator"
    assert await door.tries("bob", "password of bob", "198.51.100.99") == "operator"
    door.clock.advance(900)
    assert await door.tries("ada", "password of ada", "198.51.100.99") == "operator"


async def test_names_that_failed_are_bounded() -> None:
    door = Door(failures_of_user_max=1)
    counts = door.passwords._of_users
    for number in range(limits.CONSOLE_FAILING_USERS_MAX + 1):
        counts.add(f"name-{number}", door.clock.monotonic_s())
    assert len(counts) == limits.CONSOLE_FAILING_USERS_MAX
    assert counts.count_of("name-0", door.clock.monotonic_s()) == 0


async def test_so_many_are_hashed_and_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(failures_per_minute_max=1000)
    go_on = threading.Event()
    lock = threading.Lock()
    running = most = 0

    def slow(_kept: str, _password: bytes) -> bool:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        go_on.wait(30)
        with lock:
            running -= 1
        return True

    monkeypatch.setattr(argon2, "is_password_of", slow)
    places = limits.CONSOLE_HASHES_AT_ONCE + limits.CONSOLE_HASHES_WAITING_MAX
    trying = [asyncio.ensure_future(door.tries("ada")) for _ in range(places)]
    try:
        await soon(lambda: running == limits.CONSOLE_HASHES_AT_ONCE, "so many are hashed")
        assert await door.tries("ada") == "too many"
    finally:
        go_on.set()
    assert set(await asyncio.gather(*trying)) == {"operator"}
    assert most == limits.CONSOLE_HASHES_AT_ONCE


async def test_who_is_not_there_costs_what_others_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def note(kept: str, _password: bytes) -> bool:
        asked.append(argon2.cost_of(kept))
        return False

    monkeypatch.setattr(argon2, "is_password_of", note)
    door = Door()
    await door.tries("nobody")
    assert asked == [argon2.cost_of(argon2.make(b"x"))]
