"""etcd's JSON gateway for tests: keys, leases, users and watches in memory, on as many nodes as wanted."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import ssl
from typing import Any, NamedTuple

from aiohttp import web
from http_faults import FaultyServer, stream

from iotmq.clock import Clock


class Entry(NamedTuple):
    value: bytes
    created: int
    modified: int
    lease: int


class FakeEtcdData:
    """What all nodes of a cluster have in common."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.revision = 1
        self.term = 2
        self.keys: dict[bytes, Entry] = {}
        self.leases: dict[int, tuple[int, float]] = {}
        self.password = ""
        """Empty: no authentication."""
        self.tokens: set[str] = set()
        self.may_write = True
        self.watches: list[asyncio.Queue[bytes | None]] = []
        self._numbers = itertools.count(7_587_000_000_000_000_000)

    def put(self, key: bytes, value: bytes, lease: int = 0) -> None:
        self.revision += 1
        old = self.keys.get(key)
        self.keys[key] = Entry(value, old.created if old else self.revision, self.revision, lease)
        self.tell(json.dumps({"result": {"events": [{"kv": {}}]}}).encode())

    def grant(self, ttl_s: int) -> int:
        number = next(self._numbers)
        self.leases[number] = (ttl_s, self.clock.monotonic_s())
        return number

    def revoke(self, lease: int) -> None:
        del self.leases[lease]
        self.keys = {key: entry for key, entry in self.keys.items() if entry.lease != lease}

    def expire(self) -> None:
        now_s = self.clock.monotonic_s()
        for lease in [each for each, (ttl_s, since_s) in self.leases.items() if now_s - since_s >= ttl_s]:
            self.revoke(lease)

    def tell(self, line: bytes | None) -> None:
        """Send a line to all watches; None ends them."""
        for watch in self.watches:
            watch.put_nowait(line)


class FakeEtcd(FaultyServer):
    """One node."""

    def __init__(self, data: FakeEtcdData, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(self._answer, tls)
        self.data = data
        self.cluster_id = "14841639068965178418"
        self.revision_behind = 0
        self.term_behind = 0
        self.puts = 0

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        data = self.data
        body = json.loads(await request.read())
        data.expire()
        path = request.path
        if path == "/v3/auth/authenticate":
            if not data.password:
                return _error(412, 9, "etcdserver: authentication is not enabled")
            if body["password"] != data.password:
                return _error(400, 3, "etcdserver: authentication failed, invalid user ID or password")
            token = f"token.{len(data.tokens)}"
            data.tokens.add(token)
            return self._json({"token": token})
        if data.password:
            token = request.headers.get("Authorization", "")
            if not token:
                return _error(400, 3, "etcdserver: user name is empty")
            if token not in data.tokens and path == "/v3/watch":
                response = await stream(request)
                await response.write(b'{"result":{"created":true,"canceled":true,"watch_id":"-1"}}\n')
                return response
            if token not in data.tokens:
                return _error(401, 16, "etcdserver: invalid auth token")
            if not data.may_write:
                return _error(403, 7, "etcdserver: permission denied")
        if path == "/v3/watch":
            return await self._watch(request)
        return self._json(await getattr(self, "_" + path.rpartition("/")[2])(body))

    async def _range(self, body: dict[str, Any]) -> dict[str, Any]:
        first = _bytes(body["key"])
        end = _bytes(body["range_end"]) if "range_end" in body else first + b"\0"
        found = [
            {
                "key": _text(key),
                "value": _text(entry.value),
                "create_revision": str(entry.created),
                "mod_revision": str(entry.modified),
                **({"lease": str(entry.lease)} if entry.lease else {}),
            }
            for key, entry in sorted(self.data.keys.items())
            if first <= key < end
        ]
        return {"kvs": found[: body.get("limit") or None]} if found else {}

    async def _txn(self, body: dict[str, Any]) -> dict[str, Any]:
        (compare,) = body["compare"]
        assert compare["result"] == "EQUAL"
        entry = self.data.keys.get(_bytes(compare["key"]), Entry(b"", 0, 0, 0))
        wanted, there = {
            "CREATE": (compare.get("create_revision"), entry.created),
            "MOD": (compare.get("mod_revision"), entry.modified),
        }[compare["target"]]
        if int(wanted) != there:
            return {}
        for operation in body["success"]:
            await self._put(operation["request_put"])
        return {"succeeded": True}

    async def _put(self, body: dict[str, Any]) -> dict[str, Any]:
        lease = int(body.get("lease", 0))
        if lease and lease not in self.data.leases:
            raise _missing_lease()
        self.puts += 1
        self.data.put(_bytes(body["key"]), _bytes(body["value"]), lease)
        return {}

    async def _deleterange(self, body: dict[str, Any]) -> dict[str, Any]:
        self.data.keys.pop(_bytes(body["key"]), None)
        self.data.revision += 1
        return {}

    async def _grant(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"ID": str(self.data.grant(int(body["TTL"]))), "TTL": str(body["TTL"])}

    async def _keepalive(self, body: dict[str, Any]) -> dict[str, Any]:
        lease = int(body["ID"])
        result = {"header": self._header(), "ID": body["ID"]}
        if lease in self.data.leases:
            ttl_s, _ = self.data.leases[lease]
            self.data.leases[lease] = (ttl_s, self.data.clock.monotonic_s())
            result["TTL"] = str(ttl_s)
        return {"result": result}

    async def _timetolive(self, body: dict[str, Any]) -> dict[str, Any]:
        lease = int(body["ID"])
        if lease not in self.data.leases:
            return {"ID": body["ID"], "TTL": "-1"}
        ttl_s, since_s = self.data.leases[lease]
        left_s = int(since_s + ttl_s - self.data.clock.monotonic_s())
        return {"ID": body["ID"], "grantedTTL": str(ttl_s), **({"TTL": str(left_s)} if left_s else {})}

    async def _revoke(self, body: dict[str, Any]) -> dict[str, Any]:
        if int(body["ID"]) not in self.data.leases:
            raise _missing_lease()
        self.data.revoke(int(body["ID"]))
        return {}

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        response = await stream(request)
        await response.write(json.dumps({"result": {"created": True}}).encode() + b"\n")
        self.data.watches.append(lines)
        try:
            while (line := await lines.get()) is not None:
                # In two pieces: borders of chunks mean nothing.
                await response.write(line[:7])
                await response.write(line[7:] + b"\n")
        finally:
            self.data.watches.remove(lines)
        return response

    def _header(self) -> dict[str, str]:
        return {
            "cluster_id": self.cluster_id,
            "member_id": "1",
            "revision": str(self.data.revision - self.revision_behind),
            "raft_term": str(self.data.term - self.term_behind),
        }

    def _json(self, body: dict[str, Any]) -> web.Response:
        return web.json_response({"header": self._header(), **body})


def _error(status: int, code: int, message: str) -> web.Response:
    return web.json_response({"error": message, "message": message, "code": code}, status=status)


def _missing_lease() -> web.HTTPNotFound:
    message = "etcdserver: requested lease not found"
    return web.HTTPNotFound(
        text=json.dumps({"error": message, "message": message, "code": 5}), content_type="application/json"
    )


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
