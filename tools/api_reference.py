"""The public names of the client packages for docs/reference/api.md: calls, values and docstrings."""

from __future__ import annotations

import ast
import enum
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

import iotmq.client
import iotmq.mqtt_client
from iotmq.config.setting_text import reference

# By the package below iotmq.client or iotmq.message that has them; a class of settings goes to the last part.
_PARTS: Final = {
    "client": "The client",
    "transport": "Messages and queues",
    "sending": "Sending, requests and replies",
    "consuming": "Consuming",
    "observing": "Looking at messages",
    "records": "Records",
    "admin": "Administration",
    "blocking": "Without an event loop",
    "settings": "Settings",
    "mqtt_client": "The MQTT client",
}


class Entry(NamedTuple):
    """A call or value of a class, as a row of its table."""

    text: str
    meaning: str


def pages() -> str:
    """All public names, part by part, as Markdown."""
    by_part: dict[str, list[str]] = {part: [] for part in _PARTS}
    for name in sorted(iotmq.client.__all__):
        value = getattr(iotmq.client, name)
        part = value.__module__.split(".")[2].replace("connecting", "client")
        by_part["settings" if _is_settings(value) else part].append(_section(name, value))
    by_part["mqtt_client"] = [
        _section(name, getattr(iotmq.mqtt_client, name)) for name in sorted(iotmq.mqtt_client.__all__)
    ]
    return "\n".join(
        f"## {title}\n\n" + "\n".join(by_part[part]) for part, title in _PARTS.items() if by_part[part]
    )


def _is_settings(value: Any) -> bool:
    is_struct = isinstance(value, type) and issubclass(value, msgspec.Struct)
    return is_struct and value.__name__.endswith("Settings")


def _section(name: str, value: Any) -> str:
    lines = [f"### {name}", "", _one_line(inspect.getdoc(value) or ""), ""]
    if not isinstance(value, type):
        return "\n".join([*lines, f"`{_signature(_tree(value))}`", ""])
    if _is_settings(value):
        return "\n".join([*lines, reference(value)])
    entries: dict[str, Entry] = {}
    for base in reversed(value.__mro__):
        if base.__module__.startswith("iotmq."):
            entries.update(_entries(name, _tree(base)))
    if issubclass(value, enum.Enum):
        entries = {member.name: entries.get(member.name, Entry(f"`{member.name}`", "")) for member in value}
    entries = {key: entries[key] for key in sorted(entries, key=lambda key: key != "__init__")}
    lines += ["| call or value | meaning |", "| --- | --- |"]
    lines += [f"| {entry.text} | {entry.meaning} |" for entry in entries.values()]
    return "\n".join([*lines, ""])


def _tree(value: Any) -> Any:
    """The source of a class or function; its stub where it has one, with the docstrings from run time."""
    module = sys.modules[value.__module__]
    stub = Path(str(module.__file__).partition(".")[0]).with_suffix(".pyi")
    if not stub.exists():
        return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    nodes = ast.parse(stub.read_text()).body
    (tree,) = [node for node in nodes if getattr(node, "name", "") == value.__name__]
    for node in tree.body if isinstance(tree, ast.ClassDef) else ():
        if isinstance(node, ast.FunctionDef) and node.name != "__init__":
            doc = inspect.getdoc(getattr(value, node.name))
            node.body = [ast.Expr(ast.Constant(doc))] if doc else node.body
    return tree


def _entries(class_name: str, tree: ast.ClassDef) -> Iterator[tuple[str, Entry]]:
    """The public calls and values of a class that have a docstring, in the order of its source."""
    for index, node in enumerate(tree.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == "__init__":
                yield node.name, Entry(f"`{_signature(node, class_name)}`", _doc(node) or "The constructor.")
                yield from _values(node.body, prefix="self.")
            elif not node.name.startswith("_") and _doc(node):
                text = node.name if _is_property(node) else _signature(node)
                yield node.name, Entry(f"`{text}`", _doc(node))
        else:
            yield from _values(tree.body[index : index + 2], prefix="")


def _values(body: list[ast.stmt], *, prefix: str) -> Iterator[tuple[str, Entry]]:
    """Assignments with a string behind them, and annotated names of a class."""
    for node, behind in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            target: ast.expr = node.target
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        else:
            continue
        text = ast.unparse(target)
        name = text.removeprefix(prefix)
        meaning = ""
        if isinstance(behind, ast.Expr) and isinstance(behind.value, ast.Constant):
            meaning = _one_line(str(behind.value.value))
        is_field = not prefix and isinstance(node, ast.AnnAssign)
        if text.startswith(prefix) and name.isidentifier() and name[0] != "_" and (meaning or is_field):
            kind = f": {ast.unparse(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
            yield name, Entry(f"`{_cell(name + kind)}`", meaning)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str = "") -> str:
    arguments = ast.unparse(node.args).removeprefix("self").removeprefix(", ")
    result = "" if name or node.returns is None else f" -> {ast.unparse(node.returns)}"
    waits = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    return _cell(f"{waits}{name or node.name}({arguments}){result}")


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(decorator) == "property" for decorator in node.decorator_list)


def _doc(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return _one_line(ast.get_docstring(node) or "")


def _one_line(text: str) -> str:
    return _cell(" ".join(text.split()))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
