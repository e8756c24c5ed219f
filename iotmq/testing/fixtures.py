"""Fixtures for pytest: `pytest_plugins = ["iotmq.testing.fixtures"]` in a conftest.py has them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iotmq.testing.running import Gateway, gateway


@pytest.fixture
def iotmq_gateway() -> Iterator[Gateway]:
    """Run a gateway with an empty log for one test."""
    with gateway() as running:
        yield running


@pytest.fixture(scope="session")
def shared_iotmq_gateway() -> Iterator[Gateway]:
    """Run one gateway for all tests, which then need topics and groups of their own."""
    with gateway() as running:
        yield running
