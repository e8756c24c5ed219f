"""Check the options of a writer of the sink; see `options`, which does it for readers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from iotmq import limits
from iotmq.bridge.options.connection import CONNECTION_NAMES, ConnectionOptions, read_connection
from iotmq.bridge.options.values import count
from iotmq.client.transport.message import check_topic
from iotmq.errors import ConfigError, MessageRefusedError
from iotmq.spelling import did_you_mean

BATCH_BYTES_MIN: Final = 4 * 1024
BATCH_BYTES_DEFAULT: Final = 512 * 1024
IN_FLIGHT_BYTES_DEFAULT: Final = 4 * 1024 * 1024
IN_FLIGHT_BYTES_MAX: Final = 256 * 1024 * 1024
BATCH_ID_MAX: Final = (1 << 36) - 1

_NAMES: Final = (*CONNECTION_NAMES, "topic", "producerId", "batchId", "batchBytes", "inFlightBytes")
# An option of Spark's, which gives it to the sink, too.
_OF_SPARK: Final = frozenset(("checkpointlocation",))
_SPELLING: Final = {name.lower(): name for name in _NAMES}


@dataclass(frozen=True)
class SinkOptions:
    """All options of one write, checked and complete; docs/reference/spark.md describes each."""

    connection: ConnectionOptions
    topic: str
    producer: str
    batch: int | None
    batch_bytes: int
    in_flight_bytes: int


def parse_sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Check `options` as Spark gives them; raises ConfigError that names the option and what it takes."""
    given = {name.lower(): value for name, value in options.items() if name.lower() not in _OF_SPARK}
    for name in given:
        if name not in _SPELLING:
            hint = did_you_mean(name, _SPELLING) or f"; known: {', '.join(_NAMES)}"
            raise ConfigError(f"unknown option {name!r} of writing with format iotmq{hint}")
    topic = given.get("topic", "").strip()
    if topic:
        try:
            check_topic(topic)
        except MessageRefusedError as error:
            raise ConfigError(f"option topic: {error}") from None
    producer = given.get("producerid", "").strip()
    if producer and not re.fullmatch(r"[a-zA-Z0-9_.:-]{1,100}", producer):
        raise ConfigError(f"option producerId is 1 to 100 letters, digits and any of _.:-, not {producer!r}")
    batch = count(given, "batchId", 0, least=0) if "batchid" in given else None
    if streaming and (producer or batch is not None):
        raise ConfigError(
            "the options producerId and batchId are for batch writes: a stream has its query's id and batches"
        )
    if (batch is None) != (not producer):
        raise ConfigError("give both of the options producerId and batchId, or neither")
    if batch is not None and batch > BATCH_ID_MAX:
        raise ConfigError(f"option batchId is at most {BATCH_ID_MAX}, not {batch}")
    return SinkOptions(
        connection=read_connection(given),
        topic=topic,
        producer=producer,
        batch=batch,
        batch_bytes=_bytes(given, "batchBytes", BATCH_BYTES_DEFAULT, most=limits.RECORD_BYTES_MAX),
        in_flight_bytes=_bytes(given, "inFlightBytes", IN_FLIGHT_BYTES_DEFAULT, most=IN_FLIGHT_BYTES_MAX),
    )


def _bytes(given: Mapping[str, str], name: str, default: int, *, most: int) -> int:
    value = count(given, name, default, least=BATCH_BYTES_MIN)
    if value > most:
        raise ConfigError(f"option {name} is at most {most}, not {value}")
    return value
