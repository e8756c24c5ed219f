"""What a load did and saw on a replicated broker, compared with the logs that its members have in the end.

Everything is a function over the history and the logs. Each anomaly is a sentence that begins with its kind:

| kind | says |
| --- | --- |
| lost | an acknowledged message is in no queue of some member |
| phantom | a message that nobody sent |
| inconsistent | two messages at one offset of a queue: in logs, acknowledgements or what readers got |
| hole | offsets of a queue that are missing between others |
| misplaced | a message is not where its acknowledgement says |
| disorder | a sender's messages stand in another order than they were sent |
| duplicate | a message is there more often than it was sent |
| skipped | a reader was not given an acknowledged message |
| backwards | a reader of a queue was given an earlier or a later offset than the next one |
| unequal | the logs of two members differ below what both have confirmed |
| unheard | a kept session was not given an acknowledged command |
| retained | a new subscriber is given an older value than the one last acknowledged |
| lock | what clients were answered about the lock of a queue fits no order |
| register | what was read and replaced in the consensus store fits no order |
| state | two masters of one epoch, or an earlier epoch after a later one, in the consensus store |
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from linearizability import (
    Call,
    LeaseLock,
    Lock,
    Model,
    Register,
    SearchGivenUpError,
    Version,
    contradiction,
    describe,
)
from record_oracle import decode

from iotmq.broker.members.queue_locks import LOCK_EXPIRY_S
from iotmq.replication.cluster_state import decode_state

BLANK_MAGIC: Final = 0xCBD43194
# Of each kind, so that one mistake does not fill the screen.
_SHOWN_MAX: Final = 5
# A master that is one no more, and does not know it yet, still refuses because of locks that are gone, and
# renews some that the next master does not renew.
_DEPOSED_S: Final = 5.0


class Place(NamedTuple):
    """Where a message stands."""

    topic: str
    queue_id: int
    offset: int


class Stored(NamedTuple):
    """A record of a log."""

    place: Place
    body: bytes


@dataclass
class Sent:
    """One message of a sender, from its first send on; times are of one monotonic clock."""

    source: str
    number: int
    invoked_s: float
    done_s: float | None = None
    """When it was acknowledged; None for one that was not: it may be stored or not."""
    place: Place | None = None
    """Where it is by its acknowledgement, for those who are told."""
    tries: int = 1
    is_refused: bool = False
    """True for one that a device was told is not taken: it may be there all the same."""
    is_repeated_unseen: bool = False
    """True where somebody between sender and log may send again without the sender knowing."""

    @property
    def body(self) -> bytes:
        return body_of(self.source, self.number)


class Seen(NamedTuple):
    """A message as a reader got it."""

    at_s: float
    place: Place
    body: bytes


class Fault(NamedTuple):
    """What was done to the cluster, from its beginning until everything was healed."""

    name: str
    begun_s: float
    healed_s: float
    end_s: float
    """When all members were in sync again."""


@dataclass
class History:
    """Everything the load did and saw."""

    sent: list[Sent] = field(default_factory=list)
    readers: dict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))
    """Reader -> what it got, in order; of a group the members together."""
    owed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Reader -> the beginnings of the names of the sources whose messages it has to get."""
    groups: set[str] = field(default_factory=set)
    """The readers that get messages at least once, and each queue's in turn but for repetitions."""
    commands: dict[str, str] = field(default_factory=dict)
    """Kept session -> the source whose messages are its commands."""
    heard: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """Kept session -> the commands it got."""
    retained: dict[str, bytes] = field(default_factory=dict)
    """Source of retained values -> the one that a new subscriber got in the end."""
    locks: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    """Group and queue -> what clients asked about its lock."""
    registers: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    """Value in the consensus store -> what its clients asked."""
    states: dict[int, list[Call]] = field(default_factory=lambda: defaultdict(list))
    """Life of the consensus store -> reads of what the members have recorded there."""
    faults: list[Fault] = field(default_factory=list)

    @property
    def acknowledged(self) -> list[Sent]:
        return [each for each in self.sent if each.done_s is not None]


@dataclass(frozen=True)
class MemberLog:
    """The log of a stopped member."""

    oldest: int
    confirmed: int
    content: bytes
    """The bytes from `oldest` to `confirmed`."""
    records: Sequence[Stored]


def body_of(source: str, number: int) -> bytes:
    return f"{source}/{number}".encode()


