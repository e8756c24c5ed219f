"""The words of `iotmq bridges`: run the bridges alone, and show how they are doing."""

from __future__ import annotations

import argparse
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from iotmq.addresses import address_text
from iotmq.commands.admin.output import Table, as_json
from iotmq.errors import ConnectionClosedError

if TYPE_CHECKING:
    from iotmq.config.config import Config

_OK: Final = 0
_SOME_AWAY: Final = 1
_TIMEOUT_S: Final = 5.0
_METRICS_BYTES_MAX: Final = 64 * 1024 * 1024
_SAMPLE: Final = re.compile(r'(iotmq_(?:mqtt_)?bridge_\w+)\{bridge="((?:[^"\\]|\\.)*)"\} (\S+)')
_ESCAPED: Final = re.compile(r"\\(.)")
# Column -> what it is without its prefix.
_COLUMNS: Final = {
    "connections": "connections",
    "lag": "lag_messages",
    "oldest_s": "lag_seconds",
    "sent": "sent_total",
    "acknowledged": "acknowledged_total",
    "refused": "refused_total",
    "put_aside": "put_aside_total",
    "received": "received_total",
    "reconnects": "reconnects_total",
    "lost": "lost_total",
}


def add_bridges_actions(
    bridges: argparse.ArgumentParser,
    *,
    add_config_options: Callable[[argparse.ArgumentParser], None],
    load: Callable[[argparse.Namespace], Config],
    run: Callable[[argparse.Namespace], int],
) -> None:
    """Add the actions of `bridges`."""
    actions = bridges.add_subparsers(title="actions", metavar="ACTION", required=True)
    running = actions.add_parser("run", help="run the bridges of the settings for brokers in other processes")
    add_config_options(running)
    running.set_defaults(command=run, role="bridges")
    status = actions.add_parser(
        "status",
        help="show the bridges of a gateway, and those that are connected to it",
        description="Show the bridges of a gateway, and those of other brokers that are connected to it. "
        "Exit codes: 0 all are connected, 1 some are not or may not subscribe, or the gateway cannot be "
        "asked.",
    )
    add_config_options(status)
    status.add_argument(
        "--http",
        metavar="URL",
        help="HTTP port of the gateway (that of the settings, whose first token is used)",
    )
    status.add_argument("--json", dest="is_json", action="store_true", help="print JSON")
    status.set_defaults(command=lambda options: _status(options, load))


def _status(options: argparse.Namespace, load: Callable[[argparse.Namespace], Config]) -> int:
    url = options.http
    http = load(options).http
    if url is None:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(http.listen_host, http.listen_host)
        scheme = "https" if http.tls_certificate_file else "http"
        url = f"{scheme}://{address_text(host, http.listen_port)}"
    token = http.tokens[0].token if http.tokens else ""
    rows, is_well = bridge_rows(_metrics_of(url.rstrip("/") + "/metrics", token))
    result = Table(rows, columns=("bridge", "is", *_COLUMNS), nothing="no bridges")
    print(as_json(result) if options.is_json else result.text(), end="")
    return _OK if is_well else _SOME_AWAY


def _metrics_of(url: str, token: str) -> str:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            data: bytes = answer.read(_METRICS_BYTES_MAX)
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ConnectionClosedError(f"{url} cannot be read: {reason}") from None
    return data.decode()


def bridge_rows(metrics: str) -> tuple[list[dict[str, Any]], bool]:
    """Make a row for each bridge from the text of /metrics; False when one of them is not well."""
    own: dict[str, dict[str, float]] = {}
    peers: dict[str, float] = {}
    for name, label, value in _SAMPLE.findall(metrics):
        bridge = _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], label)
        if name == "iotmq_mqtt_bridge_connected":
            peers[bridge] = float(value)
        elif name.startswith("iotmq_bridge_"):
            own.setdefault(bridge, {})[name.removeprefix("iotmq_bridge_")] = float(value)
    rows: list[dict[str, Any]] = []
    is_well = True
    for bridge, values in sorted(own.items()):
        is_connected = values.get("connections", 0) >= values.get("connections_wanted", 1)
        is_refused = bool(values.get("filters_refused", 0))
        is_well &= is_connected and not is_refused
        state = "may not subscribe" if is_refused else "connected"
        row: dict[str, Any] = {"bridge": bridge, "is": state if is_connected else "away"}
        row.update({column: int(values.get(key, 0)) for column, key in _COLUMNS.items()})
        rows.append(row)
    for bridge, value in sorted(peers.items()):
        is_well &= bool(value)
        rows.append({"bridge": bridge, "is": "connected here" if value else "gone from here"})
    return rows, is_well
