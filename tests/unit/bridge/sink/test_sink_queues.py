"""Which queues keys are spread over, written down and read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotmq.bridge.sink.errors import SinkTopicError
from iotmq.bridge.sink.queues import TEXT_BYTES_MAX, SinkQueue, Written, queues_text, read_written

names = st.text("ab:, -%ü", min_size=1, max_size=6)


@given(
    st.integers(0, (1 << 32) - 1), st.integers(1, 10**9),
    st.sets(st.tuples(names, st.integers(0, 40)), min_size=1, max_size=40),
)  # fmt: skip
def test_what_is_written_is_read_again(checksum: int, batch_bytes: int, queues: set[tuple[str, int]]) -> None:
    written = Written(checksum, batch_bytes, tuple(SinkQueue(*queue) for queue in sorted(queues)))
    assert read_written(written.text()) == written
    assert written.text().isascii()
    assert " " not in queues_text(written.queues)


def test_ranges_are_short() -> None:
    queues = [SinkQueue("a", n) for n in (0, 1, 2, 4)] + [SinkQueue("b", 0)]
    assert queues_text(queues) == "a:0-2,a:4-4,b:0-0"


def test_a_topic_at_too_many_brokers_is_an_error() -> None:
    name = "b" * 56
    most = TEXT_BYTES_MAX // (len(name) + len("0:0-0,"))
    queues_text([SinkQueue(f"{name}{n % 10}", n // 10 * 2) for n in range(most)])
    with pytest.raises(SinkTopicError, match="more than 3500"):
        queues_text([SinkQueue(f"{name}{n:02}", 0) for n in range(most + 1)])


@given(st.text(max_size=30) | st.text("0123456789abcdef :-,", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        written = read_written(text)
    except ValueError:
        return
    assert written.queues


@pytest.mark.parametrize(
    "text",
    ["", "0 1 a:0-0", "00000000 0 a:0-0", "00000000 1 a:1-0", "00000000 1 a:0-99999999", "00000000 1 a"],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not written|no range"):
        read_written(text)
