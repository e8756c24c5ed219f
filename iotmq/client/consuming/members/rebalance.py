"""Share queues among the members of a group: a pure function that every member computes alike."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection

from iotmq.client.transport.routes import MessageQueue

Allocation = Callable[[Collection[MessageQueue], Collection[str], str], list[MessageQueue]]
"""Gets the queues of one topic, the client ids of all members and the own one; returns the own queues. All
members of a group must use the same function, and it must give each queue to one of them."""


def allocate_averagely(
    queues: Collection[MessageQueue], client_ids: Collection[str], client_id: str
) -> list[MessageQueue]:
    """Return the queues of `client_id`: contiguous blocks of the sorted queues over the sorted members.

    The first `len(queues) % len(members)` members take one queue more. A client that is not (yet) in
    `client_ids` gets nothing, because the members that are in it have divided everything already.
    """
    members = sorted(set(client_ids))
    if client_id not in members:
        return []
    ordered = sorted(set(queues))
    share, remainder = divmod(len(ordered), len(members))
    index = members.index(client_id)
    first = index * share + min(index, remainder)
    return ordered[first : first + share + (1 if index < remainder else 0)]


def allocate_in_circle(
    queues: Collection[MessageQueue], client_ids: Collection[str], client_id: str
) -> list[MessageQueue]:
    """Return the queues of `client_id`: one after the other to each member in turn.

    So each member has queues of all brokers, where blocks would give it those of one.
    """
    members = sorted(set(client_ids))
    if client_id not in members:
        return []
    return sorted(set(queues))[members.index(client_id) :: len(members)]


def allocate_stickily(
    queues: Collection[MessageQueue], client_ids: Collection[str], client_id: str
) -> list[MessageQueue]:
    """Return the queues of `client_id`, so that few queues move when a member comes or goes.

    Shares are as even as blocks. Every queue has an order of preference of the members, by a hash; it goes to
    the first one that has room. Members need names that outlive a restart (`client_id`) to get the same
    queues after it.
    """
    members = sorted(set(client_ids))
    if client_id not in members:
        return []
    ordered = sorted(set(queues))
    share, larger_left = divmod(len(ordered), len(members))
    pairs = sorted(
        (zlib.crc32(f"{member} {queue.topic} {queue.broker_name} {queue.queue_id}".encode()), member, queue)
        for queue in ordered
        for member in members
    )
    counts = dict.fromkeys(members, 0)
    owners: dict[MessageQueue, str] = {}
    for _, member, queue in pairs:
        if queue in owners or counts[member] > share or (counts[member] == share and not larger_left):
            continue
        larger_left -= counts[member] == share
        counts[member] += 1
        owners[queue] = member
    return [queue for queue in ordered if owners[queue] == client_id]
