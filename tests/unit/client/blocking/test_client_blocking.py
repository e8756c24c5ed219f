"""The blocking facade, from ordinary threads."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest
from eventually import STOP_S, until
from fake_broker import SILENT, FakeBroker, FakeRegistry

import iotmq
from iotmq.client import (
    ClientSettings,
    Message,
    MessageQueue,
    PoppedMessage,
    ProducerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
    ReceivedMessage,
    SyncAdmin,
    SyncClient,
    SyncPoppedMessage,
    SyncProducer,
    SyncPullConsumer,
    SyncPushConsumer,
    SyncTransactionProducer,
    TransactionState,
)
from iotmq.client.blocking import loop_thread
from iotmq.client.transport.client import ClientTransport
from iotmq.errors import (
    ClientClosedError,
    ClientError,
    ListenerError,
    ListenerTimeoutError,
    RequestTimeoutError,
)
from iotmq.message.records.record import encode_batch
from iotmq.remoting.codes import RequestCode


class BrokerThread:
    """A fake broker and registry on a loop of their own, as another process would be."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.run(self._start())

    async def _start(self) -> None:
        self.broker = FakeBroker()
        self.registry = FakeRegistry(self.broker)
        await self.broker.start()
        await self.registry.start()

    async def _stop(self) -> None:
        await self.broker.stop()
        await self.registry.stop()

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(5)

    def stop(self) -> None:
        self.run(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    thread = BrokerThread()
    thread.broker.add_topic("T", 2)
    thread.broker.registry_address = thread.registry.address  # type: ignore[attr-defined]
    yield thread.broker
    thread.stop()


@pytest.fixture
def client(broker: FakeBroker) -> Iterator[SyncClient]:
    with SyncClient(ClientSettings(registries=(broker.registry_address,))) as client:  # type: ignore[attr-defined]
        yield client


def test_produce_and_pull(client: SyncClient) -> None:
    with SyncProducer(client) as producer, SyncPullConsumer(client) as consumer:
        producer.send(Message("T", b"1"))
        assert producer.send_nowait(Message("T", b"2")).result(5).count == 1
        producer.send_oneway(Message("T", b"3"))
        producer.send_batch([Message("T", b"4"), Message("T", b"5")])
        queue = producer.queues("T")[0]
        producer.send_encoded_batch("T", queue, encode_batch([(b"6", b"", 0)]), 1)
        consumer.assign(consumer.queues("T"))
        got: set[bytes] = set()
        deadline_s = time.monotonic() + 5
        while len(got) < 6 and time.monotonic() < deadline_s:
            got.update(message.body for message in consumer.getmany())
        assert got == {b"1", b"2", b"3", b"4", b"5", b"6"}
        consumer.commit()
        assert consumer.committed(queue) == consumer.position(queue) == consumer.end_offset(queue)
        consumer.seek(queue, consumer.begin_offset(queue))
        result = consumer.getmany_columns()
        assert result is not None
        assert result[0] == queue
        assert set(consumer.positions()) == set(consumer.queues("T"))
        assert consumer.offset_at_time(queue, 0) == 0


def test_a_blocking_listener_does_not_stop_the_client(broker: FakeBroker, client: SyncClient) -> None:
    got: list[bytes] = []
    threads: set[str] = set()
    both = threading.Barrier(2, timeout=5)
    all_done = threading.Event()

    def listen(batch) -> None:
        # Two queues at once: this passes only when two threads are in here.
        both.wait()
        threads.add(threading.current_thread().name)
        got.extend(message.body for message in batch)
        if len(got) == 2:
            all_done.set()

    settings = PushConsumerSettings(consume_from="first", commit_ms=20)
    consumer = SyncPushConsumer(client, "cg", listen, settings=settings, threads=2)
    consumer.subscribe("T")
    with consumer, SyncProducer(client) as producer:
        assert len(consumer.assigned) == 2
        for queue in producer.queues("T"):
            producer.send(Message("T", b"%d" % queue.queue_id), queue=queue)
        assert all_done.wait(5)
    assert sorted(got) == [b"0", b"1"]
    assert len(threads) == 2
    assert all(name.startswith("iotmq-cg") for name in threads)
    assert {broker.offsets["cg", "T", number] for number in (0, 1)} == {1}


def test_a_listener_may_send_with_the_same_client(client: SyncClient) -> None:
    done = threading.Event()
    with SyncProducer(client) as producer:

        def listen(batch) -> None:
            producer.send_batch([Message("out", message.body) for message in batch])
            done.set()

        settings = PushConsumerSettings(consume_from="first")
        consumer = SyncPushConsumer(client, "cg", listen, settings=settings)
        consumer.subscribe("T")
        with consumer:
            producer.send(Message("T", b"x"))
            assert done.wait(5)


def test_columns_on_worker_threads(client: SyncClient) -> None:
    counts: list[int] = []
    done = threading.Event()

    def listen(_queue, columns) -> None:
        counts.append(len(columns))
        done.set()

    consumer = SyncPushConsumer(
        client, "cg", columns_listener=listen, settings=PushConsumerSettings(consume_from="first")
    )
    consumer.subscribe("T")
    with consumer, SyncProducer(client) as producer:
        producer.send(Message("T", b"x"))
        assert done.wait(5)
        consumer.unsubscribe("T")
    assert counts == [1]


def test_many_threads_share_one_producer(broker: FakeBroker, client: SyncClient) -> None:
    with SyncProducer(client) as producer, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: producer.send(Message("T", b"%d" % number)), range(200)))
    assert len(set(broker.stored_bodies("T"))) == 200


