"""The directions of imports: every arrow points down, and the lower layers do no I/O."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "iotmq"

# From the bottom up; a module may import what stands on a lower line, and itself. The names of the
# first line may be used by all, and by each other.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset(
        {"addresses", "backoff", "clock", "cycles", "errors", "files", "hooks", "limits"}
        | {"log_format", "event_loop", "metrics", "secret_text", "service_manager", "setting_types"}
        | {"spelling", "supervised", "watched_file"}
    ),
    frozenset({"history", "message", "ports", "telemetry"}),
    frozenset({"audit_log", "credentials", "mqtt", "remoting"}),
    # Asks etcd or Kubernetes; the rest of replication does no I/O.
    frozenset({"replication.consensus"}),
    frozenset({"client", "replication", "store"}),
    frozenset({"alarms", "front_port", "replicated"}),
    frozenset({"bridge", "broker", "console", "mqtt_client", "mqtt_front", "registry"}),
    frozenset({"amqtt_edge", "mqtt_bridge"}),
    frozenset({"config"}),
    # A broker with others of its name: a member in both its roles, a master or slave of RocketMQ 4.9.
    frozenset({"master_slave", "member"}),
    frozenset({"workers"}),
    frozenset({"assembly"}),
    frozenset({"testing"}),
    frozenset({"commands"}),
    frozenset({"__main__"}),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# Whole packages that must not appear in a layer. `mqtt` and `message` are given bytes and time; `store`
# touches files, and knows neither sockets nor an event loop.
_NETWORK = frozenset({"asyncio", "socket", "select", "selectors", "subprocess", "uvloop", "aiohttp"})
FORBIDDEN: dict[str, frozenset[str]] = {
    "message": _NETWORK | {"threading"},
    "mqtt": _NETWORK | {"threading"},
    "replication": _NETWORK | {"threading"},
    "replicated": _NETWORK | {"threading"},
    "store": _NETWORK,
}

_CYTHON_IMPORT = re.compile(
    r"^\s*(?:from\s+([\w.]+)\s+c?import\s+(.+)|c?import\s+([\w.]+(?:\s*,\s*[\w.]+)*))", re.M
)


@cache
def sources() -> tuple[Path, ...]:
    suffixes = {".py", ".pyx", ".pxd", ".pyi"}
    return tuple(sorted(path for path in PACKAGE.rglob("*") if path.suffix in suffixes))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or any(path.with_suffix(suffix).exists() for suffix in (".py", ".pyx", ".pxd"))


@cache
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
            imported_names = [name.split()[0] for name in imported.strip("() \\").split(",") if name.strip()]
            names.update(name for each in imported_names if is_module(name := f"{base}.{each}"))
    return names


def _python_imports(tree: ast.AST, package: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute("." * node.level + (node.module or ""), package)
            names.add(base)
            names.update(name for alias in node.names if is_module(name := f"{base}.{alias.name}"))
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
    """The longest part of a module's name that LAYERS has; its first part when there is none."""
    parts = module.split(".")[1:]
    if module.split(".")[0] != "iotmq" or not parts:
        return None
    sizes = range(len(parts), 0, -1)
    return next((name for size in sizes if (name := ".".join(parts[:size])) in LEVEL), parts[0])


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
    split = {name.partition(".")[0] for name in LEVEL if "." in name}
    modules = {module_name(path) for path in sources()} - {f"iotmq.{name}" for name in split}
    names = {layer_name(module) for module in modules} - {None}
    assert names <= set(LEVEL), "name the layer of new modules in LAYERS"


def test_imports_point_down() -> None:
    assert [arrow for path in sources() for arrow in arrows_not_down(path)] == []


def modules_in_circles(graph: dict[str, set[str]]) -> set[str]:
    """The modules on a circle of imports, and those between two circles."""
    left = {name: set(needs) & graph.keys() for name, needs in graph.items()}
    while ends := {name for name, needs in left.items() if not needs & left.keys()} | (
        left.keys() - set().union(*left.values())
    ):
        for name in ends:
            del left[name]
    return set(left)


def test_modules_import_each_other_without_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for path in sources():
        if path.name != "__init__.py":
            name = module_name(path)
            graph.setdefault(name, set()).update(imports_of(path) - {name})
    assert modules_in_circles(graph) == set()


def test_a_circle_of_three_is_found_with_what_hangs_on_it_left_out() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "above": {"a"}}
    assert modules_in_circles(graph) == {"a", "b", "c"}


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


