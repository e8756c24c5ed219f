"""Encode a broker's topics for a registration (wire document 5.4): JSON, or compressed when that is long.

A table of many topics is longer than a frame as JSON, and says the same in a tenth when it is compressed; all
registries since Apache RocketMQ 4.3 read both. Compressed it is a zlib stream of: int32 size + DataVersion
JSON; int32 number of topics, each int32 size + ``name readQueues writeQueues permissions filterType``;
int32 size + JSON of the filter servers, of which there are none. Ours follows, and others pass it over: int32
size + JSON of what topics have besides, ``{"name":{"frozenQueues":[1],"topicSysFlag":2}}``.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

import msgspec

from iotmq import limits
from iotmq.broker.tables.config_files import DataVersion
from iotmq.broker.tables.topics import TopicConfig, encode_topics, in_chunks
from iotmq.errors import StoreError

_INT32: Final = struct.Struct(">i")
# Fastest: names that are alike, which is what makes tables long, shrink to a tenth with it as well.
_LEVEL: Final = 1


class _EpochVersion(DataVersion, frozen=True, rename="camel"):
    """The data version with the epoch of the master, which registries compare."""

    state_version: int = 0


class RegistrationBody(NamedTuple):
    """The body, and whether it is in the compressed form."""

    data: bytes
    is_compressed: bool


def encode_registration(
    version: DataVersion,
    topics: list[TopicConfig],
    *,
    perm_mask: int,
    epoch: int = 0,
    plain_topics_max: int = limits.REGISTRATION_PLAIN_TOPICS_MAX,
) -> RegistrationBody:
    """Return the topics as registries are told them; may be called in any thread.

    `epoch` goes into the data version as `stateVersion`; 0 leaves it out, as brokers without replication do.
    StoreError when not even the compressed form fits a frame.
    """
    if epoch:
        version = _EpochVersion(version.counter, version.timestamp, epoch)
    if len(topics) <= plain_topics_max:
        plain = _plain(version, topics, perm_mask)
        if len(plain) <= limits.REGISTRATION_BYTES_MAX:
            return RegistrationBody(plain, is_compressed=False)
    data = _compressed(version, topics, perm_mask)
    if len(data) > limits.REGISTRATION_BYTES_MAX:
        raise StoreError(
            f"the {len(topics)} topics of this broker take {len(data)} bytes of a registration, more than "
            f"{limits.REGISTRATION_BYTES_MAX}: delete some"
        )
    return RegistrationBody(data, is_compressed=True)


def _plain(version: DataVersion, topics: list[TopicConfig], perm_mask: int) -> bytes:
    table = encode_topics(version, topics, perm_mask=perm_mask)
    return b'{"filterServerList":[],"topicConfigSerializeWrapper":%s}' % table


def _compressed(version: DataVersion, topics: list[TopicConfig], perm_mask: int) -> bytes:
    deflater = zlib.compressobj(_LEVEL)
    pieces = [deflater.compress(_text(msgspec.json.encode(version)) + _INT32.pack(len(topics)))]
    besides: dict[str, dict[str, object]] = {}
    for some in in_chunks(topics):
        texts = []
        for topic in some:
            words = (
                f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} "
                f"{topic.perm & perm_mask} {topic.topic_filter_type}"
            )
            texts.append(_text(words.encode()))
            if topic.frozen or topic.topic_sys_flag:
                besides[topic.topic_name] = {
                    "frozenQueues": topic.frozen,
                    "topicSysFlag": topic.topic_sys_flag,
                }
        pieces.append(deflater.compress(b"".join(texts)))
    rest = _text(b"[]")
    if besides:
        rest += _text(msgspec.json.encode(besides))
    pieces += (deflater.compress(rest), deflater.flush())
    return b"".join(pieces)


def _text(text: bytes) -> bytes:
    return _INT32.pack(len(text)) + text
