"""A skipped interop test fails where foreign clients are required (tests/conftest.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
TESTS = """
import pytest
@pytest.mark.interop
@pytest.mark.skipif(True, reason="the client is not installed")
def test_marked(): ...

@pytest.mark.interop
def test_inside(): pytest.skip("the tool is not installed")

@pytest.mark.skipif(True, reason="not for this user")
def test_other(): ...
"""


def outcome(directory: Path, interop: str) -> str:
    """What a run of the three tests above says."""
    (directory / "test_skips.py").write_text(TESTS)
    (directory / "pytest.ini").write_text("[pytest]\nmarkers = interop: foreign clients\n")
    (directory / "conftest.py").write_text(CONFTEST.read_text())
    quietly = ("-q", "-rfs", "-p", "no:cacheprovider", "-p", "no:warnings")
    run = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *quietly, str(directory)],
        cwd=directory,
        env={"IOTMQ_INTEROP": interop, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return run.stdout


def test_a_foreign_client_that_is_missing_skips_its_tests(tmp_path: Path) -> None:
    assert "3 skipped" in outcome(tmp_path, "")


def test_where_interop_is_required_a_missing_client_fails_its_tests_and_no_others(tmp_path: Path) -> None:
    text = outcome(tmp_path, "required")
    assert "1 failed, 1 skipped, 1 error" in text
    assert "the client is not installed" in text
    assert "the tool is not installed" in text
