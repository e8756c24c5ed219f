"""Settings of plug-ins that were written for amqtt (section `[mqtt.plugins]` of the configuration)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.mqtt_front.settings.links import LinkSettings


class AmqttPluginSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plug-in of amqtt, or one that was written for it."""

    class_path: Annotated[str, Meta(pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$", max_length=256)]
    """The class with its module, such as amqtt.contrib.http.UserAuthHttpPlugin."""
    name: Annotated[str, Meta(pattern=r"^[\w.-]*$", max_length=64)] = ""
    """The plug-in in metrics, log lines and links; empty: the name of the class."""
    options: dict[str, Any] = {}
    """The plug-in's own options, as in the configuration of amqtt; dashes in names count as underscores."""
    secret_options: Annotated[dict[str, str], Meta(max_length=64, extra={"is_secret": True})] = {}
    """Those of them that are secrets, such as secret_key, bind_password and connection. Each is text, or says
    where it is."""
    hosts: Annotated[int, Meta(ge=1, le=64)] = 2
    """Threads with an event loop and an instance of the plug-in each. One that blocks its loop, as argon2 and
    LDAP plug-ins do, answers as many questions at a time. Events go to the first."""
    timeout_s: Annotated[float, Meta(ge=0.05, le=60.0)] = 5.0
    """How long an answer may take, in seconds; without one the device is refused."""
    waiting_max: Annotated[int, Meta(ge=1, le=65_536)] = 4_096
    """Questions that may be unanswered; more are refused."""
    failures_max: Annotated[int, Meta(ge=0, le=1_000_000)] = 10
    """After so many failures and late answers in a row nobody is asked for pause_s, and all are refused. 0 =
    ask always."""
    pause_s: Annotated[float, Meta(ge=0.1, le=3_600.0)] = 5.0
    """How long that is, in seconds; then one question tries."""
    cache_s: Annotated[float, Meta(ge=0.0, le=86_400.0)] = 60.0
    """How long answers about topics hold, in seconds; 0 = ask every time."""
    guard: Literal["auto", "password", "none"] = "auto"
    """password: devices without user name and password are refused before the plug-in is asked. none: the
    plug-in sees to it. auto: none for the plug-ins of amqtt that look at no password, else password."""
    wildcards: Literal["probe", "as-asked", "refuse"] = "probe"
    """A filter with wildcards, of a plug-in that cannot be asked what its permissions contain. probe: it has
    to allow topics with names that nobody uses in place of the wildcards, too. as-asked: its word for the
    filter is enough. refuse: no wildcards."""

    @property
    def shown_name(self) -> str:
        """Return the name in metrics, log lines and links."""
        return self.name or self.class_path.rpartition(".")[2]


class PluginsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plug-ins that decide about devices and hear of them."""

    amqtt: Annotated[tuple[AmqttPluginSettings, ...], Meta(max_length=limits.MQTT_PLUGINS_MAX)] = ()
    """Plug-ins of amqtt. Those that authenticate are asked by a link of the chain with kind = "amqtt"."""
    start_timeout_s: Annotated[float, Meta(ge=0.1, le=300)] = 10.0
    """How long each plug-in may take to start, in seconds; one that does not start stops the start."""


class AmqttLinkSettings(LinkSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="amqtt"):
    """Ask plug-ins of [[mqtt.plugins.amqtt]] that authenticate, all at a time, as amqtt does."""

    plugins: Annotated[tuple[str, ...], Meta(max_length=limits.MQTT_PLUGINS_MAX)] = ()
    """Their names; empty: all."""
