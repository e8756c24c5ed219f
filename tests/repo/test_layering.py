"""The directions of imports: every arrow points down, and the lower layers do no I/O."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "iotmq"

# From the bottom up; a module may import what stands on a lower line, and itself. The names of the
# first line may be used by all, and by each other without a circle.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset(
        {"bounds", "clock", "cycles", "errors", "limits", "log_format", "loop_slice"}
        | {"metrics", "setting_text", "supervised", "watched_file"}
    ),
    frozenset({"message"}),
    frozenset({"remoting", "mqtt"}),
    frozenset({"client", "store"}),
    frozenset({"mqtt_front", "mqtt_client", "bridge", "console", "broker", "registry"}),
    frozenset({"config"}),
    frozenset({"worker_channel", "connection_options"}),
    frozenset({"mqtt_workers"}),
    frozenset({"assembly", "by_hand", "store_tools", "admin_command", "mqtt_command"}),
    frozenset({"sessions_command", "users_command", "mqtt_worker"}),
    frozenset({"cli"}),
    frozenset({"__main__"}),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# Whole packages that must not appear in a layer. `mqtt` and `message` are given bytes and time; `store`
# touches files, and knows neither sockets nor an event loop.
_NETWORK = frozenset({"asyncio", "socket", "select", "selectors", "subprocess", "uvloop", "aiohttp"})
FORBIDDEN: dict[str, frozenset[str]] = {
    "message": _NETWORK | {"threading"},
    "mqtt": _NETWORK | {"threading"},
    "store": _NETWORK,
}

_CYTHON_IMPORT = re.compile(
    r"^\s*(?:from\s+([\w.]+)\s+c?import\s+(.+)|c?import\s+([\w.]+(?:\s*,\s*[\w.]+)*))", re.M
)


def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".pyx", ".pxd", ".pyi"})


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    """The dotted names of all modules that a source imports, wherever in it; relative ones made absolute."""
    text = path.read_text()
    if path.suffix in {".py", ".pyi"}:
        return _python_imports(ast.parse(text), _package_of(path))
    names: set[str] = set()
    for source, imported, plain in _CYTHON_IMPORT.findall(text):
        if plain:
            names.update(name.strip() for name in plain.split(","))
        else:
            base = _absolute(source, _package_of(path))
            names.add(base)
            if base == "iotmq":
                names.update(
                    f"iotmq.{name.split()[0]}" for name in imported.strip("() \\").split(",") if name.strip()
                )
    return names


def _python_imports(tree: ast.AST, package: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute("." * node.level + (node.module or ""), package)
            names.add(base)
            if base == "iotmq":
                names.update(f"iotmq.{alias.name}" for alias in node.names)
    return names


def _package_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).parent.parts)


def _absolute(name: str, package: str) -> str:
    dots = len(name) - len(name.lstrip("."))
    if not dots:
        return name
    parts = package.split(".")
    return ".".join(parts[: len(parts) - dots + 1] + ([name[dots:]] if name[dots:] else []))


def layer_name(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "iotmq" and len(parts) > 1 else None


def arrows_not_down(path: Path) -> list[str]:
    own = layer_name(module_name(path))
    if own is None:
        return []
    wrong = []
    for imported in sorted(imports_of(path)):
        other = layer_name(imported)
        if other is None or other == own or other not in LEVEL:
            continue
        if LEVEL[other] >= LEVEL[own] and not LEVEL[own] == LEVEL[other] == 0:
            wrong.append(f"{path.relative_to(ROOT)} imports {imported}")
    return wrong


def test_every_module_has_a_layer() -> None:
    names = {layer_name(module_name(path)) for path in sources()} - {None}
    assert names <= set(LEVEL), "name the layer of new modules in LAYERS"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    assert arrows_not_down(path) == []


def test_leaves_import_each_other_without_a_circle() -> None:
    graph = {
        name: {
            other for other in map(layer_name, imports_of(PACKAGE / f"{name}.py")) if other and other != name
        }
        for name in LAYERS[0]
    }
    while ready := {name for name, needs in graph.items() if not needs & graph.keys()}:
        for name in ready:
            del graph[name]
    assert not graph


@pytest.mark.parametrize("layer", sorted(FORBIDDEN))
def test_lower_layers_do_no_input_or_output(layer: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {imported}"
        for path in sources()
        if layer_name(module_name(path)) == layer
        for imported in sorted(imports_of(path))
        if imported.split(".")[0] in FORBIDDEN[layer]
    ]
    assert wrong == []


def test_an_upward_arrow_is_seen_in_every_kind_of_source(tmp_path: Path) -> None:
    cases = {
        "from iotmq.broker.broker import Broker\n": {"iotmq.broker.broker"},
        "def f():\n    import iotmq.cli\n": {"iotmq.cli"},
        "from iotmq import broker, errors\n": {"iotmq", "iotmq.broker", "iotmq.errors"},
        "from ..broker import intake\n": {"iotmq.broker"},
    }
    for text, expected in cases.items():
        assert _python_imports(ast.parse(text), "iotmq.store") == expected
    assert _CYTHON_IMPORT.findall(
        "from iotmq.message.record cimport tag_hash\ncimport iotmq.broker.x, cython\n"
    ) == [
        ("iotmq.message.record", "tag_hash", ""),
        ("", "", "iotmq.broker.x, cython"),
    ]
