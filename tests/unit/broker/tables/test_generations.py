"""Generations of logs and topics: since when offsets mean what they mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock
from store_model import BORN_HOST, batch, open_small

from iotmq import limits
from iotmq.broker.tables.generations import Change, Generations, LogGenerations
from iotmq.broker.tables.topics import TopicConfig
from iotmq.errors import RefusedError, RequestError
from iotmq.remoting.codes import ResponseCode
from iotmq.store.log.queue import Queue

START_MS = 1_700_000_000_000
TOPIC = TopicConfig(topic_name="T")


class Ends:
    """A queue of which only the positions of its records matter."""

    def __init__(self, positions: list[int]) -> None:
        self._positions = positions

    def first_from(self, position: int) -> int:
        return sum(each < position for each in self._positions)


def queue(*positions: int) -> Queue:
    return Ends(list(positions))  # type: ignore[return-value]


def started(path: Path, clock: ManualClock, end_position: int, min_position: int = 0) -> LogGenerations:
    log = LogGenerations(path, clock)
    log.begin(min_position=min_position, end_position=end_position)
    return log


def change(log: LogGenerations, since: str, of: Queue | None, topic: TopicConfig = TOPIC) -> Change | None:
    return Generations(log, is_replicated=False).change(topic, of, since)


def current(log: LogGenerations, topic: TopicConfig = TOPIC) -> str:
    return Generations(log, is_replicated=False).current(topic)


def test_every_start_begins_a_generation_and_loses_nothing_that_is_still_there(tmp_path: Path) -> None:
    path, clock = tmp_path / "g.json", ManualClock(START_MS)
    first = current(started(path, clock, 0))
    assert first == f"{START_MS}-0"
    clock.advance(1)
    log = started(path, clock, 300)
    assert log() == [(START_MS, 0), (START_MS + 1000, 300)]
    assert change(log, current(log), queue(0, 100, 200)) is None
    # Offset 3 is the next one, and so it was.
    assert change(log, first, queue(0, 100, 200)) == Change(3, "cut")
    assert change(log, first, queue(0, 100, 200, 300, 400)) == Change(3, "cut")
    assert change(log, first, None) == Change(0, "cut")


def test_a_log_that_has_lost_its_end_has_other_records_from_there_on(tmp_path: Path) -> None:
    path, clock = tmp_path / "g.json", ManualClock(START_MS)
    started(path, clock, 0)
    clock.advance(1)
    before = current(started(path, clock, 200))
    clock.advance(1)
    # It had grown to 500, and a power cut has taken it back to 300.
    log = started(path, clock, 300)
    assert change(log, before, queue(0, 100, 250, 310, 400)) == Change(3, "cut")
    clock.advance(1)
    # One that takes it back further withdraws what began behind.
    log = started(path, clock, 150)
    assert [position for _, position in log()] == [0, 150]
    assert change(log, before, queue(0, 100, 250)) == Change(2, "cut")


def test_a_copy_that_is_put_back_and_an_empty_directory_are_recognised(tmp_path: Path) -> None:
    path, clock = tmp_path / "g.json", ManualClock(START_MS)
    started(path, clock, 0)
    copy = path.read_bytes()
    clock.advance(1)
    lost = current(started(path, clock, 100))
    path.write_bytes(copy)
    path.with_name("g.json.bak").unlink()
    clock.advance(1)
    log = started(path, clock, 80)
    assert change(log, lost, queue(0, 90)) == Change(1, "cut")
    path.unlink()
    path.with_name("g.json.bak").unlink()
    clock.advance(1)
    assert change(started(path, clock, 0), lost, queue(0, 90)) == Change(0, "cut")
    # Also when the clock of the machine is behind: nobody knows that generation.
    path.unlink()
    assert change(started(path, ManualClock(1000), 0), lost, queue(0, 90)) == Change(0, "cut")


def test_starts_without_records_between_them_are_one(tmp_path: Path) -> None:
    path, clock = tmp_path / "g.json", ManualClock(START_MS)
    for _ in range(3):
        log = started(path, clock, 100)
    assert log() == [(START_MS + 2, 100)]
    assert json.loads(path.read_bytes()) == {"logGenerations": [[START_MS + 2, 100]]}


def test_of_the_generations_in_front_of_the_log_one_stays(tmp_path: Path) -> None:
    path, clock = tmp_path / "g.json", ManualClock(START_MS)
    for position in (0, 100, 200, 300):
        started(path, clock, position)
    log = started(path, clock, 400, min_position=250)
    assert [position for _, position in log()] == [200, 300, 400]


def test_of_very_many_generations_the_oldest_two_become_one(tmp_path: Path) -> None:
    path, clock = tmp_path / "g.json", ManualClock(START_MS)
    log = LogGenerations(path, clock, generations_max=3)
    numbers = []
    for position in (0, 100, 200):
        log.begin(min_position=0, end_position=position)
        numbers.append(log()[-1][0])
    assert len(log()) == 3
    log.begin(min_position=0, end_position=300)
    # A reader of the first one is told of more than has changed, one of the others of exactly that.
    assert [position for _, position in log()] == [0, 200, 300]
    of = queue(0, 100, 200, 300)
    assert change(log, f"{numbers[0]}-0", of) == Change(0, "cut")
    assert change(log, f"{numbers[1]}-0", of) == Change(2, "cut")
    assert limits.LOG_GENERATIONS_MAX == 1024


def test_a_topic_that_was_made_anew_begins_where_it_was_made(tmp_path: Path) -> None:
    log = started(tmp_path / "g.json", ManualClock(START_MS), 0)
    anew = TopicConfig(topic_name="T", made_at_position=250)
    former = current(log)
    assert change(log, former, queue(0, 100, 300), anew) == Change(2, "anew")
    assert change(log, former, None, anew) == Change(0, "anew")
    assert change(log, current(log, anew), queue(0, 100, 300), anew) is None


def test_the_earlier_of_two_changes_counts(tmp_path: Path) -> None:
    path, clock = tmp_path / "g.json", ManualClock(START_MS)
    former = current(started(path, clock, 0))
    clock.advance(1)
    log = started(path, clock, 100)
    of = queue(0, 50, 100, 200)
    assert change(log, former, of, TopicConfig(topic_name="T", made_at_position=150)) == Change(2, "cut")
    assert change(log, former, of, TopicConfig(topic_name="T", made_at_position=60)) == Change(2, "anew")


def test_a_replicated_broker_has_epochs_and_does_not_judge_those_of_a_newer_master() -> None:
    epochs = [(3, 0), (5, 200)]
    replicated = Generations(lambda: epochs, is_replicated=True)
    assert replicated.current(TOPIC) == "5-0"
    assert replicated.change(TOPIC, queue(0, 100, 200), "5-0") is None
    assert replicated.change(TOPIC, queue(0, 100, 200), "4-0") == Change(2, "cut")
    with pytest.raises(RequestError, match="a newer master") as raised:
        replicated.change(TOPIC, queue(0), "6-0")
    assert raised.value.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_who_copies_a_log_says_nothing() -> None:
    slave = Generations(tuple, is_replicated=False)
    assert slave.current(TOPIC) == ""
    assert slave.change(TOPIC, queue(0), "7-0") is None


@pytest.mark.parametrize("text", ["x", "1", "-", "1-", "-1", "1-x", "1--2", "\u0663-1", "9" * 19 + "-0"])
def test_what_is_no_generation_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(RefusedError, match="generation"):
        change(started(tmp_path / "g.json", ManualClock(START_MS), 0), text, queue(0))


def test_a_disk_that_takes_nothing_is_no_reason_not_to_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    log = LogGenerations(tmp_path / "g.json", ManualClock(START_MS))
    (tmp_path / "g.json.tmp").mkdir()
    log.begin(min_position=0, end_position=100)
    assert log() == [(START_MS, 100)]
    assert "cannot write" in caplog.text


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_a_reader_is_told_of_exactly_what_is_not_what_it_has_read(steps: list[tuple[int, int]]) -> None:
    """Lives of a log: each appends some records and loses some of its end, then the broker starts again."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(dir="/dev/shm") as directory:
        path, clock = Path(directory) / "g.json", ManualClock(START_MS)
        log: list[int] = []  # every record has a number of its own; it stands at its place * 10
        made = 0
        readers: list[tuple[str, list[int]]] = []
        for appended, lost in steps:
            generations = started(path, clock, 10 * len(log))
            of = queue(*(10 * place for place in range(len(log))))
            for since, seen in readers:
                told = change(generations, since, of)
                same = sum(a == b for a, b in zip(seen, log, strict=False))
                begin = len(seen) if told is None else min(told.offset, len(seen))
                assert begin == same
            log.extend(range(made, made + appended))
            made += appended
            readers.append((current(generations), list(log)))
            del log[max(0, len(log) - lost) :]
            clock.advance(1)


def test_the_first_offset_from_a_position_is_that_of_the_queue(tmp_path: Path) -> None:
    store = open_small(tmp_path, clock=ManualClock(START_MS))
    for number in range(20):
        store.append(store.queue("T", number % 2), batch(b"x"), born_timestamp_ms=1, born_host=BORN_HOST)
    of = store.queue("T", 1)
    positions = [of.entry(offset)[0] for offset in range(10)]  # type: ignore[index]
    for offset, position in enumerate(positions):
        assert of.first_from(position) == offset
        assert of.first_from(position + 1) == offset + 1
    assert of.first_from(0) == 0
    assert store.queue("T", 5).first_from(7) == 0
    store.close()
