"""When no further queue file can be mapped, the queues that have theirs are appended to as before."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iotmq.errors import StoreError, StoreFullError
from iotmq.message.hosts import encode_host
from iotmq.message.records.record import encode_batch
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

HOST = encode_host("127.0.0.1", 10911)
BATCH = encode_batch([(b"hello", b"", 0)])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store.open(tmp_path, StoreSettings(segment_bytes=1 << 20), store_host=HOST)
    yield store
    assert store.check() == []
    store.close()


def append(store: Store, topic: str) -> int:
    return store.append(store.queue(topic, 0), BATCH, born_timestamp_ms=1, born_host=HOST).first_offset


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EMFILE, errno.ENFILE])
def test_a_queue_without_a_file_refuses_alone(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    assert append(store, "Old") == 0
    make_directories = os.makedirs

    def refuse(path: str, *args: Any, **kwargs: Any) -> None:
        if path.startswith(str(tmp_path / "consumequeue")):
            raise OSError(number, os.strerror(number), path)
        make_directories(path, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "makedirs", refuse)
        for _ in range(2):
            with pytest.raises(StoreError, match="no more queue files") as raised:
                append(store, "New")
            assert not isinstance(raised.value, StoreFullError)
            assert append(store, "Old") > 0
    assert append(store, "New") == 0


def test_a_full_disk_is_everybodys(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(store, "Old")

    def refuse(path: str, *args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(os, "makedirs", refuse)
    with pytest.raises(StoreFullError):
        append(store, "New")
    with pytest.raises(StoreFullError):
        append(store, "Old")
