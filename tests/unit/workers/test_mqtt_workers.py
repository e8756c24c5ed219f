"""What is known of worker processes without starting any: settings, what is said between them, the port."""

from __future__ import annotations

import asyncio
import socket
import sys

import pytest
from eventually import soon

from iotmq import limits
from iotmq.commands import mqtt_worker
from iotmq.config.config import Config, config_from_table
from iotmq.errors import ConfigError
from iotmq.metrics import Metric
from iotmq.supervised import FAILURES
from iotmq.workers import supervisor
from iotmq.workers.channel import (
    Ask,
    Begin,
    Failed,
    Listening,
    Show,
    frame,
    read_from_worker,
    read_to_worker,
    status,
)
from iotmq.workers.supervisor import WorkerSupervisor, hold_port


def table(**mqtt: object) -> dict[str, object]:
    return {"mqtt": mqtt}


@pytest.mark.parametrize("workers", [1, limits.MQTT_WORKERS_MAX])
def test_as_many_workers_as_there_may_be(workers: int) -> None:
    assert config_from_table(table(workers=workers)).mqtt.workers == workers


@pytest.mark.parametrize("workers", [0, limits.MQTT_WORKERS_MAX + 1])
def test_more_workers_are_refused(workers: int) -> None:
    with pytest.raises(ConfigError, match=r"mqtt\.workers"):
        config_from_table(table(workers=workers))


def test_a_name_has_room_for_the_numbers_of_workers() -> None:
    longest = "x" * (limits.FRONT_END_NAME_BYTES_MAX - len("-10"))
    assert config_from_table(table(workers=10, name=longest)).mqtt.name == longest
    assert config_from_table(table(workers=1, name=longest + "xxx")).mqtt.workers == 1
    with pytest.raises(ConfigError, match=r"mqtt\.name"):
        config_from_table(table(workers=10, name=longest + "x"))


def reader(*chunks: bytes) -> asyncio.StreamReader:
    made = asyncio.StreamReader()
    for chunk in chunks:
        made.feed_data(chunk)
    made.feed_eof()
    return made


async def test_what_is_said_arrives_as_it_was_said() -> None:
    config = config_from_table(
        {"mqtt": {"routes": [{"filter": "a/+", "topic": "T"}], "broker_secret_key": "s"}, "data": "d"}
    )
    to_worker = [Begin(3, config), Ask(1 << 40)]
    stream = reader(*(frame(message) for message in to_worker))
    assert [await read_to_worker(stream) for _ in range(3)] == [*to_worker, None]
    told = status(
        7,
        {"mqtt": None, "mqtt_sessions": "no broker"},
        [Metric("a", "gauge", "A.", True, (("broker", "b"),)), Metric("b_total", "counter", "B.", 2)],
    )
    assert told.metrics[0].value == 1.0
    from_worker = [Listening(), Failed("why"), told]
    stream = reader(*(frame(message) for message in from_worker))
    assert [await read_from_worker(stream) for _ in range(4)] == [*from_worker, None]


@pytest.mark.parametrize("size", [0, 3, 4, 5])
async def test_a_frame_cut_short_is_the_end(size: int) -> None:
    assert await read_from_worker(reader(frame(Failed("reason"))[:size])) is None


def test_the_port_is_held_and_takes_no_connection() -> None:
    with hold_port("127.0.0.1", 0) as held:
        port = held.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)
        with socket.socket() as worker:
            worker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            worker.bind(("127.0.0.1", port))
            worker.listen()
            for _ in range(20):
                socket.create_connection(("127.0.0.1", port), 5).close()
            with pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{port} for MQTT"):
                hold_port("127.0.0.1", port)


def test_nothing_is_ready_before_the_start() -> None:
    workers = WorkerSupervisor(Config())
    assert workers.not_ready_reason == "no worker is ready"
    assert workers.not_alive_reason is None
    assert [metric.value for metric in workers.metrics()] == [0]


async def test_workers_that_end_at_once_without_a_word_fail_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    workers = WorkerSupervisor(config_from_table(table(workers=2, listen_port=0)))
    with pytest.raises(OSError, match=r"worker \d: it ended with code 1"):
        await workers.start()
    assert workers.not_ready_reason == "no worker is ready"


