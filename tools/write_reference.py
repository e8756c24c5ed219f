"""Write docs/reference/settings.md, metrics.md, http-api.md, the clients' api.md, and how-to/alarms.md."""

from __future__ import annotations

from pathlib import Path

import alarms_reference
import api_reference
import http_api_reference
import metrics_reference

from iotmq.config.config import Config
from iotmq.config.setting_text import reference

DOCS = Path(__file__).resolve().parents[1] / "docs" / "reference"
SETTINGS_PAGE = DOCS / "settings.md"
METRICS_PAGE = DOCS / "metrics.md"
API_PAGE = DOCS / "api.md"
HTTP_API_PAGE = DOCS / "http-api.md"
ALARMS_PAGE = DOCS.parent / "how-to" / "alarms.md"


def settings_page() -> str:
    """docs/reference/settings.md with all settings."""
    return _renewed(SETTINGS_PAGE, "reference", reference(Config))


def metrics_page() -> str:
    """docs/reference/metrics.md with all metrics."""
    return _renewed(METRICS_PAGE, "metrics", metrics_reference.tables(metrics_reference.families()))


def api_page() -> str:
    """docs/reference/api.md with all public names of iotmq.client and iotmq.mqtt_client."""
    return _renewed(API_PAGE, "api", api_reference.pages())


def http_api_page() -> str:
    """docs/reference/http-api.md with all routes."""
    return _renewed(HTTP_API_PAGE, "http api", http_api_reference.text())


def alarms_page() -> str:
    """docs/how-to/alarms.md with all built-in conditions."""
    return _renewed(ALARMS_PAGE, "conditions", alarms_reference.table())


def _renewed(page: Path, mark: str, text: str) -> str:
    begin, end = f"<!-- {mark}: begin -->\n", f"<!-- {mark}: end -->\n"
    head, rest = page.read_text().split(begin, 1)
    tail = rest.split(end, 1)[1]
    return f"{head}{begin}\n{text}\n{end}{tail}"


if __name__ == "__main__":
    SETTINGS_PAGE.write_text(settings_page())
    METRICS_PAGE.write_text(metrics_page())
    API_PAGE.write_text(api_page())
    HTTP_API_PAGE.write_text(http_api_page())
    ALARMS_PAGE.write_text(alarms_page())
