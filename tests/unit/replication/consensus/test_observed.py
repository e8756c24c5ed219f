"""Ages of signs of life, by the observer's clock."""

from iotmq.replication.consensus.observed import ObservedChanges


def test_an_age_is_the_least_that_the_two_looks_prove() -> None:
    observed = ObservedChanges()
    assert observed.age_s(1, "a", asked_s=10.0, answered_s=10.5) is None
    # Seen at 10.5, and there unchanged at 12 at least.
    assert observed.age_s(1, "a", asked_s=12.0, answered_s=13.0) == 1.5
    assert observed.age_s(1, "b", asked_s=14.0, answered_s=15.0) == 0
    # Two questions at the same time.
    assert observed.age_s(1, "b", asked_s=14.0, answered_s=15.0) == 0


def test_members_that_are_gone_are_forgotten() -> None:
    observed = ObservedChanges()
    for member in (1, 2):
        observed.age_s(member, "a", asked_s=1.0, answered_s=1.0)
    observed.forget_others([2])
    assert observed.age_s(1, "a", asked_s=5.0, answered_s=5.0) is None
    assert observed.age_s(2, "a", asked_s=5.0, answered_s=5.0) == 4.0
