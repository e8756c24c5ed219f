"""Options of format iotmq."""

from __future__ import annotations

from pathlib import Path

import pytest

from iotmq import limits
from iotmq.bridge.offsets import QueueKey
from iotmq.bridge.options.reading import (
    EARLIEST,
    LATEST,
    PULL_BYTES_MIN,
    SourceOptions,
    parse_options,
    wants_headers,
)
from iotmq.errors import ConfigError

NEEDED = {"iotmq.bootstrap.servers": "127.0.0.1:9876", "subscribe": "t"}
A0 = QueueKey("t", "broker-a", 0)
B0 = QueueKey("t", "broker-b", 0)


def parsed(streaming: bool = True, **options: str) -> SourceOptions:
    return parse_options(NEEDED | options, streaming=streaming)


def refused(options: dict[str, str], streaming: bool = True) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_options(options, streaming=streaming)
    return str(caught.value)


def test_defaults_are_those_of_the_kafka_connector() -> None:
    stream, batch = parsed(), parsed(streaming=False)
    assert stream.starting.everywhere == LATEST
    assert batch.starting.everywhere == EARLIEST
    assert batch.ending.everywhere == LATEST
    assert stream.fail_on_data_loss
    assert not stream.include_headers
    assert stream.offsets_per_trigger_max is None
    assert stream.partitions_min is None
    assert stream.combine_rows == 0
    assert stream.connection.registries == (("127.0.0.1", 9876),)
    assert stream.subscription.topics == ("t",)


def test_names_are_accepted_in_any_case_as_spark_hands_them_over() -> None:
    options = {"IOTMQ.Bootstrap.Servers": "h", "SUBSCRIBE": "t", "failondataloss": "False"}
    assert not parse_options(options, streaming=True).fail_on_data_loss


def test_an_unknown_option_is_named_with_the_likely_one() -> None:
    assert "did you mean failOnDataLoss?" in refused(NEEDED | {"failOnDataLos": "true"})
    assert "startingOffsets" in refused(NEEDED | {"zzz": "1"})


def test_several_registries_and_topics() -> None:
    options = parse_options(
        {"iotmq.bootstrap.servers": "a:1, b ; [::1]:2", "subscribe": " t, u ,t"}, streaming=True
    )
    assert options.connection.registries == (("a", 1), ("b", 9876), ("::1", 2))
    assert options.subscription.topics == ("t", "u")


@pytest.mark.parametrize("servers", ["", " , ", "a:b", "a:0", "a:65536", "::1", "a b", "http://x"])
def test_bad_addresses_name_the_option(servers: str) -> None:
    assert "iotmq.bootstrap.servers" in refused({**NEEDED, "iotmq.bootstrap.servers": servers})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subscribe": "t", "assign": '{"t": [0]}'},
        {"subscribe": "t", "subscribePattern": "t.*"},
        {"subscribe": " , "},
        {"subscribePattern": "("},
        {"assign": "t"},
        {"assign": '{"t": []}'},
        {"assign": '{"t": 0}'},
        {"assign": '{"t": ["x"]}'},
    ],
)
def test_exactly_one_good_subscription_is_needed(options: dict[str, str]) -> None:
    text = refused({"iotmq.bootstrap.servers": "h", **options})
    assert "subscribe" in text or "assign" in text


def test_assigned_queues_are_read_and_no_others() -> None:
    options = parse_options(
        {"iotmq.bootstrap.servers": "h", "assign": '{"u": ["broker-a:0", 2], "t": [1]}'}, streaming=True
    )
    wants = options.subscription.wants
    assert options.subscription.topics == ("t", "u")
    assert wants(QueueKey("u", "broker-a", 0))
    assert not wants(QueueKey("u", "broker-b", 0))
    assert wants(QueueKey("u", "broker-b", 2))
    assert not wants(A0)


