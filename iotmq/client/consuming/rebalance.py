"""Share queues among the members of a group: a pure function that every member computes alike."""

from __future__ import annotations

from collections.abc import Callable, Collection

from iotmq.client.transport.routes import MessageQueue

Allocation = Callable[[Collection[MessageQueue], Collection[str], str], list[MessageQueue]]


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
