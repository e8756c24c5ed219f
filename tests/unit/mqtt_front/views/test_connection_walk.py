"""Pages of connections, beside a slow twin that sorts all of them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from fake_gateway import Front, receive
from mqtt_core import CollectingSink

from iotmq.mqtt.codec import packets
from iotmq.mqtt.server.publish_sink import PublishSink
from iotmq.mqtt_front.connection.device import Device
from iotmq.mqtt_front.connection.peer import Peer
from iotmq.mqtt_front.views.connection_walk import ConnectionWalk, ValueSteps
from iotmq.ports.client_pages import (
    NUMBER_COLUMNS,
    ORDER_CHARACTERS,
    TEXT_COLUMNS,
    ClientFilter,
    ClientsQuestion,
    Order,
    fits_pattern,
    name_order,
)

LONG = "é" * (ORDER_CHARACTERS - 2)


class Swarm:
    """Connections, with what the twin knows of them."""

    def __init__(self, seed: int, count: int) -> None:
        chance = random.Random(seed)
        self.front = Front(PublishSink(), in_flight_max=2)
        self.devices: list[Device] = []
        for number in range(count):
            prefix = chance.choice(["", "pump/", LONG])
            device, _ = self.front.connect(f"{prefix}{number}", keep_alive_s=chance.choice([0, 30, 60]))
            device.user = chance.choice([None, "ann", "bob"])
            device.peer = Peer(chance.choice(["tcp", "tls"]), address=f"10.0.{number % 3}.1")
            device.expiry_s = chance.choice([0, 60])
            device.subscriptions = {str(each): 0 for each in range(chance.randrange(3))} or None
            for _ in range(chance.randrange(5)):
                device.deliver_message(b"t", b"x", 1)
            self.devices.append(device)

    def text(self, device: Device, column: str) -> str:
        if column == "client_id":
            return device.client_id or ""
        return getattr(device, column, None) or "" if column != "listener" else device.peer.listener

    def value(self, device: Device, column: str) -> Any:
        if column in TEXT_COLUMNS:
            return self.text(device, column)[:ORDER_CHARACTERS]
        own = self.walk(ClientsQuestion()).numbers(device)
        return own[NUMBER_COLUMNS.index(column)]

    def walk(self, asked: ClientsQuestion) -> ConnectionWalk:
        return ConnectionWalk(asked, now_s=1000.0, now_ms=1_000_000)

    def page(self, step: int, asked: ClientsQuestion) -> tuple[list[tuple[Order, Device]], bool]:
        walk = self.walk(asked)
        for start in range(0, len(self.devices), step):
            walk.take(self.devices, start, start + step)
        return walk.page()

    def all_in_order(self, column: str, *, is_descending: bool, texts: Any, bounds: Any) -> list[str]:
        fitting = [
            device
            for device in self.devices
            if all(fits_pattern(pattern, self.text(device, name)) for name, pattern in texts)
            and all(
                (least is None or self.value(device, name) >= least)
                and (most is None or self.value(device, name) <= most)
                for name, least, most in bounds
            )
        ]
        fitting.sort(
            key=lambda device: (self.value(device, column), *name_order(device.client_id or "")),
            reverse=is_descending,
        )
        return [device.client_id or "" for device in fitting]


def test_pages_are_what_sorting_everything_gives() -> None:
    swarm = Swarm(seed=1, count=150)
    chance = random.Random(2)
    columns = [
        *TEXT_COLUMNS,
        "in_flight",
        "queued",
        "queued_bytes",
        "keep_alive_s",
        "subscriptions",
        "bytes_sent",
    ]
    for column in columns:
        for is_descending in (False, True):
            texts = chance.choice([[], [("client_id", "pump/*")], [("user", "ann"), ("address", "*.1")]])
            bounds = chance.choice(
                [[], [("in_flight", 1, None)], [("queued", None, 1), ("keep_alive_s", 30, 30)]]
            )
            expected = swarm.all_in_order(column, is_descending=is_descending, texts=texts, bounds=bounds)
            wanted = ClientFilter(
                **dict(texts),
                least={name: least for name, least, _ in bounds if least is not None},
                most={name: most for name, _, most in bounds if most is not None},
            )
            found: list[str] = []
            behind: Order | None = None
            has_more = True
            while has_more:
                asked = ClientsQuestion(
                    wanted=wanted, sort_by=column, is_descending=is_descending, limit=10, behind=behind
                )
                page, has_more = swarm.page(chance.choice([1, 7, 1000]), asked)
                assert len(page) == 10 or not has_more
                found += [device.client_id or "" for _, device in page]
                behind = page[-1][0] if page else None
            assert found == expected, (column, is_descending, texts, bounds)


def test_kept_ones_and_those_that_have_gone_are_told_apart() -> None:
    swarm = Swarm(seed=3, count=40)
    for device in swarm.devices[:5]:
        device.connection_lost(None)
    for is_kept in (True, False):
        walk = swarm.walk(ClientsQuestion(wanted=ClientFilter(is_kept=is_kept)))
        walk.take(swarm.devices, 0, len(swarm.devices))
        assert walk.looked_at == 35
        assert walk.matched == sum((device.expiry_s != 0) == is_kept for device in swarm.devices[5:])


def test_patterns_are_open_where_they_have_a_star() -> None:
    cases = {
        "a": "a",
        "a*": "a|ab",
        "*a": "a|ba",
        "*a*": "a|ab|ba|bab",
        "*": "a|ab|ba|bab|b",
        "b": "b",
        "": "",
    }
    for pattern, texts in cases.items():
        fitting = [text for text in ("a", "ab", "ba", "bab", "b") if fits_pattern(pattern, text)]
        assert sorted(fitting) == sorted(filter(None, texts.split("|"))), pattern


def test_rates_are_of_the_time_between_two_looks() -> None:
    front = Front(CollectingSink())
    device, _ = front.connect()

    def rate(now_s: float) -> float:
        walk = ConnectionWalk(ClientsQuestion(), now_s=now_s, now_ms=20_000)
        return walk.numbers(device)[NUMBER_COLUMNS.index("messages_received_per_s")]

    def publish(count: int) -> None:
        receive(device, packets.encode_publish("t", b"", qos=0) * count)

    publish(10)
    assert rate(100.0) == 10 / 20, "at the first look since it connected"
    publish(50)
    assert rate(104.0) == 10 / 20, "of a short time there is none"
    assert rate(105.0) == 10
    assert rate(110.0) == 0


def test_an_acknowledgement_is_timed_and_the_slowest_is_the_one_overdue() -> None:
    front = Front(PublishSink())
    device, _ = front.connect()
    place = NUMBER_COLUMNS.index("latency_ms")

    def latency() -> float:
        walk = ConnectionWalk(ClientsQuestion(), now_s=1.0, now_ms=1)
        return walk.numbers(device)[place]

    assert latency() == 0
    device.deliver_message(b"t", b"", 1)
    first = latency()
    assert 0 < first < latency()
    device.deliver_message(b"t", b"", 1)
    receive(device, packets.encode_acknowledgement(packets.PUBACK, 1))
    known = latency()
    assert known > first
    assert latency() == known, "nothing is overdue that is timed"
    receive(device, packets.encode_acknowledgement(packets.PUBACK, 2))
    assert latency() == known, "one at a time is timed"


@pytest.mark.parametrize("count", [1, 3, 10, 11])
def test_the_values_of_a_dict_are_taken_some_at_a_time(count: int) -> None:
    values = {str(number): number for number in range(10)}
    del values["0"], values["4"]
    steps = ValueSteps(values)
    found: list[int] = []
    while taken := steps.take(count):
        assert len(taken) <= count
        found += taken
    assert taken == []
    assert found == [1, 2, 3, 5, 6, 7, 8, 9]
    assert ValueSteps({}).take(count) == []


def test_values_that_come_and_go_take_none_of_the_others_along() -> None:
    """Beside a dict that changes at random: what stays is seen once, or the place is lost and said to be."""
    chance = random.Random(3)
    lost = whole = 0
    for _ in range(300):
        values = {str(number): number for number in range(chance.randrange(1, 40))}
        stayed = set(values.values())
        steps = ValueSteps(values)
        found: list[int] = []
        number = 1000
        while taken := steps.take(chance.randrange(1, 6)):
            found += taken
            for _ in range(chance.randrange(4)):
                if chance.random() < 0.5 and values:
                    stayed.discard(values.pop(chance.choice(list(values))))
                else:
                    number += 1
                    values[str(number)] = number
        if taken is None:
            lost += 1
            continue
        whole += 1
        assert len(found) == len(set(found))
        assert stayed <= set(found)
    assert lost > 10
    assert whole > 10
