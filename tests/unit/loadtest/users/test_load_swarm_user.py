"""What a swarm reports becomes rows of Locust's statistics, and `--host` the server of its plan."""

from __future__ import annotations

from typing import Any

import pytest
from locust.env import Environment

from iotmq.errors import ClientError
from loadtest.swarm import Plan
from loadtest.swarm.histogram import Histogram
from loadtest.users import SwarmUser


class Swarm(SwarmUser):
    plan = Plan(publishers=2, subscribers=2, topic="a/{n}", filter="a/+", deliveries_per_message=1)


COUNTERS = (
    "connected", "ready", "reconnected", "published", "acknowledged", "abandoned", "paced_missed",
    "delivered", "delivered_payload_bytes", "sequence_repeats", "sequence_gaps", "misdelivered",
    "acks_unknown", "acks_out_of_order", "outstanding", "unsent",
)  # fmt: skip
KINDS = ("connection", "subscription", "reconnection", "acknowledgement", "delivery")


def report(*, state: str = "running", times: dict[str, int] | None = None, **counters: int) -> dict[str, Any]:
    """One of the lines of a swarm; `times` are how many new ones of each kind there are."""
    histograms = {}
    for kind in KINDS:
        histogram = Histogram()
        for _ in range((times or {}).get(kind, 0)):
            histogram.record(1_000_000)
        histograms[kind] = histogram.counts()
    return {
        "state": state, "connections": 4, "overdue": 0, "counters": dict.fromkeys(COUNTERS, 0) | counters,
        "histograms": histograms, "faults": {"failed": {}, "lost": {}, "refused": {}}, "cpu_s": 0.1,
    }  # fmt: skip


@pytest.fixture
def user() -> Swarm:
    return Swarm(Environment(user_classes=[Swarm]))


def requests(user: Swarm) -> dict[str, int]:
    return {name: entry.num_requests for (name, _), entry in user.environment.stats.entries.items()}


def failures(user: Swarm) -> dict[tuple[str, str], int]:
    errors = user.environment.stats.errors.values()
    return {(error.name, str(error.error)): error.occurrences for error in errors}


def test_a_connection_that_subscribes_while_a_report_is_made_is_counted_once(user: Swarm) -> None:
    """CONNACK came before one report, and SUBACK before the next."""
    user._take(user.plan, report(connected=2, ready=2, times={"connection": 4}))
    user._take(user.plan, report(connected=4, ready=4, times={"subscription": 2}))
    assert requests(user)["connect"] == 4
    assert requests(user)["subscribe:1:a/+"] == 2


def test_what_a_server_did_not_take_until_the_end_is_a_failure(user: Swarm) -> None:
    user._take(user.plan, report(published=10, acknowledged=7, delivered=7, outstanding=3, unsent=5))
    assert failures(user) == {}
    over = report(state="over", published=10, acknowledged=8, delivered=10, outstanding=2, unsent=5)
    user._take(user.plan, over)
    assert failures(user) == {
        ("publish:1:a/{n}", "no answer in time"): 2,
        ("publish:1:a/{n}", "was due, and could not be sent in time"): 5,
    }


@pytest.mark.parametrize(
    ("host", "values"),
    [
        ("broker:1884", {"host": "broker", "port": 1884, "tls": False, "websocket_path": ""}),
        ("mqtts://broker", {"host": "broker", "port": 8883, "tls": True, "websocket_path": ""}),
        ("ws://broker/x", {"port": 8083, "tls": False, "websocket_path": "/x"}),
        ("wss://broker", {"port": 8084, "tls": True, "websocket_path": "/mqtt"}),
        ("mqtt://me:secret@broker", {"username": "me", "password": "secret"}),
    ],
)
def test_the_host_may_be_a_url(host: str, values: dict[str, Any]) -> None:
    plan = Swarm.plan_of_swarm(0, host)
    assert {name: getattr(plan, name) for name in values} == values


def test_a_host_that_is_no_address_is_refused() -> None:
    with pytest.raises(ClientError, match="the form is"):
        Swarm.plan_of_swarm(0, "http://broker")
