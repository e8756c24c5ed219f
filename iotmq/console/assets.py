"""The files of the console, served from memory: read once, compressed once, and nothing else of the disk.

The page itself is asked for anew each time. All it refers to stands below the digest of all files, so
browsers may keep it for ever, and a new version of the program is never mixed with an old one. Addresses are
relative: the page works below whatever path a proxy puts it.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from iotmq.console.access.browser import page_headers, security_headers
from iotmq.console.server.messages import Answer, Request
from iotmq.ports.websockets import WebSocketPlace

PREFIX: Final = "/console/"
STATIC: Final = Path(__file__).parent / "static"
PAGE: Final = "index.html"
MAIN: Final = "main.js"

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_KEPT: Final = ("Cache-Control", "public, max-age=31536000, immutable")
_ASKED_AGAIN: Final = ("Cache-Control", "no-cache")
# The statements that name a module in quotes; not those that load a page when it is shown.
_IMPORTS: Final = re.compile(
    r"""(?:^|[;}])\s*(?:import|export)\b[^;"'()]*?["'](\.{1,2}/[^"']+)["']""", re.MULTILINE
)


class Asset(NamedTuple):
    """A file as it is sent."""

    data: bytes
    compressed: bytes
    etag: str
    content_type: str


class Assets:
    """Answers requests for the console; the files are read, in a thread, with the first of them."""

    def __init__(
        self,
        base_path: str = "",
        directory: Path = STATIC,
        websockets: Callable[[], Sequence[WebSocketPlace]] = tuple,
    ) -> None:
        """`websockets` returns the listeners for MQTT that the page may connect to."""
        self._websockets = websockets
        # Relative where no path is set: a proxy that nobody has told of may add one.
        self._location = f"{base_path}{PREFIX}" if base_path else PREFIX.lstrip("/")
        self._directory = directory
        self._reading: asyncio.Task[dict[str, Asset]] | None = None

    async def answer(self, request: Request) -> Answer:
        """Answer a request whose path is `PREFIX`, below it, or a way to it."""
        answer = await self._find(request)
        headers = page_headers(request, self._websockets())
        own = (*security_headers(request, headers), ("Vary", "Accept-Encoding"))
        return answer._replace(headers=answer.headers + own)

    async def _find(self, request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            return Answer(b"method not allowed\n", 405, headers=(("Allow", "GET, HEAD"),))
        path = request.path
        if path in ("/", PREFIX.rstrip("/")):
            return Answer(b"", 302, headers=(("Location", self._location),))
        if self._reading is None:
            self._reading = asyncio.ensure_future(asyncio.to_thread(read_assets, self._directory))
        assets = await asyncio.shield(self._reading)
        name = path.removeprefix(PREFIX)
        asset = assets.get(name)
        if asset is None:
            return Answer(b"not found\n", 404)
        headers = (_KEPT if name else _ASKED_AGAIN, ("ETag", asset.etag))
        if asset.etag in request.headers.get("if-none-match", ""):
            return Answer(b"", 304, asset.content_type, headers)
        if "gzip" in request.headers.get("accept-encoding", ""):
            return Answer(asset.compressed, 200, asset.content_type, (*headers, ("Content-Encoding", "gzip")))
        return Answer(asset.data, 200, asset.content_type, headers)


def is_of_console(request: Request) -> bool:
    """Return whether a request is one for `Assets`."""
    return request.path in ("/", PREFIX.rstrip("/")) or request.path.startswith(PREFIX)


def read_assets(directory: Path) -> dict[str, Asset]:
    """Return what is served, by the path below `PREFIX`; the page has the empty one."""
    files = {
        str(file.relative_to(directory)): file.read_bytes()
        for file in sorted(directory.rglob("*"))
        if file.suffix in _TYPES and file.is_file()
    }
    page = files.pop(PAGE)
    digest = hashlib.sha256()
    for name, data in files.items():
        digest.update(b"%s %d\n%s" % (name.encode(), len(data), data))
    version = digest.hexdigest()[:16]
    # The browser asks for all modules at once, not for one after the other as it finds their names.
    preload = "\n".join(
        f'<link rel="modulepreload" href="{version}/{name}">' for name in modules_of(MAIN, files)
    )
    page = page.replace(b"{version}", version.encode()).replace(b"<!-- modules -->", preload.encode())
    assets = {f"{version}/{name}": _asset(name, data) for name, data in files.items()}
    assets[""] = _asset(PAGE, page)
    return assets


def modules_of(name: str, files: dict[str, bytes]) -> list[str]:
    """Return the modules that one imports, and those that they import, and so on; itself is the first.

    KeyError for an import of a file that is not there.
    """
    found = [name]
    for module in found:
        for imported in _IMPORTS.findall(files[module].decode()):
            target = _joined(module, imported)
            if target not in found:
                found.append(target)
    return found


def _joined(module: str, imported: str) -> str:
    parts = module.split("/")[:-1]
    for part in imported.split("/"):
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def _asset(name: str, data: bytes) -> Asset:
    return Asset(
        data=data,
        compressed=gzip.compress(data, 9, mtime=0),
        etag=f'"{hashlib.sha384(data).hexdigest()[:32]}"',
        content_type=_TYPES[Path(name).suffix],
    )
