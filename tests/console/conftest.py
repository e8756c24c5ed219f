"""One Chromium and one gateway for all tests of the console, which run in one process (tests/conftest.py)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from console_browser import AXE, PROGRAM, SETTINGS, Chromium, OpenPage, Stub, Watched
from gateway_process import GatewayProcess

_running: list[Chromium] = []


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the browser behind the last test here: its driver keeps an event loop that others would be in."""
    if _running and (nextitem is None or nextitem.path.parent != item.path.parent):
        _running.pop().stop()


@pytest.fixture
def chromium() -> Chromium:
    if PROGRAM is None:
        pytest.skip("Chromium is not installed (Debian: apt install chromium-headless-shell)")
    if not AXE.exists():
        pytest.skip("the packages of the console are not there: make vendor")
    if not _running:
        _running.append(Chromium())
    return _running[0]


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway that all tests use; those that stop one make their own."""
    directory = tmp_path_factory.mktemp("console")
    settings = directory / "iotmq.toml"
    settings.write_text(SETTINGS)
    with GatewayProcess(directory / "data", config=settings) as running:
        yield running


@pytest.fixture(scope="session")
def origin(gateway: GatewayProcess) -> str:
    return f"http://127.0.0.1:{gateway.ports['http']}"


@pytest.fixture
def open_page(chromium: Chromium, origin: str) -> OpenPage:
    def opened(
        answers: dict[str, Any], *, role: str = "administrator", **more: Any
    ) -> AbstractContextManager[Watched]:
        me = {"name": role, "role": role, "way": "password", "expires_ms": None}
        stub = answers if isinstance(answers, Stub) else Stub({"GET /me": me} | answers)
        return chromium.page(origin, stub=stub, **more)

    return opened
