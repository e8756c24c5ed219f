"""The half of a connection towards the device: messages to it, their packet ids, and what waits for its window.

Operations: one call per message and device, one per acknowledgement. Goals: no Python object for either; what
a slow device leaves is bounded. Plan: a message is encoded into the output where it stays until the socket
takes it. With QoS 1 and 2 it is put into a queue of encoded packets while the window is full, and gets its packet id
when it leaves there. Topic aliases are left to packets that go out at once, because the order of those that wait
is not theirs.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove, memset

from iotmq.message.records.layout cimport put_u16, put_u32
from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer, append, release, reserve
from iotmq.mqtt.codec.framing cimport put_publish_head, put_variable_integer, variable_integer_size
from iotmq.mqtt.codec.packet_types cimport (
    LEVEL_5, PACKET_PUBACK, PACKET_PUBCOMP, PACKET_PUBREC, PACKET_PUBREL, STATE_CLOSED, STATE_CONNECTED,
    SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS,
)
from iotmq.mqtt.server.outbound_in_flight cimport (
    AWAITS_NOTHING,
    AWAITS_REPEAT,
    InFlightSlot,
    await_answer,
    end_flight,
    find_slot,
    occupy,
    take_new,
)

from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec import packets
from iotmq.mqtt.errors import MqttProtocolError

cdef enum:
    IDENTIFIERS_MAX = 16    # that `deliver_message` takes
    ALIAS_BYTES = 3         # of the property

cdef struct QueuedPacket:
    uint32_t size           # with this header
    uint32_t packet_id_at   # from the header's start
    uint32_t expiry_at      # the same for the expiry interval; 0 = none
    double expires_s


cdef inline uint8_t awaited_for(int qos) noexcept:
    return PACKET_PUBACK if qos == 1 else PACKET_PUBREC


cdef inline void _count_sent(OutboundHalf self, uint16_t packet_id) noexcept:
    """Count a PUBLISH that goes out; time it if it is its turn."""
    cdef Subscriber* subscriber = self._subscriber
    self.counts.messages_sent += 1
    if packet_id and not subscriber.timed_packet_id and subscriber.timed_received_s != self.last_received_s:
        subscriber.timed_packet_id = packet_id
        subscriber.timed_received_s = self.last_received_s
        subscriber.timed_since_s = self.precise_s()


cdef void _end_timing(Subscriber* subscriber, double now_s) noexcept:
    """The message that is timed is done."""
    cdef float passed_s = <float>(now_s - subscriber.timed_since_s)
    subscriber.timed_packet_id = 0
    subscriber.latency_s += (passed_s - subscriber.latency_s) / (4 if subscriber.latency_s else 1)


cdef inline uint8_t* _put_own(uint8_t* target, uint16_t alias, const DeliveryOptions* options) noexcept:
    """Return the properties of this connection: its alias, and the subscriptions that match."""
    cdef uint32_t index
    if alias:
        target[0] = TOPIC_ALIAS
        put_u16(target + 1, alias)
        target += ALIAS_BYTES
    for index in range(options.identifiers_count):
        target[0] = SUBSCRIPTION_IDENTIFIER
        target = put_variable_integer(target + 1, options.identifiers[index])
    return target


cdef inline int _compact(ByteBuffer* queued) except -1:
    """Give back what was taken out of the queue, when that is much of it."""
    if queued.start == queued.size:
        release(queued)
    elif queued.start > queued.size // 2:
        memmove(queued.data, queued.data + queued.start, queued.size - queued.start)
        queued.size -= queued.start
        queued.start = 0
    return 0


cdef bytes _topic_of(const uint8_t* queued):
    """Return the topic of a queued packet."""
    cdef const uint8_t* at = queued + sizeof(QueuedPacket) + 1
    while at[0] & 0x80:
        at += 1
    return (at + 3)[: at[1] << 8 | at[2]]


cdef class OutboundHalf:
    """Send for `ServerConnection`. Not used by itself."""

    def __dealloc__(self):
        free(self.output.data)
        if self._subscriber != NULL:
            free(self._subscriber.window.slots)
            free(self._subscriber.queued.data)
            free(self._subscriber)

    cdef int write(self, bytes data) except -1:
        if self.state == STATE_CLOSED or PyBytes_GET_SIZE(data) > self._sent_bytes_max:     # [MQTT-3.1.2-25]
            return 0
        return append(&self.output, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    cdef double precise_s(self) noexcept:
        return self.last_received_s

    def data_to_send(self):
        """Return the bytes for the device since the last call; empty when there are none."""
        if not self.output.size:
            return b""
        cdef bytes data = PyBytes_FromStringAndSize(<char*>self.output.data, self.output.size)
        release(&self.output)
        return data

    @property
    def output_bytes(self):
        """Return how much `data_to_send` would return."""
        return self.output.size

    # Messages to the device

    def deliver_message(
        self, bytes topic not None, bytes payload not None, int qos, *,
        bytes properties=b"", bint is_retained=False, identifiers=(), expires_s=None,
    ):
        """`deliver` for callers in Python; True when the message was sent or queued."""
        cdef uint32_t[IDENTIFIERS_MAX] numbers
        cdef OutboundMessage message
        cdef DeliveryOptions options
        memset(&message, 0, sizeof(message))
        message.topic = topic
        message.topic_size = <uint16_t>len(topic)
        message.payload = payload
        message.payload_size = <uint32_t>len(payload)
        message.properties = properties
        message.properties_size = <uint32_t>len(properties)
        message.has_expiry = expires_s is not None
        message.expires_s = expires_s or 0.0
        if len(identifiers) > IDENTIFIERS_MAX:
            raise ValueError(f"{len(identifiers)} subscription identifiers; {IDENTIFIERS_MAX} are allowed here")
        for index, number in enumerate(identifiers):
            numbers[index] = number
        options.qos = <uint8_t>qos
        options.is_retained = is_retained
        options.is_duplicate = False
        options.identifiers = &numbers[0]
        options.identifiers_count = <uint32_t>len(identifiers)
        return self.fits(&message, &options) and bool(self.deliver(&message, &options))

    cdef int deliver(self, const OutboundMessage* message, const DeliveryOptions* options) except -1:
        """Write a PUBLISH, or queue it; 0 when it was dropped because the device is slow. The caller asked `fits`."""
        cdef ByteBuffer* buffer = &self.output
        cdef bint is_queued = False
        if self.state != STATE_CONNECTED:
            return 0
        if options.qos:
            self._need_subscriber()
            is_queued = (
                self._subscriber.queued.size != 0
                or self._subscriber.window.count >= self._window_max
                or self.is_output_held
            )
            if is_queued:
                buffer = &self._subscriber.queued
        elif self.is_output_held:
            self.message_withheld()
            return 0
        if is_queued:
            if not self._make_room(<uint64_t>message.topic_size + message.payload_size + 4):
                self.counts.messages_dropped += 1
                return 0
        elif buffer.size and (
            buffer.size - buffer.start + message.topic_size + message.payload_size + 4 > self.settings.queued_bytes_max
        ):
            self.counts.messages_dropped += 1
            return 0
        _put(
            self, buffer, is_queued, message, options,
            take_new(&self._subscriber.window, awaited_for(options.qos)) if options.qos and not is_queued else 0,
        )
        return 1

    cdef bint fits(self, const OutboundMessage* message, const DeliveryOptions* options) noexcept:
        """Return whether the device takes a packet of this size [MQTT-3.1.2-24]."""
        return self._fits_with(message, options, 0)

    cdef bint _fits_with(
        self, const OutboundMessage* message, const DeliveryOptions* options, uint32_t alias_bytes
    ) noexcept:
        """As `fits`, with the property of an alias beside the topic."""
        cdef uint32_t properties_size
        cdef uint64_t size
        if self._sent_bytes_max == 0xFFFFFFFF:
            return True
        properties_size = self._properties_size(message, options) + alias_bytes
        size = <uint64_t>message.topic_size + message.payload_size + properties_size + (4 if options.qos else 2)
        size += variable_integer_size(properties_size)
        return size + 1 + variable_integer_size(<uint32_t>size) <= self._sent_bytes_max

    cdef uint32_t _properties_size(self, const OutboundMessage* message, const DeliveryOptions* options) noexcept:
        cdef uint32_t index, size = message.properties_size
        for index in range(options.identifiers_count):
            size += 1 + variable_integer_size(options.identifiers[index])
        return size

    cdef bint has_room(self) noexcept:
        """Return whether `send_message` takes one more: the window is open, and the device reads."""
        return self.has_output_room() and (
            self._subscriber == NULL
            or self._subscriber.window.count < self._window_max
            and not self._subscriber.queued.size
        )

    cdef uint32_t room_count(self) noexcept:
        """New messages of QoS 1 and 2 that the window takes."""
        cdef uint32_t count = 0 if self._subscriber == NULL else self._subscriber.window.count
        return self._window_max - count if count < self._window_max else 0

    cdef bint has_room_to_repeat(self) noexcept:
        """Return whether the device takes one more message of an earlier connection now.

        Such a message counts in the window of this connection as soon as it is sent [MQTT-3.3.4-9].
        """
        return self.has_output_room() and (
            self._subscriber == NULL
            or self._subscriber.window.count - self._subscriber.window.repeats_count < self._window_max
        )

    cdef bint has_output_room(self) noexcept:
        """Return whether the device reads."""
        return (
            self.state == STATE_CONNECTED
            and not self.is_write_paused
            and not self.is_output_held
            and self.output.size < self.settings.queued_bytes_max // 4
        )

    cdef uint16_t send_message(
        self, const OutboundMessage* message, const DeliveryOptions* options, uint16_t packet_id
    ) except? 0:
        """Write a PUBLISH that somebody else keeps until it is done; the caller has asked `has_room` and `fits`.

        `packet_id` is one that was sent before or 0 for a new one. Returns the packet id, 0 for QoS 0.
        """
        if options.qos:
            self._need_subscriber()
            if packet_id == 0:
                packet_id = take_new(&self._subscriber.window, awaited_for(options.qos))
            else:
                self.begin_repeat(packet_id)
                self._slot_of(packet_id).awaited = awaited_for(options.qos)
        _put(self, &self.output, False, message, options, packet_id)
        return packet_id

    cdef int message_dropped(self) except -1:
        """Override to be told that the oldest waiting message made room for a new one."""
        return 0

    cdef int message_sent(self, uint32_t size) except -1:
        """Override to be told of every PUBLISH with its size, while `is_metered`."""
        return 0

    cdef int message_withheld(self) except -1:
        """Override to be told that a message of QoS 0 was dropped because of `is_output_held`."""
        return 0

    cdef int output_released(self) except -1:
        """`is_output_held` is no more: send what waits."""
        if self._subscriber != NULL and self._subscriber.queued.size:
            self._release_queued()
        return 0

    cdef bint _make_room(self, uint64_t size) except -1:
        """Return whether a packet of about that size may be queued, once the oldest have made room if they are to."""
        cdef ByteBuffer* queued = &self._subscriber.queued
        cdef QueuedPacket header
        while queued.size and (
            queued.size - queued.start + size > self.settings.queued_bytes_max
            or 0 < self.settings.queued_messages_max <= self._subscriber.queued_count
        ):
            if not self.settings.drops_oldest:
                return False
            memcpy(&header, queued.data + queued.start, sizeof(QueuedPacket))
            queued.start += header.size
            self._subscriber.queued_count -= 1
            self.counts.messages_dropped += 1
            self.message_dropped()
            _compact(queued)
        return True

    def forget_output(self):
        """Give back the memory of what was for a device whose connection is over: others may know it for a while."""
        release(&self.output)
        if self._subscriber != NULL:
            release(&self._subscriber.queued)
            self._subscriber.queued_count = 0

    def withdraw_queued(self, is_unwanted not None):
        """Drop the messages that wait for the window and whose topic is unwanted; return how many."""
        if self._subscriber == NULL or not self._subscriber.queued.size:
            return 0
        cdef ByteBuffer* queued = &self._subscriber.queued
        cdef QueuedPacket header
        cdef uint32_t at = queued.start
        cdef uint32_t kept = at
        cdef list verdicts = []
        while at < queued.size:
            memcpy(&header, queued.data + at, sizeof(QueuedPacket))
            verdicts.append(bool(is_unwanted(_topic_of(queued.data + at))))
            at += header.size
        # Nothing is moved before all were asked about.
        at = kept
        for is_dropped in verdicts:
            memcpy(&header, queued.data + at, sizeof(QueuedPacket))
            if not is_dropped:
                memmove(queued.data + kept, queued.data + at, header.size)
                kept += header.size
            at += header.size
        queued.size = kept
        self._subscriber.queued_count -= <uint32_t>sum(verdicts)
        _compact(queued)
        return sum(verdicts)

    cdef int message_expired(self) except -1:
        """Override to be told that a waiting message was dropped because its time was over."""
        return 0

    cdef int _release_queued(self) except -1:
        """Move queued packets to the output while the window is open; what has expired goes [MQTT-3.3.2-5]."""
        cdef ByteBuffer* queued = &self._subscriber.queued
        cdef QueuedPacket header
        cdef uint8_t* packet
        cdef uint16_t packet_id
        while (
            queued.start < queued.size
            and self._subscriber.window.count < self._window_max
            and not self.is_output_held
        ):
            packet = queued.data + queued.start
            memcpy(&header, packet, sizeof(QueuedPacket))
            queued.start += header.size
            self._subscriber.queued_count -= 1
            if header.expires_s:
                if header.expires_s <= self.last_received_s:
                    self.message_expired()
                    continue
                if header.expiry_at:    # [MQTT-3.3.2-6]
                    put_u32(packet + header.expiry_at, <uint32_t>(header.expires_s - self.last_received_s + 0.999))
            packet_id = take_new(&self._subscriber.window, awaited_for(packet[sizeof(QueuedPacket)] >> 1 & 3))
            put_u16(packet + header.packet_id_at, packet_id)
            _count_sent(self, packet_id)
            append(&self.output, packet + sizeof(QueuedPacket), header.size - sizeof(QueuedPacket))
            if self.is_metered:
                self.message_sent(header.size - <uint32_t>sizeof(QueuedPacket))
        _compact(queued)
        return 0

    # Packet ids

    cdef int begin_packet_ids(self, uint16_t packet_id) except -1:
        """New messages get packet ids from this one on."""
        self._need_subscriber()
        self._subscriber.window.last_packet_id = <uint16_t>(packet_id - 1)
        return 0

    cdef int reserve_packet_id(self, uint16_t packet_id) except -1:
        """A packet id of an earlier connection means its message until that is done; no other gets it."""
        self._need_subscriber()
        if packet_id and self._slot_of(packet_id) == NULL:
            occupy(&self._subscriber.window, packet_id, AWAITS_REPEAT)
        return 0

    cdef int begin_repeat(self, uint16_t packet_id) except -1:
        """A message of an earlier connection goes out with its packet id, or will without being asked for again."""
        self.reserve_packet_id(packet_id)
        cdef InFlightSlot* slot = self._slot_of(packet_id)
        if slot.awaited == AWAITS_REPEAT:
            await_answer(&self._subscriber.window, slot, AWAITS_NOTHING)
        return 0

    cdef int free_packet_id(self, uint16_t packet_id) except -1:
        """The message of a reserved packet id does not exist any more."""
        cdef InFlightSlot* slot = self._slot_of(packet_id)
        if slot != NULL:
            end_flight(&self._subscriber.window, slot)
            if packet_id == self._subscriber.timed_packet_id:
                self._subscriber.timed_packet_id = 0
        return 0

    cdef uint16_t take_packet_id(self) except 0:
        """A packet id for a message of QoS 2 that `send_message` will send; in flight from now on."""
        self._need_subscriber()
        return take_new(&self._subscriber.window, AWAITS_NOTHING)

    cdef int send_pubrel(self, uint16_t packet_id) except -1:
        """Release a message the device has taken; also after a resume, when only its packet id is known."""
        cdef InFlightSlot* slot
        self._need_subscriber()
        slot = self._slot_of(packet_id)
        if slot == NULL:
            occupy(&self._subscriber.window, packet_id, PACKET_PUBCOMP)
        else:
            await_answer(&self._subscriber.window, slot, PACKET_PUBCOMP)
        self.write(packets.encode_acknowledgement(packets.PUBREL, packet_id))
        return 0

    cdef int message_done(self, uint16_t packet_id, uint32_t place) except -1:
        return 0

    cdef int message_received(self, uint16_t packet_id, uint32_t place) except -1:
        return 1

    cdef int set_place(self, uint16_t packet_id, uint32_t place) except -1:
        """Set the place given to `message_done` and `message_received` for a packet id in flight."""
        cdef InFlightSlot* slot = self._slot_of(packet_id)
        if slot != NULL:
            slot.place = place
        return 0

    cdef int _need_subscriber(self) except -1:
        if self._subscriber == NULL:
            self._subscriber = <Subscriber*>calloc(1, sizeof(Subscriber))
            if self._subscriber == NULL:
                raise MemoryError
        return 0

    cdef InFlightSlot* _slot_of(self, uint16_t packet_id) noexcept:
        """Return the slot of a packet id in flight, else NULL."""
        return NULL if self._subscriber == NULL else find_slot(&self._subscriber.window, packet_id)

    # What the device answers

    cdef InFlightSlot* _answered(self, uint16_t packet_id, uint8_t packet_type, uint8_t code) except? NULL:
        """Return the message that an acknowledgement is for.

        NULL for one of nothing, which is harmless: clients do send them after a resume. One that its message does
        not wait for ends the connection [MQTT-4.13.1-1], 3.1.1 [MQTT-4.8.0-1].
        """
        cdef InFlightSlot* slot = self._slot_of(packet_id)
        if packet_id == 0:  # [MQTT-2.2.1-3], 3.1.1 [MQTT-2.3.1-1]
            raise MqttProtocolError(reason_codes.PROTOCOL_ERROR, "an acknowledgement has packet id 0")
        if slot == NULL or slot.awaited == packet_type or slot.awaited <= AWAITS_REPEAT:
            return slot
        if packet_type == PACKET_PUBREC and code < 0x80 and slot.awaited != PACKET_PUBACK:
            return slot     # it is said again
        raise MqttProtocolError(
            reason_codes.PROTOCOL_ERROR, f"packet type {packet_type} for a message that waits for type {slot.awaited}"
        )

    cdef int handle_puback(self, uint16_t packet_id) except -1:
        cdef InFlightSlot* slot = self._answered(packet_id, PACKET_PUBACK, 0)
        if slot != NULL and slot.awaited == PACKET_PUBACK:
            return self._end_flight(slot)
        return 0

    cdef int handle_pubrec(self, uint16_t packet_id, uint8_t code) except -1:
        cdef InFlightSlot* slot = self._answered(packet_id, PACKET_PUBREC, code)
        if slot == NULL:
            # What is not known any more is released, so that the device can forget it [MQTT-4.3.3-1].
            if code < 0x80 and self.state == STATE_CONNECTED:
                code = reason_codes.PACKET_ID_NOT_FOUND if self.protocol_level == LEVEL_5 else 0
                self.write(packets.encode_acknowledgement(packets.PUBREL, packet_id, code))
        elif slot.awaited == PACKET_PUBCOMP:
            self.send_pubrel(packet_id)
        elif slot.awaited == PACKET_PUBREC:
            if code >= 0x80:
                # The device does not want it, now or later [MQTT-4.3.3-4].
                return self._end_flight(slot)
            slot.awaited = PACKET_PUBREL
            if self.message_received(packet_id, slot.place):
                self.send_pubrel(packet_id)
        return 0

    cdef int handle_pubcomp(self, uint16_t packet_id) except -1:
        cdef InFlightSlot* slot = self._answered(packet_id, PACKET_PUBCOMP, 0)
        if slot != NULL and slot.awaited == PACKET_PUBCOMP:
            return self._end_flight(slot)
        return 0

    cdef int _end_flight(self, InFlightSlot* slot) except -1:
        cdef uint16_t packet_id = slot.packet_id
        cdef uint32_t place = slot.place
        end_flight(&self._subscriber.window, slot)
        if packet_id == self._subscriber.timed_packet_id:
            _end_timing(self._subscriber, self.precise_s())
        if self._subscriber.queued.size:
            self._release_queued()
        return self.message_done(packet_id, place)

    @property
    def in_flight_count(self):
        """QoS 1 and 2 messages the device has not acknowledged yet."""
        return self._subscriber.window.count if self._subscriber != NULL else 0

    @property
    def queued_bytes(self):
        """Bytes of QoS 1 and 2 messages that wait for the device's window."""
        if self._subscriber == NULL:
            return 0
        return self._subscriber.queued.size - self._subscriber.queued.start


