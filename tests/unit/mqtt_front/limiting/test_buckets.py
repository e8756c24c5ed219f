"""Token buckets: what passes at the limit and past it, who waits, and who goes on first."""

from __future__ import annotations

import pytest
from fake_gateway import FakeLoop
from manual_clock import ManualClock

from iotmq import limits
from iotmq.mqtt_front.limiting.buckets import DeviceLimits, Pacer, Scope

NONE = ((0, 0),) * 5


class Waiting:
    """Stands for a device: takes some messages whenever it may."""

    def __init__(self, takes: int = 0) -> None:
        self.came: list[bool] = []
        self.takes = takes
        self.limits: DeviceLimits | None = None

    def tokens_came(self, is_output: bool) -> None:
        self.came.append(is_output)
        for _ in range(self.takes):
            assert self.limits is not None
            if self.limits.take_message(0, is_output=is_output):
                self.limits.wait_for_tokens(is_output=is_output)
                return


class Bench:
    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.clock = ManualClock()
        self.noted: list[tuple[str, str]] = []
        self.pacer = Pacer(
            self.loop,  # type: ignore[arg-type]
            lambda scope, kind: self.noted.append((scope.name, kind)),
            self.clock,
        )

    def scope(self, name: str = "client", **rates: tuple[int, int]) -> Scope:
        kinds = ("messages_in", "bytes_in", "messages_out", "bytes_out", "connects")
        return Scope(name, name, [rates.get(kind, (0, 0)) for kind in kinds], self.pacer)

    def device(self, *scopes: Scope, takes: int = 0) -> Waiting:
        device = Waiting(takes)
        device.limits = DeviceLimits(self.pacer, device, scopes)
        return device

    def pass_time(self, seconds: float) -> None:
        """Time passes in small steps, with the timers of each."""
        for _ in range(round(seconds / 0.025)):
            self.clock.advance(0.025)
            self.loop.fire()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def passing(device: Waiting, count: int, *, size: int = 0, is_output: bool = False) -> int:
    """How many of so many messages pass before the device has to wait."""
    assert device.limits is not None
    for number in range(1, count + 1):
        if device.limits.take_message(size, is_output=is_output):
            return number
    return count


def test_a_burst_passes_and_then_the_rate(bench: Bench) -> None:
    device = bench.device(bench.scope(messages_in=(10, 5)))
    assert passing(device, 100) == 5
    bench.clock.advance(0.1)
    assert passing(device, 100) == 1
    bench.clock.advance(0.35)
    assert passing(device, 100) == 3
    # No more than the burst, however long nothing comes.
    bench.clock.advance(86_400)
    assert passing(device, 100) == 5


def test_without_a_burst_it_is_a_seconds_worth(bench: Bench) -> None:
    device = bench.device(bench.scope(messages_in=(7, 0)))
    assert passing(device, 100) == 7


def test_at_the_limit_nobody_waits_and_past_it_somebody_does(bench: Bench) -> None:
    device = bench.device(bench.scope(messages_in=(100, 100)))
    for _ in range(500):
        bench.clock.advance(0.01)
        assert passing(device, 1) == 1
    assert device.limits is not None
    assert bench.noted == []


def test_bytes_have_a_bucket_of_their_own(bench: Bench) -> None:
    device = bench.device(bench.scope(bytes_in=(1_000, 1_000)))
    assert passing(device, 100, size=300) == 4
    bench.clock.advance(0.2)
    # 200 were owed.
    assert passing(device, 1, size=0) == 1
    bench.clock.advance(0.5)
    assert passing(device, 100, size=300) == 2


def test_directions_do_not_know_each_other(bench: Bench) -> None:
    device = bench.device(bench.scope(messages_in=(10, 5), messages_out=(10, 3)))
    assert passing(device, 100, is_output=True) == 3
    assert passing(device, 100) == 5


def test_every_scope_has_to_have_tokens(bench: Bench) -> None:
    user = bench.scope("user", messages_in=(10, 6))
    one = bench.device(bench.scope(messages_in=(10, 4)), user)
    other = bench.device(bench.scope(messages_in=(10, 4)), user)
    assert passing(one, 100) == 4
    assert passing(other, 100) == 2


def test_who_waits_goes_on_when_there_are_tokens(bench: Bench) -> None:
    scope = bench.scope(messages_in=(10, 10))
    device = bench.device(scope)
    assert device.limits is not None
    passing(device, 100)
    device.limits.wait_for_tokens(is_output=False)
    assert bench.noted == [("client", "messages_in_per_s")]
    assert bench.pacer.held()["client.messages_in_per_s"] == 1
    assert scope.waiting_count == 1
    bench.pass_time(0.15)
    assert device.came == []
    bench.pass_time(0.1)
    assert device.came == [False]
    assert scope.waiting_count == 0


