"""The keys by which tokens are checked: a secret, PEM files, and sets of keys (JWKS, RFC 7517).

Each key is bound to the algorithms of its type that the settings allow, so that no token chooses how a key is
used. Files are read again, and a set is fetched again, every so often; what cannot be used changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt import PyJWK
from jwt.algorithms import get_default_algorithms
from jwt.exceptions import PyJWTError
from jwt.utils import base64url_encode

from iotmq import limits
from iotmq.clock import Clock
from iotmq.credentials.service_client import ServiceClient, ServiceFailedError
from iotmq.files import changing, is_open_to_others, make_directory, replace_file
from iotmq.metrics import Metric, samples
from iotmq.supervised import supervise

_log: Final = logging.getLogger("iotmq.mqtt")

# A secret is no shorter than what it is hashed to (RFC 7518 section 3.2).
_SECRET_BYTES_MIN: Final = {"HS256": 32, "HS384": 48, "HS512": 64}
_RSA_BITS_MIN: Final = 2_048
_CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
# A token with an unknown key has the set fetched sooner than refresh_s by this factor.
_SOONER: Final = 10


class KeySettings(Protocol):
    """The places that keys come from; empty names are none."""

    @property
    def name(self) -> str: ...

    @property
    def algorithms(self) -> Sequence[str]: ...

    @property
    def secret_file(self) -> str: ...

    @property
    def key_files(self) -> Sequence[str]: ...

    @property
    def jwks_file(self) -> str: ...

    @property
    def jwks_url(self) -> str: ...

    @property
    def jwks_copy_file(self) -> str: ...

    @property
    def jwks_ca_file(self) -> str: ...

    @property
    def refresh_s(self) -> float: ...

    @property
    def timeout_s(self) -> float: ...


class TokenKey(NamedTuple):
    """A key for one algorithm."""

    kid: str | None
    """Name of the key; None for one that is tried whatever key a token names."""
    algorithm: str
    key: PyJWK


class KeySet:
    """Some keys. They do not change."""

    def __init__(self, keys: Sequence[TokenKey]) -> None:
        self.keys = tuple(keys)
        shown = [f"{key.kid}\0{key.algorithm}\0{key.key._jwk_data}" for key in keys]
        self.digest: Final = hashlib.sha256("\n".join(sorted(shown)).encode()).digest()
        """Another one for other keys."""

    def find(self, algorithm: str, kid: str | None) -> list[TokenKey]:
        """Return the keys that may have signed a token."""
        return [
            key for key in self.keys if key.algorithm == algorithm and (kid is None or key.kid in (None, kid))
        ]


class TokenKeys:
    """The keys of one issuer, which change as their files and their service say."""

    def __init__(self, settings: KeySettings, clock: Clock) -> None:
        """Read the files. ValueError or OSError when one cannot be used."""
        self._settings = settings
        self._clock = clock
        self._of_files = _keys_of_files(settings)
        self._of_url: list[TokenKey] = []
        self._copy = Path(settings.jwks_copy_file) if settings.jwks_copy_file else None
        self._copied = b""
        self._client = (
            ServiceClient(
                f"link {settings.name}", settings.jwks_url, ca_file=settings.jwks_ca_file, at_once_max=1
            )
            if settings.jwks_url
            else None
        )
        self._repeating: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_s = float("-inf")
        self.current = KeySet(self._of_files)
        """Those that count now."""
        self._read_total = 0
        self._failed_total = 0

    async def start(self) -> None:
        """Fetch what has to be fetched, and begin to look for other keys."""
        self._repeating = supervise("reading of token keys", self._repeat)
        if self._client is not None:
            await self.refresh()

    async def close(self) -> None:
        """Stop."""
        for task in (self._repeating, self._refreshing):
            if task is not None:
                task.cancel()
        if self._client is not None:
            await self._client.close()

    async def refresh_for_unknown(self) -> bool:
        """Look for a key that is not there; False when that was done a moment ago."""
        if self._client is None:
            return False
        is_soon = self._clock.monotonic_s() - self._refreshed_s < self._settings.refresh_s / _SOONER
        if is_soon and self._refreshing is None:
            return False
        await self.refresh()
        return True

    async def refresh(self) -> None:
        """Read and fetch the keys; one at a time, whoever asks. The former ones stay where that fails."""
        if self._refreshing is None:
            self._refreshing = asyncio.ensure_future(self._refresh())
            self._refreshing.add_done_callback(self._refreshed)
        # Who is late with its question does not end it for others.
        await asyncio.shield(self._refreshing)

    def _refreshed(self, _task: asyncio.Task[None]) -> None:
        self._refreshing = None

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.refresh_s)
            await self.refresh()

    async def _refresh(self) -> None:
        self._refreshed_s = self._clock.monotonic_s()
        await self._read("files", self._read_files)
        if self._client is not None:
            # The URL may have a name and a password in front of its host.
            await self._read(self._settings.jwks_url.rpartition("@")[2], self._fetch)
            if not self._of_url and self._copy is not None and self._copy.exists():
                await self._read(str(self._copy), self._read_copy)
        keys = KeySet([*self._of_files, *self._of_url])
        if keys.digest != self.current.digest:
            self.current = keys
            _log.info("token keys read", extra={"link": self._settings.name, "count": len(keys.keys)})

    async def _read(self, what: str, read: Callable[[], Any]) -> None:
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await read()
            self._read_total += 1
        except (OSError, ValueError, ServiceFailedError) as error:
            self._failed_total += 1
            _log.error(
                "the keys of tokens cannot be read, so the former ones count",
                extra={
                    "link": self._settings.name,
                    "from": what,
                    "detail": str(error) or type(error).__name__,
                },
            )

    async def _read_files(self) -> None:
        self._of_files = await asyncio.to_thread(_keys_of_files, self._settings)

    async def _fetch(self) -> None:
        assert self._client is not None, "there is a URL"
        answer = await self._client.ask("GET", bytes_max=limits.MQTT_TOKEN_KEYS_BYTES_MAX)
        self._of_url = keys_of_set(answer.body, self._settings.algorithms)
        if self._copy is None or answer.body == self._copied:
            return
        try:
            await asyncio.to_thread(_keep, self._copy, answer.body)
        except OSError as error:
            # The keys count all the same.
            _log.error(
                "the copy of token keys cannot be written",
                extra={"link": self._settings.name, "file": str(self._copy), "detail": str(error)},
            )
        else:
            self._copied = answer.body

    async def _read_copy(self) -> None:
        assert self._copy is not None, "there is a copy"
        if is_open_to_others(self._copy, may_read=True):
            raise ValueError("others on this machine may write it, and could make tokens")
        data = await asyncio.to_thread(_content, self._copy)
        self._of_url = keys_of_set(data, self._settings.algorithms)
        _log.warning(
            "token keys are those of before the start, because they cannot be fetched",
            extra={"link": self._settings.name, "file": str(self._copy)},
        )

    def metrics(self) -> Iterable[Metric]:
        yield from samples(
            ("iotmq_mqtt_token_keys", "Keys by which tokens are checked.", len(self.current.keys)),
            ("iotmq_mqtt_token_keys_reads_total", "Times the keys of tokens were read.", self._read_total),
            (
                "iotmq_mqtt_token_keys_failed_reads_total",
                "Times the keys of tokens could not be read.",
                self._failed_total,
            ),
            labels=(("link", self._settings.name),),
        )


def keys_of_set(data: bytes, algorithms: Iterable[str]) -> list[TokenKey]:
    """Return the keys of a JWKS that are of use. ValueError when it is none, or has none of use."""
    try:
        document = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"it is no set of keys: {error}") from error
    listed = document.get("keys")
    if not isinstance(listed, list):
        raise ValueError("it is no set of keys: it has no list of keys")
    if len(listed) > limits.MQTT_TOKEN_KEYS_MAX:
        raise ValueError(f"it has {len(listed)} keys, more than {limits.MQTT_TOKEN_KEYS_MAX}")
    found = [key for one in listed if isinstance(one, dict) for key in _keys_of_jwk(one, algorithms)]
    if not found:
        raise ValueError(f"it has no key for {', '.join(algorithms)}")
    return found


def _keys_of_jwk(jwk: dict[str, Any], algorithms: Iterable[str]) -> Iterator[TokenKey]:
    """Yield what a key of a set is of use for; nothing for one that is for other things."""
    kid, use, own = (jwk.get(name) for name in ("kid", "use", "alg"))
    if use not in (None, "sig") or (kid is not None and not isinstance(kid, str)):
        return
    for algorithm in _algorithms_of(jwk):
        if algorithm in algorithms and own in (None, algorithm):
            try:
                key = PyJWK(jwk, algorithm)
            except (PyJWTError, ValueError, TypeError):
                continue  # a key that is broken, beside others that are not
            if not isinstance(key.key, RSAPublicKey) or key.key.key_size >= _RSA_BITS_MIN:
                yield TokenKey(kid, algorithm, key)


def _algorithms_of(jwk: Mapping[str, Any]) -> Sequence[str]:
    """Return the algorithms of a public key's type; those with a secret are never among them."""
    kind, curve = jwk.get("kty"), jwk.get("crv")
    if "d" in jwk:
        return ()  # a private key has no place in what is published
    if kind == "RSA":
        return _RSA
    if kind == "EC" and isinstance(curve, str) and curve in _CURVES:
        return (_CURVES[curve],)
    return ("EdDSA",) if kind == "OKP" and curve in ("Ed25519", "Ed448") else ()


