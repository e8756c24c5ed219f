"""Topics hidden from readers in a log that is trimmed all the time: what is hidden stays hidden."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from store_model import wait_flushed
from store_trim_machine import TOPICS, TrimMachine

from iotmq.store.store import Store


class HideMachine(TrimMachine):
    """As the broker does it: positions are said again after each start, until the log has passed them."""

    @property
    def hidden(self) -> dict[str, int]:
        found: dict[str, int] = self.__dict__.setdefault("_hidden_positions", {})
        return found

    def open_store(self) -> Store:
        store = super().open_store()
        store.hide_topics({topic: min(p, store.appended_position) for topic, p in self.hidden.items()})
        return store

    def begin(self, topic: str) -> int:
        return max(self.store.min_position, self.hidden.get(topic, 0))

    @rule(topic=st.sampled_from(TOPICS))
    def hide(self, topic: str) -> None:
        self.hidden[topic] = self.store.appended_position
        self.store.hide_topics({topic: self.store.appended_position})

    @rule(topic=st.sampled_from(TOPICS))
    def forget_what_the_log_has_passed(self, topic: str) -> None:
        """Queues and memory go, and the next message of the topic has offset 0."""
        position = self.hidden.get(topic)
        if position is None or position > self.store.gone_position:
            return
        wait_flushed(self.store)
        if self.store.remove_queues({topic}):
            assert not any(
                r.topic == topic and r.position >= self.store.gone_position for r in self.model.records
            )
            self.model.records = [r for r in self.model.records if r.topic != topic]
            assert all(queue.topic != topic for queue in self.store.queues())
        del self.hidden[topic]


HideMachine.TestCase.settings = settings(max_examples=settings().max_examples // 10, stateful_step_count=30)
TestStoreHideModel = HideMachine.TestCase


def test_the_books_agree_while_a_removed_queue_waits_for_its_checkpoint() -> None:
    machine = HideMachine()
    machine.open(flush="async", segment_bytes=12_288, queue_file_entries=2)
    machine.fill_disk(excess_bytes=1)
    machine.lose_queues()
    machine.hide(topic="a")
    machine.append_much(topic="telemetry", count=4, body_bytes=564)
    machine.fill_disk(excess_bytes=1)
    machine.lose_queues()
    machine.forget_what_the_log_has_passed(topic="a")
    machine.never_back()
    machine.teardown()
