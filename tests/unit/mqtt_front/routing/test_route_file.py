"""The file of routes: what it may hold, and changes that come into use or do not."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pytest

from iotmq import limits
from iotmq.errors import ConfigError, ConnectionClosedError
from iotmq.mqtt_front.routing.route_file import RouteReloads, open_router, read_routes
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.mqtt_front.settings.routes import RouteSettings

ONE = '[[routes]]\nfilter = "a/#"\ntopic = "One"\n'
TWO = ONE.replace("One", "Two") + 'when = ["{json:x} = 1"]\n[routes.checksum]\nalgorithm = "modbus"\n'


class Bench:
    def __init__(self, path: Path, text: str = ONE) -> None:
        self.path = path
        self.number = 0
        self.write(text)
        self.reloads = RouteReloads(MqttSettings(routes_file=str(path)))
        self.topics: set[str] = set()
        self.forgotten = 0
        self.fails = False

    def write(self, text: str) -> None:
        self.path.write_text(text)
        self.number += 1
        os.utime(self.path, ns=(self.number * 10**9, self.number * 10**9))

    async def add_topics(self, topics: Collection[str]) -> None:
        if self.fails:
            raise ConnectionClosedError("no broker")
        self.topics |= set(topics)

    def forget(self) -> None:
        self.forgotten += 1

    async def reload(self) -> str:
        """The broker topic of a/b after a look at the file."""
        await self.reloads.reload(self.add_topics, self.forget)
        return self.reloads.router.plan("a/b").topic  # type: ignore[union-attr]

    def number_of(self, name: str) -> float:
        return next(metric.value for metric in self.reloads.metrics() if metric.name == name)


async def test_a_change_comes_into_use_and_an_unchanged_file_is_not_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "routes.toml")
    assert await bench.reload() == "One"
    assert bench.forgotten == 0
    bench.write(ONE.replace("One", "Other"))
    assert await bench.reload() == "Other"
    assert bench.topics == {"Other", "mqtt"}, "brokers know the topic before it is used"
    assert (bench.forgotten, bench.number_of("iotmq_mqtt_route_reloads_total")) == (1, 1)
    bench.write(TWO)
    await bench.reloads.reload(bench.add_topics, bench.forget)
    assert bench.topics == {"Other", "Two", "mqtt", "mqtt-quarantine"}
    assert bench.number_of("iotmq_mqtt_routes") == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[routes]\n", "line 1"),
        ('[[routes]]\nfilter = "a"\n', "routes[0] ("),
        ("a = 1\n\xff", "byte 6"),
        ("rutes = []\n", "did you mean routes?"),
        (
            ONE + '[[routes]]\nfilter = "b"\ntopc = "T"\n',
            "routes[1] ({file} line 4): Object contains unknown field `topc`; did you mean topic?",
        ),
        (
            ONE + '[[routes]]\ntopic = "T"\n[[routes]]\nfilter = "a"\ntopic = "T"\nqos_max = 3\n',
            "routes[1] ({file} line 4): Object missing required field `filter`\n"
            "routes[2].qos_max ({file} line 6): Expected `int` <= 2",
        ),
        ('[[routes]]\nfilter = "a/#/b"\ntopic = "T"\n', "routes[0].filter"),
        ('[[routes]]\nfilter = "a"\ntopic = "T"\ntopics = "T"\n', "topics"),
        (
            '[[routes]]\nfilter = "a"\ntopic = "T"\nwhen = ["{json:a} = 1", "{json:a} = 2"]\n',
            "routes[0].when",
        ),
        ("x = 1\n", "x"),
    ],
)
async def test_an_error_keeps_the_former_routes_and_is_said(
    tmp_path: Path, text: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path / "routes.toml")
    bench.path.write_bytes(text.encode("latin-1"))
    assert await bench.reload() == "One"
    assert bench.forgotten == 0
    assert bench.number_of("iotmq_mqtt_route_failed_reloads_total") == 1
    (record,) = [record for record in caplog.records if record.message == "the changed routes are not used"]
    assert words.format(file=bench.path) in vars(record)["detail"]
    assert await bench.reload() == "One"
    assert bench.number_of("iotmq_mqtt_route_failed_reloads_total") == 1, "once per change"


async def test_a_broker_that_does_not_answer_is_asked_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "routes.toml")
    bench.write(ONE.replace("One", "Other"))
    bench.fails = True
    assert await bench.reload() == "One"
    bench.fails = False
    assert await bench.reload() == "Other"


async def test_a_file_that_goes_changes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "routes.toml")
    bench.path.unlink()
    assert await bench.reload() == "One"
    assert bench.number_of("iotmq_mqtt_route_failed_reloads_total") == 1


async def test_without_a_file_nothing_is_read() -> None:
    reloads = RouteReloads(MqttSettings())
    reloads.start(None, None)  # type: ignore[arg-type]
    await reloads.reload(None, None)  # type: ignore[arg-type]
    reloads.stop()


def test_a_start_without_the_file_or_with_routes_in_two_places_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mqtt\.routes_file"):
        open_router(MqttSettings(routes_file=str(tmp_path / "none")))
    (tmp_path / "routes.toml").write_text(ONE)
    with pytest.raises(ConfigError, match="one place"):
        open_router(
            MqttSettings(
                routes_file=str(tmp_path / "routes.toml"), routes=(RouteSettings(filter="a", topic="T"),)
            )
        )


def test_a_file_has_a_size(tmp_path: Path) -> None:
    path = tmp_path / "routes.toml"
    path.write_text(ONE + "#" * (limits.MQTT_ROUTES_FILE_BYTES_MAX - len(ONE)))
    assert len(read_routes(path)) == 1
    with path.open("a") as file:
        file.write("#")
    with pytest.raises(ConfigError, match="bytes"):
        read_routes(path)
