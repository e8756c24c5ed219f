"""A connection to another broker: MQTT as a client, over the parts that serve devices.

Operations: one call per answer of a pull, for thousands of records; one call per acknowledgement, in the packets
of the connection core. Goals: no Python object per message; nothing counts as sent before the other broker has
it. Plan: once CONNACK has come, the two sides of a connection do the same, so what is received goes the way of
a device's messages (`Ingress`), and what is sent that of messages for a device (`OutboundHalf`). Sent messages stand
in a ring until they are acknowledged; the offset of their queue follows the oldest. What the topic of a message
is at the other broker is remembered by topic. Measured by `benchmarks/mqtt_bridge.py`.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memchr, memcmp, memcpy

from iotmq.message.records.fields cimport FORMAT_OK, RecordParts
from iotmq.message.records.layout cimport AT_SIZE, RECORD_FIXED_BYTES, get_u16, get_u32, put_u16
from iotmq.message.records.record cimport parse_record
from iotmq.mqtt.codec.byte_buffer cimport append, reserve
from iotmq.mqtt.codec.packet_types cimport (
    LEVEL_5, PACKET_DISCONNECT, PACKET_PUBACK, PACKET_PUBCOMP, PACKET_PUBREC, STATE_AWAITING_CONNECT, STATE_CONNECTED,
    USER_PROPERTY,
)
from iotmq.mqtt.codec.publish_properties cimport next_user_property
from iotmq.mqtt.server.outbound cimport DeliveryOptions
from iotmq.mqtt.server.outbound_in_flight cimport InFlightSlot
from iotmq.mqtt.server.publish_sink cimport Publication, PublishSink
from iotmq.mqtt.topics.topic_aliases cimport OutboundAliases
from iotmq.mqtt.topics.topic_cache cimport TopicCache
from iotmq.mqtt_front.connection.device cimport Device
from iotmq.mqtt_front.connection.message_properties cimport append_publish_property
from iotmq.mqtt_front.connection.outgoing cimport OutgoingMessage
from iotmq.mqtt_front.publish.ingress cimport Ingress

from iotmq import limits
from iotmq.message.properties import MQTT_USER_PREFIX
from iotmq.mqtt import reason_codes
from iotmq.mqtt.client import server_packets
from iotmq.mqtt.codec import bridge_names, packets
from iotmq.mqtt.codec.properties import Properties
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt_bridge.refusals import LeftOut, Refusal
from iotmq.mqtt_front.connection.bridge_role import BridgeRole

cdef enum:
    OWN_PROPERTIES = 3
    CACHED_TOPICS_MAX = 65536
    PACKET_CONNACK = 2
    PACKET_SUBACK = 9
    PACKET_UNSUBACK = 11
    PACKET_PINGRESP = 13
    PROPERTY_END = 2
    COMMA = 44
    LEFT_OUT_TOLD = 16      # messages of one call that are told one by one; all are counted
    NOBODY = -1

cdef uint32_t USER_PROPERTIES_MAX = limits.MQTT_USER_PROPERTIES_MAX
cdef Py_ssize_t HOPS_BYTES_MAX = limits.BRIDGE_HOPS_BYTES_MAX
cdef bytes _USER = MQTT_USER_PREFIX.encode()
cdef bytes _OURS = (MQTT_USER_PREFIX + bridge_names.PREFIX).encode()
cdef bytes _HOPS = (MQTT_USER_PREFIX + bridge_names.HOPS_PROPERTY).encode() + b"\x01"
cdef bytes _HOPS_NAME = bridge_names.HOPS_PROPERTY.encode()
cdef bytes _CLIENT_ID_NAME = bridge_names.CLIENT_ID_PROPERTY.encode()
cdef bytes _MESSAGE_NAME = bridge_names.MESSAGE_PROPERTY.encode()

# What the same message would be refused with for ever: not allowed, no such topic, not the promised format.
_FINAL_CODES = frozenset((0x87, 0x90, 0x95, 0x99))
# The other broker has no room; that says nothing of the message.
_QUOTA_EXCEEDED = 0x97


# Its memory is freed by what a collection of cycles would clear before.
@cython.no_gc_clear
cdef class SentTopics:
    """Remembers what topics are at the other broker; `find` (topic_maps.SendMap.find) says so once for each."""

    def __init__(self, find not None):
        self._topics = TopicCache(CACHED_TOPICS_MAX, limits.MQTT_TOPIC_CACHE_BYTES_MAX)
        self._find = find

    def __dealloc__(self):
        if self._topics is not None:
            self._drop()

    cdef SentTarget* find(self, const uint8_t* topic, Py_ssize_t size) except NULL:
        cdef SentTarget* target = <SentTarget*>self._topics.find(topic, size)
        cdef bytes name
        cdef uint64_t value_bytes
        if target != NULL:
            return target
        found = self._find(topic[:size])
        name = b"" if found is None else found.topic
        value_bytes = sizeof(SentTarget) + len(name)
        if not self._topics.has_room(size + value_bytes):
            self._drop()
        target = <SentTarget*>calloc(1, sizeof(SentTarget))
        if target == NULL:
            raise MemoryError
        if found is not None:
            target.topic = <uint8_t*>malloc(len(name))
            if target.topic == NULL:
                free(target)
                raise MemoryError
            memcpy(target.topic, <const uint8_t*>name, len(name))
            target.topic_size = <uint16_t>len(name)
            target.qos_min = found.qos_min
            target.qos_max = found.qos_max
            target.is_retain_kept = found.is_retain_kept
        self._topics.insert(topic, size, target, value_bytes)
        return target

    cdef void _drop(self) noexcept:
        cdef uint64_t index
        cdef SentTarget* target
        for index in range(<uint64_t>self._topics.mask + 1):
            if self._topics.slots[index].topic != NULL:
                target = <SentTarget*>self._topics.slots[index].value
                free(target.topic)
                free(target)
        self._topics.clear_topics()


cdef class Progress:
    """How far one queue is at the other broker. `label` names the queue, `offset` is where it begins."""

    def __init__(self, str label not None, int64_t offset):
        self.label = label.encode()
        self.acked = self.sent = offset
        self._suspect = self._left_out = NOBODY

    @property
    def in_flight(self):
        """Messages without an acknowledgement."""
        return self._in_flight

    def passed(self, int64_t offset):
        """There is nothing below this offset that was not looked at."""
        self.sent = max(self.sent, offset)
        if not self._in_flight:
            self.acked = self.sent

    def rewind(self):
        """The connection is lost: what was not acknowledged is sent again by the next one."""
        self.sent = self.acked
        self._in_flight = 0
        self._place = 0

    def move(self, int64_t offset):
        """The queue begins anew here."""
        self.acked = self.sent = offset
        self._suspect = self._left_out = NOBODY

    @property
    def is_suspect(self):
        """Return whether the next message may be one that the other broker does not stand."""
        return self._suspect >= self.acked

    cdef str place(self, int64_t offset):
        return f"{self.label.decode()}{offset}"


cdef class BridgeCounts:
    """Counts what one bridge has done since its start."""


cdef class RefusingSink(PublishSink):
    """For connections that have subscribed nothing."""

    cdef int on_publish(self, object connection, const Publication* publication) except -1:
        raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "a PUBLISH came that was not subscribed")


cdef class BridgeIngress(Ingress):
    """Stores what comes from the other broker, but for what has been here before."""

    def __init__(self, router, port, loop, settings, rewrites, identity):
        """`identity`: the name of this gateway, and the counts of the bridge."""
        Ingress.__init__(self, router, port, loop, settings, rewrites=rewrites)
        gateway, self._counts = identity
        self._gateway = gateway.encode()

    cdef int on_publish(self, object connection, const Publication* publication) except -1:
        self._counts.received += 1
        if publication.properties != NULL and publication.properties.user_count and self._has_passed(publication):
            self._counts.looped += 1
            if publication.qos:
                (<Device>connection).acknowledge(publication.sequence, 1)
            return 0
        return Ingress.on_publish(self, connection, publication)

    cdef bint _has_passed(self, const Publication* publication) noexcept:
        cdef const uint8_t* end = publication.properties.raw + publication.properties.raw_size
        cdef const uint8_t* at = next_user_property(publication.properties.raw, end)
        cdef bint is_hops
        while at != NULL:
            is_hops = get_u16(at) == len(_HOPS_NAME) and memcmp(at + 2, <const char*>_HOPS_NAME, len(_HOPS_NAME)) == 0
            at += 2 + get_u16(at)
            if is_hops and (get_u16(at) > HOPS_BYTES_MAX or _has_name(at + 2, get_u16(at), self._gateway)):
                return True
            at = next_user_property(at + 2 + get_u16(at), end)
        return False


cdef class BridgeConnection(Device):
    """One connection, for one life of it; `bridge` has what does not change (identity.BridgeIdentity)."""

    def __init__(self, group not None, settings not None, bridge not None, SentTopics topics, BridgeCounts counts not None):
        cdef uint32_t capacity = 16
        Device.__init__(self, group, settings)
        # Room for those behind one that is late.
        while capacity < 2 * <uint32_t>self._window_max:
            capacity *= 2
        self._ring = <Sent*>calloc(capacity, sizeof(Sent))
        if self._ring == NULL:
            raise MemoryError
        self._ring_mask = capacity - 1
        self._gateway = bridge.gateway.encode()
        self._mark = bridge.mark.encode()
        self._adds_properties = bridge.adds_properties
        self._forwards_bridged = bridge.forwards_bridged
        self._drops_qos0_offline = bridge.drops_qos0_offline
        self._is_retain_available = True
        self._topics = topics
        self._counts = counts
        self._progress = []
        self.left_out = []
        self._refused = NOBODY
        self._remote = b""
        self._message = OutgoingMessage(self.group.clock)
        self._message.takes_any_record = bridge.takes_any_record

    def __dealloc__(self):
        free(self._ring)
        free(self._extra.data)
        free(self._passed.data)

    # What a client says

    def begin(self, connect not None, received=(), bint is_careful=False):
        """Send CONNECT.

        `received` are the packet ids of QoS 2 that the connection before has stored, should the session go on. Who is
        careful sends one message, and one more at a time with each that is acknowledged.
        """
        self._is_careful = is_careful
        self.restore_received(received)
        self.protocol_level = connect.protocol_level
        self.keep_alive_s = connect.keep_alive_s
        if self.protocol_level == LEVEL_5:
            self._receive_max = self.settings.receive_max
        self._say(packets.encode_connect(connect))

    def subscribe(self, subscriptions not None):
        """Ask for (filter, options) pairs."""
        properties = Properties() if self.protocol_level == LEVEL_5 else None
        self._say(packets.encode_subscribe(self.take_packet_id(), subscriptions, properties))

    def ping(self):
        """Ask whether the other broker is there."""
        self._say(packets.PINGREQ_PACKET)

    def leave(self):
        """Say good-bye."""
        if self.state == STATE_CONNECTED:
            self.write(packets.DISCONNECT_PACKET)
        self.close(reason_codes.NORMAL)
        self.finish()

    def _say(self, bytes packet):
        self.write(packet)
        self.group.touch(self)

    def _write_reason(self, reason, detail):
        if self.state == STATE_CONNECTED and reason.v5_code >= 0x80:
            code = reason.v5_code if reason.v5_code in packets.CLIENT_CODES[packets.DISCONNECT] else 0x80
            self.write(packets.encode_disconnect(code))

    def _write_connack(self, code, session_present, properties):
        return True

    # What a server says

    cdef int _check_first_byte(self, uint8_t first) except -1:
        if self.state == STATE_AWAITING_CONNECT and first >> 4 not in (PACKET_CONNACK, PACKET_DISCONNECT):
            raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "the first packet is not CONNACK")  # [MQTT-3.2.0-1]
        return 0

    cdef int _handle_rare(self, uint8_t first, const uint8_t* body, Py_ssize_t size) except -1:
        cdef int packet_type = first >> 4
        if PACKET_PUBACK <= packet_type <= PACKET_PUBCOMP:
            return Device._handle_rare(self, first, body, size)
        if first & 0x0F:
            raise MqttProtocolError(reason_codes.MALFORMED_PACKET, f"packet type {packet_type} has flags")
        if packet_type == PACKET_CONNACK and self.state == STATE_AWAITING_CONNECT:
            return self._take_connack(body[:size])
        if packet_type == PACKET_SUBACK and self.state == STATE_CONNECTED:
            answers = server_packets.decode_suback(body[:size], self.protocol_level)
            self.free_packet_id(answers.packet_id)
            return self._add_event(answers)
        if packet_type == PACKET_PINGRESP and self.state == STATE_CONNECTED:
            return self._check_empty(size, "PINGRESP")
        if packet_type == PACKET_DISCONNECT and self.protocol_level == LEVEL_5:
            self._add_event(server_packets.decode_server_disconnect(body[:size]))
            self._fail(reason_codes.CONNECTION_LOST, "")
            return 0
        raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, f"packet type {packet_type} is not for a client")

    cdef int _take_connack(self, bytes body) except -1:
        connack = server_packets.decode_connack(body, self.protocol_level)
        properties = connack.properties
        if connack.code == 0:
            if properties.receive_max is not None:
                self._window_max = min(self._window_max, properties.receive_max)
            self._window_goal = self._window_max
            if self._is_careful:
                self._window_max = 1
            if not connack.is_session_present:
                self.restore_received(())
            if properties.packet_bytes_max is not None:
                self._sent_bytes_max = properties.packet_bytes_max
            if properties.topic_alias_max:
                self._aliases = OutboundAliases(min(properties.topic_alias_max, self.settings.topic_aliases_max))
            self._is_retain_available = properties.is_retain_available != 0
            if properties.server_keep_alive_s:
                self.keep_alive_s = properties.server_keep_alive_s
            for name, value in properties.user_properties:
                if name == bridge_names.GATEWAY_PROPERTY:
                    self._remote = value.encode()
            # At once: what a session was kept for may be in the same bytes.
            role = BridgeRole(self._mark.decode(), is_trusted=self._adds_properties, passed=self._remote.decode())
            self.bridge = role
            self.properties = role.properties
            self._connected_ms = self.group.clock.now_ms()
            self.state = STATE_CONNECTED
        return self._add_event(connack)

    cdef int _handle_receipt(self, int packet_type, bytes body) except -1:
        cdef InFlightSlot* slot
        cdef Sent* sent
        if packet_type not in (PACKET_PUBACK, PACKET_PUBREC) or self.protocol_level != LEVEL_5:
            return Device._handle_receipt(self, packet_type, body)
        receipt = server_packets.decode_receipt(packet_type, body, LEVEL_5)
        slot = self._slot_of(receipt.packet_id)
        if receipt.code >= 0x80 and slot != NULL and slot.awaited == packet_type:
            sent = &self._ring[slot.place & self._ring_mask]
            is_final, is_later = receipt.code in _FINAL_CODES, receipt.code == _QUOTA_EXCEEDED
            place = (<Progress>self._progress[sent.progress]).place(sent.offset)
            self._add_event(Refusal(place, receipt.code, receipt.properties.reason_string or "", is_final, is_later))
            if not is_final:
                # It may be taken later: the queue waits, and it is sent again.
                if not is_later:
                    self._refused = slot.place
                reason = reason_codes.reason_text(receipt.code)
                self._fail(reason_codes.QUOTA_EXCEEDED, f"a message was not taken: {reason}")
                return 0
            self._counts.refused += 1
        if packet_type == PACKET_PUBREC:
            return self.handle_pubrec(receipt.packet_id, receipt.code)
        return self.handle_puback(receipt.packet_id)

    # Records of the log

    @property
    def remote(self):
        """The name of the gateway at the other end, empty when it has not said one."""
        return self._remote.decode()

    @property
    def can_send(self):
        """Return whether a record would leave now."""
        return self.has_room() and self._tail - self._head <= self._ring_mask

    @property
    def oldest_ms(self):
        """When the oldest message without an acknowledgement was stored; None when there is none."""
        return self._ring[self._head & self._ring_mask].stored_ms if self._head != self._tail else None

    def send_records(
        self, Progress progress not None, const uint8_t[::1] records not None, Py_ssize_t at, uint32_t count_max
    ):
        """Send `count_max` records at most from byte `at` on, while there is room; returns where the next one is."""
        cdef RecordParts record
        cdef Py_ssize_t size = records.shape[0]
        if not progress._place:
            self._progress.append(progress)
            progress._place = <uint32_t>len(self._progress)
        while at < size and count_max:
            if not self.has_room() or self._tail - self._head > self._ring_mask:
                break
            count_max -= 1
            if parse_record(&records[0] + at, &records[0] + size, &record) != FORMAT_OK:
                at += self._pass_unreadable(progress, &records[0] + at, size - at)
                continue
            if record.queue_offset >= progress.sent:
                self._send(progress, &record)
                progress.sent = record.queue_offset + 1
                if not progress._in_flight:
                    progress.acked = progress.sent
            at += record.size
        if self.output.size:
            self.group.touch(self)
        return at

    cdef Py_ssize_t _pass_unreadable(self, Progress progress, const uint8_t* at, Py_ssize_t left) except -1:
        """Leave out a record that is none, and all behind it when it does not say how large it is."""
        cdef Py_ssize_t size = get_u32(at + AT_SIZE) if left >= RECORD_FIXED_BYTES else 0
        cdef bint is_one = RECORD_FIXED_BYTES <= size <= left
        self._counts.unreadable += 1
        self._tell(progress, progress.sent, "a record cannot be read" if is_one else "records cannot be read from here on")
        return size if is_one else left

    cdef int _tell(self, Progress progress, int64_t offset, str why) except -1:
        if len(self.left_out) < LEFT_OUT_TOLD:
            self.left_out.append(LeftOut(progress.place(offset), why))
        return 0

    cdef int _send(self, Progress progress, const RecordParts* record) except -1:
        cdef OutgoingMessage message = self._message
        cdef SentTarget* target
        cdef DeliveryOptions options
        cdef uint16_t packet_id
        cdef Sent* sent
        if record.queue_offset == progress._left_out:
            return 0
        if not message.read(record):
            self._counts.skipped += 1
            return 0
        target = self._topics.find(message.view.topic, message.view.topic_size)
        if target.topic == NULL:
            self._counts.skipped += 1
            return 0
        if message.is_expired:
            self._counts.expired += 1
            return 0
        options.qos = <uint8_t>min(max(message.qos, <int>target.qos_min), <int>target.qos_max)
        options.is_retained = message.is_retained and target.is_retain_kept and self._is_retain_available
        options.is_duplicate = False
        options.identifiers = NULL
        options.identifiers_count = 0
        if not options.qos and self._drops_qos0_offline and record.store_timestamp_ms < self._connected_ms:
            self._counts.dropped += 1
            return 0
        if not self._put_properties(progress, record):
            return 0
        message.view.topic = target.topic
        message.view.topic_size = target.topic_size
        if not self.fits(&message.view, &options):
            self._counts.too_large += 1
            self._tell(progress, record.queue_offset, "a message is larger than the other broker takes")
            return 0
        packet_id = self.send_message(&message.view, &options, 0)
        self._counts.sent += 1
        self._counts.sent_bytes += <uint64_t>record.size
        if packet_id:
            self.set_place(packet_id, self._tail)
            sent = &self._ring[self._tail & self._ring_mask]
            sent.offset = record.queue_offset
            sent.stored_ms = record.store_timestamp_ms
            sent.progress = progress._place - 1
            sent.is_done = False
            progress._in_flight += 1
            self._tail += 1
        return 0

    cdef int _put_properties(self, Progress progress, const RecordParts* record) except -1:
        """Put the properties of MQTT 5 into the message; 0 when it has been where it would go."""
        cdef OutgoingMessage message = self._message
        cdef const uint8_t* at = record.properties
        cdef const uint8_t* end = at + record.properties_size
        cdef const uint8_t* stop
        cdef char[24] number
        cdef int digits
        cdef uint32_t user_count
        if message.has_come_over_bridge:
            if message.is_from(<const uint8_t*>self._mark, len(self._mark)):
                self._counts.looped += 1
                return 0
            if not self._forwards_bridged:
                self._counts.not_forwarded += 1
                return 0
        if self.protocol_level != LEVEL_5:
            return 1
        if not self._adds_properties:
            message.encode_properties()
            return 1
        self._extra.size = self._passed.size = 0
        user_count = 0
        message.append_expiry(&self._extra)
        while at < end:
            stop = <const uint8_t*>memchr(at, PROPERTY_END, end - at)
            if stop == NULL:
                stop = end
            if _begins(at, stop, _HOPS):
                if self._passed.size:
                    reserve(&self._passed, 1)[0] = COMMA
                    self._passed.size += 1
                append(&self._passed, at + len(_HOPS), stop - at - len(_HOPS))
            elif not _begins(at, stop, _OURS):
                user_count += _begins(at, stop, _USER)
                append_publish_property(&self._extra, at, stop)
            at = stop + 1
        if self._loops():
            self._counts.looped += 1
            return 0
        message.view.properties = self._extra.data
        message.view.properties_size = self._extra.size
        if user_count + OWN_PROPERTIES > USER_PROPERTIES_MAX:
            # A gateway takes no more. One of a native producer may have more by itself: the other broker decides.
            return 1
        if self._passed.size:
            reserve(&self._passed, 1)[0] = COMMA
            self._passed.size += 1
        append(&self._passed, <const uint8_t*>self._gateway, len(self._gateway))
        self._put_user(_HOPS_NAME, self._passed.data, self._passed.size)
        if message.client_id_size:
            self._put_user(_CLIENT_ID_NAME, message.client_id, message.client_id_size)
        self._passed.size = 0
        append(&self._passed, <const uint8_t*>progress.label, len(progress.label))
        digits = snprintf(number, 24, "%lld", <long long>record.queue_offset)
        append(&self._passed, <const uint8_t*>number, digits)
        self._put_user(_MESSAGE_NAME, self._passed.data, self._passed.size)
        message.view.properties = self._extra.data
        message.view.properties_size = self._extra.size
        return 1

    cdef int _put_user(self, bytes name, const uint8_t* value, Py_ssize_t size) except -1:
        cdef uint8_t* at = reserve(&self._extra, 5 + len(name) + size)
        at[0] = USER_PROPERTY
        put_u16(at + 1, <uint16_t>len(name))
        memcpy(at + 3, <const uint8_t*>name, len(name))
        at += 3 + len(name)
        put_u16(at, <uint16_t>size)
        memcpy(at + 2, value, size)
        self._extra.size += <uint32_t>(5 + len(name) + size)
        return 0

    cdef bint _loops(self) noexcept:
        """Return whether the message has passed the gateway at the other end, or too many."""
        return self._passed.size > HOPS_BYTES_MAX or (
            len(self._remote) and _has_name(self._passed.data, self._passed.size, self._remote)
        )

    def blame(self, uint32_t tries_max):
        """Count the end of the connection against the message that may be why it has ended.

        That is the one that was refused, else the oldest without an acknowledgement, as far as no other was on its
        way with it. After `tries_max` ends in a row it is left out from now on: returns its place in the log, else None.
        """
        cdef bint is_refused = self._refused != NOBODY
        cdef Sent* sent = &self._ring[(<uint32_t>self._refused if is_refused else self._head) & self._ring_mask]
        cdef Progress progress
        if self._head == self._tail:
            return None
        progress = <Progress>self._progress[sent.progress]
        if progress._suspect != sent.offset:
            progress._suspect = sent.offset
            progress._tries = 0
        progress._tries += is_refused or self._tail - self._head == 1
        if progress._tries < tries_max:
            return None
        progress._left_out = sent.offset
        progress._suspect = NOBODY
        self._counts.put_aside += 1
        return progress.place(sent.offset)

    @property
    def is_careful(self):
        """Return whether it sends less than it may, because of a message that may end the connection."""
        return self._window_max < self._window_goal

    @property
    def received(self):
        """Return the packet ids of messages of QoS 2 that were received, and not released."""
        return sorted(self._qos2_received or ())

    cdef int message_done(self, uint16_t packet_id, uint32_t place) except -1:
        self._has_acknowledged = True
        self._counts.acknowledged += 1
        self.acknowledged += 1
        if self._window_max < self._window_goal:
            self._window_max += 1
        self._ring[place & self._ring_mask].is_done = True
        return self._advance()

    cdef int _advance(self) except -1:
        """Move the offsets behind what is done."""
        cdef Sent* sent
        cdef Progress progress
        while self._head != self._tail:
            sent = &self._ring[self._head & self._ring_mask]
            if not sent.is_done:
                break
            progress = <Progress>self._progress[sent.progress]
            progress._in_flight -= 1
            progress.acked = sent.offset + 1 if progress._in_flight else progress.sent
            self._head += 1
        return 0

    cdef int message_received(self, uint16_t packet_id, uint32_t place) except -1:
        return 1


def stored_ms(const uint8_t[::1] records not None, Py_ssize_t at):
    """Return when the record at a byte was stored; None for one that cannot be read."""
    cdef RecordParts record
    if at >= records.shape[0] or parse_record(&records[0] + at, &records[0] + records.shape[0], &record) != FORMAT_OK:
        return None
    return record.store_timestamp_ms


cdef inline bint _begins(const uint8_t* at, const uint8_t* end, bytes start) noexcept:
    return end - at >= len(start) and memcmp(at, <const char*>start, len(start)) == 0


cdef bint _has_name(const uint8_t* at, Py_ssize_t size, bytes name) noexcept:
    """Whether a name stands among those with commas between them."""
    cdef const uint8_t* end = at + size
    cdef const uint8_t* stop
    while at < end:
        stop = <const uint8_t*>memchr(at, COMMA, end - at)
        if stop == NULL:
            stop = end
        if stop - at == len(name) and memcmp(at, <const char*>name, len(name)) == 0:
            return True
        at = stop + 1
    return False
