"""docs/reference/mqtt-conformance.md lists every normative statement, and what it names exists."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "mqtt-conformance.md").read_text()

# Of each section the highest number of its statements (appendix B of the specifications).
HIGHEST = {
    "MQTT 5.0": {
        "1.5.4": 3, "1.5.5": 1, "1.5.7": 1, "2.1.3": 1, "2.2.1": 6, "2.2.2": 1, "3.1.0": 2, "3.1.2": 30,
        "3.1.3": 12, "3.1.4": 6, "3.2.0": 2, "3.2.2": 22, "3.3.1": 13, "3.3.2": 20, "3.3.4": 10, "3.4.2": 3,
        "3.5.2": 3, "3.6.1": 1, "3.6.2": 3, "3.7.2": 3, "3.8.1": 1, "3.8.3": 5, "3.8.4": 8, "3.9.2": 2,
        "3.9.3": 2, "3.10.1": 1, "3.10.3": 2, "3.10.4": 6, "3.11.2": 2, "3.11.3": 2, "3.12.4": 1, "3.14.0": 1,
        "3.14.1": 1, "3.14.2": 4, "3.14.4": 3, "3.15.1": 1, "3.15.2": 3, "4.1.0": 2, "4.2.0": 1, "4.3.1": 1,
        "4.3.2": 5, "4.3.3": 13, "4.4.0": 2, "4.5.0": 2, "4.6.0": 6, "4.7.0": 1, "4.7.1": 2, "4.7.2": 1,
        "4.7.3": 4, "4.8.2": 6, "4.9.0": 3, "4.12.0": 7, "4.12.1": 2, "4.13.1": 1, "4.13.2": 1, "6.0.0": 4,
    },
    "MQTT 3.1.1": {
        "1.5.3": 3, "2.2.2": 2, "2.3.1": 7, "3.1.0": 2, "3.1.2": 24, "3.1.3": 11, "3.1.4": 5, "3.2.0": 1,
        "3.2.2": 6, "3.3.1": 12, "3.3.2": 3, "3.3.4": 1, "3.3.5": 2, "3.6.1": 1, "3.8.1": 1, "3.8.3": 4,
        "3.8.4": 6, "3.9.3": 2, "3.10.1": 1, "3.10.3": 2, "3.10.4": 6, "3.12.4": 1, "3.14.1": 1, "3.14.4": 3,
        "4.1.0": 2, "4.3.1": 1, "4.3.2": 2, "4.3.3": 2, "4.4.0": 1, "4.5.0": 2, "4.6.0": 6, "4.7.1": 3,
        "4.7.2": 1, "4.7.3": 4, "4.8.0": 2, "6.0.0": 4, "7.0.0": 2, "7.1.1": 1, "7.1.2": 1,
    },
}  # fmt: skip
# Numbers the specification leaves out.
MISSING = {("MQTT 5.0", "2.2.1", 1)}

SHORTS = dict(re.findall(r"^- \*(\w+)\*: `([\w/.]+)`$", PAGE, re.MULTILINE))


def rows(version: str) -> list[list[str]]:
    """(statements, what, module, test) of each row of a version's table."""
    part = PAGE.partition(f"\n## {version}\n")[2].partition("\n## ")[0]
    lines = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("| MQTT-")]
    return [[cell.strip() for cell in cells] for cells in lines]


@pytest.mark.parametrize("version", HIGHEST)
def test_every_statement_is_listed_once(version: str) -> None:
    listed: Counter[tuple[str, int]] = Counter()
    for statements, *_ in rows(version):
        section, numbers = re.fullmatch(r"MQTT-([\d.]+)((?:(?:, )?-\d+)+)", statements).groups()  # type: ignore[union-attr]
        listed.update((section, int(number)) for number in re.findall(r"-(\d+)", numbers))
    wanted = {
        (section, number)
        for section, highest in HIGHEST[version].items()
        for number in range(1, highest + 1)
        if (version, section, number) not in MISSING
    }
    assert set(listed) == wanted
    assert max(listed.values()) == 1


@pytest.mark.parametrize("version", HIGHEST)
def test_modules_and_tests_that_are_named_exist(version: str) -> None:
    for statements, _, module, test in rows(version):
        if module == test and module in ("client", "not yet"):
            continue
        modules, tests = re.findall(r"`([^`]+)`", module), re.findall(r"`([^`]+)`", test)
        assert modules, statements
        assert tests, statements
        for name in modules:
            assert (ROOT / "iotmq" / name).is_file(), (statements, name)
        for name in tests:
            short, _, function = name.partition(": ")
            source = (ROOT / "tests" / SHORTS[short]).read_text()
            assert re.search(rf"^(?:async )?def {re.escape(function)}\(", source, re.MULTILINE), (
                statements,
                name,
            )


def test_files_of_the_short_words_exist() -> None:
    assert SHORTS
    for file in SHORTS.values():
        assert (ROOT / "tests" / file).is_file(), file


def test_statements_that_tests_and_modules_name_are_there() -> None:
    """A number that no version has is a slip; as the specification spells one of its own, too."""
    known = {
        f"MQTT-{section}-{number}"
        for sections in HIGHEST.values()
        for section, highest in sections.items()
        for number in range(1, highest + 1)
    }
    for folder in ("iotmq", "tests"):
        for file in (ROOT / folder).rglob("*.py*"):
            if file.suffix in (".py", ".pyx", ".pxd") and file != Path(__file__):
                found = set(re.findall(r"\[(MQTT-\d+\.\d+\.\d+-\d+)", file.read_text()))
                assert found <= known, (file, found - known)
