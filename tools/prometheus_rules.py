"""Write deploy/prometheus: alerting rules, and their unit tests for promtool."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "deploy" / "prometheus"
RULES: Final = "iotmq.rules.yml"
TESTS: Final = "iotmq.rules.test.yml"
_HEAD: Final = "# Written by tools/prometheus_rules.py (make dashboards). Change it there.\n"
_HERE: Final = 'job="iotmq", instance="gw:8080"'
# The longest time an expression looks back.
_RANGE_MINUTES: Final = 15


class Rule(NamedTuple):
    """An alert, with an example that it fires for, and one that it does not."""

    name: str
    severity: str
    for_minutes: int
    expression: str
    summary: str
    action: str
    bad: Mapping[str, str]
    """Series without job and instance -> values each minute, as promtool writes them."""
    good: Mapping[str, str]
    labels: Mapping[str, str] = {}
    """Labels the alert has besides job and instance."""


def _growing(name: str, labels: str = "", *, minutes: int = 15) -> tuple[str, dict[str, str], dict[str, str]]:
    """A counter that should stand still: expression, bad and good example."""
    series = f"{name}{{{labels}}}"
    return f"increase({name}[{minutes}m]) > 0", {series: "0+1x200"}, {series: "5+0x200"}


def _set(name: str, labels: str = "") -> tuple[str, dict[str, str], dict[str, str]]:
    """A gauge that should be 0."""
    series = f"{name}{{{labels}}}"
    return f"{name} > 0", {series: "1+0x200"}, {series: "0+0x200"}


def _counter_rule(name: str, severity: str, metric: str, summary: str, action: str, **labels: str) -> Rule:
    text = ", ".join(f'{label}="{value}"' for label, value in labels.items())
    expression, bad, good = _growing(metric, text)
    return Rule(name, severity, 0, expression, summary, action, bad, good, labels)


def _gauge_rule(name: str, severity: str, minutes: int, metric: str, summary: str, action: str) -> Rule:
    expression, bad, good = _set(metric)
    return Rule(name, severity, minutes, expression, summary, action, bad, good)


GROUPS: Final[Mapping[str, Sequence[Rule]]] = {
    "iotmq-processes": (
        Rule(
            "IotmqDown",
            "critical",
            2,
            'up{job=~"iotmq.*"} == 0',
            "{{ $labels.instance }} does not answer",
            "Look at its service and its log.",
            {"up{}": "0+0x200"},
            {"up{}": "1+0x200"},
        ),
        Rule(
            "IotmqEventLoopBlocked",
            "warning",
            5,
            "iotmq_loop_lag_max_seconds > 0.5",
            "the event loop of {{ $labels.instance }} was late by more than half a second",
            "All its connections waited meanwhile. Look for a full core, swapping, or a hook or plug-in"
            " that blocks.",
            {"iotmq_loop_lag_max_seconds{}": "0.8+0x200"},
            {"iotmq_loop_lag_max_seconds{}": "0.02+0x200"},
        ),
        Rule(
            "IotmqCoreFull",
            "warning",
            15,
            'rate(process_cpu_seconds_total{job=~"iotmq.*"}[5m]) > 0.95',
            "{{ $labels.instance }} uses a whole core",
            "A process can use one. Start more front ends or brokers before messages wait.",
            {"process_cpu_seconds_total{}": "0+59x200"},
            {"process_cpu_seconds_total{}": "0+20x200"},
        ),
        Rule(
            "IotmqOpenFiles",
            "warning",
            5,
            'process_open_fds{job=~"iotmq.*"} / process_max_fds{job=~"iotmq.*"} > 0.8',
            "{{ $labels.instance }} has used four fifths of its open files",
            "Every connection is one: raise the limit of open files (LimitNOFILE).",
            {"process_open_fds{}": "900+0x200", "process_max_fds{}": "1024+0x200"},
            {"process_open_fds{}": "90+0x200", "process_max_fds{}": "1024+0x200"},
        ),
        _counter_rule(
            "IotmqDefect",
            "warning",
            "iotmq_background_failures_total",
            "background work of {{ $labels.instance }} met an unexpected error: {{ $labels.work }}",
            "A defect of iotmq: the log has the exception. Report it.",
            work="statistics",
        ),
        _counter_rule(
            "IotmqMetricsUnreadable",
            "warning",
            "iotmq_metrics_errors_total",
            "numbers of a part of {{ $labels.instance }} could not be read",
            "A defect of iotmq: the log has the exception. Report it.",
        ),
        Rule(
            "IotmqTelemetryFails",
            "warning",
            15,
            "increase(iotmq_telemetry_failed_exports_total[15m]) > 3",
            "{{ $labels.instance }} cannot export {{ $labels.signal }} by OpenTelemetry",
            "Its log says what the receiver at telemetry.endpoint answers.",
            {'iotmq_telemetry_failed_exports_total{signal="metrics"}': "0+1x200"},
            {'iotmq_telemetry_failed_exports_total{signal="metrics"}': "5+0x200"},
            {"signal": "metrics"},
        ),
    ),
    "iotmq-store": (
        _gauge_rule(
            "IotmqStoreRefuses",
            "critical",
            0,
            "iotmq_store_refusing",
            "{{ $labels.instance }} stores no message: a disk is too full",
            "Make room, or let the log be shorter (store.retention_hours). Messages are taken again by"
            " themselves.",
        ),
        _gauge_rule(
            "IotmqStoreReadOnly",
            "critical",
            0,
            "iotmq_store_read_only",
            "{{ $labels.instance }} stores no message: the disk has refused a write",
            "Examine the disk, then restart.",
        ),
        Rule(
            "IotmqDiskNearlyFull",
            "warning",
            10,
            "iotmq_store_disk_used_ratio > 0.85",
            "{{ $labels.path }} of {{ $labels.instance }} is nearly full",
            "From store.disk_full_percent on messages are refused. Make room.",
            {'iotmq_store_disk_used_ratio{path="/data"}': "0.88+0x200"},
            {'iotmq_store_disk_used_ratio{path="/data"}': "0.6+0x200"},
            {"path": "/data"},
        ),
        _gauge_rule(
            "IotmqLogDamaged",
            "critical",
            0,
            "iotmq_store_damaged_ranges",
            "the log of {{ $labels.instance }} has damaged ranges",
            "The log line and commitlog.damage/ name them. Stop it, run `iotmq store repair`, examine the"
            " disk.",
        ),
        _counter_rule(
            "IotmqRecordsUnreadable",
            "critical",
            "iotmq_store_unreadable_records_total",
            "{{ $labels.instance }} has skipped damaged records",
            "The disk has lost or changed bytes. Run `iotmq store repair` in a stopped broker, examine"
            " the disk.",
        ),
        _gauge_rule(
            "IotmqProjectionBehind",
            "critical",
            1,
            "iotmq_store_failed_projections",
            "data that {{ $labels.instance }} derives from its log stays behind",
            "The log has the reason. Restart; if it stays, report it.",
        ),
        _gauge_rule(
            "IotmqDeletionFails",
            "warning",
            10,
            "iotmq_store_failed_deletions",
            "{{ $labels.instance }} cannot delete old files of the log",
            "Look at the rights of the data directory, and at the disk.",
        ),
        _gauge_rule(
            "IotmqLogHeldBack",
            "warning",
            60,
            "iotmq_store_protected_segments",
            "{{ $labels.instance }} keeps files past their age, because a group has not consumed them",
            "`iotmq admin group list` names the groups. Start its consumers, or delete the group.",
        ),
        _counter_rule(
            "IotmqFlushTimeouts",
            "warning",
            "iotmq_broker_flush_timeouts_total",
            "syncs of the log of {{ $labels.instance }} take too long",
            "Senders are told that their messages may not be on the disk. Look at the disk's load.",
        ),
    ),
    "iotmq-brokers": (
        Rule(
            "IotmqBrokerNotWritable",
            "warning",
            5,
            "iotmq_broker_writable == 0",
            "the broker {{ $labels.instance }} takes no messages",
            "It was told so (broker.is_writable), or its disk refuses: see /readyz.",
            {"iotmq_broker_writable{}": "0+0x200"},
            {"iotmq_broker_writable{}": "1+0x200"},
        ),
        Rule(
            "IotmqBrokerNotRegistered",
            "critical",
            3,
            "iotmq_broker_registered == 0",
            "the registry {{ $labels.registry }} does not know the broker {{ $labels.instance }}",
            "Clients that ask this registry do not find it. Look at the registry and the way to it.",
            {'iotmq_broker_registered{registry="r1:9876"}': "0+0x200"},
            {'iotmq_broker_registered{registry="r1:9876"}': "1+0x200"},
            {"registry": "r1:9876"},
        ),
        Rule(
            "IotmqPutsSlow",
            "warning",
            10,
            "histogram_quantile(0.99, sum by (job, instance, le)"
            " (rate(iotmq_broker_put_seconds_bucket[5m]))) > 0.5",
            "one in a hundred batches of {{ $labels.instance }} takes more than half a second to be stored",
            "Look at the disk's load, and at iotmq_loop_lag_max_seconds.",
            {
                'iotmq_broker_put_seconds_bucket{le="0.524288"}': "0+90x200",
                'iotmq_broker_put_seconds_bucket{le="1.048576"}': "0+100x200",
                'iotmq_broker_put_seconds_bucket{le="+Inf"}': "0+100x200",
            },
            {
                'iotmq_broker_put_seconds_bucket{le="0.262144"}': "0+100x200",
                'iotmq_broker_put_seconds_bucket{le="0.524288"}': "0+100x200",
                'iotmq_broker_put_seconds_bucket{le="+Inf"}': "0+100x200",
            },
        ),
        Rule(
            "IotmqGroupBehind",
            "warning",
            10,
            "iotmq_broker_group_lag_seconds > 600",
            "the group {{ $labels.group }} has not consumed messages of {{ $labels.topic }} that are ten"
            " minutes old",
            "`iotmq admin group progress` tells in which queues. Start more consumers, or find what"
            " blocks them.",
            {'iotmq_broker_group_lag_seconds{group="billing", topic="orders"}': "0+60x200"},
            {'iotmq_broker_group_lag_seconds{group="billing", topic="orders"}': "5+0x200"},
            {"group": "billing", "topic": "orders"},
        ),
        Rule(
            "IotmqGroupFallsBehind",
            "warning",
            30,
            "min_over_time(iotmq_broker_group_lag_messages[15m]) > 0 and"
            " delta(iotmq_broker_group_lag_messages[15m]) > 0",
            "the group {{ $labels.group }} consumes {{ $labels.topic }} more slowly than messages come",
            "Start more consumers; each queue has one at a time.",
            {'iotmq_broker_group_lag_messages{group="billing", topic="orders"}': "10+100x200"},
            {'iotmq_broker_group_lag_messages{group="billing", topic="orders"}': "10000-50x200"},
            {"group": "billing", "topic": "orders"},
        ),
        _counter_rule(
            "IotmqOffsetMoved",
            "warning",
            "iotmq_broker_offset_moved_events_total",
            "consumers ask {{ $labels.instance }} for messages that are gone",
            "The topic OFFSET_MOVED_EVENT names them. They have missed messages, or their offset was set"
            " wrongly.",
        ),
        Rule(
            "IotmqDelayedMessagesLate",
            "warning",
            5,
            "iotmq_broker_delayed_messages_late_ms > 60000",
            "delayed messages of {{ $labels.instance }} are more than a minute late",
            "Look at the disk and the event loop of the broker.",
            {"iotmq_broker_delayed_messages_late_ms{}": "90000+0x200"},
            {"iotmq_broker_delayed_messages_late_ms{}": "20+0x200"},
        ),
        _counter_rule(
            "IotmqDelayedMessagesRefused",
            "warning",
            "iotmq_broker_delayed_messages_refused_total",
            "{{ $labels.instance }} refuses delayed messages: too many wait",
            "Raise broker.timers_pending_max, or find who sends them.",
        ),
        _counter_rule(
            "IotmqTransactionsGivenUp",
            "warning",
            "iotmq_broker_transactions_given_up_total",
            "{{ $labels.instance }} has given up transactions that nobody has ended",
            "They are in TRANS_CHECK_MAX_TIME_TOPIC. Look at the producers of these groups.",
        ),
        _counter_rule(
            "IotmqDeliveryGaps",
            "critical",
            "iotmq_broker_delivery_gaps_total",
            "a front end came back too late for messages it had missed at {{ $labels.instance }}",
            "Connected devices without kept sessions have not got them. Raise store.hot_bytes.",
        ),
        _counter_rule(
            "IotmqSessionsDropMessages",
            "warning",
            "iotmq_broker_session_dropped_total",
            "kept sessions of {{ $labels.instance }} lose messages: {{ $labels.reason }}",
            "Their queues are full (broker.session_queue_...). `iotmq sessions list` shows which are long.",
            reason="full",
        ),
        Rule(
            "IotmqReplicationAlarm",
            "critical",
            2,
            "iotmq_replication_alarms > 0",
            "the replicated broker {{ $labels.instance }} has something to tell",
            "`iotmq replication status` says what.",
            {"iotmq_replication_alarms{}": "1+0x200"},
            {"iotmq_replication_alarms{}": "0+0x200"},
        ),
        Rule(
            "IotmqRegistryWithoutBrokers",
            "critical",
            3,
            "iotmq_registry_brokers == 0",
            "the registry {{ $labels.instance }} knows no broker",
            "Clients that ask it find nothing. Look at the brokers' broker.registries.",
            {"iotmq_registry_brokers{}": "0+0x200"},
            {"iotmq_registry_brokers{}": "1+0x200"},
        ),
    ),
    "iotmq-front-ends": (
        Rule(
            "IotmqFrontEndCutOff",
            "critical",
            1,
            "iotmq_mqtt_delivery_channel_up == 0 or iotmq_mqtt_session_link_up == 0",
            "the front end {{ $labels.instance }} does not reach the broker {{ $labels.broker }}",
            "Its devices wait. Look at the broker and the way to it.",
            {'iotmq_mqtt_delivery_channel_up{broker="broker-a"}': "0+0x200"},
            {
                'iotmq_mqtt_delivery_channel_up{broker="broker-a"}': "1+0x200",
                'iotmq_mqtt_session_link_up{broker="broker-a"}': "1+0x200",
            },
            {"broker": "broker-a"},
        ),
        _counter_rule(
            "IotmqMessagesNotStored",
            "critical",
            "iotmq_mqtt_not_stored_total",
            "a broker has refused messages of devices for good at {{ $labels.instance }}",
            "The log has the reason.",
        ),
        Rule(
            "IotmqSlowDevices",
            "warning",
            10,
            "rate(iotmq_mqtt_dropped_total[5m]) > 1",
            "devices of {{ $labels.instance }} are too slow for what they have subscribed to",
            "Kept sessions lose nothing. Raise mqtt.queued_bytes_max, or let them subscribe to less.",
            {"iotmq_mqtt_dropped_total{}": "0+600x200"},
            {"iotmq_mqtt_dropped_total{}": "0+6x200"},
        ),
        _gauge_rule(
            "IotmqOverload",
            "warning",
            1,
            "iotmq_mqtt_overload_level",
            "{{ $labels.instance }} is overloaded, and refuses connections",
            "The log names the limit (mqtt.device_limits.overload). Start more front ends.",
        ),
        Rule(
            "IotmqAuthenticationFailures",
            "warning",
            10,
            "sum by (job, instance) (rate(iotmq_mqtt_authentication_refused_total[5m])) > 5",
            "more than five devices a second fail to authenticate at {{ $labels.instance }}",
            "Somebody guesses passwords, or a fleet has wrong ones: the log and the audit records name them.",
            {'iotmq_mqtt_authentication_refused_total{cause="password"}': "0+600x200"},
            {'iotmq_mqtt_authentication_refused_total{cause="password"}': "0+60x200"},
        ),
        Rule(
            "IotmqWorkerRestarts",
            "warning",
            0,
            "increase(iotmq_mqtt_worker_restarts_total[15m]) > 2",
            "the worker {{ $labels.worker }} of {{ $labels.instance }} ends again and again",
            "Its standard error has the reason.",
            {'iotmq_mqtt_worker_restarts_total{worker="2"}': "0+1x200"},
            {'iotmq_mqtt_worker_restarts_total{worker="2"}': "1+0x200"},
            {"worker": "2"},
        ),
        Rule(
            "IotmqBridgeDisconnected",
            "warning",
            5,
            "iotmq_bridge_connections < iotmq_bridge_connections_wanted",
            "the bridge {{ $labels.bridge }} of {{ $labels.instance }} is not connected",
            "Messages wait in the log. Look at the other broker and the way to it.",
            {
                'iotmq_bridge_connections{bridge="centre"}': "0+0x200",
                'iotmq_bridge_connections_wanted{bridge="centre"}': "1+0x200",
            },
            {
                'iotmq_bridge_connections{bridge="centre"}': "1+0x200",
                'iotmq_bridge_connections_wanted{bridge="centre"}': "1+0x200",
            },
            {"bridge": "centre"},
        ),
        Rule(
            "IotmqBridgeBehind",
            "warning",
            10,
            "iotmq_bridge_lag_seconds > 600",
            "the bridge {{ $labels.bridge }} of {{ $labels.instance }} is ten minutes behind",
            "The other broker is slow or away; store.protect_unconsumed keeps what waits.",
            {'iotmq_bridge_lag_seconds{bridge="centre"}': "900+0x200"},
            {'iotmq_bridge_lag_seconds{bridge="centre"}': "1+0x200"},
            {"bridge": "centre"},
        ),
    ),
    "iotmq-security": (
        *(
            Rule(
                f"IotmqCertificateExpires{name}",
                severity,
                0,
                f"{metric} - time() < {days} * 86400",
                f"a certificate of {{{{ $labels.instance }}}} expires in less than {days} days",
                "Renew it: the changed files are read by themselves.",
                # Tests run in 1970.
                {f"{metric}{{{labels}}}": f"{(days - 1) * 86400}+0x200"},
                {f"{metric}{{{labels}}}": f"{(days + 1) * 86400}+0x200"},
                {"listener": "devices"} if labels else {},
            )
            for severity, days, suffix in (("warning", 14, ""), ("critical", 3, "Soon"))
            for metric, labels, name in (
                (
                    "iotmq_mqtt_listener_tls_certificate_expires_seconds",
                    'listener="devices"',
                    f"Mqtt{suffix}",
                ),
                ("iotmq_remoting_tls_certificate_expires_seconds", 'listener="devices"', f"Native{suffix}"),
                ("iotmq_http_tls_certificate_expires_seconds", "", f"Http{suffix}"),
            )
        ),
        *(
            _counter_rule(
                f"IotmqReloadFailed{name}",
                "warning",
                metric,
                f"{{{{ $labels.instance }}}} cannot use changed {what}",
                "The log names what is wrong; what it had before holds until then.",
            )
            for name, metric, what in (
                ("Users", "iotmq_mqtt_users_failed_reloads_total", "users"),
                ("Permissions", "iotmq_mqtt_permissions_failed_reloads_total", "permissions"),
                ("Routes", "iotmq_mqtt_route_failed_reloads_total", "routes"),
                ("Accounts", "iotmq_broker_acl_failed_reloads_total", "accounts"),
            )
        ),
    ),
}


def rules() -> str:
    """The file of rules."""
    groups = [
        {
            "name": name,
            "rules": [
                {
                    "alert": rule.name,
                    "expr": rule.expression,
                    "for": f"{rule.for_minutes}m",
                    "labels": {"severity": rule.severity},
                    "annotations": {"summary": rule.summary, "description": rule.action},
                }
                for rule in group
            ],
        }
        for name, group in GROUPS.items()
    ]
    return _yaml({"groups": groups})


def tests() -> str:
    """Of each rule, that it fires for one example and not for another."""
    cases = [
        _case(rule, fires=fires) for group in GROUPS.values() for rule in group for fires in (True, False)
    ]
    return _yaml({"rule_files": [RULES], "evaluation_interval": "1m", "tests": cases})


def _case(rule: Rule, *, fires: bool) -> dict[str, Any]:
    labels = {**rule.labels, "instance": "gw:8080", "job": "iotmq"}
    alerts = [
        {
            "exp_labels": {"severity": rule.severity, **labels},
            "exp_annotations": {"summary": _filled(rule.summary, labels), "description": rule.action},
        }
    ]
    return {
        "name": f"{rule.name} {'fires' if fires else 'does not fire'}",
        "interval": "1m",
        "input_series": [
            {"series": _with_target(series), "values": values}
            for series, values in (rule.bad if fires else rule.good).items()
        ],
        "alert_rule_test": [
            {
                # A rule with bad numbers from the start is firing by then. Each minute costs every rule.
                "eval_time": f"{rule.for_minutes + _RANGE_MINUTES + 1}m",
                "alertname": rule.name,
                "exp_alerts": alerts if fires else [],
            }
        ],
    }


def _with_target(series: str) -> str:
    name, _, labels = series.partition("{")
    inner = ", ".join(part for part in (labels.removesuffix("}"), _HERE) if part)
    return f"{name}{{{inner}}}"


def _filled(text: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda match: labels[match[1]], text)


def _yaml(content: object) -> str:
    return _HEAD + yaml.safe_dump(content, sort_keys=False, width=1_000, allow_unicode=True)


def main() -> None:
    """Write both files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / RULES).write_text(rules())
    (FOLDER / TESTS).write_text(tests())


if __name__ == "__main__":
    main()
