"""Time a browser takes for the first view of the console: `python -m benchmarks.console_view`.

A gateway and Chromium on this machine; the way in, then the overview with its charts, with an empty cache.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "oracles"))

from console_browser import SETTINGS, TOKENS, Chromium  # noqa: E402
from gateway_process import GatewayProcess  # noqa: E402

ROUNDS = 9
SIZES = "performance.getEntriesByType('resource').reduce((sum, each) => sum + each.transferSize, 0)"


def main() -> None:
    """Print the median of both, and what they loaded."""
    way_in_ms: list[float] = []
    overview_ms: list[float] = []
    loaded = 0
    with tempfile.TemporaryDirectory() as directory:
        settings = Path(directory) / "iotmq.toml"
        settings.write_text(SETTINGS)
        with GatewayProcess(Path(directory) / "data", config=settings) as gateway:
            origin = f"http://127.0.0.1:{gateway.ports['http']}"
            browser = Chromium()
            for _ in range(ROUNDS):
                with browser.page(origin) as opened:
                    page = opened.show("sign-in")
                    way_in_ms.append(page.evaluate("performance.now()"))
                    page.get_by_label("Token").fill(TOKENS["viewer"])
                    began = page.evaluate("performance.now()")
                    page.get_by_role("button", name="Sign in").click()
                    page.locator(".plot canvas").first.wait_for()
                    overview_ms.append(page.evaluate("performance.now()") - began)
                    loaded = page.evaluate(SIZES)
            browser.stop()
    print(f"the way in: {statistics.median(way_in_ms):.0f} ms (from {min(way_in_ms):.0f} ms)")
    print(f"then the overview: {statistics.median(overview_ms):.0f} ms (from {min(overview_ms):.0f} ms)")
    print(f"loaded, answers of the API included: {loaded:,} bytes")


if __name__ == "__main__":
    main()