def test_output_that_waits_goes_on_as_output(bench: Bench) -> None:
    device = bench.device(bench.scope(bytes_out=(1_000, 1_000)))
    assert device.limits is not None
    assert device.limits.is_output_limited
    passing(device, 100, size=500, is_output=True)
    device.limits.wait_for_tokens(is_output=True)
    assert bench.noted == [("client", "bytes_out_per_s")]
    bench.pass_time(1)
    assert device.came == [True]


def test_tokens_of_a_shared_scope_go_to_those_that_wait_longest(bench: Bench) -> None:
    scope = bench.scope("address", messages_in=(10, 10))
    devices = [bench.device(scope, takes=1) for _ in range(20)]
    passing(devices[0], 100)
    for device in devices:
        assert device.limits is not None
        device.limits.wait_for_tokens(is_output=False)
    # A second brings ten messages, for ten of them.
    bench.pass_time(1.05)
    assert [len(device.came) for device in devices] == [1] * 10 + [0] * 10
    bench.pass_time(1)
    assert [len(device.came) for device in devices] == [1] * 20


def test_a_flood_of_a_thousand_gets_the_rate_and_no_more(bench: Bench) -> None:
    scope = bench.scope("address", messages_in=(100, 100))
    devices = [bench.device(scope, takes=1_000) for _ in range(1_000)]
    for device in devices:
        assert device.limits is not None
        if device.limits.take_message(0, is_output=False):
            device.limits.wait_for_tokens(is_output=False)
    before = sum(len(device.came) for device in devices)
    bench.pass_time(10)
    # Ten seconds' worth; each that went on took what there was at once.
    assert sum(len(device.came) for device in devices) - before <= 1_000
    assert scope.left(0) <= 100


def test_who_has_gone_is_passed_over(bench: Bench) -> None:
    scope = bench.scope("user", messages_in=(10, 10))
    gone, stays = bench.device(scope), bench.device(scope)
    assert gone.limits is not None
    assert stays.limits is not None
    passing(gone, 100)
    gone.limits.wait_for_tokens(is_output=False)
    stays.limits.wait_for_tokens(is_output=False)
    gone.limits.close()
    bench.pass_time(1)
    assert gone.came == []
    assert stays.came == [False]


def test_a_device_waits_for_the_scope_that_lacks_most(bench: Bench) -> None:
    slow, quick = bench.scope("user", messages_in=(1, 1)), bench.scope("client", messages_in=(100, 1))
    device = bench.device(quick, slow)
    assert device.limits is not None
    passing(device, 3)
    device.limits.wait_for_tokens(is_output=False)
    assert (slow.waiting_count, quick.waiting_count) == (1, 0)
    bench.pass_time(0.9)
    assert device.came == []
    bench.pass_time(0.2)
    assert device.came == [False]


def test_connects_are_taken_or_not(bench: Bench) -> None:
    scope = bench.scope("listener", connects=(10, 3))
    assert [scope.takes_connect(bench.pacer) for _ in range(5)] == [True] * 3 + [False] * 2
    bench.clock.advance(0.1)
    assert [scope.takes_connect(bench.pacer) for _ in range(2)] == [True, False]
    assert bench.pacer.held()["listener.connects_per_s"] == 3
    assert bench.scope("listener").takes_connect(bench.pacer)


def test_the_highest_rate_does_not_overflow(bench: Bench) -> None:
    rate = limits.MQTT_RATE_MAX
    device = bench.device(bench.scope(bytes_in=(rate, rate)))
    bench.clock.advance(365 * 86_400)
    assert device.limits is not None
    assert not device.limits.take_message(rate - 1, is_output=False)
    assert device.limits.take_message(1, is_output=False)
    bench.clock.advance(1)
    assert not device.limits.take_message(rate - 1, is_output=False)


def test_a_large_debt_is_paid_in_full(bench: Bench) -> None:
    device = bench.device(bench.scope(bytes_in=(1_000, 1_000)))
    assert device.limits is not None
    assert device.limits.take_message(1_000_000, is_output=False)
    device.limits.wait_for_tokens(is_output=False)
    bench.pass_time(998)
    assert device.came == []
    bench.pass_time(2)
    assert device.came == [False]


def test_five_scopes_are_too_many(bench: Bench) -> None:
    with pytest.raises(ValueError, match="5 scopes"):
        bench.device(*(bench.scope() for _ in range(5)))


def test_the_wheel_rests_when_nobody_waits(bench: Bench) -> None:
    device = bench.device(bench.scope(messages_in=(10, 1)))
    assert device.limits is not None
    passing(device, 2)
    device.limits.wait_for_tokens(is_output=False)
    assert len(bench.loop.timers) == 1
    bench.pass_time(1)
    assert bench.loop.timers == []
