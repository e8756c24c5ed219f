"""Filters by property: registered by heartbeats, asked for by pulls, kept in consumerFilter.json."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fake_connection import FakeConnection
from manual_clock import ManualClock

from iotmq import limits
from iotmq.broker.broker import Broker
from iotmq.broker.filters import consumer_filters, tags
from iotmq.broker.filters.consumer_filters import ConsumerFilters, _compiled, compile_filter
from iotmq.broker.filters.subscription import SubscriptionData
from iotmq.broker.settings import BrokerSettings
from iotmq.errors import RequestError
from iotmq.event_loop import LoopSlice
from iotmq.message.hosts import encode_host
from iotmq.message.properties import encode_properties
from iotmq.message.records.record import encode_batch, iter_records
from iotmq.message.tags import tag_hash
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST = encode_host("127.0.0.1", 10911)
DAY_S = 24 * 3_600
A5 = encode_properties({"a": "5"})


def wants(expression: str, *, version: int = 1, topic: str = "T", kind: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, sub_version=version, expression_type=kind)


def table(directory: Path, clock: ManualClock, *, is_enabled: bool = True, **more: Any) -> ConsumerFilters:
    return ConsumerFilters(directory / "consumerFilter.json", clock, is_enabled=is_enabled, **more)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def filters(tmp_path: Path, clock: ManualClock) -> ConsumerFilters:
    return table(tmp_path, clock)


def code_of(filters: ConsumerFilters, group: str, subscription: SubscriptionData) -> int:
    with pytest.raises(RequestError) as caught:
        filters.of_group(group, subscription)
    assert str(caught.value)
    return caught.value.code


async def test_what_a_heartbeat_has_no_time_for_is_taken_in_the_turns_that_follow(
    filters: ConsumerFilters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_filters, "LoopSlice", lambda: LoopSlice(2))
    wanted = [wants(f"late > {number}", topic=f"T{number}") for number in range(6)]
    filters.register("g", wanted, LoopSlice(1))
    filters.register("gone", wanted, LoopSlice(1))
    filters.group_left("gone")
    counts = [len(filters)]
    for _ in range(3):
        await asyncio.sleep(0)
        counts.append(len(filters))
    assert counts == [2, 4, 6, 7]
    for subscription in wanted:
        assert filters.of_group("g", subscription).evaluate(encode_properties({"late": "9"})) is True


async def test_so_many_expressions_wait_for_a_turn_and_no_more(
    filters: ConsumerFilters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_filters, "_LATE_MAX", 2)
    wanted = [wants(f"late > {number}", topic=f"T{number}") for number in range(4)]
    long = wants("x" * (limits.FILTER_EXPRESSION_BYTES_MAX + 1), topic="long")
    filters.register("g", [*wanted, long], LoopSlice(1))
    assert [subscription.topic for _, subscription in filters._late] == ["T1", "T2"]
    assert filters.refused_count == 1, "what is too long waits for nothing"
    await asyncio.sleep(0)
    assert len(filters) == 3
    # Those that are registered take no time.
    filters.register("g", wanted, LoopSlice(4))
    assert len(filters) == 4


@pytest.mark.parametrize(("over", "kept"), [(0, 1), (1, 0)])
def test_an_expression_that_is_refused_for_its_length_is_not_kept(over: int, kept: int) -> None:
    _compiled.cache_clear()
    expression = "a > 4" + " " * (limits.FILTER_EXPRESSION_BYTES_MAX - 5 + over)
    if over:
        with pytest.raises(RequestError, match="are the maximum"):
            compile_filter(expression)
    else:
        assert compile_filter(expression).evaluate(A5) is True
    assert _compiled.cache_info().currsize == kept


@pytest.mark.parametrize(("over", "kept"), [(0, 1), (1, 0)])
def test_an_expression_of_tags_is_remembered_up_to_a_length(over: int, kept: int) -> None:
    tags._cached.cache_clear()
    expression = "a||" + "b" * (tags.CACHED_CHARACTERS_MAX - 3 + over)
    for _ in range(2):
        assert tags.parse_tags(expression) == frozenset(map(tag_hash, expression.split("||")))
        assert tags._cached.cache_info().currsize == kept
    wrong = "||" * (tags.CACHED_CHARACTERS_MAX // 2) + " " * over
    with pytest.raises(RequestError, match="names no tag"):
        tags.parse_tags(wrong)
    assert tags._cached.cache_info().currsize == kept


def test_so_many_expressions_of_tags_are_remembered() -> None:
    tags._cached.cache_clear()
    for number in range(tags.CACHED_MAX + 1):
        tags.parse_tags(f"t{number}")
        assert tags._cached.cache_info().currsize == min(number + 1, tags.CACHED_MAX)


def test_a_pull_gets_what_the_heartbeat_registered(filters: ConsumerFilters) -> None:
    filters.register("g", [wants("a > 4")])
    assert filters.of_group("g", wants("a > 4")).evaluate(A5) is True
    assert code_of(filters, "other", wants("a > 4")) == 27
    assert code_of(filters, "g", wants("a > 4", topic="U")) == 27


def test_an_expression_that_cannot_be_parsed_is_not_registered(filters: ConsumerFilters) -> None:
    filters.register("g", [wants("a >")])
    assert code_of(filters, "g", wants("a >")) == 27
    with pytest.raises(RequestError, match="ends too early"):
        filters.of_group("g", wants("a >"))


def test_a_newer_version_replaces_and_an_older_one_does_not(filters: ConsumerFilters) -> None:
    filters.register("g", [wants("a > 4", version=2)])
    filters.register("g", [wants("a > 9", version=1)])
    assert filters.of_group("g", wants("a > 4", version=2)).evaluate(A5) is True
    filters.register("g", [wants("a > 9", version=3)])
    assert filters.of_group("g", wants("a > 9", version=3)).evaluate(A5) is False
    filters.register("g", [wants("a >", version=4)])
    assert code_of(filters, "g", wants("a >", version=4)) == 28


def test_after_the_group_has_left_any_version_counts(filters: ConsumerFilters) -> None:
    """A client that comes back may run on a machine whose clock is behind."""
    filters.register("g", [wants("a > 4", version=7)])
    filters.group_left("g")
    filters.register("g", [wants("a > 9", version=3)])
    assert filters.of_group("g", wants("a > 9", version=3)).evaluate(A5) is False
    filters.group_left("g")
    filters.register("g", [wants("a > 9", version=2)])
    filters.register("g", [wants("a > 4", version=3)])
    assert filters.of_group("g", wants("a > 4", version=3)).evaluate(A5) is True


def test_subscriptions_by_tag_register_nothing(filters: ConsumerFilters) -> None:
    filters.register("g", [wants("red", kind="TAG"), wants("*", topic="U", kind="")])
    assert len(filters) == 0


def test_when_the_filter_is_off_everything_is_refused(tmp_path: Path, clock: ManualClock) -> None:
    filters = table(tmp_path, clock, is_enabled=False)
    filters.register("g", [wants("a > 4")])
    assert len(filters) == 0
    assert code_of(filters, "g", wants("a > 4")) == 1
    with pytest.raises(RequestError, match="property_filter_enabled") as caught:
        filters.of_request("SQL92", "a > 4")
    assert caught.value.code == 1


def test_the_file_has_the_shape_of_the_wire_document(tmp_path: Path, clock: ManualClock) -> None:
    filters = table(tmp_path, clock)
    assert filters.take_unsaved() is None
    filters.register("g", [wants("a > 4", version=7)])
    data = filters.take_unsaved()
    assert data is not None
    assert json.loads(data) == {
        "filterDataByTopic": {
            "T": {
                "topic": "T",
                "groupFilterData": {
                    "g": {
                        "topic": "T",
                        "consumerGroup": "g",
                        "expression": "a > 4",
                        "expressionType": "SQL92",
                        "bornTime": clock.now_ms(),
                        "deadTime": 0,
                        "clientVersion": 7,
                    }
                },
            }
        }
    }
    filters.write(data)
    again = table(tmp_path, clock)
    assert again.of_group("g", wants("a > 4", version=7)).evaluate(A5) is True


def test_a_file_of_a_java_broker_is_read(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "consumerFilter.json").write_text(
        '{"filterDataByTopic":{"T":{"groupFilterData":{"g":{"bloomFilterData":{"bitNum":640,"bitPos":[1]},'
        '"bornTime":1,"clientVersion":7,"consumerGroup":"g","dead":false,"deadTime":0,"expression":"a > 4",'
        '"expressionType":"SQL92","topic":"T"}},"topic":"T"}}}'
    )
    filters = table(tmp_path, clock)
    assert filters.of_group("g", wants("a > 4", version=7)).evaluate(A5) is True


def test_filters_are_kept_for_a_day_after_the_last_consumer(tmp_path: Path, clock: ManualClock) -> None:
    filters = table(tmp_path, clock)
    filters.register("g", [wants("a > 4"), wants("a > 4", topic="U")])
    filters.group_left("g")
    clock.advance(DAY_S - 1)
    filters.register("g", [wants("a > 4")])
    clock.advance(2)
    filters.expire()
    # The topic it came back for stays, the other one is past its day.
    assert len(filters) == 1
    filters.register("g", [])
    clock.advance(DAY_S + 1)
    filters.expire()
    assert len(filters) == 0
    assert json.loads(filters.encode()) == {"filterDataByTopic": {}}


def test_a_broker_keeps_so_many_filters(tmp_path: Path, clock: ManualClock) -> None:
    filters = table(tmp_path, clock, filters_max=2)
    assert limits.CONSUMER_FILTERS_MAX > 2
    filters.register("g", [wants("a > 4", topic=f"T{number}") for number in range(3)])
    assert len(filters) == 2
    assert filters.refused_count == 1
    assert code_of(filters, "g", wants("a > 4", topic="T2")) == 27


def test_compiled_filters_are_shared_and_what_is_wrong_is_remembered() -> None:
    assert compile_filter("a > 4") is compile_filter("a > 4")
    for _ in range(2):
        with pytest.raises(RequestError) as caught:
            compile_filter("a >")
        assert caught.value.code == 23


def test_so_many_compiled_filters_are_kept() -> None:
    _compiled.cache_clear()
    for number in range(limits.FILTER_CACHE_MAX + 1):
        compile_filter(f"a > {number}")
    assert _compiled.cache_info().currsize == limits.FILTER_CACHE_MAX


# --- in a broker ------------------------------------------------------------------------------------


class Site:
    def __init__(self, directory: Path) -> None:
        self.store = Store.open(directory, StoreSettings(segment_bytes=16 << 20), store_host=HOST)
        self.clock = ManualClock()
        self.broker = Broker(
            BrokerSettings(listen_port=0, registries=()),
            self.store,
            directory=directory,
            store_host=HOST,
            clock=self.clock,
        )
        self.broker.topics.ensure("T", queues=1)
        self.connection: Any = FakeConnection()

    def ask(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command | None:
        request = Command.request(code, ext or {}, body)
        try:
            return self.broker.requests.handle(self.connection, request)
        except RequestError as error:
            return request.reply(error.code, remark=str(error))

    def put(self, *values: int) -> None:
        elements = [(str(value).encode(), encode_properties({"a": str(value)}), 0) for value in values]
        self.broker.writer.append(
            "T", 0, encode_batch(elements), born_timestamp_ms=1, born_host=HOST, done=lambda *_: None
        )

    def pull(self, offset: int = 0, **ext: str) -> Command | None:
        fields = {
            "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": str(offset),
            "maxMsgNums": "32", "sysFlag": "2", "commitOffset": "0", "suspendTimeoutMillis": "15000",
            "subVersion": "0",
        }  # fmt: skip
        return self.ask(RequestCode.PULL_MESSAGE, {**fields, **ext})

    def beat(self, expression: str, *, version: int = 1) -> None:
        data = {"topic": "T", "subString": expression, "expressionType": "SQL92", "subVersion": version}
        body = {"clientID": "c", "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [data]}]}
        response = self.ask(RequestCode.HEART_BEAT, body=json.dumps(body).encode())
        assert response is not None
        assert response.code == 0


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.broker.start()
    yield site
    await site.broker.stop()
    assert site.store.check() == []
    site.store.close()


async def turns() -> None:
    """Parked pulls are woken at the end of the turn of the loop in which records came."""
    for _ in range(3):
        await asyncio.sleep(0)


def bodies(response: Command | None) -> list[bytes]:
    assert response is not None
    views = response.body if isinstance(response.body, list) else [response.body]
    return [record.body for view in views for record in iter_records(view)]


async def test_a_pull_with_its_own_expression(site: Site) -> None:
    site.put(*range(10))
    found = site.pull(sysFlag="4", expressionType="SQL92", subscription="a BETWEEN 3 AND 5")
    assert bodies(found) == [b"3", b"4", b"5"]
    assert found is not None
    assert found.ext["nextBeginOffset"] == "10"
    wrong = site.pull(sysFlag="4", expressionType="SQL92", subscription="a BETWEEN 3")
    assert wrong is not None
    assert wrong.code == 23


async def test_a_pull_by_the_heartbeats_expression(site: Site) -> None:
    site.put(*range(10))
    site.beat("a > 7")
    assert bodies(site.pull()) == [b"8", b"9"]
    site.beat("a >", version=5)
    refused = site.pull()
    assert refused is not None
    assert refused.code == 28


async def test_a_parked_pull_is_woken_by_a_record_that_passes_and_by_no_other(site: Site) -> None:
    site.put(1)
    site.beat("a > 7")
    assert site.pull(1) is None
    site.put(2, 3)
    await turns()
    assert site.connection.replies == []
    site.put(4, 9)
    await turns()
    (answer,) = site.connection.replies
    assert (answer.code, bodies(answer)) == (0, [b"9"])


async def test_a_parked_pull_that_was_not_looked_for_to_the_end_is_told_to_ask_again(site: Site) -> None:
    """Behind more records than one pull looks at, the one that passes would wake nobody."""
    site.put(1)
    site.beat("a > 7")
    assert site.pull(1) is None
    site.put(*[1] * limits.PULL_SCAN_ENTRIES_MIN, 9)
    await turns()
    (answer,) = site.connection.replies
    assert (answer.code, answer.remark) == (20, "NO_MATCHED_MESSAGE")
    assert bodies(site.pull(int(answer.ext["nextBeginOffset"]))) == [b"9"]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ('{"topic":"T","subString":"a > 5","expressionType":"SQL92"}', 0),
        ('{"topic":"T","subString":"red || blue","expressionType":"TAG"}', 0),
        ('{"topic":"T","subString":"a >","expressionType":"SQL92"}', 23),
        ('{"topic":"T","expressionType":"SQL92"}', 23),
        ('{"topic":"T","subString":"||"}', 23),
        ('{"topic":"T","subString":"a > 5","expressionType":"GROOVY"}', 1),
        ("null", 0),
    ],
)
async def test_clients_may_ask_beforehand(site: Site, data: str, code: int) -> None:
    body = f'{{"clientId":"c","group":"g","subscriptionData":{data}}}'
    response = site.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body.encode())
    assert response is not None
    assert response.code == code
    assert code == 0 or response.remark


async def test_the_registered_filters_are_written_at_the_stop(tmp_path: Path) -> None:
    site = Site(tmp_path)
    await site.broker.start()
    site.beat("a > 7")
    await site.broker.stop()
    assert site.store.check() == []
    site.store.close()
    written = json.loads((tmp_path / "config" / "consumerFilter.json").read_text())
    assert written["filterDataByTopic"]["T"]["groupFilterData"]["g"]["expression"] == "a > 7"
