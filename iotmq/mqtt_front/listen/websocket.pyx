"""MQTT in WebSocket frames: what stands between picows, which reads and writes them, and a `Device`.

Operations: a read callback per readable connection and turn, a call per frame in what was read, one frame per
write. Goals: a device is the same whatever carries it, with the same share of a turn and the same bounds; no
Python object per byte or packet; an idle connection costs little more than what picows needs for it. Plan: a
`WebSocketLink` is what picows calls for each frame, and hands the frame's memory to the device's core; to the device
it is the transport. `WebSocketProtocol` is picows' protocol with the device's accounting around each read.

What picows leaves to us: which requests become a WebSocket (`websocket_upgrade`); that a message is binary, its
fragments are in order and no reserved bit is set; the time a connection may take to open and to close; and how much
is read at once, because its buffer doubles whenever a read fills it.

A connection ends with the closing handshake [RFC 6455 section 7]: a close frame is sent, and the peer has
`CLOSE_TIMEOUT_S` for its own, so that it sees the code before the socket is gone.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from picows.picows cimport WSFrame, WSListener, WSMsgType, WSTransport

from iotmq.mqtt.codec.packet_types cimport STATE_CLOSED, STATE_CONNECTED, STATE_OPENING
from iotmq.mqtt_front.connection.device cimport Device

import logging
from collections import Counter
from http import HTTPStatus

from picows import WSAutoPingStrategy, WSUpgradeResponse, WSUpgradeResponseWithListener
from picows.picows import WSProtocol

from iotmq import limits
from iotmq.mqtt import reason_codes
from iotmq.mqtt_front.listen.websocket_upgrade import Refusal, answer

cdef enum:
    HEADER_BYTES_MAX = 14               # of a frame [RFC 6455 section 5.2]
    PACKET_HEADER_BYTES_MAX = 5         # mqtt.packet_bytes_max counts what is behind it
    # picows' buffer may grow to this and its double because it was filled; past that only for a frame that is larger.
    READ_BUFFER_BYTES = 16 * 1024
    CODE_NORMAL = 1000
    CODE_GOING_AWAY = 1001
    CODE_PROTOCOL_ERROR = 1002
    CODE_UNSUPPORTED_DATA = 1003
    CODE_POLICY_VIOLATION = 1008
    CODE_INTERNAL_ERROR = 1011

CLOSE_TIMEOUT_S = 1.0
# With the headers of a packet and of a masked frame, and the request, which counts until the first frame is whole.
cdef Py_ssize_t _UNPARSED_BYTES_MAX = (
    limits.MQTT_CONNECT_BYTES_MAX + PACKET_HEADER_BYTES_MAX + 14 + limits.MQTT_WEBSOCKET_REQUEST_BYTES_MAX
)
cdef uint16_t _PONGS_PER_READ_MAX = limits.MQTT_WEBSOCKET_PONGS_PER_READ_MAX
_READ_BUFFER_BYTES_FIRST = 2048         # picows takes no less


class _PicowsLog:
    """Filter the log of picows: events of one connection are counted, or logged with the device."""

    __slots__ = ()
    _log = logging.getLogger("iotmq.mqtt")

    def isEnabledFor(self, level):
        return False

    def log(self, level, text, *arguments):
        pass

    def debug(self, text, *arguments):
        pass

    def info(self, text, *arguments):
        pass

    def warning(self, text, *arguments):
        pass

    def error(self, text, *arguments):
        pass

    def exception(self, text, *arguments):
        self._log.exception(text, *arguments)


_PICOWS_LOG = _PicowsLog()


cdef class WebSocketCounts:
    """Count the errors of WebSocket peers of one listener."""

    cdef readonly object refused        # Counter: HTTP status -> requests answered with it
    cdef readonly object errors         # Counter: close code -> connections closed with it for a broken rule

    def __init__(self):
        self.refused = Counter()
        self.errors = Counter()


class _Gone:
    """Stands for a transport that is lost: picows may still end it a second time."""

    def close(self):
        """Do nothing: it is closed."""

    def abort(self):
        """Do nothing: it is closed."""

    def is_closing(self):
        return True


_GONE = _Gone()


cdef class WebSocketLink(WSListener):
    """One connection: picows' listener, and the device's transport."""

    cdef Device _device
    cdef object _rules                  # websocket_upgrade.UpgradeRules
    cdef WebSocketCounts _counts
    cdef object _transport              # asyncio's; None before it is connected
    cdef WSTransport _websocket         # picows' around it
    cdef object _close_timer            # None unless the peer's close frame is waited for
    cdef Py_ssize_t _unparsed_bytes     # in picows' buffer: an unfinished frame, or a request
    cdef bytes _late_ping               # payload of a ping that is answered when all of the read was looked at
    cdef uint16_t _pongs_left           # pings of this read that are answered at once
    cdef uint16_t _error_code           # the close code for what the peer did wrong; 0 while it did nothing
    cdef uint8_t _is_open               # the request was granted
    cdef uint8_t _is_closing
    cdef uint8_t _is_deaf               # what still comes is not looked at
    cdef uint8_t _is_peer_closing       # its close frame came
    cdef uint8_t _is_message_open       # fragments of a message are missing
    cdef uint8_t _has_data              # frames with MQTT came in this read
    cdef uint8_t _has_control           # other frames came in this read

    def __init__(self, Device device not None, rules not None, WebSocketCounts counts not None):
        self._device = device
        self._rules = rules
        self._counts = counts

    # The connection, for WebSocketProtocol

    def accepted(self, transport, WSTransport websocket not None):
        """TCP, or TLS, is there."""
        self._transport = transport
        self._websocket = websocket
        self._device.connection_made(self)

    def lost(self, error):
        """Note that the connection is lost."""
        if self._close_timer is not None:
            self._close_timer.cancel()
            self._close_timer = None
        self._is_closing = True
        self._device.connection_lost(error)
        # A TLS transport keeps the methods of its protocol, and so all of this, and this keeps the transport.
        self._transport = self._websocket.underlying_transport = _GONE
        self._websocket._tr_write = self._websocket._tr_get_write_buffer_size = None

    cdef Py_ssize_t room(self, Py_ssize_t free_bytes) except -1:
        """Return how much of picows' free buffer to read into, so that it grows for a large frame only."""
        cdef Py_ssize_t size = free_bytes + self._unparsed_bytes
        cdef Py_ssize_t offered = free_bytes
        if size > READ_BUFFER_BYTES and 3 * self._unparsed_bytes < 2 * size:
            offered = free_bytes - size // 8
        return min(offered, <Py_ssize_t>self._device.read_bytes_max())

    cdef int before_read(self, uint32_t size) except -1:
        self._unparsed_bytes += size
        self._has_data = self._has_control = False
        self._pongs_left = _PONGS_PER_READ_MAX
        self._device.count_input(size)
        return 0

    cdef int after_read(self) except -1:
        """picows has handed over all whole frames of the read."""
        if self._is_deaf or self._device.transport is None:
            return 0
        # Control frames are no sign of life of the device: MQTT has its own.
        if self._has_data or not self._has_control:
            self._device.last_received_s = self._device.group.now_s
        if self._late_ping is not None:
            self._pong(self._late_ping)
            self._late_ping = None
        if not self._is_open:
            self._check_request()
        elif self._websocket.is_close_frame_sent and not self._is_closing:
            self._closed_by_picows()
        if self._device.state != STATE_CONNECTED:
            self._check_unparsed()
        self._device.after_read()
        return 0

    cdef int _check_unparsed(self) except -1:
        """A frame of a device that is not connected is no larger than its CONNECT may be."""
        self._device.unparsed_bytes = <uint32_t>self._unparsed_bytes
        if self._unparsed_bytes > _UNPARSED_BYTES_MAX and self._device.state != STATE_OPENING:
            self._device.close(reason_codes.PACKET_TOO_LARGE, f"a frame with more than {_UNPARSED_BYTES_MAX} bytes")
        return 0

    # The request

    def upgrade(self, request):
        """Answer the HTTP request (picows' listener factory)."""
        judged = answer(self._rules, request.path, request.headers)
        if isinstance(judged, Refusal):
            body = f"{judged.text}\n".encode()
            return WSUpgradeResponseWithListener(
                WSUpgradeResponse.create_error_response(judged.status, body, judged.headers), None
            )
        # Firefox says "keep-alive, Upgrade", which picows does not understand.
        request.headers["Connection"] = "upgrade"
        request.headers["Upgrade"] = "websocket"
        chosen = None if judged.subprotocol is None else {"Sec-WebSocket-Protocol": judged.subprotocol}
        return WSUpgradeResponseWithListener(WSUpgradeResponse.create_101_response(chosen), self)

    cpdef on_ws_connected(self, WSTransport transport):
        self._is_open = True
        # Some kilobytes that nobody asks for again.
        transport.request = None
        transport.response = None

    cdef int _check_request(self) except -1:
        """Notice that picows has refused the request, or that it is too long."""
        if self._is_closing:
            return 0
        response = self._websocket.response
        if response is None and self._unparsed_bytes > limits.MQTT_WEBSOCKET_REQUEST_BYTES_MAX:
            response = self._refuse(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"more than {limits.MQTT_WEBSOCKET_REQUEST_BYTES_MAX} bytes",
            )
        if response is not None:
            self._counts.refused[response.status.value] += 1
            detail = (response.body or b"").decode(errors="replace").strip()
            self._device.close(reason_codes.WEBSOCKET_REFUSED, f"{response.status.value}: {detail}")
        return 0

    def _refuse(self, status, text):
        response = WSUpgradeResponse.create_error_response(status, f"{text}\n".encode(), {"Connection": "close"})
        self._transport.write(bytes(response.to_bytes()))
        self._websocket.response = response
        return response

    # Frames

    cpdef on_ws_frame(self, WSTransport transport, WSFrame frame):
        cdef WSMsgType kind = frame.msg_type
        self._unparsed_bytes = frame.tail_size
        if kind == WSMsgType.CLOSE:
            self._peer_closes(frame)
        elif self._is_closing or self._device.state == STATE_CLOSED:
            pass
        elif frame.rsv1 or frame.rsv2 or frame.rsv3:
            self._fail(CODE_PROTOCOL_ERROR, "a frame with a reserved bit")
        elif kind == WSMsgType.BINARY or kind == WSMsgType.CONTINUATION:
            if (kind == WSMsgType.CONTINUATION) != self._is_message_open:
                self._fail(CODE_PROTOCOL_ERROR, "fragments of messages out of order")
                return
            self._is_message_open = not frame.fin
            self._has_data = True
            if frame.payload_size:
                self._device.receive(<const uint8_t*>frame.payload_ptr, frame.payload_size)
        elif kind == WSMsgType.TEXT:  # [MQTT-6.0.0-1]
            self._fail(CODE_UNSUPPORTED_DATA, "a text frame")
        else:
            self._has_control = True
            if kind == WSMsgType.PING:
                self._answer_ping(frame)

    cdef int _answer_ping(self, WSFrame frame) except -1:
        """A pong each for some pings of a read; of more for the last one alone, as RFC 6455 section 5.5.3 allows.

        Each is a system call, and a peer may send thousands at once.
        """
        if self._pongs_left:
            self._pongs_left -= 1
            self._pong(frame.get_payload_as_bytes())
        else:
            self._late_ping = frame.get_payload_as_bytes()
        return 0

    cdef int _pong(self, bytes payload) except -1:
        # Who does not read gets none.
        if not self._device.is_write_paused and not self.is_closing():
            self._websocket.send_pong(payload)
        return 0

    cdef int _peer_closes(self, WSFrame frame) except -1:
        cdef int code = frame.get_close_code()
        self._has_control = True
        self._is_peer_closing = True
        if self._is_closing:
            self._end()
        elif frame.payload_size and not _may_be_sent(code):
            self._fail(CODE_PROTOCOL_ERROR, f"a close frame with code {code}")
        else:
            self._device.receive_eof()
        return 0

    cdef int _fail(self, uint16_t code, str detail) except -1:
        """The peer broke a rule of WebSockets; `after_read` closes the connection."""
        self._error_code = code
        self._counts.errors[code] += 1
        self._device.close(reason_codes.WEBSOCKET_ERROR, detail)
        return 0

    cdef int _closed_by_picows(self) except -1:
        """picows has found a broken rule, or an error of ours; it sent its close frame, and closes in a moment."""
        cdef int code = self._websocket.close_handshake.sent.code
        self._is_closing = self._is_deaf = True
        if code == CODE_INTERNAL_ERROR:
            self._device.close(reason_codes.UNSPECIFIED_ERROR)
        else:
            self._counts.errors[code] += 1
            self._device.close(reason_codes.WEBSOCKET_ERROR, self._websocket.close_handshake.sent.reason)
        return 0

    # The device's transport

    def write(self, bytes data not None):
        """Send `data` as one frame; without effect when the connection is not open or is closing."""
        cdef Py_ssize_t size = len(data)
        cdef char* frame
        if not self._is_open or self._is_closing or self._transport.is_closing():
            return
        frame = <char*>malloc(HEADER_BYTES_MAX + size)
        if frame == NULL:
            raise MemoryError
        try:
            memcpy(frame + HEADER_BYTES_MAX, <char*>data, size)
            # Written to the socket, or copied, before it returns.
            self._websocket.send_reuse_external_buffer(WSMsgType.BINARY, frame + HEADER_BYTES_MAX, size)
        finally:
            free(frame)

    def close(self):
        """Send the close frame that fits the device's reason, and wait for the peer's."""
        if self.is_closing():
            return
        self._is_closing = True
        reason = self._device.close_reason
        if not self._is_open:
            if self._websocket.response is None:
                is_late = reason is reason_codes.CONNECT_TIMEOUT
                self._refuse(HTTPStatus.REQUEST_TIMEOUT if is_late else HTTPStatus.SERVICE_UNAVAILABLE, reason.name)
            self._end()
            return
        self._websocket.send_close(self._close_code(reason), reason.name)
        if self._is_peer_closing:
            self._end()
            return
        self._transport.resume_reading()
        self._close_timer = self._device.group.loop.call_later(CLOSE_TIMEOUT_S, self._end)

    def _close_code(self, reason):
        if self._error_code:
            return self._error_code
        if reason is reason_codes.SERVER_SHUTTING_DOWN:
            return CODE_GOING_AWAY
        return CODE_POLICY_VIOLATION if reason.is_peer_fault else CODE_NORMAL

    def _end(self):
        """Close the transport once what was written is sent; nothing more is looked at."""
        self._is_deaf = True
        self._transport.close()

    def abort(self):
        """Drop the connection at once."""
        self._is_closing = self._is_deaf = True
        # picows may have frames left of what it has read, and must not answer them.
        self._websocket.is_close_frame_sent = True
        self._transport.abort()

    def is_closing(self):
        return self._is_closing or self._transport.is_closing()

    def pause_reading(self):
        if not self._is_closing:
            self._transport.pause_reading()

    def resume_reading(self):
        if not self._is_closing:
            self._transport.resume_reading()

    def get_extra_info(self, name, default=None):
        return self._transport.get_extra_info(name, default)

    cpdef pause_writing(self):
        self._device.pause_writing()

    cpdef resume_writing(self):
        self._device.resume_writing()


