"""Topics of rules: placeholders, what fills them, and what does not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from iotmq import limits
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.permissions.topic_template import Subject, filled, parse_template, template_text


def subject(
    client_id: str = "c",
    user: str | None = "u",
    *,
    groups: tuple[str, ...] = (),
    attributes: Mapping[str, str] | None = None,
) -> Subject:
    return Subject(client_id, Identity(user=user, groups=groups, attributes=attributes or {}))


def topics(template: str, who: Subject, *, is_deny: bool = False) -> list[str]:
    return ["/".join(levels) for levels in filled(parse_template(template), who, is_deny=is_deny)]


def test_placeholders_are_filled_and_nothing_that_is_filled_in_is_one_again() -> None:
    assert topics("a/%c/%u-x/+/#", subject()) == ["a/c/u-x/+/#"]
    assert topics("a/%c", subject("%u")) == ["a/%u"]
    assert topics("100%%/%c", subject()) == ["100%/c"]
    assert topics("%{tenant}/%{a/b}", subject(attributes={"tenant": "acme", "a/b": "v"})) == ["acme/v"]
    assert topics("g/%g/x", subject(groups=("one", "two", "one"))) == ["g/one/x", "g/two/x"]


@pytest.mark.parametrize("name", ["", "+", "#", "a/b", "/", "a+", "#a", "$SYS", "$", "a\0", "a\x1f", "\x7f"])
@pytest.mark.parametrize("template", ["%c/#", "x/%u", "x/%{tenant}/y", "%g"])
def test_a_name_that_would_say_more_than_one_level_fits_no_rule_that_allows(name: str, template: str) -> None:
    who = subject(name, name, groups=(name,), attributes={"tenant": name})
    assert topics(template, who) == []
    # And what is denied to everybody with a name is denied to it.
    assert topics(template, who, is_deny=True) == [
        template.replace("%c", "+").replace("%u", "+").replace("%{tenant}", "+").replace("%g", "+")
    ]


def test_a_device_without_the_name_has_no_topic_of_that_rule() -> None:
    nobody = Subject("c")
    for template in ("x/%u", "x/%{tenant}", "%g/x"):
        assert topics(template, nobody) == []
    assert topics("x/%c", nobody) == ["x/c"]
    assert topics("x/%u", subject(user=None)) == []


def test_a_level_that_would_begin_with_a_dollar_is_none_either() -> None:
    assert topics("$%c/x", subject("SYS")) == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a/#/b",
        "a+/b",
        "%x",
        "a/%",
        "%{}",
        "%{a",
        "+%c",
        "a\0",
        "$share/g/x",
        "$exclusive/x",
        "$delayed/1/x",
        "%g/%g",
        "a" * (limits.MQTT_TOPIC_BYTES_MAX + 1),
        "/".join("a" * (limits.MQTT_WILDCARD_LEVELS_MAX + 1)),
    ],
)
def test_what_is_no_topic_of_a_rule(text: str) -> None:
    with pytest.raises(ValueError, match=r"topic|level|placeholder|filter|rule"):
        parse_template(text)


@pytest.mark.parametrize(
    "text",
    [
        "#",
        "/",
        "%c",
        "a/%u/%{x y}/+/#",
        "$SYS/#",
        "$reply/#",
        "/".join("a" * limits.MQTT_WILDCARD_LEVELS_MAX),
    ],
)
def test_what_is_one_is_shown_as_it_was_written(text: str) -> None:
    assert template_text(parse_template(text)) == text
