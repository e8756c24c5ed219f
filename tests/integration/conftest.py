"""The ways to a front end, for tests that hold for each, and replicated brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_etcd import FakeEtcd, FakeEtcdData
from member_site import MakeSite, Site
from mqtt_transports import TRANSPORTS, Files, Transport, make_files

from iotmq.clock import SystemClock


@pytest.fixture(scope="module")
def listener_files(tmp_path_factory: pytest.TempPathFactory) -> Files | None:
    return make_files(tmp_path_factory)


@pytest.fixture(params=TRANSPORTS, ids=lambda transport: transport.name)
def transport(request: pytest.FixtureRequest, listener_files: Files | None) -> Transport:
    """One after the other; those that need certificates are skipped where nothing can make them."""
    found: Transport = request.param
    if found.is_encrypted and listener_files is None:
        pytest.skip("the openssl command is not there")
    return found._replace(files=listener_files)


@pytest.fixture
async def etcd() -> AsyncIterator[FakeEtcd]:
    async with FakeEtcd(FakeEtcdData(SystemClock())) as node:  # type: ignore[arg-type]
        yield node


@pytest.fixture
async def make(tmp_path: Path, etcd: FakeEtcd) -> AsyncIterator[MakeSite]:
    sites: list[Site] = []

    def make(count: int = 3) -> Site:
        sites.append(Site(tmp_path, etcd, count))
        return sites[-1]

    yield make
    for site in sites:
        for number in list(site.members):
            await site.stop(number)
