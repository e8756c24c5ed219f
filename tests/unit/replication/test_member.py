"""What one member does when it is told things that a simulation reaches rarely, or never."""

from __future__ import annotations

import pytest
from replication_sim import SimFile, SimLog

from iotmq import limits
from iotmq.errors import StoreCorruptError, StoreError
from iotmq.replication.cluster_state import ClusterState, Identity, decode_state
from iotmq.replication.member import Beat, Member, Role
from iotmq.replication.messages import (
    Ack,
    Action,
    Alarm,
    AskOthers,
    Confirmed,
    Connect,
    CopyLog,
    CopyNeeded,
    Data,
    Disconnect,
    FollowFrom,
    LoadLog,
    Open,
    ReadState,
    ReplaceState,
    Send,
)
from iotmq.replication.ports import MemberSettings

A, B = Identity(1, "a"), Identity(2, "b")


class Bench:
    """Member 2 of two, over a log and a file in memory."""

    def __init__(self, **settings: float) -> None:
        self.log, self.file = SimLog(), SimFile(B)
        self.done: list[Action] = []
        self.member = Member(MemberSettings(**settings), self.log, self.file, self.done.append)  # type: ignore[arg-type]

    def take(self) -> list[Action]:
        done, self.done[:] = list(self.done), []
        return done

    def told(self, state: ClusterState, version: int = 1, beats: dict[Identity, Beat] | None = None) -> None:
        self.member.start(0.0)
        (read,) = self.take()
        assert isinstance(read, ReadState)
        self.member.beaten(beats or {}, 0.0)
        self.member.state_read(read.number, version, state, 0.0)

    def follow(self, epoch: int = 1, position: int = 0) -> None:
        self.told(ClusterState(epoch=epoch, master=1, in_sync=(A, B)))
        self.member.link_opened(1, 0.0)
        self.member.received(1, FollowFrom(epoch, position, False), 0.0)
        self.take()


def data(position: int, count: int, *, epoch: int = 1, confirmed: int = 0) -> Data:
    content = [("message", epoch, position + number) for number in range(count)]
    return Data(epoch, position, position + count, confirmed, content)


def test_a_follower_takes_what_comes_and_shows_what_is_confirmed() -> None:
    bench = Bench()
    bench.follow()
    bench.member.received(1, data(0, 3), 0.0)
    assert bench.take() == [Send(1, Ack(1, 3, 0))]
    bench.member.received(1, data(3, 1, confirmed=3), 0.0)
    assert bench.take() == [Confirmed(3), Send(1, Ack(1, 4, 0))]
    bench.member.received(1, data(4, 0, confirmed=99), 0.0)
    assert bench.take() == [Confirmed(4), Send(1, Ack(1, 4, 0))], "never more than it has"


def test_what_does_not_continue_the_log_ends_the_connection() -> None:
    bench = Bench()
    bench.follow()
    bench.member.received(1, data(1, 1), 0.0)
    assert bench.take() == [Disconnect(1, is_outgoing=True)]
    assert bench.log.end == 0
    bench.member.received(1, FollowFrom(1, 7, False), 0.0)
    assert bench.take() == [Disconnect(1, is_outgoing=True)], "from where there is nothing"


def test_nothing_of_an_epoch_before_the_promised_one_is_taken() -> None:
    bench = Bench()
    bench.follow()
    bench.file.promised_epoch = 5
    bench.member.received(1, data(0, 1), 0.0)
    bench.member.received(1, FollowFrom(4, 0, False), 0.0)
    bench.member.received(1, CopyNeeded(4), 0.0)
    assert bench.take() == [Disconnect(1, is_outgoing=True)]
    assert bench.log.end == 0
    bench.member.received(1, CopyNeeded(5), 0.0)
    assert bench.take() == [CopyLog(1)]


