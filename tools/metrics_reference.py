"""All metrics there are, for docs/reference/metrics.md: their names, types, labels, and what each counts."""

from __future__ import annotations

import ast
import asyncio
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from iotmq.assembly import Process
from iotmq.config.config import load_config
from iotmq.metrics import Metric, kind_of

PACKAGE: Final = Path(__file__).resolve().parents[1] / "iotmq"

# An all-in-one process in which everything that has numbers is on.
_SETTINGS: Final = (
    "registry.listen_port=0",
    "broker.listen_port=0",
    "http.listen_port=0",
    "mqtt.listen_port=0",
    "mqtt.sys_interval_s=1.0",
)

# Functions that are told how names begin: file -> beginning -> labels.
_TOLD: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "remoting/tls/files.py": {
        "iotmq_remoting_tls": ("listener",),
        "iotmq_mqtt_listener_tls": ("listener",),
        "iotmq_http_tls": (),
    },
    "audit_log.py": {"iotmq_http_api": ()},
}

_PARTS: Final = (
    ("iotmq_mqtt_", "MQTT front ends"),
    ("iotmq_broker_", "Brokers"),
    ("iotmq_store_", "The store"),
    ("iotmq_registry_", "Registries"),
    ("iotmq_http_", "The HTTP port"),
    ("iotmq_client_", "The native client"),
    ("iotmq_topic_", "Topics, at `/metrics/topics?match=PATTERN`"),
    ("iotmq_", "Every process"),
)


class Family(NamedTuple):
    """A metric with all its samples."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def families() -> list[Family]:
    """All there are, by name: what a process says right after its start, and what the code says later."""
    found = {family.name: family for family in _in_the_code()}
    for metric in asyncio.run(_at_the_start()):
        known = found.get(metric.family)
        own = [name for name, _ in metric.labels if (metric.kind, name) != ("histogram", "le")]
        labels = dict.fromkeys((*(known.labels if known else ()), *own))
        found[metric.family] = Family(metric.family, metric.kind, tuple(labels), metric.help)
    return [found[name] for name in sorted(found)]


def tables(all_families: Iterable[Family]) -> str:
    """Tables of them, a part of iotmq each."""
    left = list(all_families)
    lines = []
    for prefix, title in _PARTS:
        mine = [family for family in left if family.name.startswith(prefix)]
        left = [family for family in left if family not in mine]
        lines += [
            f"## {title}",
            "",
            "| metric | type | labels | what it counts |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| `{family.name}` | {family.kind} | {', '.join(f'`{name}`' for name in family.labels)} "
            f"| {family.text.rstrip('.').replace('|', chr(92) + '|')} |"
            for family in mine
        ]
        lines.append("")
    return "\n".join(lines).rstrip()


def _in_the_code() -> Iterable[Family]:
    """Calls of samples and samples_by whose names and texts stand there; a process says the others."""
    for path in sorted(PACKAGE.rglob("*.py")):
        told = _TOLD.get(path.relative_to(PACKAGE).as_posix(), {"": ()})
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                for prefix, labels in told.items():
                    for family in _in_function(function, {"prefix": prefix} if prefix else {}):
                        yield family._replace(labels=(*labels, *family.labels))


def _in_function(function: ast.FunctionDef, told: Mapping[str, str]) -> Iterable[Family]:
    texts = {**told, **dict(_texts_of(function))}
    labels = dict(_labels_of(function))
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "samples":
            yield from _families_of(node, texts, labels)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "samples_by":
            yield from _family_of(node, texts, labels)


def _texts_of(function: ast.FunctionDef) -> Iterable[tuple[str, str]]:
    """What names stand for that a function gives a text."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                yield name, text


def _labels_of(function: ast.FunctionDef) -> Iterable[tuple[str, ast.expr]]:
    """What names stand for that a function gives labels."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Tuple() as labels):
                yield name, labels


def _family_of(call: ast.Call, texts: Mapping[str, str], labels: Mapping[str, ast.expr]) -> Iterable[Family]:
    try:
        label, name, text = (_text(argument, texts) for argument in call.args[:3])
    except (KeyError, ValueError):
        return
    yield Family(name, kind_of(name), (*_label_names(call, labels), label), text)


def _families_of(call: ast.Call, texts: Mapping[str, str], known: Mapping[str, ast.expr]) -> Iterable[Family]:
    """The rows of a table."""
    prefixes = [word.value for word in call.keywords if word.arg == "prefix"]
    labels = tuple(_label_names(call, known))
    for row in call.args:
        if isinstance(row, ast.Tuple):
            try:
                *prefix, name, text = (_text(cell, texts) for cell in (*prefixes, *row.elts[:2]))
            except (KeyError, ValueError):
                continue
            yield Family("".join((*prefix, name)), kind_of(name), labels, text)


def _text(node: ast.expr, texts: Mapping[str, str]) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            return texts[name]
        case ast.JoinedStr(values=parts):
            values = [part.value if isinstance(part, ast.FormattedValue) else part for part in parts]
            return "".join(_text(value, texts) for value in values)
    raise ValueError(ast.unparse(node))


def _label_names(call: ast.Call, known: Mapping[str, ast.expr]) -> Iterable[str]:
    for word in call.keywords:
        value = known.get(word.value.id, word.value) if isinstance(word.value, ast.Name) else word.value
        for node in ast.walk(value) if word.arg == "labels" else ():
            match node:
                case ast.Tuple(elts=[ast.Constant(value=str(name)), _]):
                    yield name


async def _at_the_start() -> list[Metric]:
    with tempfile.TemporaryDirectory() as directory:
        process = Process(load_config(data=directory, assignments=_SETTINGS), "serve")
        await process.start()
        try:
            return list(process.metrics())
        finally:
            await process.stop()
