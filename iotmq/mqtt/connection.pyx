"""The server's side of one MQTT 3.1.1 connection: bytes and time in, bytes and events out.

Operations: millions of PUBLISH a second over many connections, and a million idle ones. Goals: no Python
object per PUBLISH, PUBACK or delivered message; an idle connection costs a few hundred bytes. Plan: packets
are parsed where they lie (`framing`); a PUBLISH goes to a `PublishSink` as pointers; acknowledgements wait in a
ring in the order of their PUBLISH and leave together (`acknowledgements`); what goes to the device is encoded once, into
the output (`outbound`); buffers exist only while they hold something. Measured in docs/performance.md
(`benchmarks/mqtt_side_by_side.py`, `benchmarks/mqtt_decoder.py`).

States, and what moves a connection between them:

    AWAITING_CONNECT --CONNECT-->        OPENING     input is kept until the session is open
    OPENING          --open_session-->   CONNECTED
    any              --error, DISCONNECT, close--> CLOSED   input is dropped, output may still leave

Verbs: receive_data, receive_eof, events_received, data_to_send, next_deadline; open_session, refuse,
send_suback, send_unsuback, close. A rule the device breaks never raises out of receive_data: it closes the
connection with a reason.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free

from iotmq.message.layout cimport get_u16
from iotmq.mqtt.acknowledgements cimport acknowledge_run, expect_acknowledgement
from iotmq.mqtt.byte_buffer cimport ByteBuffer, append, release
from iotmq.mqtt.connection_settings cimport ConnectionSettings
from iotmq.mqtt.framing cimport Packet, next_packet
from iotmq.mqtt.outbound cimport OutboundHalf
from iotmq.mqtt.packet_types cimport (
    PACKET_CONNECT, PACKET_DISCONNECT, PACKET_PINGREQ, PACKET_PUBACK, PACKET_PUBCOMP, PACKET_PUBLISH, PACKET_PUBREC,
    PACKET_PUBREL, PACKET_SUBSCRIBE, PACKET_UNSUBSCRIBE, STATE_AWAITING_CONNECT, STATE_CLOSED, STATE_CONNECTED,
    STATE_OPENING,
)
from iotmq.mqtt.publish_sink cimport Publication, PublishSink

from iotmq.mqtt import packets, reason_codes
from iotmq.mqtt.errors import MqttProtocolError

AWAITING_CONNECT = STATE_AWAITING_CONNECT
OPENING = STATE_OPENING
CONNECTED = STATE_CONNECTED
CLOSED = STATE_CLOSED


cdef class ServerConnection(OutboundHalf):
    """One device's connection. See the module's text for states and verbs."""

    def __init__(self, ConnectionSettings settings not None, PublishSink sink not None, double now_s):
        self.settings = settings
        self.sink = sink
        self.last_received_s = now_s
        self._connect_deadline_s = now_s + settings.connect_timeout_s
        self.state = STATE_AWAITING_CONNECT

    def __dealloc__(self):
        free(self._input.data)
        free(self._acks.entries)

    # Input

    def receive_data(self, const uint8_t[::1] data not None, double now_s):
        """Take bytes from the device, in pieces of any size."""
        self.last_received_s = now_s
        if data.shape[0]:
            self.receive(&data[0], data.shape[0])

    cdef int receive(self, const uint8_t* data, Py_ssize_t size) except -1:
        """`receive_data` for callers that keep the time themselves."""
        try:
            self._receive_packets(data, size)
        except MqttProtocolError as error:
            self._fail(error.reason, str(error))
        return 0

    cdef int _receive_packets(self, const uint8_t* data, Py_ssize_t size) except -1:
        cdef Py_ssize_t at = 0
        cdef Packet packet
        while at < size:
            if self.state == STATE_CLOSED:
                return 0
            if self.state == STATE_OPENING:
                return append(&self._input, data + at, size - at)
            if self.state == STATE_AWAITING_CONNECT and not self._input.size:
                self._check_first_byte(data[at])
            if not next_packet(&self._input, data, size, &at, self.settings.packet_bytes_max, &packet):
                return 0
            if packet.memory == NULL:
                self._handle_packet(&packet)
                continue
            try:
                self._handle_packet(&packet)
            finally:
                free(packet.memory)
        return 0

    cdef int _check_first_byte(self, uint8_t first) except -1:
        """Before anything is kept for a peer that speaks HTTP or TLS here."""
        if first >> 4 != PACKET_CONNECT:  # [MQTT-3.1.0-1]
            raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "the first packet is not CONNECT")
        if first & 0x0F:
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "CONNECT has flags in its first byte")
        return 0

    cdef int _handle_packet(self, const Packet* packet) except -1:
        cdef int packet_type = packet.first >> 4
        if packet_type == PACKET_PUBLISH:
            return self._handle_publish(packet.first, packet.body, packet.size)
        if packet.first & 0x0F == 0 and packet.size == 2:
            if packet_type == PACKET_PUBACK:
                return self.handle_puback(get_u16(packet.body))
            if packet_type == PACKET_PUBREC:
                return self.handle_pubrec(get_u16(packet.body))
            if packet_type == PACKET_PUBCOMP:
                return self.handle_pubcomp(get_u16(packet.body))
        return self._handle_rare(packet.first, packet.body, packet.size)

    cdef int _handle_publish(self, uint8_t first, const uint8_t* body, Py_ssize_t size) except -1:
        cdef int qos = first >> 1 & 3
        cdef Py_ssize_t topic_size, head
        cdef uint16_t packet_id
        cdef Publication publication
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
        publication.sequence = 0
        if qos:
            packet_id = get_u16(body + 2 + topic_size)
            if packet_id == 0:  # [MQTT-2.3.1-1]
                raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "PUBLISH has packet id 0")
            if qos == 1:
                publication.sequence = expect_acknowledgement(&self._acks, packet_id, PACKET_PUBACK)
            else:
                # Method B of section 4.3.3: handed on at once, and not again until its PUBREL.
                if self._qos2_received is None:
                    self._qos2_received = set()
                publication.sequence = expect_acknowledgement(&self._acks, packet_id, PACKET_PUBREC)
                if packet_id in self._qos2_received:
                    return self.acknowledge(publication.sequence, 1)
                self._qos2_received.add(packet_id)
        publication.topic = body + 2
        publication.topic_size = topic_size
        publication.payload = body + head
        publication.payload_size = size - head
        publication.qos = <uint8_t>qos
        publication.is_retained = first & 1
        return self.sink.on_publish(self, &publication)

    cdef int _handle_rare(self, uint8_t first, const uint8_t* body, Py_ssize_t size) except -1:
        cdef int packet_type = first >> 4
        cdef int flags = first & 0x0F
        cdef int flags_wanted = 2 if packet_type in (PACKET_PUBREL, PACKET_SUBSCRIBE, PACKET_UNSUBSCRIBE) else 0
        if flags != flags_wanted:  # [MQTT-2.2.2-1, -2]
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, f"packet type {packet_type} has flags {flags:#x}")
        if packet_type == PACKET_CONNECT:
            return self._handle_connect(body[:size])
        if packet_type == PACKET_SUBSCRIBE:
            return self._add_event(packets.decode_subscribe(body[:size]))
        if packet_type == PACKET_UNSUBSCRIBE:
            return self._add_event(packets.decode_unsubscribe(body[:size]))
        if packet_type == PACKET_PUBREL:
            return self._handle_pubrel(body, size)
        if packet_type == PACKET_PINGREQ:
            self._check_empty(size, "PINGREQ")
            return self.write(packets.PINGRESP_PACKET)
        if packet_type == PACKET_DISCONNECT:
            self._check_empty(size, "DISCONNECT")
            self._add_event(packets.Disconnect())
            self._fail(reason_codes.NORMAL, "")
            return 0
        # CONNACK, SUBACK, UNSUBACK, PINGRESP are the server's; 0 and 15 are reserved; a PUBACK, PUBREC or
        # PUBCOMP gets here when malformed.
        raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, f"packet type {packet_type} is not for a server")

    cdef int _handle_connect(self, bytes body) except -1:
        if self.state != STATE_AWAITING_CONNECT:  # [MQTT-3.1.0-2]
            raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "a second CONNECT")
        connect = packets.decode_connect(body)
        self.keep_alive_s = connect.keep_alive_s
        self.state = STATE_OPENING
        return self._add_event(connect)

    cdef int _handle_pubrel(self, const uint8_t* body, Py_ssize_t size) except -1:
        cdef uint16_t packet_id
        if size != 2:
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "PUBREL is not two bytes long")
        packet_id = get_u16(body)
        if self._qos2_received is not None:
            self._qos2_received.discard(packet_id)
        return self.write(packets.encode_acknowledgement(packets.PUBCOMP, packet_id))

    cdef int _check_empty(self, Py_ssize_t size, str name) except -1:
        if size:
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, f"{name} has a body")
        return 0

    def receive_eof(self):
        """The device closed its side; a will is due unless DISCONNECT came first."""
        if self.state != STATE_CLOSED:
            self._fail(reason_codes.CONNECTION_LOST, "")

    # QoS 1 and 2 from the device

    cdef int acknowledge(self, uint32_t sequence, uint32_t count) except -1:
        """`count` messages from `sequence` on are durable: write what is now due, in order."""
        if self.state == STATE_CLOSED:
            return 0
        return acknowledge_run(&self._acks, sequence, count, &self.output)

    def acknowledge_published(self, sequence, count=1):
        """`acknowledge` for callers in Python (tests and tools)."""
        self.acknowledge(sequence, count)

    @property
    def unacknowledged_count(self):
        """Messages of the device that wait for the broker's promise."""
        return self._acks.count

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
        self.write(packets.encode_connack(0, session_present=session_present))
        self.state = STATE_CONNECTED
        waiting = self._input
        self._input = ByteBuffer(NULL, 0, 0, 0)
        try:
            if waiting.size:
                self.receive(waiting.data, waiting.size)
        finally:
            free(waiting.data)

    def refuse(self, reason, str detail=""):
        """End the connection; before it is open, with the CONNACK code the specification has for it."""
        self._fail(reason, detail)

    def send_suback(self, packet_id, return_codes):
        """Answer a SUBSCRIBE with one code per filter: the granted QoS, or 0x80."""
        self.write(packets.encode_suback(packet_id, return_codes))

    def send_unsuback(self, packet_id):
        """Answer an UNSUBSCRIBE."""
        self.write(packets.encode_acknowledgement(packets.UNSUBACK, packet_id))

    def close(self, reason, str detail=""):
        """End the connection from the server's side."""
        self._fail(reason, detail)

    cdef void _fail(self, object reason, str detail):
        if self.state == STATE_CLOSED:
            return
        if self.state in (STATE_AWAITING_CONNECT, STATE_OPENING) and reason.connack_code is not None:
            self.write(packets.encode_connack(reason.connack_code, session_present=False))
        self.state = STATE_CLOSED
        self.close_reason = reason
        self.close_detail = detail
        release(&self._input)