@pytest.mark.parametrize("is_forced", [False, True])
def test_what_was_confirmed_is_never_cut(is_forced: bool) -> None:
    bench = Bench()
    bench.follow()
    bench.member.received(1, data(0, 5, confirmed=4), 0.0)
    bench.take()
    bench.member.received(1, FollowFrom(1, 4, is_forced), 0.0)
    assert bench.log.end == 4
    bench.take()
    bench.member.received(1, FollowFrom(1, 3, is_forced), 0.0)
    assert bench.member.role is Role.HELD
    (alarm,) = [action for action in bench.take() if isinstance(action, Alarm)]
    assert "move its data directory away" in alarm.text
    assert ("an operator" in alarm.text) is is_forced
    assert bench.log.end == 4


def test_a_store_that_was_restored_from_a_backup_is_noticed() -> None:
    bench = Bench()
    bench.log.append_epoch(4, A)
    bench.told(ClusterState(epoch=3, master=1, in_sync=(A, B)))
    assert bench.member.role is Role.HELD
    (alarm,) = [action for action in bench.take() if isinstance(action, Alarm)]
    assert "iotmq replication adopt" in alarm.text


def test_a_master_with_another_log_than_recorded_waits_for_an_operator() -> None:
    bench = Bench()
    bench.told(ClusterState(epoch=3, master=2, in_sync=(A, Identity(2, "before"))))
    assert bench.member.role is Role.HELD
    assert any(isinstance(action, Alarm) and "replication force" in action.text for action in bench.take())


def test_a_master_that_was_restarted_asks_for_a_new_epoch() -> None:
    bench = Bench()
    bench.file.promised_epoch = 3
    bench.told(ClusterState(epoch=3, master=2, in_sync=(A, B)))
    assert bench.member.role is Role.CANDIDATE
    assert bench.file.promised_epoch == 4, "promised before it is asked for"
    (read,) = [action for action in bench.take() if isinstance(action, ReadState)]
    bench.member.state_read(read.number, 1, ClusterState(epoch=3, master=2, in_sync=(A, B)), 0.0)
    (asked,) = bench.take()
    assert isinstance(asked, ReplaceState)
    assert (asked.version, asked.state.epoch, asked.state.master) == (1, 4, 2)


def test_a_change_without_an_answer_is_asked_for_again_with_the_same_version() -> None:
    bench = Bench()
    bench.file.promised_epoch = 3
    state = ClusterState(epoch=3, master=2, in_sync=(B,))
    bench.told(state)
    (read,) = [action for action in bench.take() if isinstance(action, ReadState)]
    bench.member.state_read(read.number, 1, state, 0.0)
    (first,) = bench.take()
    assert isinstance(first, ReplaceState)
    bench.member.tick(0.1)
    assert bench.take() == []
    bench.member.tick(0.3)
    (again,) = bench.take()
    assert isinstance(again, ReplaceState)
    assert (again.version, again.state) == (first.version, first.state)
    # It was the first that was carried out.
    bench.member.state_replaced(again.number, None, 0.4)
    (read,) = bench.take()
    assert isinstance(read, ReadState)
    bench.member.state_read(read.number, 2, first.state, 0.5)
    assert bench.member.role is Role.LEADING, "alone in the set"


def test_a_master_ends_the_connection_of_who_says_to_have_more_than_there_is() -> None:
    bench = Bench()
    bench.told(ClusterState(epoch=1, master=2, in_sync=(B,)))
    assert bench.member.role is Role.LEADING
    bench.member.received(1, Open(A, 0, 0, 0, 0, ()), 0.0)
    bench.take()
    bench.member.received(1, Ack(1, 99, 99), 0.0)
    assert bench.take() == [Disconnect(1, is_outgoing=False)]


def test_a_follower_counts_for_nothing_that_it_was_not_sent() -> None:
    """What its log has there is not the master's: that log was to be cut, or replaced by a copy."""
    bench, log = lead_with_a_cold_log()
    log.loaded = set(range(20))
    bench.member.received(1, Open(A, 0, 0, 0, 0, ()), 1.0)
    assert sent_by(bench.take()) == [(0, 10), (10, 20)]
    bench.member.received(1, Ack(1, 21, 21), 1.0)
    assert bench.take() == [Disconnect(1, is_outgoing=False)]
    log.oldest = 30
    bench.member.received(1, Open(A, 0, 0, 0, 0, ()), 1.0)
    assert bench.take() == [Send(1, CopyNeeded(1))]
    bench.member.received(1, Ack(1, log.end, log.end), 1.0)
    assert bench.take() == [Disconnect(1, is_outgoing=False)]
    bench.member.tick(1.0)
    assert not any(isinstance(action, ReplaceState) for action in bench.take()), "it has not caught up"