def test_errors_come_through(broker: FakeBroker, client: SyncClient) -> None:
    broker.script[RequestCode.SEND_MESSAGE_V2].append(SILENT)
    settings = ProducerSettings(send_timeout_ms=50)
    with SyncProducer(client, settings=settings) as producer, pytest.raises(RequestTimeoutError):
        producer.send(Message("T", b""))


def test_admin(client: SyncClient) -> None:
    admin = SyncAdmin(client)
    admin.create_topic("made", queues=2)
    assert "made" in admin.topics()
    queues = admin.queues("made")
    assert len(queues) == 2
    admin.set_group_offset("g", queues[0], 0)
    assert admin.group_offsets("g", "made") == {queues[0]: 0, queues[1]: None}
    assert {offsets.end for offsets in admin.offsets("made").values()} == {0}
    assert list(admin.brokers()) == ["broker-a"]


def test_misuse_is_named_instead_of_hanging(client: SyncClient) -> None:
    with pytest.raises(ClientClosedError, match=r"with iotmq\.connect_sync"):
        SyncProducer(SyncClient()).start()
    with pytest.raises(ClientError, match="at least 1"):
        SyncPushConsumer(client, "cg", lambda batch: None, threads=0)

    async def blocking_call() -> None:
        SyncAdmin(client).topics()

    with pytest.raises(ClientError, match="wait for itself forever"):
        client.run(blocking_call())


def test_every_public_name_of_an_asynchronous_class_is_there(client: SyncClient) -> None:
    for form in (
        SyncProducer,
        SyncPushConsumer,
        SyncPullConsumer,
        SyncTransactionProducer,
        SyncAdmin,
        SyncClient,
    ):
        asynchronous = form._of  # type: ignore[attr-defined]
        names = {name for name in dir(asynchronous) if name[0] != "_"}
        if form is SyncClient:
            names -= set(dir(ClientTransport)) - {"start", "stop", "is_running"}
        assert names <= set(dir(form))
        for name in names:
            assert not inspect.iscoroutinefunction(inspect.getattr_static(form, name))
            assert getattr(form, name).__doc__


