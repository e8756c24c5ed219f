"""Settings of what devices may do (section `[mqtt.permissions]` of the configuration)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from iotmq.setting_types import FileName


class PermissionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which topics devices may publish and subscribe."""

    permissions_file: FileName = ""
    """TOML file with rules in order, of which the first that fits decides; what none fits is refused. It is
    read again when it changes. Empty: without_rules holds."""
    without_rules: Literal["own", "everything", "nothing"] = "own"
    """Rights of a device that has proved who it is, where there is no permissions_file and its identity
    brought no rules: topics with its user name as one of their levels ("own"), every topic ("everything"),
    or none. A device that nobody asked who it is may use every topic then."""
    deny_action: Literal["drop", "disconnect"] = "drop"
    """Answer to a message that the device may not publish: MQTT 5 the code 0x87 in PUBACK or PUBREC, older
    versions a receipt as if nothing were wrong ("drop"); or the end of its connection ("disconnect")."""
    on_revocation: Literal["unsubscribe", "disconnect"] = "unsubscribe"
    """When a device loses a subscription because rules have changed: it gets no more messages for it and is
    not told ("unsubscribe"), or its connection ends, too, with 0x87 in MQTT 5 ("disconnect")."""
    reload_interval_s: Annotated[float, Meta(ge=0.01, le=3_600)] = 5.0
    """How often the file is looked at for changes, in seconds."""
    answer_timeout_s: Annotated[float, Meta(ge=0.01, le=30)] = 5.0
    """How long a plug-in may think about a topic, in seconds; no answer by then is a no. What the device
    sends meanwhile waits."""
    answer_cache_s: Annotated[float, Meta(ge=1.0, le=86_400.0)] = 60.0
    """How long the answers of plug-ins are remembered at most, in seconds."""
