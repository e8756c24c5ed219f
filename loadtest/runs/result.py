"""The result of a load test, as it is kept in a file; `docs/reference/loadtest.md` describes it."""

import json
from pathlib import Path
from typing import Any, Final

from loadtest.swarm.errors import SwarmError

FORMAT: Final = "iotmq-loadtest-1"
RESULT_BYTES_MAX: Final = 64 * 1024 * 1024
# What a file must have, and of which type, to be shown.
_PARTS: Final[dict[str, type]] = {
    "name": str,
    "began_at": str,
    "plan": dict,
    "connect": dict,
    "rates": dict,
    "counters": dict,
    "latencies": dict,
    "ends": dict,
    "ticks": list,
    "verdict": list,
}

Result = dict[str, Any]


def write_result(result: Result, path: Path) -> None:
    """Keep a result in a file."""
    path.write_text(json.dumps(result, indent=1) + "\n")


def read_result(path: Path) -> Result:
    """Take a result out of a file. SwarmError when it has none."""
    try:
        if path.stat().st_size > RESULT_BYTES_MAX:
            raise SwarmError(
                f"{path} has more than {RESULT_BYTES_MAX >> 20} MiB: it is no result of a load test"
            )
        result = json.loads(path.read_text())
    except OSError as error:
        raise SwarmError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise SwarmError(f"{path} is no JSON: {error}") from error
    if not isinstance(result, dict) or result.get("format") != FORMAT:
        raise SwarmError(f"{path} is no result of a load test in the format {FORMAT}")
    for name, kind in _PARTS.items():
        if not isinstance(result.get(name), kind):
            raise SwarmError(f"{path} has no {name}")
    return result
