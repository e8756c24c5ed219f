"""What a clean stop leaves for other brokers of the file format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from broker_site import Site
from eventually import soon

from iotmq.broker.scheduled.delay_offsets import DelayOffsets
from iotmq.errors import StoreError
from iotmq.remoting.codes import RequestCode


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


async def test_a_database_that_is_closed_at_the_stop_keeps_no_other_file_from_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    await site.start()
    await site.send(b"1")
    offset = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"}
    await site.ask(RequestCode.UPDATE_CONSUMER_OFFSET, offset)

    def refused(*_: object) -> object:
        raise StoreError("the database is closed")

    with monkeypatch.context() as patched:
        patched.setattr(DelayOffsets, "take_unsaved", refused)
        await site.stop()
    offsets = json.loads((tmp_path / "config" / "consumerOffset.json").read_text())
    assert offsets["offsetTable"]["T@g"] == {"0": 1}
    assert (tmp_path / "config" / "topics.json").is_file()
