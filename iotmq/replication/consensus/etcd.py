"""etcd as the consensus store, by the JSON gateway of its version 3 API (HTTP POST on the client port).

Keys, below `replication.etcd.prefix`:

    CLUSTER/BROKER/state        the state; its version is the key's mod_revision
    CLUSTER/BROKER/members/N    the sign of life of member N, bound to a lease of 3 s

Only the state key decides anything. Leases do not: etcd may extend them, and has had nodes that went on
confirming leases they no longer owned.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from iotmq import limits
from iotmq.backoff import Backoff
from iotmq.clock import Clock
from iotmq.errors import ConfigError, ConsensusUnavailableError
from iotmq.remoting.tls.files import client_tls
from iotmq.replication.consensus.http import Answer, HttpClient, Request, RequestNotSentError
from iotmq.replication.consensus.observed import ObservedChanges
from iotmq.replication.consensus.port import SignOfLife, Versioned, check_beat, check_state
from iotmq.replication.consensus.renewed import Renewed
from iotmq.replication.consensus.settings import EtcdSettings

logger = logging.getLogger(__name__)

A = TypeVar("A")

BEAT_TTL_S: Final = 3
_OK: Final = 200
_UNAUTHORIZED: Final = 401
# Numbers of gRPC. All of these say that nothing was done, and would not be done by another node either.
_INVALID_ARGUMENT, _NOT_FOUND, _DENIED, _FAILED_PRECONDITION, _UNAUTHENTICATED = 3, 5, 7, 9, 16
_REFUSALS: Final = frozenset({_INVALID_ARGUMENT, _NOT_FOUND, _DENIED, _FAILED_PRECONDITION, _UNAUTHENTICATED})
_WATCH_RETRY_MIN_S: Final = 0.2
_WATCH_RETRY_MAX_S: Final = 5.0


class _Header(msgspec.Struct):
    cluster_id: str = ""
    revision: int = 0
    raft_term: int = 0


class _KeyValue(msgspec.Struct):
    key: bytes = b""
    value: bytes = b""
    mod_revision: int = 0
    lease: str = "0"


class _Answer(msgspec.Struct):
    header: _Header


class _Found(_Answer):
    kvs: tuple[_KeyValue, ...] = ()


class _Compared(_Answer):
    succeeded: bool = False


class _Lease(_Answer):
    id: str = msgspec.field(name="ID", default="")
    ttl_s: int = msgspec.field(name="TTL", default=0)
    granted_ttl_s: int = msgspec.field(name="grantedTTL", default=0)


class _KeptAlive(msgspec.Struct):
    result: _Lease


class _Error(msgspec.Struct):
    code: int = 0
    message: str = ""


class _Token(msgspec.Struct):
    token: str


class _WatchResult(msgspec.Struct):
    canceled: bool = False


class _Watched(msgspec.Struct):
    result: _WatchResult


class _Call(NamedTuple, Generic[A]):
    """A method of etcd."""

    path: str
    answer: type[A]
    is_repeatable: bool = True
    """Doing it twice is the same as once: another node may be asked when one has not answered."""
    is_linearizable: bool = False
    """The answer's header is at least as new as all that was answered before the request."""


_RANGE: Final = _Call("/v3/kv/range", _Found, is_linearizable=True)
_TRANSACTION: Final = _Call("/v3/kv/txn", _Compared, is_repeatable=False, is_linearizable=True)
_PUT: Final = _Call("/v3/kv/put", _Answer, is_linearizable=True)
_DELETE: Final = _Call("/v3/kv/deleterange", _Answer, is_linearizable=True)
_GRANT: Final = _Call("/v3/lease/grant", _Lease)
_KEEP_ALIVE: Final = _Call("/v3/lease/keepalive", _KeptAlive)
_TIME_TO_LIVE: Final = _Call("/v3/lease/timetolive", _Lease)
_REVOKE: Final = _Call("/v3/lease/revoke", _Answer)


