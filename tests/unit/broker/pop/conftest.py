"""A broker to pop from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pop_bench import Bench


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    await bench.start()
    yield bench
    await bench.close()
