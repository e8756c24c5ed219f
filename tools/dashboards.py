"""Write the dashboards of deploy/grafana: an overview, and all metrics of the reference by part."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "deploy" / "grafana"
METRICS_PAGE: Final = ROOT / "docs" / "reference" / "metrics.md"

# Of the page of metrics itself, and of every process: the reference has what parts report.
OF_THE_PAGE: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "iotmq_metrics_errors_total": ("counter", ()),
    "process_cpu_seconds_total": ("counter", ()),
    "process_resident_memory_bytes": ("gauge", ()),
    "process_virtual_memory_bytes": ("gauge", ()),
    "process_open_fds": ("gauge", ()),
    "process_max_fds": ("gauge", ()),
    "process_start_time_seconds": ("gauge", ()),
}
# On no dashboard, and why.
EXCEPTIONS: Final[Mapping[str, str]] = {
    "iotmq_broker_put_latency_seconds": "the histogram iotmq_broker_put_seconds is shown",
    "iotmq_broker_get_latency_seconds": "the histogram iotmq_broker_get_seconds is shown",
    "iotmq_mqtt_loop_lag_seconds": "every process has iotmq_loop_lag_seconds",
}
_ROW: Final = re.compile(r"\| `(\w+)` \| (\w+) \| ([^|]*) \| (.*) \|")
_HERE: Final = 'job=~"$job", instance=~"$instance"'
_SERIES_MAX: Final = 12


class Metric(NamedTuple):
    """A metric of the reference."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


class Query(NamedTuple):
    """One query of a panel, and how its series are called."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """A chart; its row and its place come with the board."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    text: str = ""


class Board(NamedTuple):
    """All metrics with some prefixes: row -> title of panels -> names or patterns, without `iotmq_`."""

    file: str
    title: str
    prefixes: tuple[str, ...]
    rows: Mapping[str, Mapping[str, str]]


def metrics() -> dict[str, Metric]:
    """All there are by name, histograms once."""
    found = {name: Metric(name, kind, labels, "") for name, (kind, labels) in OF_THE_PAGE.items()}
    for line in METRICS_PAGE.read_text().splitlines():
        if match := _ROW.fullmatch(line):
            name, kind, labels, text = match.groups()
            found[name] = Metric(name, kind, tuple(re.findall(r"`(\w+)`", labels)), text)
    return found


def dashboards() -> dict[str, str]:
    """File name -> contents."""
    known = metrics()
    boards = {"iotmq-overview.json": _board("iotmq-overview", "iotmq: overview", OVERVIEW)}
    left = {name: metric for name, metric in known.items() if name not in EXCEPTIONS}
    for board in BOARDS:
        own = [metric for name, metric in left.items() if name.startswith(board.prefixes)]
        left = {name: metric for name, metric in left.items() if metric not in own}
        boards[f"{board.file}.json"] = _board(board.file, board.title, _rows(board, own))
    assert not left, f"no board has {', '.join(left)}"
    return {
        file: json.dumps(content, indent=1, ensure_ascii=False) + "\n" for file, content in boards.items()
    }


def expressions(content: str) -> list[str]:
    """The queries of a dashboard."""
    return [
        target["expr"]
        for panel in json.loads(content)["panels"]
        for inner in (panel, *panel.get("panels", ()))
        for target in inner.get("targets", ())
    ]


# Panels of metrics ------------------------------------------------------------------------------------


def _rows(board: Board, own: Sequence[Metric]) -> Iterator[tuple[str, list[Panel]]]:
    """Each metric is in the first panel that names it; what none names is in the last row."""
    left = list(own)
    for row, panels in board.rows.items():
        shown: list[Panel] = []
        for title, names in panels.items():
            mine = [
                metric
                for pattern in names.split()
                for metric in left
                if fnmatchcase(metric.name.removeprefix("iotmq_"), pattern)
            ]
            mine = list(dict.fromkeys(mine))
            left = [metric for metric in left if metric not in mine]
            shown += _panels(title, mine)
        if shown:
            yield row, shown
    if left:
        yield "More", list(_panels("More", left))


