"""The checker of the crash tests: it has to see each kind of loss, or their passing means nothing."""

from __future__ import annotations

import pytest
from crash_load import NativeProducer, check_sender
from log_reader import StoredMessage
from mqtt_publisher import Publisher


def publisher(*, sent: int, acknowledged: int) -> Publisher:
    each = Publisher(0, "p", "t")
    each._next_number = sent
    each.acknowledged = list(range(acknowledged))
    return each


def queue(queue_id: int, *numbers: int) -> list[StoredMessage]:
    return [
        StoredMessage("mqtt", queue_id, offset, offset * 100, b"p-%d" % number, {}, 0)
        for offset, number in enumerate(numbers)
    ]


def test_what_is_right_passes() -> None:
    check_sender(publisher(sent=4, acknowledged=3), {0: queue(0, 0, 1, 2), 1: []})
    # Stored and not acknowledged is no fault.
    check_sender(publisher(sent=4, acknowledged=3), {0: queue(0, 0, 1, 2, 3)})
    again = publisher(sent=4, acknowledged=4)
    again.resent = {2: 1, 3: 1}
    check_sender(again, {0: queue(0, 0, 1, 2, 3, 2, 3)})


@pytest.mark.parametrize(
    ("queues", "fault"),
    [
        ({0: queue(0, 0, 2, 3)}, "acknowledged and lost"),
        ({0: queue(0, 0, 2, 1, 3)}, "out of order"),
        ({0: queue(0, 0, 1, 2, 3, 3)}, "more copies than were sent"),
        ({0: queue(0, 0, 1), 1: queue(1, 2, 3)}, "several queues"),
    ],
)
def test_what_is_wrong_is_named(queues: dict[int, list[StoredMessage]], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_sender(publisher(sent=4, acknowledged=4), queues)


def test_a_native_message_has_to_be_where_its_answer_said() -> None:
    producer = NativeProducer.__new__(NativeProducer)
    producer.sent_count, producer.acknowledged, producer.resent = 2, [0, 1], {}  # type: ignore[assignment]
    producer.places = {0: (0, 0), 1: (0, 1)}
    stored = [StoredMessage("Native", 0, offset, offset, b"native-%d" % offset, {}, 0) for offset in range(2)]
    check_sender(producer, {0: stored})
    producer.places[1] = (0, 7)
    with pytest.raises(AssertionError, match="not where the acknowledgement says"):
        check_sender(producer, {0: stored})