cdef int _put(
    OutboundHalf self,
    ByteBuffer* buffer,
    bint is_queued,
    const OutboundMessage* message,
    const DeliveryOptions* options,
    uint16_t packet_id,
) except -1:
    """Encode a PUBLISH; `packet_id` 0 of one that is queued is put in later."""
    cdef uint32_t remaining = message.payload_size + (2 if options.qos else 0)
    cdef uint32_t properties_size = 0
    cdef uint16_t topic_size = message.topic_size
    cdef uint16_t alias = 0
    cdef bint is_known = False
    cdef bint is_v5 = self.protocol_level == LEVEL_5
    cdef uint8_t* start
    cdef uint8_t* target
    cdef QueuedPacket header
    if is_v5:
        if self._aliases is not None and not is_queued and self._fits_with(message, options, ALIAS_BYTES):
            alias = self._aliases.find(message.topic, topic_size, &is_known)
            if is_known:
                topic_size = 0
        properties_size = self._properties_size(message, options) + (ALIAS_BYTES if alias else 0)
        remaining += variable_integer_size(properties_size) + properties_size
    remaining += 2 + topic_size
    start = reserve(buffer, <uint64_t>remaining + 5 + sizeof(QueuedPacket))
    target = start + sizeof(QueuedPacket) if is_queued else start
    target = put_publish_head(
        target, <uint8_t>(options.is_duplicate << 3 | options.qos << 1 | options.is_retained), remaining,
        message.topic, topic_size,
    )
    if is_queued:
        header.packet_id_at = <uint32_t>(target - start)
        header.expiry_at = 0
    if options.qos:
        put_u16(target, packet_id)
        target += 2
    if is_v5:
        target = put_variable_integer(target, properties_size)
        if message.has_expiry:
            header.expiry_at = <uint32_t>(target - start) + 1
        memcpy(target, message.properties, message.properties_size)
        target = _put_own(target + message.properties_size, alias, options)
    memcpy(target, message.payload, message.payload_size)
    target += message.payload_size
    if is_queued:
        header.size = <uint32_t>(target - start)
        header.expires_s = message.expires_s if message.has_expiry else 0.0
        memcpy(start, &header, sizeof(QueuedPacket))
        self._subscriber.queued_count += 1
    buffer.size += <uint32_t>(target - start)
    if not is_queued:
        _count_sent(self, packet_id)
    if self.is_metered and not is_queued:
        self.message_sent(<uint32_t>(target - start))
    return 0
