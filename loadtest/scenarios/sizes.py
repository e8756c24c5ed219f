"""Choose one of a scenario's sizes by the environment variable SIZE."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final, TypeVar

from iotmq.spelling import did_you_mean

T = TypeVar("T")

PAYLOAD_BYTES: Final = 24


def chosen(sizes: Mapping[str, T]) -> T:
    """Return the size that SIZE names, or the first; a name that there is not ends the process."""
    name = os.environ.get("SIZE") or next(iter(sizes))
    if name not in sizes:
        known = {each: each for each in sizes}
        print(f"SIZE={name} is none of {', '.join(sizes)}{did_you_mean(name, known)}", file=sys.stderr)
        sys.exit(2)
    return sizes[name]
