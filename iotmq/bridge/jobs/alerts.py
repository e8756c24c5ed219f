"""Alerts by rules with hysteresis, and commands back to the devices that raised them.

A rule watches one metric. It is raised by a reading beyond its bound, or by readings that stay there for as
long as it says, and cleared by one on the other side of its second bound; in between nothing changes. The
readings of a device are folded into its state in the order of their times, by Spark alone.
"""

from __future__ import annotations

import itertools
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter

from iotmq.bridge.jobs.commands import COMMAND_COLUMNS, send_commands
from iotmq.bridge.jobs.readings import SOURCE_SCHEMA, device_readings
from iotmq.bridge.jobs.snapshots import Snapshots
from iotmq.bridge.jobs.stream_run import Report, Signals, StreamSettings, query_id, read_stream, run_stream
from iotmq.errors import ConfigError

NAME: Final = "alerts"

STATE_SCHEMA: Final = "device string, rule string, is_raised boolean, since timestamp, at timestamp"
CHANGE_COLUMNS: Final = ("device", "rule", "state", "reading", "event_time")
_FOLDED: Final = (
    "struct<is_raised: boolean, since: timestamp, at: timestamp,"
    " changes: array<struct<state: string, reading: double, event_time: timestamp>>>"
)
_SHOWN_MAX: Final = 20


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule: exactly one of `above` and `below`."""

    name: Annotated[str, Meta(pattern=r"^[\w .-]{1,100}$")]
    """Name of the rule, in alerts and as {rule} in commands."""
    metric: str
    """The metric, as in telemetry_windows: `cpu_percent`, `disk.read`."""
    above: float | None = None
    """Raised by a reading above it."""
    below: float | None = None
    """Raised by a reading below it."""
    clear: float | None = None
    """Cleared by a reading on the other side of it; without it, of the same bound."""
    for_seconds: Annotated[float, Meta(ge=0)] = 0
    """Raised only when readings stay beyond the bound for so long, by their own times."""
    topic: str = ""
    """MQTT topic of commands: "devices/{device}/commands"; empty for none."""
    raised: str = ""
    """Command when it is raised; {device}, {rule} and {reading} are put in. Empty for none."""
    cleared: str = ""
    """Command when it is cleared. Empty for none."""
    qos: Literal[0, 1, 2] = 1
    """QoS of the commands."""

    def beyond(self) -> str:
        """SQL: the reading raises it."""
        return f"reading > {self.above!r}D" if self.above is not None else f"reading < {self.below!r}D"

    def back(self) -> str:
        """SQL: the reading clears it."""
        if self.above is not None:
            return f"reading <= {(self.above if self.clear is None else self.clear)!r}D"
        return f"reading >= {(self.below if self.clear is None else self.clear)!r}D"


class Settings(StreamSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the job."""

    rules: Annotated[list[Rule], Meta(min_length=1, max_length=1000)]
    """The rules, `[[rules]]` each."""
    state: str
    """Directory for which rules are raised for which devices, on a file system that is mounted here."""
    parquet: str = ""
    """Directory where alerts are written; empty for nowhere."""
    console: bool = False
    """Print alerts."""
    command_topic: str = ""
    """Broker topic of commands; needed when a rule has some."""
    device_level: Annotated[int, Meta(ge=1)] = 2
    """Level of the MQTT topic that names the device, from 1."""


def run(spark: SparkSession, settings: Settings, *, signals: Signals | None = None) -> int:
    """Run the job; 0 when it caught up, 1 when it failed, 130 when it was told twice to end."""
    check_rules(settings)
    table = Snapshots(spark, settings.state, STATE_SCHEMA)

    def writer(report: Report) -> DataStreamWriter:
        return read_stream(spark, settings, SOURCE_SCHEMA).writeStream.foreachBatch(
            lambda batch, batch_id: _take(table, settings, report, batch, f"{query_id(spark)}-{batch_id}")
        )

    return run_stream(NAME, settings, writer, signals=signals)


def check_rules(settings: Settings) -> None:
    """Raise ConfigError that names the rule that makes no sense."""
    seen: set[str] = set()
    for rule in settings.rules:
        where = f"rule {rule.name!r}"
        if rule.name in seen:
            raise ConfigError(f"{where}: there are two of that name")
        seen.add(rule.name)
        if (rule.above is None) == (rule.below is None):
            raise ConfigError(f"{where}: give it exactly one of above and below")
        if rule.clear is not None and (
            (rule.above is not None and rule.clear > rule.above)
            or (rule.below is not None and rule.clear < rule.below)
        ):
            raise ConfigError(
                f"{where}: clear lies beyond the bound, so it would be raised and cleared at once"
            )
        if bool(rule.topic) != bool(rule.raised or rule.cleared):
            raise ConfigError(f"{where}: commands need topic, and raised, cleared or both")
        if rule.topic and not settings.command_topic:
            raise ConfigError(f"{where} has commands: command_topic names the broker topic they go through")


def told_readings(readings: DataFrame, rules: list[Rule]) -> DataFrame:
    """Return a row for each device and rule, with its readings in the order of their times."""
    # Readings between the bounds end a wait; to rules that do not wait they mean nothing.
    cases = ", ".join(
        f"IF(metric = {_text(rule.metric)} AND ({rule.beyond()} OR {rule.back()} OR {rule.for_seconds > 0}),"
        f" named_struct('rule', {_text(rule.name)}, 'is_beyond', {rule.beyond()}, 'is_back', {rule.back()},"
        f" 'wait_us', {round(rule.for_seconds * 1e6)}L), NULL)"
        for rule in rules
    )
    return (
        readings.where(F.col("metric").isin(sorted({rule.metric for rule in rules})))
        .withColumn("told", F.explode(F.expr(f"filter(array({cases}), x -> x IS NOT NULL)")))
        .groupBy("device", F.col("told.rule").alias("rule"))
        .agg(
            F.expr(
                "array_sort(collect_list("
                "struct(event_time, reading, told.is_beyond, told.is_back, told.wait_us)))"
            ).alias("readings")
        )
    )


