"""Carry commands over a native connection, at both ends: bytes to commands, answers, batched writes."""

from __future__ import annotations

import asyncio
import socket
from typing import Final, cast

from iotmq.errors import ConnectionClosedError, RequestError, RequestTimeoutError
from iotmq.event_loop import LoopSlice
from iotmq.limits import REQUESTS_IN_FLIGHT_MAX, UNFINISHED_FRAMES_BYTES_MAX, WRITE_BUFFER_BYTES_MAX
from iotmq.remoting.codes import Flag, ResponseCode
from iotmq.remoting.command import Command
from iotmq.remoting.frames.frame import FrameReader, Item, Run, decode_one, encode
from iotmq.remoting.traffic import Traffic

# States of TCP: there is no connection any more, and the peer sends nothing more.
_PEER_HAS_LEFT: Final = (7, 8)

# Above the high mark the transport reports congestion, and a server stops reading from the peer.
_HIGH_WATER_BYTES: Final = 1024 * 1024
_LOW_WATER_BYTES: Final = 256 * 1024
# An unfinished frame up to this size is never held against its sender.
_UNFINISHED_BYTES_FREE: Final = 64 * 1024
_REMARK_CHARACTERS_MAX: Final = 200
_OPAQUE_MAX: Final = 2**31 - 1


