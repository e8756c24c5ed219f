"""Subscription expressions of type TAG: `TagA || TagB` becomes the hashes queues are scanned for."""

from __future__ import annotations

from functools import lru_cache

from iotmq.errors import RequestError
from iotmq.message.tags import expression_codes
from iotmq.remoting.codes import ResponseCode


@lru_cache(maxsize=4_096)
def parse_tags(expression: str) -> frozenset[int] | None:
    """Hashes of the tags named, None when everything passes (`*` or nothing).

    Raises RequestError (23) for an expression of separators only.
    """
    codes = expression_codes(expression)
    if codes is None and expression.strip() not in ("", "*"):
        raise RequestError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"the subscription {expression[:80]!r} names no tag"
        )
    return codes
