"""The filter index against a list of filters and `topics.matches`, through any series of changes."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from iotmq.mqtt.topics.filters import FilterIndex
from iotmq.mqtt.topics.topics import matches

LEVEL = st.sampled_from(["", "a", "b", "$s", "é"])
TOPIC = st.lists(LEVEL, min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.one_of(LEVEL, st.just("+")), max_size=4))
    if not levels or draw(st.booleans()):
        levels.append("#")
    return "/".join(levels) or "+"


class FilterIndexMachine(RuleBasedStateMachine):
    """Few levels, few shapes and a small cache, so that every path is taken often."""

    def __init__(self) -> None:
        super().__init__()
        self.index = FilterIndex(cached_topics_max=4, cached_bytes_max=16 * 1024)
        self.ids: dict[str, int] = {}

    @rule(topic_filter=filters())
    def add(self, topic_filter: str) -> None:
        filter_id = self.index.add(topic_filter)
        if topic_filter in self.ids:
            assert filter_id == self.ids[topic_filter]
        else:
            assert filter_id not in self.ids.values()
            self.ids[topic_filter] = filter_id

    @precondition(lambda self: self.ids)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        topic_filter = data.draw(st.sampled_from(sorted(self.ids)))
        assert self.index.remove(topic_filter) == self.ids.pop(topic_filter)

    @rule(topic=TOPIC)
    def match(self, topic: str) -> None:
        expected = sorted(number for name, number in self.ids.items() if matches(name, topic))
        assert self.index.match(topic) == expected

    @invariant()
    def knows_what_was_added(self) -> None:
        self.index.check_invariants()
        assert len(self.index) == len(self.ids)
        assert self.index.is_empty is (not self.ids)
        assert all(self.index.id_of(name) == number for name, number in self.ids.items())


TestFilterIndex = FilterIndexMachine.TestCase
TestFilterIndex.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
