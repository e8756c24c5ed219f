"""The file of rules: what it may say, and what is wrong with one that is refused."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path

import pytest

from iotmq import limits
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.permissions.rule import PUBLISH, SUBSCRIBE, Conditions, Who
from iotmq.mqtt_front.permissions.rule_set import RuleSet
from iotmq.mqtt_front.permissions.rules_file import RulesFileError, parse_rules, read_rules
from iotmq.mqtt_front.permissions.topic_template import Subject, template_text

WHOLE = """
[roles]
pump = ["pump-7", "pump-8"]
[[rules]]
name = "no secrets"
permission = "deny"
who = "all"
action = "subscribe"
topics = ["+/secret/#"]
shared = true
[[rules]]
permission = "allow"
who = { role = "pump", address = ["10.0.0.0/8", "::1"], attribute = { tenant = ["acme", "b"] } }
action = "all"
topics = ["devices/%u/#", "x"]
qos_max = 1
retain = false
will = false
delayed = false
payload_bytes_max = 100
"""


def test_everything_a_rule_may_say() -> None:
    found = parse_rules(WHOLE.encode())
    assert found.roles_of_user == {"pump-7": {"pump"}, "pump-8": {"pump"}}
    first, second = found.rules
    assert (first.name, first.is_allow, first.actions, first.who) == ("no secrets", False, SUBSCRIBE, Who())
    assert first.conditions == Conditions(shared=True)
    assert (second.name, second.is_allow, second.actions) == ("rules[1]", True, PUBLISH | SUBSCRIBE)
    assert [template_text(levels) for levels in second.topics] == ["devices/%u/#", "x"]
    assert second.conditions == Conditions(
        qos=frozenset({0, 1}), retain=False, will=False, delayed=False, payload_bytes_max=100
    )
    assert second.who == Who(
        role=frozenset({"pump"}),
        address=(ip_network("10.0.0.0/8"), ip_network("::1")),
        attribute=(("tenant", frozenset({"acme", "b"})),),
    )


def rule(**changed: str) -> str:
    given = {"permission": '"allow"', "who": '"all"', "action": '"publish"', "topics": '["x"]'} | changed
    return "[[rules]]\n" + "".join(f"{name} = {value}\n" for name, value in given.items() if value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x =", "not TOML"),
        ("x = 1", "x is not known"),
        ("rules = 1", "not a list"),
        ("[roles]\npump = 1", "roles: "),
        (rule(permission='"maybe"'), """`$.permission`; it is "allow" or "deny\""""),
        (rule(who='"nobody"'), 'it is "all" or a table such as { role = "pump" }'),
        (rule(qos="1"), "it is a list such as [0, 1]"),
        (rule(topic='["x"]'), "unknown field `topic`; did you mean topics?"),
        (rule(zzz="1"), "; known: permission, who, action, topics, "),
        (rule(who="{ usr = 'a' }"), "did you mean user?"),
        (rule(who="{}"), "names nobody"),
        (rule(who="{ users = 'x' }"), "users"),
        (rule(who="{ address = '10.0.0.1/8' }"), "host bits"),
        (rule(who=""), "who"),
        (rule(action='"read"'), "action"),
        (rule(topics="[]"), "topics"),
        (rule(topics='["a/#/b"]'), "'a/#/b': not an MQTT topic filter"),
        (rule(topics='["$share/g/x"]'), "behind $share/"),
        (rule(qos_max="3"), "qos_max"),
        (rule(qos_max="1", qos="[0]"), "say the same"),
        (rule(shared="true"), "shared means nothing"),
        (rule(action='"subscribe"', retain="true"), "retain means nothing"),
        (rule(action='"subscribe"', payload_bytes_max="1"), "payload_bytes_max means nothing"),
        (rule(permission='"deny"', qos_max="1"), "for a rule that allows"),
        (rule(permission='"deny"', payload_bytes_max="1"), "for a rule that allows"),
        (rule(colour="1"), "colour"),
        (rule(name='"n"') + rule(name='"n"', topics='["y"]'), "that of another rule"),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused_and_it_is_said_where(text: str, said: str) -> None:
    with pytest.raises(RulesFileError) as raised:
        parse_rules(text.encode())
    assert said in str(raised.value)


def test_rules_that_contradict_each_other_are_refused() -> None:
    text = rule() + rule(permission='"deny"', topics='["y", "x"]')
    with pytest.raises(RulesFileError, match=r"rules\[1\]: 'x' is allowed .* by rules\[0\]"):
        parse_rules(text.encode())
    # Of other devices, or for another action, the same topic may have another rule.
    for other in ({"who": '{ user = "u" }'}, {"action": '"subscribe"'}, {"retain": "true"}):
        assert len(parse_rules((rule() + rule(permission='"deny"', **other)).encode()).rules) == 2


def test_at_most_ten_problems_are_told() -> None:
    text = "".join(rule(action='"x"') for _ in range(12))
    with pytest.raises(RulesFileError) as raised:
        parse_rules(text.encode())
    assert str(raised.value).count("\n") == 10
    assert str(raised.value).endswith("and more")


