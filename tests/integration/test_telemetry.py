"""Metrics and traces at a receiver of OTLP: a gateway, devices and services in this process."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from eventually import soon
from otlp_receiver import OtlpReceiver, attributes_of

import iotmq
from iotmq import limits
from iotmq.assembly import Process
from iotmq.client import Message
from iotmq.config.config import load_config
from iotmq.metrics import Metric
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt_client import Address, MqttClient, MqttClientSettings
from iotmq.telemetry.tracing import tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"
ROUTE = "mqtt.routes=[{filter = 'devices/#', topic = 'telemetry'}]"


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with OtlpReceiver() as receiver:
        yield receiver


class Gateway:
    """A process with every role, its devices and its services."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.is_stopped = False

    async def stop(self) -> None:
        self.is_stopped = True
        await self.process.stop()

    def device(self, client_id: str) -> MqttClient:
        host, _, port = self.process.addresses["mqtt"].rpartition(":")
        return MqttClient(MqttClientSettings(address=Address(host=host, port=int(port)), client_id=client_id))

    def service(self) -> Any:
        return iotmq.connect(f"iotmq://{self.process.addresses['registry']}")

    def samples(self) -> dict[str, list[Metric]]:
        found: dict[str, list[Metric]] = {}
        for metric in self.process.metrics():
            found.setdefault(metric.family, []).append(metric)
        return found


@pytest.fixture
async def start(tmp_path: Path, receiver: OtlpReceiver) -> AsyncIterator[Any]:
    running: list[Gateway] = []

    async def begin(*settings: str) -> Gateway:
        free = [f"{role}.listen_port=0" for role in ("registry", "broker", "http", "mqtt")]
        # The last snapshot is exported at the stop.
        own = [f"telemetry.endpoint={receiver.endpoint}", "telemetry.interval_s=3600", ROUTE]
        process = Process(load_config(data=str(tmp_path), assignments=[*free, *own, *settings]), "serve")
        await process.start()
        running.append(Gateway(process))
        return running[-1]

    yield begin
    for gateway in running:
        if not gateway.is_stopped:
            await gateway.stop()


async def received(device: MqttClient) -> Any:
    async with asyncio.timeout(30):
        return await anext(device.messages())


def user(*pairs: tuple[str, str]) -> Properties:
    return Properties(user_properties=pairs)


async def test_a_trace_goes_from_a_device_through_the_log_to_devices_and_services(
    start: Any, receiver: OtlpReceiver
) -> None:
    gateway = await start("telemetry.trusts_devices=true")
    async with gateway.device("pump-7") as pump, gateway.device("screen") as screen:
        await screen.subscribe(("devices/#", 1))
        sent = user(("site", "hall-3"), ("traceparent", SAMPLED), ("tracestate", "a=1"))
        await pump.publish("devices/7", b"21.5", qos=1, properties=sent)
        shown = dict((await received(screen)).properties.user_properties)
        await soon(lambda: len(receiver.spans()) == 3, "three spans")
    (receive,), (store,), (deliver,) = (receiver.spans(name) for name in ("receive", "store", "deliver"))
    assert {span.trace_id.hex() for span in receiver.spans()} == {TRACE}
    assert receive.parent_span_id.hex() == PARENT
    assert store.parent_span_id == deliver.parent_span_id == receive.span_id
    assert all(0 < span.start_time_unix_nano <= span.end_time_unix_nano for span in receiver.spans())
    found = attributes_of(receive)
    assert (found["messaging.system"], found["messaging.destination.name"]) == ("mqtt", "telemetry")
    assert (found["messaging.client.id"], found["iotmq.mqtt.topic"]) == ("pump-7", "devices/7")
    assert attributes_of(store)["messaging.destination.name"] == "telemetry"
    assert attributes_of(deliver)["messaging.client.id"] == "screen"
    own = f"00-{TRACE}-{receive.span_id.hex()}-01"
    assert shown == {"site": "hall-3", "traceparent": own, "tracestate": "a=1"}
    async with gateway.service() as client:
        consumer = await client.pull_consumer()
        await consumer.assign(await consumer.queues("telemetry"))
        (message,) = await consumer.getmany()
        assert (message.properties["traceparent"], message.properties["tracestate"]) == (own, "a=1")


