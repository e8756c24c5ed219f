"""What must hold of the work that only some simulated gateways have."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from sim_extras import (
    COMMITTED,
    INVISIBLE_MS,
    JOBS_TOPIC,
    POP_GROUP,
    POP_RETRIES_MAX,
    TRADES_TOPIC,
    GroupDevices,
    Mortal,
    Popped,
    Popper,
    Trader,
)
from sim_world import BrokenPromiseError

from iotmq.message.bodies import inflate_body
from iotmq.message.records.record import Record

if TYPE_CHECKING:
    from sim_run import Site

Logs = dict[str, dict[tuple[str, int], list[Record]]]
# Where messages of devices are that no route has.
MQTT_TOPIC = "mqtt"
DEAD_JOBS_TOPIC = f"%DLQ%{POP_GROUP}"


def check_extras(site: Site, logs: Logs) -> None:
    """Raise BrokenPromiseError with the first thing that is wrong."""
    nodes = site.nodes.values()
    for node in nodes:
        if isinstance(node, GroupDevices):
            check_group(site, node)
        elif isinstance(node, Mortal):
            check_wills(node, logs)
        elif isinstance(node, Trader):
            check_trades(node, logs)
    poppers = [node for node in nodes if isinstance(node, Popper)]
    if poppers:
        check_pops(site, poppers, logs)


def fail(text: str) -> None:
    raise BrokenPromiseError(text)


def bodies_of(logs: Logs, topic: str) -> Counter[bytes]:
    return Counter(
        inflate_body(record.body, record.sys_flag)
        for queues in logs.values()
        for (name, _), records in queues.items()
        if name == topic
        for record in records
    )


def check_group(site: Site, group: GroupDevices) -> None:
    """Some member gets each message that was acknowledged after the first had subscribed."""
    history = group.history
    members = list(history.received)
    if not members:
        return
    got = {message.payload for name in members for message in history.received[name]}
    before = set.intersection(*(history.published_before[name] for name in members))
    for payload in site.history.published_acknowledged:
        if payload not in before and payload not in got:
            fail(f"nobody of {members} got {payload!r} of QoS {site.history.published[payload]}")
    for payload in got:
        if payload not in site.history.published:
            fail(f"a member of the group got {payload!r}, which nobody published")


def check_wills(mortal: Mortal, logs: Logs) -> None:
    """Every device that was connected and is dead has its will published."""
    published = bodies_of(logs, MQTT_TOPIC)
    for will in mortal.wills:
        if will != mortal.living and not published[will]:
            fail(f"{will!r} is not published")


def check_trades(trader: Trader, logs: Logs) -> None:
    """What was committed is there, and nothing that was rolled back."""
    stored = bodies_of(logs, TRADES_TOPIC)
    for body in stored:
        if not body.startswith(COMMITTED):
            fail(f"{body!r} is delivered")
        if body not in trader.history.sent:
            fail(f"{body!r} is delivered and was never prepared")
    for trade in trader.trades:
        if trade.is_prepared and trade.body.startswith(COMMITTED) and trade.body not in stored:
            fail(f"{trade.body!r} was prepared, is committed, and is not there")


def check_pops(site: Site, poppers: list[Popper], logs: Logs) -> None:
    """One holder at a time; nothing comes after its acknowledgement; at the end all is done or dead."""
    jobs, dead = bodies_of(logs, JOBS_TOPIC), bodies_of(logs, DEAD_JOBS_TOPIC)
    done: dict[tuple[str, int, int], float] = {}
    for popper in poppers:
        for each in popper.acknowledged:
            place = each[:3]
            done[place] = min(done.get(place, each.at_s), each.at_s)
    last: dict[tuple[str, int, int], tuple[float, Popped]] = {}
    pops = [each for popper in poppers for each in popper.popped]
    for popped_s, pop in sorted(
        (moment_s, each) for each in pops if (moment_s := site.popped_s(each)) is not None
    ):
        place = (pop.broker, pop.queue_id, pop.offset)
        former_s, former = last.get(place, (0.0, None))
        last[place] = (popped_s, pop)
        if pop.times > POP_RETRIES_MAX:
            fail(f"{pop.body!r} was popped {pop.times + 1} times")
        if former is not None and (passed_ms := site.longest_ms(former_s, popped_s)) < INVISIBLE_MS - 1:
            fail(f"{pop.body!r} was popped {passed_ms} ms after another pop")
        if former is not None and pop.times <= former.times:
            fail(f"{pop.body!r} has {pop.times} retries after {former.times}")
        done_s = done.get(place)
        if done_s is not None and popped_s > done_s + 0.001:
            fail(f"{pop.body!r} was popped after it was acknowledged")
    for body, count in dead.items():
        if count > jobs[body]:
            fail(f"{body!r} is {count} dead letters")
        times = {each.times for each in pops if each.body == body}
        if not site.faults and times != set(range(POP_RETRIES_MAX + 1)):
            fail(f"{body!r} is a dead letter after {times}")
    asked = set[tuple[str, int, int]]().union(*(popper.asked for popper in poppers))
    for name, queues in logs.items():
        for (topic, queue_id), records in queues.items():
            for record in records if topic == JOBS_TOPIC else ():
                if (name, queue_id, record.queue_offset) not in asked and not dead[record.body]:
                    fail(f"{record.body!r} of {name} is neither acknowledged nor dead")