def _panels(title: str, chosen: Iterable[Metric]) -> Iterator[Panel]:
    """One panel for what has one unit: rates are not drawn beside numbers."""
    groups: dict[tuple[str, str], list[Metric]] = {}
    for metric in chosen:
        groups.setdefault((_unit(metric), "histogram" if metric.kind == "histogram" else ""), []).append(
            metric
        )
    for number, ((unit, _), group) in enumerate(groups.items()):
        for begin in range(0, len(group), _SERIES_MAX):
            part = group[begin : begin + _SERIES_MAX]
            more = "" if number == begin == 0 else f" ({_UNIT_NAMES.get(unit, unit)})"
            text = "\n".join(f"- `{metric.name}`: {metric.text}" for metric in part)
            yield Panel(f"{title}{more}", [each for metric in part for each in _queries(metric)], unit, text)


_UNIT_NAMES: Final = {"short": "number", "cps": "per second", "Bps": "bytes per second", "s": "time"}


def _unit(metric: Metric) -> str:
    name = metric.name.removesuffix("_total")
    is_rate = metric.kind == "counter"
    if name.endswith("_bytes"):
        return "Bps" if is_rate else "bytes"
    if name.endswith("_seconds"):
        return "percentunit" if is_rate else "s"
    if name.endswith(("_ms", "_ms_max")):
        return "ms"
    if name.endswith("_ratio"):
        return "percentunit"
    return "cps" if is_rate else "short"


def _queries(metric: Metric) -> Iterator[Query]:
    by = ", ".join(("instance", *metric.labels))
    short = metric.name.removeprefix("iotmq_").removesuffix("_total")
    legend = " ".join((short, *(f"{{{{{label}}}}}" for label in (*metric.labels, "instance"))))
    if metric.kind == "histogram":
        for share in (0.5, 0.99, 0.999):
            yield _quantile(metric.name, share, by, f"{short} {share} {{{{instance}}}}")
    elif metric.kind == "counter":
        yield Query(f"sum by ({by}) (rate({metric.name}{{{_HERE}}}[$__rate_interval]))", legend)
    elif metric.name.endswith("_expires_seconds"):
        yield Query(f"min by ({by}) ({metric.name}{{{_HERE}}}) - time()", legend)
    elif metric.name == "process_start_time_seconds":
        yield Query(f"time() - max by ({by}) ({metric.name}{{{_HERE}}})", "uptime {{instance}}")
    else:
        how = "max" if _unit(metric) in ("s", "ms", "percentunit") else "sum"
        yield Query(f"{how} by ({by}) ({metric.name}{{{_HERE}}})", legend)


def _quantile(name: str, share: float, by: str, legend: str) -> Query:
    rate = f"sum by ({by}, le) (rate({name}_bucket{{{_HERE}}}[$__rate_interval]))"
    return Query(f"histogram_quantile({share}, {rate})", legend)


def _rate(name: str, legend: str, by: str = "") -> Query:
    return Query(f"sum by ({by}) (rate({name}{{{_HERE}}}[$__rate_interval]))", legend)


def _sum(name: str, legend: str, by: str = "") -> Query:
    return Query(f"sum by ({by}) ({name}{{{_HERE}}})", legend)


def _max(name: str, legend: str, by: str = "instance") -> Query:
    return Query(f"max by ({by}) ({name}{{{_HERE}}})", legend)


# JSON of Grafana --------------------------------------------------------------------------------------


