"""The exception tree: the peer's fault, the caller's fault and the machine's fault are different classes."""

from __future__ import annotations


class IotmqError(Exception):
    """The root of every error iotmq raises on purpose."""


class ConfigError(IotmqError):
    """A setting is unknown or its value is refused; the text names the setting and what it means."""


class PeerError(IotmqError):
    """The other side broke a rule. `code` is the protocol's own number for it (reason or response code)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class MalformedFrameError(PeerError):
    """Bytes on the native port that cannot be a frame; the connection ends."""


class RequestError(PeerError):
    """A request that is answered with response code `code` and the text as its remark."""


class RefusedError(RequestError):
    """A request that is answered with the general response code, 1 (SYSTEM_ERROR), and the text."""

    def __init__(self, message: str) -> None:
        super().__init__(1, message)


class BrokerError(IotmqError):
    """A broker or registry answered a request of ours with an error; `code` is its response code."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"{remark} (response code {code})")
        self.code = code
        self.remark = remark


class NotMasterError(BrokerError):
    """A member of a replicated broker refused a request, and did nothing, because another one is master."""


class NotSupportedError(BrokerError):
    """A broker or registry does not know what was asked: one of RocketMQ's, or an older one of iotmq's."""


class ConnectionClosedError(IotmqError):
    """The connection ended before the answer came, or could not be made."""


class RequestTimeoutError(IotmqError):
    """No answer within the time allowed; the request may still have been carried out."""


class ClientError(IotmqError):
    """The application asked the native client for something that cannot be done; the text says what to do."""


class ClientClosedError(ClientError):
    """The client, producer or consumer is not started, or is stopped already."""


class MessageRefusedError(ClientError):
    """A message, topic or group breaks a rule and was not sent."""


class SubscriptionError(ClientError):
    """A subscription expression or a change of subscriptions is refused."""


class ProducerBusyError(ClientError):
    """Too many sends are unanswered; nothing of this one was sent."""


class RouteNotFoundError(IotmqError):
    """No registry knows a broker for the topic (now); the text says what to look at."""


class OffsetMovedError(IotmqError):
    """An offset lies outside its queue (expired, or never written); `next_offset` is the nearest inside."""

    def __init__(self, message: str, next_offset: int) -> None:
        super().__init__(message)
        self.next_offset = next_offset


class QueueError(IotmqError):
    """Trouble with one queue, which `topic`, `broker_name` and `queue_id` name."""

    def __init__(self, message: str, *, topic: str, broker_name: str, queue_id: int) -> None:
        super().__init__(f"{topic} queue {queue_id} of broker {broker_name}: {message}")
        self.topic = topic
        self.broker_name = broker_name
        self.queue_id = queue_id


class QueueLockedError(QueueError):
    """Another member of the group holds the lock of the queue."""


class ReceiptExpiredError(QueueError):
    """A popped message is not held any more: its time was over, and it is somebody else's, or to be."""


class ListenerError(QueueError):
    """A listener failed messages of a queue: it raised `__cause__`, or it waited for something cancelled."""


class ListenerTimeoutError(ListenerError):
    """A listener neither returned nor said `in_progress` in time, and was cancelled."""


class ListenerResultError(ListenerError):
    """A listener returned something else than None or messages that it was given."""


class SendFailedError(IotmqError):
    """All tries of a send failed for reasons that another try may cure; `__cause__` is the last one."""


class ConsensusUnavailableError(IotmqError):
    """The consensus store gave no answer of use; what was asked for may have been done, or be done later."""


class MemberChangeError(IotmqError):
    """A member cannot be added to a replicated broker, or removed; the text says why."""


class TableCopyError(IotmqError):
    """A piece of a table from a replication master cannot be taken; nothing of it was."""


class StoreError(IotmqError):
    """The store cannot do what was asked; stored records are untouched."""


class StoreLockedError(StoreError):
    """Another process has the data directory open."""


class StoreFullError(StoreError):
    """No room on the disk: appends are refused, reads go on."""


class StoreReadOnlyError(StoreError):
    """The store stopped taking appends after the disk failed to keep a promise; reads go on."""


class RecordTooLargeError(StoreError):
    """A record is past a limit of the format or of `store.record_bytes_max`."""


class StoreCorruptError(StoreError):
    """A file of the store breaks its format; the text names file and position."""