def test_a_follower_that_promised_more_makes_the_master_take_a_later_epoch() -> None:
    bench = Bench()
    bench.told(ClusterState(epoch=1, master=2, in_sync=(B,)))
    bench.member.received(1, Open(A, 7, 0, 0, 0, ()), 0.0)
    assert bench.member.role is Role.CANDIDATE
    assert bench.file.promised_epoch == 8


def test_a_member_in_sync_that_has_lost_its_end_counts_only_when_it_has_caught_up() -> None:
    bench = Bench()
    bench.told(ClusterState(epoch=1, master=2, in_sync=(A, B)))
    record_end = bench.log.end
    bench.member.received(1, Open(A, 0, 0, 0, 0, ()), 0.0)
    bench.member.received(1, Ack(1, record_end, record_end), 0.0)
    bench.log.append("message")
    bench.member.log_grew(0.0)
    bench.member.received(1, Ack(1, bench.log.end, bench.log.end), 0.0)
    assert bench.file.confirmed == bench.log.end
    bench.take()
    bench.member.received(1, Open(A, 0, 0, 0, 0, ()), 0.1)
    assert any(isinstance(action, Alarm) and "older copy" in action.text for action in bench.take())
    bench.log.append("message")
    bench.member.log_grew(0.1)
    confirmed = bench.file.confirmed
    bench.take()
    bench.member.tick(0.1)
    (asked,) = [action for action in bench.take() if isinstance(action, ReplaceState)]
    assert asked.state.in_sync == (B,)
    assert bench.file.confirmed == confirmed, "what it had acknowledged does not count"
    bench.member.state_replaced(asked.number, 2, 0.1)
    assert bench.file.confirmed == bench.log.end
    bench.member.received(1, Ack(1, bench.log.end, bench.log.end), 0.2)
    bench.member.tick(0.2)
    (asked,) = [action for action in bench.take() if isinstance(action, ReplaceState)]
    assert asked.state.in_sync == (A, B)
    bench.member.state_replaced(asked.number, 3, 0.2)
    bench.member.tick(0.3)
    assert not any(isinstance(action, ReplaceState) for action in bench.take())


def test_a_silent_follower_is_not_taken_for_one_that_has_caught_up() -> None:
    bench = Bench(in_sync_min=2, refuses_when_few=True)
    bench.told(ClusterState(epoch=1, master=2, in_sync=(A, B)))
    bench.member.received(1, Open(A, 0, 0, 0, 0, ()), 0.0)
    bench.member.received(1, Ack(1, bench.log.end, bench.log.end), 0.0)
    bench.take()
    bench.member.tick(2.1)
    (asked,) = [action for action in bench.take() if isinstance(action, ReplaceState)]
    assert (asked.state.in_sync, asked.state.eligible) == ((B,), (A,))
    bench.member.state_replaced(asked.number, 2, 2.1)
    bench.member.tick(2.2)
    assert not any(isinstance(action, ReplaceState) for action in bench.take()), "it has all, and is silent"
    bench.member.received(1, Ack(1, bench.log.end, bench.log.end), 2.3)
    bench.member.tick(2.3)
    (asked,) = [action for action in bench.take() if isinstance(action, ReplaceState)]
    assert asked.state.in_sync == (A, B)


def test_a_candidate_whose_log_is_shorter_than_what_another_has_confirmed_waits() -> None:
    bench = Bench()
    bench.file.promised_epoch = 3
    state = ClusterState(epoch=3, master=2, in_sync=(A, B))
    bench.told(state, beats={A: Beat(0.1, 9, 0, 7)})
    (read,) = [action for action in bench.take() if isinstance(action, ReadState)]
    bench.member.state_read(read.number, 1, state, 0.0)
    assert bench.member.role is Role.HELD
    (alarm,) = bench.take()
    assert isinstance(alarm, Alarm)
    assert "older copy" in alarm.text


