from iotmq.backoff import Backoff


def test_pauses_double_up_to_the_maximum_and_start_again() -> None:
    backoff = Backoff(min_s=1, max_s=5, chance=lambda: 1.0)
    assert [backoff.next_s() for _ in range(4)] == [1, 2, 4, 5]
    backoff.reset()
    assert backoff.next_s() == 1


def test_jitter_takes_at_most_half_away() -> None:
    backoff = Backoff(min_s=2, max_s=2, chance=lambda: 0.0)
    assert backoff.next_s() == 1


def test_thousands_of_failures_do_not_overflow() -> None:
    backoff = Backoff(min_s=0.1, max_s=3, chance=lambda: 1.0)
    for _ in range(3000):
        pause_s = backoff.next_s()
    assert pause_s == 3