# The rooms inside a package from the bottom up; modules at the top of a package are rooms of their own.
# A room imports rooms on its left.
FLOORS: dict[str, tuple[str, ...]] = {
    "broker": (
        "settings",
        "broker_role",
        "statistics",
        "tables",
        "filters",
        "members",
        "replies",
        "writing",
        "exactly_once",
        "parts",
        "scheduled",
        "pop",
        "transactions",
        "questions",
        "delivery",
        "light_queues",
        "session_store",
        "shares",
        "sessions",
        "topic_changes",
        "access",
        "registration",
        "handlers",
        "assemble",
        "broker",
    ),
    "store": (
        "settings",
        "fail_points",
        "log",
        "files",
        "queues",
        "kv",
        "projections",
        "recovery",
        "retention",
        "replication",
        "checks",
        "reader",
        "store",
        "tools",
    ),
    "client": (
        "transport",
        "sending",
        "observing",
        "consuming",
        "admin",
        "client",
        "connecting",
        "blocking",
    ),
    "mqtt": (
        "operator_state",
        "bans",
        "reason_codes",
        "errors",
        "topics",
        "codec",
        "auth",
        "server",
        "client",
    ),
    "mqtt_front": (
        "settings",
        "patterns",
        "limiting",
        "connection",
        "audit",
        "access",
        "permissions",
        "plugins",
        "routing",
        "publish",
        "deliver",
        "hooks",
        "sessions",
        "tracing",
        "views",
        "listen",
        "metrics",
        "front_parts",
        "server",
    ),
    "replication": (
        "consensus",
        "rocketmq",
        "cluster_state",
        "epochs",
        "messages",
        "ports",
        "next_state",
        "state_change",
        "leading",
        "member",
        "settings",
    ),
    "member": (
        "wire",
        "peers",
        "table_stream",
        "master_link",
        "follower_links",
        "consensus_requests",
        "report",
        "log_checksums",
        "log_comparison",
        "copying",
        "copy_download",
        "copying_member",
        "driver",
        "relay",
        "listener",
        "replicated_broker",
    ),
    "replicated": ("member_file", "member_log", "member_store", "hot_copy", "incoming_copy"),
    "registry": (
        "routes",
        "settings",
        "access",
        "changed_settings",
        "kv",
        "registration",
        "watches",
        "server",
    ),
    "front_port": (
        "kept_connection",
        "filter_homes",
        "delivery_channel",
        "request_turns",
        "session_answers",
        "gateway",
        "session_link",
        "exclusive_claims",
        "session_parts",
        "session_brokers",
        "session_gateway",
    ),
    "history": (
        *("settings", "rings", "questions", "merging", "sampler", "block_sums", "statistics_file"),
        "tables",
    ),
    "ports": (
        "inspections",
        "replication_state",
        "websockets",
        "traces",
        "client_pages",
        "gateway",
        "sessions",
        "bodies",
        "session_pages",
        "publishing",
        "device_access",
    ),
    "mqtt_client": (
        "address",
        "errors",
        "scram",
        "tls",
        "settings",
        "websocket_link",
        "links",
        "connection",
        "unread",
        "client",
    ),
    "bridge": (
        "said_first",
        "offsets",
        "plan",
        "gaps",
        "topic_bounds",
        "cluster",
        "options",
        "progress",
        "edges",
        "pull",
        "pool",
        "reused_worker",
        "pace",
        "pushed",
        "derived",
        "rows",
        "segments",
        "sink",
        "source",
        "spark_session",
        "query_listener",
        "submitting",
        "jobs",
    ),
    "alarms": (
        "condition",
        "alarm",
        "cluster_conditions",
        "conditions",
        "settings",
        "silence",
        "engine",
        "measures",
        "notification",
        "book",
        "kept",
        "receivers",
        "senders",
        "feed",
        "delivery",
        "lease",
        "shared",
        "watch",
        "role",
    ),
    "console": ("settings", "exposition", "server", "access", "assets", "pages", "api"),
    "config": ("setting_text", "config"),
    "workers": ("channel", "supervisor"),
    "commands": (
        "connection_options",
        "admin",
        "mqtt",
        "messages",
        "store",
        "salvage",
        "devices",
        "console",
        "alarms",
        "replication",
        "bridges",
        "loadtest",
        "spark",
        "mqtt_worker",
        "command_parser",
        "config_check",
        "cli",
    ),
    "remoting": (
        "codes",
        "command",
        "properties_text",
        "lenient_json",
        "signature",
        "frames",
        "traffic",
        "tls",
        "channel",
        "connection",
        "server",
        "blocking",
    ),
}


def room_of(module: str) -> tuple[str, str] | None:
    """A module's package, and its room in there, when the package has floors."""
    parts = module.split(".")
    return (parts[1], parts[2]) if len(parts) > 2 and parts[1] in FLOORS else None


def arrows_between_rooms() -> dict[str, set[str]]:
    """The arrows of each package that do not point to a lower room, with the files that have them."""
    wrong: dict[str, set[str]] = {}
    for path in sources():
        own = room_of(module_name(path))
        for imported in imports_of(path) if own else ():
            other = room_of(imported)
            if own is None or other is None or own == other or own[0] != other[0]:
                continue
            floors = FLOORS[own[0]]
            if other[1] in floors and floors.index(other[1]) > floors.index(own[1]):
                arrow = f"{own[0]}: {own[1]} -> {other[1]}"
                wrong.setdefault(arrow, set()).add(str(path.relative_to(ROOT)))
    return wrong


def test_every_room_has_a_floor() -> None:
    rooms = {room for path in sources() if (room := room_of(module_name(path)))}
    assert {room for room in rooms if room[1] not in FLOORS[room[0]]} == set()
    assert {(package, room) for package, floors in FLOORS.items() for room in floors} == rooms


def test_rooms_import_lower_rooms_only() -> None:
    assert arrows_between_rooms() == {}


def test_an_upward_arrow_is_seen_in_every_kind_of_source(tmp_path: Path) -> None:
    cases = {
        "from iotmq.broker.broker import Broker\n": {"iotmq.broker.broker"},
        "def f():\n    import iotmq.commands.cli\n": {"iotmq.commands.cli"},
        "from iotmq import broker, errors\n": {"iotmq", "iotmq.broker", "iotmq.errors"},
        "from ..broker import writer\n": {"iotmq.broker"},
    }
    for text, expected in cases.items():
        assert _python_imports(ast.parse(text), "iotmq.store") == expected
    assert _CYTHON_IMPORT.findall(
        "from iotmq.message.records.record cimport tag_hash\ncimport iotmq.broker.x, cython\n"
    ) == [
        ("iotmq.message.records.record", "tag_hash", ""),
        ("", "", "iotmq.broker.x, cython"),
    ]
