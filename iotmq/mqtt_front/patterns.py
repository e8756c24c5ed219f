"""Regular expressions of settings, whose time is linear in the text."""

from __future__ import annotations

from typing import Protocol

from iotmq import limits


class Found(Protocol):
    """Where a pattern was found."""

    def __getitem__(self, group: int) -> str | None: ...


class Pattern(Protocol):
    """A compiled regular expression."""

    @property
    def groups(self) -> int: ...
    def search(self, text: str) -> Found | None: ...
    def fullmatch(self, text: str) -> Found | None: ...


def compile_pattern(pattern: str) -> Pattern:
    """Compile a regular expression of RE2, whose time is linear in the text whatever a device sends.

    Raises ValueError, which says what is wrong with it.
    """
    # Loaded by front ends with rewrites only.
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = limits.MQTT_REWRITE_PROGRAM_BYTES_MAX
    try:
        compiled: Pattern = re2.compile(pattern, options)
    except re2.error as error:
        what = error.args[0]
        raise ValueError(
            f"not a regular expression of RE2: {what.decode() if isinstance(what, bytes) else what}"
        ) from None
    return compiled