def test_one_client_makes_all_parts_and_ends_them(broker: FakeBroker) -> None:
    got: list[bytes] = []
    has_two = threading.Event()

    def listen(messages: list[ReceivedMessage]) -> None:
        messages[0].in_progress()
        messages[0].ack()
        got.extend(message.body for message in messages)
        if len(got) >= 2:
            has_two.set()
        raise ValueError("after the acknowledgement")

    url = f"iotmq://{broker.registry_address}"  # type: ignore[attr-defined]
    with iotmq.connect_sync(url) as client:
        producer = client.producer()
        producer.start()
        settings = PushConsumerSettings(consume_from="first", batch_max=1)
        consumer = client.push_consumer("cg", listen, settings=settings, threads=1)
        consumer.subscribe("T")
        failures: list[str] = []
        told = threading.Event()

        def failed(error: ListenerError) -> None:
            failures.append(threading.current_thread().name)
            told.set()

        consumer.on_failure(failed)
        consumer.start()
        producer.send_nowait(Message("T", b"1")).result(5)
        producer.send(Message("T", b"2"))
        assert has_two.wait(5)
        assert told.wait(5)
        assert failures[0].startswith("iotmq-cg")
        assert "T" in client.admin.topics()
        assert {offsets.end for offsets in client.admin.offsets("T").values()} <= {0, 1, 2}
        assert producer.group == "DEFAULT_PRODUCER"
        assert producer.settings == ProducerSettings()
    assert sorted(got) == [b"1", b"2"]
    assert not client.is_running
    with pytest.raises(ClientClosedError):
        producer.send(Message("T", b"3"))


def test_a_rebalance_listener_is_called_on_a_worker_and_a_consumer_is_iterated(client: SyncClient) -> None:
    told: list[tuple[str, int, str]] = []

    class Queues:
        def assigned(self, queues: list[MessageQueue]) -> None:
            told.append(("assigned", len(queues), threading.current_thread().name))

        def revoked(self, queues: list[MessageQueue]) -> None:
            told.append(("revoked", len(queues), threading.current_thread().name))

    with client.producer() as producer:
        for number in range(3):
            producer.send(Message("T", b"%d" % number))
    consumer = client.pull_consumer("cg", PullConsumerSettings(consume_from="first"))
    consumer.subscribe("T")
    consumer.on_rebalance(Queues())
    with consumer:
        bodies = {message.body for _, message in zip(range(3), consumer, strict=False)}
    assert bodies == {b"0", b"1", b"2"}
    assert [(what, count) for what, count, _ in told] == [("assigned", 2), ("revoked", 2)]
    assert all(name.startswith("iotmq-") for _, _, name in told)


def test_a_part_may_be_started_again(client: SyncClient) -> None:
    executed: list[str] = []

    def execute(message_id: str) -> TransactionState:
        executed.append(threading.current_thread().name)
        return TransactionState.UNKNOWN

    producer = client.transaction_producer("tg", lambda _: TransactionState.UNKNOWN)
    for _ in range(2):
        with producer:
            transaction = producer.send_in_transaction(Message("T", b"x"), execute)
            assert type(transaction).__name__ == "SyncTransaction"
            assert transaction.state is TransactionState.UNKNOWN
            assert transaction.message_id == transaction.result.message_id
    assert len(executed) == 2
    assert all(name.startswith("iotmq-tg") for name in executed)


def test_functions_that_a_thread_cannot_call_are_refused(client: SyncClient) -> None:
    async def listen(messages: list[ReceivedMessage]) -> None: ...

    with pytest.raises(ClientError, match="coroutine function"):
        client.push_consumer("cg", listen)
    with pytest.raises(TypeError, match="no threads="):
        SyncProducer(client, "pg", threads=2)  # type: ignore[call-arg]
    with pytest.raises(AttributeError, match="no attribute 'connections'"):
        client.connections  # type: ignore[attr-defined]  # noqa: B018


def test_a_future_that_is_cancelled_wants_no_answer(broker: FakeBroker, client: SyncClient) -> None:
    broker.script[RequestCode.SEND_MESSAGE_V2].append(SILENT)
    with client.producer(settings=ProducerSettings(send_timeout_ms=60_000)) as producer:
        producer.queues("T")
        future = producer.send_nowait(Message("T", b""))
        assert future.cancel()
        # `stop` waits for what is in flight, which is nothing.
    assert producer.in_flight == 0


