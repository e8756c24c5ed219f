"""Verdicts out of fields that a service has, and what it may not say."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any

import pytest

from iotmq import limits
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.links.link import LinkFailedError
from iotmq.mqtt_front.access.links.looked_up import LookedUp, identity_of, told
from iotmq.mqtt_front.access.scram import make_verifier
from iotmq.mqtt_front.access.verdicts import NOT_MINE, Accepted, Credentials, Denied
from iotmq.mqtt_front.settings.service_links import RedisLinkSettings

HASH = str(make_verifier(b"secret", iterations=4_096))
NOW_S = 1_000_000_000.0


def asked(user: str | None = "pump", password: bytes | None = b"secret", **fields: Any) -> Credentials:
    return Credentials("c1", user, password, "192.0.2.1", "tcp", **fields)


def identity(user_name: str = "pump", **fields: object) -> Identity:
    return identity_of(fields, user_name=user_name, decided_by="db")


@pytest.fixture
def looked_up() -> Iterator[LookedUp]:
    made = LookedUp(RedisLinkSettings(name="db", url="redis://x", threads=1), wall_s=lambda: NOW_S)
    yield made
    made.close()


async def test_the_right_password_makes_the_fields_an_identity(looked_up: LookedUp) -> None:
    verdict = await looked_up.verdict(asked(), {"password_hash": HASH, "roles": "meter"})
    assert verdict == Accepted(Identity(user="pump", roles=("meter",), decided_by="db"))


async def test_a_wrong_password_is_denied_and_nobody_is_for_the_next_link(looked_up: LookedUp) -> None:
    denied = await looked_up.verdict(asked(password=b"secret2"), {"password_hash": HASH})
    assert isinstance(denied, Denied)
    assert denied.cause == "password"
    assert await looked_up.verdict(asked(), None) is NOT_MINE


async def test_a_name_that_is_not_there_costs_a_hash_as_others_do(
    looked_up: LookedUp, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = []

    def count(kept: str, password: bytes) -> bool:
        hashed.append(kept)
        return True

    monkeypatch.setattr("iotmq.mqtt_front.access.links.looked_up.is_password", count)
    await looked_up.verdict(asked(), {"password_hash": HASH})
    assert await looked_up.verdict(asked("nobody"), None) is NOT_MINE
    assert hashed == [HASH, HASH]


async def test_nobody_is_denied_where_all_users_are_in_one_place() -> None:
    looked_up = LookedUp(
        RedisLinkSettings(name="db", url="redis://x", password_required=False, unknown_users="deny")
    )
    verdict = await looked_up.verdict(asked(), None)
    looked_up.close()
    assert isinstance(verdict, Denied)
    assert verdict.cause == "user"


@pytest.mark.parametrize("kept", [None, "", 7, b"bytes", "plain"])
async def test_a_hash_that_is_none_is_an_error(looked_up: LookedUp, kept: object) -> None:
    with pytest.raises(LinkFailedError, match="password_hash"):
        await looked_up.verdict(asked(), {"password_hash": kept})


async def test_who_has_expired_is_denied(looked_up: LookedUp) -> None:
    fields = {"password_hash": HASH, "expires_at": NOW_S}
    denied = await looked_up.verdict(asked(), fields)
    assert isinstance(denied, Denied)
    assert denied.cause == "expired"
    accepted = await looked_up.verdict(asked(), {**fields, "expires_at": NOW_S + 1})
    assert isinstance(accepted, Accepted)
    assert accepted.identity.expires_at_s == NOW_S + 1


@pytest.mark.parametrize(("user", "password"), [(None, b"p"), ("", b"p"), ("u", None), ("u", b"")])
def test_a_device_without_name_or_password_is_not_asked_about(
    looked_up: LookedUp, user: str | None, password: bytes | None
) -> None:
    assert not looked_up.is_question(asked(user, password))


@pytest.mark.parametrize(
    "value",
    ["a, b", '["a","b"]', ["a", "b"], ("a", "b"), "a,,b,"],
    ids=["text", "json", "list", "tuple", "gaps"],
)
def test_names_come_in_several_forms(value: object) -> None:
    assert identity(roles=value, groups=value).roles == ("a", "b")
    assert identity(groups=value).groups == ("a", "b")


@pytest.mark.parametrize("value", [7, [1], '["a', {"a": 1}, '{"a":1}'.replace("{", "[{")])
def test_what_is_no_list_of_names_is_an_error(value: object) -> None:
    with pytest.raises(LinkFailedError, match="roles"):
        identity(roles=value)


def test_a_service_says_a_bounded_number_of_names() -> None:
    names = [f"r{number}" for number in range(limits.LOOKED_UP_NAMES_MAX)]
    assert identity(roles=names).roles == tuple(names)
    with pytest.raises(LinkFailedError, match="roles"):
        identity(roles=[*names, "more"])


def test_a_service_says_a_bounded_number_of_attributes() -> None:
    found = {f"a{number}": "x" for number in range(limits.LOOKED_UP_ATTRIBUTES_MAX)}
    assert identity(attributes=found).attributes == found
    with pytest.raises(LinkFailedError, match="attributes"):
        identity(attributes={**found, "more": "x"})


def test_a_service_says_a_bounded_number_of_permissions() -> None:
    rules = [{"permission": "allow", "action": "all", "topic": "a"}] * limits.LOOKED_UP_PERMISSIONS_MAX
    assert len(identity(permissions=rules).permissions or ()) == len(rules)
    with pytest.raises(LinkFailedError, match="permissions"):
        identity(permissions=rules + rules[:1])


def test_a_service_says_a_bounded_amount_of_text() -> None:
    spare = limits.LOOKED_UP_BYTES_MAX - len("meter") - 16 * 6
    text = "x" * (spare - 4)
    found = identity(roles="meter", attributes={"note": text})
    assert found.attributes["note"] == text
    with pytest.raises(LinkFailedError, match="bytes"):
        identity(roles="meter", attributes={"note": text + "x"})


def test_attributes_are_text() -> None:
    found = identity(attributes=json.dumps({"tenant": "t1", "floor": 3, "is_new": True, "x": 1.5}))
    assert found.attributes == {"tenant": "t1", "floor": "3", "is_new": "true", "x": "1.5"}
    for wrong in ("{", "[]", {"a": None}, {"a": [1]}, {1: "a"}):
        with pytest.raises(LinkFailedError, match="attribute"):
            identity(attributes=wrong)


def test_permissions_come_as_json_or_as_rows() -> None:
    rule = {"permission": "deny", "action": "publish", "topic": "a/#", "qos": [0, 1], "retain": True}
    assert identity(permissions=json.dumps([rule])).permissions == (rule,)
    row = {"permission": "deny", "action": "publish", "topic": "a/#", "qos": "0,1", "retain": 1}
    rows = [row, {**row, "qos": None, "retain": None}]
    found = identity_of({"permissions": [rule]}, user_name="u", decided_by="db", permission_rows=rows)
    bare = {"permission": "deny", "action": "publish", "topic": "a/#"}
    assert found.permissions == (rule, rule, bare)


def test_without_permissions_it_brought_none_and_an_empty_list_is_one() -> None:
    assert identity().permissions is None
    assert identity(permissions="[]").permissions == ()
    assert identity_of({}, user_name="u", decided_by="db", permission_rows=[]).permissions == ()


@pytest.mark.parametrize(
    "entry",
    [
        "allow",
        {"permission": "allow", "action": "publish"},
        {"permission": "allow", "action": "publish", "topic": 7},
        {"permission": "allow", "action": "publish", "topic": "a", "qos": [3]},
        {"permission": "allow", "action": "publish", "topic": "a", "qos": []},
        {"permission": "allow", "action": "publish", "topic": "a", "qos": "high"},
        {"permission": "allow", "action": "publish", "topic": "a", "qos": [True]},
        {"permission": "allow", "action": "publish", "topic": "a", "retain": "maybe"},
        {"permission": "allow", "action": "publish", "topic": "a", "only_from": "lan"},
    ],
)
def test_a_permission_that_is_not_understood_is_an_error_and_not_left_out(entry: object) -> None:
    with pytest.raises(LinkFailedError):
        identity(permissions=[entry])


@pytest.mark.parametrize(
    "value",
    [
        1_700_000_000,
        1_700_000_000.0,
        "1700000000",
        "2023-11-14T22:13:20+00:00",
        "2023-11-14 22:13:20",
        datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC),
        datetime.datetime(2023, 11, 14, 22, 13, 20),
        datetime.datetime(2023, 11, 15, 0, 13, 20, tzinfo=datetime.timezone(datetime.timedelta(hours=2))),
    ],
)
def test_times_come_in_several_forms(value: object) -> None:
    assert identity(expires_at=value).expires_at_s == 1_700_000_000


@pytest.mark.parametrize("value", ["tomorrow", -1, "nan", "inf", True, [1], 1_700_000_000_000])
def test_what_is_no_time_is_an_error(value: object) -> None:
    with pytest.raises(LinkFailedError, match="expires_at"):
        identity(expires_at=value)


@pytest.mark.parametrize(
    ("value", "means"), [(1, True), (0, False), ("t", True), ("No", False), (True, True)]
)
def test_a_bridge_is_one_by_any_form_of_yes(value: object, means: bool) -> None:
    assert identity(is_bridge=value).is_bridge is means
    with pytest.raises(LinkFailedError):
        identity(is_bridge="perhaps")


def test_the_service_may_name_the_user() -> None:
    assert identity(user="Pump").user == "Pump"
    longest = "n" * limits.MQTT_USER_NAME_BYTES_MAX
    assert identity(user=longest).user == longest
    for wrong in ("", 7, longest + "n"):
        with pytest.raises(LinkFailedError, match="user"):
            identity(user=wrong)


def test_an_answer_holds_for_those_who_say_the_same() -> None:
    one = told(asked(), ["user_name"])
    assert told(asked()._replace(client_id="c2", address="192.0.2.9"), ["user_name"]) == one
    assert told(asked(password=b"other"), ["user_name"]) != one
    assert told(asked("valve"), ["user_name"]) != one
    assert told(asked()._replace(client_id="c2"), ["client_id"]) != told(asked(), ["client_id"])
