"""Options of a write: what they take, and what an error says."""

from __future__ import annotations

import pytest

from iotmq.bridge.sink.options import BATCH_ID_MAX, parse_sink_options
from iotmq.errors import ConfigError
from iotmq.limits import RECORD_BYTES_MAX

SERVERS = {"iotmq.bootstrap.servers": "127.0.0.1:9876"}


def test_what_is_not_given_has_a_default_and_names_are_taken_in_any_case() -> None:
    plain = parse_sink_options(SERVERS, streaming=True)
    assert plain.connection.registries == (("127.0.0.1", 9876),)
    assert (plain.topic, plain.batch, plain.batch_bytes, plain.in_flight_bytes) == (
        "",
        None,
        524_288,
        4_194_304,
    )
    given = SERVERS | {
        "TOPIC": "T", "producerid": "p", "BatchId": "7", "batchBytes": "4096", "inFlightBytes": "5000",
        "retryTimeoutMs": "1", "accessKey": "a", "secretKey": "hidden", "tls": "true", "tlsCaFile": "f",
    }  # fmt: skip
    found = parse_sink_options(given, streaming=False)
    assert (found.topic, found.producer, found.batch, found.batch_bytes) == ("T", "p", 7, 4_096)
    assert (found.in_flight_bytes, found.connection.retry_timeout_s) == (5_000, 0.001)
    assert found.connection.is_encrypted
    assert "hidden" not in repr(found)
    assert parse_sink_options(SERVERS | {"checkpointLocation": "x"}, streaming=True) == plain


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("topik", "x", "did you mean topic"),
        ("path", "x", "unknown option 'path'"),
        ("topic", "no such topic!", "option topic: invalid topic name"),
        ("producerId", "a b", "option producerId is 1 to 100"),
        ("producerId", "a" * 101, "option producerId is 1 to 100"),
        ("producerId", "a", "both of the options"),
        ("batchId", "1", "both of the options"),
        ("batchBytes", "4095", "at least 4096"),
        ("batchBytes", str(RECORD_BYTES_MAX + 1), f"at most {RECORD_BYTES_MAX}"),
        ("inFlightBytes", str(256 * 1024 * 1024 + 1), "at most 268435456"),
        ("iotmq.bootstrap.servers", "", "is needed"),
    ],
)
def test_wrong_options_are_named(option: str, value: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_sink_options(SERVERS | {option: value}, streaming=False)


def test_a_stream_has_the_name_and_numbers_of_its_query() -> None:
    named = SERVERS | {"producerId": "a" * 100, "batchId": str(BATCH_ID_MAX)}
    assert parse_sink_options(named, streaming=False).batch == BATCH_ID_MAX
    with pytest.raises(ConfigError, match="for batch writes"):
        parse_sink_options(named, streaming=True)
    with pytest.raises(ConfigError, match=f"at most {BATCH_ID_MAX}"):
        parse_sink_options(named | {"batchId": str(BATCH_ID_MAX + 1)}, streaming=False)
