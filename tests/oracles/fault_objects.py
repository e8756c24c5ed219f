"""Clients that lock queues, and clients that replace and read values in the consensus store, for the history.

A client asks one member until that does not answer, as one does that knows an old route. It locks queues,
renews its locks, gives them back or forgets that it had them, and comes back under another name.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator
from typing import Final

from eventually import soon
from fault_cluster import FaultCluster
from fault_history import History
from fault_load import TOPIC
from linearizability import Call, Forget, Lock, Read, Replace, Unlock, Version
from replicated_cluster import BROKER, CLUSTER

from iotmq.clock import SystemClock
from iotmq.errors import ConnectionClosedError, ConsensusUnavailableError, RequestTimeoutError
from iotmq.remoting.codes import RequestCode, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.connection import ClientConnection
from iotmq.replication.consensus.etcd import EtcdStore
from iotmq.replication.consensus.settings import EtcdSettings

_CLIENTS: Final = 8
_QUEUES: Final = 4
_STORES: Final = 3
_PAUSE_S: Final = 0.2
_ANSWER_S: Final = 2.0
# What was not answered may wait with a stopped process, or on its way there. No fault lasts for so long.
_LATE_S: Final = 30.0
# Groups change, so that no history of a lock gets long; a lock that nobody renews runs out in between.
_GROUP_S: Final = 200.0


class ObjectLoad:
    """The clients; `running` begins and ends them."""

    def __init__(self, cluster: FaultCluster, history: History, source: random.Random) -> None:
        self._cluster = cluster
        self._settings = EtcdSettings(endpoints=tuple(cluster.etcd_urls), timeout_ms=1_000)
        self._history = history
        self._source = source
        self._begun_s = time.monotonic()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            work = [tasks.create_task(self._lock(number)) for number in range(_CLIENTS)]
            work += [tasks.create_task(self._replace(number)) for number in range(_STORES)]
            work.append(tasks.create_task(self._read_state()))
            try:
                yield
            finally:
                for task in work:
                    task.cancel()

    def note_restart(self, begun_s: float, end_s: float) -> None:
        """Note that a member was started, and may have been master without the locks before `end_s`."""
        for calls in self._history.locks.values():
            calls.append(Call("", begun_s, end_s, Forget(), is_answered=False))

    # Locks

    async def _lock(self, number: int) -> None:
        name, names_count = f"client-{number}-0", 0
        held: set[str] = set()
        connection: ClientConnection | None = None
        source = self._source
        while True:
            await asyncio.sleep(_PAUSE_S * (0.5 + source.random()))
            if connection is None or connection.is_closed:
                with contextlib.suppress(ConnectionClosedError):
                    address = source.choice(list(self._cluster.addresses.values()))
                    connection = await ClientConnection.connect(*address, timeout_s=1.0)
                continue
            chance = source.random()
            if held and chance < 0.03:
                # It is not seen again, and its locks run out.
                names_count += 1
                name, held = f"client-{number}-{names_count}", set()
            group = f"locks-{(time.monotonic() - self._begun_s) // _GROUP_S:.0f}"
            key = f"{group}/{source.randrange(_QUEUES)}"
            is_unlock = key in held and chance < 0.5
            call = await self._ask_for_lock(connection, name, key, is_unlock=is_unlock)
            self._history.locks[key].append(call)
            if not call.is_answered:
                connection.abort("no answer")
            elif call.result is True:
                held.add(key)
            else:
                held.discard(key)

    async def _ask_for_lock(
        self, connection: ClientConnection, name: str, key: str, *, is_unlock: bool
    ) -> Call:
        group, _, queue = key.partition("/")
        queues = [{"brokerName": BROKER, "topic": TOPIC, "queueId": int(queue)}]
        body = json.dumps({"clientId": name, "consumerGroup": group, "mqSet": queues}).encode()
        code = RequestCode.UNLOCK_BATCH_QUEUES if is_unlock else RequestCode.LOCK_BATCH_QUEUES
        action = Unlock(name) if is_unlock else Lock(name)
        begun_s = time.monotonic()
        answer: Command | None = None
        with contextlib.suppress(ConnectionClosedError, RequestTimeoutError):
            answer = await connection.request(Command.request(code, {}, body), timeout_s=_ANSWER_S)
        if answer is None or answer.code != ResponseCode.SUCCESS:
            return Call(name, begun_s, begun_s + _LATE_S, action, is_answered=False)
        result = None if is_unlock else bool(json.loads(answer.body_bytes())["lockOKMQSet"])
        return Call(name, begun_s, time.monotonic(), action, result)

    # The consensus store

    @contextlib.asynccontextmanager
    async def _store(self, broker: str) -> AsyncIterator[EtcdStore]:
        store = EtcdStore(self._settings, cluster=CLUSTER, broker=broker, clock=SystemClock())
        try:
            yield store
        finally:
            await store.close()

    async def _life(self) -> int:
        """Return which life of the consensus store this is; its data are others in each."""
        await soon(lambda: not self._cluster.restores_count % 2, "the consensus store is there", within_s=60)
        return self._cluster.restores_count

    def _is_alive(self, life: int) -> bool:
        return self._cluster.restores_count == life

    async def _replace(self, number: int) -> None:
        """Replace a value by another one that nobody else writes, with a version that may be outdated."""
        count = 0
        while True:
            life = await self._life()
            key = f"register-{life}"
            calls = self._history.registers[key]
            async with self._store(key) as store:
                version = 0
                while self._is_alive(life):
                    await asyncio.sleep(_PAUSE_S * (0.5 + self._source.random()))
                    read = await self._read(store, f"store-{number}", life)
                    if read is not None:
                        calls.append(read)
                        assert isinstance(read.result, Version)
                        version = read.result.number
                    count += 1
                    action = Replace(version, f"{number}/{count}".encode())
                    calls.append(await self._ask_to_replace(store, f"store-{number}", action, life))

    async def _ask_to_replace(self, store: EtcdStore, name: str, action: Replace, life: int) -> Call:
        begun_s = time.monotonic()
        with contextlib.suppress(ConsensusUnavailableError):
            if action.version:
                answer = await store.replace(action.version, action.value)
            else:
                answer = await store.create(action.value)
            if self._is_alive(life):
                return Call(name, begun_s, time.monotonic(), action, answer)
        return Call(name, begun_s, begun_s + _LATE_S, action, is_answered=False)

    async def _read_state(self) -> None:
        """Read what the members have recorded."""
        while True:
            life = await self._life()
            async with self._store(BROKER) as store:
                while self._is_alive(life):
                    await asyncio.sleep(_PAUSE_S / 3)
                    read = await self._read(store, "reader", life)
                    if read is not None:
                        self._history.states[life].append(read)

    async def _read(self, store: EtcdStore, client: str, life: int) -> Call | None:
        begun_s = time.monotonic()
        with contextlib.suppress(ConsensusUnavailableError):
            found = await store.read()
            if self._is_alive(life):
                result = Version(0, b"") if found is None else Version(*found)
                return Call(client, begun_s, time.monotonic(), Read(), result)
        return None
