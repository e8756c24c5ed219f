"""Settings of the history (section `[history]` of the configuration)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from iotmq import limits


class HistorySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set what each process remembers of its metrics."""

    enabled: bool = True
    """Remember metrics every ten seconds, for the HTTP API and the console. A restart forgets them."""
    metrics: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=128)], ...], Meta(min_length=1, max_length=64)
    ] = ("*", "!*_bucket")
    """Names of the metrics to remember. * stands for any text; those of names that begin with ! are left
    out."""
    series_max: Annotated[int, Meta(ge=1, le=10_000)] = limits.HISTORY_SERIES_MAX
    """Series (a metric with its labels) that one process remembers, some 9 KB each. Further ones are left
    out, unless one has not been reported for an hour."""
