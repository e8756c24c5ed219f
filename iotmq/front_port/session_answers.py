"""Read brokers' answers to requests about sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from iotmq.errors import RequestError
from iotmq.ports.sessions import Refused
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.command import Command

_Found = TypeVar("_Found")


def outcome_of(future: asyncio.Future[Command]) -> Command | Refused:
    """Return a broker's answer, or the reason that there is none."""
    if future.cancelled():
        return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "the front end stops")
    error = future.exception()
    if error is not None:
        return Refused(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
    answer = future.result()
    if answer.code != ResponseCode.SUCCESS:
        return Refused(answer.code, answer.remark or "")
    return answer


def decoded(decoder: msgspec.msgpack.Decoder[_Found], answer: Command | Refused) -> _Found | Refused:
    """Decode the body of an answer; refused when it cannot be read."""
    if isinstance(answer, Refused):
        return answer
    try:
        return decoder.decode(answer.body_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Refused(ResponseCode.SYSTEM_ERROR, f"the broker's answer cannot be read: {error}")


def tell(done: Callable[[Refused | None], None], answer: Command | Refused) -> None:
    """Pass on the success or the refusal of a request."""
    done(answer if isinstance(answer, Refused) else None)


def split_records(body: memoryview) -> list[memoryview]:
    """Split records, which begin with their sizes; RequestError when they do not fill `body`."""
    records = []
    at = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4], "big")
        if size < 4 or at + size > len(body):
            raise RequestError(ResponseCode.SYSTEM_ERROR, "the records of an answer do not fill it")
        records.append(body[at : at + size])
        at += size
    return records


def gather(calls: Sequence[Callable[..., None]], done: Callable[[list[Any]], None]) -> None:
    """Make calls that take a `done`, and tell all their answers in the order of the calls."""
    answers: list[Any] = [None] * len(calls)
    waiting = len(calls)

    def answered(place: int, answer: Any) -> None:
        nonlocal waiting
        answers[place] = answer
        waiting -= 1
        if waiting == 0:
            done(answers)

    if not calls:
        done(answers)
    for place, call in enumerate(calls):
        call(done=partial(answered, place))