def test_offsets_per_queue_may_leave_out_the_broker() -> None:
    starting = parsed(startingOffsets='{"t": {"0": 23, "broker-b:0": -1}}').starting
    assert starting.offsets is not None
    assert starting.offsets.find(A0) == 23
    assert starting.offsets.find(B0) == LATEST
    assert starting.offsets.find(QueueKey("t", "broker-a", 1)) is None
    assert starting.offsets.unmatched([A0]) == ["t broker-b:0"]
    assert starting.offsets.unmatched([A0, B0]) == []


def test_a_timestamp_goes_before_timestamps_per_queue_and_those_before_offsets() -> None:
    everything = {
        "startingTimestamp": "5",
        "startingOffsetsByTimestamp": '{"t": {"0": 6}}',
        "startingOffsets": "earliest",
    }
    assert parsed(**everything).starting.timestamp_ms == 5
    del everything["startingTimestamp"]
    starting = parsed(**everything).starting
    assert starting.timestamp_ms is None
    assert starting.timestamps is not None
    assert starting.timestamps.find(A0) == 6


@pytest.mark.parametrize(
    ("options", "is_stable"),
    [
        ({}, False),
        ({"startingOffsets": "earliest"}, True),
        ({"startingOffsets": "LATEST"}, False),
        ({"startingOffsets": '{"t": {"0": 3, "1": -2}}'}, True),
        ({"startingOffsets": '{"t": {"0": 3, "1": -1}}'}, False),
        ({"startingTimestamp": "5"}, False),
        ({"startingOffsetsByTimestamp": '{"t": {"0": 6}}'}, False),
    ],
)
def test_only_starts_that_stay_the_same_are_stable(options: dict[str, str], is_stable: bool) -> None:
    assert parsed(**options).starting.is_stable is is_stable


@pytest.mark.parametrize(
    "text", ["now", "{}", "[]", '{"t": 5}', '{"t": {"0": -3}}', '{"t": {"0": true}}', '{"t": {"x": 1}}']
)
def test_bad_starting_offsets_say_what_is_taken(text: str) -> None:
    assert "startingOffsets" in refused(NEEDED | {"startingOffsets": text})


def test_a_batch_neither_starts_at_the_end_nor_ends_at_the_beginning() -> None:
    assert "startingOffsets" in refused(NEEDED | {"startingOffsets": "latest"}, streaming=False)
    assert "startingOffsets" in refused(NEEDED | {"startingOffsets": '{"t": {"0": -1}}'}, streaming=False)
    assert "endingOffsets" in refused(NEEDED | {"endingOffsets": "earliest"}, streaming=False)
    assert "endingOffsets" in refused(NEEDED | {"endingOffsets": '{"t": {"0": -2}}'}, streaming=False)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    assert name in refused(NEEDED | {name: "5"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "-1"),
        ("maxOffsetsPerTrigger", "many"),
        ("maxOffsetsPerTrigger", "1" * 19),
        ("minPartitions", "0"),
        ("combineRows", "-1"),
        ("failOnDataLoss", "yes"),
        ("includeHeaders", ""),
        ("startingTimestamp", "yesterday"),
        ("startingOffsetsByTimestampStrategy", "nearest"),
        ("groupIdPrefix", "a b"),
        ("groupIdPrefix", ""),
        ("requestTimeoutMs", "0"),
    ],
)
def test_bad_values_name_their_option(name: str, value: str) -> None:
    assert name in refused(NEEDED | {name: value})


def test_pull_bytes_within_its_limits() -> None:
    assert parsed(pullBytes=str(limits.PULL_BYTES_MAX)).pull_bytes == limits.PULL_BYTES_MAX
    assert parsed(pullBytes=str(PULL_BYTES_MIN)).pull_bytes == PULL_BYTES_MIN
    assert "pullBytes" in refused(NEEDED | {"pullBytes": str(limits.PULL_BYTES_MAX + 1)})
    assert "pullBytes" in refused(NEEDED | {"pullBytes": str(PULL_BYTES_MIN - 1)})