def test_nobody_asks_for_the_title_before_the_signs_of_life_are_known() -> None:
    bench = Bench()
    bench.file.promised_epoch = 3
    state = ClusterState(epoch=3, master=2, in_sync=(A, B))
    bench.member.start(0.0)
    bench.member.state_read(1, 1, state, 0.0)
    bench.member.state_read(2, 1, state, 0.0)
    assert not any(isinstance(action, ReplaceState) for action in bench.take())
    bench.member.beaten({}, 0.1)
    bench.member.state_read(3, 1, state, 0.2)
    (asked,) = bench.take()
    assert isinstance(asked, ReplaceState)


@pytest.mark.parametrize(("leads", "stands"), [(1, False), (0, True)])
def test_a_master_that_can_acknowledge_nothing_keeps_nobody_from_standing(leads: int, stands: bool) -> None:
    bench = Bench(in_sync_min=2, refuses_when_few=True)
    state = ClusterState(epoch=1, master=1, in_sync=(A,), eligible=(B,))
    beats = {A: Beat(0.1, 0, leads, 0)}
    bench.told(state, beats=beats)
    for step in range(1, 60):
        bench.member.beaten(beats, step * 0.05)
        bench.member.tick(step * 0.05)
    assert (bench.member.role is Role.CANDIDATE) is stands
    if stands:
        reads = [action for action in bench.take() if isinstance(action, ReadState)]
        bench.member.state_read(reads[-1].number, 1, state, 3.0)
        (asked,) = [action for action in bench.take() if isinstance(action, ReplaceState)]
        assert (asked.state.in_sync, asked.state.eligible) == ((B,), (A,)), "nothing waits for it"


def test_a_master_with_too_few_in_sync_says_that_it_leads_nothing() -> None:
    bench = Bench(in_sync_min=2, refuses_when_few=True)
    bench.told(ClusterState(epoch=1, master=2, in_sync=(B,), eligible=(A,)))
    assert (bench.member.leading is not None, bench.member.leads) == (True, 0)
    bench = Bench()
    bench.told(ClusterState(epoch=1, master=2, in_sync=(B,)))
    assert bench.member.leads == 1


def test_a_state_survives_its_encoding() -> None:
    state = ClusterState(epoch=7, master=2, in_sync=(A, B), eligible=(Identity(3, "c"),), reason="x")
    assert decode_state(state.encode()) == state


