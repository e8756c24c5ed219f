"""Errors of ours reach Spark without the trace of how they came about.

Spark shows what a worker in Python raised as a text, with the whole trace in front of the message. What iotmq
raises on purpose says by itself what is wrong and what to do: it should not have to be looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

from iotmq.errors import IotmqError

_Words = ParamSpec("_Words")
_Answer = TypeVar("_Answer")


def said_first(method: Callable[_Words, _Answer]) -> Callable[_Words, _Answer]:
    """Let an error of ours out of `method` as if it had been raised here."""

    @wraps(method)
    def call(*words: _Words.args, **named: _Words.kwargs) -> _Answer:
        try:
            return method(*words, **named)
        except IotmqError as error:
            raise error.with_traceback(None) from None

    return call


def each_said_first(
    method: Callable[_Words, Iterator[_Answer]],
) -> Callable[_Words, Iterator[_Answer]]:
    """`said_first`, for a generator."""

    @wraps(method)
    def steps(*words: _Words.args, **named: _Words.kwargs) -> Iterator[_Answer]:
        try:
            yield from method(*words, **named)
        except IotmqError as error:
            raise error.with_traceback(None) from None

    return steps