def test_sizes(tmp_path: Path) -> None:
    """MQTT_PERMISSION_RULES_MAX, MQTT_PERMISSION_TOPICS_MAX, MQTT_PERMISSION_NAMES_MAX, and bytes."""
    rules = "".join(rule(topics=f'["t/{number}"]') for number in range(limits.MQTT_PERMISSION_RULES_MAX))
    assert len(parse_rules(rules.encode()).rules) == limits.MQTT_PERMISSION_RULES_MAX
    with pytest.raises(RulesFileError, match="more than"):
        parse_rules((rules + rule()).encode())
    many = [f"t/{number}" for number in range(limits.MQTT_PERMISSION_TOPICS_MAX + 1)]
    assert parse_rules(rule(topics=str(many[:-1])).encode())
    with pytest.raises(RulesFileError):
        parse_rules(rule(topics=str(many)).encode())
    names = [f"n{number}" for number in range(limits.MQTT_PERMISSION_NAMES_MAX + 1)]
    assert parse_rules(rule(who=f"{{ user = {names[:-1]} }}").encode())
    with pytest.raises(RulesFileError):
        parse_rules(rule(who=f"{{ user = {names} }}").encode())
    path = tmp_path / "rules"
    path.write_bytes(rule().encode() + b"#" * (limits.MQTT_PERMISSIONS_FILE_BYTES_MAX - len(rule())))
    assert read_rules(path).rules
    path.write_bytes(path.read_bytes() + b"#")
    with pytest.raises(RulesFileError, match="bytes"):
        read_rules(path)


# Who


PUMP = Subject(
    "c",
    Identity(user="pump-7", groups=("north",), attributes={"tenant": "acme"}),
    address="::ffff:10.1.2.3",
    listener="tls",
    certificate_identity="cn",
)


@pytest.mark.parametrize(
    ("who", "is_for_it"),
    [
        ('"all"', True),
        ("{ user = 'pump-7' }", True),
        ("{ user = ['x', 'pump-7'] }", True),
        ("{ user = 'pump' }", False),
        ("{ client_id = 'c' }", True),
        ("{ client_id = 'd' }", False),
        ("{ role = 'pump' }", True),
        ("{ role = 'other' }", False),
        ("{ group = 'north' }", True),
        ("{ group = 'south' }", False),
        ("{ attribute = { tenant = 'acme' } }", True),
        ("{ attribute = { tenant = 'b' } }", False),
        ("{ attribute = { tenant = 'acme', x = 'y' } }", False),
        ("{ certificate = 'cn' }", True),
        ("{ certificate = 'no' }", False),
        ("{ listener = 'tls' }", True),
        ("{ listener = 'tcp' }", False),
        ("{ address = '10.0.0.0/8' }", True),
        ("{ address = '11.0.0.0/8' }", False),
        ("{ user = 'pump-7', address = '11.0.0.0/8' }", False),
        ("{ user = 'pump-7', listener = 'tls' }", True),
    ],
)
def test_a_rule_is_for_those_who_have_one_of_each_kind_it_names(who: str, is_for_it: bool) -> None:
    rules = RuleSet(parse_rules(("[roles]\npump = ['pump-7']\n" + rule(who=who)).encode()))
    assert bool(rules.clauses_for(PUMP).publish) is is_for_it
    assert not rules.clauses_for(PUMP).subscribe


def test_who_is_not_known_has_only_the_rules_for_all() -> None:
    texts = ["'all'", "{user='x'}", "{role='x'}", "{group='x'}", "{attribute={a='x'}}", "{certificate='x'}"]
    rules = [rule(who=who, topics=f"['{at}']") for at, who in enumerate([*texts, "{address='0.0.0.0/0'}"])]
    found = RuleSet(parse_rules("".join(rules).encode())).clauses_for(Subject("c"))
    assert [clause.rule.name for clause in found.publish] == ["rules[0]"]


def test_devices_with_the_same_rules_share_what_is_known_of_them_and_that_is_bounded() -> None:
    """MQTT_PERMISSION_SETS_MAX."""
    text = rule() + rule(who="{ user = 'u' }", topics="['y']")
    rules = RuleSet(parse_rules(text.encode()))
    one, other = (rules.clauses_for(Subject(name, Identity(user="u"))) for name in ("a", "b"))
    assert one is other
    assert len(one.publish) == 2
    many = "".join(rule(who=f"{{ user = 'u{n}' }}", topics=f"['{n}']") for n in range(1_000))
    rules = RuleSet(parse_rules(many.encode()))
    for number in range(limits.MQTT_PERMISSION_SETS_MAX + 1):
        who = Subject("c", Identity(user=f"u{number}", roles=(f"r{number}",)))
        rules.clauses_for(who)
        assert len(rules._found) <= limits.MQTT_PERMISSION_SETS_MAX
