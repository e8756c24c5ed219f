"""The operator's HTTP port."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from eventually import until

from iotmq import limits
from iotmq.console.pages import Pages
from iotmq.console.server.port import HttpPort
from iotmq.console.settings import HttpSettings
from iotmq.metrics import Metric, MetricSource


class Part:
    """A part of the gateway with two labelled counters and a gauge."""

    def __init__(self) -> None:
        self.level = 1.5
        self.asked_count = 0

    def metrics(self) -> Iterable[Metric]:
        self.asked_count += 1
        yield Metric("sends_total", "counter", "Sends.", 3, (("topic", 'a"b\n'),))
        yield Metric("depth_bytes", "gauge", "Depth.", self.level)
        yield Metric("sends_total", "counter", "Sends.", 4, (("topic", "c"),))


class OtherPart:
    """A part that reports a name that another part has too."""

    def metrics(self) -> Iterable[Metric]:
        yield Metric("iotmq_sends_total", "counter", "Sends.", 5, (("topic", "d"),))


class TopicPart(Part):
    """A part with numbers for each topic."""

    def topic_metrics(self, pattern: str) -> Iterable[Metric]:
        if pattern == "*":
            raise ValueError("too many topics match")
        yield Metric("iotmq_topic_records_total", "counter", "Records.", 7, (("topic", pattern),))


class BrokenPart:
    def metrics(self) -> Iterable[Metric]:
        yield Metric("before_total", "counter", "Reported before the failure.", 1)
        raise RuntimeError("no numbers today")


@asynccontextmanager
async def running(
    settings: HttpSettings | None = None, *, sources: Collection[MetricSource] = ()
) -> AsyncIterator[HttpPort]:
    used = settings or HttpSettings(listen_port=0)
    server = HttpPort(used, Pages(used, sources=sources))
    await server.start()
    yield server
    await server.stop()


def values_of(server: HttpPort) -> dict[str, float]:
    return {metric.name: metric.value for metric in server.metrics()}


@pytest.fixture
async def serve() -> AsyncIterator[Callable[..., object]]:
    servers: list[HttpPort] = []

    async def start(**arguments: object) -> str:
        settings = HttpSettings(listen_port=0)
        server = HttpPort(settings, Pages(settings, **arguments))  # type: ignore[arg-type]
        servers.append(server)
        await server.start()
        return f"http://127.0.0.1:{server.port}"

    yield start
    for server in servers:
        await server.stop()


async def get(url: str, **arguments: object) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url, **arguments) as answer:  # type: ignore[arg-type]
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def test_metrics_of_all_parts_are_one_prometheus_page(serve) -> None:
    url = await serve(sources=[Part(), OtherPart()])
    status, content_type, text = await get(url + "/metrics")
    assert status == 200
    assert content_type.startswith("text/plain")
    lines = text.splitlines()
    assert lines.count("# TYPE iotmq_sends_total counter") == 1
    assert 'iotmq_sends_total{topic="a\\"b\\n"} 3.0' in lines
    assert 'iotmq_sends_total{topic="d"} 5.0' in lines
    assert "iotmq_depth_bytes 1.5" in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


async def test_the_samples_of_one_name_stand_together(serve) -> None:
    url = await serve(sources=[Part(), OtherPart()])
    _status, _type, text = await get(url + "/metrics")
    names = [line.split("{")[0] for line in text.splitlines() if line.startswith("iotmq_sends")]
    start = text.splitlines().index("# TYPE iotmq_sends_total counter")
    assert len(names) == 3
    assert all(line.startswith("iotmq_sends_total{") for line in text.splitlines()[start + 1 : start + 4])


async def test_metrics_are_read_when_asked(serve) -> None:
    part = Part()
    url = await serve(sources=[part])
    part.level = 9.0
    assert "iotmq_depth_bytes 9.0" in (await get(url + "/metrics"))[2]


async def test_openmetrics_is_spoken_to_those_who_prefer_it(serve) -> None:
    url = await serve(sources=[Part()])
    _status, content_type, text = await get(
        url + "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


async def test_a_broken_part_hides_no_other(serve, caplog: pytest.LogCaptureFixture) -> None:
    url = await serve(sources=[BrokenPart(), Part()])
    status, _type, text = await get(url + "/metrics")
    assert status == 200
    assert "iotmq_depth_bytes 1.5" in text
    assert "iotmq_before_total 1.0" in text
    assert "iotmq_metrics_errors_total 1.0" in text
    assert "BrokenPart" in caplog.text


async def test_parts_may_join_while_it_runs(serve) -> None:
    sources: list[Part] = []
    checks: dict[str, Callable[[], str | None]] = {}
    url = await serve(sources=sources, checks=checks)
    assert "depth_bytes" not in (await get(url + "/metrics"))[2]
    assert (await get(url + "/readyz"))[0] == 200
    sources.append(Part())
    checks["late"] = lambda: "starting"
    assert "iotmq_depth_bytes 1.5" in (await get(url + "/metrics"))[2]
    assert (await get(url + "/readyz"))[0] == 503


async def test_health_is_answered_while_the_loop_turns(serve) -> None:
    url = await serve()
    assert await get(url + "/healthz") == (200, "text/plain; charset=utf-8", "ok\n")


async def test_readiness_names_the_reasons_of_the_parts_that_are_not_ready(serve) -> None:
    reason: str | None = "recovering the log"
    url = await serve(checks={"store": lambda: reason, "mqtt": lambda: None})
    status, _type, text = await get(url + "/readyz")
    assert status == 503
    assert msgspec.json.decode(text) == {
        "ready": False,
        "parts": {"store": "recovering the log", "mqtt": "ready"},
    }
    reason = None
    status, _type, text = await get(url + "/readyz")
    assert status == 200
    assert msgspec.json.decode(text)["ready"] is True


async def test_unknown_paths_methods_and_garbage_are_refused(serve) -> None:
    url = await serve()
    assert (await get(url + "/nothing"))[0] == 404
    async with aiohttp.ClientSession() as session, session.post(url + "/metrics", data=b"x") as answer:
        assert answer.status == 405
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
    writer.write(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00\r\n\r\n")
    assert (await reader.read(64)).startswith(b"HTTP/1.1 400")
    writer.close()


@pytest.mark.parametrize(("size", "status"), [(8192, b"200"), (8193, b"431")])
@pytest.mark.parametrize("piece_bytes", [100, 10_000])
async def test_a_head_is_taken_up_to_its_limit(size: int, status: bytes, piece_bytes: int) -> None:
    async with running() as server:
        head = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nLong: "
        sent = head + b"x" * (size - len(head) - 4) + b"\r\n\r\n"
        assert len(sent) == size
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for start in range(0, size, piece_bytes):
            writer.write(sent[start : start + piece_bytes])
            await writer.drain()
            await asyncio.sleep(0)
        assert (await reader.read()).split()[1] == status
        writer.close()


async def test_who_is_refused_while_still_sending_gets_the_answer() -> None:
    async with running() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nLong: " + b"x" * 4_000_000)
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
        writer.close()


async def test_requests_that_come_together_are_answered_in_order() -> None:
    async with running() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
        writer.write(b"PUT /readyz HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nGET /")
        writer.write(b"HEAD /healthz?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        writer.write(b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answers = await reader.read()
        writer.close()
    assert re.findall(rb"HTTP/1.1 (\d+)", answers) == [*[b"200"] * 200, b"405", b"200", b"404"]
    assert answers.count(b"ok\n") == 200
    assert b"allow: get, head\r\n" in answers.lower()


async def test_a_body_is_read_to_its_end_and_not_kept() -> None:
    async with running() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 8000000\r\n\r\n")
        writer.write(bytes(8_000_000) + b"GET /healthz HTTP/1.0\r\n\r\n")
        answers = await reader.read()
        writer.close()
    assert answers.startswith(b"HTTP/1.1 405 ")
    assert answers.endswith(b"ok\n")


async def test_who_does_not_read_the_answers_is_asked_nothing_more_and_closed() -> None:
    settings = HttpSettings(listen_port=0, request_timeout_s=0.5)
    part = Part()
    async with running(settings, sources=[part]) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50_000)
        await until(lambda: values_of(server)["iotmq_http_silent_connections_total"])
        assert 0 < part.asked_count < 40_000
        assert not reader.at_eof()
        writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x00\xba\x01\x03\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
async def test_what_is_no_http_is_one_line_without_a_traceback_and_counted(
    caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    async with running() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400")
    assert [record.getMessage() for record in caplog.records] == ["bad request"]
    assert caplog.records[0].exc_info is None
    assert values_of(server) == {
        "iotmq_http_bad_requests_total": 1,
        "iotmq_http_silent_connections_total": 0,
        "iotmq_http_unauthorized_total": 0,
        "iotmq_http_refused_connections_total": 0,
    }


@pytest.mark.parametrize(
    "sent", [b"", b"GET /healthz HTTP/1.1\r\nHo", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /he"]
)
async def test_who_sends_no_whole_request_in_time_is_closed_and_counted(sent: bytes) -> None:
    async with running(HttpSettings(listen_port=0, request_timeout_s=0.2)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(sent)
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.count(b"200 OK") == sent.count(b"\r\n\r\n")
        writer.close()
        assert values_of(server)["iotmq_http_silent_connections_total"] == 1


async def test_who_asks_again_in_time_stays_connected() -> None:
    settings = HttpSettings(listen_port=0, request_timeout_s=0.8)
    server = HttpPort(settings, Pages(settings))
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    loop = asyncio.get_running_loop()
    end_s = loop.time() + 1.6
    while loop.time() < end_s:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await asyncio.wait_for(reader.readuntil(b"ok\n"), 10)).startswith(b"HTTP/1.1 200")
        await asyncio.sleep(0.05)
    assert not any(metric.value for metric in server.metrics())
    writer.close()
    await server.stop()


async def test_a_taken_port_is_an_error_and_leaves_nothing_open(serve) -> None:
    url = await serve()
    settings = HttpSettings(listen_port=int(url.rsplit(":", 1)[1]))
    server = HttpPort(settings, Pages(settings))
    with pytest.raises(OSError, match="in use"):
        await server.start()
    await server.stop()


async def test_stopping_ends_open_connections(serve) -> None:
    settings = HttpSettings(listen_port=0)
    server = HttpPort(settings, Pages(settings))
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"200" in await reader.readline()
    await server.stop()
    await reader.read()
    assert reader.at_eof()
    writer.close()
    with pytest.raises(OSError, match=r"(?i)connect"):
        await asyncio.open_connection("127.0.0.1", server.port)


async def test_numbers_of_topics_are_a_page_of_their_own(serve: Callable[..., Awaitable[str]]) -> None:
    url = await serve(sources=[Part(), TopicPart()])
    status, content_type, body = await get(f"{url}/metrics/topics?match=tele%2A")
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    assert body.splitlines()[2:] == ['iotmq_topic_records_total{topic="tele*"} 7.0']
    assert "iotmq_topic" not in (await get(f"{url}/metrics"))[2]
    status, _, body = await get(f"{url}/metrics/topics?match=*")
    assert (status, body) == (400, "too many topics match\n")
    longest = "t" * limits.TOPIC_PATTERN_CHARACTERS_MAX
    assert (await get(f"{url}/metrics/topics?match={longest}"))[0] == 200
    for query in ("", "?match=", "?match", "?other=a", "?match=a&match=b", f"?match={longest}t"):
        assert (await get(f"{url}/metrics/topics{query}"))[0] == 400, query
