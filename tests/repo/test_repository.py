"""Rules about the tree itself."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import iotmq

ROOT = Path(__file__).resolve().parents[2]
COMPILED_TREES = ("iotmq", "loadtest")


@cache
def tracked_files() -> tuple[Path, ...]:
    """The files that belong to the repository, those not yet committed included."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git working tree")
    names = [name for name in listing.stdout.decode().split("\0") if name]
    return tuple(path for name in names if (path := ROOT / name).is_file())


def compiled_modules() -> set[str]:
    """The names in setup.py's list, read without running it."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "COMPILED_MODULES":
            assert node.value is not None
            return {name for name, _suffix, _libraries in ast.literal_eval(node.value)}
    raise AssertionError("setup.py has no COMPILED_MODULES")


def compiled_sources() -> list[Path]:
    """Every .pyx, and every .py that has a .pxd beside it."""
    trees = [ROOT / tree for tree in COMPILED_TREES]
    cython = [path for tree in trees for path in tree.rglob("*.pyx")]
    augmented = [path.with_suffix(".py") for tree in trees for path in tree.rglob("*.pxd")]
    return sorted(cython + [path for path in augmented if path.exists()])


def test_no_file_names_a_place_of_one_machine() -> None:
    places = re.compile(
        "|".join(
            [re.escape(str(ROOT) + "/"), r"(?<![\w.])/(?:root|home/\w+|Users/\w+|work)/\w", r"\.\./shared\b"]
        )
    )
    wrong = []
    for path in tracked_files():
        if path == Path(__file__).resolve():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        wrong += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
            for number, line in enumerate(text.splitlines(), start=1)
            if places.search(line)
        ]
    assert wrong == []


def test_nothing_built_is_in_the_repository() -> None:
    built = {".so", ".pyc", ".o", ".jar", ".parquet"}
    assert [path for path in tracked_files() if path.suffix in built] == []


def test_no_file_of_the_repository_is_huge() -> None:
    assert [path for path in tracked_files() if path.stat().st_size > 1024 * 1024] == []


def test_every_cython_source_that_python_imports_has_its_types_beside_it() -> None:
    texts = [path.read_text() for path in tracked_files() if path.suffix in {".py", ".pyi"}]
    imported = {
        name
        for text in texts
        for name in re.findall(r"^ *(?:from|import) (iotmq[\w.]*|loadtest[\w.]*)", text, re.M)
    }
    for path in compiled_sources():
        if path.suffix == ".pyx":
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            types = path.with_suffix(".pyi")
            assert types.exists() or name not in imported, f"{path} has no types"
            assert not types.exists() or types.stat().st_size, f"{types} says nothing"


def test_the_list_of_compiled_modules_is_what_the_tree_has() -> None:
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in compiled_sources()}
    assert compiled_modules() == names


def test_every_limit_is_used() -> None:
    limits = re.findall(r"^([A-Z][A-Z0-9_]+): Final", (ROOT / "iotmq/limits.py").read_text(), re.M)
    assert limits
    words: Counter[str] = Counter()
    for tree in COMPILED_TREES:
        for path in (ROOT / tree).rglob("*"):
            if path.suffix in {".py", ".pyx", ".pxd"} and path.name != "limits.py":
                words.update(re.findall(r"[A-Z][A-Z0-9_]+", path.read_text()))
    assert [name for name in limits if not words[name]] == []


def test_test_files_have_different_names_and_no_package() -> None:
    tests = ROOT / "tests"
    names = Counter(path.name for path in tests.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
    assert list(tests.rglob("__init__.py")) == []


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == iotmq.__version__
    assert re.search(r"^## Unreleased", (ROOT / "CHANGELOG.md").read_text(), re.M)


@pytest.mark.parametrize(
    "name",
    ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", ".ci/run", "tools/setup.sh"],
)
def test_the_files_that_people_look_for_are_there(name: str) -> None:
    assert (ROOT / name).stat().st_size > 0


def test_make_explains_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = set(re.findall(r"^\.PHONY: (.*)$", text, re.M)[0].split())
    assert set(re.findall(r"^([a-z-]+):.*## ", text, re.M)) == phony


@pytest.mark.parametrize("script", [".ci/run", "tools/setup.sh", "tools/lock.sh"])
def test_shell_scripts_are_executable_and_parse(script: str) -> None:
    assert (ROOT / script).stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def test_files_that_pages_name_are_there() -> None:
    """Paths in backticks: from the root, or below `iotmq/`, one of its packages, or `tests/`."""
    places = [ROOT, ROOT / "tests", ROOT / "iotmq", *(ROOT / "iotmq").iterdir()]
    for page in (ROOT / "CONTRIBUTING.md", ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for path in re.findall(r"`((?:\w+/)+\w+\.(?:py|pyx|pxd))`", page.read_text()):
            assert any((place / path).exists() for place in places), f"{page.name}: {path}"


def anchors(page: Path) -> set[str]:
    """What a link may name behind the # of a Markdown page: its headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_documents_lead_somewhere() -> None:
    wrong = []
    for page in tracked_files():
        if page.suffix != ".md":
            continue
        text = re.sub(r"`[^`\n]*`", "", page.read_text())
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                wrong.append(f"{page.relative_to(ROOT)}: {link}")
    assert wrong == []


def test_pages_that_sources_name_exist() -> None:
    names = re.compile(r"\bdocs/[\w/-]+\.md")
    wrong = []
    for path in tracked_files():
        if path.suffix in {".py", ".pyx", ".pxd", ".pyi", ".toml", ".sh", ".service"}:
            wrong += [
                f"{path.relative_to(ROOT)}: {name}"
                for name in names.findall(path.read_text())
                if not (ROOT / name).exists()
            ]
    assert wrong == []


# A first line that begins so names neither what is done nor with what: "What it holds", "It is not any more".
RIDDLE = re.compile(
    r'^\s*"""(What|Who|Whoever|Whose|It|Its|They|Nobody|Somebody|Everybody|Up to|So (?:many|much))\b'
)


def test_first_lines_of_docstrings_say_what_is_done() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked_files()
        if path.is_relative_to(ROOT / "iotmq") and path.suffix in (".py", ".pyx", ".pxd", ".pyi")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if RIDDLE.match(line)
    ]
    assert wrong == []
