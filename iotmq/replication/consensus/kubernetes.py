"""Kubernetes as the consensus store: Lease objects (coordination.k8s.io/v1) in one namespace.

    NAME             the state and its version, in annotations of the object
    NAME-member-N    the sign of life of member N: renewTime, and the value in an annotation

NAME is made of the names of cluster and broker. The object of the state is compared and replaced by its
resourceVersion, which is an opaque text; so the version that callers see is a number of our own beside the
state. The API server does not look at the times of a Lease, so an observer tells their age by its own clock.

All changes are merge patches: they leave alone what others have written into the objects, and with a
resourceVersion in it a patch applies to exactly that version.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from iotmq import limits
from iotmq.backoff import Backoff
from iotmq.clock import Clock
from iotmq.errors import ConfigError, ConsensusUnavailableError
from iotmq.remoting.tls.files import client_tls
from iotmq.replication.consensus.http import Answer, HttpClient, Request, StatusError
from iotmq.replication.consensus.observed import ObservedChanges
from iotmq.replication.consensus.port import SignOfLife, Versioned, check_beat, check_state
from iotmq.replication.consensus.renewed import Renewed
from iotmq.replication.consensus.settings import KubernetesSettings

logger = logging.getLogger(__name__)

A = TypeVar("A")

BEAT_TTL_S: Final = 3
STATE_ANNOTATION: Final = "iotmq.io/state"
VERSION_ANNOTATION: Final = "iotmq.io/version"
BEAT_ANNOTATION: Final = "iotmq.io/beat"
LEASE_LABEL: Final = "iotmq.io/lease"
ROLE_LABEL: Final = "iotmq.io/role"

_FOUND: Final = (200, 201)
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _CONFLICT = 401, 403, 404, 409
_TOKEN_BYTES_MAX: Final = 64 * 1024
# Somebody else may change the object beside us: labels, annotations of other tools.
_REPLACE_TRIES: Final = 5
_WATCH_RETRY_MIN_S: Final = 0.2
_WATCH_RETRY_MAX_S: Final = 5.0
_NAMESPACE_FILE: Final = "namespace"
_SLUG_CHARACTERS_MAX: Final = 40
_MERGE_PATCH: Final = "application/merge-patch+json"


class _Metadata(msgspec.Struct, rename="camel", omit_defaults=True):
    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, rename="camel", omit_defaults=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None


class _Lease(msgspec.Struct, rename="camel", omit_defaults=True):
    api_version: str | None = None
    kind: str | None = None
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec | None = None

    def annotation(self, name: str) -> str | None:
        """Return an annotation; None when it is not there."""
        return (self.metadata.annotations or {}).get(name)


class _Leases(msgspec.Struct):
    items: tuple[_Lease, ...]


class _Event(msgspec.Struct):
    type: str


class _Status(msgspec.Struct):
    message: str = ""


def lease_name(cluster: str, broker: str) -> str:
    """Return the name of the Lease object of a broker name.

    Names of objects have small letters, digits and dashes only, so a checksum keeps broker names apart.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", f"{cluster}-{broker}".lower()).strip("-")[:_SLUG_CHARACTERS_MAX]
    checksum = hashlib.sha256(f"{cluster}/{broker}".encode()).hexdigest()[:8]
    return "-".join(filter(None, ("iotmq", slug.strip("-"), checksum)))


