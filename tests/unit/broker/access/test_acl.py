"""Access control: who may do what, the file of accounts and its changes, and the table of what codes need."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from manual_clock import ManualClock

from iotmq import limits
from iotmq.broker.access import accounts_file
from iotmq.broker.access.accounts_file import AclFileError
from iotmq.broker.access.acl import AccessControl, Guard
from iotmq.broker.access.rules import RULES, RecordTopics, rule_of
from iotmq.broker.broker import Broker
from iotmq.broker.handlers.admin import accounts as acl_handler
from iotmq.broker.handlers.admin.accounts import AclHandler
from iotmq.broker.settings import BrokerSettings
from iotmq.errors import ConfigError, RequestError
from iotmq.message.hosts import encode_host
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import encode
from iotmq.remoting.frames.pull_frames import read_pull
from iotmq.remoting.signature import Credentials, sign
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST = encode_host("127.0.0.1", 10911)
FILE = """
# As RocketMQ ships it, with numbers for keys.
globalWhiteRemoteAddresses:
  - 10.10.103.*
accounts:
  - accessKey: device1
    secretKey: 12345678
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
      - topicD = PUB
    groupPerms:
      - groupA=DENY
      - groupB=PUB|SUB
      - groupC=SUB
  - accessKey: operator
    secretKey: abcdefgh
    whiteRemoteAddress: 192.168.1.*
    admin: true
    topicPerms:
      - topicA=DENY
  - accessKey: reader99
    secretKey: abcdefgh
    defaultTopicPerm: SUB
    defaultGroupPerm: SUB
  - accessKey: gateway1
    secretKey: abcdefgh
    topicPerms:
      - topicC=PUB
      - MQTT_TOPIC=PUB