def next_states(state: DataFrame, told: DataFrame) -> DataFrame:
    """Return the states of devices and rules that are told something, each with its `changes` in order.

    A reading from before the last one that counted is passed over.
    """
    is_raised = (
        "x.is_beyond AND NOT now.is_raised AND unix_micros(x.event_time) - unix_micros(since_) >= x.wait_us"
    )
    is_raised = is_raised.replace("since_", "coalesce(now.since, x.event_time)")
    is_cleared = "x.is_back AND NOT x.is_beyond AND now.is_raised"
    change = "named_struct('state', '{}', 'reading', x.reading, 'event_time', x.event_time)"
    fold = f"""
        aggregate(
            readings,
            CAST(named_struct(
                'is_raised', coalesce(was.is_raised, false), 'since', was.since, 'at', was.at,
                'changes', array()
            ) AS {_FOLDED}),
            (now, x) -> CASE WHEN x.event_time < now.at THEN now ELSE CAST(named_struct(
                'is_raised', ({is_raised}) OR (now.is_raised AND NOT ({is_cleared})),
                'since', IF(x.is_beyond, coalesce(now.since, x.event_time), NULL),
                'at', x.event_time,
                'changes', CASE
                    WHEN {is_raised} THEN array_append(now.changes, {change.format("raised")})
                    WHEN {is_cleared} THEN array_append(now.changes, {change.format("cleared")})
                    ELSE now.changes END
            ) AS {_FOLDED}) END
        )"""
    joined = told.alias("told").join(
        state.alias("was"), F.expr("told.device = was.device AND told.rule = was.rule"), "left"
    )
    return joined.select("told.device", "told.rule", F.expr(fold).alias("folded")).select(
        "device", "rule", "folded.*"
    )


def commands_of(changes: DataFrame, rules: list[Rule]) -> DataFrame:
    """Return the commands for changes: columns value, mqtt_topic and qos.

    A device whose name is no level of an MQTT topic gets none.
    """
    frames = [
        changes.where(f"rule = {_text(rule.name)} AND state = '{state}' AND device NOT RLIKE '[+#/\\\\x00]'")
        .where("device <> ''")
        .select(
            F.encode(_filled(text, is_quoted=True), "UTF-8").alias("value"),
            _filled(rule.topic, is_quoted=False).alias("mqtt_topic"),
            F.lit(rule.qos).alias("qos"),
        )
        for rule in rules
        for state, text in (("raised", rule.raised), ("cleared", rule.cleared))
        if text
    ]
    commands = frames[0]
    for frame in frames[1:]:
        commands = commands.unionAll(frame)
    return commands.select(*COMMAND_COLUMNS)


def _take(table: Snapshots, settings: Settings, report: Report, batch: DataFrame, name: str) -> None:
    """Keep, print and send what one batch changes; the same once more when it is done again."""
    before = table.before(name)
    told = told_readings(device_readings(batch, device_level=settings.device_level), settings.rules)
    state = table.read(before.snapshot).where(F.col("rule").isin([rule.name for rule in settings.rules]))
    after = next_states(state, told).persist()
    try:
        others = state.join(after, ["device", "rule"], "left_anti")
        # A device for which all is well takes no room.
        kept = after.where("is_raised OR since IS NOT NULL").drop("changes")
        table.write(name, others.unionByName(kept))
        changes = after.selectExpr("device", "rule", "inline(changes)").select(*CHANGE_COLUMNS).persist()
        try:
            _tell(changes, settings, report, name)
        finally:
            changes.unpersist()
    finally:
        after.unpersist()
    table.commit(name, before)


def _tell(changes: DataFrame, settings: Settings, report: Report, name: str) -> None:
    count = changes.count()
    report.add("alerts", count)
    if not count:
        return
    if settings.parquet:
        changes.coalesce(1).write.mode("overwrite").parquet(f"{settings.parquet}/batch={name}")
    if any(rule.topic for rule in settings.rules):
        commands = commands_of(changes, settings.rules).persist()
        try:
            send_commands(
                commands,
                bootstrap=settings.bootstrap,
                topic=settings.command_topic,
                source=settings.source,
                batch=name,
            )
            report.add("commands", commands.count())
        finally:
            commands.unpersist()
    if settings.console:
        print("\n".join(_lines(changes)), flush=True)


def _lines(changes: DataFrame) -> list[str]:
    rows = changes.orderBy("event_time", "device", "rule").limit(_SHOWN_MAX + 1).collect()
    lines = [
        f"{row.event_time:%H:%M:%S}  {row.state:7}  {row.device}  {row.rule}  {row.reading:g}"
        for row in itertools.islice(rows, _SHOWN_MAX)
    ]
    return lines if len(rows) <= _SHOWN_MAX else [*lines, "..."]


def _filled(template: str, *, is_quoted: bool) -> Any:
    """Put the device and the others into a text; `is_quoted` as inside of a JSON string."""
    device = F.col("device")
    if is_quoted:
        # As JSON has it, without the quotes around.
        device = F.expr("regexp_replace(to_json(named_struct('x', device)), '^.\"x\":\"|\"}$', '')")
    text = F.replace(F.lit(template), F.lit("{device}"), device)
    text = F.replace(text, F.lit("{rule}"), F.col("rule"))
    return F.replace(text, F.lit("{reading}"), F.col("reading").cast("string"))


def _text(value: str) -> str:
    """Return an SQL literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
