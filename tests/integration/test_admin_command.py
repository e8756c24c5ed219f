"""`iotmq admin` against two registries and two brokers: tables for people, JSON for programs, exit codes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from small_cluster import SmallCluster

from iotmq.client.admin.dead_letters import topic_of
from iotmq.client.consuming.pulling.pull_consumer import PullConsumer
from iotmq.client.consuming.pushing.push_consumer import PushConsumer
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.message import Message, ReceivedMessage
from iotmq.client.transport.settings import PullConsumerSettings, PushConsumerSettings
from iotmq.commands import cli
from iotmq.commands.admin.command import run_action
from iotmq.errors import BrokerError, ClientError, IotmqError, RouteNotFoundError
from iotmq.message.records.record import encode_batch

Command = Callable[..., Awaitable[str]]
DEAD = b"RETRY_TOPIC\x01T\x02KEYS\x01k1\x02"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SmallCluster]:
    async with SmallCluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: SmallCluster, capsys: pytest.CaptureFixture[str]) -> Command:
    """What one command line prints, run to its end."""

    async def run(*words: str) -> str:
        options = cli.parser().parse_args(["admin", *words])
        assert await run_action(options, cluster.addresses) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def admin_json(admin: Command) -> Callable[..., Awaitable[Any]]:
    async def run(*words: str) -> Any:
        return json.loads(await admin(*words, "--json"))

    return run


Json = Callable[..., Awaitable[Any]]


def put(
    cluster: SmallCluster, topic: str, *bodies: bytes, properties: bytes = b"", queue_id: int = 0
) -> None:
    elements = encode_batch([(body, properties, 0) for body in bodies])
    cluster.brokers[0].topics.ensure(topic, queues=1)
    cluster.brokers[0].writer.append(
        topic, queue_id, elements, born_timestamp_ms=1, born_host=b"\x7f\0\0\1\0\0\0\1", done=lambda _: None
    )


async def routed(cluster: SmallCluster, topic: str, brokers: int) -> None:
    await cluster.until(
        lambda: all(
            len(getattr(registry.routes.route(topic), "queues", ())) == brokers
            for registry in cluster.registries
        )
    )


async def test_the_cluster_is_listed(admin: Command, admin_json: Json) -> None:
    text = await admin("cluster", "list")
    assert text.splitlines()[0].split() == [
        "cluster", "broker", "id", "address", "version", "in", "per", "s", "out", "per", "s", "disk",
        "earliest",
    ]  # fmt: skip
    assert [line.split()[:3] for line in text.splitlines()[1:]] == [
        ["C", "broker-0", "0"],
        ["C", "broker-1", "0"],
    ]
    rows = await admin_json("cluster", "list")
    assert [row["broker"] for row in rows] == ["broker-0", "broker-1"]
    assert rows[0]["version"].startswith("iotmq")


async def test_a_topic_lives_its_life(cluster: SmallCluster, admin: Command, admin_json: Json) -> None:
    assert "made with 2 queues at each of broker-0, broker-1" in await admin(
        "topic", "create", "T", "--queues", "2"
    )
    await routed(cluster, "T", 2)
    with pytest.raises(ClientError, match="already: change it with"):
        await admin("topic", "create", "T")
    rows = await admin_json("topic", "list")
    assert [(row["topic"], row["broker"], row["queues"], row["perm"]) for row in rows] == [
        ("T", "broker-0", 2, "rw"),
        ("T", "broker-1", 2, "rw"),
    ]
    assert len(await admin_json("topic", "list", "--all", "--cluster", "C")) > 2
    assert await admin("topic", "list", "--cluster", "D") == "no topics\n"
    put(cluster, "T", b"x")
    status = await admin_json("topic", "status", "T")
    assert [row["messages"] for row in status] == [1, 0, 0, 0]
    assert "last stored" in await admin("topic", "status", "T")
    route = await admin_json("topic", "route", "T")
    assert [row["write_queues"] for row in route] == [2, 2]
    await admin("topic", "update", "T", "--perm", "r", "--broker", "broker-1")
    assert [row["perm"] for row in await admin_json("topic", "list")] == ["rw", "r-"]
    assert "deleted at broker-0, broker-1" in await admin("topic", "delete", "T")
    for words in (("delete", "T"), ("update", "T", "--perm", "r")):
        with pytest.raises(ClientError, match="no broker has topic T"):
            await admin("topic", *words)
    with pytest.raises(RouteNotFoundError, match="no route for topic T"):
        await admin("topic", "status", "T")
    assert "cleaned at broker-0, broker-1" in await admin("topic", "clean-unused")


async def test_queues_are_scaled_frozen_and_drained_with_a_progress_line(
    cluster: SmallCluster, admin: Command, admin_json: Json, capsys: pytest.CaptureFixture[str]
) -> None:
    await admin("topic", "create", "T", "--queues", "2")
    await routed(cluster, "T", 2)
    rows = await admin_json("topic", "scale", "T", "--queues", "3")
    assert [row["state"] for row in rows] == ["open"] * 6
    rows = await admin_json("topic", "freeze", "T", "1", "--broker", "broker-0")
    assert [row["state"] for row in rows] == ["open", "frozen", "open"]
    await admin("topic", "thaw", "T", "1")
    put(cluster, "T", b"x", queue_id=2)
    cluster.brokers[0].offsets.commit("g", "T", 2, 0)
    with pytest.raises(IotmqError, match=r"1 queues of topic T are not drained.*topic thaw"):
        await admin("topic", "drain", "T", "--queues", "2", "--wait", "1")
    table = await admin("topic", "queues", "T")
    assert "g=1" in table
    cluster.brokers[0].offsets.commit("g", "T", 2, 1)
    capsys.readouterr()
    rows = await admin_json("topic", "drain", "T", "--queues", "2")
    assert [row["state"] for row in rows] == ["open"] * 4
    put(cluster, "T", b"y", queue_id=1)
    assert "broker-0" in await admin("topic", "drain", "T", "--queues", "1", "--force")
    options = cli.parser().parse_args(["admin", "topic", "drain", "T", "--queues", "1"])
    await run_action(options, cluster.addresses)
    assert "T: 0 queues to drain, 0 messages" in capsys.readouterr().err
    with pytest.raises(BrokerError, match="may grow to 1024"):
        await admin("topic", "scale", "T", "--queues", "1025")


async def test_groups_are_shown_moved_cloned_and_deleted(
    cluster: SmallCluster, admin: Command, admin_json: Json
) -> None:
    put(cluster, "T", b"a", b"b")
    await routed(cluster, "T", 1)
    assert "set at broker-0, broker-1" in await admin("group", "create", "g", "--retries", "3")
    await admin("group", "create", "g", "--no-broadcast")
    config = cluster.brokers[0].subscription_groups.find("g")
    assert config is not None
    assert (config.retry_max_times, config.consume_broadcast_enable) == (3, False)
    assert await admin("group", "progress", "g") == "group g has consumed nothing yet\n"
    assert await admin("group", "connections", "g") == "group g has no live consumer\n"
    rows = await admin_json("group", "reset-offset", "g", "T", "--to", "end")
    assert [(row["offset"], row["by"]) for row in rows] == [(2, "the broker")]
    rows = await admin_json("group", "progress", "g", "--topic", "T")
    assert [(row["consumed"], row["behind"]) for row in rows] == [(2, 0)]
    await admin("group", "reset-offset", "g", "T", "--to", "begin")
    assert [row["behind"] for row in await admin_json("topic", "groups", "T")] == [2]
    await admin("group", "clone", "g", "h", "--topic", "T")
    names = [row["group"] for row in await admin_json("group", "list")]
    # One of them was never configured: it has offsets.
    assert {"g", "h"} <= set(names)
    assert len(await admin_json("group", "list", "--all")) > len(names)
    assert "deleted" in await admin("group", "delete", "g")
    assert cluster.brokers[0].offsets.find("g", "T", 0) is None
    assert cluster.brokers[0].offsets.find("h", "T", 0) == 0


async def test_live_members_are_shown(cluster: SmallCluster, admin: Command, admin_json: Json) -> None:
    put(cluster, "T", b"a", properties=b"KEYS\x01k1\x02")
    await routed(cluster, "T", 1)

    def listen(batch: list[ReceivedMessage]) -> None:
        pass

    async with cluster.client() as client:
        settings = PushConsumerSettings(consume_from="first", commit_ms=50)
        consumer = PushConsumer(client, "g", listen, settings=settings)
        await consumer.subscribe("T")
        async with consumer:
            (member,) = await admin_json("group", "connections", "g")
            assert member["client"] == client.client_id
            assert client.client_id in await admin("group", "connections", "g")
            assert client.client_id in await admin("broker", "clients", "broker-0")
            await cluster.until(lambda: cluster.brokers[0].offsets.find("g", "T", 0) == 1)
            assert [row["offset"] for row in await admin_json("group", "status", "g", "T")] == [1]
            assert (await admin_json("group", "times", "g", "T"))[0]["queue"] == 0
            rows = await admin_json("broker", "progress", "broker-0")
            assert {"group": "g", "topic": "T", "behind": 0} in rows
            assert (await admin_json("group", "running", "g", client.client_id))["properties"]
            (stored,) = await admin_json("message", "key", "T", "k1")
            direct = await admin_json(
                "message", "consume", stored["offset_message_id"], "g", client.client_id
            )
            assert direct["consumeResult"] == "CR_SUCCESS"
            assert (await admin_json("group", "list"))[0]["members"] == 1


async def test_groups_and_topics_are_paused_and_go_on(
    cluster: SmallCluster, admin: Command, admin_json: Json
) -> None:
    put(cluster, "T", b"a")
    await routed(cluster, "T", 1)
    pushed: list[bytes] = []
    pulled: list[bytes] = []
    async with cluster.client() as client:
        push = PushConsumer(
            client,
            "pushed",
            lambda batch: pushed.extend(message.body for message in batch),
            settings=PushConsumerSettings(consume_from="first"),
        )
        pull = PullConsumer(client, "pulled", PullConsumerSettings(consume_from="first"))
        for consumer in (push, pull):
            await consumer.subscribe("T")
        async with push, pull:

            async def both_have(*bodies: bytes) -> None:
                async with asyncio.timeout(30):
                    while len(pulled) < len(bodies):
                        pulled.extend(message.body for message in await pull.getmany())
                await cluster.until(lambda: pushed == list(bodies))
                assert pulled == list(bodies)

            await both_have(b"a")
            for group in ("pushed", "pulled"):
                assert "paused at broker-0" in await admin("group", "pause", group)
            # Both have a pull that waits at the broker; it is answered, and the next one is refused.
            put(cluster, "T", b"b")
            await both_have(b"a", b"b")
            put(cluster, "T", b"c")
            assert await pull.getmany(timeout_ms=50) == []
            assert pushed == [b"a", b"b"]
            for group in ("pushed", "pulled"):
                assert "resumed at broker-0" in await admin("group", "resume", group)
            await both_have(b"a", b"b", b"c")

    cluster.brokers[0].offsets.commit("late", "T", 0, 1)
    shown = await admin("group", "skip", "late")
    assert shown.splitlines()[1].split() == ["T", "broker-0", "0", "1", "3", "2", "0"]
    assert cluster.brokers[0].offsets.find("late", "T", 0) == 1
    (row,) = await admin_json("group", "skip", "late", "T", "--yes")
    assert (row["messages"], cluster.brokers[0].offsets.find("late", "T", 0)) == (2, 3)
    assert await admin("group", "skip", "late") == "group late has nothing to skip\n"

    assert "paused at broker-0" in await admin("topic", "pause", "T")
    assert (await admin_json("topic", "route", "T"))[0]["perm"] == "-w"
    assert "resumed at broker-0" in await admin("topic", "resume", "T")
    assert (await admin_json("topic", "route", "T"))[0]["perm"] == "rw"


async def test_messages_are_found_and_tracked(
    cluster: SmallCluster, admin: Command, admin_json: Json
) -> None:
    put(cluster, "T", b"body", properties=b"KEYS\x01k1\x02TAGS\x01A\x02UNIQ_KEY\x01u1\x02")
    await routed(cluster, "T", 1)
    (row,) = await admin_json("message", "key", "T", "k1")
    assert row["body"] == "body"
    assert (await admin_json("message", "key", "T", "u1", "--unique"))[0]["message_id"] == "u1"
    assert "no message of topic T has nothing" in await admin("message", "key", "T", "nothing")
    shown = await admin_json("message", "offset", "T", "broker-0", "0", "0")
    assert shown["keys"] == ["k1"]
    assert "tags" in await admin("message", "offset", "T", "broker-0", "0", "0")
    with pytest.raises(ClientError, match="topic status T"):
        await admin("message", "offset", "T", "broker-0", "0", "7")
    place = row["offset_message_id"]
    assert (await admin_json("message", "id", place))["body"] == "body"
    assert await admin("message", "track", place) == "no group consumes topic T\n"
    cluster.brokers[0].offsets.commit("g", "T", 0, 1)
    assert await admin_json("message", "track", place) == [{"group": "g", "state": "consumed"}]
    with pytest.raises(BrokerError):
        await admin("message", "resume", place)
    for action in ("id", "track", "resume"):
        with pytest.raises(ClientError):
            await admin("message", action, "u1")


async def test_dead_letters_are_listed_and_sent_again(
    cluster: SmallCluster, admin: Command, admin_json: Json
) -> None:
    put(cluster, "T", b"live")
    put(cluster, topic_of("g"), b"one", b"two", properties=DEAD)
    await routed(cluster, "T", 1)
    await routed(cluster, topic_of("g"), 1)
    rows = await admin_json("dlq", "list", "g")
    assert [row["original_topic"] for row in rows] == ["T", "T"]
    assert len(await admin_json("dlq", "list", "g", "--limit", "1")) == 1
    assert "given up nothing in that time" in await admin("dlq", "list", "g", "--until", "1d")
    sent = await admin_json("dlq", "resend", "g", rows[0]["offset_message_id"])
    assert sent == {"sent": 1, "left": []}
    assert "2 messages of group g sent again" in await admin("dlq", "resend", "g", "--all")
    assert "0 messages" in await admin("dlq", "resend", "g", "--all")
    chosen = ("--rate", "1000", "--topic", "T", "--key", "k1")
    assert "2 messages" in await admin("dlq", "resend", "g", "--all", "--again", *chosen)
    assert "0 messages" in await admin("dlq", "resend", "g", "--all", "--again", "--topic", "U")
    assert await admin_json("dlq", "list", "g", "--key", "k3") == []
    for words in ((), ("x", "--all")):
        with pytest.raises(ClientError, match="name the ids"):
            await admin("dlq", "resend", "g", *words)
    queue = cluster.stores[0].find_queue("T", 0)
    assert queue is not None
    assert queue.max_offset == 1 + 1 + 2 + 2


async def test_waiting_messages_are_listed_and_taken_back(
    cluster: SmallCluster, admin: Command, admin_json: Json
) -> None:
    put(cluster, "T", b"live")
    await routed(cluster, "T", 1)
    assert await admin("timer", "list") == "no message waits\n"
    async with cluster.client() as client, Producer(client, "pg") as producer:
        result = await producer.send(Message("T", b"later", delay_level=18))
    (row,) = await admin_json("timer", "list", "--topic", "T")
    assert (row["topic"], row["level"], row["message_id"]) == ("T", 18, result.message_id)
    assert "is taken back" in await admin("timer", "cancel", "T", result.message_id)
    with pytest.raises(ClientError, match="timer list --topic T"):
        await admin("timer", "cancel", "T", result.message_id)


async def test_values_settings_and_permissions(
    cluster: SmallCluster, admin: Command, admin_json: Json
) -> None:
    await admin("kv", "put", "N", "k", "v")
    assert await admin("kv", "get", "N", "k") == "v\n"
    assert await admin_json("kv", "list", "N") == [{"key": "k", "value": "v"}]
    await admin("kv", "delete", "N", "k")
    assert await admin("kv", "list", "N") == "namespace N is empty\n"
    with pytest.raises(ClientError, match="kv list N"):
        await admin("kv", "get", "N", "k")
    await admin("broker", "set", "broker.held_pulls_max=9", "--broker", "broker-1")
    assert (await admin_json("broker", "config", "broker-1"))["broker.held_pulls_max"] == "9"
    await admin("registry", "set", "broker_timeout_s=99")
    shown = [
        row["value"] for row in await admin_json("registry", "config") if row["name"] == "broker_timeout_s"
    ]
    assert shown == ["99.0", "99.0"]
    assert "take no messages" in await admin("broker", "wipe-write", "broker-0")
    assert "take messages again" in await admin("broker", "add-write", "broker-0")
    assert "putTps" in await admin("broker", "status", "--broker", "broker-0")
    assert {row["broker"] for row in await admin_json("broker", "status")} == {"broker-0", "broker-1"}
    assert "no broker has counted" in await admin("broker", "stats", "TOPIC_PUT_NUMS", "nobody")
    assert "deleted" in await admin("broker", "delete-expired")


ACCOUNTS = "accounts:\n  - {accessKey: operator, secretKey: abcdefgh, admin: true}\n"


async def test_accounts_are_changed_by_an_administrator_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "accounts.yml").write_text(ACCOUNTS)
    monkeypatch.setenv("IOTMQ_SECRET_KEY", "abcdefgh")
    monkeypatch.setenv("IOTMQ_ACCOUNT_SECRET", "87654321")
    async with SmallCluster(
        tmp_path, brokers=1, registries=1, acl_enabled=True, acl_file=str(tmp_path / "accounts.yml")
    ) as cluster:

        async def run(*words: str) -> str:
            options = cli.parser().parse_args(["admin", *words])
            assert await run_action(options, cluster.addresses) == 0
            return capsys.readouterr().out

        operator = ("--access-key", "operator")
        assert "set at broker-0" in await run(
            "acl", "put", "device-reader", "--topic", "T=SUB", "--group", "g=SUB", "--default-topic", "DENY",
            "--address", "10.0.0.*", *operator,
        )  # fmt: skip
        text = (tmp_path / "accounts.yml").read_text()
        assert "device-reader" in text
        assert "87654321" in text
        assert "broker-0" in await run("acl", "white", "10.1.*.*", "10.2.0.1", *operator)
        assert "10.2.0.1" in (tmp_path / "accounts.yml").read_text()
        (row,) = json.loads(await run("acl", "show", "--json", *operator))
        assert row["changes"] >= 2
        assert "deleted" in await run("acl", "delete", "device-reader", *operator)
        assert "device-reader" not in (tmp_path / "accounts.yml").read_text()
        for words in (("acl", "show"), ("topic", "create", "T"), ("broker", "config", "broker-0")):
            with pytest.raises(BrokerError) as caught:
                await run(*words)
            assert caught.value.code == 16
        with pytest.raises(BrokerError, match="nobody"):
            await run("acl", "delete", "nobody", *operator)


async def process(*words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of the command as people run it."""
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "iotmq", "admin", *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(30):
        output, errors = await started.communicate()
    assert started.returncode is not None
    return started.returncode, output.decode(), errors.decode()


