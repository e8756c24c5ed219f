"""One gateway per test file: foreign clients share it as they would share a real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gateway_process import GatewayProcess
from java_process import JavaProcesses, RunMqadmin, java_processes, mqadmin_of


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Delays of a second, so that a failed message comes back, and a transaction is asked about, in time."""
    data = tmp_path_factory.mktemp("gateway") / "data"
    with GatewayProcess(
        data,
        "broker.delay_levels=1s 1s 1s 1s 2s 3s",
        "broker.transaction_timeout_s=1",
        "broker.transaction_check_interval_s=1",
        "broker.transaction_checks_max=100",
    ) as running:
        yield running


@pytest.fixture(scope="module")
def javas(gateway: GatewayProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProcesses]:
    with java_processes(tmp_path_factory.mktemp("java"), gateway.registry) as running:
        yield running


@pytest.fixture(scope="module")
def mqadmin(javas: JavaProcesses) -> RunMqadmin:
    return mqadmin_of(javas)
