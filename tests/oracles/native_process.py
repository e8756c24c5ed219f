"""The native client behind a pipe (tests/interop/native_client.py), beside foreign ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gateway_process import ROOT
from piped_client import PipedClient


def native_process(registry: str, directory: Path) -> PipedClient:
    """A process of its own."""
    return PipedClient(
        [sys.executable, str(ROOT / "tests" / "interop" / "native_client.py"), registry],
        directory=directory,
        environment=dict(os.environ),
    )