async def test_exit_codes_and_errors_as_people_see_them(cluster: SmallCluster) -> None:
    put(cluster, "T", b"live")
    put(cluster, topic_of("g"), b"one", b"\xff", properties=DEAD)
    await routed(cluster, topic_of("g"), 1)
    registry = ("--registry", cluster.addresses[0])
    code, output, errors = await process("dlq", "export", "g", *registry)
    assert (code, errors) == (0, "")
    assert [json.loads(line).get("body") for line in output.splitlines()] == ["one", None]
    code, output, errors = await process("topic", "status", "nobody", *registry)
    assert (code, output) == (1, "")
    assert errors.startswith("iotmq: no route for topic nobody")
    assert "Traceback" not in errors
    code, _, errors = await process("topic", "delete", "TBW102", *registry)
    assert code == 1
    assert "belongs to the broker" in errors
    code, _, errors = await process("cluster", "list", "--registry", "127.0.0.1:1", "--timeout", "1")
    assert code == 1
    assert "no registry answered" in errors


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("topic",),
        ("topic", "sacle", "T"),
        ("topic", "scale", "T"),
        ("topic", "scale", "T", "--queues", "0"),
        ("topic", "freeze", "T", "a"),
        ("topic", "freeze", "T", "4-2"),
        ("topic", "freeze", "T", "0-70000"),
        ("topic", "create", "T", "--perm", "x"),
        ("group", "reset-offset", "g", "T", "--to", "yesterday"),
        ("group", "reset-offset", "g", "T", "--to", "999999999999d"),
        ("broker", "set", "noequals"),
        ("kv", "put", "N", "k"),
        ("acl", "put", "a", "--topic", "T=ALL"),
        ("acl", "put", "a", "--default-topic", "ALL"),
    ],
)
def test_wrong_usage_is_answered_with_2(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        cli.main(["admin", *words])
    assert leaving.value.code == cli.EXIT_USAGE
    assert "usage: iotmq admin" in capsys.readouterr().err


async def test_statistics_of_both_brokers_are_one_table(
    cluster: SmallCluster, admin: Command, admin_json: Json
) -> None:
    put(cluster, "T", b"1", b"2")
    for broker in cluster.brokers:
        broker.lasting.finish()
    now_ms = cluster.brokers[0].parts.clock.now_ms()
    around = ("--since", str(now_ms - 3_600_000), "--until", str(now_ms + 60_000))
    (row,) = [each for each in await admin_json("statistics", "topics", *around) if each["name"] == "T"]
    assert row["messages"] == 2
    steps = await admin_json("statistics", "topics", "--step", "hour", "--name", "T", *around)
    assert sum(each["messages"] for each in steps) == 2
    assert await admin("statistics", "clients", *around) == "nothing\n"
    assert "nobody counted" in await admin("statistics", "groups", "--name", "g", "--until", "60000")
    with pytest.raises(BrokerError, match="no inspection 'history'"):
        await admin("history", "series", cluster.brokers[0].parts.settings.name)
    with pytest.raises(RouteNotFoundError, match="named nobody"):
        await admin("history", "show", "nobody", "iotmq_loop_lag_max_seconds")
