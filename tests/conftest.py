"""What holds for all tests: examples per profile, and no test of code older than its source."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# No deadline per example: how long one takes says more about the machine's other work than about ours.
settings.register_profile("default", deadline=None)
settings.register_profile("fuzz", deadline=None, max_examples=20_000, suppress_health_check=list(HealthCheck))
settings.load_profile("default")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail before the first test when a compiled module that the tests use is older than its source."""
    stale = sorted(
        name for name, module in sys.modules.items() if _is_stale(getattr(module, "__file__", None))
    )
    if stale:
        raise pytest.UsageError(
            f"compiled modules older than their sources: {', '.join(stale)}; make compile"
        )


def _is_stale(file: str | None) -> bool:
    if not file or not file.endswith(".so"):
        return False
    built = Path(file)
    if not built.is_relative_to(ROOT) or ".venv" in built.parts:
        return False
    stem = built.parent / built.name.split(".", 1)[0]
    sources = [stem.with_suffix(suffix) for suffix in (".pyx", ".pxd", ".py")]
    return any(source.exists() and source.stat().st_mtime > built.stat().st_mtime for source in sources)
