"""The API server of Kubernetes for tests: Lease objects with versions and watches, and the labels of pods."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any

from aiohttp import web
from http_faults import FaultyServer, stream

LEASES = "/apis/coordination.k8s.io/v1/namespaces/factory/leases"


class FakeKubernetes(FaultyServer):
    """One API server, with the namespace `factory`."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(self._answer, tls)
        self.token = "first"
        self.leases: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.watches: list[asyncio.Queue[bytes | None]] = []
        self.is_forbidden = False
        self.meddling = 0
        """How often somebody else changes an object between a read and the next write."""
        self._version = 100

    def change(self, lease: dict[str, Any]) -> dict[str, Any]:
        """Give an object another version, as every change does."""
        self._version += 1
        # Opaque to clients: neither a number nor in order.
        lease["metadata"]["resourceVersion"] = f"v{self._version ^ 0x55}"
        self.tell({"type": "MODIFIED", "object": lease})
        return lease

    def tell(self, event: dict[str, Any] | bytes | None) -> None:
        """Send a line to all watches; None ends them."""
        for watch in self.watches:
            watch.put_nowait(json.dumps(event).encode() if isinstance(event, dict) else event)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return _status(401, "Unauthorized")
        if self.is_forbidden:
            return _status(403, "leases is forbidden")
        if request.path.startswith("/api/v1/namespaces/factory/pods/"):
            return await self._patch_pod(request)
        assert request.path.startswith(LEASES)
        name = request.path.removeprefix(LEASES).removeprefix("/")
        if request.method == "GET" and "watch" in request.query:
            return await self._watch(request)
        if request.method == "GET" and not name:
            label, _, value = request.query["labelSelector"].partition("=")
            found = [each for each in self.leases.values() if _labels(each).get(label) == value]
            return web.json_response({"kind": "LeaseList", "items": found[: int(request.query["limit"])]})
        if request.method == "POST":
            return await self._create(request)
        if name not in self.leases:
            return _status(404, f"leases {name} not found")
        if request.method == "DELETE":
            del self.leases[name]
            return _status(200, "")
        lease = self.leases[name]
        if request.method == "PATCH":
            if self.meddling:
                self.meddling -= 1
                self.change(lease)
            return await self._patch(request, lease)
        return web.json_response(lease)

    async def _create(self, request: web.Request) -> web.Response:
        lease = json.loads(await request.read())
        assert (lease["apiVersion"], lease["kind"]) == ("coordination.k8s.io/v1", "Lease")
        name = lease["metadata"]["name"]
        if name in self.leases:
            return _status(409, f"leases {name} already exists")
        self.leases[name] = self.change(lease)
        return web.json_response(lease, status=201)

    async def _patch(self, request: web.Request, lease: dict[str, Any]) -> web.Response:
        assert request.content_type == "application/merge-patch+json"
        patch = json.loads(await request.read())
        version = patch["metadata"].pop("resourceVersion", None)
        if version is not None and version != lease["metadata"]["resourceVersion"]:
            return _status(409, "the object has been modified")
        _merge(lease, patch)
        return web.json_response(self.change(lease))

    async def _patch_pod(self, request: web.Request) -> web.Response:
        pod = self.pods.get(request.path.rpartition("/")[2])
        if pod is None:
            return _status(404, "pod not found")
        _merge(pod, json.loads(await request.read()))
        return web.json_response(pod)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        field, _, name = request.query["fieldSelector"].partition("=")
        assert field == "metadata.name"
        lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        response = await stream(request)
        if name in self.leases:
            event = {"type": "ADDED", "object": self.leases[name]}
            await response.write(json.dumps(event).encode() + b"\n")
        self.watches.append(lines)
        try:
            while (line := await lines.get()) is not None:
                await response.write(line[:7])
                await response.write(line[7:] + b"\n")
        finally:
            self.watches.remove(lines)
        return response


def _labels(lease: dict[str, Any]) -> dict[str, str]:
    return lease["metadata"].get("labels") or {}


def _merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """RFC 7396."""
    for key, value in patch.items():
        if isinstance(value, dict):
            target.setdefault(key, {})
            _merge(target[key], value)
        elif value is None:
            target.pop(key, None)
        else:
            target[key] = value


def _status(status: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "message": message, "code": status}, status=status)
