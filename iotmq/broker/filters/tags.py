"""Subscription expressions of type TAG: `TagA || TagB` becomes the hashes queues are scanned for."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from iotmq.errors import RequestError
from iotmq.message.tags import expression_codes
from iotmq.remoting.codes import ResponseCode

# Expressions that are remembered, up to which length: a longer one costs what it costs each time.
CACHED_MAX: Final = 1_024
CACHED_CHARACTERS_MAX: Final = 8 * 1024


def parse_tags(expression: str) -> frozenset[int] | None:
    """Hashes of the tags named, None when everything passes (`*` or nothing).

    Raises RequestError (23) for an expression of separators only.
    """
    return _cached(expression) if len(expression) <= CACHED_CHARACTERS_MAX else _parse(expression)


def _parse(expression: str) -> frozenset[int] | None:
    codes = expression_codes(expression)
    if codes is None and expression.strip() not in ("", "*"):
        raise RequestError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the subscription {expression[:80]!r} names no tag"
        )
    return codes


_cached = lru_cache(maxsize=CACHED_MAX)(_parse)
