"""Messages: what is stored of them, and what comes back."""

from __future__ import annotations

import pytest

from iotmq.client.transport.message import Message, ReceivedMessage, check_group, check_topic
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.subscriptions import consumer_data, encode_heartbeat, parse_subscription
from iotmq.errors import MessageRefusedError, SubscriptionError
from iotmq.limits import PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX
from iotmq.message.bodies import compress_body
from iotmq.message.errors import MessageFormatError
from iotmq.message.properties import decode_properties
from iotmq.message.records.record import decode_record, encode_record

QUEUE = MessageQueue("T", "b", 0)


def received(**fields) -> ReceivedMessage:
    return ReceivedMessage(QUEUE, decode_record(encode_record(**{"topic": "T", "body": b"x", **fields})))


def test_key_comes_first_among_the_keys() -> None:
    message = Message(
        "T", b"", key="device-1", keys=("a", "b"), tags="t", properties={"own": "1"}, delay_level=3
    )
    assert decode_properties(message.encoded_properties("ID")) == {
        "own": "1",
        "KEYS": "device-1 a b",
        "TAGS": "t",
        "UNIQ_KEY": "ID",
        "DELAY": "3",
    }


def test_wait_is_stored_only_when_not_wanted() -> None:
    assert b"WAIT" not in Message("T", b"").encoded_properties("")
    assert decode_properties(Message("T", b"", wait_stored=False).encoded_properties("")) == {"WAIT": "false"}


@pytest.mark.parametrize("value", ["a\x01b", "a\x02b", "\ud800"])
def test_a_property_that_cannot_be_stored_is_refused(value: str) -> None:
    with pytest.raises(MessageRefusedError, match="cannot be stored"):
        Message("T", b"", properties={"p": value}).encoded_properties("")


def test_properties_at_the_limit_pass_and_one_past_it_do_not() -> None:
    room = PROPERTIES_BYTES_MAX - len(b"p\x01\x02")
    assert len(Message("T", b"", properties={"p": "x" * room}).encoded_properties("")) == PROPERTIES_BYTES_MAX
    with pytest.raises(MessageRefusedError, match="put large values in the body"):
        Message("T", b"", properties={"p": "x" * (room + 1)}).encoded_properties("")


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "ä", "x" * (TOPIC_BYTES_MAX + 1)])
def test_names_no_broker_takes_are_refused(topic: str) -> None:
    with pytest.raises(MessageRefusedError, match="invalid topic name"):
        check_topic(topic)


def test_names_at_the_limit_pass() -> None:
    check_topic("x" * TOPIC_BYTES_MAX)
    check_topic("%RETRY%a-b_c|d")
    check_group("g" * (TOPIC_BYTES_MAX - 7))
    with pytest.raises(MessageRefusedError, match="invalid group name"):
        check_group("g" * (TOPIC_BYTES_MAX - 6))


def test_a_received_message_shows_what_was_sent() -> None:
    properties = Message("T", b"", key="k", keys=["l"], tags="t").encoded_properties("ID")
    message = received(properties=properties, flag=7, queue_offset=5, reconsume_times=2, born_timestamp_ms=9)
    assert (message.keys, message.tags, message.message_id) == (["k", "l"], "t", "ID")
    assert (message.flag, message.queue_offset, message.redeliveries) == (7, 5, 2)
    assert (message.body, message.topic, message.born_timestamp_ms) == (b"x", "T", 9)


def test_without_a_unique_key_the_place_in_the_log_is_the_id() -> None:
    message = received(position=4096, store_host=bytes.fromhex("7f00000100002a9f"))
    assert message.message_id == "7F00000100002A9F0000000000001000"
    assert (message.keys, message.tags) == ([], "")


def test_a_redelivered_message_shows_its_first_topic() -> None:
    assert received(topic="%RETRY%g", properties=b"RETRY_TOPIC\x01orders\x02").topic == "orders"
    assert received(topic="%RETRY%g").topic == "%RETRY%g"


def test_a_compressed_body_is_inflated_when_asked_for() -> None:
    body, sys_flag = compress_body(b"abc" * 1000)
    assert sys_flag == 0x301
    assert received(body=body, sys_flag=sys_flag).body == b"abc" * 1000
    broken = received(body=body[:-5], sys_flag=sys_flag)
    with pytest.raises(MessageFormatError):
        _ = broken.body


def test_subscriptions() -> None:
    everything = parse_subscription("T", " ", 1)
    assert everything.expression == "*"
    assert everything.accepts("x")
    two = parse_subscription("T", "TagA||  TagB ", 1)
    assert two.expression == "TagA || TagB"
    assert two.accepts("TagB")
    assert not two.accepts("TagC")
    assert not two.accepts("")
    with pytest.raises(SubscriptionError, match="names no tag"):
        parse_subscription("T", "||", 1)


def test_the_heartbeat_says_what_brokers_ask_for() -> None:
    data = consumer_data(
        "cg",
        [parse_subscription("T", "TagA || TagB", 17)],
        is_push=True,
        model="clustering",
        consume_from="last",
    )
    assert encode_heartbeat("me@1", ["pg"], [data]) == (
        b'{"clientID":"me@1","producerDataSet":[{"groupName":"pg"}],"consumerDataSet":[{"groupName":"cg",'
        b'"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
        b'"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","subscriptionDataSet":[{"topic":"T",'
        b'"subString":"TagA || TagB","tagsSet":["TagA","TagB"],"codeSet":[2598919,2598920],"subVersion":17,'
        b'"expressionType":"TAG","classFilterMode":false}],"unitMode":false}]}'
    )
