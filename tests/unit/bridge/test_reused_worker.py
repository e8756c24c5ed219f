"""Collections of garbage in workers of Spark."""

from __future__ import annotations

import gc

import pytest

from iotmq.bridge import reused_worker


@pytest.mark.parametrize(("environment", "count"), [("1", 1), ("", 0), (None, 0)])
def test_a_worker_of_spark_sets_aside_what_it_has_loaded_once(
    monkeypatch: pytest.MonkeyPatch, environment: str | None, count: int
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(reused_worker, "_is_done", False)
    if environment is None:
        monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    else:
        monkeypatch.setenv("SPARK_REUSE_WORKER", environment)
    for _task in range(3):
        reused_worker.set_libraries_aside()
    # Garbage that is there would be set aside, too.
    assert calls == ["collect", "freeze"] * count
