"""A front end with all users in its file, whose ticks come soon."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from front_site import tick_quickly
from users_site import Site, file_of_all, running


@pytest.fixture(autouse=True)
def quick_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    tick_quickly(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return file_of_all(tmp_path)


@pytest.fixture
async def site(path: Path) -> AsyncIterator[Site]:
    async with running(path) as site:
        yield site
