"""A log that is trimmed all the time, against a list: what is left reads as if nothing had happened."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from store_trim_machine import TrimMachine

TrimMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestStoreTrimModel = TrimMachine.TestCase


@pytest.fixture(autouse=True)
def no_syncs() -> Iterator[None]:
    """No power is lost here: syncs would only take their time, minutes of it on a busy disk."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("fsync", "fdatasync"):
            patched.setattr(os, name, lambda _descriptor: None)
        yield
