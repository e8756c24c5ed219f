"""The connection core beside its slow twin: the same stream has to give the same."""

from __future__ import annotations

from collections.abc import Sequence

from fake_gateway import split_output
from mqtt_core import feed
from mqtt_oracle import Outcome, run_connection, shortened

from iotmq.mqtt.codec import packets


def check_against_twin(chunks: Sequence[bytes], *, packet_bytes_max: int) -> Outcome:
    """What the twin says of the stream; AssertionError where the core says something else."""
    expected = run_connection(b"".join(chunks), packet_bytes_max=packet_bytes_max)
    outcome = feed(chunks, packet_bytes_max=packet_bytes_max)
    assert outcome.close_reason == expected.close_reason
    assert outcome.events == expected.events
    assert outcome.published == expected.published
    # Acknowledgements come at the end of a chunk here and packet by packet there.
    assert by_kind(outcome.output, expected) == by_kind(expected.output, expected)
    if all(len(chunk) < 2 for chunk in chunks):
        assert b"".join(shortened(*one) for one in split_output(outcome.output)) == expected.output
    return expected


def by_kind(output: bytes, expected: Outcome) -> dict[int, list[bytes]]:
    """The answers, sorted by packet type; PUBACK and PUBREC together, whose order is that of the messages.

    Those to messages of the last chunk are not sent when the chunk ends the connection.
    """
    found: dict[int, list[bytes]] = {}
    for first, body in split_output(output):
        kind = first >> 4
        is_acknowledgement = kind in (packets.PUBACK, packets.PUBREC)
        if not (is_acknowledgement and expected.close_reason is not None):
            found.setdefault(packets.PUBACK if is_acknowledgement else kind, []).append(
                shortened(first, body)
            )
    return found
