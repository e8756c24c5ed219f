"""Packets in fields: what they say, and nothing of what is secret in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_gateway import split_output

from iotmq import limits
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect, Will
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt_front.tracing.packet_facts import (
    Facts,
    cut,
    packet_facts,
    packet_name,
    publish_parts,
    shown_topic,
)

SECRET = "s3cret-token"


def facts_of(packet: bytes, *, level: int = 5, is_sent: bool = False) -> Facts:
    ((first, body),) = split_output(packet)
    return packet_facts(first, body, len(body), level, is_sent=is_sent)


def connect(**fields: Any) -> Facts:
    wanted = Connect("c", True, 30, None, "anna", SECRET.encode(), 5)._replace(**fields)
    return facts_of(packets.encode_connect(wanted))


def test_a_connect_is_told_without_its_secrets() -> None:
    properties = Properties(
        session_expiry_s=60,
        receive_max=7,
        authentication_method="SCRAM-SHA-256",
        authentication_data=SECRET.encode(),
        user_properties=(("token", SECRET),),
    )
    will = Will(
        "left/c", SECRET.encode(), 1, True, Properties(will_delay_s=5, user_properties=(("k", SECRET),))
    )
    facts = connect(properties=properties, will=will)
    assert SECRET not in json.dumps(facts)
    assert facts == {
        "bytes": facts["bytes"],
        "client_id": "c",
        "protocol_level": 5,
        "clean_session": True,
        "keep_alive_s": 30,
        "user": "anna",
        "has_password": True,
        "session_expiry_s": 60,
        "authentication_method": "SCRAM-SHA-256",
        "receive_max": 7,
        "authentication_data_bytes": len(SECRET),
        "user_property_names": ["token"],
        "will_topic": "left/c",
        "will_qos": 1,
        "will_retain": True,
        "will_payload_bytes": len(SECRET),
        "will_delay_s": 5,
    }


def test_a_user_name_that_is_a_token_is_cut() -> None:
    token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJkIn0.c2lnbmF0dXJlLW9mLXRoZS10b2tlbg"
    assert token[30:] not in json.dumps(connect(user_name=token))


def test_an_exchange_is_told_by_its_sizes() -> None:
    properties = Properties(
        authentication_method="X", authentication_data=SECRET.encode(), user_properties=(("t", SECRET),)
    )
    packet = packets.encode_auth(0x18, properties)
    for is_sent in (False, True):
        facts = facts_of(packet, is_sent=is_sent)
        assert SECRET not in json.dumps(facts)
        assert (facts["reason"], facts["authentication_data_bytes"]) == ("continue authentication (0x18)", 12)


def test_the_token_of_a_reply_topic_is_left_out() -> None:
    assert shown_topic("$reply/YWJj") == "$reply/..."
    facts = facts_of(packets.encode_publish("a", b"", properties=Properties(response_topic="$reply/YWJj")))
    assert facts["response_topic"] == "$reply/..."


def test_a_publish_is_told_without_its_content() -> None:
    properties = Properties(
        message_expiry_s=9, content_type="text", user_properties=(("k", SECRET),), correlation_data=b"12"
    )
    packet = packets.encode_publish(
        "a/b", SECRET.encode(), qos=1, packet_id=3, retain=True, dup=True, properties=properties
    )
    facts = facts_of(packet)
    assert SECRET not in json.dumps(facts)
    assert facts == {
        "bytes": facts["bytes"],
        "qos": 1,
        "retain": True,
        "dup": True,
        "packet_id": 3,
        "message_expiry_s": 9,
        "content_type": "text",
        "correlation_data_bytes": 2,
        "user_properties_count": 1,
        "payload_bytes": len(SECRET),
    }
    ((first, body),) = split_output(packet)
    assert publish_parts(first, body, 5) == ((("k", SECRET),), SECRET.encode())
    ((first, body),) = split_output(packets.encode_publish("a/b", b"12345"))
    assert publish_parts(first, body, 4) == ((), b"12345")
    assert publish_parts(first, b"\0", 4) == ((), b"")


def test_a_payload_that_is_not_looked_at_whole_has_its_size() -> None:
    ((first, body),) = split_output(packets.encode_publish("a", b"x" * 100_000))
    facts = packet_facts(first, body[: limits.MQTT_TRACE_PACKET_BYTES_MAX], len(body), 4, is_sent=False)
    assert facts["payload_bytes"] == 100_000


def test_other_packets_are_told() -> None:
    subscribe = packets.encode_subscribe(
        7, [("a/#", 1), ("b", 0x2E)], Properties(subscription_identifiers=(4,))
    )
    assert facts_of(subscribe) == {
        "bytes": len(subscribe) - 2,
        "packet_id": 7,
        "filters": ["a/# QoS 1", "b QoS 2, no local, retain as published, retain handling 2"],
        "identifier": 4,
    }
    assert facts_of(packets.encode_unsubscribe(8, ["a"]), level=4) == {
        "bytes": 5,
        "packet_id": 8,
        "filters": ["a"],
    }
    suback = packets.encode_suback(7, [1, 0x87], Properties(reason_string="why"))
    assert facts_of(suback, is_sent=True)["codes"] == ["QoS 1", "not authorized (0x87)"]
    assert facts_of(suback, is_sent=True)["reason_string"] == "why"
    refused = packets.encode_connack(0x87, session_present=False, properties=Properties(reason_string="no"))
    assert facts_of(refused, is_sent=True)["reason"] == "not authorized (0x87)"
    assert facts_of(packets.encode_connack(0, session_present=True), level=4, is_sent=True) == {
        "bytes": 2,
        "session_present": True,
        "reason_code": 0,
    }
    assert facts_of(packets.encode_disconnect(0x8E), is_sent=True)["reason"] == "session taken over (0x8E)"
    assert facts_of(packets.encode_acknowledgement(packets.PUBACK, 9, 0x10)) == {
        "bytes": 3,
        "packet_id": 9,
        "reason_code": 16,
        "reason": "no matching subscribers (0x10)",
    }
    assert facts_of(packets.PINGREQ_PACKET) == {"bytes": 0}
    assert packet_name(0xF0) == "AUTH"
    assert packet_name(0x00) == "type 0"


@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("level", [4, 5])
def test_anything_that_comes_is_told_somehow(level: int, is_sent: bool) -> None:
    """Before a packet is checked it may be anything."""
    for first in range(256):
        for body in (b"", b"\0", b"\xff" * 40, b"\0\1a" * 9, b"\0\4MQTT\5\xff\0\0"):
            facts = packet_facts(first, body, len(body), level, is_sent=is_sent)
            assert facts["bytes"] == len(body)
    assert packet_facts(0x82, b"\0\1", 90_000, level, is_sent=False) == {"bytes": 90_000, "is_cut": True}


def test_texts_and_lists_are_cut() -> None:
    longest = "x" * limits.MQTT_TRACE_TEXT_CHARACTERS_MAX
    assert cut(longest) == longest
    assert cut(longest + "y") == f"{longest}... ({len(longest) + 1} characters)"
    packet = packets.encode_unsubscribe(1, [f"t/{number}" for number in range(100)])
    filters = facts_of(packet, level=4)["filters"]
    assert isinstance(filters, list)
    assert (len(filters), filters[-1]) == (17, "... (100 in all)")
