"""The server's side of one MQTT connection, version 3.1, 3.1.1 or 5: bytes and time in, bytes and events out.

Operations: millions of PUBLISH a second over many connections, and a million idle ones. Goals: no Python
object per PUBLISH, PUBACK or delivered message; an idle connection costs a few hundred bytes. Plan: packets
are parsed where they lie (`framing`); a PUBLISH goes to a `PublishSink` as pointers; acknowledgements wait in a
ring in the order of their PUBLISH and leave together (`acknowledgements`); what goes to the device is
encoded once, into
the output (`outbound`); buffers exist only while they hold something. Measured in docs/explanation/performance.md
(`benchmarks/mqtt_side_by_side.py`, `benchmarks/mqtt_decoder.py`).

States, and what moves a connection between them:

    AWAITING_CONNECT --CONNECT-->        OPENING     input is kept until the session is open
    OPENING          --ask_authentication-->  AUTHENTICATING   AUTH and DISCONNECT are taken, nothing else
    AUTHENTICATING   --AUTH-->           OPENING
    OPENING          --open_session-->   CONNECTED
    any              --error, DISCONNECT, close--> CLOSED   input is dropped, output may still leave

Verbs: receive_data, receive_eof, events_received, data_to_send, next_deadline; open_session, refuse,
ask_authentication, accept_authentication, send_suback, send_unsuback, close. A rule the device breaks never
raises out of receive_data: it closes the connection with a reason.

The version is that of the CONNECT. MQTT 5 adds to each packet what the tables of its properties say
(`publish_properties`, `properties`); everything else is the same code.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free

from iotmq.message.records.layout cimport get_u16
from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer, append, release
from iotmq.mqtt.codec.framing cimport Packet, PublishHead, next_packet, read_publish_head, variable_integer_size
from iotmq.mqtt.codec.packet_types cimport (
    LEVEL_3_1, LEVEL_3_1_1, LEVEL_5, PACKET_AUTH, PACKET_CONNECT, PACKET_DISCONNECT, PACKET_PINGREQ,
    PACKET_PUBACK, PACKET_PUBCOMP, PACKET_PUBLISH, PACKET_PUBREC,
    PACKET_PUBREL, PACKET_SUBSCRIBE, PACKET_UNSUBSCRIBE, STATE_AUTHENTICATING, STATE_AWAITING_CONNECT, STATE_CLOSED,
    STATE_CONNECTED, STATE_OPENING,
)
from iotmq.mqtt.codec.publish_properties cimport PublishProperties, read_publish_properties
from iotmq.mqtt.codec.text_values cimport is_utf8
from iotmq.mqtt.server.acknowledgements cimport (
    Acknowledgement, acknowledge_run, check_expected, expect_acknowledgement, expected_at, refuse_repeated,
)
from iotmq.mqtt.server.connection_settings cimport ConnectionSettings
from iotmq.mqtt.server.outbound cimport OutboundHalf
from iotmq.mqtt.server.publish_sink cimport Publication, PublishSink
from iotmq.mqtt.topics.topic_aliases cimport InboundAliases, OutboundAliases

from dataclasses import replace
from functools import partial

from iotmq import limits
from iotmq.mqtt import reason_codes
from iotmq.mqtt.auth.enhanced import EnhancedAuthentication
from iotmq.mqtt.codec import packets
from iotmq.mqtt.codec.properties import NO_PROPERTIES, Properties
from iotmq.mqtt.errors import MqttProtocolError

cdef enum:
    REASON_CHARACTERS_MAX = 512

# What stands for the broker of a packet id that was restored.
cdef object RESTORED = object()
cdef uint32_t _CONNECT_BYTES_MAX = limits.MQTT_CONNECT_BYTES_MAX

AWAITING_CONNECT = STATE_AWAITING_CONNECT
OPENING = STATE_OPENING
CONNECTED = STATE_CONNECTED
CLOSED = STATE_CLOSED
AUTHENTICATING = STATE_AUTHENTICATING


cdef class ServerConnection(OutboundHalf):
    """One device's connection. See the module's text for states and verbs."""

    def __init__(self, ConnectionSettings settings not None, PublishSink sink not None, double now_s):
        self.settings = settings
        self.sink = sink
        self.last_received_s = now_s
        self._connect_deadline_s = now_s + settings.connect_timeout_s
        self.state = STATE_AWAITING_CONNECT
        self.protocol_level = LEVEL_3_1_1
        self._receive_max = 0xFFFF
        self._window_max = <uint16_t>settings.in_flight_max
        self._sent_bytes_max = 0xFFFFFFFF

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
        self.counts.bytes_received += size
        try:
            self._receive_packets(data, size)
        except MqttProtocolError as error:
            self._fail(error.reason, str(error))
        return 0

    cdef int _receive_packets(self, const uint8_t* data, Py_ssize_t size) except -1:
        cdef Py_ssize_t at = 0
        cdef Packet packet
        cdef uint32_t bytes_max
        while at < size:
            if self.state == STATE_CLOSED:
                return 0
            if self.state != STATE_CONNECTED and not self._input.size:
                self._check_first_byte(data[at])
            if self.state == STATE_OPENING:
                return append(&self._input, data + at, size - at)
            if self._events_max and self._events is not None and len(self._events) >= self._events_max:
                self._is_waiting_for_events = True
            if self.is_answer_due and not self._input.size and _keeps_order(data[at]):
                self._is_waiting_for_events = True
            if self._is_waiting_for_events:
                return append(&self._input, data + at, size - at)
            bytes_max = self.settings.packet_bytes_max
            if self.state != STATE_CONNECTED:
                bytes_max = min(bytes_max, _CONNECT_BYTES_MAX)
            if not next_packet(&self._input, data, size, &at, bytes_max, &packet):
                return 0
            if self.protocol_level == LEVEL_5 and packet.size + 5 > self.settings.packet_bytes_max:
                self._check_whole_size(packet.size)
            if packet.memory == NULL:
                self._handle_packet(&packet)
                continue
            self._unfinished_since_s = 0
            try:
                self._handle_packet(&packet)
            finally:
                free(packet.memory)
        return 0

    cdef int _check_length_form(self, const Packet* packet) except -1:
        """MQTT 5 has variable byte integers in their shortest form only [MQTT-1.5.5-1]; 3.1.1 does not say."""
        cdef int level = self.protocol_level
        if self.state == STATE_AWAITING_CONNECT:
            level = packets.answer_level(packet.body[:packet.size])
        if level == LEVEL_5:
            self.protocol_level = LEVEL_5
            raise MqttProtocolError(
                reason_codes.MALFORMED_PACKET, "a packet has a remaining length that is not in its shortest form"
            )
        return 0

    cdef int _check_whole_size(self, Py_ssize_t size) except -1:
        """Refuse a packet past the maximum told to the device, which counts the fixed header, too [MQTT-3.2.2-15]."""
        if 1 + variable_integer_size(<uint32_t>size) + size > self.settings.packet_bytes_max:
            raise MqttProtocolError(
                reason_codes.PACKET_TOO_LARGE,
                f"a packet with {size} bytes behind its header;"
                f" mqtt.packet_bytes_max is {self.settings.packet_bytes_max}",
            )
        return 0

    cdef int _check_first_byte(self, uint8_t first) except -1:
        """Refuse what is no packet of this state (HTTP, TLS), before anything is kept for it."""
        if self.state != STATE_AWAITING_CONNECT:
            if self._authentication is not None and first >> 4 not in (PACKET_AUTH, PACKET_DISCONNECT):
                raise MqttProtocolError(    # [MQTT-3.1.2-30]
                    reason_codes.PROTOCOL_ERROR, f"packet type {first >> 4} while the client is being authenticated"
                )
            return 0
        if first >> 4 != PACKET_CONNECT:  # [MQTT-3.1.0-1]
            raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "the first packet is not CONNECT")
        if first & 0x0F:
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "CONNECT has flags in its first byte")
        return 0

    cdef int _handle_packet(self, const Packet* packet) except -1:
        cdef int packet_type = packet.first >> 4
        if self._is_over and packet_type in (PACKET_SUBSCRIBE, PACKET_UNSUBSCRIBE):
            return 0    # nobody is left to be answered, and deciding on thousands of them would take the loop's time
        if packet.is_length_padded:
            self._check_length_form(packet)
        if packet_type == PACKET_PUBLISH:
            return self._handle_publish(packet)
        if packet.first & 0x0F == 0 and packet.size == 2:
            if packet_type == PACKET_PUBACK:
                return self.handle_puback(get_u16(packet.body))
            if packet_type == PACKET_PUBREC:
                return self.handle_pubrec(get_u16(packet.body), 0)
            if packet_type == PACKET_PUBCOMP:
                return self.handle_pubcomp(get_u16(packet.body))
        return self._handle_rare(packet.first, packet.body, packet.size)

    cdef int _handle_publish(self, const Packet* packet) except -1:
        cdef PublishHead head
        cdef Publication publication
        cdef PublishProperties properties
        self.counts.messages_received += 1
        read_publish_head(packet, self.protocol_level, &head)
        publication.topic = head.topic
        publication.topic_size = head.topic_size
        publication.properties = NULL
        publication.sequence = 0
        publication.packet_id = head.packet_id
        publication.qos = head.qos
        publication.is_retained = head.is_retained
        publication.is_duplicate = head.is_duplicate
        if self.protocol_level == LEVEL_5:
            head.size += read_publish_properties(packet.body + head.size, packet.size - head.size, &properties)
            if properties.raw_size:
                publication.properties = &properties
            if properties.topic_alias:
                if self._inbound_aliases is None:
                    self._inbound_aliases = InboundAliases(self.settings.topic_aliases_max)
                self._inbound_aliases.resolve(
                    properties.topic_alias, &publication.topic, &publication.topic_size
                )
            elif not publication.topic_size:
                raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "PUBLISH has neither a topic nor an alias")
        publication.payload = packet.body + head.size
        publication.payload_size = packet.size - head.size
        if head.qos == 1:
            publication.sequence = expect_acknowledgement(&self._acks, head.packet_id, PACKET_PUBACK)
        elif head.qos == 2 and not self._begin_qos2(&publication):
            return 0
        if head.qos and self._receive_max < 0xFFFF:
            self._check_receive_max()
        if self.settings.checks_payload_format and publication.properties != NULL and properties.payload_format:
            if not is_utf8(publication.payload, publication.payload_size, 0):
                return self._refuse_payload(&publication)
        return self.sink.on_publish(self, &publication)

    cdef int _refuse_payload(self, const Publication* publication) except -1:
        """Refuse a payload that is not the UTF-8 its format indicator promises (section 3.3.2.3.2)."""
        if publication.qos:
            return self.refuse_published(publication.sequence, 1, reason_codes.PAYLOAD_FORMAT_INVALID.v5_code)
        raise MqttProtocolError(reason_codes.PAYLOAD_FORMAT_INVALID, "PUBLISH has a payload that is not UTF-8")

    cdef int _begin_qos2(self, Publication* publication) except -1:
        """Return whether a message of QoS 2 is a new one: it is handed on at once, and not again until its PUBREL.

        That is method B of section 4.3.3.
        """
        cdef uint16_t packet_id = publication.packet_id
        if self._qos2_received is None:
            self._qos2_received = {}
        publication.sequence = expect_acknowledgement(&self._acks, packet_id, PACKET_PUBREC)
        if packet_id in self._qos2_received and (
            # Of an earlier connection: without DUP it is another message [MQTT-4.3.3-12].
            publication.is_duplicate or self._qos2_received[packet_id] is not RESTORED
        ):
            self.acknowledge(publication.sequence, 1)
            return False
        self._qos2_received[packet_id] = None
        return True

    cdef int _check_receive_max(self) except -1:
        """The device was told how much it may send without an answer [MQTT-3.3.4-7]."""
        cdef Py_ssize_t count = self._acks.qos1_count
        if self._qos2_received is not None:
            count += len(self._qos2_received)
        if count > <Py_ssize_t>self._receive_max + self._resumed_count:
            raise MqttProtocolError(
                reason_codes.RECEIVE_MAXIMUM_EXCEEDED,
                f"{count} messages without an answer; mqtt.receive_max is {self._receive_max}",
            )
        return 0

    cdef int _handle_rare(self, uint8_t first, const uint8_t* body, Py_ssize_t size) except -1:
        cdef int packet_type = first >> 4
        cdef int level = self.protocol_level
        if not self._are_flags_right(packet_type, first & 0x0F):  # [MQTT-2.2.2-1, -2]
            raise MqttProtocolError(
                reason_codes.MALFORMED_PACKET, f"packet type {packet_type} has flags {first & 0x0F:#x}"
            )
        if packet_type == PACKET_CONNECT:
            return self._handle_connect(body[:size])
        if packet_type == PACKET_SUBSCRIBE:
            self.is_answer_due = self._events_max != 0
            return self._add_event(packets.decode_subscribe(body[:size], level, is_bridge=self._is_bridge))
        if packet_type == PACKET_UNSUBSCRIBE:
            self.is_answer_due = self._events_max != 0
            return self._add_event(packets.decode_unsubscribe(body[:size], level))
        if packet_type == PACKET_PUBREL or level == LEVEL_5 and PACKET_PUBACK <= packet_type <= PACKET_PUBCOMP:
            return self._handle_receipt(packet_type, body[:size])
        if packet_type == PACKET_PINGREQ:
            self._check_empty(size, "PINGREQ")
            return self.write(packets.PINGRESP_PACKET)
        if packet_type == PACKET_DISCONNECT:
            return self._handle_disconnect(body[:size])
        if packet_type == PACKET_AUTH and level == LEVEL_5:
            return self._handle_auth(body[:size])
        # CONNACK, SUBACK, UNSUBACK, PINGRESP are the server's; 0 is reserved, and 15 before MQTT 5; a PUBACK,
        # PUBREC or PUBCOMP gets here when malformed.
        raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, f"packet type {packet_type} is not for a server")

    cdef bint _are_flags_right(self, int packet_type, int flags) except -1:
        cdef int wanted = 2 if packet_type in (PACKET_PUBREL, PACKET_SUBSCRIBE, PACKET_UNSUBSCRIBE) else 0
        if self.protocol_level == LEVEL_3_1 and wanted:
            # It has DUP there.
            flags &= ~8
        return flags == wanted

    cdef int _handle_connect(self, bytes body) except -1:
        if self.state != STATE_AWAITING_CONNECT:  # [MQTT-3.1.0-2]
            raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "a second CONNECT")
        self.protocol_level = packets.answer_level(body)
        connect = packets.decode_connect(body)
        self.protocol_level = connect.protocol_level
        self._is_bridge = connect.is_bridge
        if self.protocol_level == LEVEL_5:
            self._apply_limits(connect.properties)
        self.keep_alive_s = connect.keep_alive_s
        self.session_expiry_s = connect.properties.session_expiry_s or 0
        self.state = STATE_OPENING
        return self._add_event(connect)

    def _apply_limits(self, properties):
        """Take over the limits of a device of MQTT 5."""
        self._receive_max = self.settings.receive_max
        self._wants_reasons = properties.request_problem_information != 0
        if properties.receive_max is not None:
            self._window_max = min(self._window_max, properties.receive_max)
        if properties.packet_bytes_max is not None:
            self._sent_bytes_max = properties.packet_bytes_max
        if properties.topic_alias_max:
            self._aliases = OutboundAliases(min(properties.topic_alias_max, self.settings.topic_aliases_max))
        if properties.authentication_method is None:
            return
        if properties.authentication_method not in self.settings.authentication_methods:    # [MQTT-4.12.0-1]
            raise MqttProtocolError(
                reason_codes.BAD_AUTHENTICATION_METHOD,
                f"authentication method {properties.authentication_method[:64]!r} is not supported",
            )
        self._authentication = EnhancedAuthentication(
            properties.authentication_method, properties.authentication_data
        )

    cdef int _handle_receipt(self, int packet_type, bytes body) except -1:
        """PUBACK, PUBREC, PUBREL or PUBCOMP that is not just a packet id."""
        if self.protocol_level == LEVEL_5:
            packet_id, code = packets.decode_acknowledgement(packet_type, body)
        elif len(body) == 2:
            packet_id, code = int.from_bytes(body, "big"), 0
        else:
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, "PUBREL is not two bytes long")
        if packet_type == PACKET_PUBACK:
            return self.handle_puback(packet_id)
        if packet_type == PACKET_PUBREC:
            return self.handle_pubrec(packet_id, code)
        if packet_type == PACKET_PUBREL:
            return self._release(packet_id)
        return self.handle_pubcomp(packet_id)

    cdef int _release(self, uint16_t packet_id) except -1:
        if packet_id == 0:  # [MQTT-2.2.1-3], 3.1.1 [MQTT-2.3.1-1]
            raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "PUBREL has packet id 0")
        if self._qos2_received is not None and packet_id in self._qos2_received:
            return self.released(packet_id, self._qos2_received.pop(packet_id), True)
        return self.released(packet_id, None, False)

    cdef int released(self, uint16_t packet_id, object broker, bint is_known) except -1:
        """PUBREL came, for a message that `broker` has, for one that is not stored yet, or for none."""
        return self.complete(
            packet_id, reason_codes.PACKET_ID_NOT_FOUND if not is_known and self.protocol_level == LEVEL_5 else 0
        )

    cdef int complete(self, uint16_t packet_id, int code) except -1:
        """Release a packet id: the device may use it for another message."""
        return self.write(packets.encode_acknowledgement(packets.PUBCOMP, packet_id, code))

    cdef int _handle_disconnect(self, bytes body) except -1:
        disconnect = packets.Disconnect()
        if self.protocol_level == LEVEL_5:
            disconnect = packets.decode_disconnect(body)
            if disconnect.session_expiry_s and not self.session_expiry_s:  # section 3.14.2.2.2
                raise MqttProtocolError(
                    reason_codes.PROTOCOL_ERROR, "DISCONNECT has a session expiry for a session that has none"
                )
        else:
            self._check_empty(len(body), "DISCONNECT")
        self._add_event(disconnect)
        self._fail(reason_codes.NORMAL, "")
        return 0

    cdef int _handle_auth(self, bytes body) except -1:
        auth = packets.decode_auth(body)
        if self._authentication is None:    # [MQTT-4.12.0-7]
            raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "AUTH after a CONNECT without a method")
        self._authentication.client_sent(auth)
        if self.state == STATE_AUTHENTICATING:
            self.state = STATE_OPENING
        return self._add_event(auth)

    cdef int _check_empty(self, Py_ssize_t size, str name) except -1:
        if size:
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, f"{name} has a body")
        return 0

    def receive_eof(self):
        """Note that the device closed its side; a will is due unless DISCONNECT came first."""
        self._is_over = True
        self._events_max = 0
        self.is_answer_due = False
        self._waits_for_turn = False
        self._receive_behind_events()
        if self.state != STATE_CLOSED:
            self._fail(reason_codes.CONNECTION_LOST, "")

    # QoS 1 and 2 from the device

    cdef int acknowledge(self, uint32_t sequence, uint32_t count) except -1:
        """`count` messages from `sequence` on are durable: write what is now due, in order."""
        if self.state == STATE_CLOSED:
            return 0
        return acknowledge_run(&self._acks, sequence, count, 0, &self.output)

    cdef int note_stored(self, uint32_t sequence, uint32_t count, object broker) except -1:
        """`broker` has the packet ids of QoS 2 among `count` messages from `sequence` on."""
        cdef uint32_t index
        cdef Acknowledgement* expected
        if self.state == STATE_CLOSED or self._qos2_received is None:
            return 0
        for index in range(count):
            expected = expected_at(&self._acks, sequence + index)
            if expected.packet_type == PACKET_PUBREC and expected.packet_id in self._qos2_received:
                self._qos2_received[expected.packet_id] = broker
        return 0

    cdef int refuse_published(self, uint32_t sequence, uint32_t count, uint8_t code) except -1:
        """`count` messages from `sequence` on are not stored: tell a device of MQTT 5 with this code."""
        cdef uint32_t index
        if self.state == STATE_CLOSED:
            return 0
        check_expected(&self._acks, sequence, count)
        for index in range(count):
            # A PUBREC with an error ends the message [MQTT-4.3.3-9].
            if self._qos2_received is not None and expected_at(&self._acks, sequence + index).packet_type == PACKET_PUBREC:
                self._qos2_received.pop(expected_at(&self._acks, sequence + index).packet_id, None)
                refuse_repeated(&self._acks, sequence + index, code)
        return acknowledge_run(&self._acks, sequence, count, code, &self.output)

    def acknowledge_published(self, sequence, count=1):
        """`acknowledge` for callers in Python (tests and tools)."""
        self.acknowledge(sequence, count)

    @property
    def unacknowledged_count(self):
        """Messages of the device that wait for the broker's promise."""
        return self._acks.count

    @property
    def received_packet_ids(self):
        """Return the packet ids of `restore_received` not released yet, for a session that moves."""
        return sorted(key for key, broker in (self._qos2_received or {}).items() if broker is RESTORED)

    def restore_received(self, packet_ids not None):
        """Know the packet ids of an earlier connection of the session, which no record has.

        Before the connection is open, or what came behind its CONNECT would be handled without them.
        """
        self._qos2_received = dict.fromkeys(packet_ids, RESTORED) if packet_ids else None
        self._resumed_count = <uint32_t>len(packet_ids)

    # Events and time

    cdef int _add_event(self, event) except -1:
        if self._events is None:
            self._events = []
        self._events.append(event)
        return 0

    def events_received(self):
        """Return the Connect, Auth, Subscribe, Unsubscribe and Disconnect events since the last call, in order.

        More may be there behind them, when their number had a maximum.
        """
        events = self._events
        self._events = None
        self._receive_behind_events()
        return events if events is not None else ()

    cdef int _receive_behind_events(self) except -1:
        """Handle the input that was kept while events waited, or an answer was due."""
        if self._is_waiting_for_events and not self.is_answer_due and not self._waits_for_turn:
            self._is_waiting_for_events = False
            self._receive_waiting()
        return 0

    @property
    def has_events(self):
        """Return whether `events_received` has something."""
        return self._events is not None

    def next_deadline(self):
        """Return when the device has been silent for too long [MQTT-3.1.2-24], in seconds; None when never.

        Bytes that are not yet a CONNECT do not move the first deadline, or they could hold a connection for ever.
        """
        if self.state == STATE_AWAITING_CONNECT or self.state == STATE_AUTHENTICATING:
            return self._connect_deadline_s
        if self.state == STATE_CLOSED or self.keep_alive_s == 0:
            return None
        return self.last_received_s + 1.5 * self.keep_alive_s

    # Answers

    def open_session(self, *, bint session_present, properties=NO_PROPERTIES):
        """Accept the CONNECT; input that came behind it is handled now.

        `properties` are what a device of MQTT 5 is told beside the limits of the connection. False when the device
        takes no CONNACK of that size: its connection has ended, and was never open.
        """
        if self.state != STATE_OPENING:
            return False
        if not self._write_connack(0, session_present and self.protocol_level != LEVEL_3_1, properties):
            self._fail(reason_codes.PACKET_TOO_LARGE, "the CONNACK is larger than the client takes")
            return False
        self.state = STATE_CONNECTED
        self._receive_waiting()
        return True

    cdef int _receive_waiting(self) except -1:
        """Handle the input that was kept for a while."""
        cdef ByteBuffer waiting = self._input
        self._input = ByteBuffer(NULL, 0, 0, 0)
        try:
            if waiting.size:
                self.receive(waiting.data, waiting.size)
        finally:
            free(waiting.data)
        return 0

    def ask_authentication(self, data=None):
        """Go on with the exchange of a device that has an authentication method, after its CONNECT or an AUTH."""
        if self.state == STATE_CLOSED:
            return
        self._send_auth(reason_codes.CONTINUE_AUTHENTICATION, self._authentication.server_asks(data))
        if self.state == STATE_OPENING:
            self.state = STATE_AUTHENTICATING
            self._receive_waiting()

    def accept_authentication(self, data=None):
        """Accept the device, proved by the exchange: `data` goes into its CONNACK, or an AUTH when it is connected."""
        if self.state == STATE_OPENING:
            self._authentication.final_data = data
        elif self.state == STATE_CONNECTED:
            self._send_auth(0, self._authentication.server_accepts(data))

    def _send_auth(self, code, properties):
        packet = packets.encode_auth(code, properties)
        if len(packet) > self._sent_bytes_max:
            self._fail(reason_codes.PACKET_TOO_LARGE, f"an AUTH of {len(packet)} bytes is larger than the client takes")
        else:
            self.write(packet)

    def _write_connack(self, code, session_present, properties):
        if self.protocol_level != LEVEL_5:
            properties = None
        elif code == 0:
            properties = replace(
                properties,
                receive_max=self.settings.receive_max,
                packet_bytes_max=self.settings.packet_bytes_max,
                topic_alias_max=self.settings.topic_aliases_max,
            )
            if self._authentication is not None:
                accepted = self._authentication.server_accepts(self._authentication.final_data)
                properties = replace(
                    properties,
                    authentication_method=accepted.authentication_method,
                    authentication_data=accepted.authentication_data,
                )
        packet = packets.encode_connack(code, session_present=session_present, properties=properties)
        if len(packet) > self._sent_bytes_max:
            return False
        self.write(packet)
        return True

    def refuse(self, reason, str detail=""):
        """End the connection; before it is open, with the CONNACK code the specification has for it."""
        self._fail(reason, detail)

    def send_suback(self, packet_id, codes, str detail=""):
        """Answer a SUBSCRIBE with one code per filter: the granted QoS, or 0x80 and above.

        A device of MQTT 5 that wants reason strings gets `detail`, too.
        """
        self.is_answer_due = False
        if self.protocol_level == LEVEL_5:
            if not self._wants_reasons:
                detail = ""
            packet = packets.encode_suback(packet_id, codes, Properties(reason_string=detail) if detail else NO_PROPERTIES)
            if detail and len(packet) > self._sent_bytes_max:       # [MQTT-3.9.2-1]
                packet = packets.encode_suback(packet_id, codes, NO_PROPERTIES)
            self.write(packet)
        else:
            codes = [min(code, reason_codes.SUBACK_FAILURE) for code in codes]
            self.write(packets.encode_suback(packet_id, codes))

    def send_unsuback(self, packet_id, codes):
        """Answer an UNSUBSCRIBE, with one code per filter where MQTT 5 has them."""
        self.is_answer_due = False
        if self.protocol_level == LEVEL_5:
            self.write(packets.encode_unsuback(packet_id, codes, NO_PROPERTIES))
        else:
            self.write(packets.encode_acknowledgement(packets.UNSUBACK, packet_id))

    def close(self, reason, str detail=""):
        """End the connection from the server's side."""
        self._fail(reason, detail)

    cdef void _fail(self, object reason, str detail):
        if self.state == STATE_CLOSED:
            return
        if self.protocol_level == LEVEL_5:
            self._write_reason(reason, detail)
        elif self.state != STATE_CONNECTED and reason.connack_code is not None:
            self._write_connack(reason.connack_code, False, None)
        self.state = STATE_CLOSED
        self.close_reason = reason
        self.close_detail = detail
        release(&self._input)

    def _write_reason(self, reason, detail):
        """Tell a device of MQTT 5 why, before its connection ends; a good-bye of its own has no answer."""
        if reason.v5_code < 0x80:
            return
        code = reason.v5_code
        told = Properties(reason_string=detail[:REASON_CHARACTERS_MAX]) if detail else NO_PROPERTIES
        if reason.server_reference is not None:
            told = replace(told, server_reference=reason.server_reference)
        if self.state != STATE_CONNECTED:
            code = code if code in reason_codes.CONNACK_CODES else reason_codes.UNSPECIFIED_ERROR.v5_code
            encode = partial(packets.encode_connack, code, session_present=False)
        else:
            code = code if code in reason_codes.SERVER_DISCONNECT_CODES else reason_codes.UNSPECIFIED_ERROR.v5_code
            encode = partial(packets.encode_disconnect, code)
        packet = encode(properties=told)
        if len(packet) > self._sent_bytes_max:      # [MQTT-3.2.2-19], [MQTT-3.14.2-3]
            packet = encode(properties=NO_PROPERTIES)
        if len(packet) <= self._sent_bytes_max:
            self.write(packet)


cdef bint _keeps_order(uint8_t first) noexcept nogil:
    """Return whether a packet waits for the answer to a SUBSCRIBE or UNSUBSCRIBE before it.

    A PUBLISH that passed a SUBSCRIBE would not be delivered for it, an UNSUBSCRIBE would not undo it, of several
    nobody could say how many filters the session has, and behind a DISCONNECT none would be kept. Acknowledgements
    and PINGREQ change nothing of that.
    """
    return first >> 4 in (PACKET_PUBLISH, PACKET_SUBSCRIBE, PACKET_UNSUBSCRIBE, PACKET_DISCONNECT)
