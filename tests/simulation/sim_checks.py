"""What must hold of a simulated gateway, whatever has failed."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from sim_extra_checks import check_extras
from sim_extras import JOBS_TOPIC
from sim_load import BAD, GROUP, LATER_TOPIC, REDELIVERIES_MAX, TOPIC
from sim_members import Members
from sim_world import BrokenPromiseError
from store_model import log_records

from iotmq.message.bodies import inflate_body
from iotmq.message.records.record import Record
from iotmq.store.store import Store

if TYPE_CHECKING:
    from sim_run import Site

DEAD_TOPIC = f"%DLQ%{GROUP}"


def check_all(site: Site) -> None:
    """Raise BrokenPromiseError with the first thing that is wrong."""
    if site.world.problems:
        raise BrokenPromiseError(f"unexpected: {site.world.problems[0]}")
    logs = {name: queues_of(broker.store) for name, broker in site.brokers.items()}
    for node in site.broker_nodes:
        if node.store is None or (problems := node.store.check()):
            raise BrokenPromiseError(f"store of {node.name}: {problems[:3] if node.store else 'closed'}")
    for name, broker in site.brokers.items():
        check_committed(name, broker.role, broker.store)
    check_replicas(site)
    check_queues(site, logs)
    check_consumed(site, logs)
    check_devices(site)
    check_extras(site, logs)
    if site.retained:
        check_retained(site)


def queues_of(store: Store | None) -> dict[tuple[str, int], list[Record]]:
    """All records, by their queues, in the order of the log."""
    assert store is not None
    queues: dict[tuple[str, int], list[Record]] = defaultdict(list)
    for record in log_records(store):
        queues[record.topic, record.queue_id].append(record)
    return queues


def check_replicas(site: Site) -> None:
    """Members of a broker show the same log."""
    for broker in site.brokers.values():
        if isinstance(broker, Members):
            broker.check_replicas()


def fail(text: str) -> None:
    raise BrokenPromiseError(text)


def check_queues(site: Site, logs: dict[str, dict[tuple[str, int], list[Record]]]) -> None:
    """Nothing acknowledged is lost, nothing invented; offsets are dense, and the order of a sender holds."""
    history = site.history
    stored: dict[bytes, list[tuple[str, int, int]]] = defaultdict(list)
    for name, queues in logs.items():
        for (topic, queue_id), records in queues.items():
            if [record.queue_offset for record in records] != list(range(len(records))):
                fail(f"{name} {topic}/{queue_id}: offsets {[r.queue_offset for r in records][:20]}")
            if topic not in (TOPIC, LATER_TOPIC, JOBS_TOPIC):
                continue
            seen: set[bytes] = set()
            numbers: dict[str, int] = {}
            for record in records:
                body = body_of(record)
                if history.sent.get(body) != topic:
                    fail(f"{name} {topic}/{queue_id} has {body[:40]!r}, which nobody sent there")
                stored[body].append((name, queue_id, record.queue_offset))
                words = body.rstrip(b"\0").split()
                # A send that has failed for want of an answer may be stored at any time after it.
                is_acknowledged = body in history.acknowledged
                if topic == TOPIC and len(words) == 2 and is_acknowledged and body not in seen:
                    sender, number = words[0].decode(), int(words[1])
                    if numbers.get(sender, 0) > number:
                        fail(f"{name} {topic}/{queue_id}: {body[:40]!r} comes after {numbers[sender]}")
                    numbers[sender] = number
                seen.add(body)
    for body, place in history.acknowledged.items():
        places = stored.get(body, [])
        if not places:
            fail(f"{body[:40]!r} was acknowledged and is lost; it was at {place}")
        if place is not None and place not in places:
            fail(f"{body[:40]!r} was acknowledged at {place} and is at {places}")
    for (name, queue_id), read in history.pulled.items():
        records = logs[name].get((TOPIC, queue_id), [])
        for offset, body in read:
            if offset >= len(records) or body_of(records[offset]) != body:
                fail(f"{name} {TOPIC}/{queue_id}@{offset}: {body[:40]!r} was read there and is gone")


def body_of(record: Record) -> bytes:
    return inflate_body(record.body, record.sys_flag)


def check_committed(name: str, broker: Any, store: Store) -> None:
    """No group is past the end of a queue."""
    for queue in store.queues():
        offset = broker.offsets.find(GROUP, queue.topic, queue.queue_id)
        if offset is not None and offset > queue.max_offset:
            fail(f"{name} {queue.topic}/{queue.queue_id}: committed {offset} of {queue.max_offset}")


def check_progress(site: Site) -> None:
    """While all goes on: what is below a committed offset was handed to a member of the group."""
    check_replicas(site)
    seen = {consumed.body for consumed in site.history.consumed}
    for name, broker in site.brokers.items():
        if not broker.is_ready:
            continue
        for (topic, queue_id), records in queues_of(broker.store).items():
            committed = broker.role.offsets.find(GROUP, topic, queue_id)
            if topic not in (TOPIC, LATER_TOPIC) or committed is None:
                continue
            for record in records:
                if record.queue_offset < committed and body_of(record) not in seen:
                    fail(f"{name} {topic}/{queue_id}: {committed} committed, {record.queue_offset} not seen")


def check_consumed(site: Site, logs: dict[str, dict[tuple[str, int], list[Record]]]) -> None:
    """Each stored message was consumed, or is a dead letter after all of its tries; none too early."""
    history = site.history
    tries: dict[bytes, Counter[int]] = defaultdict(Counter)
    successes: set[bytes] = set()
    for consumed in history.consumed:
        tries[consumed.body][consumed.reconsume_times] += 1
        if not consumed.has_failed:
            successes.add(consumed.body)
        if consumed.reconsume_times > REDELIVERIES_MAX:
            fail(f"{consumed.body[:40]!r} came back {consumed.reconsume_times} times")
        sent_s, delay_ms = history.delayed.get(consumed.body, (consumed.at_s, 0))
        early_ms = delay_ms - site.longest_ms(sent_s, consumed.at_s)
        if early_ms > 0:
            fail(f"{consumed.body!r} came {early_ms} ms early")
        if consumed.body not in history.sent:
            fail(f"{consumed.body[:40]!r} was consumed and never sent")
    dead: Counter[bytes] = Counter()
    for queues in logs.values():
        for (topic, _), records in queues.items():
            if topic == DEAD_TOPIC:
                dead.update(body_of(record) for record in records)
    for body in dead:
        if set(tries[body]) != set(range(REDELIVERIES_MAX + 1)):
            fail(f"{body[:40]!r} is a dead letter after {dict(tries[body])}")
    for queues in logs.values():
        for (topic, queue_id), records in queues.items():
            if topic not in (TOPIC, LATER_TOPIC):
                continue
            for record in records:
                body = body_of(record)
                if body not in successes and body not in dead:
                    fail(f"{body[:40]!r} of {topic}/{queue_id}@{record.queue_offset} was not consumed")
                if body.startswith(BAD) and body not in dead:
                    fail(f"{body[:40]!r} is no dead letter")


def check_devices(site: Site) -> None:
    """QoS 2 comes exactly once and in order, QoS 1 at least once, QoS 0 at most once.

    docs/reference/mqtt-sessions.md has the exceptions: of several brokers one may take what another one has
    stored, which is away; and what was not reported as progress comes again, where QoS is not 2.
    """
    history = site.history
    is_exact = len(site.brokers) == 1
    for client_id, received in history.received.items():
        counts = Counter(message.payload for message in received if message.topic.startswith("d/"))
        for payload, count in counts.items():
            qos = history.published.get(payload)
            if qos is None:
                fail(f"{client_id} got {payload!r}, which nobody published")
            if count > 1 and is_exact and (qos == 2 or (qos == 0 and not site.faults)):
                fail(f"{client_id} got {payload!r} of QoS {qos} {count} times")
        before = history.published_before[client_id]
        for payload in history.published_acknowledged:
            if payload not in before and not counts[payload]:
                fail(f"{client_id} never got {payload!r} of QoS {history.published[payload]}")
        last: dict[bytes, int] = {}
        for message in received if is_exact else ():
            if message.topic.startswith("d/") and message.topic.endswith("/2"):
                sender, number = message.payload.split()
                if last.get(sender, 0) >= int(number):
                    fail(f"{client_id} got {message.payload!r} after {last[sender]}")
                last[sender] = int(number)


def check_retained(site: Site) -> None:
    """The last message of each topic is what a new subscriber gets, and no other.

    Of several brokers' messages it is the last one by the clocks of the front ends that took them.
    """
    history = site.history
    is_exact = len(site.brokers) == 1 or all(front.machine.clock.is_right for front in site.fronts)
    for topic, payloads in history.retained.items():
        count = history.retained_acknowledged[topic]
        found = site.retained.get(topic, [])
        if count and (len(found) != 1 or found[0] not in payloads[count - 1 if is_exact else 0 :]):
            fail(f"retained {topic} is {found}, the last one acknowledged was {payloads[count - 1]!r}")
