"""Publish again what a former master had, nobody acknowledged, and its following has cut off."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
from eventually import soon
from member_site import SEGMENT_BYTES, MakeSite, Site, bodies, send

from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.system_topics import system_topic_names
from iotmq.client.transport.settings import ClientSettings
from iotmq.commands import salvage
from iotmq.message.properties import decode_properties, encode_properties
from iotmq.message.records.record import decode_record, encode_batch
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.remoting.codes import ResponseCode
from iotmq.replicated.member_log import DIVERGED_DIRECTORY, EPOCH_TOPIC
from iotmq.replicated.member_store import open_member_store
from iotmq.store.settings import StoreSettings

OWN = system_topic_names(BrokerSettings(name="b"))


def properties(**pairs: str) -> bytes:
    return encode_properties(pairs)


def append_tail(directory: Path, member: int) -> None:
    """What a master has appended last, and was cut off before it could send that to anybody."""
    opened = open_member_store(
        directory,
        StoreSettings(segment_bytes=SEGMENT_BYTES),
        cluster="DefaultCluster",
        broker="b",
        member=member,
        acknowledge_flushed=False,
        store_host=bytes(8),
    )

    def append(topic: str, elements: list[tuple[bytes, bytes, int]], *, sys_flag: int = 0) -> None:
        opened.store.append(
            opened.store.queue(topic, 0),
            encode_batch(elements),
            born_timestamp_ms=1,
            born_host=bytes(8),
            sys_flag=sys_flag,
            batch_properties=b"CLUSTER\x01DefaultCluster",
        )

    append("T", [(b"alone", properties(UNIQ_KEY="k1", KEYS="a b", TAGS="t", mine="x"), 7)])
    append(
        "T",
        [
            (b"first", properties(UNIQ_KEY="k2"), 0),
            (b"second", properties(MQTT_TOPIC="d/1"), 0),
            (b"", b"", 0),
        ],
    )
    append("T", [(b"exactly once", properties(UNIQ_KEY="k3", MQTT_PACKET_ID="5", MQTT_CLIENT_ID="d"), 0)])
    append("rmq_sys_mqtt_session", [(b"state", b"", 0)])
    append("TransactionOf", [(b"half", properties(UNIQ_KEY="k4"), 0)], sys_flag=4)
    append("T", [(b"delayed once", properties(UNIQ_KEY="k5", DELAY="18", TIMER_OUT_MS="1"), 0)])
    opened.close()


async def cut(site: Site, registry: str) -> Path:
    """Have a master's tail cut when it follows; return the file with it."""
    broker = {"registries": (registry,)}
    master = await site.start_all(broker=broker)
    await site.in_sync(3)
    connection = await site.connect(master)
    assert (await send(connection, b"acknowledged")).code == ResponseCode.SUCCESS
    for number in [*(number for number in site.ports if number != master), master]:
        await site.stop(number)
    append_tail(site.directory / str(master), master)
    for number in site.ports:
        if number != master:
            await site.start(number, broker=broker)
    await soon(lambda: any(m.broker for m in site.members.values()), "another member serves", within_s=30.0)
    await site.start(master, broker=broker)
    await site.in_sync(3)
    (file,) = (site.directory / str(master) / DIVERGED_DIRECTORY).glob("*.bin")
    return file


async def test_what_was_cut_off_is_published_again_and_only_once(make: MakeSite, tmp_path: Path) -> None:
    registry = Registry(RegistrySettings(listen_port=0), directory=tmp_path / "registry")
    await registry.start()
    try:
        site = make()
        address = f"127.0.0.1:{registry.port}"
        file = await cut(site, address)
        master = await site.master()
        former = site.members[int(file.parts[-3])]

        def metric(name: str) -> float:
            return next(each.value for each in former.metrics() if each.name == f"iotmq_replication_{name}")

        await soon(lambda: metric("diverged_bytes") == file.stat().st_size, "the kept bytes are told")
        status = site.status(int(file.parts[-3])) or {}
        assert "iotmq store salvage" in status["alarms"][0]
        assert metric("alarms") == 1
        assert former.not_ready_reason is None
        kept, rest_bytes = salvage.read_kept(file, system_topics=OWN)
        assert rest_bytes == 0
        assert [each.record.body for each in kept if not each.left_because] == [
            b"alone", b"first", b"second", b"", b"delayed once"
        ]  # fmt: skip
        assert [each.record.topic for each in kept if "broker's own" in each.left_because] == [
            "rmq_sys_mqtt_session"
        ]
        batches = list(salvage.batches_of(kept))
        assert [len(batch.records) for batch in batches] == [1, 3, 1]
        settings = ClientSettings(registries=(address,))
        done = await asyncio.wait_for(salvage.publish(settings, batches, broker="b"), 30)
        assert done == salvage.Salvaged(5, 0, [])
        records = [decode_record(each) for each in bodies(site, master)]
        assert [record.body for record in records] == [
            b"acknowledged", b"alone", b"first", b"second", b"", b"delayed once"
        ]  # fmt: skip
        alone = decode_properties(records[1].properties)
        assert (alone["UNIQ_KEY"], alone["KEYS"], alone["TAGS"], alone["mine"]) == ("k1", "a b", "t", "x")
        assert records[1].flag == 7
        assert decode_properties(records[5].properties).keys() == {"UNIQ_KEY", "CLUSTER"}
        again = await asyncio.wait_for(salvage.publish(settings, batches, broker="b"), 30)
        assert again == salvage.Salvaged(0, 5, [])
        assert len(bodies(site, master)) == 6
        file.unlink()
        await soon(lambda: metric("diverged_bytes") == metric("alarms") == 0, "the alarm ends", within_s=20.0)
    finally:
        await registry.stop()


