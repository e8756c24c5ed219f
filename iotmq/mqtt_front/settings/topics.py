"""Settings of topics that are rewritten, and of subscriptions that nobody asked for."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from iotmq import limits


class RewriteSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Other names for topics and filters; the last rule whose filter matches decides, and is applied once."""

    filter: Annotated[str, Meta(min_length=1, max_length=limits.MQTT_TOPIC_BYTES_MAX)]
    """MQTT topic filter of the topics that the rule is for, such as x/#."""
    pattern: Annotated[str, Meta(min_length=1, max_length=limits.MQTT_REWRITE_PATTERN_CHARACTERS_MAX)]
    """Regular expression (RE2 syntax) that is looked for in the topic, such as ^x/y/(.+)$; a topic it is not
    found in stays as it is."""
    template: Annotated[str, Meta(min_length=1, max_length=limits.MQTT_TOPIC_BYTES_MAX)]
    """The new topic: $1, $2, ... are the groups of the pattern, %c is the device's client id, %u its user
    name."""
    action: Literal["publish", "subscribe", "all"] = "all"
    """Use of the rule: topics of PUBLISH and of wills, filters of SUBSCRIBE and UNSUBSCRIBE, or both."""


class BridgeClientSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client that speaks for other devices, such as the bridge of a broker at the edge; the first that
    matches a connection decides."""

    client_id: Annotated[str, Meta(max_length=limits.MQTT_CLIENT_ID_BYTES_MAX)] = "*"
    """Client id of the connection; a * at the end stands for anything. Whoever may connect chooses it: name a
    user, too, where that matters."""
    user: Annotated[str, Meta(max_length=limits.MQTT_USER_NAME_BYTES_MAX)] = "*"
    """User it has to have authenticated as, with a * as above. "*" takes connections without a user, too."""
    prefix: Annotated[
        str, Meta(max_length=1_024, pattern=r"^([^/+#$\x00-\x1f\x7f][^+#\x00-\x1f\x7f]*/)?\Z")
    ] = ""
    """Text before every topic and filter of it here, such as sites/berlin/: it can neither publish nor
    subscribe outside, and does not see the prefix. %c is its client id, %u its user. Empty: its topics are
    what it says."""
    is_trusted: bool = False
    """Believe its messages of MQTT 5 which device has published them (user property iotmq-client-id): the
    record then has that device's client id."""


class AutoSubscriptionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A subscription that every session has from its opening on, without having asked."""

    filter: Annotated[str, Meta(min_length=1, max_length=limits.MQTT_TOPIC_BYTES_MAX)]
    """MQTT topic filter, such as devices/%c/commands/#: %c is the device's client id, %u its user name."""
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    """The highest QoS of its messages."""
    no_local: bool = False
    """Without messages that the device published itself."""
    retain_as_published: bool = False
    """Messages keep the retain flag they were published with."""
    retain_handling: Annotated[int, Meta(ge=0, le=2)] = 0
    """Retained messages are sent whenever the session opens (0), when it has the subscription for the first
    time (1), or never (2)."""
