"""What a clean stop leaves for other brokers of the file format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from broker_site import Site
from eventually import soon


@pytest.mark.parametrize("count", [1, 5, 50])
async def test_the_delivered_offsets_of_delay_levels_are_those_of_all_deliveries(
    tmp_path: Path, count: int
) -> None:
    site = Site(tmp_path, delay_levels="1s 2s")
    await site.start()
    for number in range(count):
        await site.send(str(number).encode(), i="DELAY\x011\x02")
    site.clock.advance(2)

    def are_delivered() -> bool:
        site.broker.expire()
        queue = site.store.find_queue("T", 0)
        return queue is not None and queue.max_offset == count

    await soon(are_delivered, "every message is in its topic")
    await site.stop()
    saved = json.loads((tmp_path / "config" / "delayOffset.json").read_text())
    assert saved["offsetTable"] == {"1": count, "2": 0}
