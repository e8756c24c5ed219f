"""What permissions decide is what trying every topic decides, over small alphabets."""

from __future__ import annotations

from functools import cache
from itertools import product

from hypothesis import example, given
from hypothesis import strategies as st

from iotmq.mqtt.topics.topics import matches
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.permissions.clauses import fitting
from iotmq.mqtt_front.permissions.containment import all_allowed, is_matched
from iotmq.mqtt_front.permissions.decisions import EVERY_SIZE, OwnTopics, RulesPolicy
from iotmq.mqtt_front.permissions.rule import NO_RULE, PUBLISH, SUBSCRIBE, Conditions, Rule, Use
from iotmq.mqtt_front.permissions.rule_set import clauses_of
from iotmq.mqtt_front.permissions.topic_template import Subject, filled, parse_template

# The last of each stand for all texts that no filter names.
LEVELS = ("a", "b", "", "$s", "z")
FIRST_LEVELS = (*LEVELS, "$z")
DEPTH_MAX = 3
TOPICS = [
    "/".join(levels)
    for depth in range(1, DEPTH_MAX + 2)
    for levels in product(FIRST_LEVELS, *[LEVELS] * (depth - 1))
    if levels != ("",)
]


@st.composite
def filters(draw: st.DrawFn) -> str:
    depth = draw(st.integers(1, DEPTH_MAX))
    levels = [draw(st.sampled_from(("a", "b", "+", "$s", "") if depth > 1 else ("a", "b", "+", "$s")))]
    levels += [draw(st.sampled_from(("a", "b", "+", "", "$s"))) for _ in range(depth - 1)]
    if draw(st.integers(0, 3)) == 0:
        levels[-1] = "#"
    return "/".join(levels)


rules = st.lists(st.tuples(filters(), st.booleans()), max_size=7)


@cache
def topics_of(name: str) -> tuple[str, ...]:
    """All topics that a filter matches."""
    return tuple(topic for topic in TOPICS if matches(name, topic))


def is_allowed(rules: list[tuple[str, bool]], topic: str) -> bool:
    """The first rule that matches decides."""
    return next((allows for name, allows in rules if matches(name, topic)), False)


@given(filters(), rules)
@example("a/#", [("a/b", False), ("a/#", True)])
@example("a/#", [("a/b/#", True), ("a/+/#", True), ("a", True)])
@example("#", [("+/#", True)])
@example("#", [("+", True), ("+/+", True), ("+/+/#", True)])
@example("+/+", [("a/+", True), ("+/b", False), ("+/+", True)])
@example("$s/#", [("#", True)])
@example("a/b", [("a/b/#", True)])
@example("a/b/#", [("a/b", True), ("a/b/+/#", True)])
@example("+/#", [("#", True)])
@example("#", [("+/#", True), ("$s/#", False)])
@example("a/+/#", [("a/#", True), ("a", False)])
@example("a/#", [("a/+/#", True)])
@example("/#", [("+/#", True)])
@example("/#", [("/+", True)])
@example("/+", [("/", True)])
@example("+/+", [("/+", False), ("+/+", True)])
@example("a/", [("a/#", True)])
@example("a/#", [("a/", False), ("a/#", True)])
@example("$s/+/#", [("$s/#", True), ("#", False)])
@example("a/$s/#", [("a/+/#", True)])
@example("a/+", [("a/$s", False), ("a/+", True)])
def test_a_filter_is_allowed_when_every_topic_of_it_is(wanted: str, rules: list[tuple[str, bool]]) -> None:
    verdict = all_allowed(wanted.split("/"), [(name.split("/"), allows) for name, allows in rules])
    refused = [topic for topic in topics_of(wanted) if not is_allowed(rules, topic)]
    assert verdict.is_decided
    assert verdict.is_allowed is (not refused), (refused[:3], verdict)
    if not verdict.is_allowed:
        assert matches(wanted, verdict.witness)
        assert not is_allowed(rules, verdict.witness)
        first = next((at for at, (name, _) in enumerate(rules) if matches(name, verdict.witness)), None)
        assert verdict.rule == first


@given(filters(), st.sampled_from(TOPICS))
def test_topics_match_as_everywhere(name: str, topic: str) -> None:
    assert is_matched(name.split("/"), topic.split("/")) is matches(name, topic)


# Rules with placeholders, and names that devices may have chosen.

NAMES = ("a", "b", "z", "", "+", "#", "a/b", "$s", "a\0")


@st.composite
def templates(draw: st.DrawFn) -> str:
    depth = draw(st.integers(1, DEPTH_MAX))
    levels = [draw(st.sampled_from(("a", "b", "+", "$s", "%c", "%u", "%g")))]
    levels += [draw(st.sampled_from(("a", "+", "%c", "%{t}"))) for _ in range(depth - 1)]
    if draw(st.integers(0, 3)) == 0:
        levels[-1] = "#"
    return "/".join(levels)


subjects = st.builds(
    lambda client_id, user, groups, attribute: Subject(
        client_id, Identity(user=user, groups=tuple(groups), attributes={"t": attribute})
    ),
    st.sampled_from(NAMES),
    st.none() | st.sampled_from(NAMES),
    st.lists(st.sampled_from(NAMES), max_size=2),
    st.sampled_from(NAMES),
)
conditions = st.builds(
    Conditions,
    qos=st.none() | st.sampled_from([frozenset({0}), frozenset({0, 1}), frozenset({1, 2})]),
    retain=st.none() | st.booleans(),
    delayed=st.none() | st.booleans(),
)


