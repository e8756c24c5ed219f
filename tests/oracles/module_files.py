"""Modules of the tests by their files: the tests are no packages, and some of them are scripts as well."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def load_module(path: Path) -> Any:
    """A new module of that file, named like it and not entered in `sys.modules`."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
