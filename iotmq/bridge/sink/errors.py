"""Errors of writing with format iotmq, as Spark shows them: each names what is wrong, and the way out."""

from __future__ import annotations

from iotmq.errors import IotmqError


class SinkError(IotmqError):
    """Rows could not be stored. What was stored of the batch stays, and is not stored again by a retry."""


class SinkColumnError(SinkError):
    """A column that the sink does not have, or of a type that it does not take."""


class SinkRowError(SinkError):
    """A row that cannot be a message, by its number within its Spark partition."""


class SinkInputError(SinkError):
    """The rows of a task broke off, because what gives them has failed; Spark reports that failure."""


class SinkTopicError(SinkError):
    """A topic that does not exist, or that takes no messages."""


class SinkRefusedError(SinkError):
    """A broker refused rows for good."""


class SinkUnavailableError(SinkError):
    """A broker, or the queues of a topic, stayed away longer than option retryTimeoutMs allows."""


class SinkOrderError(SinkError):
    """The broker does not have what was sent before: it has lost it, or has forgotten the writer."""


class SinkRowsChangedError(SinkError):
    """A batch was stored before with other rows: the query gives different ones when it is repeated."""
