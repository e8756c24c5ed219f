"""Any mix of missing, wrong and extreme fields and bodies gets an answer of the protocol."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from manual_clock import ManualClock

from iotmq.broker.broker import Broker
from iotmq.broker.scheduled.recall_handle import RecallHandle
from iotmq.broker.settings import BrokerSettings
from iotmq.errors import RequestError
from iotmq.message.hosts import encode_host
from iotmq.message.records.record import encode_batch
from iotmq.mqtt.topics.reply import ReplyAddress, reply_token
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

REPLY_TOPIC = "$reply/" + reply_token(ReplyAddress("broker-a", "c", "1"))
HOST = encode_host("127.0.0.1", 10911)
ROUNDS = 400

# What each kind of field may hold; the first of each is what a good client sends.
NUMBERS = [
    "0",
    "1",
    "-1",
    "7",
    "2147483647",
    "2147483648",
    "-2147483649",
    "9223372036854775807",
    "1e3",
    "",
    " 1",
    "٣",
]
NAMES = [
    "T",
    "g",
    "",
    "a b",
    "%RETRY%g",
    "%DLQ%g",
    "SCHEDULE_TOPIC_XXXX",
    "TBW102",
    "x" * 127,
    "x" * 256,
    "\x00",
    "ü",
]
TEXTS = [
    "",
    "*",
    "A || B",
    "||",
    "a > 5 AND TAGS IN ('A')",
    "TAGS\x01A\x02",
    "DELAY\x013\x02",
    "TIMER_DELAY_SEC\x0130\x02UNIQ_KEY\x01k\x02",
    "TIMER_DELAY_MS\x01-1\x02",
    "TIMER_DELIVER_MS\x0199999999999999999999\x02",
    "TIMER_DEL_UNIQKEY\x01k\x02",
    "TRAN_MSG\x01true\x02",
    "\x01\x02",
    "k" * 40_000,
]
BOOLEANS = ["false", "true", "0", "1", "", "maybe"]
LOCKS = json.dumps(
    {"clientId": "c", "consumerGroup": "g", "mqSet": [{"topic": "T", "brokerName": "b", "queueId": 0}]}
).encode()
HANDLES = [
    RecallHandle("T", "broker-a", "1700000030000", "k").encode(),
    RecallHandle("T", "other", "1", "k").encode(),
    "",
    "djEgVA==",
    "ü",
    "A" * 4_000,
]
PLACES = ["", "7:7", ":", "x", "9" * 40]
BODIES = [
    b"",
    b"hello",
    encode_batch([(b"one", b"", 0), (b"two", b"TAGS\x01A", 0)]),
    encode_batch([(b"one", b"", 0)])[:-1],
    b"\x00" * 64,
    b"\xff" * 64,
    b"{}",
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T"}]}]}',
    b'{"clientID":"c","producerDataSet":[{"groupName":"p"}]}\n',
    LOCKS,
    b'{"groupName":"g"}',
    b'{"subscriptionData":{"topic":"T","subString":"a > 5","expressionType":"SQL92"}}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T",'
    b'"subString":"a >","expressionType":"SQL92","subVersion":7}]}]}',
    b'{"groupName":"a b"}',
    b'{"groupName":"g","retryQueueNums":-1}',
    b"[" * 5_000,
    '{"clientID":"ü\ud7ff"}'.encode(),
    # Of front ends, in MessagePack: open, subscribe, unsubscribe, progress, close, claim.
    *map(
        msgspec.msgpack.encode,
        [
            ["c", False, 60, ["T", 9, b"", True, 1]],
            ["c", True, 0, None],
            ["c", 7, [["a/#", 1], ["b", 0]]],
            ["c", 7, ["a/#"]],
            [["c", 7, [[0, 1, 1]], [1], [[1, 0, 5, False]]]],
            ["c", 7, 0, False],
            [["c", 7, 0, None], ["d", -1, 0, ["%", 0, b"x", True, 0]]],
        ],
    ),
]

SEND = {"abc": NAMES, "defgjl": NUMBERS, "h": NUMBERS, "i": TEXTS, "km": BOOLEANS}
SEND_FIELDS = {letter: values for letters, values in SEND.items() for letter in letters}
LONG_FIELDS = {
    "producerGroup": NAMES,
    "topic": NAMES,
    "defaultTopic": NAMES,
    "defaultTopicQueueNums": NUMBERS,
    "queueId": NUMBERS,
    "sysFlag": NUMBERS,
    "bornTimestamp": NUMBERS,
    "flag": NUMBERS,
    "properties": TEXTS,
    "reconsumeTimes": NUMBERS,
    "maxReconsumeTimes": NUMBERS,
    "batch": BOOLEANS,
}
QUEUE_FIELDS = {"topic": NAMES, "queueId": NUMBERS}
PULL_FIELDS = {
    "consumerGroup": NAMES,
    "queueOffset": NUMBERS,
    "maxMsgNums": NUMBERS,
    "sysFlag": NUMBERS,
    "commitOffset": NUMBERS,
    "suspendTimeoutMillis": NUMBERS,
    "subscription": TEXTS,
    "subVersion": NUMBERS,
    "expressionType": ["TAG", "SQL92", ""],
    "maxMsgBytes": NUMBERS,
    **QUEUE_FIELDS,
}
POP_FIELDS = {
    "consumerGroup": NAMES,
    "maxMsgNums": NUMBERS,
    "invisibleTime": NUMBERS,
    "pollTime": NUMBERS,
    "initMode": NUMBERS,
    "exp": TEXTS,
    "order": BOOLEANS,
    **QUEUE_FIELDS,
}
RECEIPT_FIELDS = {
    "consumerGroup": NAMES,
    "extraInfo": ["0 1700000000000 1000 0 0 b 0 0", *TEXTS],
    "offset": NUMBERS,
    "invisibleTime": NUMBERS,
    **QUEUE_FIELDS,
}
FIELDS: dict[int, dict[str, list[str]]] = {
    RequestCode.SEND_MESSAGE: LONG_FIELDS,
    RequestCode.SEND_MESSAGE_V2: SEND_FIELDS,
    RequestCode.SEND_BATCH_MESSAGE: SEND_FIELDS,
    RequestCode.PULL_MESSAGE: PULL_FIELDS,
    RequestCode.LITE_PULL_MESSAGE: PULL_FIELDS,
    RequestCode.POP_MESSAGE: POP_FIELDS,
    RequestCode.NOTIFICATION: POP_FIELDS,
    RequestCode.PEEK_MESSAGE: POP_FIELDS,
    RequestCode.POLLING_INFO: POP_FIELDS,
    RequestCode.ACK_MESSAGE: RECEIPT_FIELDS,
    RequestCode.CHANGE_MESSAGE_INVISIBLE_TIME: RECEIPT_FIELDS,
    RequestCode.BATCH_ACK_MESSAGE: {},
    RequestCode.QUERY_ASSIGNMENT: {},
    RequestCode.SET_MESSAGE_REQUEST_MODE: {},
    RequestCode.QUERY_CONSUMER_OFFSET: {"consumerGroup": NAMES, **QUEUE_FIELDS},
    RequestCode.UPDATE_CONSUMER_OFFSET: {"consumerGroup": NAMES, "commitOffset": NUMBERS, **QUEUE_FIELDS},
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: {"timestamp": NUMBERS, **QUEUE_FIELDS},
    RequestCode.GET_MAX_OFFSET: QUEUE_FIELDS,
    RequestCode.GET_MIN_OFFSET: QUEUE_FIELDS,
    RequestCode.GET_EARLIEST_MESSAGE_STORE_TIME: QUEUE_FIELDS,
    RequestCode.HEART_BEAT: {},
    RequestCode.RELEASE_PACKET_IDS: {},
    RequestCode.LAST_BATCH_NUMBER: {"topic": NAMES, "producer": NAMES},
    RequestCode.CHECK_CLIENT_CONFIG: {},
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: {"accessKey": NAMES, "secretKey": NAMES, "admin": BOOLEANS},
    RequestCode.DELETE_ACL_CONFIG: {"accessKey": NAMES},
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: {},
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRESSES: {"globalWhiteAddrs": NAMES, "aclFileFullPath": TEXTS},
    RequestCode.UNREGISTER_CLIENT: {"clientID": NAMES, "producerGroup": NAMES, "consumerGroup": NAMES},
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: {"consumerGroup": NAMES},
    RequestCode.LOCK_BATCH_QUEUES: {},
    RequestCode.UNLOCK_BATCH_QUEUES: {},
    RequestCode.UPDATE_AND_CREATE_TOPIC: {
        "topic": NAMES,
        "defaultTopic": NAMES,
        "readQueueNums": NUMBERS,
        "writeQueueNums": NUMBERS,
        "perm": NUMBERS,
        "topicFilterType": ["SINGLE_TAG", "", "OTHER"],
        "topicSysFlag": NUMBERS,
        "order": BOOLEANS,
    },
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP: {},
    RequestCode.GET_ALL_TOPIC_CONFIG: {},
    RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG: {},
    RequestCode.GET_ALL_CONSUMER_OFFSET: {},
    RequestCode.GET_ALL_DELAY_OFFSET: {},
    RequestCode.GET_BROKER_RUNTIME_INFO: {},
    RequestCode.RECALL_MESSAGE: {"topic": NAMES, "recallHandle": HANDLES, "producerGroup": NAMES},
    RequestCode.PUBLISH_REPLY: {"topic": [REPLY_TOPIC, "$reply/", *TEXTS], "clientId": TEXTS},
    RequestCode.PUBLISH_DELAYED: {"topic": NAMES, "queueId": NUMBERS},
    RequestCode.LIST_TIMERS: {"topic": ["", *NAMES], "maxNums": NUMBERS, "after": PLACES},
    RequestCode.CANCEL_TIMER: {"topic": NAMES, "uniqueKey": TEXTS},
    RequestCode.TRIGGER_DELETE_FILES: {},
    RequestCode.CLEAN_EXPIRED_CONSUME_QUEUE: {},
    RequestCode.DELETE_EXPIRED_COMMIT_LOG: {},
    RequestCode.GET_TOPIC_STATS_INFO: {"topic": NAMES},
    RequestCode.GET_TOPIC_CONFIG: {"topic": NAMES},
    RequestCode.VIEW_MESSAGE_BY_ID: {"offset": NUMBERS},
    RequestCode.QUERY_MESSAGE: {
        "topic": NAMES,
        "key": TEXTS,
        "maxNum": NUMBERS,
        "beginTimestamp": NUMBERS,
        "endTimestamp": NUMBERS,
        "_UNIQUE_KEY_QUERY": BOOLEANS,
    },
    RequestCode.QUERY_CONSUME_QUEUE: {
        "index": NUMBERS,
        "count": NUMBERS,
        "consumerGroup": NAMES,
        **QUEUE_FIELDS,
    },
    RequestCode.GET_CONSUMER_CONNECTION_LIST: {"consumerGroup": NAMES},
    RequestCode.GET_PRODUCER_CONNECTION_LIST: {"producerGroup": NAMES},
    RequestCode.GET_ALL_PRODUCER_INFO: {},
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: {"topic": NAMES},
    RequestCode.GET_CONSUME_STATS: {"consumerGroup": NAMES, "topic": NAMES},
    RequestCode.GET_BROKER_CONSUME_STATS: {"isOrder": BOOLEANS},
    RequestCode.QUERY_CONSUME_TIME_SPAN: {"topic": NAMES, "group": NAMES},
    RequestCode.QUERY_CORRECTION_OFFSET: {"topic": NAMES, "compareGroup": NAMES, "filterGroups": NAMES},
    RequestCode.VIEW_BROKER_STATS_DATA: {
        "statsName": ["TOPIC_PUT_NUMS", "QUEUE_GET_NUMS", "GROUP_GET_FALL_SIZE", "", "x" * 300],
        "statsKey": ["T", "T@g", "0@T@g", "@", "@@", "", "ü@" * 9],
    },
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: {},
    RequestCode.LIST_CLIENTS: {"after": NAMES, "maxNums": NUMBERS, "clientId": NAMES},
    RequestCode.GET_CONSUMER_RUNNING_INFO: {
        "consumerGroup": NAMES,
        "clientId": NAMES,
        "jstackEnable": BOOLEANS,
    },
    RequestCode.CONSUME_MESSAGE_DIRECTLY: {"consumerGroup": NAMES, "clientId": NAMES, "msgId": NAMES},
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: {
        "topic": NAMES,
        "group": NAMES,
        "clientAddr": NAMES,
    },
    RequestCode.DELETE_TOPIC_IN_BROKER: {"topic": NAMES},
    RequestCode.CLEAN_UNUSED_TOPIC: {},
    RequestCode.UPDATE_BROKER_CONFIG: {},
    RequestCode.GET_BROKER_CONFIG: {},
    RequestCode.DELETE_SUBSCRIPTION_GROUP: {"groupName": NAMES, "removeOffset": BOOLEANS},
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: {
        "topic": NAMES,
        "group": NAMES,
        "timestamp": NUMBERS,
        "isForce": BOOLEANS,
    },
    RequestCode.CLONE_GROUP_OFFSET: {
        "srcGroup": NAMES,
        "destGroup": NAMES,
        "topic": NAMES,
        "offline": BOOLEANS,
    },
    RequestCode.GET_QUEUE_STATES: {"topic": NAMES},
    RequestCode.GET_QUEUE_BOUNDS: {"topic": NAMES, "generation": NAMES},
    RequestCode.ADD_QUEUES: {"topic": NAMES, "queueNums": NUMBERS},
    RequestCode.FREEZE_QUEUES: {"topic": NAMES, "queueIds": NUMBERS},
    RequestCode.THAW_QUEUES: {"topic": NAMES, "queueIds": NUMBERS},
    RequestCode.REMOVE_QUEUES: {"topic": NAMES, "queueNums": NUMBERS, "isForce": BOOLEANS},
    RequestCode.INTRODUCE_FRONT_END: {"name": NAMES, "token": NAMES},
    RequestCode.OPEN_SESSION: {},
    RequestCode.SUBSCRIBE_SESSION: {},
    RequestCode.UNSUBSCRIBE_SESSION: {},
    RequestCode.REPORT_PROGRESS: {},
    RequestCode.CLOSE_SESSION: {},
    RequestCode.READ_LIGHT_QUEUE: {
        "queueId": NUMBERS,
        "position": NUMBERS,
        "maxNums": ["7", *NUMBERS],
        "maxMsgBytes": ["7", *NUMBERS],
    },
    RequestCode.READ_RETAINED: {
        "filter": ["#", "a/#/b", *NAMES],
        "after": ["", "YQ==", "x", "9" * 40],
        "maxNums": ["7", *NUMBERS],
        "maxMsgBytes": ["7", *NUMBERS],
    },
    RequestCode.CLAIM_SESSIONS: {},
    RequestCode.JOIN_SHARES: {},
    RequestCode.REPORT_SHARES: {},
    RequestCode.REPORT_CLIENTS: {},
    RequestCode.CLAIM_EXCLUSIVE: {},
    RequestCode.LIST_FRONT_ENDS: {"isBrief": BOOLEANS},
    RequestCode.DRAIN_FRONT_END: {
        "frontEnd": NAMES,
        "isDraining": BOOLEANS,
        "perSecond": ["1", *NUMBERS],
        "serverReference": TEXTS,
        "hasMoved": BOOLEANS,
    },
    RequestCode.INSPECT: {"frontEnd": ["", "f", *NAMES], "name": ["", "connections", *NAMES]},
    RequestCode.LIST_SHARES: {"after": ["", "$share/g/a", *NAMES], "maxNums": ["7", *NUMBERS]},
    RequestCode.LIST_SESSIONS: {"after": NAMES, "prefix": NAMES, "maxNums": ["7", *NUMBERS]},
    RequestCode.GET_SESSION: {"clientId": ["c", *NAMES]},
    RequestCode.KICK_SESSION: {"clientId": ["c", *NAMES]},
    RequestCode.PURGE_SESSION: {"clientId": ["c", *NAMES]},
    RequestCode.END_TRANSACTION: {
        "producerGroup": NAMES,
        "tranStateTableOffset": NUMBERS,
        "commitLogOffset": NUMBERS,
        "commitOrRollback": ["8", "12", *NUMBERS],
        "fromTransactionCheck": BOOLEANS,
        "msgId": TEXTS,
    },
    RequestCode.RESUME_CHECK_HALF_MESSAGE: {"msgId": TEXTS},
    RequestCode.SEND_REPLY_MESSAGE: {**LONG_FIELDS, "unitMode": BOOLEANS},
    RequestCode.SEND_REPLY_MESSAGE_V2: SEND_FIELDS,
    RequestCode.CONSUMER_SEND_MESSAGE_BACK: {
        "offset": NUMBERS,
        "group": NAMES,
        "delayLevel": NUMBERS,
        "maxReconsumeTimes": NUMBERS,
    },
}
ALLOWED = {30101, 29, 206, 208, 209, 210, 211, 27, 28, 0, 1, 13, 14, 16, 17, 19, 20, 21, 22, 23, 24, 25, 26}


class FakeConnection:
    peer = ("127.0.0.1", 5000)
    is_congested = False

    def __init__(self) -> None:
        self.replies: list[Command] = []

    def reply(self, response: Command) -> None:
        self.replies.append(response)

    def send_oneway(self, command: Command) -> None:
        pass


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    store = Store.open(tmp_path, StoreSettings(segment_bytes=16 << 20), store_host=HOST)
    settings = BrokerSettings(listen_port=0, registries=())
    broker = Broker(settings, store, directory=tmp_path, store_host=HOST, clock=ManualClock())
    await broker.start()
    broker.topics.ensure("T", queues=4)
    yield broker
    await broker.stop()
    assert store.check() == []
    store.close()


def handle(broker: Broker, connection: Any, request: Command) -> Command | None:
    """As the listener does it; any other exception fails the test."""
    try:
        return broker.requests.handle(connection, request)
    except RequestError as error:
        return request.reply(error.code, remark=str(error))


def some_request(chance: random.Random, code: int) -> Command:
    """Mostly good fields, so that the checks behind the first are reached as well."""
    ext: dict[str, str] = {}
    for name, values in FIELDS[code].items():
        roll = chance.random()
        if roll < 0.75:
            ext[name] = values[0]
        elif roll < 0.97:
            ext[name] = chance.choice(values)
    request = Command.request(code, ext, chance.choice(BODIES), oneway=chance.random() < 0.1)
    request.version = chance.choice([0, 120, 409])
    return request


@pytest.mark.parametrize("code", sorted(FIELDS))
async def test_whatever_comes_is_answered_with_a_code_of_the_protocol(broker: Broker, code: int) -> None:
    chance = random.Random(code)
    connection: Any = FakeConnection()
    if code in range(RequestCode.OPEN_SESSION, RequestCode.CLAIM_SESSIONS + 1):
        words = {"name": "front", "token": "t"}
        assert broker.requests.handle(connection, Command.request(RequestCode.INTRODUCE_FRONT_END, words))
    # Something to be found by whoever asks well.
    good = {name: values[0] for name, values in SEND_FIELDS.items()}
    for body in (b"one", b"two"):
        assert broker.requests.handle(connection, Command.request(RequestCode.SEND_MESSAGE_V2, good, body))
    for _ in range(ROUNDS):
        request = some_request(chance, code)
        response = handle(broker, connection, request)
        # Answers that take long go on in the turns of the loop.
        await asyncio.sleep(0)
        if response is not None:
            assert response.code in ALLOWED, request
            assert response.opaque == request.opaque
            assert response.code == 0 or response.remark, request
    broker.requests.connection_lost(connection)
    assert len(broker.native.parked_pulls) == 0


async def test_every_code_of_the_broker_is_in_this_test(broker: Broker) -> None:
    gateways = range(RequestCode.ATTACH_FILTERS, RequestCode.PUBLISH_TRANSIENT + 1)
    native = [code for code in broker.requests.codes if code not in gateways]
    assert sorted(FIELDS) == native
