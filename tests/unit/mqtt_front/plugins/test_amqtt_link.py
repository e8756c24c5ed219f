"""Several plug-ins decide about a device together."""

from __future__ import annotations

from typing import Any

import pytest
from manual_clock import ManualClock

from iotmq.mqtt_front.access.links.link import LinkFailedError
from iotmq.mqtt_front.access.verdicts import NOT_MINE, Accepted, Credentials, Denied, NotMine
from iotmq.mqtt_front.plugins.amqtt_link import AmqttLink
from iotmq.mqtt_front.plugins.host import PluginHost
from iotmq.mqtt_front.plugins.loader import load
from iotmq.mqtt_front.settings.plugins import AmqttPluginSettings


def asked(user: str | None = "pump", password: bytes | None = b"secret") -> Credentials:
    return Credentials("c1", user, password, "192.0.2.1", "tcp")


async def verdict(host_of: Any, *kinds: str) -> Accepted | Denied | NotMine:
    hosts = [
        await host_of("Scripted", {"kind": kind}, name=f"{kind}-{at}", timeout_s=0.2)
        for at, kind in enumerate(kinds)
    ]
    return await AmqttLink("plug-ins", hosts).decide(asked())


@pytest.mark.parametrize("kinds", [["yes"], ["yes", "yes"], ["yes", "none"], ["none", "yes"]])
async def test_one_yes_and_no_no_accept(host_of: Any, kinds: list[str]) -> None:
    found = await verdict(host_of, *kinds)
    assert isinstance(found, Accepted)
    assert (found.identity.user, found.identity.decided_by) == ("pump", "plug-ins")
    assert found.identity.attributes == {"seen-by": "Scripted"}


@pytest.mark.parametrize("kinds", [["no"], ["yes", "no"], ["no", "none"], ["fail", "no"], ["no", "sleep"]])
async def test_one_no_denies_whatever_the_others_do(host_of: Any, kinds: list[str]) -> None:
    found = await verdict(host_of, *kinds)
    assert isinstance(found, Denied)
    assert found.cause == "plug-in"
    assert "no-" in found.detail


async def test_no_opinion_at_all_is_for_the_next_link(host_of: Any) -> None:
    assert await verdict(host_of, "none", "none") is NOT_MINE


@pytest.mark.parametrize("kind", ["fail", "impossible", "sleep", "block"])
async def test_no_answer_is_never_a_yes(host_of: Any, kind: str) -> None:
    for kinds in ([kind], ["yes", kind], [kind, "none"]):
        with pytest.raises(LinkFailedError, match=kind):
            await verdict(host_of, *kinds)


async def test_what_no_plugin_has_looked_at_is_no_name_of_the_device() -> None:
    """Amqtt's plug-in lets everybody in, by whatever name; with rules by name that would be anybody's."""
    settings = AmqttPluginSettings(class_path="amqtt.plugins.authentication.AnonymousAuthPlugin")
    host = PluginHost(load(settings), {}, lambda *_: None, ManualClock())
    await host.start(5.0)
    found = await AmqttLink("plug-ins", [host]).decide(asked("admin"))
    await host.stop()
    assert isinstance(found, Accepted)
    assert found.identity.user is None
