"""Group messages by topic and encode them into batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from iotmq.client.sending.message_elements import encode_element
from iotmq.client.transport.message import Message
from iotmq.errors import MessageRefusedError
from iotmq.limits import BATCH_RECORDS_MAX


def by_topic(messages: Iterable[Message]) -> dict[str, list[Message]]:
    """Group messages by topic, in the order in which the topics come first."""
    groups: dict[str, list[Message]] = {}
    for message in messages:
        groups.setdefault(message.topic, []).append(message)
    return groups


def batch_bodies(
    messages: Sequence[Message], unique_keys: Sequence[str], *, body_bytes_max: int
) -> Iterator[tuple[bytes, int, str]]:
    """Yield batch bodies of at most `body_bytes_max`, with their counts and first unique keys."""
    elements: list[bytes] = []
    size = 0
    first_key = ""
    for message, unique_key in zip(messages, unique_keys, strict=True):
        if message.is_delayed:
            raise MessageRefusedError("a batch cannot carry delayed messages: send them singly")
        element = encode_element(message, unique_key)
        if len(element) > body_bytes_max:
            raise MessageRefusedError(
                f"a message of {len(element)} bytes in a batch, allowed are {body_bytes_max} (body_bytes_max)"
            )
        if elements and (size + len(element) > body_bytes_max or len(elements) == BATCH_RECORDS_MAX):
            yield b"".join(elements), len(elements), first_key
            elements, size = [], 0
        if not elements:
            first_key = unique_key
        elements.append(element)
        size += len(element)
    if elements:
        yield b"".join(elements), len(elements), first_key
