"""What a receiver is told and when."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from iotmq import limits
from iotmq.alarms.alarm import Acknowledgement, Alarm, alarm_id
from iotmq.alarms.condition import Labels
from iotmq.alarms.notification import Inbox, Notification
from iotmq.alarms.settings import WebhookSettings


def alarm(name: str = "lag", at_s: float = 0, **more: Any) -> Alarm:
    labels = tuple(more.pop("labels", {}).items())
    values: dict[str, Any] = {
        "id": alarm_id(name, labels),
        "name": name,
        "labels": labels,
        "level": "warning",
        "owner": "us",
        "says": "it is bad",
        "what_to_do": "Hurry.",
        "state": "firing",
        "value": 1,
        "since_ms": round(at_s * 1000),
        "fired_ms": round(at_s * 1000) or 1,
    }
    return Alarm(**{**values, **more})


def ended(one: Alarm, at_s: float) -> Alarm:
    return replace(one, state="ended", ended_ms=round(at_s * 1000))


class Reader:
    """Takes everything, unless told not to."""

    def __init__(self, **settings: Any) -> None:
        values = {"name": "ops", "url": "http://localhost/", "group_wait_s": 30, "repeat_s": 600}
        self.settings = WebhookSettings(**{**values, **settings})
        self.inbox = Inbox(self.settings)
        self.silenced: set[str] = set()

    def at(self, second: float, *firing: Alarm, takes: bool = True, **more: Any) -> list[Notification]:
        found = []
        while True:
            notification, due_ms = self.inbox.next(
                firing, lambda one: one.id in self.silenced, round(second * 1000), **more
            )
            self.due_s = None if due_ms is None else due_ms / 1000
            if notification is None:
                break
            found.append(notification)
            if not takes:
                break
            self.inbox.told(notification, round(second * 1000))
        self.inbox.check_invariants()
        return found

    def ends(self, one: Alarm, at_s: float) -> None:
        self.inbox.ended(ended(one, at_s), is_silenced=one.id in self.silenced)


def names(notifications: list[Notification]) -> list[tuple[list[str], list[str], str]]:
    return [
        ([one.name for one in each.firing], [one.name for one in each.ended], each.why)
        for each in notifications
    ]


def test_one_notification_for_the_begin_one_for_the_end_and_repeats_between() -> None:
    reader, lag = Reader(), alarm(at_s=100)
    assert reader.at(100, lag) == []
    assert reader.due_s == 130
    assert names(reader.at(130, lag)) == [(["lag"], [], "changed")]
    assert reader.at(131, lag) == []
    assert reader.due_s == 730
    assert names(reader.at(730, lag)) == [(["lag"], [], "repeated")]
    assert reader.at(731, lag) == []
    reader.ends(lag, 800)
    assert reader.at(800) == []
    assert names(reader.at(830)) == [([], ["lag"], "changed")]
    assert reader.at(9_999) == []
    assert reader.due_s is None


def test_alarms_of_a_group_that_come_together_are_told_together() -> None:
    reader = Reader()
    one, two, other = (
        alarm(at_s=100, labels={"group": "a"}),
        alarm(at_s=120, labels={"group": "b"}),
        alarm("disk", at_s=125),
    )
    assert reader.at(129, one, two, other) == []
    assert names(reader.at(130, one, two, other)) == [(["lag", "lag"], [], "changed")]
    assert names(reader.at(155, one, two, other)) == [(["disk"], [], "changed")]
    # What comes later is told with those that fire already.
    third = alarm(at_s=200, labels={"group": "c"})
    assert names(reader.at(230, one, two, other, third)) == [(["lag", "lag", "lag"], [], "changed")]


def test_groups_are_by_the_labels_of_the_settings() -> None:
    one, two = alarm(at_s=1, labels={"site": "x"}), alarm("disk", at_s=1, labels={"site": "x"})
    assert len(Reader(group_by=("site",)).at(40, one, two)) == 1
    assert len(Reader(group_by=()).at(40, one, two)) == 1
    assert len(Reader(group_by=("alertname", "level")).at(40, one, two)) == 2


def test_each_alarm_is_looked_at_once_however_many_groups_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []
    group_of = Inbox._group

    def counted(inbox: Inbox, one: Alarm) -> Labels:
        looked_at.append(one.id)
        return group_of(inbox, one)

    monkeypatch.setattr(Inbox, "_group", counted)
    reader = Reader(group_by=("group",))
    alarms = [alarm(labels={"group": str(number)}) for number in range(50)]
    assert reader.at(1, *alarms) == []
    assert len(looked_at) == len(alarms)


def test_a_dead_receiver_is_told_what_is_so_when_it_is_back() -> None:
    reader, lag, disk = Reader(group_by=()), alarm(at_s=100), alarm("disk", at_s=110)
    assert names(reader.at(130, lag, takes=False)) == [(["lag"], [], "changed")]
    reader.ends(lag, 200)
    assert names(reader.at(300, disk)) == [(["disk"], ["lag"], "changed")]
    assert reader.at(301, disk) == []


def test_one_that_fires_again_before_its_end_was_told_is_told_as_firing() -> None:
    reader, lag = Reader(), alarm(at_s=100)
    reader.at(130, lag)
    reader.ends(lag, 140)
    again = replace(lag, fired_ms=150_000)
    assert names(reader.at(180, again)) == [(["lag"], [], "changed")]
    assert reader.at(181, again) == []


def test_what_is_acknowledged_is_not_repeated_and_its_end_is_told() -> None:
    reader, lag = Reader(), alarm(at_s=100)
    reader.at(130, lag)
    acknowledged = replace(lag, acknowledged=Acknowledgement(by="ann", at_ms=1))
    assert reader.at(5_000, acknowledged) == []
    reader.ends(acknowledged, 5_001)
    assert names(reader.at(5_031)) == [([], ["lag"], "changed")]


def test_what_is_silenced_is_told_when_the_silence_ends_and_it_still_fires() -> None:
    reader, lag = Reader(), alarm(at_s=100)
    reader.silenced = {lag.id}
    assert reader.at(500, lag) == []
    reader.silenced = set()
    assert names(reader.at(501, lag)) == [(["lag"], [], "changed")]


def test_what_comes_and_goes_in_a_silence_is_not_told() -> None:
    reader, lag = Reader(), alarm(at_s=100)
    reader.silenced = {lag.id}
    reader.ends(lag, 200)
    reader.silenced = set()
    assert reader.at(300) == []


def test_the_end_of_what_was_told_is_told_in_a_silence() -> None:
    reader, lag = Reader(), alarm(at_s=100)
    reader.at(130, lag)
    reader.silenced = {lag.id}
    reader.ends(lag, 200)
    assert names(reader.at(230)) == [([], ["lag"], "changed")]


def test_less_serious_alarms_than_asked_for_are_not_told() -> None:
    reader = Reader(level="critical")
    lag = alarm(at_s=1)
    assert reader.at(100, lag) == []
    reader.ends(lag, 100)
    assert reader.at(200) == []
    assert len(reader.at(200, alarm(at_s=1, level="critical"))) == 1


def test_a_restart_neither_repeats_nor_forgets() -> None:
    reader, lag, disk = Reader(), alarm(at_s=100), alarm("disk", at_s=100)
    reader.at(130, lag)
    reader.ends(disk, 200)
    reader.inbox = Inbox(reader.settings, reader.inbox.state)
    assert names(reader.at(240, lag)) == [([], ["disk"], "changed")]
    assert names(reader.at(730, lag)) == [(["lag"], [], "repeated")]


def test_of_the_cluster_only_who_has_the_lease_tells() -> None:
    reader = Reader()
    lag, own = alarm(at_s=100, is_of_cluster=True), alarm("disk", at_s=100)
    assert names(reader.at(200, lag, own, tells_cluster=False)) == [(["disk"], [], "changed")]
    # Who gets the lease tells what the one before may have left.
    assert names(reader.at(210, lag, own)) == [(["lag"], [], "changed")]


def test_what_the_one_with_the_lease_has_told_is_not_told_again() -> None:
    reader, lag, late = (
        Reader(),
        alarm(at_s=100, is_of_cluster=True),
        alarm("x", at_s=390, is_of_cluster=True),
    )
    gone = alarm("gone", at_s=100, is_of_cluster=True)
    reader.ends(gone, 200)
    reader.inbox.hand_over([lag, late], before_ms=380_000, now_ms=500_000)
    assert names(reader.at(510, lag, late)) == [(["x"], [], "changed")]
    reader.ends(lag, 520)
    assert names(reader.at(550, late)) == [([], ["lag"], "changed")]


def test_so_many_ends_wait_for_a_receiver() -> None:
    reader = Reader()
    for number in range(limits.ALARMS_MAX + 1):
        reader.ends(alarm(labels={"n": str(number)}), 1)
        reader.inbox.check_invariants()
    (notification,) = reader.at(100)
    assert len(notification.ended) == limits.ALARMS_MAX
    assert dict(notification.ended[0].labels)["n"] == "1"
