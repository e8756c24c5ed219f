"""The files of the console: what is served, with which headers, and that nothing else is."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from iotmq.console.assets import STATIC, Asset, Assets, is_of_console, modules_of, read_assets
from iotmq.console.server.messages import Answer, Request

PAGE = b'<script type="module" src="{version}/main.js"></script>\n<!-- modules -->\n'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The files of a small console, and one that is none of it."""
    static = tmp_path / "static"
    (static / "kit").mkdir(parents=True)
    (static / "index.html").write_bytes(PAGE)
    (static / "main.js").write_text('import { a } from "./kit/a.js";\nimport("./later.js");\n')
    (static / "kit" / "a.js").write_text('export { b } from "../b.mjs";\n')
    (static / "b.mjs").write_text('export const b = "from \'./no.js\'";\n')
    (static / "later.js").write_text("")
    (static / "README.md").write_text("for people")
    (tmp_path / "secret.js").write_text("secret")
    return static


def asked(path: str, *, method: str = "GET", **headers: str) -> Request:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(method, path, "", named, "127.0.0.1")


def header(answer: Answer, name: str) -> str:
    (value,) = [value for each, value in answer.headers if each == name]
    return value


async def test_the_page_names_its_files_by_the_digest_of_all(directory: Path) -> None:
    assets = Assets(directory=directory)
    page = await assets.answer(asked("/console/"))
    assert page.status == 200
    assert header(page, "Cache-Control") == "no-cache"
    (version,) = re.findall(rb'src="([0-9a-f]{16})/main\.js"', page.body)
    script = await assets.answer(asked(f"/console/{version.decode()}/main.js"))
    assert script.body == (directory / "main.js").read_bytes()
    assert script.content_type == "text/javascript; charset=utf-8"
    assert "immutable" in header(script, "Cache-Control")


async def test_every_module_that_is_needed_at_once_is_announced(directory: Path) -> None:
    page = await Assets(directory=directory).answer(asked("/console/"))
    found = re.findall(rb'modulepreload" href="[0-9a-f]{16}/([^"]+)"', page.body)
    assert found == [b"main.js", b"kit/a.js", b"b.mjs"]


async def test_a_changed_file_changes_the_addresses_of_all(directory: Path) -> None:
    before = read_assets(directory)
    (directory / "kit" / "a.js").write_text("export const b = 2;\n")
    after = read_assets(directory)
    assert before.keys() & after.keys() == {""}


async def test_who_has_a_file_is_not_sent_it_again(directory: Path) -> None:
    assets = Assets(directory=directory)
    first = await assets.answer(asked("/console/"))
    again = await assets.answer(asked("/console/", if_none_match=header(first, "ETag")))
    assert (again.status, again.body) == (304, b"")
    other = await assets.answer(asked("/console/", if_none_match='"another"'))
    assert other.status == 200


async def test_it_is_compressed_for_those_who_can_read_that(directory: Path) -> None:
    assets = Assets(directory=directory)
    plain = await assets.answer(asked("/console/"))
    packed = await assets.answer(asked("/console/", accept_encoding="br, gzip"))
    assert header(packed, "Content-Encoding") == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert header(plain, "Vary") == header(packed, "Vary") == "Accept-Encoding"


@pytest.mark.parametrize("path", ["/", "/console"])
async def test_the_way_to_the_page_is_relative(directory: Path, path: str) -> None:
    answer = await Assets(directory=directory).answer(asked(path))
    assert (answer.status, header(answer, "Location")) == (302, "console/")


async def test_the_way_has_the_path_that_a_proxy_shows_the_port_below(directory: Path) -> None:
    # The path is taken away before: "/" may have been "/gate" or "/gate/".
    answer = await Assets("/gate", directory).answer(asked("/"))
    assert header(answer, "Location") == "/gate/console/"


@pytest.mark.parametrize(
    "path",
    [
        "/console/index.html",
        "/console/README.md",
        "/console/../secret.js",
        "/console/%2e%2e/secret.js",
        "/console/main.js",
        "/console/0000000000000000/main.js",
        "/console//etc/passwd",
        "/console/\x00",
    ],
)
async def test_nothing_else_can_be_reached(directory: Path, path: str) -> None:
    answer = await Assets(directory=directory).answer(asked(path))
    assert answer.status == 404
    assert b"secret" not in answer.body


async def test_only_reading_is_possible(directory: Path) -> None:
    answer = await Assets(directory=directory).answer(asked("/console/", method="POST"))
    assert (answer.status, header(answer, "Allow")) == (405, "GET, HEAD")


async def test_every_answer_has_the_policy(directory: Path) -> None:
    assets = Assets(directory=directory)
    for request in (asked("/"), asked("/console/"), asked("/console/x"), asked("/console/", method="PUT")):
        answer = await assets.answer(request)
        policy = header(answer, "Content-Security-Policy")
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert header(answer, "X-Content-Type-Options") == "nosniff"
        assert header(answer, "Referrer-Policy") == "no-referrer"


@pytest.mark.parametrize(
    ("path", "is_one"),
    [("/", True), ("/console", True), ("/console/a", True), ("/consoles", False), ("/metrics", False)],
)
def test_which_requests_it_answers(path: str, is_one: bool) -> None:
    assert is_of_console(asked(path)) is is_one


def test_an_import_of_a_file_that_is_not_there_is_found(directory: Path) -> None:
    (directory / "b.mjs").write_text('import "./gone.js";\n')
    with pytest.raises(KeyError, match=r"gone\.js"):
        read_assets(directory)


# The files themselves -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served() -> dict[str, Asset]:
    if not (STATIC / "vendor" / "manifest.json").exists():
        pytest.skip("the packages of the console are not there: make vendor")
    return read_assets(STATIC)


def test_the_first_view_is_small_and_each_page_adds_little(served: dict[str, Asset]) -> None:
    """All that a browser loads for the first page, charts included, as it is sent; then for another one."""
    files = {name.partition("/")[2]: each for name, each in served.items()}
    sources = {name: each.data for name, each in files.items()}

    def size_of(names: Iterable[str]) -> int:
        return sum(len(files[name].compressed) for name in names)

    first = {*modules_of("main.js", sources), *modules_of("pages/overview.js", sources)}
    styles = {name for name in files if name.endswith(".css")}
    size = len(served[""].compressed) + size_of(first | styles)
    assert size < 150_000, f"{size} bytes"
    pages = [name for name in files if name.startswith("pages/")]
    assert len(pages) > 20
    added = {page: size_of({*modules_of(page, sources)} - first) for page in pages}
    assert max(added.values()) < 15_000, added


def test_none_names_another_host(served: dict[str, Asset]) -> None:
    """Addresses of namespaces and in comments of licences are not asked for."""
    allowed = {b"www.w3.org", b"github.com"}
    for name, each in served.items():
        hosts = set(re.findall(rb"""(?:https?:|wss?:|["'(=]\s*)//([\w.-]+\.[a-z]+)""", each.data))
        assert hosts <= allowed, (name, hosts)


def test_no_markup_has_scripts_or_styles_in_it(served: dict[str, Asset]) -> None:
    for name, each in served.items():
        if "/vendor/" not in name:
            assert not re.search(rb'\sstyle="|\son[a-z]+="|innerHTML|\beval\(|new Function', each.data), name
