"""Sessions: how long, how many, and how they end."""

from __future__ import annotations

from manual_clock import ManualClock

from iotmq import limits
from iotmq.console.access.console_sessions import Session, Sessions


def table() -> tuple[ManualClock, Sessions]:
    clock = ManualClock()
    return clock, Sessions(clock, idle_s=100, absolute_s=1000)


def opened(sessions: Sessions, name: str = "ada") -> tuple[str, Session]:
    return sessions.open(name, "viewer", "password", address="192.0.2.1", agent="browser", proof="p")


def test_a_session_is_found_by_its_token_alone() -> None:
    _, sessions = table()
    token, session = opened(sessions)
    assert sessions.find(token) is session
    assert len(token) >= 43, "256 bits"
    for wrong in ("", token[:-1], token + "A", session.id, "\udcff"):
        assert sessions.find(wrong) is None
    assert token not in repr(vars(sessions)), "what the table has opens nothing"


def test_a_session_that_nobody_uses_ends() -> None:
    clock, sessions = table()
    token, session = opened(sessions)
    for _ in range(5):
        clock.advance(99)
        assert sessions.find(token) is session
    assert sessions.expires_ms(session) == clock.now_ms() + 100_000
    assert sessions.used_ms(session) == clock.now_ms()
    clock.advance(100)
    assert sessions.find(token) is None
    assert len(sessions) == 0


def test_a_session_that_is_used_ends_too() -> None:
    clock, sessions = table()
    token, session = opened(sessions)
    assert sessions.ends_ms(session) == clock.now_ms() + 1_000_000
    for _ in range(10):
        clock.advance(99.9)
        assert sessions.find(token) is session
    assert sessions.expires_ms(session) == sessions.ends_ms(session)
    clock.advance(1)
    assert sessions.find(token) is None


def test_past_the_limit_of_a_person_the_one_not_used_for_longest_ends() -> None:
    clock, sessions = table()
    tokens = [opened(sessions)[0] for _ in range(limits.CONSOLE_SESSIONS_OF_USER_MAX)]
    other, _ = opened(sessions, "bob")
    clock.advance(1)
    assert sessions.find(tokens[0]) is not None
    opened(sessions)
    assert sessions.find(tokens[1]) is None
    assert sessions.find(tokens[0]) is not None
    assert sessions.find(other) is not None
    assert len(sessions) == limits.CONSOLE_SESSIONS_OF_USER_MAX + 1


def test_past_the_limit_of_all_the_one_not_used_for_longest_ends() -> None:
    _, sessions = table()
    tokens = [opened(sessions, f"user-{number}")[0] for number in range(limits.CONSOLE_SESSIONS_MAX)]
    assert len(sessions) == limits.CONSOLE_SESSIONS_MAX
    opened(sessions, "one more")
    assert len(sessions) == limits.CONSOLE_SESSIONS_MAX
    assert sessions.find(tokens[0]) is None
    assert sessions.find(tokens[1]) is not None


def test_those_that_are_over_take_no_place_and_are_not_listed() -> None:
    clock, sessions = table()
    opened(sessions)
    clock.advance(100)
    _, other = opened(sessions, "bob")
    assert sessions.all() == [other]
    assert sessions.end_where(lambda session: session.name == "bob") == 1
    assert sessions.all() == []


def test_what_a_browser_calls_itself_is_cut() -> None:
    _, sessions = table()
    _, session = sessions.open("ada", "viewer", "link", address="", agent="x" * 10_000)
    assert len(session.agent) == 200