def anomalies(history: History, logs: Mapping[int, MemberLog]) -> list[str]:
    """Return every anomaly, at most a few of each kind."""
    found: dict[str, list[str]] = defaultdict(list)
    for member, log in logs.items():
        for text in _of_log(history, member, log.records):
            found[text.split(":")[0]].append(text)
    for text in (
        *_unequal(logs),
        *_inconsistent(history, logs),
        *_of_readers(history),
        *_of_sessions(history),
        *_of_objects(history),
    ):
        found[text.split(":")[0]].append(text)
    shown: list[str] = []
    for kind, texts in found.items():
        shown += texts[:_SHOWN_MAX]
        if len(texts) > _SHOWN_MAX:
            shown.append(f"{kind}: {len(texts) - _SHOWN_MAX} more")
    return shown


def duplicates(logs: Mapping[int, MemberLog], history: History) -> int:
    """Count the messages that stand in a log more than once."""
    ours = {each.body for each in history.sent}
    log = next(iter(logs.values()))
    return sum(count - 1 for body, count in Counter(s.body for s in log.records).items() if body in ours)


def gaps_s(
    history: History, sources: str = "", *, faults: Sequence[Fault] | None = None
) -> list[tuple[str, float]]:
    """Return, for each fault or those given, the longest time without an acknowledgement that overlaps it."""
    times = sorted(e.done_s for e in history.sent if e.done_s is not None and e.source.startswith(sources))
    gaps = []
    for fault in history.faults if faults is None else faults:
        longest = max(
            (b - a for a, b in pairwise(times) if b > fault.begun_s and a < fault.end_s), default=0.0
        )
        gaps.append((fault.name, longest))
    return gaps


def latest(history: History) -> Iterable[tuple[str, float, bytes, str]]:
    """Return for each reader what came latest after its acknowledgement, how late, and the fault before."""
    done = {each.body: each.done_s for each in history.sent if each.done_s is not None}
    for name, seen in history.readers.items():
        firsts: dict[bytes, float] = {}
        for each in seen:
            firsts.setdefault(each.body, each.at_s)
        late = [(at_s - done[body], body) for body, at_s in firsts.items() if body in done]
        delay_s, body = max(late, default=(0.0, b""))
        faults = [fault.name for fault in history.faults if fault.begun_s < done.get(body, 0.0)]
        yield name, delay_s, body, faults[-1] if faults else "none"


def _of_log(history: History, member: int, records: Sequence[Stored]) -> Iterable[str]:
    sent = {each.body: each for each in history.sent}
    sources = {each.source for each in history.sent}
    counts: Counter[bytes] = Counter()
    firsts: dict[tuple[str, str, int], list[int]] = defaultdict(list)
    offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
    places: dict[bytes, set[Place]] = defaultdict(set)
    for place, body in records:
        offsets[place.topic, place.queue_id].append(place.offset)
        each = sent.get(body)
        if each is None:
            if body.rpartition(b"/")[0].decode("utf-8", "replace") in sources:
                yield f"phantom: {body!r} at {place}, member {member}"
            continue
        counts[body] += 1
        places[body].add(place)
        if counts[body] == 1:
            firsts[each.source, place.topic, place.queue_id].append(each.number)
    for queue, numbers in offsets.items():
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            yield f"hole: {queue} of member {member} has not every offset in turn"
    for (source, topic, queue_id), numbers in firsts.items():
        late = next((after for before, after in pairwise(numbers) if after < before), None)
        if late is not None:
            yield f"disorder: {source}/{late} in queue {queue_id} of {topic}, member {member}"
    for each in history.sent:
        count = counts[each.body]
        if each.done_s is not None and not count:
            yield f"lost: {each.body!r}, member {member}"
        if each.place is not None and count and each.place not in places[each.body]:
            yield f"misplaced: {each.body!r} is not at {each.place}, member {member}"
        if count > each.tries and not (each.is_repeated_unseen and _is_disturbed(history, each)):
            yield f"duplicate: {each.body!r} is there {count} times after {each.tries} tries, member {member}"


def _is_disturbed(history: History, sent: Sent) -> bool:
    """Return whether a fault was there between a send and its acknowledgement."""
    return any(
        fault.begun_s <= (sent.done_s or fault.end_s) and sent.invoked_s <= fault.end_s
        for fault in history.faults
    )


def _unequal(logs: Mapping[int, MemberLog]) -> Iterable[str]:
    for (one, a), (other, b) in pairwise(logs.items()):
        start, end = max(a.oldest, b.oldest), min(a.confirmed, b.confirmed)
        if a.content[start - a.oldest : end - a.oldest] != b.content[start - b.oldest : end - b.oldest]:
            at = next(
                position
                for position in range(start, end)
                if a.content[position - a.oldest] != b.content[position - b.oldest]
            )
            yield f"unequal: members {one} and {other} differ at position {at}, below {end}"


