"""Settings of the consensus stores (sections `[replication.etcd]` and `[replication.kubernetes]`)."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from iotmq.setting_types import FileName, SecretText

_EndpointText: TypeAlias = Annotated[
    str, Meta(pattern=r"^https?://(\[[^\]\s/]+\]|[^:@\s/\[\]]+):\d{1,5}$", max_length=512)
]
_TimeoutMs: TypeAlias = Annotated[
    int,
    Meta(
        ge=100,
        le=60_000,
        description="Milliseconds one request may take. Sends of messages do not wait for it; the choice of "
        "a new master does. Lower than what the servers need for a write makes changes of master fail.",
    ),
]


class EtcdSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [replication.etcd]: the etcd cluster that holds the replication state. Version 3.4 or newer."""

    endpoints: Annotated[
        tuple[_EndpointText, ...],
        Meta(
            min_length=1,
            max_length=16,
            description="URLs of the nodes of one etcd cluster, as http://host:port or https://host:port. "
            "Name all of them: another one is asked when one does not answer. The same on all members.",
        ),
    ] = ("http://127.0.0.1:2379",)
    user: Annotated[
        str,
        Meta(
            max_length=256,
            description="User of etcd, with the right to read and write keys under `prefix`; empty when etcd "
            "has no authentication. A client certificate does not log in here: etcd takes it for the "
            "connection alone.",
        ),
    ] = ""
    password: Annotated[SecretText, Meta(max_length=1_024, description="Password of that user.")] = ""
    ca_file: Annotated[
        FileName,
        Meta(description="PEM file with the roots of the nodes' certificates; empty for the machine's own."),
    ] = ""
    cert_file: Annotated[
        FileName,
        Meta(description="PEM file with this member's certificate, where etcd asks for one; empty for none."),
    ] = ""
    key_file: Annotated[
        FileName, Meta(description="PEM file with its key; empty when the certificate's file has it.")
    ] = ""
    prefix: Annotated[
        str,
        Meta(
            pattern=r"^(/[A-Za-z0-9._-]+)+$",
            max_length=255,
            description="How all keys begin. The same on all members: with two prefixes a broker name has "
            "two states, and two masters.",
        ),
    ] = "/iotmq"
    timeout_ms: _TimeoutMs = 2_000


class KubernetesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [replication.kubernetes]: Lease objects hold the replication state."""

    namespace: Annotated[
        str,
        Meta(
            pattern=r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$",
            max_length=63,
            description="Namespace of the Lease objects; empty for that of the pod. The same on all members: "
            "in two namespaces a broker name has two states, and two masters.",
        ),
    ] = ""
    api_server: Annotated[
        str,
        Meta(
            pattern=r"^(https?://(\[[^\]\s/]+\]|[^:@\s/\[\]]+):\d{1,5})?$",
            max_length=512,
            description="URL of the API server, as https://host:port; empty for what Kubernetes tells its "
            "pods in the environment.",
        ),
    ] = ""
    token_file: Annotated[
        FileName,
        Meta(
            min_length=1,
            description="File with the token of the service account; it is read again when it changes. The "
            "account needs get, list, watch, create, patch and delete for leases, and patch for pods where "
            "`pod_name` is set.",
        ),
    ] = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    ca_file: Annotated[
        FileName,
        Meta(
            description="PEM file with the roots of the API server's certificate; empty for the machine's "
            "own."
        ),
    ] = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    pod_name: Annotated[
        str,
        Meta(
            pattern=r"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$",
            max_length=253,
            description="Name of this member's pod, which gets the label iotmq.io/role (master or follower) "
            "so that a Service can select the master; empty for no label.",
        ),
    ] = ""
    timeout_ms: _TimeoutMs = 2_000
