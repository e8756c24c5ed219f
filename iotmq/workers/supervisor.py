"""Start workers that share their MQTT ports, and restart those that end.

The kernel gives each new connection to one of the workers (SO_REUSEPORT). Nothing else is shared: every
worker has its own connections to the brokers and its own name there, so what one of them does, or dies of, is
what a front end on another machine would do. The supervisor serves no device; it answers for all of them on
one HTTP port, and starts a worker again that ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from iotmq.backoff import Backoff
from iotmq.config.config import Config, is_variable_of_setting
from iotmq.config.setting_text import secrets_of
from iotmq.metrics import Metric, samples
from iotmq.mqtt_front.listen.listeners import cannot_listen, network_address
from iotmq.mqtt_front.settings.listeners import WORKER_PLACE, ListenerSettings
from iotmq.mqtt_front.settings.mqtt import MqttSettings
from iotmq.secret_text import Secret
from iotmq.workers.channel import Ask, Begin, Failed, Listening, Show, Status, frame, read_from_worker

logger = logging.getLogger("iotmq.workers")

# Pauses before a worker that ended is started again; the first of them after one that ran for long.
_RESTART_S_MIN: Final = 0.1
_RESTART_S_MAX: Final = 10.0
_RAN_LONG_S: Final = 10.0
# A worker whose loop turns answers at once.
_ANSWER_S: Final = 1.0
# Workers have less to stop (assembly.Process) and need a moment to be gone.
_STOP_S: Final = 1.7
# With so much unread a worker is told no more than names, and the rest when it answers again.
_UNREAD_BYTES_MAX: Final = 256 * 1024


class WorkerSupervisor:
    """A role: `start()` returns when all workers serve, `stop()` when none is left.

    `start` raises OSError when the address is taken or a worker cannot start.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._held_ports: list[socket.socket] = []
        self._workers: list[_Worker] = []
        # While the workers are being asked how they are.
        self._refreshing: asyncio.Future[list[None]] | None = None
        self.addresses: dict[str, str] = {}
        """As server.MqttFront.addresses; known once `start` was called."""
        # What clients of all workers read below $SYS/, by topic.
        self._shown: dict[str, str] = {}

    async def start(self) -> None:
        mqtt = _with_secrets(self._config.mqtt)
        base = mqtt.name or f"{socket.gethostname()}:{os.getpid()}"
        try:
            mqtt = self._hold_ports(mqtt)
            for number in range(1, mqtt.workers + 1):
                own = _of_worker(msgspec.structs.replace(mqtt, name=f"{base}-{number}"), number)
                config = msgspec.structs.replace(self._config, mqtt=own)
                self._workers.append(_Worker(number, config, self._shown))
            await asyncio.gather(*(worker.start() for worker in self._workers))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Have all workers stop at once; those that take too long are killed."""
        try:
            await asyncio.gather(*(worker.stop() for worker in self._workers))
        finally:
            for worker in self._workers:
                worker.kill()
            for held in self._held_ports:
                held.close()
            self._held_ports.clear()

    def put(self, topic: str, text: str) -> None:
        """Have clients of all workers read a text at a topic below $SYS/, also of those to come."""
        self._shown[topic] = text
        for worker in self._workers:
            worker.show(topic, text)

    def drop(self, topic: str) -> None:
        """Forget a text of `put`."""
        self._shown.pop(topic, None)
        for worker in self._workers:
            worker.show(topic, None)

    def _hold_ports(self, mqtt: MqttSettings) -> MqttSettings:
        """Return the settings with the ports that are held now, where they asked for any free one."""
        held: list[ListenerSettings] = []
        for listener in mqtt.all_listeners:
            if listener.is_on_network:
                holder = hold_port(listener.listen_host, listener.listen_port)
                self._held_ports.append(holder)
                port = int(holder.getsockname()[1])
                listener = msgspec.structs.replace(listener, listen_port=port)
            self.addresses[listener.name] = listener.shown_address
            held.append(listener)
        first = held.pop(0).listen_port if mqtt.tcp_enabled else mqtt.listen_port
        return msgspec.structs.replace(mqtt, listen_port=first, listeners=tuple(held))

    async def refresh(self) -> None:
        """Ask every worker how it is; one that does not answer within a second is shown as it is."""
        if self._refreshing is None:
            self._refreshing = asyncio.gather(*(worker.refresh() for worker in self._workers))
            self._refreshing.add_done_callback(self._refreshed)
        # Whoever asks meanwhile shares it, and one who gives up takes it from nobody.
        await asyncio.shield(self._refreshing)

    def _refreshed(self, _: asyncio.Future[list[None]]) -> None:
        self._refreshing = None

    @property
    def not_ready_reason(self) -> str | None:
        """Return why no worker serves devices; None while one does, as of the last refresh."""
        reasons = self.worker_states().values()
        return None if any(reason is None for reason in reasons) else "no worker is ready"

    def worker_states(self) -> Mapping[str, str | None]:
        """Return why each worker is not ready, None for those that are."""
        return {f"worker-{worker.number}": worker.not_ready_reason for worker in self._workers}

    @property
    def not_alive_reason(self) -> str | None:
        """Return why the process is not alive: a worker runs and does not answer; else None."""
        stuck = [str(worker.number) for worker in self._workers if worker.is_stuck]
        return f"workers that do not answer: {', '.join(stuck)}" if stuck else None

    def metrics(self) -> Iterable[Metric]:
        """Of the workers together, and all of each worker's with its number as a label."""
        running = sum(worker.is_running for worker in self._workers)
        yield from samples(("iotmq_mqtt_workers", "Worker processes that run.", running))
        for worker in self._workers:
            labels = (("worker", str(worker.number)),)
            yield from samples(
                (
                    "iotmq_mqtt_worker_ready",
                    "1 while the worker serves devices.",
                    worker.not_ready_reason is None,
                ),
                (
                    "iotmq_mqtt_worker_restarts_total",
                    "Times the worker was started again because it had ended.",
                    worker.restarts_total,
                ),
                labels=labels,
            )
            for metric in worker.shown_metrics:
                yield metric._replace(labels=(*metric.labels, *labels))


