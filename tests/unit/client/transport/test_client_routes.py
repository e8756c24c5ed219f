"""Routes: what a registry's JSON means to a client."""

from __future__ import annotations

import json

import pytest

from iotmq import limits
from iotmq.client.transport.routes import (
    MessageQueue,
    parse_cluster,
    parse_route,
    parse_topics,
    queue_of_key,
    route_from_template,
)
from iotmq.errors import BrokerError


def route_json(*queue_datas: dict[str, object], brokers: dict[str, dict[str, str]]) -> bytes:
    return json.dumps(
        {
            "brokerDatas": [
                {"brokerName": name, "brokerAddrs": addresses, "cluster": "C"}
                for name, addresses in brokers.items()
            ],
            "filterServerTable": {},
            "queueDatas": list(queue_datas),
        }
    ).encode()


def queue_data(name: str, *, read: int = 2, write: int = 2, perm: int = 6) -> dict[str, object]:
    return {
        "brokerName": name,
        "perm": perm,
        "readQueueNums": read,
        "writeQueueNums": write,
        "topicSysFlag": 0,
    }


def test_queues_of_all_brokers_are_sorted() -> None:
    body = route_json(
        queue_data("b"), queue_data("a"), brokers={"b": {"0": "h:2"}, "a": {"0": "h:1", "1": "h:3"}}
    )
    route = parse_route("T", body)
    assert [queue[1:] for queue in route.writable] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert route.readable == route.writable
    assert route.master("a") == "h:1"
    assert route.reader("a", 1) == "h:3"
    assert route.reader("a", 7) == "h:1"


def test_permissions_and_missing_masters_take_queues_away() -> None:
    body = route_json(
        queue_data("read-only", perm=4),
        queue_data("write-only", perm=2),
        queue_data("slave-only"),
        queue_data("gone"),
        brokers={"read-only": {"0": "h:1"}, "write-only": {"0": "h:2"}, "slave-only": {"1": "h:3"}},
    )
    route = parse_route("T", body)
    assert {queue.broker_name for queue in route.readable} == {"read-only", "slave-only"}
    assert {queue.broker_name for queue in route.writable} == {"write-only"}
    assert route.master("slave-only") is None
    assert route.reader("slave-only") == "h:3"
    assert route.reader("gone") is None


def test_queues_of_brokers_that_have_left_or_have_no_master_are_absent() -> None:
    unreadable = queue_data("closed", perm=2)
    frozen = {**queue_data("frozen"), "frozenQueues": [0, 1]}
    body = route_json(
        queue_data("a"), queue_data("left"), unreadable, frozen, queue_data("slave-only"),
        brokers={"a": {"0": "h:1"}, "slave-only": {"1": "h:2"}},
    )  # fmt: skip
    route = parse_route("T", body)
    assert [queue.broker_name for queue in route.readable] == ["a", "a", "slave-only", "slave-only"]
    assert [queue[1:] for queue in route.away] == [
        ("frozen", 0),
        ("frozen", 1),
        ("left", 0),
        ("left", 1),
    ]
    waited_for = [
        ("closed", 0),
        ("closed", 1),
        ("left", 0),
        ("left", 1),
        ("slave-only", 0),
        ("slave-only", 1),
    ]
    assert [queue[1:] for queue in route.without_master] == waited_for
    there = parse_route("T", route_json(queue_data("left"), brokers={"left": {"0": "h:3"}}))
    joined = route.with_queues_of(there, "left")
    assert {queue.broker_name for queue in joined.away} == {"frozen"}
    assert {queue.broker_name for queue in joined.without_master} == {"closed", "slave-only"}


def test_old_and_unknown_fields_are_ignored() -> None:
    body = route_json({**queue_data("a"), "topicSynFlag": 0, "new": []}, brokers={"a": {"0": "h:1"}})
    assert len(parse_route("T", body).writable) == 2


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"brokerDatas":[{"brokerName":"a","brokerAddrs":{"x":"y"}}]}']
)
def test_a_broken_answer_is_an_error_of_the_registry(body: bytes) -> None:
    with pytest.raises(BrokerError, match="topic T cannot be read"):
        parse_route("T", body)


def test_a_route_with_too_many_queues_is_an_error_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ROUTE_QUEUES_MAX", 8)
    brokers = {"a": {"0": "h:1"}, "b": {"0": "h:2"}}
    route = parse_route("T", route_json(queue_data("a"), queue_data("b"), brokers=brokers))
    assert len(route.readable) + len(route.writable) == 8
    for read in (3, 2**62):
        with pytest.raises(BrokerError, match="more than 8"):
            parse_route("T", route_json(queue_data("a", read=read), queue_data("b"), brokers=brokers))


def test_a_new_topic_takes_the_templates_first_queues() -> None:
    template = parse_route(
        "TBW102", route_json(queue_data("a", write=8, perm=7), brokers={"a": {"0": "h:1"}})
    )
    route = route_from_template("new", template, 4)
    assert route.writable == tuple(MessageQueue("new", "a", number) for number in range(4))
    assert route.is_provisional
    assert route.readable == ()


def test_cluster_and_topic_lists() -> None:
    body = {"brokerAddrTable": {"a": {"brokerName": "a", "brokerAddrs": {"0": "h:1"}, "cluster": "C"}}}
    assert parse_cluster(json.dumps(body).encode()) == {"a": {0: "h:1"}}
    assert parse_topics(b'{"topicList":["x","y"]}') == ["x", "y"]
    with pytest.raises(BrokerError):
        parse_cluster(b"no")
    with pytest.raises(BrokerError):
        parse_topics(b"no")


def test_the_hash_of_a_key_never_changes() -> None:
    # CRC-32 of the check string 123456789 is CBF43926.
    assert queue_of_key("123456789", 2**32) == 0xCBF43926
    assert queue_of_key(b"123456789", 7) == 0xCBF43926 % 7
    assert queue_of_key("ä", 100) == queue_of_key("ä".encode(), 100)


def test_numbers_as_keys_are_understood_as_rocketmq_writes_them() -> None:
    address = b'{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"a","cluster":"C"}'
    by_id = {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}
    assert parse_cluster(b'{"brokerAddrTable":{"a":%s}}' % address) == {"a": by_id}
    route = parse_route("T", b'{"brokerDatas":[%s],"queueDatas":[]}' % address)
    assert route.addresses == {"a": by_id}