def _keys_of_files(settings: KeySettings) -> list[TokenKey]:
    """Return the keys of all files of the settings. OSError or ValueError, which name the file."""
    keys: list[TokenKey] = []
    if settings.secret_file:
        keys += _keys_of_secret(Path(settings.secret_file), settings.algorithms)
    for name in settings.key_files:
        keys += _keys_of_pem(Path(name), settings.algorithms)
    if settings.jwks_file:
        try:
            keys += keys_of_set(_content(Path(settings.jwks_file)), settings.algorithms)
        except ValueError as error:
            raise ValueError(f"{settings.jwks_file}: {error}") from error
    return keys


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(limits.MQTT_TOKEN_KEYS_BYTES_MAX + 1)
    if len(data) > limits.MQTT_TOKEN_KEYS_BYTES_MAX:
        raise ValueError(f"{path} has more than {limits.MQTT_TOKEN_KEYS_BYTES_MAX:,} bytes")
    return data


def _keep(path: Path, data: bytes) -> None:
    """Write the copy, after other processes that have the same one."""
    make_directory(path.parent)
    with changing(path):
        replace_file(path, data, is_synced=False, private_mode=0o600)


def _keys_of_secret(path: Path, algorithms: Iterable[str]) -> Iterator[TokenKey]:
    secret = _content(path).removesuffix(b"\n").removesuffix(b"\r")
    for algorithm in algorithms:
        if len(secret) < _SECRET_BYTES_MIN[algorithm]:
            raise ValueError(
                f"{path}: a secret of {len(secret)} bytes; {algorithm} needs {_SECRET_BYTES_MIN[algorithm]}"
            )
        yield TokenKey(
            None, algorithm, PyJWK({"kty": "oct", "k": base64url_encode(secret).decode()}, algorithm)
        )


def _keys_of_pem(path: Path, algorithms: Iterable[str]) -> Iterator[TokenKey]:
    data = _content(path)
    try:
        is_certificate = b"BEGIN CERTIFICATE" in data
        public: object = (
            x509.load_pem_x509_certificate(data).public_key() if is_certificate else load_pem_public_key(data)
        )
    except ValueError as error:
        raise ValueError(f"{path}: no public key or certificate in PEM: {error}") from error
    if not isinstance(public, (RSAPublicKey, EllipticCurvePublicKey, Ed25519PublicKey, Ed448PublicKey)):
        raise ValueError(f"{path}: tokens are not signed with keys of this type")
    kind = {RSAPublicKey: "RS256", EllipticCurvePublicKey: "ES256"}
    form = next((name for base, name in kind.items() if isinstance(public, base)), "EdDSA")
    jwk = get_default_algorithms()[form].to_jwk(public, as_dict=True)
    found = list(_keys_of_jwk(jwk, algorithms))
    if not found:
        raise ValueError(
            f"{path}: no key for {', '.join(algorithms)}, or one of RSA with less than 2,048 bits"
        )
    yield from found
