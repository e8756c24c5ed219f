"""A full disk for one process: no file of it may grow past a size."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def files_end_at(size_bytes: int) -> Iterator[None]:
    """No file can be made larger than `size_bytes`: writes and allocations past it fail with EFBIG (Python
    ignores the signal that would come with it).

    It holds for everything the process writes, the test report too when it goes to a file: put it around
    the calls under test and nothing else, never around a whole test. See tests/crash for a full disk.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
