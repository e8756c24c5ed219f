"""What devices are refused, over real sockets: messages, filters, wills; and rules that change."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import users_site
from eventually import soon
from fake_gateway import RawClient, connect_packet
from permissions_site import NOT_AUTHORIZED, REFUSED, Site, rule_text, running, write

from iotmq.errors import ConfigError
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Will
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt.topics.reply import ReplyAddress, reply_token
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.permissions.decisions import RulesPolicy
from iotmq.mqtt_front.permissions.rule import Decision, Use
from iotmq.mqtt_front.settings.topics import AutoSubscriptionSettings, RewriteSettings

OWN = rule_text("allow", "all", "d/%c/#", name='"own"')


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "permissions.toml"


def acknowledgement(packet: tuple[int, bytes]) -> tuple[int, int]:
    first, body = packet
    return first >> 4, body[2] if len(body) > 2 else 0


# PUBLISH


async def test_mqtt_5_is_told_and_nobody_gets_what_is_refused(path: Path) -> None:
    async with running(path, OWN) as site:
        client = await site.connect(level=5)
        for qos in (1, 2):
            assert await site.published(client, "d/c/x", qos=qos, properties=NO_PROPERTIES) == 0
            if qos == 2:
                client.send(packets.encode_acknowledgement(packets.PUBREL, 7))
                assert await client.packet() == (packets.PUBCOMP << 4, b"\0\x07")
            for _ in range(2):
                # A PUBREC that says no ends the message: the packet id is free.
                assert (
                    await site.published(client, "d/e/x", qos=qos, properties=NO_PROPERTIES) == NOT_AUTHORIZED
                )
        assert site.topics == ["d/c/x"] * 2
        assert site.number(REFUSED, what="publish", rule="no rule") == 4


async def test_before_mqtt_5_a_refused_message_is_acknowledged_and_dropped(path: Path) -> None:
    async with running(path, OWN) as site:
        client = await site.connect()
        assert await site.published(client, "d/e/x") == 0
        assert await site.published(client, "d/e/x", qos=2) == 0
        client.send(packets.encode_acknowledgement(packets.PUBREL, 7))
        assert await client.packet() == (packets.PUBCOMP << 4, b"\0\x07")
        client.send(packets.encode_publish("d/e/x", b"", qos=0), packets.encode_publish("d/c/x", b"", qos=0))
        await client.ping()
        assert site.topics == ["d/c/x"]
        assert site.number(REFUSED) == 3


@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("qos", [0, 1])
async def test_where_the_settings_say_so_a_refused_message_ends_the_connection(
    path: Path, level: int, qos: int
) -> None:
    async with running(path, OWN, deny_action="disconnect") as site:
        client = await site.connect(level=level)
        properties = NO_PROPERTIES if level == 5 else None
        packet = packets.encode_publish("d/e/x", b"", qos=qos, packet_id=1, properties=properties)
        client.send(packet)
        rest = await client.rest()
        if level == 5:
            assert (rest[0], rest[2]) == (packets.DISCONNECT << 4, NOT_AUTHORIZED)
        else:
            assert rest == b""
        assert site.topics == []
        assert site.number(REFUSED, rule="no rule") == 1


async def test_rights_of_their_own_for_flags_sizes_and_ways(path: Path) -> None:
    text = (
        rule_text("deny", "publish", "d/#", retain="true", name='"no retain"')
        + rule_text("allow", "publish", "d/#", qos_max="1", payload_bytes_max="4", delayed="false")
        + rule_text("allow", "publish", "late/#", delayed="true")
    )
    async with running(path, text) as site:
        client = await site.connect(level=5)
        five: dict[str, Any] = {"properties": NO_PROPERTIES}
        for _ in range(2):
            assert await site.published(client, "d/x", b"1234", **five) == 0
            assert await site.published(client, "d/x", b"12345", **five) == NOT_AUTHORIZED
            assert await site.published(client, "d/x", b"1", qos=2, **five) == NOT_AUTHORIZED
            assert await site.published(client, "d/x", b"1", retain=True, **five) == NOT_AUTHORIZED
            assert await site.published(client, "$delayed/5/d/x", **five) == NOT_AUTHORIZED
            assert await site.published(client, "$delayed/5/late/x", **five) == 0
            assert await site.published(client, "late/x", **five) == NOT_AUTHORIZED
        assert site.topics == ["d/x", "late/x"] * 2
        assert site.number(REFUSED, rule="no retain") == 2


async def test_a_refusal_names_the_rule_and_the_condition_that_is_missed(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = rule_text("allow", "publish", "d/#", name='"small"', qos_max="1", payload_bytes_max="4")
    async with running(path, text) as site:
        client = await site.connect(level=5)
        for payload, qos, detail in ((b"12345", 1, "payload_bytes_max is 4"), (b"", 2, "it is for QoS 0, 1")):
            caplog.clear()
            assert (
                await site.published(client, "d/x", payload, qos=qos, properties=NO_PROPERTIES)
                == NOT_AUTHORIZED
            )
            (line,) = [line for line in caplog.records if line.message == "a device may not do that"]
            assert (vars(line)["rule"], vars(line)["detail"]) == ("small", detail)
            site.clock.advance(1)
        will = await RawClient.dial(site.front.port)
        will.send(connect_packet("w", protocol_level=4, will=Will("d/x", b"12345", 0, False)))
        assert (await will.packet())[1][1] == 5
        assert vars(caplog.records[-1])["detail"] == "payload_bytes_max is 4"
        assert site.number(REFUSED, rule="small") == 3


async def test_the_right_is_that_of_the_topic_after_rewriting_whatever_the_alias(path: Path) -> None:
    rewrites = (RewriteSettings(filter="old/#", pattern="^old/(.+)$", template="d/%c/$1", action="all"),)
    async with running(path, OWN + rule_text("deny", "all", "old/#"), rewrites=rewrites) as site:
        client = await site.connect(level=5)
        assert await site.published(client, "old/x", properties=Properties(topic_alias=1)) == 0
        assert await site.published(client, "", properties=Properties(topic_alias=1)) == 0
        assert await site.published(client, "d/e/x", properties=Properties(topic_alias=1)) == NOT_AUTHORIZED
        assert await site.published(client, "", properties=Properties(topic_alias=1)) == NOT_AUTHORIZED
        other = await site.connect("e", level=5)
        assert await site.published(other, "old/x", properties=NO_PROPERTIES) == 0
        assert site.topics == ["d/c/x", "d/c/x", "d/e/x"]
        client.send(subscribe_packet(5, ("old/x", 0), ("old/#", 0)))
        assert list((await client.packet())[1][-2:]) == [0, 0]
        assert sorted(site.gateway.filters.values()) == ["d/c/#", "d/c/x"]


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_a_name_means_is_the_same_for_every_qos_and_behind_an_alias(path: Path, qos: int) -> None:
    rewrites = (RewriteSettings(filter="old/#", pattern="^old/(.+)$", template="d/$1", action="all"),)
    text = rule_text("deny", "all", "d/%c/secret/#", "old/#") + rule_text("allow", "all", "d/%c/#")
    async with running(path, text, rewrites=rewrites) as site:
        client = await site.connect(level=5)

        async def may(topic: str, alias: int) -> bool:
            before = len(site.topics)
            properties = Properties(topic_alias=alias)
            if qos:
                code = await site.published(client, topic, qos=qos, properties=properties)
                if qos == 2 and not code:
                    client.send(packets.encode_acknowledgement(packets.PUBREL, 7))
                    await client.packet()
            else:
                client.send(packets.encode_publish(topic, b"x", qos=0, properties=properties))
                await client.ping()
                code = 0 if len(site.topics) > before else NOT_AUTHORIZED
            assert (len(site.topics) > before) is (code == 0)
            return code == 0

        for alias, (topic, allowed) in enumerate(
            (
                ("d/c/x", True),
                ("d/c/secret", False),
                ("d/e/x", False),
                ("old/c/x", True),
                ("old/c/secret/x", False),
                ("old/e/x", False),
                ("$delayed/5/d/c/x", True),
                ("$delayed/5/d/c/secret/x", False),
                ("$delayed/5/old/c/x", True),
                ("$delayed/5/old/c/secret", False),
                ("$delayed/1/d/e/x", False),
                ("$share/g/d/c/x", False),
                ("$exclusive/d/c/x", False),
            ),
            1,
        ):
            for name in (topic, "", topic, ""):
                assert await may(name, alias) is allowed, topic
        assert set(site.topics) == {"d/c/x"}


async def test_who_was_asked_may_answer_unless_a_rule_says_no(path: Path) -> None:
    topic = f"$reply/{reply_token(ReplyAddress('b', 'client', '1'))}"
    async with running(path, OWN) as site:
        client = await site.connect(level=5)
        assert await site.published(client, topic, properties=NO_PROPERTIES) == 0
        await site.change(rule_text("deny", "publish", "$reply/#"))
        assert await site.published(client, topic, properties=NO_PROPERTIES) == NOT_AUTHORIZED
        assert len(site.gateway.replies) == 1


# SUBSCRIBE


@pytest.mark.parametrize(("level", "code"), [(3, 0x80), (4, 0x80), (5, NOT_AUTHORIZED)])
async def test_a_filter_is_refused_unless_all_its_topics_are_allowed(
    path: Path, level: int, code: int
) -> None:
    text = rule_text("deny", "subscribe", "d/%c/secret/#", name='"secret"') + OWN
    async with running(path, text) as site:
        client = await site.connect(level=level)
        wanted = ["d/c/x", "d/c/+", "d/c/x/#", "d/c/#", "d/c/secret", "d/+/x", "#", "+/c/x", "$SYS/#"]
        client.send(subscribe_packet(level, *((name, 1) for name in wanted)))
        first, body = await client.packet()
        assert first == packets.SUBACK << 4
        assert list(body[-len(wanted) :]) == [1, code, 1, *[code] * 6]
        assert sorted(site.gateway.filters.values()) == ["d/c/x", "d/c/x/#"]
        assert site.number(REFUSED, what="subscribe", rule="secret") == 3
        assert site.number(REFUSED, what="subscribe", rule="no rule") == 4


def subscribe_packet(level: int, *filters: tuple[str, int]) -> bytes:
    if level == 5:
        return packets.encode_subscribe(1, filters, properties=NO_PROPERTIES)
    return packets.encode_subscribe(1, filters)


async def test_what_a_filter_is_used_for_has_rights_of_its_own(path: Path) -> None:
    text = (
        rule_text("deny", "subscribe", "d/#", exclusive="true")
        + rule_text("allow", "subscribe", "d/#", shared="false", qos_max="1")
        + rule_text("allow", "subscribe", "jobs/#", shared="true")
    )
    async with running(path, text) as site:
        client = await site.connect()
        codes = await client.subscribe(
            ("d/x", 2), ("$exclusive/d/x", 0), ("$share/g/d/x", 0), ("jobs/1", 0), ("$share/g/jobs/1", 0)
        )
        # QoS 1 is granted in place of 2. Without a broker for groups a shared one is not possible either way.
        assert codes == [1, 0x80, 0x80, 0x80, 0x80]
        assert site.number(REFUSED, what="subscribe") == 3, "the last one was allowed by the rules"


async def test_subscriptions_of_the_operator_need_no_right(path: Path) -> None:
    automatic = (AutoSubscriptionSettings(filter="commands/%c"),)
    async with running(path, OWN, auto_subscriptions=automatic) as site:
        client = await site.connect()
        await client.ping()
        assert list(site.gateway.filters.values()) == ["commands/c"]
        await site.change(rule_text("deny", "all", "#"))
        await client.ping()
        assert list(site.gateway.filters.values()) == ["commands/c"]
        assert site.number(REFUSED) == 0


@pytest.mark.parametrize("topic_filter", ["%c/g/#", "%c/#"])
@pytest.mark.parametrize("client_id", ["$share", "$exclusive", "$SYS"])
async def test_a_client_id_does_not_make_more_of_a_subscription_of_the_operator(
    path: Path, topic_filter: str, client_id: str
) -> None:
    """`%c/g/#` of the client `$share` would be `#`, shared in the group `g`."""
    automatic = (AutoSubscriptionSettings(filter=topic_filter), AutoSubscriptionSettings(filter="news"))
    async with running(path, OWN, auto_subscriptions=automatic) as site:
        client = await site.connect(client_id)
        await client.ping()
        assert list(site.gateway.filters.values()) == ["news"]


async def test_sys_needs_a_rule_that_names_it(path: Path) -> None:
    async with running(
        path,
        rule_text("allow", "all", "#", who="{ client_id = 'c' }")
        + rule_text("allow", "subscribe", "$SYS/#", who="{ client_id = 'admin' }"),
    ) as site:
        client = await site.connect()
        assert await client.subscribe(("#", 0), ("$SYS/#", 0)) == [0, 0x80]
        admin = await site.connect("admin")
        assert (await admin.subscribe(("$SYS/broker/version", 0)))[0] == 0


# Wills


@pytest.mark.parametrize(("level", "code"), [(3, 5), (4, 5), (5, NOT_AUTHORIZED)])
async def test_a_will_that_may_not_be_published_is_refused_at_the_connect_and_takes_nobody_over(
    path: Path, level: int, code: int
) -> None:
    text = rule_text("deny", "publish", "#", will="true", retain="true", name='"wills"') + OWN
    async with running(path, text) as site:
        first = await site.connect()
        for will in (Will("d/e/gone", b"", 0, False), Will("d/c/gone", b"", 0, True)):
            client = await RawClient.dial(site.front.port)
            if level == 5:
                will = will._replace(properties=NO_PROPERTIES)
            client.send(connect_packet("c", protocol_level=level, will=will))
            packet = await client.packet()
            assert (packet[0] >> 4, packet[1][1]) == (packets.CONNACK, code)
            assert await client.rest() == b""
        await first.ping()
        assert site.topics == []
        assert site.number(REFUSED, what="will", rule="no rule") == 1
        assert site.number(REFUSED, what="will", rule="wills") == 1


async def test_a_will_is_published_as_long_as_it_is_allowed(path: Path) -> None:
    async with running(path, OWN) as site:
        client = await site.connect(will=Will("d/c/gone", b"", 1, True))
        client.abort()
        await soon(lambda: site.topics == ["d/c/gone"], "the will")
        client = await site.connect(will=Will("d/c/gone", b"", 1, True))
        await site.change(rule_text("allow", "publish", "x"))
        client.abort()
        await soon(lambda: site.number(REFUSED, what="will") == 1, "the will is refused")
        assert site.topics == ["d/c/gone"]


# Rules that change


async def test_changed_rules_hold_for_the_next_message_and_take_subscriptions(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(path, OWN) as site:
        client = await site.connect(level=5)
        assert await site.published(client, "d/c/x", properties=NO_PROPERTIES) == 0
        client.send(subscribe_packet(5, ("d/c/x", 0), ("d/c/y", 0)))
        await client.packet()
        await site.change(rule_text("allow", "all", "d/c/y"))
        assert await site.published(client, "d/c/x", properties=NO_PROPERTIES) == NOT_AUTHORIZED
        assert await site.published(client, "d/c/y", properties=NO_PROPERTIES) == 0
        await soon(lambda: list(site.gateway.filters.values()) == ["d/c/y"], "a filter is gone")
        assert site.number(REFUSED, what="revoked") == 1
        assert site.number("iotmq_mqtt_permissions_reloads_total") == 1
        assert site.number("iotmq_mqtt_subscriptions") == 1
        # Rules with an error change nothing, and are logged; as are those that contradict each other.
        contradicting = rule_text("allow", "all", "a") + rule_text("deny", "publish", "a")
        for text, said in (("[[rules]]\n", "rules[0]"), (contradicting, "is allowed to the same devices")):
            with caplog.at_level(logging.ERROR):
                await site.change(text)
            assert said in vars(caplog.records[-1])["detail"]
            assert caplog.records[-1].message == "the changed permissions are not used, the former ones hold"
        assert await site.published(client, "d/c/y", properties=NO_PROPERTIES) == 0
        assert site.number("iotmq_mqtt_permissions_failed_reloads_total") == 2
        await site.change(None)
        assert await site.published(client, "d/c/y", properties=NO_PROPERTIES) == 0
        assert site.number("iotmq_mqtt_permissions_failed_reloads_total") == 3


@pytest.mark.parametrize("level", [4, 5])
async def test_a_device_may_be_told_that_it_has_lost_a_subscription(path: Path, level: int) -> None:
    async with running(path, OWN, on_revocation="disconnect") as site:
        client = await site.connect(level=level)
        client.send(subscribe_packet(level, ("d/c/x", 0)))
        await client.packet()
        other = await site.connect("e")
        assert await other.subscribe(("d/e/x", 0)) == [0]
        await site.change(rule_text("allow", "all", "d/e/#"))
        rest = await client.rest()
        assert (rest[0], rest[2]) == (packets.DISCONNECT << 4, NOT_AUTHORIZED) if level == 5 else rest == b""
        await other.ping()


async def test_a_subscription_that_was_under_way_while_rules_changed_is_taken_too(path: Path) -> None:
    async with running(path, OWN) as site:
        site.gateway.takes_filters = None
        client = await site.connect()
        client.send(packets.encode_subscribe(1, (("d/c/x", 0),)))
        await soon(lambda: site.gateway.attaching, "the broker is asked")
        await site.change(rule_text("deny", "all", "#"))
        await soon(lambda: site.front.parts.subscriptions.rights._checking is None, "all were checked")
        for done in site.gateway.attaching:
            done(True)
        await client.packet()
        await soon(lambda: not site.gateway.filters, "the filter is gone")
        assert site.number("iotmq_mqtt_subscriptions") == 0


async def test_the_file_is_looked_at_by_itself(path: Path) -> None:
    async with running(path, OWN, reload_interval_s=0.01) as site:
        write(path, rule_text("deny", "all", "#"))
        await soon(lambda: site.number("iotmq_mqtt_permissions_reloads_total") == 1, "it was read")


@pytest.mark.parametrize("text", [None, "[[rules]]"])
async def test_without_good_rules_nothing_starts(path: Path, text: str | None) -> None:
    write(path, text or "")
    site = Site(path, (), {})
    if text is None:
        write(path, None)
    with pytest.raises(ConfigError, match="permissions"):
        await site.front.start()


# Without rules


async def test_without_rules_a_device_with_a_name_uses_topics_with_its_name(tmp_path: Path) -> None:
    async with users_site.running(users_site.file_of_all(tmp_path)) as site:
        site.gateway.automatic = 0
        client = await site.dial()
        client.send(connect_packet("telemetry", user_name="pump", password=b"pmup", protocol_level=5))
        await client.packet()
        for topic, code in (
            ("d/pump/x", 0),
            ("pump", 0),
            ("d/pump2/x", NOT_AUTHORIZED),
            # The client id is the device's own choice.
            ("d/valve/telemetry", NOT_AUTHORIZED),
        ):
            client.send(packets.encode_publish(topic, b"", qos=1, packet_id=1, properties=NO_PROPERTIES))
            assert acknowledgement(await client.packet()) == (packets.PUBACK, code)
        client.send(
            subscribe_packet(
                5,
                ("d/pump/#", 0),
                ("+/pump", 0),
                ("#", 0),
                ("d/+", 0),
                ("d/+/telemetry", 0),
                ("$SYS/pump", 0),
            )
        )
        assert list((await client.packet())[1][-6:]) == [0, 0, *[NOT_AUTHORIZED] * 4]
        assert site.number(REFUSED, rule="own topics") == 6


@pytest.mark.parametrize(
    ("setting", "code"), [("everything", 0), ("own", NOT_AUTHORIZED), ("nothing", NOT_AUTHORIZED)]
)
async def test_one_line_of_the_settings_lets_them_do_everything(
    tmp_path: Path, setting: str, code: int
) -> None:
    mqtt = {"permissions": {"without_rules": setting}}
    async with users_site.running(users_site.file_of_all(tmp_path), mqtt, allow_anonymous=True) as site:
        site.gateway.automatic = 0
        for who in ({"user_name": "pump", "password": b"pmup"}, {}):
            client = await site.dial()
            client.send(connect_packet("c", protocol_level=5, **who))
            await client.packet()
            client.send(packets.encode_publish("any", b"", qos=1, packet_id=1, properties=NO_PROPERTIES))
            assert acknowledgement(await client.packet()) == (packets.PUBACK, code)
        assert (site.devices[0].rights is None) is (setting == "everything")


async def test_who_was_not_asked_may_do_everything_without_rules(path: Path) -> None:
    async with running(path) as site:
        client = await site.connect()
        assert await client.subscribe(("#", 0), ("$SYS/broker/version", 0)) == [0, 0]
        (device,) = site.front.parts.sessions.devices()
        assert device.rights is None


# Identities


async def test_another_identity_of_a_connected_device_brings_other_rights(path: Path) -> None:
    """As with a new token: what it may no more is taken from it at once."""
    async with running(path) as site:
        client = await site.connect(level=5)
        client.send(subscribe_packet(5, ("a/#", 0), ("b/#", 0)))
        await client.packet()
        (device,) = site.front.parts.sessions.devices()
        for topic, code in (("a", 0), ("b", NOT_AUTHORIZED)):
            rules = ({"permission": "allow", "action": "all", "topic": "a/#"},)
            device.identity = Identity(user="u", permissions=rules)
            site.front._identity_renewed(device)
            assert await site.published(client, topic, properties=NO_PROPERTIES) == code
        assert list(site.gateway.filters.values()) == ["a/#"]
        device.identity = Identity(
            user="u", permissions=({"permission": "allow", "action": "all", "topic": "b"},)
        )
        site.front._identity_renewed(device)
        assert await site.published(client, "a", properties=NO_PROPERTIES) == NOT_AUTHORIZED
        assert await site.published(client, "b", properties=NO_PROPERTIES) == 0
        assert not site.gateway.filters


async def test_a_device_that_shows_tokens_over_and_over_has_its_filters_compared_one_at_a_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An AUTH is small, and comparing ten thousand filters is not: what comes meanwhile is one time more."""
    compared: list[str] = []
    decide = RulesPolicy.may_subscribe

    def counting(policy: RulesPolicy, topic_filter: str, use: Use) -> Decision:
        compared.append(topic_filter)
        # Some milliseconds, so that it takes turns.
        site.clock.advance(0.002)
        return decide(policy, topic_filter, use)

    async with running(path, OWN + rule_text("allow", "subscribe", "a/#")) as site:
        client = await site.connect(level=5)
        filters = [f"a/{number}" for number in range(20)]
        client.send(subscribe_packet(5, *((name, 0) for name in filters)))
        await client.packet()
        (device,) = site.front.parts.sessions.devices()
        monkeypatch.setattr(RulesPolicy, "may_subscribe", counting)
        denied = {"permission": "deny", "action": "all", "topic": "a/19"}
        for permissions in (*[()] * 50, (denied,)):
            device.identity = Identity(user="u", permissions=permissions)
            site.front._identity_renewed(device)
        await soon(lambda: len(site.gateway.filters) == 19, "the last one counts")
        assert 20 < len(compared) <= 40
        client.close()
