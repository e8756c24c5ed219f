"""pyrocketmq (PyPI, as published): the Java client 4.9.8 as Python programs use it, through JPype."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from eventually import eventually
from gateway_process import ROOT, GatewayProcess
from log_reader import read_topic
from piped_client import PipedClient

from iotmq.client import ClientSettings, SyncAdmin, SyncClient
from iotmq.client.admin.admin import Admin

SCRIPT = Path(__file__).with_name("pyrocketmq_client.py")
LIBRARIES = ROOT / "build" / "interop" / "java"

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        importlib.util.find_spec("pyrocketmq") is None or importlib.util.find_spec("jpype") is None,
        reason="pyrocketmq and JPype1 are not installed (tools/setup.sh dev)",
    ),
    pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed"),
    pytest.mark.skipif(
        not list(LIBRARIES.glob("rocketmq-client-*.jar")),
        reason="rocketmq-client is not installed (tools/setup.sh dev, with Maven)",
    ),
]


@pytest.fixture
def python(gateway: GatewayProcess, tmp_path: Path) -> Iterator[PipedClient]:
    # The library writes its log below the home of the Java machine.
    words = [sys.executable, str(SCRIPT), str(LIBRARIES), gateway.registry, str(tmp_path)]
    with PipedClient(words, directory=tmp_path, environment={**os.environ, "HOME": str(tmp_path)}) as client:
        yield client


def make_topics(gateway: GatewayProcess, *topics: str, group: str = "", **settings: Any) -> None:
    """Consumers of a topic that is made later would learn of it within 30 s only."""
    with SyncClient(ClientSettings(registries=(gateway.registry,))) as client:
        for topic in topics:
            SyncAdmin(client).create_topic(topic, queues=2)
        if group:
            client.run(Admin(client.asynchronous).changes.update_group(group, settings))


def test_sends_of_all_kinds_are_pulled(gateway: GatewayProcess, python: PipedClient) -> None:
    make_topics(gateway, "PySends")
    python.call("producer", group="py-producers")
    large = "large " * 2_000
    sent = python.call(
        "send",
        group="py-producers",
        messages=[
            {"topic": "PySends", "body": "plain", "tags": "a", "keys": "k1"},
            {"topic": "PySends", "body": large},
            {"topic": "PySends", "body": "late", "delay_level": 1},
        ],
    )
    assert [each["status"] for each in sent] == ["SEND_OK"] * 3
    python.call("send_oneway", group="py-producers", messages=[{"topic": "PySends", "body": "oneway"}])
    eventually(
        lambda: sum(map(len, read_topic(gateway.registry, "PySends").values())) == 4, "all of them are stored"
    )
    pulled = {each["body"]: each for each in python.call("pull", group="py-pull", topic="PySends")}
    assert set(pulled) == {"plain", large, "late", "oneway"}
    assert pulled["plain"]["tags"] == "a"
    assert pulled["plain"]["id"] == sent[0]["id"]
    assert pulled["late"]["store_timestamp_ms"] - pulled["late"]["born_timestamp_ms"] >= 1_000
    offsets = python.call("offsets", group="py-producers", topic="PySends")
    assert sum(end for _, end, _ in offsets.values()) == 4
    viewed = python.call("view", group="py-producers", message_id=sent[0]["position_id"])
    assert viewed["body"] == "plain"


def test_what_fails_comes_back_and_ends_as_a_dead_letter(
    gateway: GatewayProcess, python: PipedClient
) -> None:
    make_topics(gateway, "PyFails", "%RETRY%py-fails", group="py-fails")
    python.call("producer", group="py-producers")
    python.call("push", group="py-fails", topic="PyFails", fail_first=2, max_reconsume_times=1)
    python.call("send", group="py-producers", messages=[{"topic": "PyFails", "body": "bad"}])
    tries = python.wait_for("message", 2)
    assert [(line["reconsume_times"], line["topic"]) for line in tries] == [(0, "PyFails"), (1, "PyFails")]

    def dead() -> bool:
        return sum(map(len, read_topic(gateway.registry, "%DLQ%py-fails").values())) == 1

    eventually(dead, "it is a dead letter")
    ((letter,),) = read_topic(gateway.registry, "%DLQ%py-fails").values()
    assert (letter.body, letter.properties["RETRY_TOPIC"]) == (b"bad", "PyFails")


def test_a_subscription_by_sql(gateway: GatewayProcess, python: PipedClient) -> None:
    make_topics(gateway, "PySql")
    python.call("producer", group="py-producers")
    python.call("push", group="py-sql", topic="PySql", sql="level > 3 AND site = 'north'")
    python.call(
        "send",
        group="py-producers",
        messages=[
            {"topic": "PySql", "body": f"{site}-{level}", "properties": {"level": str(level), "site": site}}
            for site in ("north", "south")
            for level in range(6)
        ],
    )
    got = python.wait_for("message", 2)
    assert sorted(line["body"] for line in got) == ["north-4", "north-5"]