def _board(uid: str, title: str, rows: Iterable[tuple[str, Sequence[Panel]]]) -> dict[str, Any]:
    shown: list[dict[str, Any]] = []
    y, number = 0, 0
    for index, (row, panels) in enumerate(rows):
        number += 1
        # The first is open; what is folded asks nothing.
        is_folded = index > 0 and uid != "iotmq-overview"
        inner = []
        for place, panel in enumerate(panels):
            number += 1
            inner.append(_panel(panel, number, x=place % 3 * 8, y=y + 1 + place // 3 * 8))
        folded = {
            "id": number + 10_000,
            "type": "row",
            "title": row,
            "collapsed": is_folded,
            "gridPos": {"h": 1, "w": 24, "x": 0, "y": y},
            "panels": inner if is_folded else [],
        }
        shown += [folded] if is_folded else [folded, *inner]
        y += 1 if is_folded else 1 + (len(panels) + 2) // 3 * 8
    return {
        "uid": uid,
        "title": title,
        "tags": ["iotmq"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "graphTooltip": 1,
        "links": [
            {"type": "dashboards", "title": "iotmq", "tags": ["iotmq"], "asDropdown": True, "keepTime": True}
        ],
        "templating": {"list": _VARIABLES},
        "annotations": {"list": []},
        "panels": shown,
    }


def _panel(panel: Panel, number: int, *, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": {"h": 8, "w": 8, "x": x, "y": y},
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "custom": {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "axisSoftMin": 0},
            },
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": _name(index),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
                "exemplar": "histogram_quantile" in query.expression,
            }
            for index, query in enumerate(panel.queries)
        ],
    }


