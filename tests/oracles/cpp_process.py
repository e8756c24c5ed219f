"""The C++ client of RocketMQ behind a pipe (tests/interop/rocketmq_cpp_client.py)."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from gateway_process import ROOT
from piped_client import PipedClient

cpp_marks = [
    pytest.mark.interop,
    pytest.mark.skipif(
        importlib.util.find_spec("rocketmq") is None,
        reason="the package rocketmq==0.4.4 has a wheel for Linux on x86-64 only",
    ),
]
"""For tests that start it."""


def cpp_process(registry: str, directory: Path) -> PipedClient:
    """A process of its own; the library writes its log below HOME, which is `directory`."""
    return PipedClient(
        [sys.executable, str(ROOT / "tests" / "interop" / "rocketmq_cpp_client.py"), registry],
        directory=directory,
        environment={**os.environ, "HOME": str(directory)},
    )