@st.composite
def rules_of_a_file(draw: st.DrawFn) -> list[Rule]:
    found = []
    for number in range(draw(st.integers(0, 5))):
        is_allow = draw(st.booleans())
        narrowed = draw(conditions)
        if is_allow and draw(st.booleans()):
            narrowed = Conditions(narrowed.qos, narrowed.retain, payload_bytes_max=draw(st.integers(0, 3)))
        topics = draw(st.lists(templates(), min_size=1, max_size=2))
        found.append(
            Rule(
                f"{number}",
                is_allow,
                PUBLISH | SUBSCRIBE,
                tuple(map(parse_template, topics)),
                conditions=narrowed,
            )
        )
    return found


def expanded(rules: list[Rule], subject: Subject) -> list[tuple[str, Rule]]:
    """The filters of all rules for a device."""
    return [
        ("/".join(levels), rule)
        for rule in rules
        for topic in rule.topics
        for levels in filled(topic, subject, is_deny=not rule.is_allow)
    ]


@given(rules_of_a_file(), subjects, st.sampled_from(TOPICS), st.booleans())
def test_what_is_remembered_of_a_topic_is_what_each_message_would_get(
    rules: list[Rule], subject: Subject, topic: str, is_delayed: bool
) -> None:
    clauses = clauses_of(rules)
    policy = RulesPolicy(subject, clauses.publish, clauses.subscribe)
    rooms = policy.rooms(topic, is_delayed=is_delayed)
    for qos, is_retained, size in product(range(3), (False, True), range(5)):
        use = Use(PUBLISH, qos, is_retained=is_retained, is_delayed=is_delayed, payload_bytes=size)
        slow = next(
            (
                rule
                for name, rule in expanded(rules, subject)
                if matches(name, topic)
                and rule.conditions.hold(use)
                and (rule.conditions.payload_bytes_max is None or size <= rule.conditions.payload_bytes_max)
            ),
            None,
        )
        decision = policy.may_publish(topic, use)
        assert decision.is_allowed is (slow is not None and slow.is_allow)
        room = rooms.room[qos * 2 + is_retained]
        assert (size < room) is decision.is_allowed
        if not decision.is_allowed:
            assert rooms.refusals is not None
            assert rooms.refusals[qos * 2 + is_retained] == decision
            assert (decision.rule == NO_RULE) is not any(
                rule.is_allow or rule.conditions.hold(use)
                for name, rule in expanded(rules, subject)
                if matches(name, topic)
            )
    assert (rooms.refusals is None) is (set(rooms.room) == {EVERY_SIZE})


@given(rules_of_a_file(), subjects, filters(), st.integers(0, 2))
def test_a_subscription_gets_the_highest_qos_at_which_all_of_it_is_allowed(
    rules: list[Rule], subject: Subject, wanted: str, qos: int
) -> None:
    clauses = clauses_of(rules)
    decision = RulesPolicy(subject, clauses.publish, clauses.subscribe).may_subscribe(
        wanted, Use(SUBSCRIBE, qos)
    )

    def is_good(qos: int) -> bool:
        usable = [
            (name, rule.is_allow)
            for name, rule in expanded(rules, subject)
            if rule.conditions.hold(Use(SUBSCRIBE, qos))
        ]
        return all(is_allowed(usable, topic) for topic in topics_of(wanted))

    granted = next((each for each in range(qos, -1, -1) if is_good(each)), None)
    assert decision.is_allowed is (granted is not None)
    if granted is not None:
        assert min(decision.qos, qos) == granted


@given(rules_of_a_file(), subjects, filters() | st.sampled_from(TOPICS))
def test_rules_that_have_nothing_in_common_with_a_filter_are_left_out_and_no_other(
    rules: list[Rule], subject: Subject, wanted: str
) -> None:
    clauses = clauses_of(rules).publish
    found = fitting(clauses, wanted.split("/"), subject)
    for clause in clauses:
        names = ["/".join(levels) for levels in filled(clause.levels, subject, is_deny=clause.is_deny)]
        common = set(topics_of(wanted)).intersection(topic for name in names for topic in topics_of(name))
        assert clause in found or not common
        if clause in found and names:
            assert common


@given(subjects, st.sampled_from(TOPICS))
def test_no_name_of_a_device_makes_a_rule_wider(subject: Subject, topic: str) -> None:
    """Whatever it is called, a rule with its name in it allows topics with exactly that level alone."""
    for template in ("x/%c", "%u/#", "%c/%u/%{t}", "%g/+"):
        for levels in filled(parse_template(template), subject, is_deny=False):
            for level, own in zip(template.split("/"), levels, strict=True):
                assert level == own if "%" not in level else "+" not in own and "#" not in own and own
                assert "/" not in own
                assert not own.startswith("$")


@given(st.sampled_from(NAMES), filters())
def test_own_topics_are_those_with_the_name_in_all_of_them(name: str, wanted: str) -> None:
    decision = OwnTopics((name,)).may_subscribe(wanted, Use(SUBSCRIBE))
    topics = topics_of(wanted)
    assert decision.is_allowed is (
        name not in ("", "+", "#", "a/b", "$s", "a\0")
        and all(name in topic.split("/") and not topic.startswith("$") for topic in topics)
    )
