"""Inspections: names, limits, time limits, and what handlers raise."""

from __future__ import annotations

import asyncio

import pytest

from iotmq import limits
from iotmq.errors import RequestError
from iotmq.ports.inspections import Inspections


def asked(inspections: Inspections, name: str, body: bytes = b"") -> asyncio.Future[bytes]:
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def done(outcome: bytes | RequestError) -> None:
        if isinstance(outcome, RequestError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    inspections.ask(name, body, done)
    return future


async def echoed(body: bytes) -> bytes:
    return body


async def test_a_name_is_answered_by_its_handler() -> None:
    inspections = Inspections()
    inspections.add("echo", echoed)
    assert await asked(inspections, "echo", b"body") == b"body"
    assert inspections.answered_total == 1
    with pytest.raises(ValueError, match="echo"):
        inspections.add("echo", echoed)
    with pytest.raises(RequestError, match="no inspection 'else' here: there are echo"):
        await asked(inspections, "else")


async def test_questions_and_answers_have_a_size() -> None:
    inspections = Inspections()

    async def filled(body: bytes) -> bytes:
        return bytes(int(body))

    inspections.add("filled", filled)
    inspections.add("echo", echoed)
    most = limits.INSPECTION_QUESTION_BYTES_MAX
    assert len(await asked(inspections, "echo", bytes(most))) == most
    with pytest.raises(RequestError, match="a question has"):
        await asked(inspections, "echo", bytes(most + 1))
    most = limits.INSPECTION_ANSWER_BYTES_MAX
    assert len(await asked(inspections, "filled", b"%d" % most)) == most
    with pytest.raises(RequestError, match="ask for less"):
        await asked(inspections, "filled", b"%d" % (most + 1))
    assert inspections.failed_total == 1


async def test_a_bounded_number_is_answered_at_a_time_and_stopping_refuses_them() -> None:
    inspections = Inspections()

    async def waiting(body: bytes) -> bytes:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    inspections.add("waiting", waiting)
    pending = [asked(inspections, "waiting") for _ in range(limits.INSPECTIONS_PENDING_MAX)]
    with pytest.raises(RequestError, match="ask again later"):
        await asked(inspections, "waiting")
    await asyncio.sleep(0)
    inspections.stop()
    for future in pending:
        with pytest.raises(RequestError, match="the process stops"):
            await future


async def test_a_handler_that_fails_or_takes_long_is_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    inspections = Inspections(timeout_s=0.01)

    async def refusing(body: bytes) -> bytes:
        raise RequestError(22, "no such device")

    async def broken(body: bytes) -> bytes:
        raise KeyError("gone")

    async def late(body: bytes) -> bytes:
        await asyncio.Event().wait()
        return b""

    for handler in (refusing, broken, late):
        inspections.add(handler.__name__, handler)
    with pytest.raises(RequestError, match="no such device") as caught:
        await asked(inspections, "refusing")
    assert caught.value.code == 22
    with pytest.raises(RequestError, match="KeyError: 'gone'"):
        await asked(inspections, "broken")
    assert "an inspection failed" in caplog.text
    with pytest.raises(RequestError, match="took over"):
        await asked(inspections, "late")
    assert inspections.failed_total == 3
