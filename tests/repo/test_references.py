"""The references of settings, metrics and the native client in docs/ are what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


def tool(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture
def write_reference(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    return tool("write_reference")


def test_the_types_of_the_blocking_classes_are_those_of_the_asynchronous_ones() -> None:
    blocking_stub = tool("blocking_stub")
    assert blocking_stub.stub() == blocking_stub.STUB.read_text(), "make reference"


def test_all_settings_are_in_the_documents(write_reference: ModuleType) -> None:
    assert write_reference.settings_page() == write_reference.SETTINGS_PAGE.read_text(), "make reference"


def test_all_metrics_are_in_the_documents(write_reference: ModuleType) -> None:
    """Those of a running process, and those that the code names and that come with the first event."""
    assert write_reference.metrics_page() == write_reference.METRICS_PAGE.read_text(), "make reference"


def test_all_public_names_of_the_client_are_in_the_documents(write_reference: ModuleType) -> None:
    assert write_reference.api_page() == write_reference.API_PAGE.read_text(), "make reference"


def test_all_routes_of_the_http_api_are_in_the_documents(write_reference: ModuleType) -> None:
    page = write_reference.http_api_page()
    assert page == write_reference.HTTP_API_PAGE.read_text(), "make reference"
    assert [line for line in page.splitlines() if line.startswith("| `") and line.endswith("|  |")] == []


def test_all_conditions_of_alarms_are_in_the_documents(write_reference: ModuleType) -> None:
    assert write_reference.alarms_page() == write_reference.ALARMS_PAGE.read_text(), "make reference"


def test_every_public_name_of_the_clients_has_a_meaning(write_reference: ModuleType) -> None:
    assert [line for line in write_reference.api_page().splitlines() if line.endswith("|  |")] == []