async def test_two_who_ask_at_once_share_the_answer() -> None:
    workers = WorkerSupervisor(Config())
    worker = supervisor._Worker(1, Config(), {})
    workers._workers.append(worker)
    ours, theirs = socket.socketpair()
    reading, writing = await asyncio.open_unix_connection(sock=theirs)
    told, worker._writer = await asyncio.open_unix_connection(sock=ours)
    hearing = asyncio.ensure_future(worker._listen(told))
    for _ in range(2):
        probes = [asyncio.ensure_future(workers.refresh()) for _ in range(3)]
        asked = await read_to_worker(reading)
        assert isinstance(asked, Ask)
        probes[0].cancel()
        writing.write(frame(status(asked.ask_id, {}, [])))
        assert await asyncio.gather(*probes[1:]) == [None, None]
        assert not worker.is_stuck
    # Another question would have come before the end.
    worker._writer.close()
    assert await read_to_worker(reading) is None
    writing.close()
    await hearing


async def test_an_answer_to_an_older_question_is_not_one_to_this(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_ANSWER_S", 0.01)
    worker = supervisor._Worker(1, Config(), {})
    ours, theirs = socket.socketpair()
    reading, writing = await asyncio.open_unix_connection(sock=theirs)
    told, worker._writer = await asyncio.open_unix_connection(sock=ours)
    hearing = asyncio.ensure_future(worker._listen(told))
    await worker.refresh()
    assert worker.is_stuck
    writing.write(frame(status(1, {}, [])))
    await soon(lambda: worker._status is not None, "the late answer")
    await worker.refresh()
    assert worker.is_stuck
    monkeypatch.undo()
    asking = asyncio.ensure_future(worker.refresh())
    asked = [await read_to_worker(reading) for _ in range(3)]
    assert asked == [Ask(1), Ask(2), Ask(3)]
    writing.write(frame(status(3, {}, [])))
    await asking
    assert not worker.is_stuck
    writing.close()
    await hearing
    worker._writer.close()


async def test_what_clients_read_below_sys_is_told_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_UNREAD_BYTES_MAX", 0)
    workers = WorkerSupervisor(Config())
    worker = supervisor._Worker(1, Config(), workers._shown)
    workers._workers.append(worker)
    workers.put("$SYS/a", "before it serves")
    workers.put("$SYS/b", "gone before it serves")
    workers.drop("$SYS/b")
    ours, theirs = socket.socketpair()
    reading, writing = await asyncio.open_unix_connection(sock=theirs)
    told, worker._writer = await asyncio.open_unix_connection(sock=ours)
    hearing = asyncio.ensure_future(worker._listen(told))
    writing.write(frame(Listening()))
    assert await read_to_worker(reading) == Show("$SYS/a", "before it serves")
    workers.put("$SYS/c", "now")
    workers.drop("$SYS/a")
    assert [await read_to_worker(reading) for _ in range(2)] == [Show("$SYS/c", "now"), Show("$SYS/a", None)]
    # One that does not read is told later how things are then.
    worker._writer.write(frame(Show("$SYS/large", "x" * 4_000_000)))
    for text in ("one", "two"):
        workers.put("$SYS/c", text)
    workers.drop("$SYS/d")
    refreshing = asyncio.ensure_future(workers.refresh())
    await read_to_worker(reading)
    asked = await read_to_worker(reading)
    assert isinstance(asked, Ask)
    writing.write(frame(status(asked.ask_id, {}, [])))
    await refreshing
    found = [await read_to_worker(reading) for _ in range(2)]
    assert sorted(found, key=str) == [Show("$SYS/c", "two"), Show("$SYS/d", None)]
    writing.close()
    await hearing
    worker._writer.close()


@pytest.mark.parametrize("more", [0, 1])
async def test_a_frame_at_the_limit_and_past_it(more: int) -> None:
    size = limits.WORKER_FRAME_BYTES_MAX + more
    cut = reader(size.to_bytes(4, "big") + b"x")
    if more:
        with pytest.raises(ValueError, match=str(size)):
            await read_to_worker(cut)
    else:
        assert await read_to_worker(cut) is None, "it has not come whole"


class _Topics:
    """The $SYS tree of a worker."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def put(self, topic: str, text: str) -> None:
        self.texts[topic] = text

    def drop(self, topic: str) -> None:
        del self.texts[topic]


class _Asked:
    """As much of a process as answers."""

    def __init__(self) -> None:
        self.is_broken = True
        self.sys_topics: _Topics | None = None

    def readiness(self) -> dict[str, str | None]:
        if self.is_broken:
            raise KeyError("nobody expected this")
        return {}

    def metrics(self) -> list[Metric]:
        return []


async def test_a_worker_answers_after_a_failure_and_ends_with_what_nobody_understands() -> None:
    ours, theirs = socket.socketpair()
    reading, writing = await asyncio.open_unix_connection(sock=theirs)
    reading_there, writing_there = await asyncio.open_unix_connection(sock=ours)
    asked, stop_asked = _Asked(), asyncio.Event()
    answering = asyncio.ensure_future(
        mqtt_worker._answer(asked, reading_there, writing_there, stop_asked)  # type: ignore[arg-type]
    )
    failures = FAILURES.count("answers to the supervisor")
    writing.write(frame(Ask(1)))
    await soon(lambda: FAILURES.count("answers to the supervisor") > failures, "the failure is counted")
    asked.is_broken = False
    writing.write(frame(Ask(2)))
    assert await read_from_worker(reading) == status(2, {}, [])
    assert not stop_asked.is_set()
    writing.write(frame(Show("$SYS/a", "too early")))
    writing.write(frame(Ask(3)))
    assert await read_from_worker(reading) == status(3, {}, [])
    asked.sys_topics = topics = _Topics()
    for topic, text in (("$SYS/a", "one"), ("$SYS/b", "two"), ("$SYS/a", None)):
        writing.write(frame(Show(topic, text)))
    writing.write(frame(Ask(4)))
    assert await read_from_worker(reading) == status(4, {}, [])
    assert topics.texts == {"$SYS/b": "two"}
    writing.write(b"\0\0\0\1\xc1")
    await answering
    assert stop_asked.is_set()
    writing.close()
    writing_there.close()


async def test_programs_that_are_not_there_fail_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    workers = WorkerSupervisor(config_from_table(table(workers=1, listen_port=0)))
    with pytest.raises(OSError, match=r"worker 1: .*No such file"):
        await workers.start()
    assert "cannot be looked after" in caplog.text


async def test_a_worker_that_keeps_ending_is_started_again_ever_less_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is told to stop while it starts ends with 0."""
    monkeypatch.setattr(sys, "executable", "/bin/true")
    monkeypatch.setattr(supervisor, "_RESTART_S_MIN", 0.001)
    monkeypatch.setattr(supervisor, "_RESTART_S_MAX", 0.016)
    workers = WorkerSupervisor(config_from_table(table(workers=1, listen_port=0)))
    starting = asyncio.ensure_future(workers.start())
    restarts = "iotmq_mqtt_worker_restarts_total"
    await soon(lambda: number(workers, restarts) >= 6, "it is started again")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    pauses = [record.pause_s for record in caplog.records if hasattr(record, "pause_s")]
    assert len(pauses) >= 6
    for pause_s, longest_s in zip(pauses, (0.001, 0.002, 0.004, 0.008, 0.016, 0.016), strict=False):
        assert longest_s / 2 <= pause_s + 0.0005
        assert pause_s <= longest_s + 0.0005
    assert number(workers, "iotmq_mqtt_workers") == 0


def number(workers: WorkerSupervisor, name: str) -> float:
    for worker in workers._workers:
        worker.check_invariants()
    return sum(metric.value for metric in workers.metrics() if metric.name == name)


def test_workers_share_what_names_without_a_user_are_asked_with() -> None:
    """A device may reach one worker after the other; see mqtt_front.access.scram.UnknownUsers."""
    mqtt = config_from_table(table()).mqtt
    made = [supervisor._with_secrets(mqtt) for _ in range(2)]
    for secrets in (
        {each.authentication.unknown_users_secret for each in made},
        {each.tls_ticket_secret for each in made},
    ):
        assert len(secrets) == 2
        assert "" not in secrets
    assert not any(each.tls_ticket_secret in repr(each) for each in made)
    given = config_from_table(
        table(authentication={"unknown_users_secret": "ours"}, tls_ticket_secret="ours, too")
    ).mqtt
    assert supervisor._with_secrets(given) == given


def test_what_a_worker_inherits_has_no_settings_and_no_secrets() -> None:
    config = config_from_table(table(broker_secret_key="hidden"))
    environment = {
        "PATH": "/bin",
        "ELSEWHERE": "hidden\n",
        "IOTMQ_MQTT__BROKER_SECRET_KEY": "{file = 'x'}",
        "IOTMQ_DATA": "data",
        "IOTMQ_ACCESS_KEY": "not a setting",
        "NEARLY": "hidden-not",
        "EMPTY": "",
    }
    left = supervisor._without_secrets(environment, config)
    assert left == {
        "PATH": "/bin", "IOTMQ_ACCESS_KEY": "not a setting", "NEARLY": "hidden-not", "EMPTY": "",
    }  # fmt: skip
