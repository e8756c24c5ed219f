"""Settings of topics that are rewritten, and of subscriptions that nobody asked for."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from iotmq import limits

_NAMES_TEXT = "%c is the device's client id, %u its user name"


class RewriteSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other names for topics and filters; the last rule whose filter matches decides, and is applied once."""

    filter: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=limits.MQTT_TOPIC_BYTES_MAX,
            description="MQTT topic filter of the topics that the rule is for, such as x/#.",
        ),
    ]
    pattern: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=limits.MQTT_REWRITE_PATTERN_CHARACTERS_MAX,
            description=(
                "Regular expression (RE2 syntax) that is looked for in the topic, such as ^x/y/(.+)$; a "
                "topic it is not found in stays as it is."
            ),
        ),
    ]
    template: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=limits.MQTT_TOPIC_BYTES_MAX,
            description=f"The new topic: $1, $2, ... are the groups of the pattern, {_NAMES_TEXT}.",
        ),
    ]
    action: Annotated[
        Literal["publish", "subscribe", "all"],
        Meta(
            description=(
                "What the rule is for: topics of PUBLISH and of wills, filters of SUBSCRIBE and UNSUBSCRIBE, "
                "or both."
            )
        ),
    ] = "all"


class AutoSubscriptionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A subscription that every session has from its opening on, without having asked."""

    filter: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=limits.MQTT_TOPIC_BYTES_MAX,
            description=f"MQTT topic filter, such as devices/%c/commands/#: {_NAMES_TEXT}.",
        ),
    ]
    qos: Annotated[int, Meta(ge=0, le=2, description="The highest QoS of its messages.")] = 0
    no_local: Annotated[bool, Meta(description="Without messages that the device published itself.")] = False
    retain_as_published: Annotated[
        bool, Meta(description="Messages keep the retain flag they were published with.")
    ] = False
    retain_handling: Annotated[
        int,
        Meta(
            ge=0,
            le=2,
            description=(
                "Retained messages are sent whenever the session opens (0), when it has the subscription for "
                "the first time (1), or never (2)."
            ),
        ),
    ] = 0
