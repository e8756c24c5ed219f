"""A class that is given many things does many: constructors take six at most, and values are structs."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARAMETERS_MAX = 6

# Values whose constructor checks or converts what it is given, so that they are no plain structs.
VALUES = {
    "iotmq/message/records/record.pyx": "SharedFields",
    "iotmq/mqtt/client/input.pyx": "ReceivedMessage",
    "iotmq/mqtt/server/connection_settings.pyx": "ConnectionSettings",
}

_COMPILED_CLASS = re.compile(r"^cdef class (\w+)|^ {4}def __c?init__\((.*?)\):", re.M | re.S)


@cache
def constructors(path: Path) -> list[tuple[str, int]]:
    """(class, parameters beside `self`) of every constructor that is written out."""
    text = path.read_text()
    if path.suffix == ".py":
        return [
            (node.name, len(method.args.posonlyargs + method.args.args + method.args.kwonlyargs) - 1)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ClassDef)
            for method in node.body
            if isinstance(method, ast.FunctionDef) and method.name == "__init__"
        ]
    found, name = [], ""
    for class_name, parameters in _COMPILED_CLASS.findall(text):
        if class_name:
            name = class_name
        else:
            names = [each.strip() for each in parameters.split(",")]
            found.append((name, len([each for each in names if each and each != "*"]) - 1))
    return found


SOURCES = sorted(path for path in (ROOT / "iotmq").rglob("*") if path.suffix in {".py", ".pyx"})


def test_constructors_of_both_kinds_are_found() -> None:
    found = {(path.suffix, name) for path in SOURCES for name, _ in constructors(path)}
    assert {(".py", "Store"), (".pyx", "Ingress")} <= found


def test_constructors_take_six_parameters_at_most() -> None:
    many = {
        (str(path.relative_to(ROOT)), name)
        for path in SOURCES
        for name, count in constructors(path)
        if count > PARAMETERS_MAX
    }
    assert many == VALUES.items()