class Channel(asyncio.Protocol):
    """One native connection on the event loop; ServerConnection and ClientConnection say what it is for.

    Everything sent within one `data_received`, and everything sent outside it within one turn of the loop,
    leaves in one write. All methods belong to the loop's thread.

    A channel that `holds_back` (a server's) stops reading and answering while its peer does not take the
    answers; one that does not (a client's) always reads, or two of them could wait for each other forever.
    """

    __slots__ = (
        "_backlog",
        "_drain_waiters",
        "_holds_back",
        "_is_backlog_scheduled",
        "_is_ending",
        "_is_flush_scheduled",
        "_is_paused",
        "_is_receiving",
        "_loop",
        "_next_opaque",
        "_out",
        "_out_has_views",
        "_out_size",
        "_pending",
        "_reader",
        "_requests_held",
        "_run_at",
        "_scanned_size",
        "_traffic",
        "_transport",
        "_unfinished_size",
        "_write_buffer_bytes_max",
        "close_reason",
        "is_active",
        "is_closed",
        "is_congested",
        "peer",
    )

    def __init__(
        self,
        traffic: Traffic,
        *,
        write_buffer_bytes_max: int = WRITE_BUFFER_BYTES_MAX,
        holds_back: bool,
        takes_runs: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._traffic = traffic
        self._write_buffer_bytes_max = write_buffer_bytes_max
        self._holds_back = holds_back
        self._reader = FrameReader(takes_runs=takes_runs)
        # Set by connection_made, which the transport calls before anything else.
        self._transport: asyncio.Transport | None = None
        self.peer: tuple[str, int] = ("", 0)
        # Buffers to be written at the next flush.
        self._out: list[bytes | memoryview] = []
        self._out_size = 0
        self._out_has_views = False
        self._is_flush_scheduled = False
        self._is_receiving = False
        # Our requests that wait for an answer, by opaque.
        self._pending: dict[int, tuple[asyncio.Future[Command], asyncio.TimerHandle | None]] = {}
        self._next_opaque = 0
        # The peer's requests that were taken and not answered yet.
        self._requests_held = 0
        # Commands received but not looked at, because the peer does not take its answers, or because they are
        # more than its share of a turn; of the first, if that is a run, so many requests were answered.
        self._backlog: list[Item] = []
        self._run_at = 0
        self._is_backlog_scheduled = False
        # The peer has ended the connection, and what it sent before is still being taken.
        self._is_ending = False
        self._drain_waiters: list[asyncio.Future[None]] = []
        # True once close() was called or the peer left: nothing more is sent.
        self.is_closed = False
        # Nothing is read, by the wish of the owner.
        self._is_paused = False
        # Why we ended it; empty while open and when the peer did.
        self.close_reason = ""
        # True while the transport holds more than the peer takes.
        self.is_congested = False
        # Something was received whole or could be sent since the last idle scan.
        self.is_active = True
        # What of `traffic.unfinished_bytes` is ours.
        self._unfinished_size = 0
        # What the transport still held at the last idle scan.
        self._scanned_size = 0

    # What a subclass adds.

    def _on_request(self, request: Command) -> Command | None:
        raise NotImplementedError

    def _on_run(self, run: Run, at: int) -> int:
        """Take requests of a run from number `at` on; the number of the first for `_on_request`."""
        raise NotImplementedError

    def _on_opened(self) -> None:
        """Handle the opened transport."""

    def _on_lost(self) -> None:
        """Handle the end of the connection; nothing can be sent any more."""

    # Sending.

    def reply(self, response: Command) -> None:
        """Answer a request that was held; silently dropped when the connection has ended meanwhile."""
        if response.flag & Flag.ONEWAY:
            return
        if self._requests_held:
            self._requests_held -= 1
        self._send(response)

    def send_encoded(self, answers: bytes) -> None:
        """Send answers that were encoded elsewhere, to requests that did not wait."""
        if not self.is_closed:
            self._out.append(answers)
            self._out_size += len(answers)
            self._flush_soon()

    def send_views(self, header: bytes, views: list[memoryview], size: int, *, held: int = 0) -> None:
        """Send an answer of `size` bytes that was encoded elsewhere; `views` must not change any more.

        `held` requests waited for it.
        """
        self._requests_held = max(self._requests_held - held, 0)
        if self.is_closed:
            return
        self._out.append(header)
        self._out += views
        self._out_has_views = True
        self._out_size += size
        if self._out_size > self._write_buffer_bytes_max:
            self._flush()
        else:
            self._flush_soon()

    def hold(self, count: int) -> None:
        """Count requests whose answers come later, by `reply_encoded`."""
        self._requests_held += count

    def reply_encoded(self, answers: bytes, count: int) -> None:
        """Answer requests that were held; silently dropped when the connection has ended meanwhile."""
        self._requests_held = max(self._requests_held - count, 0)
        self.send_encoded(answers)

    def send_oneway(self, command: Command) -> None:
        """Send a request nobody answers; dropped when the connection has ended."""
        command.flag |= Flag.ONEWAY
        command.opaque = self._allocate_opaque()
        self._send(command)

    def request(self, command: Command, timeout_s: float = 3.0) -> asyncio.Future[Command]:
        """Send a request; the future ends with the response, RequestTimeoutError or ConnectionClosedError.

        ValueError when the command does not fit a frame.
        """
        return self._request(command, timeout_s)

    def request_nowait(self, command: Command) -> asyncio.Future[Command]:
        """`request` without a time limit: the future ends with the response or ConnectionClosedError."""
        return self._request(command, None)

    async def drain(self) -> None:
        """Wait until the peer has taken most of what was sent; ConnectionClosedError when it left."""
        self._flush()
        if self.is_closed:
            raise ConnectionClosedError("the connection is closed")
        if self.is_congested:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._drain_waiters.append(waiter)
            await waiter

    @property
    def unsent_bytes(self) -> int:
        """Return the bytes sent here that the system has not taken yet."""
        return self._out_size + (0 if self._transport is None else self._transport.get_write_buffer_size())

    @property
    def requests_held(self) -> int:
        """Return how many of the peer's requests wait for an answer."""
        return self._requests_held

    def pause(self) -> None:
        """Read nothing more, so that the peer waits, until `resume`."""
        self._is_paused = True
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again after `pause`."""
        if self._is_paused:
            self._is_paused = False
            if not self._backlog and not self.is_congested:
                self._read_again()

    def take_activity(self) -> bool:
        """Return whether a whole command came, or the peer took bytes, since the last call."""
        size = 0 if self._transport is None else self._transport.get_write_buffer_size()
        is_active = self.is_active or size != self._scanned_size
        self.is_active = False
        self._scanned_size = size
        return is_active

    @property
    def has_peer_left(self) -> bool:
        """Return whether the peer has ended the connection, which is not noticed while nothing is read.

        False where the system does not tell.
        """
        found: socket.socket | None = None
        if self._transport is not None:
            found = self._transport.get_extra_info("socket")
        if found is None or not hasattr(socket, "TCP_INFO"):
            return self.is_closed
        return found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _PEER_HAS_LEFT

    def abort(self, reason: str) -> None:
        """End the connection now; what was not written is lost."""
        self._stop_sending(reason)
        if self._transport is not None:
            self._transport.abort()

    def _close(self, reason: str) -> None:
        """End the connection once everything sent so far is written."""
        if self.is_closed:
            return
        self._flush()
        self._stop_sending(reason)
        if self._transport is not None:
            self._transport.close()

    def _stop_sending(self, reason: str) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.close_reason = reason
        self._out.clear()
        self._out_size = 0

    def _request(self, command: Command, timeout_s: float | None) -> asyncio.Future[Command]:
        future: asyncio.Future[Command] = self._loop.create_future()
        if self.is_closed:
            _fail(future, ConnectionClosedError(f"the connection to {self._peer_text()} is closed"))
            return future
        opaque = command.opaque = self._allocate_opaque()
        self._send(command)
        timer = None if timeout_s is None else self._loop.call_later(timeout_s, self._time_out, opaque)
        self._pending[opaque] = (future, timer)
        return future

    def _allocate_opaque(self) -> int:
        opaque = self._next_opaque
        while opaque in self._pending:
            opaque = (opaque + 1) & _OPAQUE_MAX
        self._next_opaque = (opaque + 1) & _OPAQUE_MAX
        return opaque

    def _send(self, command: Command) -> None:
        if self.is_closed:
            return
        try:
            buffers = encode(command)
        except ValueError as error:
            if not command.is_response:
                raise
            # Ours alone: the requester gets an answer instead of a timeout.
            self._traffic.handler_failed(command.code, error)
            command.body, command.ext = b"", {}
            command.code = ResponseCode.SYSTEM_ERROR
            command.remark = str(error)[:_REMARK_CHARACTERS_MAX]
            buffers = encode(command)
        if len(buffers) == 1:
            self._out.append(buffers[0])
            self._out_size += len(buffers[0])
        else:
            self._out += buffers
            self._out_has_views = True
            for buffer in buffers:
                self._out_size += buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)
            # Many large answers in one turn must not escape the limit.
            if self._out_size > self._write_buffer_bytes_max:
                self._flush()
                return
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_receiving and not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        self._is_flush_scheduled = False
        self._flush()

    def _flush(self) -> None:
        out = self._out
        transport = self._transport
        if not out or transport is None:
            return
        self._traffic.bytes_sent += self._out_size
        self._out = []
        self._out_size = 0
        if self._out_has_views:
            self._out_has_views = False
            transport.writelines(out)
        else:
            transport.write(out[0] if len(out) == 1 else b"".join(out))
        if self.is_congested:
            if transport.get_write_buffer_size() > self._write_buffer_bytes_max:
                self._traffic.closed["slow"] += 1
                self._traffic.warn(
                    "connection closed", self.peer, "slow", "the peer does not read what it asked for"
                )
                self.abort("slow")
        else:
            self.is_active = True

    # Receiving: called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport without being one.
        self._transport = transport = cast(asyncio.Transport, transport)
        transport.set_write_buffer_limits(_HIGH_WATER_BYTES, _LOW_WATER_BYTES)
        address = transport.get_extra_info("peername")
        if isinstance(address, tuple):
            self.peer = (str(address[0]), int(address[1]))
        self._on_opened()

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        reader = self._reader
        traffic = self._traffic
        traffic.bytes_received += len(data)
        reader.receive_data(data)
        items = reader.items_received()
        if items:
            self.is_active = True
            if self._backlog:
                self._backlog += items
            elif len(items) == 1:
                self._process_one(items[0])
            else:
                self._process(items)
        if reader.pending_size != self._unfinished_size:
            self._count_unfinished(reader.pending_size)
        if reader.frames_ignored:
            traffic.frames_ignored += reader.frames_ignored
            reader.frames_ignored = 0
        if reader.error is not None and not self.is_closed and not self._is_backlog_scheduled:
            self._end_malformed()

    def eof_received(self) -> bool:
        # By TLS it may come with the last commands, before the turns in which these would be taken, and the
        # transport takes no answer after this.
        if self._backlog and not self.is_congested and not self.is_closed:
            self._process(self._backlog)
        self._reader.receive_eof()
        if self._backlog and not self.is_congested and not self.is_closed:
            self._stop_sending("")
            self._is_ending = True
            self._loop.call_soon(self._process_left)
        elif self._reader.error is not None and not self.is_closed:
            self._end_malformed()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_sending("")
        pending, self._pending = self._pending, {}
        for future, timer in pending.values():
            if timer is not None:
                timer.cancel()
            _fail(future, ConnectionClosedError(f"the connection to {self._peer_text()} ended"))
        for waiter in self._drain_waiters:
            if not waiter.done():
                waiter.set_exception(ConnectionClosedError("the connection ended"))
        self._drain_waiters.clear()
        self._traffic.unfinished_bytes -= self._unfinished_size
        self._unfinished_size = 0
        self._transport = None
        if not self._is_ending:
            self._backlog.clear()
            self._on_lost()

    def pause_writing(self) -> None:
        self.is_congested = True
        if self._holds_back and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.is_congested = False
        self.is_active = True
        if self._holds_back:
            if self._backlog:
                self._schedule_backlog()
            else:
                self._read_again()
        for waiter in self._drain_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._drain_waiters.clear()

    def _process_one(self, item: Item) -> None:
        """`_process` for what most clients send: one request, or a run of them, and then wait."""
        self._is_receiving = True
        try:
            if not isinstance(item, Command):
                at = self._answer_run(item, 0, None)
                if at < item.count:
                    self._backlog, self._run_at = [item], at
            elif item.flag & Flag.RESPONSE:
                self._finish(item)
            else:
                self._answer(item)
        finally:
            self._is_receiving = False
        self._flush()
        if self._backlog:
            self._leave_backlog()

    def _process(self, items: list[Item]) -> None:
        """Take commands, and leave what is past the peer's share of the turn, or what it does not take."""
        # Who asked takes the answers.
        turn = LoopSlice() if self._holds_back else None
        place = 0
        self._is_receiving = True
        try:
            while place < len(items) and (turn is None or turn.take()):
                item = items[place]
                if not isinstance(item, Command):
                    at, self._run_at = self._run_at, 0
                    at = self._answer_run(item, at, turn)
                    if at < item.count:
                        self._run_at = at
                        break
                elif item.flag & Flag.RESPONSE:
                    self._finish(item)
                else:
                    self._answer(item)
                place += 1
                if self._out_size > _HIGH_WATER_BYTES:
                    self._flush()
                    if self.is_congested and self._holds_back:
                        break
                if self.is_closed and not self._is_ending:
                    return
        finally:
            self._is_receiving = False
        self._backlog = items[place:]
        self._flush()
        if self._backlog:
            self._leave_backlog()

    def _leave_backlog(self) -> None:
        """Go on in the next turn, and read nothing before that is done, or when the peer takes answers."""
        if not self.is_closed and not self.is_congested:
            if self._transport is not None and not self._transport.is_closing():
                self._transport.pause_reading()
            self._schedule_backlog()

    def _schedule_backlog(self) -> None:
        if not self._is_backlog_scheduled:
            self._is_backlog_scheduled = True
            self._loop.call_soon(self._process_backlog)

    def _process_backlog(self) -> None:
        self._is_backlog_scheduled = False
        if self._backlog and not self.is_congested and not self.is_closed:
            self._process(self._backlog)
            if self._backlog or self.is_congested or self.is_closed:
                return
            if self._reader.error is not None:
                # It came behind them.
                self._end_malformed()
            else:
                self._read_again()

    def _process_left(self) -> None:
        """Take some of what came right before the end of the connection, which ends for us behind it."""
        self._process(self._backlog)
        if self._backlog:
            self._loop.call_soon(self._process_left)
            return
        self._is_ending = False
        if self._reader.error is not None:
            self._end_malformed()
        if self._transport is None:
            self._on_lost()

    def _read_again(self) -> None:
        if not self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _answer_run(self, run: Run, at: int, turn: LoopSlice | None) -> int:
        """Answer usual requests by the fast path; those that need more than that, each as any request.

        From number `at` on, as long as the turn has room for those others; the number of the first left.
        """
        while at < run.count and (not self.is_closed or self._is_ending):
            if self._requests_held + run.count <= REQUESTS_IN_FLIGHT_MAX:
                first = at
                at = self._on_run(run, at)
                self._traffic.requests += at - first
                if at == run.count:
                    break
            if turn is None and self._holds_back:
                turn = LoopSlice()
            if turn is not None and not turn.take():
                return at
            self._answer(decode_one(run.data, run.start_of(at)))
            at += 1
        return run.count

    def _answer(self, request: Command) -> None:
        traffic = self._traffic
        traffic.requests += 1
        is_oneway = request.flag & Flag.ONEWAY
        response: Command | None
        if self._requests_held >= REQUESTS_IN_FLIGHT_MAX and not is_oneway:
            traffic.requests_refused += 1
            # Producers of the RocketMQ family try again after this code, and not after SYSTEM_BUSY.
            response = request.reply(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                remark=f"[OVERLOAD] {self._requests_held} requests of this connection wait for an answer",
            )
            self._send(response)
            return
        self._requests_held += 1
        try:
            response = self._on_request(request)
            if response is not None and response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                traffic.request_errors += 1
        except RequestError as error:
            traffic.request_errors += 1
            response = request.reply(error.code, remark=str(error)[:_REMARK_CHARACTERS_MAX])
        except Exception as error:
            traffic.handler_failed(request.code, error)
            response = request.reply(
                ResponseCode.SYSTEM_ERROR,
                remark=f"{type(error).__name__}: {error}"[:_REMARK_CHARACTERS_MAX],
            )
        if is_oneway:
            self._requests_held = max(self._requests_held - 1, 0)
        elif response is not None:
            self._requests_held = max(self._requests_held - 1, 0)
            self._send(response)

    def _finish(self, response: Command) -> None:
        entry = self._pending.pop(response.opaque, None)
        if entry is None:
            # Came after its time limit, or was never asked for.
            self._traffic.responses_unmatched += 1
            return
        future, timer = entry
        if timer is not None:
            timer.cancel()
        if not future.done():
            future.set_result(response)

    def _time_out(self, opaque: int) -> None:
        entry = self._pending.pop(opaque, None)
        if entry is not None:
            self._traffic.requests_timed_out += 1
            _fail(entry[0], RequestTimeoutError(f"no answer from {self._peer_text()} in time"))

    def _count_unfinished(self, size: int) -> None:
        """Half frames of all peers together are bounded: past the limit a large one costs its sender."""
        traffic = self._traffic
        traffic.unfinished_bytes += size - self._unfinished_size
        self._unfinished_size = size
        if traffic.unfinished_bytes > UNFINISHED_FRAMES_BYTES_MAX and size > _UNFINISHED_BYTES_FREE:
            traffic.closed["memory"] += 1
            traffic.warn("connection closed", self.peer, "memory", "too much of unfinished frames in memory")
            self.abort("memory")

    def _end_malformed(self) -> None:
        reason = self._reader.reason
        error = self._reader.error
        assert reason is not None
        assert error is not None
        self._traffic.malformed[reason] += 1
        self._traffic.warn("connection closed", self.peer, reason, str(error))
        self._close(reason)

    def _peer_text(self) -> str:
        return f"{self.peer[0]}:{self.peer[1]}"


def _fail(future: asyncio.Future[Command], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        # Marks it as seen: a caller that dropped the future gets no traceback in the log for it.
        future.exception()
