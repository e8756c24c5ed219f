"""Marks of filters against a plain set, through any series of changes."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from iotmq.broker.delivery.filter_marks import FilterMarks

SHARDS = 256
TOPIC = st.integers(0, 40).map(lambda number: b"t/%d" % number)
CHANNEL = st.sampled_from([1, 2, 65_535])
FILTER_ID = st.sampled_from([1, 2, (1 << 32) - 1])


class FilterMarksMachine(RuleBasedStateMachine):
    """Few channels and ids; many topics at once, so that shards grow, shrink and collide."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = FilterMarks()
        self.model: set[tuple[bytes, int, int]] = set()

    @rule(topic=TOPIC, channel=CHANNEL, filter_id=FILTER_ID)
    def add(self, topic: bytes, channel: int, filter_id: int) -> None:
        assert self.marks.add(topic, channel, filter_id) is ((topic, channel, filter_id) not in self.model)
        self.model.add((topic, channel, filter_id))

    @rule(topic=TOPIC, channel=CHANNEL, count=st.integers(1, 60))
    def add_many_of_one_topic(self, topic: bytes, channel: int, count: int) -> None:
        for filter_id in range(10, 10 + count):
            self.add(topic, channel, filter_id)

    @rule(topic=TOPIC, channel=CHANNEL, filter_id=FILTER_ID)
    def remove_perhaps(self, topic: bytes, channel: int, filter_id: int) -> None:
        assert self.marks.remove(topic, channel, filter_id) is ((topic, channel, filter_id) in self.model)
        self.model.discard((topic, channel, filter_id))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self.remove_perhaps(*data.draw(st.sampled_from(sorted(self.model))))

    @rule(channel=CHANNEL)
    def drop(self, channel: int) -> None:
        for shard in range(SHARDS):
            self.marks.drop(channel, shard)
        self.model = {mark for mark in self.model if mark[1] != channel}

    @rule(topic=TOPIC)
    def find(self, topic: bytes) -> None:
        expected = sorted((channel, number) for name, channel, number in self.model if name == topic)
        assert sorted(self.marks.of_topic(topic)) == expected

    @invariant()
    def keeps_count(self) -> None:
        self.marks.check_invariants()
        assert self.marks.count == len(self.model)


TestFilterMarks = FilterMarksMachine.TestCase
