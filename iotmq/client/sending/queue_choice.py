"""Choose the queue that a sender asks for: itself, by its number, or by a function of the application."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from iotmq.client.transport.routes import MessageQueue
from iotmq.errors import MessageRefusedError

QueueChoice: TypeAlias = MessageQueue | int | Callable[[tuple[MessageQueue, ...]], MessageQueue]
"""A queue, its place among `Producer.queues`, or a function that is given those and returns one of them: once
for each message, on the event loop, so it must not block."""


def check_queue(choice: QueueChoice, topic: str) -> None:
    """Raise MessageRefusedError for a queue of another topic."""
    if isinstance(choice, MessageQueue) and choice.topic != topic:
        raise MessageRefusedError(f"queue {choice} is not one of topic {topic}")


def chosen_queue(choice: QueueChoice, topic: str, queues: tuple[MessageQueue, ...]) -> MessageQueue:
    """Return the queue among those that take messages of the topic; MessageRefusedError when it is none.

    Raises what a function of the application raises.
    """
    if isinstance(choice, int):
        if not 0 <= choice < len(queues):
            raise MessageRefusedError(f"queue {choice}: topic {topic} has {len(queues)} queues, from 0 on")
        return queues[choice]
    queue = choice if isinstance(choice, MessageQueue) else choice(queues)
    if not isinstance(queue, MessageQueue) or queue.topic != topic:
        raise MessageRefusedError(f"queue {queue!r} is not one of topic {topic}")
    return queue
