"""How reports of sessions are split among brokers and requests."""

from __future__ import annotations

from iotmq import limits
from iotmq.front_port.session_parts import progress_pages
from iotmq.ports import bodies
from iotmq.ports.sessions import InFlight, SessionProgress

LARGE_QUEUE, LARGE_POSITION = (1 << 32) - 1, (1 << 62) - 1


def change_of(number: int, queues: int, flights: int = 0) -> SessionProgress:
    """Progress with numbers that take the most bytes."""
    return SessionProgress(
        f"client-{number}",
        LARGE_POSITION,
        [(LARGE_QUEUE, LARGE_POSITION, LARGE_POSITION)] * queues,
        None,
        [InFlight(65_535, LARGE_QUEUE, LARGE_POSITION, True)] * flights,
        [(LARGE_QUEUE, LARGE_POSITION)] * flights,
    )


def test_progress_of_many_filters_goes_in_requests_that_fit_a_frame() -> None:
    queues = limits.MQTT_SUBSCRIPTIONS_PER_SESSION_MAX
    changes = [change_of(number, queues, limits.MQTT_FLIGHTS_MAX) for number in range(256)]
    pages = list(progress_pages(changes))
    assert [change for page in pages for change in page] == changes
    sizes = [len(bodies.encode(page)) for page in pages]
    assert max(sizes) < limits.FRAME_BYTES_MAX // 2
    assert sum(sizes) > limits.FRAME_BYTES_MAX, "all of it would not have gone in one"


def test_a_session_that_is_more_than_a_page_has_one_of_its_own() -> None:
    changes = [change_of(0, 1), change_of(1, 400_000), change_of(2, 1)]
    assert [len(page) for page in progress_pages(changes)] == [1, 1, 1]


def test_progress_of_few_filters_goes_in_requests_of_as_many_sessions_as_one_takes() -> None:
    count = limits.SESSIONS_PER_REQUEST_MAX
    changes = [change_of(number, 1) for number in range(2 * count + 1)]
    assert [len(page) for page in progress_pages(changes)] == [count, count, 1]
    assert list(progress_pages([])) == []
