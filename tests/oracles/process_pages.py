"""What a process says at its HTTP port."""

from __future__ import annotations

import re
import urllib.error
import urllib.request


def page(url: str) -> tuple[int, str]:
    """Status and text of a GET; OSError while nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")


def metrics_at(url: str) -> dict[str, float]:
    """Every sample of /metrics there, by its name with labels as it stands there."""
    _status, text = page(f"{url}/metrics")
    return {name: float(value) for name, value in re.findall(r"^([a-z]\w*(?:\{.*\})?) (\S+)$", text, re.M)}


def metric_at(url: str, name: str) -> float:
    """The sum of all samples of one name; 0 when there is none yet."""
    return sum(value for key, value in metrics_at(url).items() if key.split("{")[0] == name)
