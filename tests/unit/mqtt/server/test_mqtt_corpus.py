"""The corpora in the connection core beside its twin: whole, byte by byte, cut, and with bytes behind."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fake_gateway import split_output
from mqtt_cases import VERSIONS, Version, check_told
from mqtt_comparison import check_against_twin
from mqtt_core import PACKET_BYTES_MAX, feed
from mqtt_corpus import CONNECT, Case
from mqtt_oracle import Outcome

from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.packets import Connect

# By version: every named case alone, and those made from tables in groups.
CASES = [
    pytest.param(version, cases, id=f"{version.name}-{name}")
    for version in VERSIONS
    for name, cases in [*((case.name, [case]) for case in version.named), *version.made.items()]
]
NAMED = [
    pytest.param(version, case, id=f"{version.name}-{case.name}")
    for version in VERSIONS
    for case in version.named
]
GOOD = [
    pytest.param(version, case, id=f"{version.name}-{case.name}")
    for version in VERSIONS
    for case in version.good
]


def byte_by_byte(stream: bytes) -> list[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


def check(chunks: Sequence[bytes]) -> Outcome:
    return check_against_twin(chunks, packet_bytes_max=PACKET_BYTES_MAX)


@pytest.mark.parametrize(("version", "cases"), CASES)
def test_every_case_ends_or_goes_on_as_specified_at_once_and_byte_by_byte(
    version: Version, cases: list[Case]
) -> None:
    for case in cases:
        stream = version.stream(case)
        for chunks in ([stream], byte_by_byte(stream)):
            outcome = check(chunks)
            assert outcome.close_reason == case.reason, case.name
            if case not in version.named:
                assert not outcome.published, case.name
            check_told(case, stream, feed(chunks).output)


@pytest.mark.parametrize(("version", "case"), NAMED)
def test_bytes_behind_a_case_are_read_unless_it_ends_the_connection(version: Version, case: Case) -> None:
    stream = version.stream(case)
    alone, outcome = check([stream]), check([stream + packets.PINGREQ_PACKET + b"\x30"])
    assert outcome.close_reason == case.reason
    assert outcome.published == alone.published
    pongs = [one.output.count(packets.PINGRESP_PACKET) for one in (alone, outcome)]
    assert pongs[1] - pongs[0] == (case.reason is None)


@pytest.mark.parametrize(("version", "case"), GOOD)
def test_every_truncation_of_a_good_stream_waits_for_the_rest(version: Version, case: Case) -> None:
    stream = version.stream(case)
    for end in cuts(len(stream)):
        assert feed([stream[:end]]).close_reason is None


@pytest.mark.slow
@pytest.mark.parametrize(("version", "case"), GOOD)
def test_every_packet_cut_short_is_malformed_unless_the_rest_may_be_left_out(
    version: Version, case: Case
) -> None:
    """The remaining length says what is there: a packet that ends in the middle of a field."""
    first, body = split_output(case.stream)[0]
    kind = first >> 4
    for end in cuts(len(body)):
        stream = version.stream(case._replace(stream=packets.encode_packet(kind, first & 15, body[:end])))
        outcome = check([stream])
        if len(stream) < 1_000:
            check(byte_by_byte(stream))
        if kind == packets.CONNECT:
            assert outcome.close_reason == reason_codes.MALFORMED_PACKET, end
        elif kind in (packets.SUBSCRIBE, packets.UNSUBSCRIBE):
            # Between two filters, where the packet is right, or has none.
            assert outcome.close_reason in (reason_codes.MALFORMED_PACKET, reason_codes.PROTOCOL_ERROR, None)


def cuts(size: int) -> list[int]:
    """Everywhere, but of a long packet only some places in the middle."""
    return [end for end in range(size) if end < 300 or end >= size - 300 or end % 97 == 0]


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
