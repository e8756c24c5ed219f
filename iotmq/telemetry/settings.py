"""Settings of the export by OpenTelemetry (section `[telemetry]` of the configuration)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from iotmq import limits
from iotmq.secret_text import hide
from iotmq.setting_types import FileName, SecretText


class TelemetryHeaderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A header field of each request to the receiver."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9-]+\Z", max_length=64)]
    """Name of the field, such as authorization."""
    value: Annotated[SecretText, Meta(min_length=1, max_length=4_096)]
    """Value of the field, such as "Bearer TOKEN"; a secret."""

    def __post_init__(self) -> None:
        hide(self, "value")


class TelemetrySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [telemetry]: metrics and traces for an OpenTelemetry collector."""

    endpoint: Annotated[str, Meta(pattern=r"^(https?://\S+)?\Z", max_length=1_024)] = ""
    """Address of a receiver of OTLP over HTTP, such as http://127.0.0.1:4318; /v1/metrics and /v1/traces are
    added to it. Empty: nothing is exported, and messages are not traced. Needs the extra iotmq[otlp]."""
    headers: Annotated[
        tuple[TelemetryHeaderSettings, ...], Meta(max_length=limits.TELEMETRY_HEADERS_MAX)
    ] = ()
    """Header fields of each request, by which the receiver knows who sends."""
    ca_file: FileName = ""
    """PEM file with the roots of the receiver's certificate; empty for the machine's own."""
    timeout_s: Annotated[float, Meta(ge=0.1, le=600.0)] = 5.0
    """Seconds one request may take, with its repetitions."""
    interval_s: Annotated[float, Meta(ge=0.1, le=3_600.0)] = 15.0
    """Seconds between exports of metrics; 15 s is what a Prometheus uses."""
    metrics_enabled: bool = True
    """Export the metrics of /metrics, under the same names."""
    traces_enabled: bool = True
    """Trace messages that are sampled: receive, store and deliver are spans."""
    sample_ratio: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Share of the devices' messages for which a trace begins here. Each costs some 150 us of processor;
    0.001 is plenty for a busy gateway."""
    trusts_devices: bool = False
    """Go on with the trace that a device of MQTT 5 names in its user property traceparent, and let its
    sampled flag decide. Devices that everybody may connect could have every message traced."""
    resource_attributes: Annotated[dict[str, str], Meta(max_length=limits.TELEMETRY_ATTRIBUTES_MAX)] = {}
    """Further attributes of this process, such as "deployment.environment.name" = "test". service.name is
    iotmq, and service.instance.id the process, unless they are here."""

    @property
    def traces(self) -> bool:
        """Return whether messages are traced."""
        return bool(self.endpoint) and self.traces_enabled