async def test_a_trace_goes_from_a_service_to_a_device(start: Any, receiver: OtlpReceiver) -> None:
    gateway = await start()
    async with gateway.device("screen") as screen, gateway.service() as client:
        await screen.subscribe(("commands/7", 1))
        producer = await client.producer()
        properties = {"MQTT_TOPIC": "commands/7", "traceparent": SAMPLED, "tracestate": "b=2"}
        await producer.send(Message("telemetry", b"open", properties=properties))
        shown = dict((await received(screen)).properties.user_properties)
        await soon(lambda: len(receiver.spans()) == 2, "two spans")
    assert shown == {"traceparent": SAMPLED, "tracestate": "b=2"}
    (store,), (deliver,) = receiver.spans("store"), receiver.spans("deliver")
    assert store.parent_span_id.hex() == deliver.parent_span_id.hex() == PARENT
    # Its time is an exemplar of the histogram.
    (bucket,) = [
        metric for metric in gateway.samples()["iotmq_broker_put_seconds"] if metric.exemplar is not None
    ]
    assert bucket.exemplar.trace_id == TRACE
    assert bucket.exemplar.span_id == store.span_id.hex()


async def test_a_trace_goes_from_a_request_of_the_http_api_to_a_device(
    start: Any, receiver: OtlpReceiver, tmp_path: Path
) -> None:
    secret = tmp_path / "token"
    secret.write_text("token-of-the-operator")
    secret.chmod(0o600)
    gateway = await start(
        f"http.tokens=[{{name = 'ops', token = {{file = '{secret}'}}, role = 'operator'}}]"
    )

    def publish() -> int:
        host, _, port = gateway.process.addresses["http"].rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        headers = {"Authorization": "Bearer token-of-the-operator"}
        headers |= {"traceparent": SAMPLED, "tracestate": "c=3"}
        try:
            connection.request("POST", "/api/v1/mqtt-topics/devices/7", b"open", headers)
            return connection.getresponse().status
        finally:
            connection.close()

    async with gateway.device("screen") as screen:
        await screen.subscribe(("devices/7", 1))
        assert await asyncio.to_thread(publish) == 200
        shown = dict((await received(screen)).properties.user_properties)
        await soon(lambda: len(receiver.spans()) == 3, "three spans")
    (receive,), (store,), (deliver,) = (receiver.spans(name) for name in ("receive", "store", "deliver"))
    assert receive.parent_span_id.hex() == PARENT
    assert store.parent_span_id == deliver.parent_span_id == receive.span_id
    assert shown == {"traceparent": f"00-{TRACE}-{receive.span_id.hex()}-01", "tracestate": "c=3"}
    assert attributes_of(receive)["messaging.client.id"] == "ops"


async def test_devices_that_are_not_trusted_are_sampled_by_the_ratio(
    start: Any, receiver: OtlpReceiver
) -> None:
    gateway = await start("telemetry.sample_ratio=1.0")
    async with gateway.device("pump-7") as pump, gateway.device("screen") as screen:
        await screen.subscribe(("devices/#", 1))
        await pump.publish("devices/7", b"", qos=1, properties=user(("traceparent", SAMPLED)))
        first = dict((await received(screen)).properties.user_properties)
        await pump.publish("devices/7", b"", qos=1)
        second = dict((await received(screen)).properties.user_properties)
        await soon(lambda: len(receiver.spans("deliver")) == 2, "two traces")
    # What the device has said is for whoever understands it.
    assert first == {"traceparent": SAMPLED}
    receives = receiver.spans("receive")
    assert TRACE not in {span.trace_id.hex() for span in receives}
    assert [span.parent_span_id for span in receives] == [b"", b""]
    assert second == {"traceparent": f"00-{receives[1].trace_id.hex()}-{receives[1].span_id.hex()}-01"}


