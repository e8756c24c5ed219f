"""Maxima have tests, and what grows from peers' input stands in one table with what bounds it."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from bounds import DERIVED, Bound

from iotmq import limits
from iotmq.broker.settings import BrokerSettings
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.registry.settings import RegistrySettings

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "iotmq"
CONSTANTS = [name for name in vars(limits) if name.isupper()]

SECTIONS = {"broker": BrokerSettings, "mqtt": MqttSettings, "registry": RegistrySettings}

_CONSTANT = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")
_SETTING = re.compile(r"\b(broker|mqtt|registry)\.([a-z0-9_]+)\b")


@cache
def names_in(path: str) -> frozenset[str]:
    """The names of the tests in a file."""
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@cache
def words_of_tests() -> frozenset[str]:
    return frozenset(
        word
        for path in (ROOT / "tests").rglob("*.py")
        if path != Path(__file__).resolve()
        for word in _CONSTANT.findall(path.read_text())
    )


def words_of(bound: Bound) -> str:
    return f"{bound.items} {bound.size_bytes}"


def test_no_structure_stands_there_twice() -> None:
    names = [bound.structure for bound in DERIVED]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("bound", DERIVED, ids=lambda bound: bound.structure)
def test_a_bound_names_what_there_is(bound: Bound) -> None:
    module, _, what = bound.structure.partition(": ")
    path = PACKAGE / module.replace(".", "/")
    assert what
    assert path.with_suffix(".py").exists() or path.with_suffix(".pyx").exists(), module
    assert bound.items
    assert bound.size_bytes
    text = path.with_suffix(".py") if path.with_suffix(".py").exists() else path.with_suffix(".pyx")
    for name in _CONSTANT.findall(words_of(bound)):
        assert name in CONSTANTS or f"{name}: Final" in text.read_text(), name
    for section, name in _SETTING.findall(words_of(bound)):
        assert name in SECTIONS[section].__struct_fields__, name
    file, _, test = bound.test.partition("::")
    assert test in names_in(file), bound.test


def test_every_maximum_is_named_by_a_test_or_by_the_table() -> None:
    named = words_of_tests().union(*(_CONSTANT.findall(words_of(bound)) for bound in DERIVED))
    assert set(CONSTANTS) - named == set()
