"""The ways to a front end, for tests that hold for each."""

from __future__ import annotations

import pytest
from mqtt_transports import TRANSPORTS, Files, Transport, make_files


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