def _inconsistent(history: History, logs: Mapping[int, MemberLog]) -> Iterable[str]:
    bodies: dict[Place, tuple[bytes, str]] = {}
    witnesses = [
        *((f"member {member}", record) for member, log in logs.items() for record in log.records),
        *(("an acknowledgement", Stored(e.place, e.body)) for e in history.sent if e.place is not None),
        *((name, Stored(s.place, s.body)) for name, seen in history.readers.items() for s in seen),
    ]
    for who, (place, body) in witnesses:
        first, by = bodies.setdefault(place, (body, who))
        if first != body:
            yield f"inconsistent: {place} is {first!r} by {by}, and {body!r} by {who}"


def _of_readers(history: History) -> Iterable[str]:
    for name, seen in history.readers.items():
        got = {each.body for each in seen}
        for each in history.acknowledged:
            if each.source.startswith(history.owed.get(name, ())) and each.body not in got:
                yield f"skipped: {name} was not given {each.body!r}"
        offsets: dict[tuple[str, int], list[int]] = defaultdict(list)
        for _at_s, place, _body in seen:
            offsets[place.topic, place.queue_id].append(place.offset)
        for queue, numbers in offsets.items():
            turns = list(dict.fromkeys(numbers)) if name in history.groups else numbers
            wrong = next((after for before, after in pairwise(turns) if after != before + 1), None)
            if wrong is not None:
                yield f"backwards: {name} was given offset {wrong} of {queue} out of turn"


def _of_sessions(history: History) -> Iterable[str]:
    for session, source in history.commands.items():
        heard = set(history.heard[session])
        for each in history.acknowledged:
            if each.source == source and each.body not in heard:
                yield f"unheard: {each.body!r} by {session}"
    for source, body in history.retained.items():
        latest = max((each.number for each in history.acknowledged if each.source == source), default=-1)
        if not body or int(body.rpartition(b"/")[2]) < latest:
            yield f"retained: {body!r}, and {source}/{latest} was acknowledged"


def _of_objects(history: History) -> Iterable[str]:
    """Look for an order of what was asked about each lock and each value."""
    for key, calls in history.locks.items():
        model = LeaseLock(least_s=LOCK_EXPIRY_S - _DEPOSED_S, most_s=LOCK_EXPIRY_S + _DEPOSED_S)
        yield from _unordered(f"lock: {key}", [_not_newer(call) for call in calls], model)
    for key, calls in history.registers.items():
        yield from _unordered(f"register: {key}", calls, Register())
    for life, calls in history.states.items():
        yield from _unordered(f"register: state in life {life}", calls, Register(has_others=True))
        versions = sorted({call.result for call in calls if isinstance(call.result, Version)})
        states = [decode_state(version.value) for version in versions if version.number]
        for before, after in pairwise(states):
            if after.epoch < before.epoch or (after.epoch == before.epoch and after.master != before.master):
                yield f"state: epoch {after.epoch} of {after.master} after {before.epoch} of {before.master}"


def _unordered(name: str, calls: Sequence[Call], model: Model[Any]) -> Iterable[str]:
    try:
        found = contradiction(calls, model)
    except SearchGivenUpError as error:
        yield f"{name}: {error}"
        return
    if found is not None:
        yield f"{name}: {describe(found)}"


def _not_newer(call: Call) -> Call:
    """Let a refusal say what held some time before."""
    is_refusal = isinstance(call.action, Lock) and call.result is False
    return call._replace(invoked_s=call.invoked_s - _DEPOSED_S) if is_refusal else call


def read_log(directory: Path, *, segment_bytes: int, confirmed: int) -> MemberLog:
    """Read the log of a stopped member up to its confirmed position, with the slow codec."""
    files = sorted((directory / "commitlog").glob("[0-9]" * 20))
    records: list[Stored] = []
    content: list[bytes] = []
    oldest = int(files[0].name) if files else 0
    for file in files:
        start = int(file.name)
        data = file.read_bytes()[: max(confirmed - start, 0)]
        at = 0
        while at < len(data):
            if int.from_bytes(data[at + 4 : at + 8]) == BLANK_MAGIC:
                # What stands behind the head of a blank means nothing.
                data = data[: at + 8].ljust(len(data), b"\0")
                break
            record, size = decode(data[at : at + int.from_bytes(data[at : at + 4])])
            assert record.position == start + at, f"{record.position} at {start + at} of {directory}"
            place = Place(record.topic, record.queue_id, record.queue_offset)
            records.append(Stored(place, record.body))
            at += size
        content.append(data)
        assert len(data) in (segment_bytes, max(confirmed - start, 0)), f"{file} ends early: {len(data)}"
    return MemberLog(oldest, confirmed, b"".join(content), records)
