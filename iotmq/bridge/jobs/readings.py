"""Numbers measured by devices, out of JSON payloads, as SQL.

A payload is a JSON object of numbers, flat or one level deep; all of these are understood::

    {"cpu_percent": 3.2}
    {"ts": 1700000000.5, "metrics": {"cpu_percent": 3.2}}
    {"disk": {"read_bytes": 5, "write_bytes": 7}}          (metrics disk.read_bytes, disk.write_bytes)

The device is a level of the MQTT topic, otherwise the record's key, otherwise the MQTT client. The time is
``ts``, ``timestamp`` or ``time`` of the payload (seconds or milliseconds since 1970, or ISO 8601),
otherwise, and where it lies more than a minute ahead, the time at which the gateway stored the record.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

SOURCE_SCHEMA: Final = "key string, value binary, timestamp timestamp, mqtt_topic string, client_id string"

_TIME_FIELDS: Final = ("ts", "timestamp", "time")
# A number is seconds up to 1e11 (the year 5138) and milliseconds above; one before 1973 is no time of
# day but the clock of a device that was never set.
_SECONDS_MIN: Final = "1e8"
_SECONDS_MAX: Final = "1e11"
_MILLISECONDS_MAX: Final = "1e14"
_TIME_AHEAD_MAX: Final = "INTERVAL 1 MINUTE"

_READING: Final = "array<struct<metric: string, reading: double>>"


def device_readings(rows: DataFrame, *, device_level: int) -> DataFrame:
    """One row per measured number: event_time, device, metric, reading, and stored (the store's time).

    `rows` has the columns of SOURCE_SCHEMA. What is no JSON object, and values that are no numbers,
    give no rows.
    """
    return (
        with_event_time(rows, device_level=device_level)
        .select(
            "event_time",
            "device",
            F.expr(f"explode({_readings()})").alias("measured"),
            F.col("timestamp").alias("stored"),
        )
        .select("event_time", "device", "measured.metric", "measured.reading", "stored")
    )


def with_event_time(rows: DataFrame, *, device_level: int) -> DataFrame:
    """Return `rows` with device, event_time and the entries of the JSON object (null when it is none)."""
    # Each step is a column of its own, because Spark computes a named column once however often it is
    # used, and an expression written twice possibly twice.
    return (
        rows.withColumn("payload", F.expr("try_parse_json(CAST(value AS STRING))"))
        .withColumn("entries", F.expr("try_variant_get(payload, '$', 'map<string, variant>')"))
        .withColumn("said", F.expr(_said_time()))
        .withColumn("number", F.expr("try_variant_get(said, '$', 'double')"))
        .withColumn("text", F.expr("try_variant_get(said, '$', 'string')"))
        .withColumn("stamp", F.expr(stamp("number", "text")))
        .withColumn("event_time", F.expr(believed("stamp")))
        .withColumn("device", F.expr(device_of(device_level)))
        .drop("payload", "said", "number", "text", "stamp")
    )


def device_of(level: int) -> str:
    """SQL for the device of a record: a level of its MQTT topic, otherwise its key, otherwise its client."""
    return f"coalesce(nullif(try_element_at(split(mqtt_topic, '/'), {level}), ''), key, client_id, 'unknown')"


def stamp(number: str, text: str) -> str:
    """SQL for the time that a double `number` means, or a `text` where that is null; null when it is none."""
    return (
        f"CASE WHEN {number} BETWEEN {_SECONDS_MIN} AND {_SECONDS_MAX} THEN timestamp_seconds({number})"
        f" WHEN {number} BETWEEN {_SECONDS_MAX} AND {_MILLISECONDS_MAX}"
        f" THEN timestamp_millis(CAST({number} AS BIGINT))"
        f" WHEN {number} IS NULL THEN try_to_timestamp({text}) END"
    )


def believed(time: str) -> str:
    """SQL for `time` where it is one and lies no more than a minute ahead, else the time of storing."""
    return f"IF({time} <= timestamp + {_TIME_AHEAD_MAX}, {time}, timestamp)"


def _said_time() -> str:
    """SQL for what a payload gives as its time, as a variant; null when it gives none."""
    # By paths: a map of all entries costs more, and jobs that look at the time alone do not need it.
    # A JSON null is a value of a variant, and no time.
    paths = [f"try_variant_get(payload, '$.{name}', 'variant')" for name in _TIME_FIELDS]
    return f"coalesce({', '.join(f'IF(is_variant_null({path}), NULL, {path})' for path in paths)})"


def _readings() -> str:
    """SQL for the numbers of a payload as an array of (metric, reading)."""
    names = ", ".join(f"'{name}'" for name in _TIME_FIELDS)
    none = f"CAST(array() AS {_READING})"
    inner = "map_entries(try_variant_get(outer_.value, '$', 'map<string, variant>'))"
    return (
        "flatten(transform(map_entries(entries), outer_ -> CASE"
        f" WHEN outer_.key IN ({names}) THEN {none}"
        f" WHEN {_is_number('outer_.value')} THEN {_single('outer_.key', 'outer_.value')}"
        f" ELSE coalesce(transform(filter({inner}, inner_ -> {_is_number('inner_.value')}),"
        " inner_ -> named_struct("
        "'metric', IF(outer_.key = 'metrics', inner_.key, concat(outer_.key, '.', inner_.key)),"
        f" 'reading', try_variant_get(inner_.value, '$', 'double'))), {none}) END))"
    )


def _single(key: str, value: str) -> str:
    return f"array(named_struct('metric', {key}, 'reading', try_variant_get({value}, '$', 'double')))"


def _is_number(value: str) -> str:
    return f"coalesce(schema_of_variant({value}) RLIKE '^(BIGINT|DOUBLE|DECIMAL)', FALSE)"