def test_group_prefix_within_its_limit() -> None:
    assert parsed(groupIdPrefix="g" * 200).group_prefix == "g" * 200
    assert "groupIdPrefix" in refused(NEEDED | {"groupIdPrefix": "g" * 201})


def test_headers_are_known_before_the_other_options() -> None:
    assert wants_headers({"INCLUDEHEADERS": "true"})
    assert not wants_headers({})


def test_an_account_and_tls_are_off_until_they_are_given_and_the_secret_is_not_shown() -> None:
    plain = parsed().connection
    assert (plain.access_key, plain.is_encrypted, plain.ca_file) == ("", False, "")
    given = parsed(accessKey="account", secretKey="very-secret", tls="true", tlsCaFile="/etc/roots.pem")
    assert (given.connection.access_key, given.connection.secret_key) == ("account", "very-secret")
    assert (given.connection.is_encrypted, given.connection.ca_file) == (True, "/etc/roots.pem")
    assert "very-secret" not in repr(given)


def test_a_secret_may_be_in_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_text("in a file\n")
    file.chmod(0o600)
    monkeypatch.setenv("BROKER_SECRET", "in a variable")
    for name, value, secret in (
        ("secretKey", "given", "given"),
        ("secretKeyFile", str(file), "in a file"),
        ("secretKeyVariable", "BROKER_SECRET", "in a variable"),
    ):
        options = parsed(accessKey="a", **{name: value})
        assert options.connection.secret_key == secret
        assert secret not in repr(options)
        assert secret not in repr(options.connection.secret_key)


def test_a_secret_that_cannot_be_had_or_is_given_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"option secretKeyFile: .*no-such-file cannot be read"):
        parsed(secretKeyFile=str(tmp_path / "no-such-file"))
    with pytest.raises(ConfigError, match="secretKeyVariable: there is no environment variable NO_SUCH"):
        parsed(secretKeyVariable="NO_SUCH")
    with pytest.raises(ConfigError, match="one of the options secretKey and secretKeyFile"):
        parsed(secretKey="a", secretKeyFile="b")


def test_a_certificate_goes_with_encryption_and_a_key_with_a_certificate() -> None:
    options = parsed(tls="true", tlsCertFile="c.pem", tlsKeyFile="k.pem")
    assert (options.connection.certificate_file, options.connection.key_file) == ("c.pem", "k.pem")
    with pytest.raises(ConfigError, match="tlsCertFile goes with tls=true"):
        parsed(tlsCertFile="c.pem")
    with pytest.raises(ConfigError, match="tlsKeyFile goes with tlsCertFile"):
        parsed(tls="true", tlsKeyFile="k.pem")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250", 0.25), ("250ms", 0.25), ("30s", 30), ("15m", 900), ("2 h", 7200), ("1D", 86_400)],
)
def test_times_are_written_as_elsewhere_in_spark(text: str, seconds: float) -> None:
    assert parsed(maxTriggerDelay=text).trigger_delay_max_s == seconds


def test_a_stream_may_wait_for_rows_and_a_batch_may_not() -> None:
    options = parsed(minOffsetsPerTrigger="100", maxOffsetsPerTrigger="100")
    assert (options.offsets_per_trigger_min, options.trigger_delay_max_s) == (100, 900.0)
    with pytest.raises(ConfigError, match="minOffsetsPerTrigger is 101, more than maxOffsetsPerTrigger"):
        parsed(minOffsetsPerTrigger="101", maxOffsetsPerTrigger="100")
    for name, value in (("minOffsetsPerTrigger", "1"), ("maxTriggerDelay", "1s")):
        with pytest.raises(ConfigError, match="are for streams"):
            parsed(streaming=False, **{name: value})
    with pytest.raises(
        ConfigError, match="maxTriggerDelay takes a time such as 500ms, 30s or 15m, not 'soon'"
    ):
        parsed(maxTriggerDelay="soon")