class EtcdRefusedError(ConsensusUnavailableError):
    """etcd understood the request and refused it; `code` is the number of gRPC."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class _WatchCanceledError(ConsensusUnavailableError):
    """etcd has ended a watch itself."""


class _Beat(NamedTuple):
    lease: str
    value: bytes


class EtcdStore:
    """The consensus store of one broker name in etcd.

    The age of a sign of life is the smaller of two: the time since this observer saw the key change, by its
    own clock, and what the remaining time of the member's lease says, in whole seconds. So a member whose
    value does not change is as alive as one whose value does.
    """

    def __init__(self, settings: EtcdSettings, *, cluster: str, broker: str, clock: Clock) -> None:
        for name in (cluster, broker):
            if not name or "/" in name:
                raise ConfigError(f"invalid name for keys of etcd: {name!r} (expected one without a slash)")
        self._clock = clock
        self._nodes = _Nodes(settings, clock)
        base = f"{settings.prefix}/{cluster}/{broker}"
        self._state_key = f"{base}/state".encode()
        self._members = f"{base}/members/".encode()
        # "0" follows "/": the end of all keys that begin so.
        self._members_end = f"{base}/members0".encode()
        self._beats: dict[int, _Beat] = {}
        self._observed = ObservedChanges()

    async def read(self) -> Versioned | None:
        found = await self._nodes.call(_RANGE, {"key": self._state_key})
        if not found.kvs:
            return None
        state = found.kvs[0]
        if len(state.value) > limits.CONSENSUS_STATE_BYTES_MAX:
            raise ConsensusUnavailableError(
                f"the value of {self._state_key.decode()} in etcd has {len(state.value):,} bytes, "
                f"more than {limits.CONSENSUS_STATE_BYTES_MAX:,}"
            )
        return Versioned(state.mod_revision, state.value)

    async def create(self, value: bytes) -> int | None:
        return await self._put_state(value, {"target": "CREATE", "create_revision": 0})

    async def replace(self, version: int, value: bytes) -> int | None:
        return await self._put_state(value, {"target": "MOD", "mod_revision": version})

    async def watch(self, changed: Callable[[], None]) -> None:
        backoff = Backoff(min_s=_WATCH_RETRY_MIN_S, max_s=_WATCH_RETRY_MAX_S)

        def take(line: bytes) -> None:
            _check_watch(line)
            # The first line says that the watch has begun: the state may have changed before it did.
            backoff.reset()
            changed()

        while True:
            try:
                await self._nodes.follow("/v3/watch", {"create_request": {"key": self._state_key}}, take)
            except ConsensusUnavailableError as error:
                logger.debug("the watch of etcd ended", extra={"detail": str(error)})
            await asyncio.sleep(backoff.next_s())

    async def beat(self, member: int, value: bytes) -> None:
        check_beat(member, value)
        last = self._beats.get(member)
        if last is not None and not await self._keep_alive(last.lease):
            last = None
        if last is not None and last.value == value:
            return
        lease = last.lease if last is not None else (await self._grant()).id
        # Not known again until the key has the lease: a failure below begins with a new one.
        self._beats.pop(member, None)
        await self._nodes.call(_PUT, {"key": self._member_key(member), "value": value, "lease": lease})
        self._beats[member] = _Beat(lease, value)

    async def beats(self) -> Mapping[int, SignOfLife]:
        asked_s = self._clock.monotonic_s()
        found = await self._nodes.call(
            _RANGE,
            {"key": self._members, "range_end": self._members_end, "limit": limits.REPLICATION_MEMBER_MAX},
        )
        answered_s = self._clock.monotonic_s()
        signs = {number: each for each in found.kvs if (number := self._member_of(each)) is not None}
        self._observed.forget_others(signs)
        observed = [
            self._observed.age_s(member, each.mod_revision, asked_s=asked_s, answered_s=answered_s)
            for member, each in signs.items()
        ]
        ages = await asyncio.gather(
            *(self._age_s(each, age_s) for each, age_s in zip(signs.values(), observed, strict=True))
        )
        return {
            member: SignOfLife(age_s, each.value)
            for (member, each), age_s in zip(signs.items(), ages, strict=True)
            if age_s is not None
        }

    async def withdraw(self, member: int) -> None:
        beat = self._beats.pop(member, None)
        if beat is None:
            await self._nodes.call(_DELETE, {"key": self._member_key(member)})
            return
        try:
            # With the lease goes the key; and a beat that is still on its way comes too late.
            await self._nodes.call(_REVOKE, {"ID": beat.lease})
        except EtcdRefusedError as error:
            if error.code != _NOT_FOUND:
                raise

    async def label_pod(self, *, is_master: bool) -> None:
        """Do nothing: etcd knows no pods."""

    async def close(self) -> None:
        await self._nodes.close()

    async def _put_state(self, value: bytes, condition: dict[str, str | int]) -> int | None:
        check_state(value)
        answer = await self._nodes.call(
            _TRANSACTION,
            {
                "compare": [{"key": self._state_key, "result": "EQUAL", **condition}],
                "success": [{"request_put": {"key": self._state_key, "value": value}}],
            },
        )
        return answer.header.revision if answer.succeeded else None

    async def _grant(self) -> _Lease:
        return await self._nodes.call(_GRANT, {"TTL": BEAT_TTL_S})

    async def _keep_alive(self, lease: str) -> bool:
        """Give a lease its full time again; False when it is gone."""
        return (await self._nodes.call(_KEEP_ALIVE, {"ID": lease})).result.ttl_s > 0

    async def _age_s(self, found: _KeyValue, observed_s: float | None) -> float | None:
        """Return the age of a sign: what was observed, or less by its lease; None when that is gone."""
        if observed_s == 0:
            return observed_s
        answer = await self._nodes.call(_TIME_TO_LIVE, {"ID": found.lease})
        if answer.ttl_s < 0:
            return None
        # The remaining time is rounded down, and may be more than what was granted after a change of leader.
        lease_s = float(max(0, answer.granted_ttl_s - answer.ttl_s - 1))
        return lease_s if observed_s is None else min(observed_s, lease_s)

    def _member_key(self, member: int) -> bytes:
        return self._members + str(member).encode()

    def _member_of(self, found: _KeyValue) -> int | None:
        """Return the member a key is of; None for what no member has written."""
        text = found.key.removeprefix(self._members)
        if not text.isdigit() or len(text) > 3 or len(found.value) > limits.CONSENSUS_BEAT_BYTES_MAX:
            return None
        if found.lease == "0":
            return None
        number = int(text)
        return number if 1 <= number <= limits.REPLICATION_MEMBER_MAX else None


class _Nodes:
    """The nodes of one etcd cluster: which of them answers, what was seen of them, and the login."""

    def __init__(self, settings: EtcdSettings, clock: Clock) -> None:
        self._settings = settings
        self._endpoints = list(settings.endpoints)
        files = (settings.ca_file, settings.cert_file, settings.key_file)

        def make_tls() -> ssl.SSLContext:
            return client_tls(
                ca_file=settings.ca_file, certificate_file=settings.cert_file, key_file=settings.key_file
            )

        try:
            tls = Renewed(make_tls, *files, clock=clock)
        except ConfigError as error:
            raise ConfigError(f"replication.etcd.ca_file, cert_file, key_file: {error}") from error
        self._http = HttpClient(tls, timeout_s=settings.timeout_ms / 1000)
        # Set by the first answer, and never changed: two clusters would be two truths.
        self._cluster_id = ""
        self._revision = 0
        self._term = 0
        self._token = ""

    async def close(self) -> None:
        await self._http.close()

    async def call(self, call: _Call[A], body: object) -> A:
        """Ask one node, and another one where that is harmless, until one gives an answer of use."""
        problems = []
        for endpoint in list(self._endpoints):
            try:
                return await self._ask(endpoint, call, body)
            except EtcdRefusedError:
                raise
            except ConsensusUnavailableError as error:
                self._prefer_others(endpoint)
                if not call.is_repeatable and not isinstance(error, RequestNotSentError):
                    raise
                problems.append(str(error))
        raise ConsensusUnavailableError(
            f"no node of etcd answers (replication.etcd.endpoints): {'; '.join(problems)}"
        )

    async def follow(self, path: str, body: object, take: Callable[[bytes], None]) -> None:
        """Hand over the lines of an answer without an end."""
        endpoint = self._endpoints[0]
        try:
            await self._http.follow(await self._request(endpoint, path, body), take)
        except _WatchCanceledError:
            # The only sign of a token that is not known any more: the status is that of a success.
            self._token = ""
            raise
        except ConsensusUnavailableError:
            self._prefer_others(endpoint)
            raise

    def _prefer_others(self, endpoint: str) -> None:
        if self._endpoints[0] == endpoint:
            self._endpoints.append(self._endpoints.pop(0))

    async def _ask(self, endpoint: str, call: _Call[A], body: object) -> A:
        revision, term = self._revision, self._term
        request = await self._request(endpoint, call.path, body)
        answer = await self._http.send(request)
        if (token := request.headers.get("Authorization")) and _is_token_refused(answer):
            # It was refused before anything was done: a new one, once. The watch may have it already.
            if self._token == token:
                self._token = ""
            answer = await self._http.send(await self._request(endpoint, call.path, body))
        if answer.status != _OK:
            raise self._error(endpoint, answer)
        decoded = _decode(endpoint, answer.body, call.answer)
        if call.is_linearizable:
            assert isinstance(decoded, _Answer)
            self._check_header(endpoint, decoded.header, revision=revision, term=term)
        return decoded

    async def _request(self, endpoint: str, path: str, body: object) -> Request:
        if self._settings.user and not self._token:
            self._token = await self._authenticate(endpoint)
        headers = {"Authorization": self._token} if self._token else {}
        return Request("POST", endpoint + path, headers, msgspec.json.encode(body))

    async def _authenticate(self, endpoint: str) -> str:
        body = {"name": self._settings.user, "password": str(self._settings.password)}
        answer = await self._http.send(
            Request("POST", f"{endpoint}/v3/auth/authenticate", {}, msgspec.json.encode(body))
        )
        if answer.status == _OK:
            return _decode(endpoint, answer.body, _Token).token
        error = self._error(endpoint, answer)
        if isinstance(error, EtcdRefusedError):
            raise EtcdRefusedError(
                f"{error}; look at replication.etcd.user and replication.etcd.password", error.code
            )
        raise error

    def _error(self, endpoint: str, answer: Answer) -> ConsensusUnavailableError:
        """Make the error for an answer that is none."""
        error = _error_in(answer)
        text = f"{endpoint}: status {answer.status}: {error.message[:200] or 'no reason'}"
        if "user name is empty" in error.message:
            text += "; replication.etcd.user has to name a user"
        elif error.code == _DENIED:
            text += (
                f"; the user (replication.etcd.user) needs the right to read and write keys "
                f"under {self._settings.prefix}"
            )
        if error.code in _REFUSALS:
            return EtcdRefusedError(text, error.code)
        return ConsensusUnavailableError(text)

    def _check_header(self, endpoint: str, header: _Header, *, revision: int, term: int) -> None:
        """Refuse the answer of a node of another cluster, and of one that does not know what others know."""
        if self._cluster_id and header.cluster_id != self._cluster_id:
            raise ConsensusUnavailableError(
                f"{endpoint} belongs to another etcd cluster ({header.cluster_id}, not {self._cluster_id}): "
                "replication.etcd.endpoints has to name nodes of one; after etcd was set up anew restart "
                "all members"
            )
        if header.revision < revision or header.raft_term < term:
            raise ConsensusUnavailableError(
                f"{endpoint} is behind: revision {header.revision} after {revision}, "
                f"term {header.raft_term} after {term}"
            )
        self._cluster_id = header.cluster_id
        self._revision = max(self._revision, header.revision)
        self._term = max(self._term, header.raft_term)


def _check_watch(line: bytes) -> None:
    """Refuse a line that ends a watch."""
    if _decode("watch", line, _Watched).result.canceled:
        raise _WatchCanceledError(f"etcd ended the watch: {line[:200].decode(errors='replace')}")


def _is_token_refused(answer: Answer) -> bool:
    """Return whether a request was refused because its token is unknown or older than the users are."""
    if answer.status == _UNAUTHORIZED:
        return True
    error = _error_in(answer)
    return error.code in (_INVALID_ARGUMENT, _UNAUTHENTICATED) and "auth" in error.message


def _error_in(answer: Answer) -> _Error:
    try:
        return msgspec.json.decode(answer.body, type=_Error)
    except (ValueError, RecursionError):
        return _Error()


def _decode(endpoint: str, body: bytes, kind: type[A]) -> A:
    try:
        # Numbers of 64 bits stand in quotes.
        return msgspec.json.decode(body, type=kind, strict=False)
    except (ValueError, RecursionError) as error:
        text = body[:200].decode(errors="replace")
        raise ConsensusUnavailableError(f"{endpoint}: not an answer of etcd ({error}): {text}") from error
