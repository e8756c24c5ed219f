"""Read a range of one queue as raw pull answers, with one pull ahead of the caller.

A pull answer is a run of records as they are stored, see docs/reference/formats.md. What is asked for is
bounded twice: never a record at or behind the end of the range, and about `pull_bytes` at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from iotmq import limits
from iotmq.addresses import address_text
from iotmq.bridge.cluster import Address, BrokerMissingError, Cluster, ext_number
from iotmq.bridge.offsets import QueueRange
from iotmq.bridge.options.wanted import ALL_RECORDS
from iotmq.bridge.plan import Change, Loss, LossHandler
from iotmq.client.consuming.pulls import pull_command
from iotmq.client.transport.routes import MessageQueue
from iotmq.client.transport.subscriptions import Subscription
from iotmq.errors import BrokerError, ConnectionClosedError, IotmqError, RequestTimeoutError
from iotmq.message.records.record import decode_record
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.command import Command

_DAMAGED: Final = "they are damaged in the broker's log, which was repaired without them"
# What brokers say when they have looked at records, none of which passes the filter.
_NONE_WANTED: Final = "NO_MATCHED_MESSAGE"


class PullSettings(NamedTuple):
    """Settings of pulls: the consumer group that is named to the broker, bytes per pull, what is wanted.

    Records whose time to live was over at `expired_at_ms` are passed over; none are with 0.
    """

    group: str
    pull_bytes: int
    expired_at_ms: int = 0
    subscription: Subscription = ALL_RECORDS


class Pulled(NamedTuple):
    """One answer: `body` holds the records of offsets from `first_offset` up to `next_offset`.

    Of these the broker has left out those in `lost`, first and last of each range, and `passed_over` others
    that nobody wants.
    """

    body: bytes | memoryview
    first_offset: int
    next_offset: int
    lost: tuple[tuple[int, int], ...] = ()
    passed_over: int = 0

    @property
    def missing(self) -> int:
        """Return how many offsets the broker says to have left out."""
        return self.passed_over + sum(last - first + 1 for first, last in self.lost)


def pull_range(
    cluster: Cluster, part: QueueRange, address: Address, settings: PullSettings, on_loss: LossHandler
) -> Iterator[Pulled]:
    """Yield the answers that cover `part`, each asked for while the one before is being worked on.

    `address` is where the broker was when the batch was planned; after a failure the route is asked
    again. Offsets that the broker does not have any more go to `on_loss`, which raises to stop. Raises
    ConnectionClosedError when the broker cannot be reached for the time allowed, BrokerError when it
    refuses.
    """
    puller = _Puller(cluster, part, address, settings, on_loss)
    offset = part.start
    while offset < part.end:
        answer = puller.pull(offset)
        next_offset = puller.next_offset(answer, offset)
        if next_offset > offset:
            lost, passed_over = _gaps(answer)
            if answer.code == ResponseCode.SUCCESS:
                puller.ask_ahead(next_offset)
                body = _one_buffer(answer)
                yield Pulled(body, offset, min(next_offset, part.end), lost, passed_over)
            for first, last in lost:
                on_loss(Loss(part.key, first, _DAMAGED, last + 1))
        offset = next_offset


def store_time_at(cluster: Cluster, part: QueueRange, address: Address, settings: PullSettings) -> int | None:
    """Return when the first record of `part` was stored, or the one behind those that are damaged.

    None when it was deleted, or there is none.
    """
    offset, count = part.start, 1
    while offset < part.end:
        lost: list[Loss] = []
        found: int | None = None
        some = part._replace(start=offset, end=min(offset + count, part.end))
        for pulled in pull_range(cluster, some, address, settings, lost.append):
            if found is None and len(pulled.body):
                found = decode_record(pulled.body).store_timestamp_ms
        if found is not None or not any(loss.what == _DAMAGED for loss in lost):
            return found
        offset, count = some.end, 2 * count
    return None


class _Puller:
    """The pulls of one range: the one under way, and the time allowed for it."""

    def __init__(
        self,
        cluster: Cluster,
        part: QueueRange,
        address: Address,
        settings: PullSettings,
        on_loss: LossHandler,
    ) -> None:
        self._cluster = cluster
        self._part = part
        self._address = address
        self._settings = settings
        self._on_loss = on_loss
        self._patience = cluster.retry.patience()
        self._opaque_ahead: int | None = None  # of the pull that is on its way, None when there is none

    def ask_ahead(self, offset: int) -> None:
        """Send the pull that will be wanted next; its failure shows when it is wanted."""
        self._patience = self._cluster.retry.patience()
        if offset >= self._part.end:
            return
        try:
            self._opaque_ahead = self._cluster.connection(self._address).send(self._request(offset))
        except (OSError, IotmqError):
            self._forget()

    def pull(self, offset: int) -> Command:
        """Return the answer to a pull at `offset`; keeps asking while the broker is away or busy."""
        while True:
            try:
                connection = self._cluster.connection(self._address)
                opaque = self._opaque_ahead
                self._opaque_ahead = None
                if opaque is None:
                    opaque = connection.send(self._request(offset))
                return self._cluster.receive(connection, opaque, self._part.key.broker, self._address)
            except (OSError, ConnectionClosedError, RequestTimeoutError) as error:
                self._forget()
                if not self._patience.wait(f"{self._part.key} offset {offset}: {error}"):
                    raise ConnectionClosedError(
                        f"cannot read {self._part.key} offset {offset} from "
                        f"{address_text(*self._address)} within the time of option retryTimeoutMs: {error}"
                    ) from error
                self._find_broker()

    def next_offset(self, answer: Command, offset: int) -> int:
        """Return where to go on after `answer`.

        Behind its records, or over a gap, or at `offset` once more.
        """
        if answer.code == ResponseCode.SUCCESS:
            following = ext_number(answer, "nextBeginOffset")
            if following <= offset:
                raise BrokerError(
                    answer.code, f"pull of {self._part.key} offset {offset} leads back to {following}"
                )
            return following
        if "changedOffset" in answer.ext:
            change = Change(ext_number(answer, "changedOffset"), answer.ext.get("change", ""))
            self._lose(offset, self._part.end, change.reason)
            return self._part.end
        if answer.code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED):
            following = ext_number(answer, "nextBeginOffset")
            if following > offset:
                end = min(following, self._part.end)
                if answer.remark == _NONE_WANTED and self._settings.subscription != ALL_RECORDS:
                    # Other brokers do not say how many.
                    return end
                lost, passed_over = _gaps(answer)
                if passed_over + sum(last - first + 1 for first, last in lost) != following - offset:
                    self._lose(offset, end, f"the broker goes on at {following} ({answer.remark})")
                return end
        elif answer.code == ResponseCode.TOPIC_NOT_EXIST:
            self._lose(offset, self._part.end, f"the topic was deleted ({answer.remark})")
            return self._part.end
        elif answer.code not in (
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.SYSTEM_ERROR,
            ResponseCode.SYSTEM_BUSY,
            ResponseCode.SERVICE_NOT_AVAILABLE,
        ):
            raise BrokerError(
                answer.code, f"pull of {self._part.key} offset {offset} is refused: {answer.remark}"
            )
        # The records were there when the batch was planned, so a broker that does not show them may be
        # starting up; one that still does not when patience ends has lost them.
        if self._patience.wait(f"{self._part.key} offset {offset}: {answer.remark}"):
            # Or it is a member of a replicated broker that is not master any more.
            self._find_broker()
            return offset
        if answer.code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
            what = f"the broker has nothing up to {self._part.end} ({answer.remark})"
            self._lose(offset, self._part.end, what)
            return self._part.end
        if self._is_removed():
            self._lose(offset, self._part.end, f"the queue was removed ({answer.remark})")
            return self._part.end
        raise BrokerError(answer.code, f"pull of {self._part.key} offset {offset}: {answer.remark}")

    def _is_removed(self) -> bool:
        """Return whether the topic is still at the broker, without this queue.

        A batch that is read once more.
        """
        key = self._part.key
        try:
            route = self._cluster.route_now(key.topic)
        except (OSError, IotmqError):
            return False
        return key.broker in route.addresses and key not in route.queues

    def _lose(self, offset: int, end: int, what: str) -> None:
        self._on_loss(Loss(self._part.key, offset, what, end))
        self._patience = self._cluster.retry.patience()

    def _find_broker(self) -> None:
        """Ask where the broker is now; it may have come back elsewhere, or a slave may serve."""
        try:
            route = self._cluster.route_now(self._part.key.topic)
            found = route.addresses.get(self._part.key.broker)
            if found is None:
                raise BrokerMissingError(self._part.key.broker)
        except (OSError, IotmqError):
            return  # the registry may be away too: the old address is tried again
        self._address = found

    def _forget(self) -> None:
        self._cluster.drop(self._address)
        self._opaque_ahead = None

    def _request(self, offset: int) -> Command:
        key = self._part.key
        request = pull_command(
            self._settings.group,
            MessageQueue(key.topic, key.broker, key.queue_id),
            offset,
            records_max=min(self._part.end - offset, limits.PULL_RECORDS_MAX),
            bytes_max=self._settings.pull_bytes,
            hold_ms=0,
            subscription=self._settings.subscription,
        )
        # A range is the same rows whenever it is read, and a hole that is not explained is a loss.
        request.ext["tellGaps"] = request.ext["withExpired"] = "true"
        request.ext["endOffset"] = str(self._part.end)
        if self._settings.expired_at_ms:
            request.ext["expiredAt"] = str(self._settings.expired_at_ms)
        if self._part.generation:
            request.ext["generation"] = self._part.generation
        return request


def _gaps(answer: Command) -> tuple[tuple[tuple[int, int], ...], int]:
    """Return what the broker says of offsets that its answer has no records of.

    The lost ones as first and last of each range, and how many others it has passed over.
    """
    ranges: list[tuple[int, int]] = []
    for text in filter(None, answer.ext.get("lostOffsets", "").split(",")):
        first, _, last = text.partition("-")
        if not (first.isdigit() and last.isdigit() and int(first) <= int(last)):
            raise BrokerError(answer.code, f"the answer names lost offsets {text!r}")
        ranges.append((int(first), int(last)))
    passed_over = ext_number(answer, "passedOver") if "passedOver" in answer.ext else 0
    return tuple(ranges), passed_over


def _one_buffer(answer: Command) -> bytes | memoryview:
    return answer.body if isinstance(answer.body, bytes | memoryview) else answer.body_bytes()