class KubernetesStore:
    """The consensus store of one broker name in Kubernetes.

    The age of a sign of life is the time since this observer saw the object change, by its own clock. It is
    0 for one that this observer sees for the first time.
    """

    def __init__(self, settings: KubernetesSettings, *, cluster: str, broker: str, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._api = _Api(settings, clock)
        namespace = settings.namespace or _pod_namespace(settings.token_file)
        self._name = lease_name(cluster, broker)
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._state = f"{self._leases}/{self._name}"
        self._pod = f"/api/v1/namespaces/{namespace}/pods/{settings.pod_name}"
        self._observed = ObservedChanges()

    async def read(self) -> Versioned | None:
        found = await self._read_lease()
        return None if found is None else _state_in(found)

    async def create(self, value: bytes) -> int | None:
        check_state(value)
        # Above all versions of a state that was here before and was removed.
        version = self._clock.now_ms()
        annotations = _annotations(version, value)
        made = await self._post(_Metadata(name=self._name, annotations=annotations), None)
        if made:
            return version
        found = await self._read_lease()
        if found is None or _state_in(found) is not None:
            return None
        # An object without a state: somebody else has made it.
        return version if await self._patch_state(found, annotations) else None

    async def replace(self, version: int, value: bytes) -> int | None:
        check_state(value)
        for _ in range(_REPLACE_TRIES):
            found = await self._read_lease()
            state = None if found is None else _state_in(found)
            if found is None or state is None or state.version != version:
                return None
            if await self._patch_state(found, _annotations(version + 1, value)):
                return version + 1
            # Another version of the object need not be one of the state: look again.
        raise ConsensusUnavailableError(f"the Lease {self._name} changes all the time: who else writes it?")

    async def watch(self, changed: Callable[[], None]) -> None:
        backoff = Backoff(min_s=_WATCH_RETRY_MIN_S, max_s=_WATCH_RETRY_MAX_S)
        # Without a version to begin at: an event of the object as it is comes first, so nothing is missed.
        path = f"{self._leases}?watch=1&timeoutSeconds=60&fieldSelector=metadata.name={self._name}"

        def take(line: bytes) -> None:
            event = _decode(path, line, _Event)
            if event.type == "ERROR":
                # 410, when the server has forgotten where this watch is.
                raise ConsensusUnavailableError(f"the watch ended: {line[:200].decode(errors='replace')}")
            backoff.reset()
            changed()

        while True:
            try:
                await self._api.follow(path, take)
            except ConsensusUnavailableError as error:
                logger.debug("the watch of Kubernetes ended", extra={"detail": str(error)})
            # What happened in between is not told by anybody.
            changed()
            await asyncio.sleep(backoff.next_s())

    async def beat(self, member: int, value: bytes) -> None:
        check_beat(member, value)
        name = self._member_name(member)
        metadata = _Metadata(labels={LEASE_LABEL: self._name}, annotations={BEAT_ANNOTATION: value.decode()})
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        spec = _Spec(
            holder_identity=self._settings.pod_name or f"member-{member}",
            lease_duration_seconds=BEAT_TTL_S,
            renew_time=now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        )
        patch = _Lease(metadata=metadata, spec=spec)
        answer = await self._api.send("PATCH", f"{self._leases}/{name}", patch, allowed=(_NOT_FOUND,))
        if answer.status == _NOT_FOUND:
            metadata.name = name
            await self._post(metadata, spec)

    async def beats(self) -> Mapping[int, SignOfLife]:
        asked_s = self._clock.monotonic_s()
        selector = f"labelSelector={LEASE_LABEL}={self._name}"
        path = f"{self._leases}?{selector}&limit={limits.REPLICATION_MEMBER_MAX}"
        answer = await self._api.send("GET", path)
        answered_s = self._clock.monotonic_s()
        signs: dict[int, SignOfLife] = {}
        for lease in _decode(path, answer.body, _Leases).items:
            member = self._member_of(lease)
            value = (lease.annotation(BEAT_ANNOTATION) or "").encode()
            if member is None or len(value) > limits.CONSENSUS_BEAT_BYTES_MAX:
                continue
            sign = (lease.spec.renew_time if lease.spec is not None else None, value)
            age_s = self._observed.age_s(member, sign, asked_s=asked_s, answered_s=answered_s)
            signs[member] = SignOfLife(age_s or 0.0, value)
        self._observed.forget_others(signs)
        return signs

    async def withdraw(self, member: int) -> None:
        await self._api.send("DELETE", f"{self._leases}/{self._member_name(member)}", allowed=(_NOT_FOUND,))

    async def label_pod(self, *, is_master: bool) -> None:
        """Say in a label of this member's pod whether it is master; does nothing without `pod_name`."""
        if self._settings.pod_name:
            role = "master" if is_master else "follower"
            await self._api.send("PATCH", self._pod, {"metadata": {"labels": {ROLE_LABEL: role}}})

    async def close(self) -> None:
        await self._api.close()

    async def _read_lease(self) -> _Lease | None:
        # Without a resourceVersion in the request the answer is linearizable.
        answer = await self._api.send("GET", self._state, allowed=(_NOT_FOUND,))
        return None if answer.status == _NOT_FOUND else _decode(self._state, answer.body, _Lease)

    async def _patch_state(self, found: _Lease, annotations: dict[str, str]) -> bool:
        """Write the annotations into exactly this version of the object; False when it is another one."""
        if not found.metadata.resource_version:
            raise ConsensusUnavailableError(f"the Lease {self._name} has no resourceVersion")
        patch = _Lease(
            metadata=_Metadata(resource_version=found.metadata.resource_version, annotations=annotations)
        )
        answer = await self._api.send("PATCH", self._state, patch, allowed=(_CONFLICT, _NOT_FOUND))
        return answer.status in _FOUND

    async def _post(self, metadata: _Metadata, spec: _Spec | None) -> bool:
        """Make an object; False when there is one of this name."""
        lease = _Lease(api_version="coordination.k8s.io/v1", kind="Lease", metadata=metadata, spec=spec)
        answer = await self._api.send("POST", self._leases, lease, allowed=(_CONFLICT,))
        return answer.status != _CONFLICT

    def _member_name(self, member: int) -> str:
        return f"{self._name}-member-{member}"

    def _member_of(self, lease: _Lease) -> int | None:
        """Return the member a Lease is of; None for what no member has written."""
        head, _, number = lease.metadata.name.rpartition("-")
        if head != f"{self._name}-member" or re.fullmatch("[1-9][0-9]{0,2}", number) is None:
            return None
        return int(number) if int(number) <= limits.REPLICATION_MEMBER_MAX else None


class _Api:
    """The API server, asked with the token of the service account."""

    def __init__(self, settings: KubernetesSettings, clock: Clock) -> None:
        self._base = settings.api_server or _api_server_of_environment()
        try:
            tls = Renewed(lambda: _tls(settings), settings.ca_file, clock=clock)
        except ConfigError as error:
            raise ConfigError(f"replication.kubernetes.ca_file: {error}") from error
        self._token = Renewed(lambda: _token(settings.token_file), settings.token_file, clock=clock)
        self._http = HttpClient(tls, timeout_s=settings.timeout_ms / 1000)

    async def close(self) -> None:
        await self._http.close()

    async def send(
        self, method: str, path: str, body: object = None, *, allowed: tuple[int, ...] = ()
    ) -> Answer:
        """Send a request; an answer that is neither a success nor allowed is an error."""
        answer = await self._http.send(await self._request(method, path, body))
        if answer.status == _UNAUTHORIZED:
            # It was refused before anything was done: the token may have been renewed since.
            answer = await self._http.send(await self._request(method, path, body, look_now=True))
        if answer.status not in _FOUND and answer.status not in allowed:
            raise self._error(path, answer)
        return answer

    async def follow(self, path: str, take: Callable[[bytes], None]) -> None:
        """Hand over the lines of a watch."""
        try:
            await self._http.follow(await self._request("GET", path, None), take)
        except StatusError as error:
            if error.status == _UNAUTHORIZED:
                await self._token.value(look_now=True)
            raise

    async def _request(self, method: str, path: str, body: object, *, look_now: bool = False) -> Request:
        token = await self._token.value(look_now=look_now)
        headers = {"Accept": "application/json", "Authorization": f"Bearer {token}"}
        data = b""
        if body is not None:
            headers["Content-Type"] = _MERGE_PATCH if method == "PATCH" else "application/json"
            data = msgspec.json.encode(body)
        return Request(method, self._base + path, headers, data)

    def _error(self, path: str, answer: Answer) -> ConsensusUnavailableError:
        try:
            message = msgspec.json.decode(answer.body, type=_Status).message[:200]
        except (ValueError, RecursionError):
            message = "no reason"
        text = f"{self._base}{path}: status {answer.status}: {message}"
        if answer.status == _UNAUTHORIZED:
            text += "; look at replication.kubernetes.token_file"
        elif answer.status == _FORBIDDEN:
            text += (
                "; the service account of replication.kubernetes.token_file needs get, list, watch, create, "
                "patch and delete for leases, and patch for pods"
            )
        return ConsensusUnavailableError(text)


def _annotations(version: int, value: bytes) -> dict[str, str]:
    return {VERSION_ANNOTATION: str(version), STATE_ANNOTATION: value.decode()}


def _state_in(lease: _Lease) -> Versioned | None:
    """Return the state in an object; None when it has none."""
    version, text = lease.annotation(VERSION_ANNOTATION), lease.annotation(STATE_ANNOTATION)
    if version is None and text is None:
        return None
    value = (text or "").encode()
    if text is None or version is None or re.fullmatch("[0-9]{1,18}", version) is None:
        raise ConsensusUnavailableError(
            f"the Lease {lease.metadata.name} has one of the annotations {STATE_ANNOTATION} and "
            f"{VERSION_ANNOTATION} without the other, or a version that is no number"
        )
    if len(value) > limits.CONSENSUS_STATE_BYTES_MAX:
        raise ConsensusUnavailableError(
            f"the annotation {STATE_ANNOTATION} of the Lease {lease.metadata.name} has {len(value):,} bytes, "
            f"more than {limits.CONSENSUS_STATE_BYTES_MAX:,}"
        )
    return Versioned(int(version), value)


def _api_server_of_environment() -> str:
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if not host:
        raise ConfigError(
            "replication.kubernetes.api_server is empty, and there is no KUBERNETES_SERVICE_HOST as in a pod"
        )
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _pod_namespace(token_file: str) -> str:
    file = Path(token_file).parent / _NAMESPACE_FILE
    try:
        return file.read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"replication.kubernetes.namespace is empty, and {file} cannot be read: {error}"
        ) from error


def _tls(settings: KubernetesSettings) -> ssl.SSLContext:
    return client_tls(ca_file=settings.ca_file)


def _token(file: str) -> str:
    try:
        with open(file, "rb") as stream:
            text = stream.read(_TOKEN_BYTES_MAX + 1).decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"replication.kubernetes.token_file: {file} cannot be read: {error}") from error
    if not text or len(text) > _TOKEN_BYTES_MAX or not text.isprintable():
        raise ConfigError(f"replication.kubernetes.token_file: {file} has no token")
    return text


def _decode(path: str, body: bytes, kind: type[A]) -> A:
    try:
        return msgspec.json.decode(body, type=kind)
    except (ValueError, RecursionError) as error:
        text = body[:200].decode(errors="replace")
        raise ConsensusUnavailableError(f"{path}: not an answer of Kubernetes ({error}): {text}") from error
