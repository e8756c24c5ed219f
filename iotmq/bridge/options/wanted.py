"""Which records a read wants: filters that brokers apply, so that the others do not cross the network.

Brokers compare hashes of tags, and find MQTT topics by beginning and end, so they may send some more. Those
are dropped here, for all rows of an answer at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

import pyarrow

from iotmq.client.transport.subscriptions import ALL_TAGS, Subscription, parse_subscription
from iotmq.errors import ConfigError, SubscriptionError
from iotmq.message.properties import MQTT_TOPIC, TAGS
from iotmq.mqtt.topics.topics import is_valid_filter

ALL_RECORDS: Final = Subscription("", ALL_TAGS, frozenset(), 0)
_TAGS_COLUMN: Final = f"property.{TAGS}"
_TOPIC_COLUMN: Final = f"property.{MQTT_TOPIC}"


class Wanted(NamedTuple):
    """Records that pass the options `tags`, `sql` and `mqttTopicFilter`: all of those that are given."""

    subscription: Subscription = ALL_RECORDS
    topic_pattern: str = ""

    @property
    def is_everything(self) -> bool:
        """Return whether no record is left out."""
        return self.subscription == ALL_RECORDS and not self.topic_pattern

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the columns of the decoder that `mask` looks at."""
        columns = ((_TAGS_COLUMN, self.subscription.tags), (_TOPIC_COLUMN, self.topic_pattern))
        return tuple(name for name, is_looked_at in columns if is_looked_at)

    def mask(self, column: Callable[[str], pyarrow.Array]) -> pyarrow.Array | None:
        """Return for each row whether it is wanted, None when all are that a broker sends."""
        from pyarrow import compute

        masks = []
        if self.subscription.tags:
            wanted = pyarrow.array(sorted(self.subscription.tags))
            masks.append(compute.is_in(column(_TAGS_COLUMN), value_set=wanted))
        if self.topic_pattern:
            found = compute.match_substring_regex(column(_TOPIC_COLUMN), self.topic_pattern)
            masks.append(compute.fill_null(found, False))
        if not masks:
            return None
        return masks[0] if len(masks) == 1 else compute.and_(*masks)


EVERYTHING: Final = Wanted()


def parse_wanted(*, tags: str | None, sql: str | None, mqtt_topic_filter: str | None) -> Wanted:
    """Return what the options say; raises ConfigError that names the option and what it takes."""
    if mqtt_topic_filter is not None and not (mqtt_topic_filter and is_valid_filter(mqtt_topic_filter)):
        raise ConfigError(
            "option mqttTopicFilter is a filter of MQTT such as devices/+/telemetry, "
            f"not {mqtt_topic_filter!r}"
        )
    if tags is not None and sql is not None:
        raise ConfigError("give option tags or option sql: in SQL, tags are the property TAGS")
    try:
        if tags is not None:
            # Brokers take one expression; the tags leave out more.
            subscription = parse_subscription("", tags, 0)
        elif mqtt_topic_filter is not None:
            condition = topic_condition(mqtt_topic_filter)
            # On lines of its own, it may end with a comment.
            text = condition if sql is None else f"(\n{_checked(sql)}\n) AND ({condition})"
            subscription = parse_subscription("", ALL_TAGS, 0, sql=text)
        elif sql is not None:
            subscription = parse_subscription("", ALL_TAGS, 0, sql=sql)
        else:
            subscription = ALL_RECORDS
    except SubscriptionError as error:
        raise ConfigError(f"option {'sql' if tags is None else 'tags'}: {error}") from None
    pattern = "" if mqtt_topic_filter is None else topic_pattern(mqtt_topic_filter)
    return Wanted(subscription, pattern)


def topic_pattern(topic_filter: str) -> str:
    """Return a regular expression for the whole of the topics that match a filter of MQTT."""
    first, *others = topic_filter.split("/")
    # Wildcards at the beginning do not match topics of servers. [MQTT-4.7.2-1]
    if first == "#":
        return "(?s)^(?:[^$].*)?$"
    pattern = "(?:[^/$][^/]*)?" if first == "+" else re.escape(first)
    for level in others:
        # The rest may be nothing at all: it matches the level above, too.
        pattern += "(?:/.*)?" if level == "#" else "/" + ("[^/]*" if level == "+" else re.escape(level))
    return f"(?s)^{pattern}$"


def topic_condition(topic_filter: str) -> str:
    """Return a condition of SQL92 that holds for topics that match a filter of MQTT, and maybe for more."""
    levels = topic_filter.split("/")
    places = [at for at, level in enumerate(levels) if level in ("+", "#")]
    if not places:
        return f"{MQTT_TOPIC} = {_quoted(topic_filter)}"
    conditions = []
    if places[0]:
        above = "/".join(levels[: places[0]])
        beginning = f"{MQTT_TOPIC} STARTSWITH {_quoted(above + '/')}"
        is_rest = levels[places[0]] == "#"
        conditions.append(f"({beginning} OR {MQTT_TOPIC} = {_quoted(above)})" if is_rest else beginning)
    end = "/".join(levels[places[-1] + 1 :])
    if end:
        conditions.append(f"{MQTT_TOPIC} ENDSWITH {_quoted('/' + end)}")
    return " AND ".join(conditions) or f"{MQTT_TOPIC} IS NOT NULL"


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def _checked(sql: str) -> str:
    if not sql.strip():
        raise ConfigError("option sql is empty: write a condition such as temperature > 30")
    return sql