def _name(index: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    first, second = divmod(index, 26)
    return (chr(ord("A") + first - 1) if first else "") + chr(ord("A") + second)


_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


_VARIABLES: Final = [
    {"name": "datasource", "label": "data source", "type": "datasource", "query": "prometheus"},
    _variable("job", "label_values(iotmq_metrics_errors_total, job)"),
    _variable("instance", 'label_values(iotmq_metrics_errors_total{job=~"$job"}, instance)'),
]

# What there is to show --------------------------------------------------------------------------------

OVERVIEW: Final[tuple[tuple[str, tuple[Panel, ...]], ...]] = (
    (
        "Traffic",
        (
            Panel(
                "Messages",
                (
                    _rate("iotmq_mqtt_published_total", "from devices"),
                    _rate("iotmq_mqtt_delivered_total", "to devices"),
                    _rate("iotmq_mqtt_durable_delivered_total", "to kept sessions"),
                    _rate("iotmq_mqtt_share_delivered_total", "to shared subscriptions"),
                    _rate("iotmq_broker_records_total", "stored"),
                    _rate("iotmq_broker_pulled_records_total", "pulled by groups"),
                ),
                "cps",
            ),
            Panel(
                "Bytes",
                (
                    _rate("iotmq_mqtt_received_bytes_total", "from devices"),
                    _rate("iotmq_mqtt_sent_bytes_total", "to devices"),
                    _rate("iotmq_broker_stored_bytes_total", "stored"),
                    _rate("iotmq_remoting_sent_bytes_total", "to native clients, other brokers, front ends"),
                ),
                "Bps",
            ),
            Panel(
                "Connections",
                (
                    _sum("iotmq_mqtt_connections", "MQTT connections"),
                    _sum("iotmq_mqtt_subscriptions", "subscriptions"),
                    _sum("iotmq_broker_sessions", "kept sessions"),
                    _sum("iotmq_remoting_connections", "native, {{listener}}", "listener"),
                ),
            ),
            Panel(
                "Time until a batch is stored",
                tuple(
                    _quantile("iotmq_broker_put_seconds", share, "instance", f"{share} {{{{instance}}}}")
                    for share in (0.5, 0.99, 0.999)
                ),
                "s",
            ),
            Panel(
                "How far groups are behind",
                (_max("iotmq_broker_group_lag_seconds", "{{group}} of {{topic}}", "group, topic"),),
                "s",
                "Age of the oldest message that the groups of `broker.lag_groups` have not consumed.",
            ),
            Panel(
                "Messages waiting for groups",
                (_sum("iotmq_broker_group_lag_messages", "{{group}} of {{topic}}", "group, topic"),),
                text="Of the groups of `broker.lag_groups`.",
            ),
        ),
    ),
    (
        "Trouble",
        (
            Panel(
                "Messages that did not arrive",
                (
                    _rate("iotmq_mqtt_dropped_total", "slow devices"),
                    _rate("iotmq_mqtt_not_stored_total", "not stored"),
                    _rate("iotmq_mqtt_shed_published_total", "shed"),
                    _rate("iotmq_mqtt_limit_dropped_total", "past limits, {{scope}}", "scope"),
                    _rate("iotmq_broker_session_dropped_total", "kept sessions, {{reason}}", "reason"),
                ),
                "cps",
            ),
            Panel(
                "Connections that ended",
                (_rate("iotmq_mqtt_closed_total", "{{reason}}", "reason"),),
                "cps",
            ),
            Panel(
                "Refused",
                (
                    _rate("iotmq_mqtt_authentication_refused_total", "authentication: {{cause}}", "cause"),
                    _rate("iotmq_mqtt_permissions_refused_total", "permissions: {{what}}", "what"),
                    _rate("iotmq_mqtt_turned_away_total", "turned away: {{cause}}", "cause"),
                    _rate("iotmq_broker_refused_batches_total", "batches"),
                    _rate("iotmq_http_unauthorized_total", "HTTP"),
                ),
                "cps",
            ),
            Panel(
                "What should be 0",
                (
                    _max("iotmq_store_refusing", "store refuses {{instance}}"),
                    _max("iotmq_store_read_only", "store is read-only {{instance}}"),
                    _max("iotmq_store_failed_projections", "projections behind {{instance}}"),
                    _max("iotmq_store_damaged_ranges", "damaged ranges {{instance}}"),
                    _max("iotmq_mqtt_overload_level", "overload {{instance}}"),
                    _sum("iotmq_replication_alarms", "replication {{instance}}", "instance"),
                ),
            ),
            Panel(
                "Defects",
                (
                    _rate("iotmq_background_failures_total", "{{work}}", "work"),
                    _rate("iotmq_metrics_errors_total", "metrics"),
                    _rate("iotmq_mqtt_worker_restarts_total", "restarts of workers"),
                ),
                "cps",
            ),
            Panel(
                "Disk used",
                (_max("iotmq_store_disk_used_ratio", "{{path}} {{instance}}", "instance, path"),),
                "percentunit",
            ),
        ),
    ),
    (
        "Processes",
        (
            Panel(
                "Longest time the event loop was late",
                (_max("iotmq_loop_lag_max_seconds", "{{instance}}"),),
                "s",
                "One piece of work that keeps all connections of a process waiting, in the last minute.",
            ),
            Panel(
                "Processor",
                (
                    _rate("process_cpu_seconds_total", "{{instance}}", "instance"),
                    _rate("iotmq_mqtt_worker_cpu_seconds_total", "workers of {{instance}}", "instance"),
                ),
                "percentunit",
            ),
            Panel(
                "Memory",
                (
                    _sum("process_resident_memory_bytes", "{{instance}}", "instance"),
                    _sum("iotmq_mqtt_worker_resident_memory_bytes", "workers of {{instance}}", "instance"),
                ),
                "bytes",
            ),
        ),
    ),
)

BOARDS: Final = (
    Board(
        "iotmq-front-ends",
        "iotmq: MQTT front ends",
        ("iotmq_mqtt_",),
        {
            "Messages": {
                "Messages": "mqtt_published_total mqtt_delivered_total mqtt_durable_delivered_total"
                " mqtt_share_delivered_total mqtt_retained_sent_total mqtt_replies_total"
                " mqtt_published_bytes_total",
                "Bytes": "mqtt_received_bytes_total mqtt_sent_bytes_total",
                "Messages that do not arrive": "mqtt_dropped_* mqtt_durable_dropped_total mqtt_expired_total"
                " mqtt_not_stored_total mqtt_undeliverable_total mqtt_too_large_total mqtt_shed_*"
                " mqtt_misdirected_total",
            },
            "Connections": {
                "Connections": "mqtt_connections mqtt_sessions mqtt_paused_connections"
                " mqtt_undecided_connections",
                "Begun and ended": "mqtt_accepted_total mqtt_closed_total mqtt_refused_total"
                " mqtt_turned_away_total",
                "Listeners": "mqtt_listener_connections mqtt_listener_arriving mqtt_listener_hand*"
                " mqtt_listener_not_arrived_total mqtt_websocket_*",
                "Certificates": "mqtt_listener_tls_*",
                "Held in memory": "mqtt_unfinished_bytes mqtt_unopened_bytes",
                "Draining": "mqtt_drain*",
            },
            "Ways to brokers": {
                "Batches": "mqtt_batches_total mqtt_batch_retries_total mqtt_pending_bytes"
                " mqtt_broker_latency_seconds",
                "Delivery channels": "mqtt_delivery_*",
                "Session links": "mqtt_session_link_* mqtt_session_openings_*",
            },
            "Subscriptions and sessions": {
                "Subscriptions": "mqtt_subscriptions mqtt_filters mqtt_filter_shapes* mqtt_light_queues"
                " mqtt_auto_subscriptions_*",
                "Kept sessions": "mqtt_durable_* mqtt_renewed_sessions_total mqtt_refused_progress_total",
                "Shared subscriptions": "mqtt_share_*",
                "Exclusive subscriptions": "mqtt_exclusive_*",
            },
            "Authentication and permissions": {
                "Authentication": "mqtt_authenticat* mqtt_password_* mqtt_users*",
                "Links of the chain": "mqtt_link_* mqtt_ldap_* mqtt_sql_* mqtt_redis_* mqtt_token_*",
                "Permissions": "mqtt_permission*",
                "Bans": "mqtt_ban* mqtt_flapping_*",
            },
            "Limits and overload": {"Limits": "mqtt_limit_*", "Overload": "mqtt_overload_*"},
            "Routes, hooks and plug-ins": {
                "Routes": "mqtt_route* mqtt_rewrites_*",
                "Hooks": "mqtt_hook_*",
                "Plug-ins": "mqtt_plugin_*",
                "Connected bridges": "mqtt_bridge*",
            },
            "Workers and audit": {"Workers": "mqtt_worker*", "Audit": "mqtt_audit_*"},
        },
    ),
    Board(
        "iotmq-brokers",
        "iotmq: brokers",
        ("iotmq_broker_", "iotmq_topic_"),
        {
            "Traffic": {
                "Stored": "broker_records_total broker_stored_bytes_total broker_batches_total"
                " broker_sends_total",
                "Pulled": "broker_pulled_records_total broker_popped_records_total broker_pulls_*",
                "Time of sends and pulls": "broker_put_seconds broker_get_seconds",
                "Groups behind": "broker_group_lag_*",
                "Topics": "topic_*",
                "Refused and failed": "broker_refused_batches_total broker_failed_sends_total"
                " broker_flush_timeouts_total broker_writable broker_waiting_batches",
            },
            "Clients and requests": {
                "Clients": "broker_connected_clients broker_producers broker_consumers broker_consumer_groups"
                " broker_expired_clients_total",
                "Requests": "broker_requests_total broker_fenced_requests_total broker_relays_total"
                " broker_failed_relays_total broker_long_answers broker_refused_long_answers_total",
                "Parked pulls": "broker_held_* broker_parked_* broker_unheld_* broker_expired_pulls_total",
                "Cold reads": "broker_cold_* broker_refused_cold_* broker_failed_cold_*",
                "Replies": "broker_replies_*",
                "Pops": "broker_pop*",
                "Sent again": "broker_repeated_batches_total broker_found_* broker_out_of_order_*"
                " broker_batch_producers broker_forgotten_*",
            },
            "Delivery to front ends": {
                "Filters": "broker_filters broker_filter_* broker_wide_* broker_matched_total",
                "Pushes": "broker_*pushed_bytes_total broker_*pushes_total broker_delivery_*",
                "Light queues": "broker_light_* broker_scanned_*",
                "Retained messages": "broker_retained_*",
            },
            "Sessions": {
                "Kept sessions": "broker_session* broker_received_ids broker_malformed_session_*",
                "Wills": "broker_wills_total",
                "Shared subscriptions": "broker_share*",
                "Exclusive subscriptions": "broker_exclusive_*",
            },
            "Delayed messages and transactions": {
                "Delayed messages": "broker_delayed_*",
                "Transactions": "broker_transaction*",
            },
            "Tables": {
                "Topics and groups": "broker_topics broker_subscription_groups broker_consumer_*"
                " broker_deleted_topics"
                " broker_frozen_queues broker_ephemeral_*",
                "Offsets that moved": "broker_*offset_moved_*",
                "Files": "broker_config_* broker_failed_config_*",
                "Statistics": "broker_statistics_* broker_dropped_statistics_*",
                "Registration": "broker_regist* broker_failed_registrations_total broker_advertised_*",
                "Accounts": "broker_acl_*",
                "Audit": "broker_audit_*",
                "Slaves": "broker_slave_*",
            },
        },
    ),
    Board(
        "iotmq-store",
        "iotmq: store and replication",
        ("iotmq_store_", "iotmq_replication_", "iotmq_ha_"),
        {
            "Log": {
                "Positions": "store_*_position_bytes",
                "Records": "store_records_total store_refused_appends_total store_expired_reads_total"
                " store_unreadable_records_total",
                "Syncs": "store_flush*",
                "Disk": "store_disk_used_ratio store_deleted_* store_leaving_bytes store_protected_segments",
                "What should be 0": "store_refusing store_read_only store_failed_* store_damaged_ranges"
                " store_clock_behind_seconds",
            },
            "Memory and indexes": {
                "Cold reads": "store_cold_*",
                "Queues and indexes": "store_queues store_index_*",
                "Database": "store_kv_*",
            },
            "Replication": {
                "State": "replication_alarms replication_epoch replication_in_sync replication_consensus_*",
                "Positions": "replication_confirmed replication_end replication_diverged_bytes",
                "Requests for the master": "replication_relay* replication_refused_*",
                "Copies": "replication_cop*",
            },
            "Master and slave": {"Master": "ha_[!s]* ha_sent_*", "Slave": "ha_slave_*"},
        },
    ),
    Board(
        "iotmq-clients",
        "iotmq: native clients",
        ("iotmq_client_",),
        {
            "Messages": {
                "Sent": "client_sen*",
                "Consumed": "client_consume* client_dropped_total client_expired_total"
                " client_given_back_total"
                " client_left_calls_total",
                "Held": "client_cached_* client_held_* client_queues",
                "Requests": "client_requests_* client_replies_*",
                "Transactions": "client_transaction_*",
            },
            "Connections": {"Connections": "client_connections*", "Bytes": "client_*_bytes_total"},
            "Observers": {"Events": "client_connection_events_* client_interceptors_* client_trace_*"},
        },
    ),
    Board(
        "iotmq-processes",
        "iotmq: processes, registries, ports and bridges",
        ("iotmq_", "process_"),
        {
            "Process": {
                "Event loop": "loop_lag_*",
                "Processor and memory": "process_cpu_* process_*_memory_bytes",
                "Open files": "process_*_fds",
                "Running since": "process_start_*",
                "Defects": "background_failures_total metrics_errors_total",
            },
            "Telemetry": {"Exports by OpenTelemetry": "telemetry_*"},
            "Native ports": {
                "Connections": "remoting_connections* remoting_tls_connections_total",
                "Bytes": "remoting_*_bytes_total remoting_unfinished_bytes",
                "Requests": "remoting_requests_* remoting_request_* remoting_responses_* remoting_handler_*",
                "Certificates": "remoting_tls_*",
                "Malformed": "remoting_malformed_* remoting_frames_*",
            },
            "Registries": {
                "Brokers and topics": "registry_brokers* registry_topics* registry_kv_* registry_master_*",
                "Registrations": "registry_*registrations_total registry_refused_total",
                "Accounts": "registry_accounts*",
            },
            "HTTP": {
                "Requests": "http_api_requests_total http_bad_* http_unauthorized_* http_refused_*"
                " http_silent_*",
                "TLS": "http_tls_* http_failed_*",
                "Audit": "http_api_audit_*",
                "More": "http_*",
            },
            "Bridges": {
                "Messages": "bridge_sent_* bridge_received_* bridge_acknowledged_*",
                "Behind": "bridge_lag_*",
                "Connections": "bridge_connections* bridge_reconnects_* bridge_alarm",
                "Not forwarded": "bridge_*",
            },
        },
    ),
)


def main() -> None:
    """Write the files, and remove those that there are no more."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    contents = dashboards()
    for file in FOLDER.glob("*.json"):
        if file.name not in contents:
            file.unlink()
    for name, content in contents.items():
        (FOLDER / name).write_text(content)


if __name__ == "__main__":
    main()