class ColdLog(SimLog):
    """A log of which only what was loaded is at hand."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: set[int] = set()

    def is_at_hand(self, position: int, bytes_max: int) -> bool:
        return position in self.loaded


def lead_with_a_cold_log() -> tuple[Bench, ColdLog]:
    """A master whose follower has nothing of its log, which is not in memory."""
    bench = Bench(chunk_bytes=10, catch_up_window_bytes=20)
    log = ColdLog()
    bench.member = Member(bench.member.settings, log, bench.file, bench.done.append)  # type: ignore[arg-type]
    for number in range(50):
        log.append(("message", 1, number))
    bench.told(ClusterState(epoch=1, master=2, in_sync=(B,)))
    bench.take()
    return bench, log


def sent_by(actions: list[Action]) -> list[tuple[int, int]]:
    return [
        (action.message.position, action.message.end)
        for action in actions
        if isinstance(action, Send) and isinstance(action.message, Data)
    ]


def test_what_is_not_in_memory_is_loaded_before_it_is_sent() -> None:
    bench, log = lead_with_a_cold_log()
    bench.member.received(1, Open(A, 0, 0, 0, 0, ()), 1.0)
    actions = bench.take()
    assert LoadLog(1, 0) in actions
    assert sent_by(actions) == []
    bench.member.log_grew(1.0)
    assert not [action for action in bench.take() if isinstance(action, LoadLog)], "it is loaded once"
    bench.member.log_loaded(1, 0, 1.1)
    actions = bench.take()
    assert sent_by(actions) == [(0, 10)], "what was loaded is not asked about again"
    assert LoadLog(1, 10) in actions
    log.loaded = set(range(20, 100))
    bench.member.received(1, Ack(1, 10, 10), 1.2)
    assert bench.take() == [], "it waits for the load"
    bench.member.log_loaded(1, 10, 1.2)
    # A follower that catches up has its own, smaller window.
    assert sent_by(bench.take()) == [(10, 20), (20, 30)]
    bench.member.received(1, Ack(1, 10, 10), 1.3)
    assert sent_by(bench.take()) == []
    bench.member.received(1, Ack(1, 30, 30), 1.3)
    assert sent_by(bench.take()) == [(30, 40), (40, 50)]


def test_a_load_for_a_follower_that_has_gone_meanwhile_is_no_news() -> None:
    bench, _ = lead_with_a_cold_log()
    bench.member.received(1, Open(A, 0, 0, 0, 0, ()), 1.0)
    bench.take()
    bench.member.link_closed(1, 1.1, is_outgoing=False)
    bench.member.log_loaded(1, 0, 1.2)
    assert bench.take() == []
    bench.member.received(1, Open(A, 0, 0, 0, 0, ()), 1.3)
    assert LoadLog(1, 0) in bench.take()
    # The load it was waiting for is of another place.
    bench.member.log_loaded(1, 40, 1.4)
    assert LoadLog(1, 0) in bench.take()


def test_a_follower_is_told_where_the_masters_log_begins() -> None:
    bench = Bench()
    assert bench.member.master_oldest == 0
    bench.follow()
    bench.member.received(1, data(0, 3)._replace(oldest=2), 0.0)
    assert bench.member.master_oldest == 2
    bench.member.received(1, data(3, 0)._replace(oldest=3), 0.0)
    assert bench.member.master_oldest == 3


def test_a_follower_that_catches_up_is_sent_the_log_at_a_rate() -> None:
    bench = Bench(chunk_bytes=10, catch_up_bytes_per_s=100)
    for number in range(1_000):
        bench.log.append(("message", 1, number))
    bench.told(ClusterState(epoch=1, master=2, in_sync=(B,)))
    bench.take()
    bench.member.received(1, Open(A, 0, 0, 0, 0, ()), 1.0)
    sent = sent_by(bench.take())
    now_s = 1.0
    while now_s < 6.0:
        now_s += 0.05
        bench.member.tick(now_s)
        sent += sent_by(bench.take())
    assert max(end for _, end in sent) == pytest.approx(500, abs=21)


def test_a_follower_out_of_sync_that_has_lost_its_end_counts_from_what_it_has_now() -> None:
    bench = Bench()
    bench.told(ClusterState(epoch=1, master=2, in_sync=(B,)))
    bench.log.append("message")
    bench.member.log_grew(0.0)
    bench.member.received(1, Open(A, 0, 0, 0, 0, ()), 0.0)
    bench.member.received(1, Ack(1, bench.log.end, bench.log.end), 0.0)
    assert bench.file.confirmed == bench.log.end
    # Before it is recorded, an older copy of its directory is put back.
    bench.member.link_closed(1, 0.1, is_outgoing=False)
    bench.member.received(1, Open(A, 0, 0, 0, 0, ()), 0.1)
    bench.member.received(1, Ack(1, 0, 0), 0.1)
    bench.take()
    bench.member.tick(0.1)
    assert not any(isinstance(action, ReplaceState) for action in bench.take()), "it has nothing"
    bench.member.received(1, Ack(1, bench.log.end, bench.log.end), 0.2)
    bench.member.tick(0.2)
    (asked,) = [action for action in bench.take() if isinstance(action, ReplaceState)]
    assert asked.state.in_sync == (A, B)


def test_a_new_follower_is_sent_no_more_than_its_window_before_it_answers() -> None:
    bench = Bench(chunk_bytes=10, catch_up_window_bytes=20)
    for number in range(500):
        bench.log.append(("message", 1, number))
    bench.told(ClusterState(epoch=1, master=2, in_sync=(B,)))
    bench.take()
    bench.member.received(1, Open(A, 0, 0, 0, 0, ()), 1.0)
    assert sent_by(bench.take()) == [(0, 10), (10, 20)]
    bench.member.received(1, Ack(1, 0, 0), 1.0)
    assert sent_by(bench.take()) == []
    bench.member.received(1, Ack(1, 20, 20), 1.0)
    assert sent_by(bench.take()) == [(20, 30), (30, 40)]


def test_what_is_appended_while_pieces_are_on_the_way_goes_in_one() -> None:
    bench = lead_two(pieces_max=2)
    end = bench.log.end

    def append() -> list[tuple[int, int]]:
        bench.log.append("message")
        bench.member.log_grew(1.0)
        return sent_by(bench.take())

    assert append() == [(end, end + 1)]
    assert append() == [(end + 1, end + 2)]
    assert append() == []
    assert append() == []
    # What a disk has counts for the acknowledgement, and what has come for this.
    bench.member.received(1, Ack(1, end + 1, end), 1.0)
    assert sent_by(bench.take()) == [(end + 2, end + 4)]
    assert append() == []
    bench.member.link_closed(1, 1.1, is_outgoing=False)
    bench.member.received(1, Open(A, 0, 0, end + 4, 1, bench.log.epochs), 1.1)
    assert sent_by(bench.take()) == [(end + 4, end + 5)], "nothing is on the way to where it is now"
    assert append() == [(end + 5, end + 6)]
    assert append() == []


def lead_two(**settings: float) -> Bench:
    """A master with another member in sync that has everything."""
    bench = Bench(**settings)
    bench.told(ClusterState(epoch=1, master=2, in_sync=(A, B)))
    bench.member.received(1, Open(A, 0, 0, 0, 0, ()), 0.0)
    bench.log.flushed = bench.log.end
    bench.member.received(1, Ack(1, bench.log.end, bench.log.end), 0.0)
    assert bench.member.role is Role.LEADING
    bench.take()
    return bench


def test_each_time_the_master_is_silent_the_others_have_time_to_say_that_they_hear_it() -> None:
    bench = Bench()
    third, gone = Identity(3, "c"), {A: Beat(5.0, 0, 1, 0)}
    bench.told(ClusterState(epoch=1, master=1, in_sync=(A, B, third)), beats=gone)
    bench.member.link_opened(1, 0.0)
    bench.member.received(1, FollowFrom(1, 0, False), 0.0)
    for began_s in (0.0, 10.0, 20.0):
        bench.member.received(1, data(0, 0), began_s)
        bench.member.tick(began_s)
        bench.take()
        bench.member.beaten(gone, began_s + 1.3)
        bench.member.tick(began_s + 1.3)
        assert AskOthers((3,)) in bench.take()
        bench.member.tick(began_s + 1.35)
        assert bench.member.role is Role.FOLLOWING
        bench.member.hearing_told(True, began_s + 1.36)
        bench.member.tick(began_s + 1.45)
        assert bench.member.role is Role.FOLLOWING


@pytest.mark.parametrize("others", [0, 1, 2, 3])
def test_a_member_stands_although_better_ones_that_are_there_do_not(others: int) -> None:
    """Of those with longer logs, say, each has a full disk: it cannot promise an epoch."""
    bench = Bench()
    better = [Identity(3 + number, "x") for number in range(others)]
    beats = {A: Beat(5.0, 0, 1, 0), **{identity: Beat(0.1, 9, 0, 0) for identity in better}}
    bench.told(ClusterState(epoch=1, master=1, in_sync=(A, B, *better)), beats=beats)
    bench.member.link_opened(1, 0.0)
    bench.member.received(1, FollowFrom(1, 0, False), 0.0)
    stands_s = 0.0
    while bench.member.role is Role.FOLLOWING and stands_s < 10:
        stands_s += 0.05
        bench.member.beaten(beats, stands_s)
        bench.member.tick(stands_s)
    settings = bench.member.settings
    assert stands_s <= settings.suspect_s + settings.retry_s + others * settings.rank_s


def test_a_hand_over_is_given_up_while_a_change_is_not_answered() -> None:
    bench = lead_two()
    c = Identity(3, "c")
    bench.member.received(3, Open(c, 0, 0, 0, 0, ()), 0.0)
    bench.member.received(3, Ack(1, bench.log.end, bench.log.end), 0.0)
    bench.member.tick(0.1)
    assert any(isinstance(action, ReplaceState) for action in bench.take()), "the third is to be recorded"
    leading = bench.member.leading
    assert leading is not None
    assert bench.member.hand_over(1, 0.2)
    for tenths in range(3, 12):
        bench.member.tick(tenths / 10)
        assert leading.is_handing_over
    bench.member.tick(1.3)
    assert not leading.is_handing_over, "messages are taken again"
    assert leading.takes_appends


@pytest.mark.parametrize("is_broken", [False, True])
def test_who_never_flushes_its_last_records_hands_over_without_them(is_broken: bool) -> None:
    bench = lead_two(acknowledge_flushed=True)
    bench.log.append("message")
    bench.member.log_grew(0.1)
    bench.member.received(1, Ack(1, bench.log.end, bench.log.end), 0.1)
    assert bench.file.confirmed < bench.log.end
    assert bench.member.hand_over(1, 0.2, is_broken=is_broken)
    bench.member.tick(0.2)
    (asked,) = [action for action in bench.take() if isinstance(action, ReplaceState)] or [None]
    if not is_broken:
        assert asked is None, "it may be flushed yet"
        return
    assert asked is not None
    assert (asked.state.epoch, asked.state.master) == (2, 1)
    assert asked.state.in_sync == (A,)
    assert bench.file.promised_epoch == 2, "nothing of this epoch is confirmed any more"


def test_nothing_is_handed_over_while_the_consensus_store_is_away() -> None:
    bench = lead_two()
    # The signs of life were read last at 0.
    assert not bench.member.hand_over(1, 3.1)
    bench.member.received(1, Ack(1, bench.log.end, bench.log.end), 3.1)
    bench.member.tick(3.1)
    assert not any(isinstance(action, ReplaceState) for action in bench.take())
    bench.log.append("message")
    bench.member.log_grew(3.2)
    bench.member.received(1, Ack(1, bench.log.end, bench.log.end), 3.2)
    assert bench.file.confirmed == bench.log.end, "messages are confirmed all the same"
    bench.member.beaten({}, 3.3)
    assert bench.member.hand_over(1, 3.3)


@pytest.mark.parametrize("value", [b"", b"[]", b'{"reason": "\xff"}', b'{"x": ' + b"[" * 100_000])
def test_a_state_that_cannot_be_read_is_refused(value: bytes) -> None:
    with pytest.raises(StoreError, match="invalid replication state"):
        decode_state(value)


def test_a_follower_with_an_epoch_that_nobody_can_have_promised_uses_up_none() -> None:
    bench = Bench()
    bench.told(ClusterState(epoch=1, master=2, in_sync=(B,)))
    bench.take()
    bench.member.received(1, Open(A, limits.REPLICATION_EPOCHS_AHEAD_MAX + 2, 0, 0, 0, ()), 0.0)
    alarm, ended = bench.take()
    assert isinstance(alarm, Alarm)
    assert ended == Disconnect(1, is_outgoing=False)
    assert (bench.member.role, bench.file.promised_epoch) == (Role.LEADING, 1)
    bench.member.received(1, Open(A, limits.REPLICATION_EPOCHS_AHEAD_MAX + 1, 0, 0, 0, ()), 0.0)
    assert bench.file.promised_epoch == limits.REPLICATION_EPOCHS_AHEAD_MAX + 2


def test_a_master_with_an_epoch_that_cannot_be_is_promised_nothing() -> None:
    bench = Bench()
    bench.told(ClusterState(epoch=1, master=1, in_sync=(A, B)))
    bench.member.link_opened(1, 0.0)
    bench.take()
    bench.member.received(1, FollowFrom(limits.REPLICATION_EPOCHS_AHEAD_MAX + 2, 0, False), 0.0)
    assert bench.take() == [Disconnect(1, is_outgoing=True)]
    assert bench.file.promised_epoch == 0
    bench.member.received(1, FollowFrom(limits.REPLICATION_EPOCHS_AHEAD_MAX + 1, 0, False), 0.0)
    assert bench.file.promised_epoch == limits.REPLICATION_EPOCHS_AHEAD_MAX + 1


def test_a_follower_that_retention_overtakes_is_to_take_a_copy() -> None:
    bench, log = lead_with_a_cold_log()
    log.loaded = set(range(20))
    bench.member.received(1, Open(A, 0, 0, 0, 0, ()), 1.0)
    bench.take()
    log.oldest = 30
    bench.member.received(1, Ack(1, 20, 20), 1.0)
    assert bench.take() == [Send(1, CopyNeeded(1))]
    bench.member.tick(1.5)
    assert sent_by(bench.take()) == []


def test_a_load_that_retention_overtakes_is_followed_by_a_copy() -> None:
    bench, log = lead_with_a_cold_log()
    bench.member.received(1, Open(A, 0, 0, 0, 0, ()), 1.0)
    assert LoadLog(1, 0) in bench.take()
    log.oldest = 30
    bench.member.log_loaded(1, 0, 1.1)
    assert bench.take() == [Send(1, CopyNeeded(1))]


class DamagedLog(SimLog):
    """A log in which the disk has lost a record."""

    def piece_end(self, position: int, bytes_max: int) -> int:
        if position <= 10 < position + bytes_max:
            raise StoreCorruptError("no record at position 10")
        return super().piece_end(position, bytes_max)


def test_a_master_whose_log_is_damaged_ends_the_connection_of_who_needs_that_part_only() -> None:
    bench = Bench(chunk_bytes=10)
    log = DamagedLog()
    bench.member = Member(bench.member.settings, log, bench.file, bench.done.append)
    for number in range(50):
        log.append(("message", 1, number))
    bench.told(ClusterState(epoch=1, master=2, in_sync=(B,)))
    bench.take()
    bench.member.received(1, Open(A, 0, 0, 0, 0, ()), 1.0)
    *_, alarm, ended = bench.take()
    assert isinstance(alarm, Alarm)
    assert "cannot be read for member 1" in alarm.text
    assert ended == Disconnect(1, is_outgoing=False)
    bench.member.tick(1.5)
    assert bench.take() == [], "nothing is sent on a connection that has ended"
    log.append("message")
    bench.member.log_grew(1.5)
    assert bench.file.confirmed == log.end


class PickyLog(SimLog):
    """A log that finds no record in what it is given, nor where it is to be cut."""

    def cut(self, position: int) -> None:
        raise StoreCorruptError(f"no record ends at position {position}")

    def append_copy(self, position: int, end: int, content: object) -> None:
        raise StoreCorruptError("the body's CRC is wrong")


def test_a_follower_takes_no_bytes_that_are_no_log_and_goes_on() -> None:
    bench = Bench()
    bench.member = Member(bench.member.settings, PickyLog(), bench.file, bench.done.append)
    bench.follow()
    bench.member.received(1, data(0, 3), 0.0)
    alarm, ended = bench.take()
    assert isinstance(alarm, Alarm)
    assert "member 1 sends what is no log" in alarm.text
    assert ended == Disconnect(1, is_outgoing=True)
    bench.member.tick(2.1)
    assert Connect(1) in bench.take(), "it tries again after a while"


def test_a_follower_cuts_its_log_between_records_only_and_goes_on() -> None:
    bench = Bench()
    log = PickyLog()
    log.append(("message", 1, 0))
    bench.member = Member(bench.member.settings, log, bench.file, bench.done.append)
    bench.told(ClusterState(epoch=1, master=1, in_sync=(A, B)))
    bench.member.link_opened(1, 0.0)
    bench.take()
    bench.member.received(1, FollowFrom(1, 0, False), 0.0)
    alarm, ended = bench.take()
    assert isinstance(alarm, Alarm)
    assert ended == Disconnect(1, is_outgoing=True)
