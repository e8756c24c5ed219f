"""The built-in conditions: each can fire and clear, and looks at something that there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from iotmq import limits
from iotmq.alarms import cluster_conditions as table
from iotmq.alarms.condition import Condition, number_text
from iotmq.alarms.conditions import CONDITIONS, NOT_READY
from iotmq.alarms.settings import DeviceWatch
from iotmq.config.config import Config, config_from_table
from iotmq.errors import ConfigError

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "metrics.md"
# Those of certificates, and of the HTTP API, are exported by a process that has some.
_OF_SOME = re.compile(r"^iotmq_((remoting|mqtt_listener|http)_tls_|http_api_audit_)")

WATCHED = {NOT_READY} | {
    value for name, value in vars(table).items() if name.isupper() and isinstance(value, str)
}


def exported() -> dict[str, set[str]]:
    """The metrics of the reference with their labels."""
    found = {}
    for line in PAGE.read_text().splitlines():
        if match := re.match(r"\| `(\w+)` \| \w+ \| ([^|]*)\|", line):
            found[match[1]] = set(re.findall(r"`(\w+)`", match[2]))
    return found


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda each: each.name)
def test_a_condition_is_whole(condition: Condition) -> None:
    known = exported()
    for source in condition.sources:
        assert (
            source in WATCHED
            or source in known
            or source == "process_cpu_seconds_total"
            or (_OF_SOME.match(source))
        ), source
    assert all(source in WATCHED for source in condition.sources) >= condition.is_of_cluster
    assert condition.is_met(condition.fires_at)
    assert condition.is_over(condition.clears_at)
    assert not condition.is_over(condition.fires_at)
    assert not condition.is_met(condition.clears_at)
    assert condition.says[0].islower() or condition.says[0] == "{"
    assert condition.what_to_do.endswith(".")
    assert condition.owner.startswith("whoever ")
    labels = {label for source in condition.sources for label in known.get(source, ())}
    named = set(re.findall(r"{(\w+)}", condition.says + condition.what_to_do)) - {"value"}
    watched = {"group", "broker", "registry", "front_end", "part"}
    assert named <= (labels or watched), "the text names a label that its metric does not have"
    assert named.isdisjoint({"value"})
    if condition.by is not None:
        assert named <= set(condition.by)
    assert {label for label, _ in condition.where} <= labels


def test_names_are_there_once() -> None:
    names = [condition.name for condition in CONDITIONS]
    assert len(set(names)) == len(names)


def test_texts_name_the_number_and_the_labels() -> None:
    condition = next(each for each in CONDITIONS if each.name == "group-behind")
    said = condition.text(123_456, (("group", "orders"),))
    assert said == "the group orders has 123,456 messages to consume"
    # A label that is not there, and braces of somebody else, are left as they are.
    odd = replace(condition, says="{group} {other}")
    assert odd.text(1, (("group", "{value}"),)) == "{value} {other}"


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.853, "0.853"), (1234.5, "1,234"), (2.0, "2"), (99.55, "99.5")]
)
def test_numbers_are_for_people(value: float, text: str) -> None:
    assert number_text(value) == text


def settings(**alarms: Any) -> Config:
    return config_from_table({"alarms": alarms})


RULE = {
    "name": "busy",
    "metric": "iotmq_mqtt_connections",
    "fires_at": 100,
    "clears_at": 50,
    "what_to_do": "Add a front end.",
}


def test_built_in_conditions_are_changed_and_switched_off_by_name() -> None:
    alarms = settings(
        changes=[
            {"name": "group-behind", "fires_at": 5, "clears_at": 1, "level": "critical"},
            {"name": "log-held", "is_on": False},
        ]
    ).alarms
    named = {condition.name: condition for condition in alarms.conditions}
    assert len(named) == len(CONDITIONS) - 1
    assert "log-held" not in named
    changed = named["group-behind"]
    assert (changed.fires_at, changed.clears_at, changed.level, changed.for_s) == (5, 1, "critical", 300)


def test_rules_and_watches_are_conditions() -> None:
    alarms = settings(
        rules=[{**RULE, "where": {"listener": "tls"}, "by": ["listener"]}],
        devices=[{"name": "pumps", "client_prefix": "pump-", "share": 0.5}],
    ).alarms
    rule, watch = alarms.conditions[-2:]
    assert (rule.sources, rule.where, rule.by) == (
        ("iotmq_mqtt_connections",),
        (("listener", "tls"),),
        ("listener",),
    )
    assert (watch.name, watch.fires_at, watch.is_of_cluster) == ("pumps", 0.5, True)
    assert watch.clears_at < watch.fires_at
    odd = DeviceWatch(name="odd", client_prefix="pump{1}{").condition
    assert odd.text(1, ()).startswith("devices pump{1}{... are away")
    assert settings(rules=[{**RULE, "says": "{{{value}}} of {listener}"}]).alarms.conditions


HOOK = {"kind": "webhook", "name": "ops", "url": "http://127.0.0.1:1/"}
MAIL = {"kind": "email", "name": "mail", "host": "localhost", "sender": "a@b.c", "to": ["d@e.f"]}


@pytest.mark.parametrize(
    ("alarms", "said"),
    [
        ({"changes": [{"name": "group-behnd"}]}, "group-behind"),
        ({"changes": [{"name": "log-held"}, {"name": "log-held"}]}, "log-held is there twice"),
        ({"changes": [{"name": "log-held", "fires_at": 0}]}, "fires and clears at the same number"),
        ({"rules": [{**RULE, "name": "log-held"}]}, "log-held is there twice"),
        ({"rules": [RULE], "devices": [{"name": "busy", "client_prefix": "x"}]}, "busy is there twice"),
        ({"rules": [{**RULE, "clears_at": 100}]}, "have to differ"),
        ({"rules": [{**RULE, "metric": "a b"}]}, "rules[0].metric"),
        ({"rules": [{**RULE, "says": "{value:.1f} connections"}]}, "says"),
        ({"rules": [{**RULE, "says": "{listener.name}"}]}, "says"),
        ({"rules": [{**RULE, "says": "{value!r}"}]}, "says"),
        ({"rules": [{**RULE, "says": "{} of {0}"}]}, "says"),
        ({"rules": [{**RULE, "says": "so many: {value"}]}, "says"),
        ({"receivers": [HOOK, HOOK]}, "ops is there twice"),
        ({"receivers": [{**HOOK, "url": "ftp://x"}]}, "receivers[0].url"),
        ({"receivers": [{**HOOK, "url": "http://user:password@host/"}]}, "receivers[0].url"),
        ({"receivers": [{**HOOK, "url": "http://host:99999/"}]}, "no valid port"),
        ({"receivers": [{**MAIL, "host": "mail.example", "encryption": "none"}]}, "on this machine"),
        ({"receivers": [{**MAIL, "to": ["a@b\nBcc: c@d"]}]}, "receivers[0].to"),
        ({"receivers": [{**MAIL, "to": []}]}, "receivers[0].to"),
        ({"receivers": [{**MAIL, "to": ["änn@b.c"]}]}, "receivers[0].to"),
        ({"receivers": [{"kind": "pigeon", "name": "x"}]}, '"webhook", "email"'),
    ],
)
def test_settings_that_make_no_sense_are_refused(alarms: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        settings(**alarms)
    assert said in str(refused.value)


def test_secrets_of_receivers_are_not_shown() -> None:
    alarms = settings(
        receivers=[
            {**HOOK, "secret": "hush-1", "headers": {"authorization": "hush-2"}},
            {**MAIL, "password": "hush-3"},
            {"kind": "alertmanager", "name": "am", "url": "http://x", "headers": {"a": "hush-4"}},
        ]
    ).alarms
    assert "hush" not in repr(alarms)


def test_so_many_receivers_and_rules_there_may_be() -> None:
    hooks = [{**HOOK, "name": f"r{number}"} for number in range(limits.ALARM_RECEIVERS_MAX + 1)]
    rules = [{**RULE, "name": f"r{number}"} for number in range(limits.ALARM_RULES_MAX + 1)]
    assert settings(receivers=hooks[1:], rules=rules[1:])
    for what, given in (("receivers", hooks), ("rules", rules)):
        with pytest.raises(ConfigError, match=f"alarms.{what}"):
            settings(**{what: given})
    long = "x" * limits.ALARM_TEXT_CHARACTERS_MAX
    assert settings(rules=[{**RULE, "says": long}])
    with pytest.raises(ConfigError):
        settings(rules=[{**RULE, "says": long + "x"}])
