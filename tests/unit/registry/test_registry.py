"""The registry over real connections, driven the way brokers, clients and mqadmin drive it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from eventually import until
from manual_clock import ManualClock

from iotmq import limits
from iotmq.errors import ConnectionClosedError, StoreCorruptError
from iotmq.registry import server
from iotmq.registry.registration import Registration, decode_registration
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.remoting.codes import RequestCode, ResponseCode, Serialize
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection

WAIT_S = 30.0
SETTINGS = RegistrySettings(listen_port=0)
ADDRESS = "10.0.0.1:10911"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def registry(clock: ManualClock, tmp_path: Path) -> AsyncIterator[Registry]:
    registry = Registry(SETTINGS, directory=tmp_path, clock=clock)
    await registry.start()
    yield registry
    await registry.stop()
    assert registry.routes.check() == []


@pytest.fixture
async def peer(registry: Registry) -> AsyncIterator[ClientConnection]:
    async with connected(registry) as connection:
        yield connection


@asynccontextmanager
async def connected(registry: Registry) -> AsyncIterator[ClientConnection]:
    connection = await ClientConnection.connect("127.0.0.1", registry.port)
    yield connection
    await connection.close()


def topic(name: str, *, queues: int = 4, perm: int = 6, sys_flag: int = 0) -> dict[str, object]:
    return {
        "order": False, "perm": perm, "readQueueNums": queues, "topicFilterType": "SINGLE_TAG",
        "topicName": name, "topicSysFlag": sys_flag, "writeQueueNums": queues,
    }  # fmt: skip


def registration_body(topics: list[dict[str, object]], counter: int = 1) -> bytes:
    table = {str(entry["topicName"]): entry for entry in topics}
    wrapper = {"dataVersion": {"counter": counter, "timestamp": 1_700_000_000_000}, "topicConfigTable": table}
    return json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()


def registration(
    *topics: dict[str, object],
    name: str = "broker-a",
    address: str = ADDRESS,
    broker_id: int = 0,
    cluster: str = "C",
    counter: int = 1,
    body: bytes | None = None,
    **ext: str,
) -> Command:
    return Command.request(
        RequestCode.REGISTER_BROKER,
        {
            "brokerName": name,
            "brokerAddr": address,
            "clusterName": cluster,
            "haServerAddr": address.replace("10911", "10912"),
            "brokerId": str(broker_id),
            **ext,
        },
        registration_body(list(topics), counter) if body is None else body,
    )


def identity(address: str = ADDRESS, name: str = "broker-a", broker_id: int = 0) -> dict[str, str]:
    return {"brokerName": name, "brokerAddr": address, "clusterName": "C", "brokerId": str(broker_id)}


async def ask(connection: ClientConnection, code: int, body: bytes = b"", **ext: str) -> Command:
    return await connection.request(Command.request(code, ext, body))


async def document(connection: ClientConnection, code: int, **ext: str) -> Any:
    answer = await ask(connection, code, **ext)
    assert answer.code == ResponseCode.SUCCESS, answer
    return json.loads(answer.body_bytes())


async def test_a_registered_topic_is_routed(peer: ClientConnection) -> None:
    answer = await peer.request(registration(topic("T")))
    assert answer.code == 0
    assert json.loads(answer.body_bytes()) == {"table": {}}
    assert await document(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T") == {
        "brokerDatas": [{"brokerAddrs": {"0": ADDRESS}, "brokerName": "broker-a", "cluster": "C"}],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSynFlag": 0,
                "topicSysFlag": 0, "writeQueueNums": 4,
            }
        ],
    }  # fmt: skip


@pytest.mark.parametrize("serialize", [Serialize.JSON, Serialize.BINARY])
async def test_an_unknown_topic_is_code_17(peer: ClientConnection, serialize: int) -> None:
    request = Command.request(RequestCode.GET_ROUTE_INFO_BY_TOPIC, {"topic": "nothing"}, serialize=serialize)
    answer = await peer.request(request)
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "nothing" in (answer.remark or "")


@pytest.mark.parametrize("code", [0, 10, 28, 310, 9_999, 30_001, -1])
async def test_an_unknown_code_is_answered_with_3(peer: ClientConnection, code: int) -> None:
    assert (await ask(peer, code)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_a_compressed_registration_is_understood(peer: ClientConnection) -> None:
    def text(value: bytes) -> bytes:
        return len(value).to_bytes(4, "big") + value

    plain = text(b'{"counter":3,"timestamp":5}') + (2).to_bytes(4, "big")
    plain += text(b"T 8 6 6 SINGLE_TAG") + text(b"%RETRY%g 1 1 6 SINGLE_TAG") + text(b"[]")
    body = zlib.compress(plain, 9)
    crc = str(zlib.crc32(body) & 0x7FFFFFFF)
    answer = await peer.request(registration(body=body, compressed="true", bodyCrc32=crc))
    assert answer.code == 0
    (queues,) = (await document(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T"))["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (8, 6, 6)
    assert (await ask(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="%RETRY%g")).code == 0
    answer = await ask(peer, RequestCode.QUERY_DATA_VERSION, b'{"counter":3,"timestamp":5}', **identity())
    assert answer.ext == {"changed": "false"}


class Decoding:
    """Decodes registrations when it is told to, and remembers in which threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[int] = []
        self.may_go_on = threading.Event()
        monkeypatch.setattr(server, "decode_registration", self._decode)

    def _decode(self, body: bytes, *, is_compressed: bool, crc: int) -> Registration:
        self.threads.append(threading.get_ident())
        if threading.current_thread() is not threading.main_thread():
            assert self.may_go_on.wait(WAIT_S)
        return decode_registration(body, is_compressed=is_compressed, crc=crc)


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> Iterator[Decoding]:
    decoding = Decoding(monkeypatch)
    yield decoding
    decoding.may_go_on.set()


