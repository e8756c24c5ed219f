"""Put the answers of plug-ins together, as the documentation of amqtt says and its broker does not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import NamedTuple

from iotmq.mqtt_front.plugins.host import NoAnswerError


class Combined(NamedTuple):
    """The word of all together."""

    answer: bool | None
    """None: none has an opinion."""
    cause: str = ""
    """Of False: who refused, or did not answer, and why."""
    is_final: bool = True
    """False: the next answer may be another one, because somebody did not answer."""
    agreed: tuple[str, ...] = ()
    """Names of those that said yes."""


async def combined(questions: Sequence[tuple[str, Awaitable[bool | None]]]) -> Combined:
    """Ask all at a time, by name. One no is enough, and no answer is a refusal, too."""
    answers = await asyncio.gather(*(asked for _, asked in questions), return_exceptions=True)
    agreed: list[str] = []
    missing = None
    for (name, _), answer in zip(questions, answers, strict=True):
        if answer is False:
            return Combined(False, f"{name}: no")
        if isinstance(answer, NoAnswerError):
            missing = missing or f"{name}: {answer.cause}: {answer}"
        elif isinstance(answer, BaseException):
            raise answer
        elif answer:
            agreed.append(name)
    if missing is not None:
        return Combined(False, missing, is_final=False)
    return Combined(True, agreed=tuple(agreed)) if agreed else Combined(None)
