"""Settings shown (26) and changed (25) while the broker runs, and what a restart makes of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_site import PULL, SEND, Site

from iotmq import limits
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.changed_settings import CHANGEABLE
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.properties_text import parse_properties


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.start()
    yield site
    await site.stop()


async def change(site: Site, text: str) -> Command:
    return await site.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())


async def shown(site: Site) -> dict[str, str]:
    response = await site.ask(RequestCode.GET_BROKER_CONFIG)
    assert response.code == 0
    return parse_properties(response.body_bytes())


def perms(site: Site) -> dict[str, int]:
    """What registries are told."""
    told = site.broker._registration.told_topics()
    return {topic.topic_name: topic.perm & told.perm_mask for topic in told.configs()}


async def test_settings_are_shown_under_both_names(site: Site) -> None:
    settings = await shown(site)
    assert settings["brokerName"] == settings["broker.name"] == "broker-a"
    assert (settings["brokerRole"], settings["flushDiskType"]) == ("ASYNC_MASTER", "ASYNC_FLUSH")
    assert settings["messageDelayLevel"] == settings["broker.delay_levels"]
    assert settings["brokerPermission"] == "6"
    assert settings["flushConsumerOffsetInterval"] == "5000"
    assert settings["fileReservedTime"] == settings["store.retention_hours"] == "72"
    assert settings.keys() >= CHANGEABLE


async def test_a_change_is_in_effect_at_once_and_after_a_restart(site: Site) -> None:
    version = (await site.ask(RequestCode.GET_BROKER_CONFIG)).ext["version"]
    assert (await change(site, "# by hand\nautoCreateTopicEnable=false\nfileReservedTime=5\n")).code == 0
    for _ in range(2):
        response = await site.ask(RequestCode.SEND_MESSAGE_V2, SEND, b"x")
        assert response.code == 17
        assert site.store.settings.retention_hours == 5
        assert (await shown(site))["broker.auto_create_topics"] == "false"
        await site.stop(as_crash=True)
        await site.start()
    assert (await site.ask(RequestCode.GET_BROKER_CONFIG)).ext["version"] != version


async def test_taking_permissions_refuses_and_is_told_to_registries(site: Site) -> None:
    await site.send(b"x")
    counter = site.broker.topics.version.counter
    assert (await change(site, "brokerPermission=4")).code == 0
    assert site.broker.topics.version.counter > counter
    assert (await site.ask(RequestCode.SEND_MESSAGE_V2, SEND, b"x")).code == 16
    assert perms(site)["T"] == 4
    assert (await site.ask(RequestCode.PULL_MESSAGE, PULL)).code == 0
    assert (await change(site, "brokerPermission=2")).code == 0
    assert (await site.ask(RequestCode.PULL_MESSAGE, PULL)).code == 16
    assert (await site.ask(RequestCode.SEND_MESSAGE_V2, SEND, b"x")).code == 0
    assert perms(site)["T"] == 2
    assert (await change(site, "brokerPermission=6")).code == 0
    assert perms(site)["T"] == 6


async def test_every_changeable_setting_can_be_set_to_what_it_is_and_the_whole_text_sent_back(
    site: Site,
) -> None:
    response = await site.ask(RequestCode.GET_BROKER_CONFIG)
    assert (await change(site, response.body_bytes().decode())).code == 0
    assert not (site.directory / "config" / "brokerSettings.json").exists()


async def test_other_parts_have_their_new_values(site: Site) -> None:
    text = (
        "broker.auto_create_groups=false\nbroker.default_topic_queues=3\nbroker.client_expiry_s=7\n"
        "broker.held_pulls_max=9\nbroker.is_tracing_allowed=false\nflushConsumerOffsetInterval=1500\n"
    )
    assert (await change(site, text)).code == 0
    broker = site.broker
    assert broker.groups.expiry_s == 7
    assert broker.native.parked_pulls.held_max == 9
    assert broker.subscription_groups.find_or_create("nobody") is None
    template = broker.topics.find("TBW102")
    assert template is not None
    assert template.write_queue_nums == 3
    assert (await site.send(b"x")).ext["TRACE_ON"] == "false"
    assert (await shown(site))["broker.offsets_interval_s"] == "1.5"


async def test_going_back_to_what_is_configured_ends_the_change(site: Site) -> None:
    await change(site, "broker.held_pulls_max=9")
    await change(site, f"broker.held_pulls_max={BrokerSettings().held_pulls_max}")
    document = json.loads((site.directory / "config" / "brokerSettings.json").read_bytes())
    assert document["changes"] == {}


async def test_a_configuration_written_later_wins(site: Site) -> None:
    await change(site, "broker.held_pulls_max=9\nbroker.default_topic_queues=3")
    await site.stop()
    site.settings = BrokerSettings(listen_port=0, registries=(), held_pulls_max=77)
    await site.start()
    assert site.broker.native.parked_pulls.held_max == 77
    assert (await shown(site))["broker.default_topic_queues"] == "3"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("listenPort=1", "cannot change while the broker runs"),
        ("store.flush=sync", "cannot change while the broker runs"),
        ("flushDiskType=SYNC_FLUSH", "flushDiskType cannot change while the broker runs"),
        ("nonsense=1", "no setting 'nonsense'"),
        ("broker.nonsense=1", "no setting 'broker.nonsense'"),
        ("broker.default_topic_queues=0", "broker.default_topic_queues"),
        ("broker.default_topic_queues=many", "broker.default_topic_queues"),
        ("autoCreateTopicEnable=maybe", "broker.auto_create_topics"),
        ("flushConsumerOffsetInterval=soon", "not a number"),
        ("flushConsumerOffsetInterval=nan", "broker.offsets_interval_s"),
        ("brokerPermission=9", "brokerPermission"),
        ("deleteWhen=25", "store.delete_hour"),
        ("no equals sign", "without ="),
        ("#" * (limits.SETTINGS_TEXT_BYTES_MAX + 1), "more than"),
    ],
)
async def test_a_setting_that_cannot_be_is_refused_and_nothing_changes(
    site: Site, text: str, problem: str
) -> None:
    before = await shown(site)
    response = await change(site, f"broker.held_pulls_max=9\n{text}")
    assert response.code == 1
    assert problem in (response.remark or "")
    assert await shown(site) == before


async def test_text_at_the_limit_is_taken(site: Site) -> None:
    assert (await change(site, "#" * limits.SETTINGS_TEXT_BYTES_MAX)).code == 0


async def test_bytes_that_are_no_text_are_refused(site: Site) -> None:
    response = await site.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"\xff=1")
    assert response.code == 1


async def test_a_change_that_cannot_be_saved_holds_is_said_and_is_tried_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = site.directory / "config" / "brokerSettings.json"

    def refuse(data: bytes, *, is_synced: bool) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(site.broker.parts.changed_settings._file, "write", refuse)
        for _ in range(2):
            response = await change(site, "broker.held_pulls_max=9")
            assert response.code == 1
            assert "No space left" in (response.remark or "")
        assert site.broker.native.parked_pulls.held_max == 9
        assert not path.exists()
    assert (await change(site, "broker.held_pulls_max=9")).code == 0
    assert json.loads(path.read_bytes())["changes"]["broker.held_pulls_max"]["value"] == "9"