class _Worker:
    """One place among the workers, and the process that has it now."""

    def __init__(self, number: int, config: Config, shown: Mapping[str, str]) -> None:
        self.number = number
        self._shown = shown
        # Topics of `shown` that it was not told of, because it did not read.
        self._untold: set[str] = set()
        self._begin = Begin(number, config)
        self._backoff = Backoff(min_s=_RESTART_S_MIN, max_s=_RESTART_S_MAX)
        self._task: asyncio.Task[None] | None = None
        # Set while a process runs.
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._failed_reason: str | None = None
        self._listening = asyncio.Event()
        # The last question, and who waits for its answer while somebody does.
        self._ask_id = 0
        self._answered: asyncio.Future[None] | None = None
        self._status: Status | None = None
        self._is_stopping = False
        self.is_stuck = False
        """Whether it runs and has not answered the last question."""
        self.restarts_total = 0

    async def start(self) -> None:
        """Returns when it serves devices; OSError when it says that it cannot."""
        self._task = asyncio.ensure_future(self._keep_running())
        listening = asyncio.ensure_future(self._listening.wait())
        try:
            await asyncio.wait((self._task, listening), return_when=asyncio.FIRST_COMPLETED)
        finally:
            listening.cancel()
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        """Stop the process with SIGTERM, and with SIGKILL after _STOP_S."""
        self._is_stopping = True
        if self._process is not None:
            # One that has just ended cannot be told; its task is about to see it.
            if self._process.returncode is None:
                self._process.terminate()
        elif self._task is not None:
            # It waits to be started again.
            self._task.cancel()
        if self._task is not None:
            done, _ = await asyncio.wait((self._task,), timeout=_STOP_S)
            if not done:
                logger.warning("a worker did not stop in time", extra={"worker": self.number})
                self.kill()
                await asyncio.wait((self._task,), timeout=_STOP_S)

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def refresh(self) -> None:
        writer = self._writer
        if writer is None:
            return
        self._ask_id += 1
        self._answered = asyncio.get_running_loop().create_future()
        try:
            writer.write(frame(Ask(self._ask_id)))
            async with asyncio.timeout(_ANSWER_S):
                await self._answered
            self.is_stuck = False
            self._show_untold()
        except TimeoutError:
            self.is_stuck = self._writer is writer
        finally:
            self._answered = None

    def show(self, topic: str, text: str | None) -> None:
        """Have its clients read a text at a topic; None: nothing any more."""
        if self._writer is None:
            # It is told everything when it serves.
            return
        if self._writer.transport.get_write_buffer_size() > _UNREAD_BYTES_MAX:
            self._untold.add(topic)
            return
        self._writer.write(frame(Show(topic, text)))

    def _show_untold(self) -> None:
        untold, self._untold = self._untold, set()
        for topic in untold:
            self.show(topic, self._shown.get(topic))

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def not_ready_reason(self) -> str | None:
        if self._process is None:
            return self._failed_reason or "not running"
        if self.is_stuck:
            return "it does not answer"
        if self._status is None:
            return "starting"
        return "; ".join(f"{part}: {reason}" for part, reason in self._status.parts.items() if reason) or None

    @property
    def shown_metrics(self) -> Iterable[Metric]:
        """As it was when last asked; none of a process that has ended."""
        return () if self._status is None else self._status.metrics

    async def _keep_running(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            code: int | None = None
            try:
                code = await self._run()
            except Exception as error:
                # No process could be made, or it says what nobody understands: with others that may pass.
                logger.exception("a worker cannot be looked after", extra={"worker": self.number})
                self._failed_reason = str(error)
            if self._is_stopping:
                return
            if code is not None and code > 0 and self._failed_reason is None:
                self._failed_reason = f"it ended with code {code}; see its standard error for the reason"
            if self._failed_reason is not None and not self._listening.is_set():
                # The first start: an operator who has made a mistake is told of it.
                raise OSError(f"worker {self.number}: {self._failed_reason}")
            if loop.time() - began_s >= _RAN_LONG_S:
                self._backoff.reset()
            pause_s = self._backoff.next_s()
            logger.warning(
                "a worker ended and is started again",
                extra={
                    "worker": self.number,
                    "code": code,
                    "pause_s": round(pause_s, 3),
                    "detail": self._failed_reason,
                },
            )
            await asyncio.sleep(pause_s)
            self.restarts_total += 1

    async def _run(self) -> int:
        """One life of the process; its exit code."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    # Without -P a file in the working directory could stand for a module.
                    *(sys.executable, "-P", "-m", "iotmq.commands.mqtt_worker", str(self.number)),
                    stdin=theirs.fileno(),
                    env=_without_secrets(os.environ, self._begin.config),
                )
        except BaseException:
            ours.close()
            raise
        self._process = process
        self._failed_reason = None
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            writer.write(frame(self._begin))
            self._writer = writer
            if self._is_stopping:
                process.terminate()
            await self._listen(reader)
            return await process.wait()
        finally:
            writer.close()
            if process.returncode is None:
                process.kill()
            self._process = self._writer = self._status = None
            self.is_stuck = False
            self._tell()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while True:
            message = await read_from_worker(reader)
            if message is None:
                return
            if isinstance(message, Listening):
                self._listening.set()
                self._untold = set(self._shown)
                self._show_untold()
            elif isinstance(message, Failed):
                self._failed_reason = message.reason
            else:
                self._status = message
                if message.ask_id == self._ask_id:
                    self._tell()

    def check_invariants(self) -> None:
        """Assert what must always be true; for tests."""
        assert self._writer is None or self._process is not None, "nobody reads what is written"
        assert self._process is not None or self._status is None, "nobody has said that"
        assert self._process is not None or not self.is_stuck, "only what runs can be stuck"
        assert self._status is None or self._status.ask_id <= self._ask_id, "an answer before its question"

    def _tell(self) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(None)


def _of_worker(mqtt: MqttSettings, number: int) -> MqttSettings:
    """Return the settings with the sockets that are one worker's own."""
    listeners = tuple(
        msgspec.structs.replace(listener, socket_path=listener.socket_path.replace(WORKER_PLACE, str(number)))
        for listener in mqtt.listeners
    )
    return msgspec.structs.replace(mqtt, listeners=listeners)


def _with_secrets(mqtt: MqttSettings) -> MqttSettings:
    """Workers pretend the same salts for names without a user, and take each other's TLS sessions up again: a
    device may come to one after the other."""
    own = mqtt.authentication.unknown_users_secret or Secret(secrets.token_hex(32))
    return msgspec.structs.replace(
        mqtt,
        authentication=msgspec.structs.replace(mqtt.authentication, unknown_users_secret=own),
        tls_ticket_secret=mqtt.tls_ticket_secret or Secret(secrets.token_hex(32)),
    )


def _without_secrets(environment: Mapping[str, str], config: Config) -> dict[str, str]:
    """Return the environment for a worker, which gets its secrets through its channel and not to be read."""
    secrets_read = {text for _, _, text in secrets_of(config)}
    return {
        name: value
        for name, value in environment.items()
        if not (is_variable_of_setting(name) or value.rstrip("\r\n") in secrets_read)
    }


def hold_port(host: str, port: int) -> socket.socket:
    """A socket that keeps the port for the workers, and takes no connection, because it does not listen.

    OSError when somebody else listens there: with SO_REUSEPORT alone that would go unnoticed, and half of
    the devices would be somebody else's.
    """
    family, kind, protocol, address = network_address(host, port)
    held = socket.socket(family, kind, protocol)
    try:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(address)
    except OSError as error:
        held.close()
        raise cannot_listen(host, port, error) from error
    return held