cdef bint _may_be_sent(int code) noexcept:
    """Return whether a close frame may have this code [RFC 6455 section 7.4]."""
    return 1000 <= code < 5000 and code not in (1004, 1005, 1006, 1015)


class WebSocketProtocol(WSProtocol):
    """picows' asyncio protocol for one connection, with the share of a turn that a device has."""

    __slots__ = ("_link",)

    def __init__(self, Device device not None, rules, counts):
        link = WebSocketLink(device, rules, counts)
        WSProtocol.__init__(
            self,
            host_port=None,
            ws_path=None,
            is_client_side=False,
            ws_listener_factory=link.upgrade,
            logger=_PICOWS_LOG,
            disconnect_on_exception=True,
            # mqtt.connect_timeout_s includes it.
            websocket_handshake_timeout=None,
            # MQTT has a keep-alive.
            enable_auto_ping=False,
            auto_ping_idle_timeout=None,
            auto_ping_reply_timeout=None,
            auto_ping_strategy=WSAutoPingStrategy.PING_WHEN_IDLE,
            # The link answers, because pongs to a peer that does not read would fill memory.
            enable_auto_pong=False,
            max_frame_size=device.settings.packet_bytes_max + PACKET_HEADER_BYTES_MAX,
            extra_headers=None,
            read_buffer_init_size=_READ_BUFFER_BYTES_FIRST,
        )
        self._link = link

    def connection_made(self, transport):
        WSProtocol.connection_made(self, transport)
        (<WebSocketLink>self._link).accepted(transport, self.transport)

    def connection_lost(self, error):
        WSProtocol.connection_lost(self, error)
        (<WebSocketLink>self._link).lost(error)

    def get_buffer(self, size_hint):
        cdef WebSocketLink link = self._link
        if link._is_deaf:
            return link._device.group._view
        free_part = WSProtocol.get_buffer(self, size_hint)
        return free_part[: link.room(len(free_part))]

    def buffer_updated(self, size):
        cdef WebSocketLink link = self._link
        if link._is_deaf:
            return
        link.before_read(size)
        WSProtocol.buffer_updated(self, size)
        link.after_read()
