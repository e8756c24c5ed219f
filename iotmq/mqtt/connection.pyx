"""The server's side of one MQTT 3.1.1 connection: bytes and time in, bytes and events out.

Operations: millions of PUBLISH a second over many connections, and a million idle ones. Goals: no Python
object per PUBLISH, PUBACK or delivered message; an idle connection costs a few hundred bytes. Plan: packets
are parsed where they lie; a PUBLISH goes to a `PublishSink` as pointers; acknowledgements wait in a ring in
the order of their PUBLISH [MQTT-4.6.0-2] and leave together; buffers exist only while they hold something.
Measured in docs/performance.md (`benchmarks/mqtt_side_by_side.py`).

States, and what moves a connection between them:

    AWAITING_CONNECT --CONNECT-->        OPENING     input is kept until the session is open
    OPENING          --open_session-->   CONNECTED
    any              --error, DISCONNECT, close--> CLOSED   input is dropped, output may still leave

Verbs: receive_data, receive_eof, events_received, data_to_send, next_deadline; open_session, refuse,
send_suback, send_unsuback, close. A rule the device breaks never raises out of receive_data: it closes the
connection with a reason.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memmove
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from iotmq.message.layout cimport get_u16, put_u16, put_u32, get_u32

from iotmq import limits
from iotmq.mqtt import packets, reason_codes
from iotmq.mqtt.errors import MqttProtocolError

cdef enum:
    STATE_AWAITING_CONNECT = 0
    STATE_OPENING = 1
    STATE_CONNECTED = 2
    STATE_CLOSED = 3
    PACKET_CONNECT = 1
    PACKET_PUBLISH = 3
    PACKET_PUBACK = 4
    PACKET_PUBREC = 5
    PACKET_PUBREL = 6
    PACKET_PUBCOMP = 7
    PACKET_SUBSCRIBE = 8
    PACKET_UNSUBSCRIBE = 10
    PACKET_PINGREQ = 12
    PACKET_DISCONNECT = 14
    IDLE_BUFFER_BYTES_MAX = 256     # a buffer this small is kept between uses
    UNACKNOWLEDGED_MAX = 65535      # there are no more packet ids
    QUEUED_HEADER_BYTES = 8

AWAITING_CONNECT = STATE_AWAITING_CONNECT
OPENING = STATE_OPENING
CONNECTED = STATE_CONNECTED
CLOSED = STATE_CLOSED


# --- buffers ------------------------------------------------------------------------------------------------


cdef uint8_t* _reserve(ByteBuffer* buffer, uint64_t extra) except NULL:
    """Room for `extra` more bytes behind what is written; returns where they go."""
    cdef uint64_t needed = buffer.size + extra
    cdef uint64_t capacity = buffer.capacity if buffer.capacity else 64
    cdef uint8_t* data
    if needed > buffer.capacity or buffer.data == NULL:
        if needed > 0xFFFFFFFF:
            raise MemoryError("a connection's buffer would pass 4 GiB")
        while capacity < needed:
            capacity *= 2
        if capacity > 0xFFFFFFFF:
            capacity = needed
        data = <uint8_t*>realloc(buffer.data, capacity)
        if data == NULL:
            raise MemoryError
        buffer.data = data
        buffer.capacity = <uint32_t>capacity
    return buffer.data + buffer.size


cdef void _release(ByteBuffer* buffer) noexcept:
    """Forget the content, and the memory unless it is small."""
    buffer.start = 0
    buffer.size = 0
    if buffer.capacity > IDLE_BUFFER_BYTES_MAX:
        free(buffer.data)
        buffer.data = NULL
        buffer.capacity = 0


cdef inline uint8_t* _put_fixed_header(uint8_t* target, uint8_t first, uint32_t remaining) noexcept nogil:
    target[0] = first
    target += 1
    while remaining >= 128:
        target[0] = <uint8_t>(remaining | 0x80)
        target += 1
        remaining >>= 7
    target[0] = <uint8_t>remaining
    return target + 1


# --- parts --------------------------------------------------------------------------------------------------


cdef class ConnectionSettings:
    """What all connections of a listener share.

    `packet_bytes_max` bounds the remaining length of what a device sends; `in_flight_max` (1 to 65,535) the
    messages of QoS 1 and 2 a subscriber may hold unacknowledged; `queued_bytes_max` what waits for a slow subscriber.
    """

    def __init__(
        self,
        *,
        uint32_t packet_bytes_max=limits.MQTT_PACKET_BYTES_MAX,
        uint32_t in_flight_max=limits.MQTT_IN_FLIGHT_MAX,
        uint32_t queued_bytes_max=limits.MQTT_QUEUED_BYTES_MAX,
        double connect_timeout_s=limits.MQTT_CONNECT_TIMEOUT_S,
    ):
        if not 1 <= in_flight_max <= UNACKNOWLEDGED_MAX:
            raise ValueError("in_flight_max must be between 1 and 65,535")
        self.packet_bytes_max = packet_bytes_max
        self.in_flight_max = in_flight_max
        self.queued_bytes_max = queued_bytes_max
        self.connect_timeout_s = connect_timeout_s


cdef class PublishSink:
    """Where connections hand their PUBLISH packets; a front end overrides `on_publish`.

    The pointers are valid during the call. `sequence` is what `ServerConnection.acknowledge` wants later for
    QoS 1 and 2. The topic is as it came: the sink validates it, once per topic it does not know yet, and
    raises MqttProtocolError when it is not legal.
    """

    cdef int on_publish(
        self,
        ServerConnection connection,
        const uint8_t* topic,
        Py_ssize_t topic_size,
        const uint8_t* payload,
        Py_ssize_t payload_size,
        int qos,
        bint retain,
        uint32_t sequence,
    ) except -1:
        raise NotImplementedError("a PublishSink overrides on_publish")

    cdef int end_turn(self) except -1:
        """Nothing more comes in this turn of the loop; what was collected may go on."""
        return 0


cdef class CollectingSink(PublishSink):
    """Keeps every PUBLISH as a tuple (topic, payload, qos, retain, sequence); for tests and tools."""

    cdef readonly list published

    def __init__(self):
        self.published = []

    cdef int on_publish(
        self,
        ServerConnection connection,
        const uint8_t* topic,
        Py_ssize_t topic_size,
        const uint8_t* payload,
        Py_ssize_t payload_size,
        int qos,
        bint retain,
        uint32_t sequence,
    ) except -1:
        from iotmq.mqtt.topics import decode_topic_name

        name = decode_topic_name(topic[:topic_size])
        self.published.append((name, payload[:payload_size], qos, bool(retain), sequence))
        return 0


# --- the connection -----------------------------------------------------------------------------------------


cdef class ServerConnection:
    """One device's connection. See the module's text for states and verbs."""

    def __init__(self, ConnectionSettings settings not None, PublishSink sink not None, double now_s):
        self.settings = settings
        self.sink = sink
        self.last_received_s = now_s
        self._connect_deadline_s = now_s + settings.connect_timeout_s
        self.state = STATE_AWAITING_CONNECT

    def __dealloc__(self):
        free(self._input.data)
        free(self.output.data)
        free(self._acks)
        if self._outbound != NULL:
            free(self._outbound.in_flight)
            free(self._outbound.queued.data)
            free(self._outbound)

    # Input

    def receive_data(self, const uint8_t[::1] data not None, double now_s):
        """Take bytes from the device, in pieces of any size."""
        self.last_received_s = now_s
        if data.shape[0]:
            self._receive_guarded(&data[0], data.shape[0])

    cdef int _receive_guarded(self, const uint8_t* data, Py_ssize_t size) except -1:
        try:
            self._receive(data, size)
        except MqttProtocolError as error:
            self._fail(error.reason, str(error))
        return 0

    cdef int _receive(self, const uint8_t* data, Py_ssize_t size) except -1:
        cdef Py_ssize_t at = 0, header_end
        cdef uint64_t remaining
        cdef int shift
        while at < size:
            if self.state == STATE_CLOSED:
                return 0
            if self.state == STATE_OPENING:
                memcpy(_reserve(&self._input, size - at), data + at, size - at)
                self._input.size += <uint32_t>(size - at)
                return 0
            if self._input.size:
                at += self._complete_input(data + at, size - at)
                continue
            if self.state == STATE_AWAITING_CONNECT:
                self._check_first_byte(data[at])
            # The fixed header: one byte, then one to four bytes of remaining length [section 2.2.3].
            header_end = at + 1
            remaining = 0
            shift = 0
            while header_end < size:
                remaining |= <uint64_t>(data[header_end] & 0x7F) << shift
                header_end += 1
                if not data[header_end - 1] & 0x80:
                    shift = -1
                    break
                shift += 7
                if shift == 28:
                    raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "remaining length has more than four bytes")
            if shift >= 0 or <uint64_t>(size - header_end) < remaining:
                if shift < 0:
                    self._check_packet_size(remaining)
                memcpy(_reserve(&self._input, size - at), data + at, size - at)
                self._input.size = <uint32_t>(size - at)
                return 0
            self._check_packet_size(remaining)
            self._handle_packet(data[at], data + header_end, <Py_ssize_t>remaining)
            at = header_end + <Py_ssize_t>remaining
        return 0

    cdef Py_ssize_t _complete_input(self, const uint8_t* data, Py_ssize_t size) except -1:
        """Add to the packet that has begun; handle it when it is whole. Returns the bytes used."""
        cdef Py_ssize_t used = 0
        cdef uint64_t remaining = 0, missing
        cdef uint32_t header_size = 1
        cdef int shift = 0
        cdef ByteBuffer whole
        while True:
            if header_size == self._input.size:
                if used == size:
                    return used
                _reserve(&self._input, 1)[0] = data[used]
                self._input.size += 1
                used += 1
            remaining |= <uint64_t>(self._input.data[header_size] & 0x7F) << shift
            header_size += 1
            if not self._input.data[header_size - 1] & 0x80:
                break
            shift += 7
            if shift == 28:
                raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "remaining length has more than four bytes")
        self._check_packet_size(remaining)
        missing = header_size + remaining - self._input.size
        if missing > <uint64_t>(size - used):
            missing = <uint64_t>(size - used)
        memcpy(_reserve(&self._input, missing), data + used, missing)
        self._input.size += <uint32_t>missing
        used += <Py_ssize_t>missing
        if self._input.size == header_size + remaining:
            whole = self._input         # the packet's handler may start a new input of its own
            self._input = ByteBuffer(NULL, 0, 0, 0)
            try:
                self._handle_packet(whole.data[0], whole.data + header_size, <Py_ssize_t>remaining)
            finally:
                free(whole.data)
        return used

    cdef int _check_first_byte(self, uint8_t first) except -1:
        """Before anything is kept for a peer that speaks HTTP or TLS here."""
        if first >> 4 != PACKET_CONNECT:  # [MQTT-3.1.0-1]
            raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "the first packet is not CONNECT")
        if first & 0x0F:
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "CONNECT has flags in its first byte")
        return 0

    cdef int _check_packet_size(self, uint64_t remaining) except -1:
        if remaining > self.settings.packet_bytes_max:
            raise MqttProtocolError(
                reason_codes.PACKET_TOO_LARGE,
                f"a packet of {remaining} bytes; mqtt.packet_bytes_max is {self.settings.packet_bytes_max}",
            )
        return 0

    cdef int _handle_packet(self, uint8_t first, const uint8_t* body, Py_ssize_t size) except -1:
        cdef int packet_type = first >> 4
        if packet_type == PACKET_PUBLISH:
            return self._handle_publish(first, body, size)
        if first & 0x0F == 0 and size == 2:
            if packet_type == PACKET_PUBACK:
                return self._handle_puback(get_u16(body))
            if packet_type == PACKET_PUBREC:
                return self._handle_pubrec(get_u16(body))
            if packet_type == PACKET_PUBCOMP:
                return self._handle_pubcomp(get_u16(body))
        return self._handle_rare(first, body, size)

    cdef int _handle_publish(self, uint8_t first, const uint8_t* body, Py_ssize_t size) except -1:
        cdef int qos = first >> 1 & 3
        cdef Py_ssize_t topic_size, head
        cdef uint16_t packet_id
        cdef uint32_t sequence = 0
        cdef bint is_duplicate = False
        if qos == 3:  # [MQTT-3.3.1-4]
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "PUBLISH has QoS 3")
        if qos == 0 and first & 8:  # [MQTT-3.3.1-2]
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "PUBLISH of QoS 0 has its DUP flag set")
        if size < 2:
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "PUBLISH ends in its topic")
        topic_size = get_u16(body)
        head = 2 + topic_size + (2 if qos else 0)
        if head > size:
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "PUBLISH ends in its topic or packet id")
        if qos:
            packet_id = get_u16(body + 2 + topic_size)
            if packet_id == 0:  # [MQTT-2.3.1-1]
                raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "PUBLISH has packet id 0")
            if qos == 1:
                sequence = self._expect_acknowledgement(packet_id, PACKET_PUBACK)
            else:
                # Method B of section 4.3.3: handed on at once, and not again until its PUBREL.
                if self._qos2_received is None:
                    self._qos2_received = set()
                is_duplicate = packet_id in self._qos2_received
                sequence = self._expect_acknowledgement(packet_id, PACKET_PUBREC)
                if is_duplicate:
                    return self.acknowledge(sequence, 1)
                self._qos2_received.add(packet_id)
        return self.sink.on_publish(
            self, body + 2, topic_size, body + head, size - head, qos, first & 1, sequence
        )

    cdef int _handle_rare(self, uint8_t first, const uint8_t* body, Py_ssize_t size) except -1:
        cdef int packet_type = first >> 4
        cdef int flags = first & 0x0F
        cdef int flags_wanted = 2 if packet_type in (PACKET_PUBREL, PACKET_SUBSCRIBE, PACKET_UNSUBSCRIBE) else 0
        if flags != flags_wanted:  # [MQTT-2.2.2-1, -2]
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, f"packet type {packet_type} has flags {flags:#x}")
        if packet_type == PACKET_CONNECT:
            if self.state != STATE_AWAITING_CONNECT:  # [MQTT-3.1.0-2]
                raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "a second CONNECT")
            connect = packets.decode_connect(body[:size])
            self.keep_alive_s = connect.keep_alive_s
            self.state = STATE_OPENING
            self._add_event(connect)
        elif packet_type == PACKET_SUBSCRIBE:
            self._add_event(packets.decode_subscribe(body[:size]))
        elif packet_type == PACKET_UNSUBSCRIBE:
            self._add_event(packets.decode_unsubscribe(body[:size]))
        elif packet_type == PACKET_PUBREL:
            if size != 2:
                raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "PUBREL is not two bytes long")
            if self._qos2_received is not None:
                self._qos2_received.discard(get_u16(body))
            self._write(packets.encode_acknowledgement(packets.PUBCOMP, get_u16(body)))
        elif packet_type == PACKET_PINGREQ:
            self._check_empty(size, "PINGREQ")
            self._write(packets.PINGRESP_PACKET)
        elif packet_type == PACKET_DISCONNECT:
            self._check_empty(size, "DISCONNECT")
            self._add_event(packets.Disconnect())
            self._fail(reason_codes.NORMAL, "")
        else:
            # CONNACK, SUBACK, UNSUBACK, PINGRESP are the server's; 0 and 15 are reserved; a PUBACK, PUBREC or
            # PUBCOMP gets here when malformed.
            raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, f"packet type {packet_type} is not for a server")
        return 0

    cdef int _check_empty(self, Py_ssize_t size, str name) except -1:
        if size:
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, f"{name} has a body")
        return 0

    def receive_eof(self):
        """The device closed its side; a will is due unless DISCONNECT came first."""
        if self.state != STATE_CLOSED:
            self._fail(reason_codes.CONNECTION_LOST, "")

    @property
    def received_packet_ids(self):
        """Packet ids of QoS 2 the device has sent and not released, for a session that goes on elsewhere."""
        return sorted(self._qos2_received) if self._qos2_received else []

    def restore_received(self, packet_ids not None):
        """Know the packet ids of an earlier connection of the session."""
        self._qos2_received = set(packet_ids) if packet_ids else None

    # Events and time

    cdef int _add_event(self, event) except -1:
        if self._events is None:
            self._events = []
        self._events.append(event)
        return 0

    def events_received(self):
        """The Connect, Subscribe, Unsubscribe and Disconnect events since the last call, in order."""
        events = self._events
        self._events = None
        return events if events is not None else ()

    @property
    def has_events(self):
        """True when `events_received` has something."""
        return self._events is not None

    def next_deadline(self):
        """When the device has been silent for too long [MQTT-3.1.2-24], in seconds; None when never.

        Bytes that are not yet a CONNECT do not move the first deadline, or they could hold a connection for ever.
        """
        if self.state == STATE_AWAITING_CONNECT:
            return self._connect_deadline_s
        if self.state == STATE_CLOSED or self.keep_alive_s == 0:
            return None
        return self.last_received_s + 1.5 * self.keep_alive_s

    # Answers

    def open_session(self, *, bint session_present):
        """Accept the CONNECT; input that came behind it is handled now."""
        cdef ByteBuffer waiting
        if self.state != STATE_OPENING:
            return
        self._write(packets.encode_connack(0, session_present=session_present))
        self.state = STATE_CONNECTED
        waiting = self._input
        self._input = ByteBuffer(NULL, 0, 0, 0)
        try:
            if waiting.size:
                self._receive_guarded(waiting.data, waiting.size)
        finally:
            free(waiting.data)

    def refuse(self, reason, str detail=""):
        """End the connection; before it is open, with the CONNACK code the specification has for it."""
        self._fail(reason, detail)

    def send_suback(self, packet_id, return_codes):
        """Answer a SUBSCRIBE with one code per filter: the granted QoS, or 0x80."""
        self._write(packets.encode_suback(packet_id, return_codes))

    def send_unsuback(self, packet_id):
        """Answer an UNSUBSCRIBE."""
        self._write(packets.encode_acknowledgement(packets.UNSUBACK, packet_id))

    def close(self, reason, str detail=""):
        """End the connection from the server's side."""
        self._fail(reason, detail)

    cdef void _fail(self, object reason, str detail):
        if self.state == STATE_CLOSED:
            return
        if self.state in (STATE_AWAITING_CONNECT, STATE_OPENING) and reason.connack_code is not None:
            self._write(packets.encode_connack(reason.connack_code, session_present=False))
        self.state = STATE_CLOSED
        self.close_reason = reason
        self.close_detail = detail
        _release(&self._input)

    cdef int _write(self, bytes data) except -1:
        if self.state == STATE_CLOSED:
            return 0
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        memcpy(_reserve(&self.output, size), PyBytes_AS_STRING(data), size)
        self.output.size += <uint32_t>size
        return 0

    def data_to_send(self):
        """The bytes for the device since the last call; empty when there are none."""
        if not self.output.size:
            return b""
        cdef bytes data = PyBytes_FromStringAndSize(<char*>self.output.data, self.output.size)
        _release(&self.output)
        return data

    @property
    def output_bytes(self):
        """How much `data_to_send` would return."""
        return self.output.size

    # QoS 1 and 2 from the device: acknowledgements in the order of the PUBLISHes

    cdef uint32_t _expect_acknowledgement(self, uint16_t packet_id, uint8_t packet_type) except? 0:
        cdef uint32_t capacity, at, index
        cdef Acknowledgement* ring
        if self._acks_count == self._acks_capacity:
            if self._acks_count > UNACKNOWLEDGED_MAX:
                raise MqttProtocolError(
                    reason_codes.RECEIVE_MAXIMUM_EXCEEDED, "more unacknowledged messages than packet ids"
                )
            capacity = self._acks_capacity * 2 if self._acks_capacity else 16
            ring = <Acknowledgement*>calloc(capacity, sizeof(Acknowledgement))
            if ring == NULL:
                raise MemoryError
            for index in range(self._acks_count):
                at = self._acks_first + index
                ring[at & (capacity - 1)] = self._acks[at & (self._acks_capacity - 1)]
            free(self._acks)
            self._acks = ring
            self._acks_capacity = capacity
        at = self._acks_first + self._acks_count
        self._acks[at & (self._acks_capacity - 1)] = Acknowledgement(packet_id, packet_type, 0)
        self._acks_count += 1
        return at

    cdef int acknowledge(self, uint32_t sequence, uint32_t count) except -1:
        """`count` messages from `sequence` on are durable: write what is now due, in order."""
        cdef uint32_t mask = self._acks_capacity - 1
        cdef uint32_t index, due = 0
        cdef uint8_t* target
        cdef Acknowledgement* entry
        if self.state == STATE_CLOSED:
            return 0
        if <uint32_t>(sequence - self._acks_first) + <uint64_t>count > self._acks_count:
            raise ValueError("acknowledging what is not outstanding")
        for index in range(count):
            self._acks[(sequence + index) & mask].is_due = 1
        if sequence != self._acks_first:
            return 0
        target = _reserve(&self.output, 4 * <uint64_t>self._acks_count)
        while due < self._acks_count:
            entry = &self._acks[(self._acks_first + due) & mask]
            if not entry.is_due:
                break
            target[0] = <uint8_t>(entry.packet_type << 4)
            target[1] = 2
            put_u16(target + 2, entry.packet_id)
            target += 4
            due += 1
        self.output.size += 4 * due
        self._acks_first += due
        self._acks_count -= due
        if self._acks_count == 0 and self._acks_capacity > 64:
            free(self._acks)
            self._acks = NULL
            self._acks_capacity = 0
        return 0

    def acknowledge_published(self, sequence, count=1):
        """`acknowledge` for callers in Python (tests and tools)."""
        self.acknowledge(sequence, count)

    @property
    def unacknowledged_count(self):
        """Messages of the device that wait for the broker's promise."""
        return self._acks_count

    # Messages to the device

    def deliver_message(self, bytes topic not None, bytes payload not None, int qos):
        """`deliver` for callers in Python; True when the message was sent or queued."""
        cdef const uint8_t* topic_data = topic
        cdef const uint8_t* payload_data = payload
        return bool(self.deliver(topic_data, <uint16_t>len(topic), payload_data, <uint32_t>len(payload), qos))

    cdef int deliver(
        self, const uint8_t* topic, uint16_t topic_size, const uint8_t* payload, uint32_t payload_size, int qos
    ) except -1:
        """Write a PUBLISH, or queue it; 0 when it was dropped because the device is slow.

        The caller made sure that packet_bytes_max holds for what devices receive, too.
        """
        cdef uint32_t remaining = 2 + topic_size + payload_size + (2 if qos else 0)
        cdef uint8_t* start
        cdef uint8_t* target
        cdef ByteBuffer* buffer = &self.output
        cdef bint is_queued = False
        if self.state != STATE_CONNECTED:
            return 0
        if qos:
            self._need_outbound()
            is_queued = (
                self._outbound.queued.size != 0
                or self._outbound.in_flight_count >= self.settings.in_flight_max
            )
            if is_queued:
                buffer = &self._outbound.queued
        if buffer.size - buffer.start + remaining > self.settings.queued_bytes_max and buffer.size:
            return 0
        start = _reserve(buffer, <uint64_t>remaining + 5 + QUEUED_HEADER_BYTES)
        target = start + QUEUED_HEADER_BYTES if is_queued else start
        target = _put_fixed_header(target, <uint8_t>(PACKET_PUBLISH << 4 | qos << 1), remaining)
        put_u16(target, topic_size)
        memcpy(target + 2, topic, topic_size)
        target += 2 + topic_size
        if qos:
            if is_queued:
                put_u32(start + 4, <uint32_t>(target - start))
            else:
                put_u16(target, self._take_packet_id(qos))
            target += 2
        memcpy(target, payload, payload_size)
        target += payload_size
        if is_queued:
            put_u32(start, <uint32_t>(target - start))
        buffer.size += <uint32_t>(target - start)
        return 1

    cdef bint has_room(self) noexcept:
        """Whether `send_message` takes one more: the window is open, and the device reads."""
        return self.has_output_room() and (
            self._outbound == NULL
            or self._outbound.in_flight_count < self.settings.in_flight_max
            and not self._outbound.queued.size
        )

    cdef bint has_output_room(self) noexcept:
        """The same for a message that has its packet id already."""
        return (
            self.state == STATE_CONNECTED
            and not self.is_write_paused
            and self.output.size < self.settings.queued_bytes_max // 4
        )

    cdef int reserve_packet_id(self, uint16_t packet_id) except -1:
        """A packet id of an earlier connection means its message until that is done; no other gets it."""
        self._need_outbound()
        if packet_id and self._slot_of(packet_id) == NULL:
            self._occupy(packet_id, PACKET_PUBREC)
        return 0

    cdef int free_packet_id(self, uint16_t packet_id) except -1:
        """The message of a reserved packet id does not exist any more."""
        cdef InFlightSlot* slot = self._slot_of(packet_id)
        if slot != NULL:
            slot.packet_id = 0
            self._outbound.in_flight_count -= 1
        return 0

    cdef uint16_t send_message(
        self,
        const uint8_t* topic,
        uint16_t topic_size,
        const uint8_t* payload,
        uint32_t payload_size,
        int qos,
        bint is_retained,
        bint is_duplicate,
        uint16_t packet_id,
    ) except? 0:
        """Write a PUBLISH that somebody else keeps until it is done; the caller has asked `has_room`.

        `packet_id` is one that was sent before or 0 for a new one. Returns the packet id, 0 for QoS 0.
        """
        cdef uint32_t remaining = 2 + topic_size + payload_size + (2 if qos else 0)
        cdef uint8_t* start = _reserve(&self.output, <uint64_t>remaining + 5)
        cdef uint8_t* target
        target = _put_fixed_header(
            start, <uint8_t>(PACKET_PUBLISH << 4 | is_duplicate << 3 | qos << 1 | is_retained), remaining
        )
        put_u16(target, topic_size)
        memcpy(target + 2, topic, topic_size)
        target += 2 + topic_size
        if qos:
            self._need_outbound()
            if packet_id == 0:
                packet_id = self._take_packet_id(qos)
            else:
                self.reserve_packet_id(packet_id)
                self._slot_of(packet_id).awaited = PACKET_PUBACK if qos == 1 else PACKET_PUBREC
            put_u16(target, packet_id)
            target += 2
        memcpy(target, payload, payload_size)
        self.output.size += <uint32_t>(target + payload_size - start)
        return packet_id

    cdef uint16_t take_packet_id(self) except 0:
        """A packet id for a message of QoS 2 that `send_message` will send; in flight from now on."""
        self._need_outbound()
        return self._take_packet_id(2)

    cdef int send_pubrel(self, uint16_t packet_id) except -1:
        """Release a message the device has taken; also after a resume, when only its packet id is known."""
        cdef InFlightSlot* slot
        self._need_outbound()
        slot = self._slot_of(packet_id)
        if slot == NULL:
            self._occupy(packet_id, PACKET_PUBCOMP)
        else:
            slot.awaited = PACKET_PUBCOMP
        self._write(packets.encode_acknowledgement(packets.PUBREL, packet_id))
        return 0

    cdef int message_done(self, uint16_t packet_id) except -1:
        return 0

    cdef int message_received(self, uint16_t packet_id) except -1:
        return 1

    cdef int _need_outbound(self) except -1:
        if self._outbound == NULL:
            self._outbound = <Outbound*>calloc(1, sizeof(Outbound))
            if self._outbound == NULL:
                raise MemoryError
        return 0

    cdef InFlightSlot* _slot_of(self, uint16_t packet_id) noexcept:
        """The slot of a packet id that is in flight, else NULL."""
        cdef InFlightSlot* slot
        if packet_id == 0 or self._outbound == NULL or self._outbound.in_flight_capacity == 0:
            return NULL
        slot = &self._outbound.in_flight[packet_id & (self._outbound.in_flight_capacity - 1)]
        return slot if slot.packet_id == packet_id else NULL

    cdef int _grow_in_flight(self) except -1:
        cdef Outbound* outbound = self._outbound
        cdef uint32_t capacity = outbound.in_flight_capacity * 2 if outbound.in_flight_capacity else 16
        cdef uint32_t index
        cdef InFlightSlot* slots = <InFlightSlot*>calloc(capacity, sizeof(InFlightSlot))
        if slots == NULL:
            raise MemoryError
        for index in range(outbound.in_flight_capacity):
            if outbound.in_flight[index].packet_id:
                slots[outbound.in_flight[index].packet_id & (capacity - 1)] = outbound.in_flight[index]
        free(outbound.in_flight)
        outbound.in_flight = slots
        outbound.in_flight_capacity = capacity
        return 0

    cdef int _occupy(self, uint16_t packet_id, uint8_t awaited) except -1:
        """Put a packet id that is not in flight into flight."""
        cdef Outbound* outbound = self._outbound
        cdef InFlightSlot* slot
        while True:
            if outbound.in_flight_capacity:
                slot = &outbound.in_flight[packet_id & (outbound.in_flight_capacity - 1)]
                if slot.packet_id == 0:
                    slot.packet_id = packet_id
                    slot.awaited = awaited
                    outbound.in_flight_count += 1
                    return 0
            self._grow_in_flight()

    cdef uint16_t _take_packet_id(self, int qos) except 0:
        """A packet id that is not in flight; at most in_flight_max are out when this is called."""
        cdef Outbound* outbound = self._outbound
        cdef InFlightSlot* slot
        if outbound.in_flight_count == outbound.in_flight_capacity:
            self._grow_in_flight()
        while True:
            outbound.last_packet_id = <uint16_t>(outbound.last_packet_id + 1)
            slot = &outbound.in_flight[outbound.last_packet_id & (outbound.in_flight_capacity - 1)]
            if outbound.last_packet_id and slot.packet_id == 0:
                break
        slot.packet_id = outbound.last_packet_id
        slot.awaited = PACKET_PUBACK if qos == 1 else PACKET_PUBREC
        outbound.in_flight_count += 1
        return outbound.last_packet_id

    cdef int _end_flight(self, InFlightSlot* slot) except -1:
        cdef uint16_t packet_id = slot.packet_id
        slot.packet_id = 0
        self._outbound.in_flight_count -= 1
        if self._outbound.queued.size:
            self._release_queued()
        return self.message_done(packet_id)

    cdef int _handle_puback(self, uint16_t packet_id) except -1:
        # An acknowledgement of nothing is harmless, and clients do send them after a resume.
        cdef InFlightSlot* slot = self._slot_of(packet_id)
        if slot != NULL and slot.awaited == PACKET_PUBACK:
            return self._end_flight(slot)
        return 0

    cdef int _handle_pubrec(self, uint16_t packet_id) except -1:
        cdef InFlightSlot* slot = self._slot_of(packet_id)
        if slot == NULL:
            # What is not known any more is released, so that the device can forget it [MQTT-4.3.3-1].
            if packet_id and self.state == STATE_CONNECTED:
                self._write(packets.encode_acknowledgement(packets.PUBREL, packet_id))
        elif slot.awaited == PACKET_PUBCOMP or slot.awaited == PACKET_PUBREC and self.message_received(packet_id):
            self.send_pubrel(packet_id)
        return 0

    cdef int _handle_pubcomp(self, uint16_t packet_id) except -1:
        cdef InFlightSlot* slot = self._slot_of(packet_id)
        if slot != NULL and slot.awaited == PACKET_PUBCOMP:
            return self._end_flight(slot)
        return 0

    cdef int _release_queued(self) except -1:
        """Move queued packets to the output while the window is open."""
        cdef Outbound* outbound = self._outbound
        cdef ByteBuffer* queued = &outbound.queued
        cdef uint8_t* packet
        cdef uint32_t size
        while queued.start < queued.size and outbound.in_flight_count < self.settings.in_flight_max:
            packet = queued.data + queued.start
            size = get_u32(packet)
            put_u16(packet + get_u32(packet + 4), self._take_packet_id(packet[QUEUED_HEADER_BYTES] >> 1 & 3))
            memcpy(_reserve(&self.output, size), packet + QUEUED_HEADER_BYTES, size - QUEUED_HEADER_BYTES)
            self.output.size += size - QUEUED_HEADER_BYTES
            queued.start += size
        if queued.start == queued.size:
            _release(queued)
        elif queued.start > queued.size // 2:
            memmove(queued.data, queued.data + queued.start, queued.size - queued.start)
            queued.size -= queued.start
            queued.start = 0
        return 0

    @property
    def in_flight_count(self):
        """QoS 1 messages the device has not acknowledged yet."""
        return self._outbound.in_flight_count if self._outbound != NULL else 0

    @property
    def queued_bytes(self):
        """Bytes of QoS 1 messages that wait for the device's window."""
        if self._outbound == NULL:
            return 0
        return self._outbound.queued.size - self._outbound.queued.start
