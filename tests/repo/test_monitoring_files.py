"""Dashboards and alerting rules in deploy/ are what the tools write, and name what a gateway exports."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import dashboards  # noqa: E402
import prometheus_rules  # noqa: E402

METRICS = dashboards.metrics()
BOARDS = dashboards.dashboards()
RULES = [rule for group in prometheus_rules.GROUPS.values() for rule in group]
# The front ends of a supervisor have a number.
TARGET_LABELS = {"job", "instance", "worker"}
_NAME = re.compile(r"\b(?:iotmq|process)_\w+|\bup\b")
_SELECTOR = re.compile(r"\b((?:iotmq|process)_\w+|up)\{([^}]*)\}")

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


def labels_of(name: str) -> set[str] | None:
    """The labels of the samples with a name; None when nothing exports it."""
    if name == "up":
        return TARGET_LABELS
    metric = METRICS.get(name)
    if metric is not None and metric.kind != "histogram":
        return {*metric.labels, *TARGET_LABELS}
    family = METRICS.get(re.sub(r"_(bucket|sum|count)$", "", name))
    if family is None or family.kind != "histogram" or family.name == name:
        return None
    return {*family.labels, *TARGET_LABELS, *({"le"} if name.endswith("_bucket") else ())}


def problems(expression: str, used: Collection[str] = ()) -> Iterator[str]:
    """What an expression names that nobody exports; `used` are further labels of its result."""
    names = set(_NAME.findall(expression))
    by = {label.strip() for each in re.findall(r"\bby \(([^)]*)\)", expression) for label in each.split(",")}
    for name in names:
        known = labels_of(name)
        if known is None:
            yield f"{name} is not exported"
            continue
        matched = {
            label
            for other, matchers in _SELECTOR.findall(expression)
            if other == name
            for label in re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", matchers)
        }
        for label in ({*by, *used} - {""} | matched) - known:
            yield f"{name} has no label {label}"
    if not names:
        yield "it names no metric"


def test_files_are_what_the_tools_write() -> None:
    written = {path.name: path.read_text() for path in dashboards.FOLDER.glob("*.json")}
    assert written == BOARDS, "make dashboards"
    folder = prometheus_rules.FOLDER
    assert (folder / prometheus_rules.RULES).read_text() == prometheus_rules.rules(), "make dashboards"
    assert (folder / prometheus_rules.TESTS).read_text() == prometheus_rules.tests(), "make dashboards"


@pytest.mark.parametrize("board", sorted(BOARDS))
def test_a_dashboard_names_what_is_exported(board: str) -> None:
    wrong = {
        expression: found
        for expression in dashboards.expressions(BOARDS[board])
        if (found := list(problems(expression)))
    }
    assert wrong == {}


def test_every_metric_is_on_a_dashboard() -> None:
    shown = {
        name
        for board in BOARDS.values()
        for expression in dashboards.expressions(board)
        for name in _NAME.findall(expression)
    }
    missing = [
        name
        for name, metric in METRICS.items()
        if (f"{name}_bucket" if metric.kind == "histogram" else name) not in shown
    ]
    assert sorted(missing) == sorted(dashboards.EXCEPTIONS)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_names_what_is_exported(rule: prometheus_rules.Rule) -> None:
    shown = set(re.findall(r"\$labels\.(\w+)", rule.summary))
    assert list(problems(rule.expression, shown)) == []
    for series in (*rule.bad, *rule.good):
        name, _, labels = series.partition("{")
        known = labels_of(name)
        assert known is not None, series
        assert known.issuperset(re.findall(r"(\w+)=", labels)), series


def test_each_rule_has_a_name_of_its_own() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_wrong_names_are_found() -> None:
    good = 'sum by (instance, reason) (rate(iotmq_mqtt_closed_total{job=~"a"}[5m]))'
    assert list(problems(good)) == []
    assert list(problems(good.replace("closed", "opened"))) == ["iotmq_mqtt_opened_total is not exported"]
    assert list(problems(good.replace("reason", "cause"))) == ["iotmq_mqtt_closed_total has no label cause"]
    assert list(problems(good.replace("job", "mood"))) == ["iotmq_mqtt_closed_total has no label mood"]
    assert list(problems("iotmq_broker_put_seconds")) == ["iotmq_broker_put_seconds is not exported"]
    assert list(problems("vector(1)")) == ["it names no metric"]


def promtool(*words: str) -> None:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.interop
@needs_promtool
def test_promtool_takes_the_rules_and_each_fires_when_it_should() -> None:
    promtool("check", "rules", str(prometheus_rules.FOLDER / prometheus_rules.RULES))
    promtool("test", "rules", str(prometheus_rules.FOLDER / prometheus_rules.TESTS))
    promtool("check", "config", str(prometheus_rules.FOLDER / "prometheus.yml"))


@pytest.mark.interop
@needs_promtool
def test_promtool_reads_the_expressions_of_all_dashboards(tmp_path: Path) -> None:
    expressions = {
        expression.replace("$__rate_interval", "5m").replace('"$job"', '".*"').replace('"$instance"', '".*"')
        for board in BOARDS.values()
        for expression in dashboards.expressions(board)
    }
    records = [
        {"record": f"x:{number}", "expr": expression} for number, expression in enumerate(sorted(expressions))
    ]
    path = tmp_path / "expressions.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": records}]}))
    promtool("check", "rules", str(path))
