"""What a broker records for an audit: what operators change, and what access control refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from eventually import soon
from fake_connection import FakeConnection
from local_cluster import LocalCluster

from iotmq import audit_log
from iotmq.audit_log import AUDIT_TOPIC
from iotmq.broker.access.audit import ADMINISTRATION, AuditedRequests
from iotmq.broker.access.rules import rule_of
from iotmq.client import Admin, ClientSettings, IotmqClient, Message, Producer
from iotmq.errors import BrokerError, IotmqError, RequestError
from iotmq.message.records.record import decode_record
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command

FILE = """
accounts:
  - {accessKey: operator, secretKey: abcdefgh, admin: true}
  - {accessKey: producer, secretKey: 12345678, topicPerms: [T=PUB]}
  - {accessKey: everything, secretKey: 12345678, defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}
"""
OPERATOR = {"access_key": "operator", "secret_key": "abcdefgh"}


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "_INTERVAL_S", 0.01)


async def started(directory: Path, **settings: Any) -> LocalCluster:
    accounts = directory / "data" / "config" / "plain_acl.yml"
    accounts.parent.mkdir(parents=True)
    accounts.touch(0o600)
    accounts.write_text(FILE)
    cluster = LocalCluster(directory, topics=("T",), **settings)
    await cluster.start()
    return cluster


def records(cluster: LocalCluster) -> list[dict[str, Any]]:
    queue = cluster.store.find_queue(AUDIT_TOPIC, 0)
    if queue is None:
        return []
    found = []
    for offset in range(queue.min_offset, queue.max_offset):
        entry = queue.entry(offset)
        assert entry is not None
        view = cluster.store.read_record(entry[0])
        assert view is not None
        found.append(msgspec.json.decode(bytes(decode_record(view).body)))
    return found


def settings_of(cluster: LocalCluster, **keys: str) -> ClientSettings:
    return msgspec.structs.replace(cluster.client_settings, **keys)


async def test_what_operators_change_and_who_may_not_is_recorded(tmp_path: Path) -> None:
    cluster = await started(tmp_path, acl_enabled=True)
    try:
        async with IotmqClient(settings_of(cluster, **OPERATOR)) as client:
            await Admin(client).create_topic("made", queues=3)
            await Admin(client).access.put("newcomer", secret_key="very-hidden")
        async with IotmqClient(settings_of(cluster, access_key="producer", secret_key="12345678")) as client:
            with pytest.raises(BrokerError):
                await Admin(client).create_topic("not-made")
            async with Producer(client) as producer:
                await producer.send(Message("T", b"x"))
        async with IotmqClient(settings_of(cluster, access_key="producer", secret_key="wrong-one")) as client:
            with pytest.raises(IotmqError):
                await Admin(client).create_topic("not-made")
        await soon(lambda: len(records(cluster)) >= 4, "the records")
        made, account, denied, refused = records(cluster)
        assert made["event"] == account["event"] == "administered"
        assert (made["account"], made["address"]) == ("operator", "127.0.0.1")
        assert (made["request"], made["result"]) == ("UPDATE_AND_CREATE_TOPIC", "done")
        assert "topic=made" in made["fields"]
        assert made["source"] == "broker-a"
        assert (account["request"], account["result"]) == ("UPDATE_AND_CREATE_ACL_CONFIG", "accepted")
        assert "accessKey=newcomer" in account["fields"]
        assert "hidden" not in str(records(cluster))
        assert (denied["event"], denied["account"], denied["reason"]) == ("denied", "producer", "admin")
        assert (refused["event"], refused["reason"]) == ("refused", "signature")
    finally:
        await cluster.stop()


async def test_only_the_events_of_the_setting_are_recorded(tmp_path: Path) -> None:
    cluster = await started(tmp_path, audit_events=())
    try:
        async with IotmqClient(cluster.client_settings) as client:
            await Admin(client).create_topic("made")
    finally:
        await cluster.stop_broker()
    await cluster.start_broker()
    try:
        assert records(cluster) == []
    finally:
        await cluster.stop()


async def test_no_default_permission_lets_an_account_read_or_forge_records(tmp_path: Path) -> None:
    cluster = await started(tmp_path, acl_enabled=True)
    keys = {"access_key": "everything", "secret_key": "12345678"}
    try:
        async with IotmqClient(settings_of(cluster, **keys)) as client, Producer(client) as producer:
            with pytest.raises(IotmqError, match="lacks PUB"):
                await producer.send(Message(AUDIT_TOPIC, b"{}"))
        async with IotmqClient(settings_of(cluster, **OPERATOR)) as client:
            with pytest.raises(BrokerError):
                await Admin(client).changes.delete_topic(AUDIT_TOPIC)
    finally:
        await cluster.stop()


def test_operators_requests_are_those_of_administrators_and_of_those_who_own_a_group() -> None:
    owners = {
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLONE_GROUP_OFFSET,
    }
    assert {code for code in ADMINISTRATION if not rule_of(code).is_for_admins} == owners


class Inner:
    def __init__(self, answer: Command | Exception | None) -> None:
        self.answer = answer
        self.lost = 0

    def handle(self, connection: Any, request: Command) -> Command | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def connection_lost(self, connection: Any) -> None:
        self.lost += 1


@pytest.mark.parametrize(
    ("answer", "result", "detail"),
    [
        (Command.request(17).reply(ResponseCode.SUCCESS), "done", None),
        (Command.request(17).reply(ResponseCode.SYSTEM_ERROR, remark="no room"), "refused", "no room"),
        (None, "accepted", None),
        (RequestError(ResponseCode.SYSTEM_ERROR, "no such name"), "refused", "no such name"),
    ],
)
def test_the_outcome_is_recorded(answer: Any, result: str, detail: str | None) -> None:
    recorded: list[dict[str, Any]] = []
    audited = AuditedRequests(
        Inner(answer), lambda event, **fields: recorded.append({"event": event, **fields}), has_accounts=False
    )
    connection: Any = FakeConnection()
    request = Command.request(17, {"topic": "T", "AccessKey": "claimed", "Signature": "s"})
    if isinstance(answer, Exception):
        with pytest.raises(RequestError):
            audited.handle(connection, request)
    else:
        assert audited.handle(connection, request) is answer
    (record,) = recorded
    assert (record["result"], record["detail"], record["fields"]) == (result, detail, "topic=T")
    # Where nobody looks at signatures, nobody knows whose it is.
    assert record["account"] is None


def test_other_requests_are_handed_on_without_a_word() -> None:
    answer = Command.request(11).reply(ResponseCode.SUCCESS)
    inner = Inner(answer)
    audited = AuditedRequests(inner, no_record, has_accounts=True)
    connection: Any = FakeConnection()
    assert audited.handle(connection, Command.request(RequestCode.PULL_MESSAGE)) is answer
    audited.connection_lost(connection)
    assert inner.lost == 1


def no_record(event: str, **fields: Any) -> None:
    raise AssertionError(f"{event} {fields}")