def long_body(over: int, **more: int) -> bytes:
    """A registration of topic T, so many bytes past what is decoded at once."""
    body = registration_body([topic("T", **more)])
    return body + b" " * (limits.REGISTRATION_AT_ONCE_BYTES_MAX + over - len(body))


@pytest.mark.parametrize(
    ("body", "compressed", "is_at_once"),
    [(long_body(0), "false", True), (long_body(1), "false", False), (zlib.compress(b""), "true", False)],
)
async def test_what_takes_long_to_decode_keeps_nobody_waiting(
    registry: Registry, decoding: Decoding, body: bytes, compressed: str, is_at_once: bool
) -> None:
    async with connected(registry) as broker, connected(registry) as client:
        answer = broker.request(registration(body=body, compressed=compressed), WAIT_S)
        await until(lambda: decoding.threads)
        assert (await ask(client, RequestCode.GET_BROKER_CLUSTER_INFO)).code == 0
        if not is_at_once:
            assert not answer.done()
        decoding.may_go_on.set()
        assert (await answer).code == (1 if compressed == "true" else 0)
        assert (threading.get_ident() in decoding.threads) == is_at_once


async def test_what_brokers_say_last_counts_however_long_the_first_takes(
    registry: Registry, decoding: Decoding
) -> None:
    async with connected(registry) as broker, connected(registry) as client:
        answers = [
            broker.request(request, WAIT_S)
            for request in (
                registration(body=long_body(1, queues=1)),
                registration(topic("T", queues=2), counter=2),
                Command.request(RequestCode.UNREGISTER_BROKER, identity()),
                registration(topic("T", queues=3), counter=3),
            )
        ]
        await until(lambda: decoding.threads)
        assert (await ask(client, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T")).code == 17
        decoding.may_go_on.set()
        assert [(await answer).code for answer in answers] == [0, 0, 0, 0]
        (queues,) = (await document(client, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T"))["queueDatas"]
        assert queues["readQueueNums"] == 3
        assert registry._brokers_lost["unregistered"] == 1
        assert (registry._late_count, registry._late_size) == (0, 0)


async def test_a_broker_that_leaves_while_its_registration_is_decoded_is_not_registered(
    registry: Registry, decoding: Decoding
) -> None:
    async with connected(registry) as broker:
        broker.request(registration(body=long_body(1)), WAIT_S)
        await until(lambda: decoding.threads)
    await until(lambda: not list(registry._server.connections))
    decoding.may_go_on.set()
    await until(lambda: not registry._late_count)
    assert registry.routes.broker_count == 0


@pytest.mark.parametrize("limit", ["REGISTRATIONS_WAITING_MAX", "REGISTRATIONS_WAITING_BYTES_MAX"])
async def test_so_many_registrations_wait_and_no_more(
    registry: Registry, decoding: Decoding, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    body = long_body(1)
    monkeypatch.setattr(server, limit, 2 if limit == "REGISTRATIONS_WAITING_MAX" else 2 * len(body))
    async with connected(registry) as broker:
        answers = [broker.request(registration(body=body), WAIT_S) for _ in range(3)]
        assert (await answers[2]).code == ResponseCode.SYSTEM_BUSY
        decoding.may_go_on.set()
        assert [(await answer).code for answer in answers[:2]] == [0, 0]
        # There is room again.
        assert (await broker.request(registration(body=body), WAIT_S)).code == 0


async def test_so_many_lists_of_topics_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_LISTS_WAITING_MAX", 2)
    registry = Registry(SETTINGS)
    await registry.start()
    async with connected(registry) as peer:
        assert (await peer.request(registration(topic("T", sys_flag=1)), WAIT_S)).code == 0
        codes = (RequestCode.GET_ALL_TOPIC_LIST_FROM_REGISTRY, RequestCode.GET_UNIT_TOPIC_LIST)
        requests = [peer.request(Command.request(code), WAIT_S) for code in codes * 2]
        answers = await asyncio.gather(*requests)
        assert [answer.code for answer in answers] == [0, 0] + [ResponseCode.SYSTEM_BUSY] * 2
        assert [json.loads(answer.body_bytes())["topicList"] for answer in answers[:2]] == [["T"]] * 2
        assert (await peer.request(Command.request(codes[0]), WAIT_S)).code == 0, "there is room again"
    await registry.stop()


async def test_names_that_fit_an_answer_and_one_too_many(
    peer: ClientConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"topic-{number}" for number in range(10)]
    assert (await peer.request(registration(*map(topic, names)), WAIT_S)).code == 0
    request = Command.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_REGISTRY)
    answer = await peer.request(request, WAIT_S)
    assert answer.code == 0
    monkeypatch.setattr(server, "REGISTRATION_BYTES_MAX", len(answer.body_bytes()))
    assert (await peer.request(request, WAIT_S)).code == 0
    monkeypatch.setattr(server, "REGISTRATION_BYTES_MAX", len(answer.body_bytes()) - 1)
    answer = await peer.request(request, WAIT_S)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "10 topics do not fit" in (answer.remark or "")


async def test_a_registry_that_stops_waits_for_no_registrations(decoding: Decoding) -> None:
    registry = Registry(SETTINGS)
    await registry.start()
    async with connected(registry) as broker:
        answers = [broker.request(registration(body=long_body(1)), WAIT_S) for _ in range(3)]
        await until(lambda: decoding.threads)
        async with asyncio.timeout(WAIT_S):
            await registry.stop()
        assert all(isinstance(error, ConnectionClosedError) for error in
                   await asyncio.gather(*answers, return_exceptions=True))  # fmt: skip
    assert len(decoding.threads) == 1
    decoding.may_go_on.set()  # before the loop waits for its threads


async def test_a_wrong_crc_is_code_1_and_changes_nothing(peer: ClientConnection) -> None:
    answer = await peer.request(registration(topic("T"), bodyCrc32="12345"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (await ask(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T")).code == 17


@pytest.mark.parametrize(
    ("missing", "value"),
    [("brokerName", None), ("brokerAddr", None), ("clusterName", None), ("brokerId", None),
     ("brokerName", ""), ("brokerName", "x" * 256), ("brokerId", "-1"), ("brokerId", "one"),
     ("brokerAddr", "10.0.0.1"), ("brokerAddr", ":10911"), ("brokerAddr", "10.0.0.1:port"),
     ("brokerAddr", "10.0.0.1:65536"), ("brokerAddr", "two words:10911"), ("brokerAddr", "10.0.0.1:1\n"),
     ("compressed", "maybe"), ("bodyCrc32", "x"), ("bodyCrc32", "12345")],
)  # fmt: skip
async def test_a_bad_field_is_code_1_by_name(peer: ClientConnection, missing: str, value: str | None) -> None:
    request = registration(topic("T"))
    request.ext.pop(missing, None)
    if value is not None:
        request.ext[missing] = value
    answer = await peer.request(request)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert missing in (answer.remark or "")


async def test_names_at_the_limit_are_taken(peer: ClientConnection) -> None:
    assert (await peer.request(registration(topic("T"), name="x" * 255))).code == 0


@pytest.mark.parametrize(
    "address", ["10.0.0.1:0", "10.0.0.1:65535", "[2001:db8::1]:10911", "fe80::1:10911", "b:1"]
)
async def test_addresses_brokers_have_are_taken(peer: ClientConnection, address: str) -> None:
    assert (await peer.request(registration(topic("T"), address=address))).code == 0


@pytest.mark.parametrize("body", [b"nonsense", b"[]", b'{"topicConfigSerializeWrapper":7}', b"\xff\x00"])
@pytest.mark.parametrize("compressed", ["true", "false"])
async def test_a_broken_body_is_code_1(peer: ClientConnection, body: bytes, compressed: str) -> None:
    assert (await peer.request(registration(body=body, compressed=compressed))).code == 1


async def test_a_registration_without_body_is_a_lease(peer: ClientConnection) -> None:
    assert (await peer.request(registration(body=b""))).code == 0
    assert (await document(peer, RequestCode.GET_BROKER_CLUSTER_INFO))["clusterAddrTable"] == {
        "C": ["broker-a"]
    }


@pytest.mark.parametrize(("ext", "expected"), [({}, ["T", "U"]), ({"isWhole": "true"}, ["U"])])
async def test_topics_are_added_unless_the_broker_says_that_these_are_all(
    peer: ClientConnection, ext: dict[str, str], expected: list[str]
) -> None:
    """A Java broker tells of a new topic without the others."""
    await peer.request(registration(topic("T"), counter=1, **ext))
    await peer.request(registration(topic("U"), counter=2, **ext))
    found = await document(peer, RequestCode.GET_ALL_TOPIC_LIST_FROM_REGISTRY)
    assert sorted(found["topicList"]) == expected


async def test_topics_no_client_could_use_are_left_out(
    peer: ClientConnection, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [topic("x" * 128), topic("wide", queues=1_025), topic("negative", queues=-1), topic("p", perm=16)]
    await peer.request(registration(topic("x" * 127, queues=1_024), *bad))
    topics = await document(peer, RequestCode.GET_ALL_TOPIC_LIST_FROM_REGISTRY)
    assert topics == {"topicList": ["x" * 127]}
    found = {metric.name: metric.value for metric in registry.metrics()}
    assert found["iotmq_registry_topics_refused_total"] == 4
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == [
        "topics refused"
    ]


async def test_a_slave_is_told_its_master(peer: ClientConnection) -> None:
    slave = {"address": "10.0.0.2:10911", "broker_id": 1}
    assert (await peer.request(registration(**slave))).ext == {}  # type: ignore[arg-type]
    await peer.request(registration(topic("T")))
    answer = await peer.request(registration(**slave))  # type: ignore[arg-type]
    assert answer.ext == {"masterAddr": ADDRESS, "haServerAddr": "10.0.0.1:10912"}
    info = await document(peer, RequestCode.GET_BROKER_CLUSTER_INFO)
    assert info["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": ADDRESS, "1": "10.0.0.2:10911"}


async def test_an_unregistered_broker_leaves_the_routes(peer: ClientConnection) -> None:
    await peer.request(registration(topic("T")))
    other = identity(address="10.9.9.9:1")
    assert (await ask(peer, RequestCode.UNREGISTER_BROKER, **other)).code == 0
    assert (await ask(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T")).code == 0
    assert (await ask(peer, RequestCode.UNREGISTER_BROKER, **identity())).code == 0
    assert (await ask(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T")).code == 17


async def test_a_broker_that_has_left_is_named_to_those_who_ask(
    registry: Registry, peer: ClientConnection, clock: ManualClock
) -> None:
    await peer.request(registration(topic("T")))
    await ask(peer, RequestCode.UNREGISTER_BROKER, **identity())
    assert (await ask(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T")).code == 17
    route = await document(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T", withAway="true")
    assert route["brokerDatas"] == []
    assert [queues["brokerName"] for queues in route["queueDatas"]] == ["broker-a"]
    topics = RequestCode.GET_ALL_TOPIC_LIST_FROM_REGISTRY
    assert (await document(peer, topics))["topicList"] == []
    assert (await document(peer, topics, withAway="true"))["topicList"] == ["T"]
    clock.advance(SETTINGS.broker_memory_s)
    registry.drop_silent_brokers()
    assert (await document(peer, topics, withAway="true"))["topicList"] == []


async def test_a_broker_whose_connection_ends_leaves_at_once(
    registry: Registry, peer: ClientConnection
) -> None:
    async with connected(registry) as broker:
        await broker.request(registration(topic("T")))
        assert (await ask(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T")).code == 0
    await until(lambda: registry.routes.broker_count == 0)
    assert (await ask(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T")).code == 17


async def test_a_broker_that_registered_again_elsewhere_stays(
    registry: Registry, peer: ClientConnection
) -> None:
    async with connected(registry) as broker:
        await broker.request(registration(topic("T")))
        await peer.request(registration(topic("T")))
    await until(lambda: len(list(registry._server.connections)) == 1)
    assert (await ask(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T")).code == 0


async def test_a_silent_broker_is_dropped_after_120_s(
    registry: Registry, peer: ClientConnection, clock: ManualClock
) -> None:
    await peer.request(registration(topic("T")))
    clock.advance(119.9)
    registry.drop_silent_brokers()
    assert (await ask(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T")).code == 0
    clock.advance(0.1)
    registry.drop_silent_brokers()
    assert (await ask(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T")).code == 17


async def test_the_scan_runs_by_itself(tmp_path: Path, clock: ManualClock) -> None:
    registry = Registry(RegistrySettings(listen_port=0, scan_interval_s=0.1), clock=clock)
    await registry.start()
    async with connected(registry) as broker:
        await broker.request(registration(topic("T")))
        clock.advance(120)
        await until(lambda: registry.routes.broker_count == 0)
    await registry.stop()


async def test_a_known_data_version_renews_the_lease(
    registry: Registry, peer: ClientConnection, clock: ManualClock
) -> None:
    version = b'{"counter":1,"timestamp":1700000000000}\n'
    answer = await ask(peer, RequestCode.QUERY_DATA_VERSION, version, **identity())
    assert (answer.code, answer.ext, answer.body) == (0, {"changed": "true"}, b"")
    await peer.request(registration(topic("T"), counter=1))
    clock.advance(100)
    answer = await ask(peer, RequestCode.QUERY_DATA_VERSION, version, **identity())
    assert answer.ext == {"changed": "false"}
    assert json.loads(answer.body_bytes()) == {"counter": 1, "timestamp": 1_700_000_000_000}
    clock.advance(100)
    registry.drop_silent_brokers()
    answer = await ask(peer, RequestCode.QUERY_DATA_VERSION, b'{"counter":2,"timestamp":0}', **identity())
    assert answer.ext == {"changed": "true"}
    assert (await ask(peer, RequestCode.QUERY_DATA_VERSION, b"?", **identity())).code == 1


async def test_cluster_topics_and_system_topics_are_listed(peer: ClientConnection) -> None:
    await peer.request(registration(topic("T"), topic("U")))
    await peer.request(registration(topic("V"), name="d", address="10.0.0.4:10911", cluster="D"))
    lists = {
        RequestCode.GET_ALL_TOPIC_LIST_FROM_REGISTRY: {"topicList": ["T", "U", "V"]},
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_REGISTRY: {
            "topicList": ["C", "broker-a", "D", "d"],
            "brokerAddr": ADDRESS,
        },
    }
    for code, expected in lists.items():
        assert await document(peer, code) == expected
    assert await document(peer, RequestCode.GET_TOPICS_BY_CLUSTER, cluster="D") == {"topicList": ["V"]}
    assert (await ask(peer, RequestCode.GET_TOPICS_BY_CLUSTER)).code == 1


async def test_an_empty_registry_lists_nothing(peer: ClientConnection) -> None:
    assert await document(peer, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_REGISTRY) == {"topicList": []}
    assert await document(peer, RequestCode.GET_ALL_TOPIC_LIST_FROM_REGISTRY) == {"topicList": []}
    assert await document(peer, RequestCode.GET_BROKER_CLUSTER_INFO) == {
        "brokerAddrTable": {},
        "clusterAddrTable": {},
    }


async def test_unit_topics_are_listed_by_their_flags(peer: ClientConnection) -> None:
    await peer.request(registration(*[topic(f"flag{flag}", sys_flag=flag) for flag in range(4)]))
    assert await document(peer, RequestCode.GET_UNIT_TOPIC_LIST) == {"topicList": ["flag1", "flag3"]}
    assert await document(peer, RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == {"topicList": ["flag2", "flag3"]}
    assert await document(peer, RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == {"topicList": ["flag2"]}


async def test_write_permission_is_wiped_and_given_back(peer: ClientConnection) -> None:
    await peer.request(registration(topic("T"), topic("U")))
    answer = await ask(peer, RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert answer.ext == {"wipeTopicCount": "2"}
    route = await document(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T")
    assert route["queueDatas"][0]["perm"] == 4
    answer = await ask(peer, RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert answer.ext == {"addTopicCount": "2"}
    route = await document(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T")
    assert route["queueDatas"][0]["perm"] == 6


async def test_a_topic_is_deleted(peer: ClientConnection) -> None:
    await peer.request(registration(topic("T"), topic("U")))
    await ask(peer, RequestCode.DELETE_TOPIC_IN_REGISTRY, topic="T", clusterName="other")
    assert (await ask(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T")).code == 0
    await ask(peer, RequestCode.DELETE_TOPIC_IN_REGISTRY, topic="T", clusterName="C")
    await ask(peer, RequestCode.DELETE_TOPIC_IN_REGISTRY, topic="U")
    assert await document(peer, RequestCode.GET_ALL_TOPIC_LIST_FROM_REGISTRY) == {"topicList": []}


async def test_text_beyond_ascii_is_escaped_for_those_who_ask(peer: ClientConnection) -> None:
    await peer.request(registration(topic("T"), name="é😀"))

    async def route(version: int, **ext: str) -> bytes:
        request = Command.request(RequestCode.GET_ROUTE_INFO_BY_TOPIC, {"topic": "T", **ext})
        request.version = version
        return (await peer.request(request)).body_bytes()

    assert b'"brokerName":"\\u00e9\\ud83d\\ude00"' in await route(401)
    assert b'"brokerName":"\\u00e9\\ud83d\\ude00"' in await route(63, acceptStandardJsonOnly="true")
    assert '"brokerName":"é😀"'.encode() in await route(400)
    assert json.loads(await route(401)) == json.loads(await route(400))


async def test_key_values_are_put_read_listed_and_deleted(peer: ClientConnection) -> None:
    key = {"namespace": "N", "key": "k"}
    assert (await ask(peer, RequestCode.GET_KV_CONFIG, **key)).code == ResponseCode.QUERY_NOT_FOUND
    assert (await ask(peer, RequestCode.GET_KV_LIST_BY_NAMESPACE, namespace="N")).code == 22
    assert (await ask(peer, RequestCode.PUT_KV_CONFIG, **key, value="1é")).code == 0
    assert (await ask(peer, RequestCode.GET_KV_CONFIG, **key)).ext == {"value": "1é"}
    assert await document(peer, RequestCode.GET_KV_LIST_BY_NAMESPACE, namespace="N") == {"table": {"k": "1é"}}
    assert (await ask(peer, RequestCode.DELETE_KV_CONFIG, **key)).code == 0
    assert (await ask(peer, RequestCode.DELETE_KV_CONFIG, **key)).code == 0
    assert (await ask(peer, RequestCode.GET_KV_CONFIG, **key)).code == 22
    assert (await ask(peer, RequestCode.PUT_KV_CONFIG, namespace="N", key="k")).code == 1


async def test_key_values_outlive_the_registry(tmp_path: Path) -> None:
    first = Registry(SETTINGS, directory=tmp_path / "deep" / "registry")
    await first.start()
    async with connected(first) as connection:
        await ask(connection, RequestCode.PUT_KV_CONFIG, namespace="N", key="k", value="v")
        for number in range(50):
            connection.send_oneway(
                Command.request(
                    RequestCode.PUT_KV_CONFIG, {"namespace": "M", "key": str(number), "value": "x"}
                )
            )
        await ask(connection, RequestCode.GET_KV_CONFIG, namespace="N", key="k")
        await first.stop()
    second = Registry(SETTINGS, directory=tmp_path / "deep" / "registry")
    await second.start()
    async with connected(second) as connection:
        assert (await ask(connection, RequestCode.GET_KV_CONFIG, namespace="N", key="k")).ext["value"] == "v"
        table = await document(connection, RequestCode.GET_KV_LIST_BY_NAMESPACE, namespace="M")
        assert len(table["table"]) == 50
    await second.stop()


async def test_without_a_directory_key_values_live_in_memory() -> None:
    registry = Registry(SETTINGS)
    await registry.start()
    async with connected(registry) as connection:
        assert (await ask(connection, RequestCode.PUT_KV_CONFIG, namespace="N", key="k", value="v")).code == 0
        assert (await ask(connection, RequestCode.GET_KV_CONFIG, namespace="N", key="k")).code == 0
    await registry.stop()


async def test_a_value_that_cannot_be_saved_is_not_taken(
    registry: Registry, peer: ClientConnection, tmp_path: Path
) -> None:
    (tmp_path / "kvConfig.json.tmp").mkdir()
    key = {"namespace": "N", "key": "k"}
    answer = await ask(peer, RequestCode.PUT_KV_CONFIG, **key, value="v")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "saved" in (answer.remark or "")
    assert (await ask(peer, RequestCode.GET_KV_CONFIG, **key)).code == 22
    (tmp_path / "kvConfig.json.tmp").rmdir()
    assert (await ask(peer, RequestCode.PUT_KV_CONFIG, **key, value="v")).code == 0


async def test_a_broken_file_stops_the_start_by_name(tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").write_text("{")
    with pytest.raises(StoreCorruptError, match=r"kvConfig\.json"):
        await Registry(SETTINGS, directory=tmp_path).start()


async def test_ordered_topics_carry_their_configuration(peer: ClientConnection) -> None:
    await ask(peer, RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
    answer = await peer.request(registration(topic("T"), topic("U")))
    assert json.loads(answer.body_bytes()) == {"table": {"T": "broker-a:4"}}
    route = await document(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="T")
    assert route["orderTopicConf"] == "broker-a:4"
    assert "orderTopicConf" not in await document(peer, RequestCode.GET_ROUTE_INFO_BY_TOPIC, topic="U")


async def test_the_settings_are_shown_as_properties(peer: ClientConnection) -> None:
    answer = await ask(peer, RequestCode.GET_REGISTRY_CONFIG)
    assert "broker_timeout_s=120.0\n" in answer.body_bytes().decode()


async def test_metrics_count_brokers_and_losses(registry: Registry, peer: ClientConnection) -> None:
    await peer.request(registration(topic("T")))
    await ask(peer, RequestCode.UNREGISTER_BROKER, **identity())
    await peer.request(registration(topic("T"), topic("U")))
    found = {(metric.name, metric.labels): metric.value for metric in registry.metrics()}
    assert found["iotmq_registry_brokers", ()] == 1
    assert found["iotmq_registry_topics", ()] == 2
    assert found["iotmq_registry_registrations_total", ()] == 2
    assert found["iotmq_registry_brokers_lost_total", (("reason", "unregistered"),)] == 1
    assert found["iotmq_remoting_connections", (("listener", "registry"),)] == 1


async def test_frozen_queues_are_part_of_the_route_and_absent_without(peer: ClientConnection) -> None:
    frozen = {**topic("F"), "frozenQueues": [1, 3]}
    await peer.request(registration(topic("T"), frozen))
    for name, expected in (("T", None), ("F", [1, 3])):
        response = await peer.request(Command.request(RequestCode.GET_ROUTE_INFO_BY_TOPIC, {"topic": name}))
        (queues,) = json.loads(response.body_bytes())["queueDatas"]
        assert queues.get("frozenQueues") == expected


@pytest.mark.parametrize("queues", [[1024], [-1], list(range(1025))])
async def test_a_topic_with_frozen_queues_nobody_can_have_is_left_out(
    peer: ClientConnection, queues: list[int]
) -> None:
    await peer.request(registration({**topic("F"), "frozenQueues": queues}))
    response = await peer.request(Command.request(RequestCode.GET_ROUTE_INFO_BY_TOPIC, {"topic": "F"}))
    assert response.code == ResponseCode.TOPIC_NOT_EXIST


async def test_settings_that_may_change_are_changed(
    registry: Registry, peer: ClientConnection, clock: ManualClock
) -> None:
    await peer.request(registration(topic("T")))
    change = Command.request(RequestCode.UPDATE_REGISTRY_CONFIG, {}, b"# sooner\nbroker_timeout_s=30\n")
    assert (await peer.request(change)).code == 0
    clock.advance(31)
    registry.drop_silent_brokers()
    assert registry.routes.broker_count == 0
    shown = await peer.request(Command.request(RequestCode.GET_REGISTRY_CONFIG))
    assert b"broker_timeout_s=30.0\n" in shown.body_bytes()
    back = Command.request(RequestCode.UPDATE_REGISTRY_CONFIG, {}, shown.body_bytes())
    assert (await peer.request(back)).code == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"listen_port=1", "listen_port cannot change"),
        (b"kvConfigPath=/etc", "no setting 'kvConfigPath'"),
        (b"broker_timeout_s=0", "broker_timeout_s"),
        (b"broker_timeout_s=soon", "broker_timeout_s"),
        (b"broker_timeout_s", "without ="),
        (b"\xff=1", "UTF-8"),
    ],
)
async def test_a_setting_that_cannot_be_is_refused(peer: ClientConnection, text: bytes, problem: str) -> None:
    before = await peer.request(Command.request(RequestCode.GET_REGISTRY_CONFIG))
    body = b"scan_interval_s=7\n" + text
    response = await peer.request(Command.request(RequestCode.UPDATE_REGISTRY_CONFIG, {}, body))
    assert response.code == 1
    assert problem in (response.remark or "")
    after = await peer.request(Command.request(RequestCode.GET_REGISTRY_CONFIG))
    assert after.body_bytes() == before.body_bytes()


async def test_changed_settings_are_kept_until_the_configuration_says_something_else(tmp_path: Path) -> None:
    async def started(**settings: float) -> Registry:
        registry = Registry(RegistrySettings(listen_port=0, **settings), directory=tmp_path)  # type: ignore[arg-type]
        await registry.start()
        return registry

    async def shown(registry: Registry) -> str:
        peer = await ClientConnection.connect("127.0.0.1", registry.port)
        response = await peer.request(Command.request(RequestCode.GET_REGISTRY_CONFIG))
        await peer.close()
        return response.body_bytes().decode()

    registry = await started()
    peer = await ClientConnection.connect("127.0.0.1", registry.port)
    change = Command.request(
        RequestCode.UPDATE_REGISTRY_CONFIG, {}, b"broker_timeout_s=30\nscan_interval_s=2\n"
    )
    assert (await peer.request(change)).code == 0
    await peer.close()
    await registry.stop()
    registry = await started()
    assert "broker_timeout_s=30.0\nscan_interval_s=2.0\n" in await shown(registry)
    await registry.stop()
    registry = await started(scan_interval_s=3.0)
    assert "broker_timeout_s=30.0\nscan_interval_s=3.0\n" in await shown(registry)
    await registry.stop()


async def test_a_change_that_cannot_be_saved_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    registry = Registry(RegistrySettings(listen_port=0), directory=tmp_path)
    await registry.start()
    (tmp_path / "registrySettings.json.tmp").mkdir()
    peer = await ClientConnection.connect("127.0.0.1", registry.port)
    before = (await peer.request(Command.request(RequestCode.GET_REGISTRY_CONFIG))).body_bytes()
    change = Command.request(RequestCode.UPDATE_REGISTRY_CONFIG, {}, b"broker_timeout_s=30\n")
    response = await peer.request(change)
    assert response.code == 1
    assert "could not be saved" in (response.remark or "")
    assert (await peer.request(Command.request(RequestCode.GET_REGISTRY_CONFIG))).body_bytes() == before
    await peer.close()
    await registry.stop()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"changes":{"broker_timeout_s":1}}'])
async def test_broken_changed_settings_name_their_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "registrySettings.json").write_bytes(content)
    registry = Registry(RegistrySettings(listen_port=0), directory=tmp_path)
    with pytest.raises(StoreCorruptError, match="registrySettings"):
        await registry.start()
    await registry.stop()


async def test_two_clusters_and_an_address_that_changes_its_place(peer: ClientConnection) -> None:
    await peer.request(registration(topic("T"), name="a", address="10.0.0.1:1", cluster="C"))
    await peer.request(registration(topic("T"), name="b", address="10.0.0.2:1", cluster="D"))
    # What was master of a is a slave of b from now on.
    await peer.request(registration(name="b", address="10.0.0.1:1", broker_id=1, cluster="D"))
    info = json.loads((await peer.request(Command.request(RequestCode.GET_BROKER_CLUSTER_INFO))).body_bytes())
    assert info["clusterAddrTable"] == {"D": ["b"]}
    assert info["brokerAddrTable"]["b"]["brokerAddrs"] == {"0": "10.0.0.2:1", "1": "10.0.0.1:1"}
