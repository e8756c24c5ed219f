"""Acknowledge popped messages, and move the end of their time (wire document 14.1).

A receipt (`extraInfo`) has, with spaces between: first offset of the pop, time of the pop, invisible time,
revive queue, kind of topic, broker, queue id, offset. It holds its message until somebody else gets it, so
also for a while after its time. A receipt that holds nothing gets NO_MESSAGE; one for what is done, success.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.broker.handlers.native.pop import invisible_ms
from iotmq.broker.pop.pop_queue import DONE, DONE_BEFORE, NOT_POPPED, PopQueue
from iotmq.broker.pop.pops import Pops
from iotmq.broker.pop.states import Place
from iotmq.broker.replies.deferred_reply import DeferredReply
from iotmq.broker.replies.request_table import Handler, RequestProcessor
from iotmq.broker.writing.message_writer import RefusedBatch
from iotmq.errors import RequestError
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection

_OFFSET_MAX: Final = 1 << 62


class _Ack(msgspec.Struct, kw_only=True):
    """Acknowledgements of one pop from one queue: bits from the first offset on, the lowest bit first."""

    group: str = msgspec.field(name="c")
    topic: str = msgspec.field(name="t")
    start_offset: Annotated[int, Meta(ge=0, le=_OFFSET_MAX)] = msgspec.field(name="so")
    queue_id: Annotated[int, Meta(ge=0, le=2**31 - 1)] = msgspec.field(name="q")
    popped_ms: Annotated[int, Meta(ge=0, le=_OFFSET_MAX)] = msgspec.field(name="pt")
    bits: Annotated[str, Meta(max_length=(limits.POP_ACK_BITS_BYTES_MAX + 2) // 3 * 4)] = msgspec.field(
        name="b"
    )


class _Acks(msgspec.Struct, kw_only=True):
    acks: Annotated[list[_Ack], Meta(max_length=limits.POP_ACKS_MAX)]


class PopAckHandler(RequestProcessor):
    """Ends popped messages, or has them due at another time."""

    def __init__(self, pops: Pops, on_done: Callable[[Place, PopQueue], None]) -> None:
        """`on_done` is told of each queue of which something was acknowledged, or given back unseen."""
        self._clock = pops.clock
        self._pops = pops
        self._on_done = on_done

    def handlers(self) -> Mapping[int, Handler]:
        return {
            RequestCode.ACK_MESSAGE: self._acknowledge,
            RequestCode.BATCH_ACK_MESSAGE: self._acknowledge_many,
            RequestCode.CHANGE_MESSAGE_INVISIBLE_TIME: self._change,
        }

    def _acknowledge(self, connection: ServerConnection, request: Command) -> Command | None:
        place, state, offset, popped_ms = self._held(request)
        found = state.acknowledge(offset, popped_ms)
        if found not in (DONE, DONE_BEFORE):
            raise _not_held(found, place, offset)
        self._pops.note(place, state)
        self._on_done(place, state)
        return self._when_stored(connection, request, request.reply(ResponseCode.SUCCESS))

    def _acknowledge_many(self, connection: ServerConnection, request: Command) -> Command | None:
        acks = lenient_json.decode_request(request.body, _Acks).acks
        found: list[tuple[_Ack, bytes]] = []
        for ack in acks:
            try:
                bits = base64.b64decode(ack.bits, validate=True)
            except binascii.Error as error:
                raise RequestError(
                    ResponseCode.INVALID_PARAMETER, f"the bits of an acknowledgement are not base64: {error}"
                ) from error
            found.append((ack, bits))
        count = sum(int.from_bytes(bits, "little").bit_count() for _, bits in found)
        if count > limits.POP_ACKED_MAX:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"{count} acknowledgements in one request: the maximum is {limits.POP_ACKED_MAX}",
            )
        refused_count = 0
        for ack, bits in found:
            place = Place(ack.group, ack.topic, ack.queue_id)
            state = self._pops.find(place)
            if state is None:
                refused_count += int.from_bytes(bits, "little").bit_count()
            else:
                refused_count += state.acknowledge_many(ack.start_offset, bits, ack.popped_ms)
                self._pops.note(place, state)
                self._on_done(place, state)
        response = request.reply(ResponseCode.SUCCESS)
        if refused_count:
            remark = f"{refused_count} of the messages are not held by these receipts any more"
            response = request.reply(ResponseCode.NO_MESSAGE, remark=remark)
        return self._when_stored(connection, request, response)

    def _change(self, connection: ServerConnection, request: Command) -> Command | None:
        place, state, offset, popped_ms = self._held(request)
        if request.boolean("isDead"):
            return self._condemn(connection, request, place, state, offset=offset, popped_ms=popped_ms)
        wanted_ms = invisible_ms(request, minimum=0)
        if request.boolean("isUnseen"):
            return self._give_back(connection, request, place, state, offset=offset, popped_ms=popped_ms)
        now_ms = self._clock.now_ms()
        found, receipt_ms = state.change_due(offset, popped_ms, now_ms=now_ms, due_ms=now_ms + wanted_ms)
        if found != DONE:
            raise _not_held(found, place, offset)
        self._pops.note(place, state)
        ext = {"popTime": str(receipt_ms), "invisibleTime": str(wanted_ms), "reviveQid": "0"}
        return self._when_stored(connection, request, request.reply(ResponseCode.SUCCESS, ext=ext))

    def _give_back(
        self,
        connection: ServerConnection,
        request: Command,
        place: Place,
        state: PopQueue,
        *,
        offset: int,
        popped_ms: int,
    ) -> Command | None:
        """Have a message come again at once, as if it had not been handed out."""
        found = state.find(offset, popped_ms)
        if found != DONE:
            raise _not_held(found, place, offset)
        state.give_back(b"%d" % offset, popped_ms)
        self._pops.note(place, state)
        self._on_done(place, state)
        return self._when_stored(connection, request, request.reply(ResponseCode.SUCCESS))

    def _condemn(
        self,
        connection: ServerConnection,
        request: Command,
        place: Place,
        state: PopQueue,
        *,
        offset: int,
        popped_ms: int,
    ) -> Command | None:
        """Have a message among the dead letters though it may be handed out again."""
        found = state.condemn(offset, popped_ms)
        if found not in (DONE, DONE_BEFORE):
            raise _not_held(found, place, offset)
        self._pops.note(place, state)
        return self._when_stored(connection, request, request.reply(ResponseCode.SUCCESS))

    def _held(self, request: Command) -> tuple[Place, PopQueue, int, int]:
        """Return the queue, offset and receipt that a request names."""
        place = Place(
            request.text("consumerGroup"), request.text("topic"), request.integer("queueId", minimum=0)
        )
        offset = request.integer("offset", minimum=0, maximum=_OFFSET_MAX)
        popped_ms = read_receipt(request.text("extraInfo"), queue_id=place.queue_id, offset=offset)
        state = self._pops.find(place)
        if state is None:
            raise _not_held(NOT_POPPED, place, offset)
        return place, state, offset, popped_ms

    def _when_stored(
        self, connection: ServerConnection, request: Command, response: Command
    ) -> Command | None:
        answer = DeferredReply(connection, request)

        def stored_or_not(refusal: RefusedBatch | None) -> None:
            if request.is_oneway:
                return
            if refusal is not None:
                answer.answer(request.reply(refusal.code, remark=refusal.remark))
            else:
                answer.answer(response)

        self._pops.when_stored(stored_or_not)
        return answer.now_or_later()


def read_receipt(text: str, *, queue_id: int, offset: int) -> int:
    """Return the time of the pop that a receipt names. RequestError (29) for one of another message."""
    parts = text.split(" ")
    try:
        if len(text) > limits.POP_RECEIPT_BYTES_MAX or not 7 <= len(parts) <= 8:
            raise ValueError
        popped_ms = int(parts[1])
        if int(parts[6]) != queue_id or (len(parts) == 8 and int(parts[7]) != offset):
            raise ValueError
        if not 0 <= popped_ms <= _OFFSET_MAX:
            raise ValueError
    except ValueError:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"the field extraInfo is no receipt for offset {offset} of queue {queue_id}: {text[:80]!r}",
        ) from None
    return popped_ms


def _not_held(found: int, place: Place, offset: int) -> RequestError:
    at = f"offset {offset} of queue {place.queue_id} of topic {place.topic}"
    if found == DONE_BEFORE:
        return RequestError(ResponseCode.NO_MESSAGE, f"{at} is done already for group {place.group}")
    if found == NOT_POPPED:
        return RequestError(ResponseCode.NO_MESSAGE, f"group {place.group} has not popped {at}")
    return RequestError(
        ResponseCode.NO_MESSAGE,
        f"this receipt does not hold {at} any more: group {place.group} was given the message again, or it "
        "has another receipt since its time was changed",
    )
