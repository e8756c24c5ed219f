"""Every malformed packet that tables of the specifications make, in the core: at once and byte by byte."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fake_gateway import split_output
from mqtt5_corpus import CONNECT5
from mqtt_core import PACKET_BYTES_MAX, feed
from mqtt_corpus import CONNECT, CORPUS, Case
from mqtt_malformed import MALFORMED_5, MALFORMED_31, MALFORMED_311
from mqtt_oracle import run_connection

from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect


def chunkings(stream: bytes) -> tuple[Sequence[bytes], Sequence[bytes]]:
    return [stream], [stream[at : at + 1] for at in range(len(stream))]


def check_end(case: Case, first: bytes, *, is_v5: bool) -> None:
    """The connection ends with the case's reason, and MQTT 5 is told its code in the last packet."""
    stream = case.stream if case.is_first else first + case.stream
    for chunks in chunkings(stream):
        outcome = feed(chunks)
        assert outcome.close_reason == case.reason, case.name
        assert not outcome.published, case.name
        if not is_v5:
            # All that 3.1.1 can say is a refusing CONNACK.
            expected = run_connection(stream, packet_bytes_max=PACKET_BYTES_MAX).output
            assert outcome.output == expected, case.name
        elif case.reason is not None:
            told = split_output(outcome.output)
            kind, code_at = (packets.CONNACK, 1) if case.is_first else (packets.DISCONNECT, 0)
            assert told[-1][0] == kind << 4, case.name
            assert told[-1][1][code_at] == case.reason.v5_code, case.name
            assert len(told) == (1 if case.is_first else 2), case.name


@pytest.mark.parametrize("group", MALFORMED_5)
def test_malformed_packets_of_mqtt_5_end_with_the_code_the_specification_has(group: str) -> None:
    for case in MALFORMED_5[group]:
        check_end(case, CONNECT5, is_v5=case.name != "CONNECT of 3.1.1, padded length")


@pytest.mark.parametrize("group", MALFORMED_31)
def test_malformed_packets_of_mqtt_3_1_end_the_connection(group: str) -> None:
    connect = packets.encode_connect(Connect("device-1", True, 60, None, None, None, 3))
    for case in MALFORMED_31[group]:
        check_end(case, connect, is_v5=False)


@pytest.mark.parametrize("group", MALFORMED_311)
def test_malformed_packets_of_mqtt_3_1_1_end_the_connection(group: str) -> None:
    for case in MALFORMED_311[group]:
        check_end(case, CONNECT, is_v5=False)


@pytest.mark.parametrize("case", [case for case in CORPUS if case.reason is None], ids=lambda case: case.name)
def test_every_packet_of_mqtt_3_1_1_cut_short_gives_what_the_oracle_gives(case: Case) -> None:
    """A packet whose remaining length ends in the middle of a field."""
    first, body = split_output(case.stream)[0]
    for end in range(len(body)):
        cut = packets.encode_packet(first >> 4, first & 15, body[:end])
        stream = cut if case.is_first else CONNECT + cut
        expected = run_connection(stream, packet_bytes_max=PACKET_BYTES_MAX)
        for chunks in chunkings(stream):
            outcome = feed(chunks)
            assert outcome.close_reason == expected.close_reason, end
            assert outcome.events == expected.events
            assert outcome.published == expected.published
        if first >> 4 == packets.CONNECT:
            assert expected.close_reason is not None, end


def test_text_is_neither_stripped_nor_normalized() -> None:
    """[MQTT-1.5.4-3], [MQTT-4.7.3-4]: U+FEFF stays, and so does what only looks alike."""
    names = ["\ufeffa", "a\ufeff", "é", "e\u0301", "a//b", "/a/", " a ", "A", "ſ", "\ufdd0", "\U0010ffff"]
    stream = b"".join(packets.encode_publish(name, b"x") for name in names)
    subscribe = packets.encode_subscribe(1, [(name, 0) for name in names])
    outcome = feed([CONNECT + stream + subscribe])
    assert [one[0] for one in outcome.published] == names
    assert [name for name, _ in outcome.events[1].subscriptions] == names  # type: ignore[union-attr]
    connect = packets.encode_connect(Connect("\ufeffd", True, 0, None, "\ufeffu", None))
    assert feed([connect]).events[0][0] == "\ufeffd"