"""
TO_DEVICES = "KEYS\x01k\x02MQTT_TOPIC\x01a/b\x02"
KEYS = {
    "device1": Credentials("device1", "12345678"),
    "operator": Credentials("operator", "abcdefgh"),
    "reader99": Credentials("reader99", "abcdefgh"),
    "gateway1": Credentials("gateway1", "abcdefgh"),
}
NEAR = "172.16.0.1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "plain_acl.yml"
    path.write_text(FILE)
    path.chmod(0o600)
    return path


@pytest.fixture
def access(path: Path) -> AccessControl:
    return AccessControl(
        path,
        topic_at={
            7: RecordTopics("topicA"),
            8: RecordTopics("topicB"),
            9: RecordTopics("%RETRY%groupC"),
            10: RecordTopics("RMQ_SYS_TRANS_HALF_TOPIC", "topicA"),
            11: RecordTopics("RMQ_SYS_TRANS_HALF_TOPIC", "topicB"),
            12: RecordTopics("RMQ_SYS_TRANS_HALF_TOPIC", "topicB", "a/b"),
            13: RecordTopics("RMQ_SYS_TRANS_HALF_TOPIC", "topicC", "a/b"),
        }.get,
        open_topics={"RMQ_SYS_TRACE_TOPIC"},
    )


def request_of(code: int, ext: dict[str, str] | None = None, body: bytes = b"", *, who: str = "") -> Command:
    request = Command.request(code, ext, body)
    if who:
        sign(request, KEYS[who])
    return request


def check(access: AccessControl, request: Command, address: str) -> None:
    account = access.authenticated(request, address)
    if account is not None:
        access.check_permitted(account, request)


def refusal(access: AccessControl, request: Command, address: str = NEAR) -> str:
    with pytest.raises(RequestError) as caught:
        check(access, request, address)
    assert caught.value.code == 16
    return str(caught.value)


def send(topic: str) -> dict[str, str]:
    return {"producerGroup": "p", "topic": topic}


def pull(topic: str, group: str) -> dict[str, str]:
    return {"topic": topic, "consumerGroup": group}


# --- who is let in ----------------------------------------------------------------------------------


def test_unsigned_and_wrongly_signed_requests_are_refused_and_counted(access: AccessControl) -> None:
    code = RequestCode.SEND_MESSAGE
    assert "not signed" in refusal(access, request_of(code, send("topicB")))
    assert "'stranger'" in refusal(access, request_of(code, {**send("topicB"), "AccessKey": "stranger"}))
    wrong = request_of(code, send("topicB"))
    sign(wrong, Credentials("device1", "87654321"))
    assert "signature of account device1" in refusal(access, wrong)
    changed = request_of(code, send("topicB"), b"body", who="device1")
    changed.body = b"other"
    assert "signature" in refusal(access, changed)
    check(access, request_of(code, send("topicB"), b"body", who="device1"), NEAR)
    assert access.refused == {"unsigned": 1, "account": 1, "signature": 2, "admin": 0, "permission": 0}


def test_addresses_on_the_global_list_are_not_asked(access: AccessControl) -> None:
    check(access, request_of(RequestCode.UPDATE_BROKER_CONFIG), "10.10.103.7")
    check(access, request_of(RequestCode.UPDATE_BROKER_CONFIG), "::ffff:10.10.103.7")
    refusal(access, request_of(RequestCode.UPDATE_BROKER_CONFIG), "10.10.104.7")


def test_an_accounts_own_addresses_need_no_signature(access: AccessControl) -> None:
    unsigned = request_of(RequestCode.UPDATE_BROKER_CONFIG, {"AccessKey": "operator"})
    check(access, unsigned, "192.168.1.9")
    assert "signature" in refusal(access, unsigned, "192.168.2.9")


def test_the_white_list_remembers_so_many_addresses(access: AccessControl) -> None:
    accounts = access.accounts
    for number in range(limits.ACL_ADDRESSES_REMEMBERED_MAX + 1):
        accounts.is_white(f"10.9.{number // 256}.{number % 256}")
    assert len(accounts._white) == 1
    assert accounts.is_white("10.10.103.1")


# --- what they may do -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "ext", "lacks"),
    [
        (10, send("topicB"), ""),
        (10, send("topicD"), ""),
        (10, send("topicA"), "PUB on topic 'topicA'"),
        (10, send("topicC"), "PUB on topic 'topicC'"),
        (10, send("unlisted"), "PUB on topic 'unlisted'"),
        (310, {"a": "p", "b": "topicB"}, ""),
        (310, {"a": "p", "b": "topicA"}, "PUB on topic 'topicA'"),
        (320, {"a": "p", "b": "topicA"}, "PUB on topic 'topicA'"),
        (10, send("%RETRY%groupC"), ""),
        (10, send("%RETRY%groupA"), "SUB on group 'groupA'"),
        (10, send("%DLQ%groupA"), "SUB on group 'groupA'"),
        (10, send("RMQ_SYS_TRACE_TOPIC"), ""),
        (324, send("topicB"), ""),
        (324, send("topicC"), "PUB on topic 'topicC'"),
        (324, send("%RETRY%groupA"), "SUB on group 'groupA'"),
        (324, send("C_REPLY_TOPIC"), "PUB on topic 'C_REPLY_TOPIC'"),
        (325, {"a": "p", "b": "C_REPLY_TOPIC"}, "PUB on topic 'C_REPLY_TOPIC'"),
        (325, {"a": "p", "b": "topicB"}, ""),
        # Retries keep the properties of what was consumed, and no device gets them.
        (310, {"a": "p", "b": "%RETRY%groupC", "i": TO_DEVICES}, ""),
        (310, {"a": "p", "b": "%RETRY%groupA", "i": TO_DEVICES}, "SUB on group 'groupA'"),
        (325, {"a": "p", "b": "topicA"}, "PUB on topic 'topicA'"),
        (10, {**send("topicB"), "properties": TO_DEVICES}, "PUB on MQTT topic 'a/b'"),
        (310, {"a": "p", "b": "topicB", "i": TO_DEVICES}, "PUB on MQTT topic 'a/b'"),
        (320, {"a": "p", "b": "topicB", "i": TO_DEVICES}, "PUB on MQTT topic 'a/b'"),
        (324, {**send("topicB"), "properties": TO_DEVICES}, "PUB on MQTT topic 'a/b'"),
        (11, pull("topicC", "groupC"), ""),
        (11, pull("topicC", "unlisted"), ""),
        (11, pull("topicC", "groupA"), "SUB on group 'groupA'"),
        (11, pull("topicD", "groupC"), "SUB on topic 'topicD'"),
        (11, pull("%RETRY%groupC", "groupC"), ""),
        (11, pull("%RETRY%groupA", "groupC"), "SUB on group 'groupA'"),
        (14, pull("topicC", "groupA"), "SUB on group 'groupA'"),
        (15, pull("topicA", "groupC"), "SUB on topic 'topicA'"),
        (30, {"topic": "topicD"}, ""),
        (30, {"topic": "topicC"}, ""),
        (30, {"topic": "topicA"}, "PUB or SUB on topic 'topicA'"),
        (33, {"offset": "8"}, ""),
        (33, {"offset": "7"}, "SUB on topic 'topicA'"),
        (33, {"offset": "5"}, ""),
        (36, {"offset": "9", "group": "groupC"}, ""),
        (36, {"offset": "7", "group": "groupC"}, "SUB on topic 'topicA'"),
        (36, {"offset": "8", "group": "groupA"}, "SUB on group 'groupA'"),
        (35, {"clientID": "c", "producerGroup": "p"}, ""),
        (35, {"clientID": "c", "consumerGroup": "groupA"}, "SUB on group 'groupA'"),
        (28, {}, ""),
        (314, {"srcGroup": "groupC", "destGroup": "groupA"}, "SUB on group 'groupA'"),
        (17, {"topic": "topicB"}, "not an administrator"),
        (25, {}, "not an administrator"),
        (215, {"topic": "topicB"}, "not an administrator"),
        (21, {}, "not an administrator"),
        (30_001, {}, "not an administrator"),
        (4_711, {}, "not an administrator"),
    ],
)
def test_permissions_by_code(access: AccessControl, code: int, ext: dict[str, str], lacks: str) -> None:
    request = request_of(code, ext, who="device1")
    if lacks:
        text = refusal(access, request)
        assert lacks in text
        assert "device1" in text
    else:
        check(access, request, NEAR)


def test_an_element_of_a_batch_may_not_speak_to_devices_either(access: AccessControl) -> None:
    ext = {"a": "p", "b": "topicB"}
    quiet = encode_batch([(b"about MQTT_TOPIC\x01", b"KEYS\x01k\x02", 0)])
    loud = quiet + encode_batch([(b"", TO_DEVICES.encode(), 0)])
    check(access, request_of(320, ext, quiet, who="device1"), NEAR)
    packed = zlib.compress(loud)
    for code, fields in ((320, ext), (310, {**ext, "m": "true"})):
        wrapped = request_of(code, {**fields, "f": "1"}, packed, who="device1")
        assert "PUB on MQTT topic 'a/b'" in refusal(access, wrapped)
        assert "PUB on MQTT topic 'a/b'" in refusal(access, request_of(code, fields, loud, who="device1"))
        check(access, request_of(code, {**fields, "b": "topicC"}, loud, who="gateway1"), NEAR)


def test_administrators_and_accounts_that_are_told_so_may_speak_to_devices(access: AccessControl) -> None:
    for who in ("operator", "gateway1"):
        check(access, request_of(10, {**send("topicC"), "properties": TO_DEVICES}, who=who), NEAR)


def device_rights(**fields: object) -> accounts_file.DeviceRights:
    account = {"accessKey": "longenough", "secretKey": "abcdefgh", **fields}
    return (
        accounts_file.parse_accounts(json.dumps({"accounts": [account]}).encode())
        .by_key["longenough"]
        .devices
    )


@pytest.mark.parametrize(
    ("fields", "is_allowed"),
    [
        ({}, False),
        # Who may send to all topics of services may not command all devices for that.
        ({"defaultTopicPerm": "PUB|SUB"}, False),
        ({"topicPerms": ["MQTT_TOPIC=PUB"]}, True),
        ({"topicPerms": ["MQTT_TOPIC=PUB"], "defaultMqttTopicPerm": "DENY"}, False),
        ({"defaultMqttTopicPerm": "PUB"}, True),
        ({"admin": True}, True),
        ({"admin": True, "topicPerms": ["MQTT_TOPIC=DENY"]}, False),
        ({"admin": True, "defaultMqttTopicPerm": "DENY"}, False),
        ({"mqttTopicPerms": ["devices/+/commands=PUB"]}, True),
        ({"mqttTopicPerms": ["devices/7/#=DENY", "devices/+/commands=PUB"]}, False),
        ({"mqttTopicPerms": ["devices/+/commands=PUB", "devices/7/#=DENY"]}, True),
        ({"mqttTopicPerms": ["devices/+/commands=DENY", "devices/+/commands = PUB"]}, False),
        ({"mqttTopicPerms": ["devices/+=PUB", "devices=PUB"]}, False),
        ({"defaultMqttTopicPerm": "PUB", "mqttTopicPerms": ["devices/#=DENY"]}, False),
        ({"admin": True, "mqttTopicPerms": ["#=DENY"]}, False),
    ],
)
def test_the_right_to_speak_to_devices_has_filters_and_a_default(
    fields: dict[str, object], is_allowed: bool
) -> None:
    assert device_rights(**fields).allows("devices/7/commands") is is_allowed


def test_wildcards_of_the_right_to_speak_to_devices_do_not_reach_the_servers_own_topics() -> None:
    rights = device_rights(mqttTopicPerms=["#=PUB"])
    assert rights.allows("a")
    assert not rights.allows("$SYS/broker/version")
    # No device gets what is no topic name.
    assert not rights.allows("a/#")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mqttTopicPerms": ["devices"]}, "'devices' in mqttTopicPerms is not FILTER=PUB"),
        ({"mqttTopicPerms": ["devices/#/x=PUB"]}, "is not FILTER=PUB"),
        ({"mqttTopicPerms": ["$share/g/x=PUB"]}, "is not FILTER=PUB"),
        ({"mqttTopicPerms": ["=PUB"]}, "is not FILTER=PUB"),
        ({"mqttTopicPerms": ["devices=SUB"]}, "is none of PUB, DENY"),
        ({"mqttTopicPerms": ["devices=PUB|SUB"]}, "is none of PUB, DENY"),
        ({"defaultMqttTopicPerm": "SUB"}, "'SUB' in defaultMqttTopicPerm"),
        (
            {"mqttTopicPerms": [f"d/{number}=PUB" for number in range(limits.ACL_DEVICE_FILTERS_MAX + 1)]},
            "are the maximum",
        ),
    ],
)
def test_rights_to_speak_to_devices_that_break_a_rule(fields: dict[str, object], words: str) -> None:
    with pytest.raises(AclFileError) as caught:
        device_rights(**fields)
    assert words in str(caught.value)


def test_so_many_filters_may_say_to_which_devices_an_account_speaks() -> None:
    filters = [f"d/{number}=PUB" for number in range(limits.ACL_DEVICE_FILTERS_MAX)]
    rights = device_rights(mqttTopicPerms=filters)
    assert rights.allows(f"d/{limits.ACL_DEVICE_FILTERS_MAX - 1}")
    assert not rights.allows(f"d/{limits.ACL_DEVICE_FILTERS_MAX}")


def test_each_element_of_a_batch_needs_the_right_to_its_own_topic(path: Path) -> None:
    path.write_text(
        "accounts: [{accessKey: device1, secretKey: '12345678', topicPerms: [T=PUB], "
        "mqttTopicPerms: ['devices/+/commands=PUB']}]"
    )
    access = AccessControl(path)

    def batch(*topics: str, properties: str = "") -> Command:
        elements = [(b"", f"MQTT_TOPIC\x01{topic}\x02".encode(), 0) for topic in topics]
        ext = {"a": "p", "b": "T", "i": properties}
        return request_of(320, ext, encode_batch(elements), who="device1")

    check(access, batch("devices/1/commands", "devices/2/commands"), NEAR)
    assert "MQTT topic 'devices/2/reset'" in refusal(access, batch("devices/1/commands", "devices/2/reset"))
    # Those that stand beside the batch are its elements' as well.
    shared = "MQTT_TOPIC\x01devices/3/reset\x02"
    text = refusal(access, batch("devices/1/commands", properties=shared))
    assert "MQTT topic 'devices/3/reset'" in text
    # The last of several with one name is the one that devices get.
    twice = "MQTT_TOPIC\x01devices/1/commands\x02MQTT_TOPIC\x01devices/1/reset\x02"
    assert "devices/1/reset" in refusal(
        access, request_of(310, {"a": "p", "b": "T", "i": twice}, who="device1")
    )


def beat(group: str, topic: str) -> bytes:
    consumer = {"groupName": group, "subscriptionDataSet": [{"topic": topic}]}
    return json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()


@pytest.mark.parametrize(
    ("code", "body", "lacks"),
    [
        (34, beat("groupC", "topicC"), ""),
        (34, beat("groupC", "topicA"), "topicA"),
        (34, beat("groupA", "topicC"), "groupA"),
        (34, b'{"clientID":"c","producerDataSet":[{"groupName":"anything"}]}', ""),
        (41, b'{"consumerGroup":"groupC","clientId":"c","mqSet":[]}', ""),
        (41, b'{"consumerGroup":"groupA","clientId":"c","mqSet":[]}', "groupA"),
        (42, b'{"consumerGroup":"groupA","clientId":"c","mqSet":[]}', "groupA"),
        (
            200_151,
            b'{"brokerName":"b","acks":[{"c":"groupC","t":"topicC"},{"c":"groupC","t":"topicA"}]}',
            "topicA",
        ),
    ],
)
def test_permissions_by_what_is_in_the_body(
    access: AccessControl, code: int, body: bytes, lacks: str
) -> None:
    request = request_of(code, {}, body, who="device1")
    if lacks:
        assert lacks in refusal(access, request)
    else:
        check(access, request, NEAR)


def test_so_many_acknowledgements_may_be_in_one_body(access: AccessControl) -> None:
    def body(count: int) -> bytes:
        return json.dumps({"acks": [{"c": "groupC", "t": "topicC"}] * count}).encode()

    maximum = limits.HEARTBEAT_SUBSCRIPTIONS_MAX
    check(access, request_of(200_151, {}, body(maximum), who="device1"), NEAR)
    with pytest.raises(RequestError) as caught:
        check(access, request_of(200_151, {}, body(maximum + 1), who="device1"), NEAR)
    assert caught.value.code == 1


@pytest.mark.parametrize(("code", "body"), [(34, b"{"), (41, b"{}"), (200_151, b'{"acks":7}')])
def test_a_body_that_cannot_be_read_is_the_senders_fault(
    access: AccessControl, code: int, body: bytes
) -> None:
    with pytest.raises(RequestError) as caught:
        check(access, request_of(code, {}, body, who="device1"), NEAR)
    assert caught.value.code == 1


def test_a_missing_field_is_named(access: AccessControl) -> None:
    with pytest.raises(RequestError, match="consumerGroup") as caught:
        check(access, request_of(11, {"topic": "topicC"}, who="device1"), NEAR)
    assert caught.value.code == 1


def test_administrators_may_everything_but_what_is_listed_for_them(access: AccessControl) -> None:
    for code in (17, 25, 200, 215, 30_001, 4_711):
        check(access, request_of(code, {"topic": "x"}, who="operator"), NEAR)
    check(access, request_of(10, send("anything"), who="operator"), NEAR)
    check(access, request_of(11, pull("SCHEDULE_TOPIC_XXXX", "any"), who="operator"), NEAR)
    assert "topicA" in refusal(access, request_of(10, send("topicA"), who="operator"))


@pytest.mark.parametrize(
    "topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "RMQ_SYS_TRACE_TOPIC"]
)
def test_the_default_does_not_hold_for_the_brokers_own_topics(access: AccessControl, topic: str) -> None:
    check(access, request_of(11, pull("any", "any"), who="reader99"), NEAR)
    assert topic in refusal(access, request_of(11, pull(topic, "any"), who="reader99"))


# --- the table --------------------------------------------------------------------------------------


async def test_every_code_a_broker_serves_is_in_the_table(tmp_path: Path) -> None:
    """Whoever adds a code says there what it needs; until then it is for administrators."""
    store = Store.open(tmp_path, StoreSettings(segment_bytes=16 << 20), store_host=HOST)
    broker = Broker(BrokerSettings(listen_port=0, registries=()), store, directory=tmp_path, store_host=HOST)
    served = set(broker.requests.codes)
    assert store.check() == []
    store.close()
    assert sorted(served - RULES.keys()) == []


def test_a_code_nobody_classified_is_for_administrators() -> None:
    assert rule_of(4_711).is_for_admins


# --- the file ---------------------------------------------------------------------------------------


KEY = "accessKey: longenough, secretKey: abcdefgh"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("accounts: [{accessKey: short, secretKey: abcdefgh}]", "accessKey of an account has 5"),
        ("accounts: [{accessKey: longenough, secretKey: short}]", "secretKey of account longenough has 5"),
        ("accounts: [{accessKey: longenough}]", "secretKey of account longenough has 0"),
        (f"accounts: [{{{KEY}, topicPerms: [T]}}]", "'T' in topicPerms"),
        (f"accounts: [{{{KEY}, topicPerms: [T=ALL]}}]", "'ALL' in topicPerms"),
        (f"accounts: [{{{KEY}, defaultGroupPerm: X}}]", "defaultGroupPerm"),
        (f"accounts: [{{{KEY}, whiteRemoteAddress: x}}]", "invalid address pattern"),
        ("globalWhiteRemoteAddresses: [1.2.3]", "invalid address pattern"),
        ("accounts: 7", "accounts"),
        ("- a", "no mapping"),
        ("accounts: [", "no YAML"),
        (f"accounts: [{{{KEY}}}, {{{KEY}}}]", "twice"),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused_with_the_account_and_the_rule(text: str, words: str) -> None:
    with pytest.raises(AclFileError) as caught:
        accounts_file.parse_accounts(text.encode())
    assert words in str(caught.value)


def test_keys_and_accounts_and_the_file_have_maxima(path: Path) -> None:
    def account(key: str) -> str:
        return f"{{accessKey: {key}, secretKey: abcdefgh}}"

    accounts_file.parse_accounts(f"accounts: [{account('k' * limits.ACL_KEY_BYTES_MAX)}]".encode())
    with pytest.raises(AclFileError, match="accessKey"):
        accounts_file.parse_accounts(f"accounts: [{account('k' * (limits.ACL_KEY_BYTES_MAX + 1))}]".encode())
    document = accounts_file.AclDocument(
        accounts=[
            accounts_file.AccountDocument(access_key=f"account{number}", secret_key="abcdefgh")
            for number in range(limits.ACL_ACCOUNTS_MAX)
        ]
    )
    assert len(accounts_file.Accounts(document).by_key) == limits.ACL_ACCOUNTS_MAX
    assert document.accounts is not None
    document.accounts.append(accounts_file.AccountDocument(access_key="onemore", secret_key="abcdefgh"))
    with pytest.raises(AclFileError, match="are the maximum"):
        accounts_file.Accounts(document)
    path.write_bytes(b"#" * limits.ACL_FILE_BYTES_MAX)
    assert accounts_file.read_accounts(path).by_key == {}
    path.write_bytes(b"#" * (limits.ACL_FILE_BYTES_MAX + 1))
    with pytest.raises(AclFileError, match="bytes"):
        accounts_file.read_accounts(path)


def test_a_broker_without_its_file_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="write it first"):
        AccessControl(tmp_path / "nowhere.yml", topic_at=lambda _: None)
    (tmp_path / "bad.yml").write_text("accounts: 7")
    with pytest.raises(ConfigError, match="cannot be used"):
        AccessControl(tmp_path / "bad.yml", topic_at=lambda _: None)


def test_a_file_that_others_may_read_is_warned_of(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.chmod(0o644)
    AccessControl(path, topic_at=lambda _: None)
    assert "chmod 600" in caplog.text
    caplog.clear()
    path.chmod(0o600)
    AccessControl(path, topic_at=lambda _: None)
    assert caplog.text == ""


def content(path: Path) -> bytes:
    return path.read_bytes()


def remove(path: Path) -> None:
    path.unlink()


def rewrite(path: Path, text: str) -> None:
    fresh = path.with_name("fresh.yml")
    fresh.write_text(text)
    fresh.replace(path)


async def test_a_changed_file_that_cannot_be_read_for_a_moment_is_read_the_next_time(
    access: AccessControl, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    rewrite(path, FILE.replace("topicB=PUB|SUB", "topicB=DENY"))
    with monkeypatch.context() as patch:
        patch.setattr(accounts_file, "read_accounts", fail)
        await access.reload()
    assert (access.reloads_count, access.failed_reloads_count) == (0, 1)
    for _ in range(2):
        await access.reload()
        assert "topicB" in refusal(access, request_of(10, send("topicB"), who="device1"))
        assert access.reloads_count == 1


async def test_a_changed_file_is_read_and_a_broken_one_changes_nothing(
    access: AccessControl, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    request = request_of(10, send("topicB"), who="device1")
    await access.reload()
    assert access.reloads_count == 0
    rewrite(path, FILE.replace("topicB=PUB|SUB", "topicB=DENY"))
    await access.reload()
    assert "topicB" in refusal(access, request)
    rewrite(path, "accounts: 7")
    await access.reload()
    assert "are not used" in caplog.text
    assert "topicB" in refusal(access, request)
    assert (access.reloads_count, access.failed_reloads_count) == (1, 1)
    remove(path)
    await access.reload()
    assert access.failed_reloads_count == 2
    rewrite(path, FILE)
    await access.reload()
    check(access, request, NEAR)


# --- the guard --------------------------------------------------------------------------------------


class Inner:
    def __init__(self) -> None:
        self.handled: list[int] = []
        self.lost = 0

    def handle(self, connection: Any, request: Command) -> Command | None:
        self.handled.append(request.code)
        return request.reply(0)

    def connection_lost(self, connection: Any) -> None:
        self.lost += 1


class FakeConnection:
    peer = (NEAR, 5000)

    def __init__(self) -> None:
        self.replies: asyncio.Queue[Command] = asyncio.Queue()

    def reply(self, response: Command) -> None:
        self.replies.put_nowait(response)


def test_the_guard_hands_on_what_may_be_done(access: AccessControl) -> None:
    inner, connection = Inner(), FakeConnection()
    nothing: Any = None
    guard = Guard(inner, lambda connection, run, at: at + 7, access, nothing, nothing)
    response = guard.handle(connection, request_of(10, send("topicB"), who="device1"))  # type: ignore[arg-type]
    assert response is not None
    with pytest.raises(RequestError):
        guard.handle(connection, request_of(10, send("topicA"), who="device1"))  # type: ignore[arg-type]
    assert inner.handled == [10]
    # The fast path is for who may, and for addresses that nobody asks.
    fields = {
        "queueId": "1", "queueOffset": "0", "maxMsgNums": "32", "sysFlag": "0", "commitOffset": "0",
        "suspendTimeoutMillis": "0", "subVersion": "0",
    }  # fmt: skip
    run = read_pull(b"".join(encode(request_of(11, {**pull("topicA", "groupA"), **fields}))), 0)
    assert run is not None
    assert guard.handle_run(connection, run, 0) == 0  # type: ignore[arg-type]
    connection.peer = ("10.10.103.7", 5000)
    assert guard.handle_run(connection, run, 0) == 7  # type: ignore[arg-type]
    guard.connection_lost(connection)  # type: ignore[arg-type]
    assert inner.lost == 1


def test_a_transaction_is_ended_by_who_may_write_to_its_topic(access: AccessControl) -> None:
    def end(position: int, who: str) -> Command:
        return request_of(RequestCode.END_TRANSACTION, {"commitLogOffset": str(position)}, who=who)

    check(access, end(11, "device1"), NEAR)
    assert "lacks PUB on topic 'topicA'" in refusal(access, end(10, "device1"))
    assert "lacks PUB on topic 'topicB'" in refusal(access, end(11, "reader99"))
    # What stands there is no prepared message, or nothing does: the handler says so.
    check(access, end(8, "reader99"), NEAR)
    check(access, end(14, "reader99"), NEAR)
    # What was prepared is for devices.
    assert "lacks PUB on MQTT topic 'a/b'" in refusal(access, end(12, "device1"))
    check(access, end(13, "gateway1"), NEAR)
    check(access, end(12, "operator"), NEAR)
    with pytest.raises(RequestError, match="commitLogOffset"):
        check(access, request_of(RequestCode.END_TRANSACTION, {}, who="device1"), NEAR)


# --- changes at run time ----------------------------------------------------------------------------


class Changes:
    def __init__(self, access: AccessControl | None, *, is_member: bool = False) -> None:
        self.clock = ManualClock()
        self.handler = AclHandler(
            access,
            self.clock,
            broker_name="b0",
            cluster="C",
            broker_address=lambda: "127.0.0.1:10911",
            is_member=is_member,
        )
        self.connection: Any = FakeConnection()

    async def ask(self, code: int, **ext: str) -> Command:
        request = Command.request(code, ext)
        try:
            response = self.handler.handlers()[code](self.connection, request)
        except RequestError as error:
            return request.reply(error.code, remark=str(error))
        if response is None:
            async with asyncio.timeout(30):
                response = await self.connection.replies.get()
        return response


async def test_accounts_are_made_and_changed(access: AccessControl, path: Path) -> None:
    changes = Changes(access)
    made = await changes.ask(
        50, accessKey="newcomer", secretKey="abcdefgh", admin="false", defaultTopicPerm="DENY",
        topicPerms="topicX=PUB,topicY=SUB", groupPerms="groupX=SUB", whiteRemoteAddress="10.1.2.{3,4}",
    )  # fmt: skip
    assert (made.code, made.remark) == (0, None)
    account = access.accounts.by_key["newcomer"]
    assert account.permission("topicX", is_group=False) == 4
    assert account.address.matches("10.1.2.4")
    changed = await changes.ask(50, accessKey="newcomer", topicPerms="topicX=SUB")
    assert changed.code == 0
    assert access.accounts.by_key["newcomer"].permission("topicX", is_group=False) == 8
    # What was not named stays, in the file as well, and nobody else may read it.
    document = msgspec.yaml.decode(content(path))
    entry = document["accounts"][-1]
    assert entry["secretKey"] == "abcdefgh"
    assert entry["groupPerms"] == ["groupX=SUB"]
    assert document["globalWhiteRemoteAddresses"] == ["10.10.103.*"]
    assert document["dataVersion"] == [{"counter": 2, "timestamp": changes.clock.now_ms()}]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert path.with_name(path.name + ".bak").exists()
    # The change is in force already: the next look at the file finds nothing new.
    await access.reload()
    assert access.reloads_count == 0


@pytest.mark.parametrize(
    "ext",
    [
        {"accessKey": "short", "secretKey": "abcdefgh"},
        {"accessKey": "newcomer"},
        {"accessKey": "newcomer", "secretKey": "abcdefgh", "topicPerms": "T"},
        {"accessKey": "device1", "defaultTopicPerm": "ALL"},
        {"accessKey": "device1", "whiteRemoteAddress": "nowhere"},
    ],
)
async def test_a_change_that_breaks_a_rule_changes_nothing(
    access: AccessControl, path: Path, ext: dict[str, str]
) -> None:
    before = content(path)
    response = await Changes(access).ask(50, **ext)
    assert response.code == 209
    assert response.remark
    assert content(path) == before
    assert access.accounts.by_key["device1"].permission("topicB", is_group=False) == 12


async def test_accounts_are_removed(access: AccessControl) -> None:
    changes = Changes(access)
    assert (await changes.ask(51, accessKey="device1")).code == 0
    assert "device1" not in access.accounts.by_key
    missing = await changes.ask(51, accessKey="device1")
    assert missing.code == 210
    assert "device1" in str(missing.remark)


async def test_the_white_list_is_replaced(access: AccessControl, path: Path) -> None:
    changes = Changes(access)
    assert (await changes.ask(53, globalWhiteAddrs="10.0.0.{1,2},10.3.*.*")).code == 0
    assert access.accounts.is_white("10.0.0.2")
    assert not access.accounts.is_white("10.10.103.1")
    assert (await changes.ask(53, globalWhiteAddrs="10.0.0.1", aclFileFullPath=str(path))).code == 0
    assert (await changes.ask(53, globalWhiteAddrs="10.0.0.1", aclFileFullPath="/etc/passwd")).code == 211
    assert (await changes.ask(53, globalWhiteAddrs="nonsense")).code == 211
    assert access.accounts.is_white("10.0.0.1")


async def test_changes_at_the_same_time_come_one_after_the_other(access: AccessControl) -> None:
    changes = Changes(access)
    answers = await asyncio.gather(
        *(changes.ask(50, accessKey=f"account{number}", secretKey="abcdefgh") for number in range(20))
    )
    assert {answer.code for answer in answers} == {0}
    assert len(access.accounts.by_key) == 24
    assert access.accounts.version.counter == 20


async def test_the_version_is_told(access: AccessControl, path: Path) -> None:
    changes = Changes(access)
    await changes.ask(51, accessKey="device1")
    ext = (await changes.ask(52)).ext
    assert json.loads(ext["version"]) == {"counter": 1, "timestamp": changes.clock.now_ms()}
    assert json.loads(ext["allAclFileVersion"]) == {str(path): json.loads(ext["version"])}
    assert (ext["brokerName"], ext["clusterName"], ext["brokerAddr"]) == ("b0", "C", "127.0.0.1:10911")


async def test_a_disk_that_refuses_is_said_and_nothing_changes(
    access: AccessControl, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(acl_handler, "replace_private_file", full)
    response = await Changes(access).ask(51, accessKey="device1")
    assert response.code == 210
    assert "No space left" in str(response.remark)
    assert "device1" in access.accounts.by_key


@pytest.mark.parametrize(("code", "answer"), [(50, 209), (51, 210), (53, 211)])
async def test_a_member_of_a_replicated_broker_says_that_all_files_have_to_be_changed(
    access: AccessControl, code: int, answer: int
) -> None:
    before = access.path.read_bytes()
    response = await Changes(access, is_member=True).ask(code, accessKey="device1", globalWhiteAddrs="*")
    assert response.code == answer
    assert "at every member" in str(response.remark)
    assert access.path.read_bytes() == before


@pytest.mark.parametrize(("code", "answer"), [(50, 209), (51, 210), (52, 1), (53, 211)])
async def test_where_access_control_is_off_nothing_can_be_changed(code: int, answer: int) -> None:
    response = await Changes(None).ask(code, accessKey="newcomer", globalWhiteAddrs="*")
    assert response.code == answer
    assert "acl_enabled" in str(response.remark)
