"""Recall a scheduled message by the handle that its send returned."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from iotmq.client.transport.calls import ask_masters
from iotmq.client.transport.client import ClientTransport
from iotmq.errors import MessageRefusedError
from iotmq.remoting.codes import RequestCode, ResponseCode

_NOT_FOUND: Final = (ResponseCode.QUERY_NOT_FOUND,)


async def recall_message(client: ClientTransport, recall_handle: str, *, group: str) -> bool:
    """Recall a scheduled message. False when it does not wait (any more).

    MessageRefusedError for a text that is no handle, BrokerError when the broker refuses.
    """
    topic, broker_name = _read_handle(recall_handle)
    answers = await ask_masters(
        client,
        RequestCode.RECALL_MESSAGE,
        {"producerGroup": group, "topic": topic, "recallHandle": recall_handle},
        doing=f"taking back a message for topic {topic}",
        broker_names=(broker_name,),
        none_codes=_NOT_FOUND,
    )
    return bool(answers)


def _read_handle(text: str) -> tuple[str, str]:
    try:
        parts = base64.urlsafe_b64decode(text.encode("ascii")).decode().split(" ")
    except (UnicodeError, binascii.Error):
        parts = []
    if len(parts) != 5 or parts[0] != "v1":
        raise MessageRefusedError(f"invalid recall handle {text[:40]!r}: take that of a send's result")
    return parts[1], parts[2]