def test_stopping_twice_and_starting_twice_is_harmless(broker: FakeBroker) -> None:
    client = SyncClient(ClientSettings(registries=(broker.registry_address,)))  # type: ignore[attr-defined]
    client.start()
    client.start()
    client.stop()
    client.stop()


def test_several_objects_may_come_in_any_form(client: SyncClient) -> None:
    consumer = client.pop_consumer("pops")
    messages = [object.__new__(PoppedMessage) for _ in range(2)]
    forms = [SyncPoppedMessage._around(consumer, message) for message in messages]
    taken: list[tuple[PoppedMessage, ...]] = []

    async def ack(*messages: PoppedMessage) -> None:
        taken.append(messages)

    consumer.asynchronous._fetches.settling.ack = ack
    for given in (forms, tuple(forms), (form for form in forms), []):
        consumer.ack(given)
    assert taken == [tuple(messages)] * 3 + [()]


def test_a_call_may_come_inside_another_one_of_its_thread(
    broker: FakeBroker, client: SyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a handler of signals, or where an iterator that nobody has any more ends."""
    with client.pull_consumer() as consumer:
        broker.store("T", 0, b"1")
        consumer.assign(consumer.queues("T"))
        iterators = [iter(consumer)]
        assert next(iterators[0]).body == b"1"
        submit = asyncio.run_coroutine_threadsafe

        def interrupted(*args: Any) -> Any:
            if iterators:
                iterators.pop()
            return submit(*args)

        monkeypatch.setattr(loop_thread.asyncio, "run_coroutine_threadsafe", interrupted)
        calling = threading.Thread(target=client.admin.topics, daemon=True)
        calling.start()
        calling.join(STOP_S)
        assert not calling.is_alive()


def test_a_stop_inside_a_stop_of_the_same_thread_ends(client: SyncClient) -> None:
    run, is_inside = client._thread.run, []

    def interrupted(coroutine: Any) -> Any:
        if not is_inside:
            is_inside.append(True)
            client.stop()
        return run(coroutine)

    client._thread.run = interrupted  # type: ignore[method-assign]

    def stop() -> None:
        # What is left for it to do is over.
        with pytest.raises(ClientClosedError):
            client.stop()

    stopping = threading.Thread(target=stop, daemon=True)
    stopping.start()
    stopping.join(STOP_S)
    assert not stopping.is_alive()
    assert not client.is_running


def test_a_call_that_waits_when_the_client_stops_ends(client: SyncClient) -> None:
    raised: list[Exception] = []
    begun = threading.Event()

    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            client.run(long())
        except ClientClosedError as error:
            raised.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert begun.wait(STOP_S)
    client.stop()
    waiting.join(STOP_S)
    assert [str(error) for error in raised] == ["the client was stopped meanwhile"]


def test_a_stop_on_the_clients_own_thread_is_refused_and_stops_nothing(client: SyncClient) -> None:
    answers: SimpleQueue[Exception] = SimpleQueue()

    def stop(_: object) -> None:
        try:
            client.stop()
        except ClientError as error:
            answers.put(error)

    with client.producer() as producer:
        producer.send_nowait(Message("T", b"1")).add_done_callback(stop)
        assert "wait for itself forever" in str(answers.get(timeout=STOP_S))
        producer.send(Message("T", b"2"))


def test_a_listener_cannot_stop_what_calls_it_and_may_stop_other_parts(client: SyncClient) -> None:
    answers: SimpleQueue[str] = SimpleQueue()

    def listen(messages: list[ReceivedMessage]) -> None:
        for stop in (consumer.stop, client.stop):
            with pytest.raises(ClientError, match="would wait for itself"):
                stop()
        with client.producer() as producer:
            producer.send(Message("U", b""))
        answers.put("done")

    consumer = client.push_consumer("cg", listen, settings=PushConsumerSettings(consume_from="first"))
    consumer.subscribe("T")
    with consumer, client.producer() as producer:
        producer.send(Message("T", b"1"))
        assert answers.get(timeout=STOP_S) == "done"


def test_a_forked_process_is_told_to_connect_anew(client: SyncClient) -> None:
    client.admin.topics()
    child = os.fork()
    if child == 0:
        # Nothing but this may happen here: the child has the test run's threads and files.
        told = 0
        try:
            for call in (lambda: client.admin, client.stop):
                with pytest.raises(ClientError, match="connect there anew"):
                    call()
                told += 1
        finally:
            os._exit(told)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
    client.admin.topics()


def test_waiting_for_a_thread_is_not_the_listeners_time(broker: FakeBroker, client: SyncClient) -> None:
    for number in range(2):
        broker.store("T", number, b"%d" % number)
    at_work, failures = threading.Semaphore(0), SimpleQueue[ListenerError]()
    gate, done = threading.Event(), SimpleQueue[bytes]()

    def listen(messages: list[ReceivedMessage]) -> None:
        at_work.release()
        assert gate.wait(STOP_S)
        done.put(messages[0].body)

    settings = PushConsumerSettings(consume_from="first", listener_timeout_ms=100)
    consumer = client.push_consumer("cg", listen, settings=settings, threads=1)
    consumer.on_failure(failures.put)
    consumer.subscribe("T")
    with consumer:
        assert at_work.acquire(timeout=STOP_S)
        # The first one has hung too long; the other one has not begun, and so has not failed.
        first = run_until(client, lambda: broker.given_back)
        assert len(first) == 1
        gate.set()
        assert at_work.acquire(timeout=STOP_S)
        assert {done.get(timeout=STOP_S), done.get(timeout=STOP_S)} == {b"0", b"1"}
        assert isinstance(failures.get(timeout=STOP_S), ListenerTimeoutError)
        assert failures.empty()
    assert sum(broker.given_back.values()) == 1


def run_until(client: SyncClient, condition):
    """Wait on the client's thread until something is so; returns it."""

    async def wait():
        await until(condition)
        return condition()

    return client.run(wait())


def test_a_client_that_was_stopped_says_so(broker: FakeBroker) -> None:
    client = SyncClient(ClientSettings(registries=(broker.registry_address,)))  # type: ignore[attr-defined]
    for _ in range(2):
        with client:
            client.admin.topics()
        with pytest.raises(ClientClosedError, match="make another one"):
            client.start()
        assert not client.is_running
        with pytest.raises(ClientClosedError):
            client.admin.topics()
        client = SyncClient(client.settings)


def test_a_process_that_ends_without_a_stop_fails_no_messages(broker: FakeBroker) -> None:
    for number in range(10):
        broker.store("T", number % 2, b"%d" % number)
    program = """if True:
        import concurrent.futures.thread, sys, threading, time
        import iotmq
        from iotmq.client import PushConsumerSettings
        begun = threading.Semaphore(0)
        def listen(messages):
            begun.release()
            # Set by the interpreter as it ends, which tells nobody in a worker thread.
            while not concurrent.futures.thread._shutdown:
                time.sleep(0.005)
            if messages[0].queue.queue_id == 1:
                # The process waits for this one, and its client runs meanwhile.
                time.sleep(0.2)
        settings = PushConsumerSettings(consume_from="first", batch_max=1, local_retry_ms=1)
        client = iotmq.connect_sync(sys.argv[1])
        client.start()
        consumer = client.push_consumer("cg", listen, settings=settings)
        consumer.subscribe("T")
        consumer.start()
        begun.acquire()
        begun.acquire()
        """
    url = f"iotmq://{broker.registry_address}"  # type: ignore[attr-defined]
    result = subprocess.run(
        [sys.executable, "-c", program, url], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert broker.given_back == {}


def test_what_a_function_told_about_failures_raises_is_logged(
    broker: FakeBroker, client: SyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    broker.store("T", 0, b"")

    def failed(error: ListenerError) -> None:
        raise ValueError("of the function that is told")

    consumer = client.push_consumer(
        "cg", lambda messages: 1 / 0, settings=PushConsumerSettings(consume_from="first")
    )
    consumer.on_failure(failed)
    consumer.subscribe("T")
    with consumer:
        run_until(client, lambda: broker.given_back)
    assert "the function told about failures of group cg failed" in caplog.text
