"""The names of a plan's devices, and who hears whom, as far as topics and filters tell."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from iotmq.errors import IotmqError
from iotmq.mqtt.topics import topics
from loadtest.swarm.engine import TOPIC_DIGITS
from loadtest.swarm.errors import SwarmError
from loadtest.swarm.templates import Device, fill, fill_topic

if TYPE_CHECKING:
    from loadtest.swarm.plan import Plan

KINDS: Final = ("pub", "sub", "idle")
# So many publishers are looked at for one that a subscriber hears.
_LOOKED_AT_MAX: Final = 10_000


def device_of(plan: "Plan", kind: str, number: int) -> Device:
    """The names of one device."""
    nobody = Device(str(number), kind=kind)
    username = "" if plan.username is None else fill(plan.username, nobody)
    client_id = fill(plan.client_id, nobody._replace(username=username))
    # In the topics of publishers that have several all numbers are equally long.
    in_topic = f"{number:0{TOPIC_DIGITS}d}" if plan.topics_per_publisher > 1 else str(number)
    return Device(in_topic, client_id, username, kind)


def numbers_of(plan: "Plan", kind: str) -> range:
    """The numbers of the devices of one kind."""
    first, count = {
        "pub": (plan.number_base, plan.publishers),
        "sub": (plan.subscriber_base, plan.subscribers),
        "idle": (plan.idle_base, plan.idle),
    }[kind]
    first = plan.number_base if first is None else first
    return range(first, first + count)


def check_names(plan: "Plan") -> None:
    """Refuse topics and filters that MQTT does not have, and client ids that two devices would share."""
    _check_client_ids(plan)
    publisher = device_of(plan, "pub", plan.number_base)
    if plan.publishers:
        _check_topic("topic", fill_topic(plan.topic, publisher).text.decode())
    if plan.will_topic is not None:
        _check_topic("will_topic", fill(plan.will_topic, publisher))
    if plan.subscribers:
        plain_filter(plan, numbers_of(plan, "sub")[0])


def check_heard(plan: "Plan") -> None:
    """Refuse subscribers that hear none of the plan's own publishers, unless somebody says that is meant."""
    if not plan.publishers or not plan.subscribers or plan.deliveries_per_message is not None:
        return
    topic_filter = plain_filter(plan, numbers_of(plan, "sub")[0])
    if plan.publishers > _LOOKED_AT_MAX or any(
        topics.matches(topic_filter, topic) for topic in _topics_of(plan)
    ):
        return
    example = next(_topics_of(plan))
    raise SwarmError(
        f"the filter {topic_filter!r} matches no topic of the publishers, such as {example!r}: "
        "where that is meant, --deliveries-per-message 0 says so"
    )


def deliveries_of(plan: "Plan") -> int | None:
    """How many subscribers get each message, as far as topics and filters tell; None where they do not."""
    if plan.deliveries_per_message is not None:
        return plan.deliveries_per_message
    if not plan.subscribers or not plan.publishers:
        return 0
    if shares_one_group(plan):
        return 1
    template = plan.filter.split("/", 2)[-1] if topics.is_shared(plan.filter) else plan.filter
    if plan.topics_per_publisher > 1 or any(own in template for own in ("%i", "{n}", "%c")):
        # What goes to a topic without a subscriber is for nobody.
        topics_count = plan.publishers * plan.topics_per_publisher
        return 1 if plan.subscribers >= topics_count else None
    return plan.subscribers


def shares_one_group(plan: "Plan") -> bool:
    """Whether several subscribers are members of one group."""
    numbers = numbers_of(plan, "sub")
    first = group_of(plan, numbers[0]) if numbers else ""
    return bool(first) and len(numbers) > 1 and first == group_of(plan, numbers[1])


def group_of(plan: "Plan", number: int) -> str:
    """The filter of a subscriber whose group shares it; empty for one that shares nothing."""
    topic_filter = fill(plan.filter, device_of(plan, "sub", number))
    return topic_filter if topics.is_shared(topic_filter) else ""


def plain_filter(plan: "Plan", number: int) -> str:
    """The filter of a subscriber without the group that shares it. SwarmError when it is none."""
    topic_filter = fill(plan.filter, device_of(plan, "sub", number))
    try:
        if topics.is_shared(topic_filter):
            return topics.split_shared(topic_filter)[1]
        return topics.decode_topic_filter(topic_filter.encode())
    except (IotmqError, ValueError) as error:
        raise SwarmError(f"filter {topic_filter!r}: {error}") from error


def _check_topic(field: str, topic: str) -> None:
    try:
        topics.decode_topic_name(topic.encode())
    except IotmqError as error:
        raise SwarmError(f"{field} {topic!r}: {error}") from error


def _check_client_ids(plan: "Plan") -> None:
    """Of each kind the first devices, and those with the number of the first ones of another kind."""
    ranges = {kind: numbers_of(plan, kind) for kind in KINDS}
    candidates = {n for numbers in ranges.values() for n in (numbers.start, numbers.start + 1)}
    known: set[str] = set()
    for kind, numbers in ranges.items():
        for n in sorted(candidates):
            if n not in numbers:
                continue
            client_id = device_of(plan, kind, n).client_id
            if client_id in known:
                raise SwarmError(
                    f"client_id {plan.client_id!r} gives two devices the id {client_id!r}: "
                    "it needs %i, and {kind} where there are several kinds"
                )
            known.add(client_id)


def _topics_of(plan: "Plan") -> Iterator[str]:
    for n in numbers_of(plan, "pub"):
        device = device_of(plan, "pub", n)
        if plan.topics_per_publisher == 1:
            yield fill_topic(plan.topic, device).text.decode()
            continue
        for i in range(n * plan.topics_per_publisher, (n + 1) * plan.topics_per_publisher):
            yield fill_topic(plan.topic, device._replace(number=f"{i:0{TOPIC_DIGITS}d}")).text.decode()
