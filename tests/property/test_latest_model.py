"""The last values against a dict, with restarts, crashes, deleted databases, trimming and logs cut short."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from store_model import BORN_HOST, open_small

from iotmq.message.records.record import decode_record, encode_batch
from iotmq.store.kv import kv_projection
from iotmq.store.log.segment import segment_name
from iotmq.store.tools.rebuild import rebuild

MQTT_TOPICS = ("a", "a/b", "a/b/c", "dev/1/t", "dev/2/t", "\u00fc", "x" * 300)
TOPICS = ("T", "U", "%RETRY%g", "SCHEDULE_TOPIC_XXXX")

published = st.tuples(st.sampled_from((None, *MQTT_TOPICS)), st.binary(max_size=20))


class LatestMachine(RuleBasedStateMachine):
    """`records` is what was published, in order: (position, MQTT topic or None, body, counts)."""

    @initialize(pending=st.sampled_from((1, 4, 100)), flush=st.sampled_from((1, 500, 1 << 30)))
    def open(self, pending: int, flush: int) -> None:
        self.limits = kv_projection.PENDING_KEYS_MAX, kv_projection.FLUSH_LOG_BYTES
        kv_projection.PENDING_KEYS_MAX, kv_projection.FLUSH_LOG_BYTES = pending, flush
        self.root = Path(tempfile.mkdtemp(prefix="iotmq-latest-"))
        self.generation = 0
        self.records: list[tuple[int, str | None, bytes]] = []
        self.min_position = 0
        self.start()

    @property
    def directory(self) -> Path:
        return self.root / str(self.generation)

    def start(self) -> None:
        self.store = open_small(self.directory, latest_enabled=True)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.agrees()
            assert self.store.check() == []
            self.store.close()
            shutil.rmtree(self.root)
            kv_projection.PENDING_KEYS_MAX, kv_projection.FLUSH_LOG_BYTES = self.limits

    @rule(topic=st.sampled_from(TOPICS), batch=st.lists(published, min_size=1, max_size=8))
    def publish(self, topic: str, batch: list[tuple[str | None, bytes]]) -> None:
        elements = [
            (body, b"" if name is None else b"MQTT_TOPIC\x01" + name.encode() + b"\x02", 0)
            for name, body in batch
        ]
        appended = self.store.append(
            self.store.queue(topic, 0), encode_batch(elements), born_timestamp_ms=1, born_host=BORN_HOST
        )
        counts = topic in ("T", "U")
        for position, (name, body) in zip(appended.positions(), batch, strict=True):
            self.records.append((position, name if counts else None, body))

    @rule()
    def write(self) -> None:
        self.store._projections.latest.write_out()

    @rule()
    def sync(self) -> None:
        self.store._projections.latest.sync()
        assert self.store._projections.latest.durable_position == self.store.confirmed_position

    @rule(keys_max=st.integers(1, 4))
    def sweep(self, keys_max: int) -> None:
        self.store._projections.latest.sweep(keys_max)

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.start()

    @rule()
    def die(self) -> None:
        """kill -9. No flush is under way: the copy is of one moment."""
        while self.store._projections.latest._space.is_flushing:
            pass
        before = self.directory
        self.generation += 1
        shutil.copytree(before, self.directory)
        self.store.close()
        shutil.rmtree(before)
        self.start()

    @rule()
    def delete_database(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory / "kv")
        self.start()

    @rule()
    def rebuild_by_hand(self) -> None:
        self.store.close()
        rebuild(self.directory, self.store.settings, ["latest"])
        self.start()

    @precondition(lambda self: self.records)
    @rule(share=st.integers(0, 99))
    def lose_the_end_of_the_log(self, share: int) -> None:
        """A power cut that the database survives better than the log."""
        kept = len(self.records) * share // 100
        cut, _, _ = self.records[kept]
        self.store.close()
        for path in (self.directory / "commitlog").iterdir():
            start = int(path.name)
            if start + path.stat().st_size > cut:
                data = path.read_bytes()
                at = max(0, cut - start)
                path.write_bytes(data[:at] + bytes(len(data) - at))
        del self.records[kept:]
        # As after a power cut: the whole end is looked at.
        (self.directory / "abort").touch()
        (self.directory / "checkpoint").unlink()
        self.start()

    @rule()
    def trim(self) -> None:
        """The log begins at its second file from now on, as after retention."""
        self.store.close()
        paths = sorted((self.directory / "commitlog").iterdir())
        if len(paths) > 1:
            paths[0].unlink()
            self.min_position = int(paths[1].name)
            assert paths[1].name == segment_name(self.min_position)
        self.start()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "store"):
            return
        wanted: dict[str, tuple[int, bytes]] = {}
        for position, name, body in self.records:
            if name is not None:
                wanted[name] = (position, body)
        for name in MQTT_TOPICS:
            record = self.store.latest(name)
            if name not in wanted or wanted[name][0] < self.min_position:
                assert record is None
            else:
                assert record is not None
                assert (decode_record(record).position, decode_record(record).body) == wanted[name]
        found = [place.mqtt_topic for place, _ in self.store.latest_records("a")]
        assert found == sorted(
            name for name, (position, _) in wanted.items() if name[0] == "a" and position >= self.min_position
        )


LatestMachine.TestCase.settings = settings(max_examples=12, stateful_step_count=20, deadline=None)
TestLatestModel = LatestMachine.TestCase