async def test_what_no_broker_takes_is_said_and_the_rest_goes_on(make: MakeSite, tmp_path: Path) -> None:
    registry = Registry(RegistrySettings(listen_port=0), directory=tmp_path / "registry")
    await registry.start()
    try:
        site = make(1)
        address = f"127.0.0.1:{registry.port}"
        settled = {"registries": (address,), "auto_create_topics": False}
        await site.start_all(broker=settled, replication={"in_sync_min": 1})
        run = site.run(1)
        await run.broker.wait_registered(10.0)
        kept, _ = salvage.read_kept(write_kept(site.directory), system_topics=OWN)
        settings = ClientSettings(registries=(address,))
        done = await asyncio.wait_for(
            salvage.publish(settings, list(salvage.batches_of(kept)), broker="b"), 30
        )
        assert (done.stored_count, done.found_count) == (0, 0)
        assert len(done.problems) == 2
        assert salvage.exit_code(done) == 1
    finally:
        await registry.stop()


def write_kept(directory: Path, *, topics: tuple[str, ...] = ("A", "B")) -> Path:
    """A file as a cut leaves it, of a log of its own."""
    from iotmq.message.records.record import encode_record

    data = b""
    for number, topic in enumerate(topics):
        data += encode_record(topic=topic, body=b"%d" % number, position=1000 + len(data))
    file = directory / f"{1000:020}-{1000 + len(data):020}.bin"
    file.write_bytes(data.rstrip(b"\0"))
    return file


def test_records_are_shown_and_those_of_the_broker_are_left(tmp_path: Path) -> None:
    topics = ("A", EPOCH_TOPIC, "SCHEDULE_TOPIC_XXXX", "%RETRY%g", "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102")
    kept, rest_bytes = salvage.read_kept(write_kept(tmp_path, topics=topics), system_topics=OWN)
    assert [bool(each.left_because) for each in kept] == [False, True, True, True, True, True]
    output = io.StringIO()
    salvage.show(kept, rest_bytes, has_bodies=True, is_json=True, output=output)
    rows = [json.loads(line) for line in output.getvalue().splitlines()]
    assert [row["topic"] for row in rows] == list(topics)
    assert next(salvage.summary(kept)) == "6 records; 1 can be published again"


def test_bytes_that_are_no_record_are_told(tmp_path: Path) -> None:
    file = write_kept(tmp_path)
    data = file.read_bytes()
    torn = tmp_path / f"{1000:020}-{1000 + len(data) - 9:020}.bin"
    torn.write_bytes(data[:-9])
    kept, rest_bytes = salvage.read_kept(torn, system_topics=OWN)
    assert [each.record.topic for each in kept] == ["A"]
    assert rest_bytes > 0


@pytest.mark.parametrize("name", ["notes.bin", "1-2.bin", f"{0:020}-{5:020}.bin"])
def test_a_file_that_cannot_be_one_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"more than five bytes")
    with pytest.raises(salvage.StoreError):
        salvage.read_kept(tmp_path / name, system_topics=OWN)


def test_a_file_is_read_up_to_what_a_cut_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_kept(tmp_path)
    size = file.stat().st_size
    monkeypatch.setattr(salvage, "KEPT_BYTES_MAX", size)
    assert salvage.read_kept(file, system_topics=OWN)[0]
    monkeypatch.setattr(salvage, "KEPT_BYTES_MAX", size - 1)
    with pytest.raises(salvage.StoreError, match="more bytes"):
        salvage.read_kept(file, system_topics=OWN)