@pytest.mark.parametrize(
    ("settings", "context"),
    [
        # Not sampled, nothing at all, and three that are no contexts.
        (["telemetry.trusts_devices=true"], NOT_SAMPLED),
        (["telemetry.trusts_devices=true"], ""),
        (["telemetry.trusts_devices=true"], SAMPLED.upper()),
        (["telemetry.trusts_devices=true"], SAMPLED.replace(TRACE, "0" * 32)),
        (["telemetry.trusts_devices=true"], f"{SAMPLED}-00"),
        (["telemetry.sample_ratio=1.0", "telemetry.traces_enabled=false"], SAMPLED),
    ],
)
async def test_others_are_not_traced_and_carry_what_they_carried(
    start: Any, receiver: OtlpReceiver, settings: list[str], context: str
) -> None:
    gateway = await start(*settings)
    sent = user(("traceparent", context)) if context else user()
    async with gateway.device("pump-7") as pump, gateway.device("screen") as screen:
        await screen.subscribe(("devices/#", 1))
        await pump.publish("devices/7", b"", qos=1, properties=sent)
        assert (await received(screen)).properties.user_properties == sent.user_properties
    await gateway.stop()
    assert receiver.spans() == []
    assert tracing() is None


def as_exported(own: list[Metric]) -> tuple[str, set[tuple[tuple[str, str], ...]]]:
    """Kind and labels of a metric; of a histogram without those."""
    labels = {tuple(sorted(metric.labels)) for metric in own}
    return own[0].kind, set() if own[0].kind == "histogram" else labels


def shown(receiver: OtlpReceiver) -> dict[str, tuple[str, set[tuple[tuple[str, str], ...]]]]:
    """The same of what came."""
    found = {}
    for name, metric in receiver.metrics().items():
        kind = {"sum": "counter", "gauge": "gauge", "histogram": "histogram"}[metric.WhichOneof("data")]
        points = getattr(metric, metric.WhichOneof("data")).data_points
        labels = {tuple(sorted(attributes_of(point).items())) for point in points}
        found[name] = (kind, set() if kind == "histogram" else labels)
    return found


async def test_a_receiver_gets_the_metrics_of_the_page(start: Any, receiver: OtlpReceiver) -> None:
    gateway = await start(
        "telemetry.interval_s=0.1", 'telemetry.resource_attributes={"deployment.environment.name" = "test"}'
    )
    # The first exports come while roles are starting.
    await soon(
        lambda: shown(receiver) == {name: as_exported(own) for name, own in gateway.samples().items()},
        "an export of all that there is",
    )
    theirs = receiver.metrics()
    (lag,) = theirs["iotmq_loop_lag_seconds"].histogram.data_points
    assert len(lag.bucket_counts) == len(lag.explicit_bounds) + 1
    assert sum(lag.bucket_counts) == lag.count
    resource = receiver.resource()
    assert (resource["service.name"], resource["service.version"]) == ("iotmq", iotmq.__version__)
    assert resource["deployment.environment.name"] == "test"
    assert resource["service.instance.id"]


async def test_the_first_deliveries_of_a_message_are_spans(start: Any, receiver: OtlpReceiver) -> None:
    gateway = await start("telemetry.sample_ratio=1.0")
    count = limits.SPANS_OF_A_MESSAGE_MAX + 1
    async with AsyncExitStack() as devices:
        screens = [await devices.enter_async_context(gateway.device(f"screen-{n}")) for n in range(count)]
        for screen in screens[1:]:
            await screen.subscribe(("devices/#", 0))
        await screens[0].publish("devices/7", b"", qos=1)
        for screen in screens[1:]:
            await received(screen)
        await soon(lambda: len(receiver.spans("deliver")) == count - 1, "a span for each")
        await screens[0].subscribe(("devices/#", 0))
        await screens[0].publish("devices/7", b"", qos=1)
        for screen in screens:
            await received(screen)
    await gateway.stop()
    assert len(receiver.spans("deliver")) == 2 * (count - 1)
