"""A log that is trimmed all the time, against a list: what is left reads as if nothing had happened."""

from __future__ import annotations

from hypothesis import settings
from store_trim_machine import TrimMachine

TrimMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestStoreTrimModel = TrimMachine.TestCase
