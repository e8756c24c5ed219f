"""The body of a broker's registration: its topic table as JSON or in the compressed form.

Compressed is a zlib stream of: int32 size + DataVersion JSON; int32 number of topics, each int32 size +
``name readQueues writeQueues permissions filterType`` with single spaces; int32 size + filter server JSON.
Brokers of ours add int32 size + ``{"name":{"frozenQueues":[1],"topicSysFlag":2}}`` for topics with either.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

import msgspec

from iotmq.errors import RequestError
from iotmq.limits import (
    QUEUES_PER_TOPIC_MAX,
    REGISTRATION_INFLATED_BYTES_MAX,
    TOPIC_BYTES_MAX,
    TOPICS_MAX,
)
from iotmq.registry.routes import DataVersion, TopicQueues
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import ResponseCode

_INT32: Final = struct.Struct(">i")
_PERMISSIONS_MAX: Final = 15


class Registration(NamedTuple):
    """Hold a broker's registration of its topics."""

    data_version: DataVersion | None
    topics: dict[str, TopicQueues]
    # Topics left out because their name or numbers are past what any client could use.
    topics_refused: int


class _TopicDocument(msgspec.Struct, rename="camel"):
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_sys_flag: int = 0
    frozen_queues: tuple[int, ...] = ()


class _BesidesDocument(msgspec.Struct, rename="camel"):
    topic_sys_flag: int = 0
    frozen_queues: tuple[int, ...] = ()


_NOTHING_BESIDES: Final = _BesidesDocument()


class _TableDocument(msgspec.Struct, rename="camel"):
    topic_config_table: dict[str, _TopicDocument] = {}
    data_version: DataVersion | None = None


class _BodyDocument(msgspec.Struct, rename="camel"):
    topic_config_serialize_wrapper: _TableDocument | None = None


def decode_registration(body: bytes, *, is_compressed: bool, crc: int) -> Registration:
    """The topics in a registration; an empty body has none. `crc` is that of the body as sent, 0 for none.

    RequestError when the body is damaged.
    """
    if crc and zlib.crc32(body) & 0x7FFFFFFF != crc:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, "the field bodyCrc32 is not the CRC of the body as it arrived"
        )
    if not body:
        return Registration(None, {}, 0)
    if is_compressed:
        return _decode_compressed(_inflate(body))
    table = lenient_json.decode(body, _BodyDocument).topic_config_serialize_wrapper
    if table is None:
        return Registration(None, {}, 0)
    topics = _Topics()
    for name, topic in table.topic_config_table.items():
        topics.add(
            name,
            topic.read_queue_nums,
            topic.write_queue_nums,
            topic.perm,
            sys_flag=topic.topic_sys_flag,
            frozen=topic.frozen_queues,
        )
    return Registration(table.data_version, topics.accepted, topics.refused_count)


class _Topics:
    def __init__(self) -> None:
        self.accepted: dict[str, TopicQueues] = {}
        self.refused_count = 0

    def add(
        self,
        name: str,
        read_queues: int,
        write_queues: int,
        perm: int,
        *,
        sys_flag: int = 0,
        frozen: tuple[int, ...] = (),
    ) -> None:
        if (
            0 < len(name.encode()) <= TOPIC_BYTES_MAX
            and 0 <= read_queues <= QUEUES_PER_TOPIC_MAX
            and 0 <= write_queues <= QUEUES_PER_TOPIC_MAX
            and 0 <= perm <= _PERMISSIONS_MAX
            and 0 <= sys_flag <= 0x7FFFFFFF
            and len(frozen) <= QUEUES_PER_TOPIC_MAX
            and all(0 <= queue_id < QUEUES_PER_TOPIC_MAX for queue_id in frozen)
        ):
            self.accepted[name] = TopicQueues(read_queues, write_queues, perm, sys_flag, frozen)
        else:
            self.refused_count += 1


def _inflate(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(body, REGISTRATION_INFLATED_BYTES_MAX)
    except zlib.error:
        raise _broken() from None
    if not inflater.eof:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"the body is cut off or inflates past {REGISTRATION_INFLATED_BYTES_MAX} bytes",
        )
    return plain


def _decode_compressed(data: bytes) -> Registration:
    version_text, at = _text_at(data, 0)
    version = lenient_json.decode(version_text, DataVersion)
    topic_count, at = _int32_at(data, at)
    if topic_count > TOPICS_MAX:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the body has more than {TOPICS_MAX} topics")
    words_of: list[list[bytes]] = []
    for _ in range(topic_count):
        text, at = _text_at(data, at)
        words_of.append(text.split(b" "))
    besides = _besides_at(data, at)
    topics = _Topics()
    for words in words_of:
        try:
            name = words[0].decode()
            read_queues, write_queues, perm = int(words[1]), int(words[2]), int(words[3])
        except (ValueError, IndexError):
            raise _broken() from None
        more = besides.get(name, _NOTHING_BESIDES)
        topics.add(
            name, read_queues, write_queues, perm, sys_flag=more.topic_sys_flag, frozen=more.frozen_queues
        )
    return Registration(version, topics.accepted, topics.refused_count)


def _besides_at(data: bytes, at: int) -> dict[str, _BesidesDocument]:
    """Read what brokers of iotmq add behind the filter servers, which no broker has any more."""
    if at == len(data):
        return {}
    _, at = _text_at(data, at)
    if at == len(data):
        return {}
    text, _ = _text_at(data, at)
    return lenient_json.decode(text, dict[str, _BesidesDocument])


def _int32_at(data: bytes, at: int) -> tuple[int, int]:
    if at + 4 > len(data):
        raise _broken()
    (value,) = _INT32.unpack_from(data, at)
    if value < 0:
        raise _broken()
    return value, at + 4


def _text_at(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _int32_at(data, at)
    if size > len(data) - at:
        raise _broken()
    return data[at : at + size], at + size


def _broken() -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, "the body cannot be read as a compressed registration")
