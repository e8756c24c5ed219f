"""The half of a connection towards the device: messages to it, their packet ids, and what waits for its window.

Operations: one call per message and device, one per acknowledgement. Goals: no Python object for either; what
a slow device leaves is bounded. Plan: a message is encoded into the output where it stays until the socket
takes it. With QoS 1 and 2 it is put into a queue of encoded packets while the window is full, and gets its packet id
when it leaves there.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove

from iotmq.message.layout cimport get_u32, put_u16, put_u32
from iotmq.mqtt.byte_buffer cimport ByteBuffer, append, release, reserve
from iotmq.mqtt.framing cimport put_fixed_header
from iotmq.mqtt.in_flight cimport InFlightSlot, end_flight, find_slot, occupy, take_new
from iotmq.mqtt.packet_types cimport (
    PACKET_PUBACK, PACKET_PUBCOMP, PACKET_PUBLISH, PACKET_PUBREC, STATE_CLOSED, STATE_CONNECTED,
)

from iotmq.mqtt import packets

cdef enum:
    QUEUED_HEADER_BYTES = 8


cdef inline uint8_t awaited_for(int qos) noexcept:
    return PACKET_PUBACK if qos == 1 else PACKET_PUBREC


cdef class OutboundHalf:
    """What `ServerConnection` sends. Not used by itself."""

    def __dealloc__(self):
        free(self.output.data)
        if self._subscriber != NULL:
            free(self._subscriber.window.slots)
            free(self._subscriber.queued.data)
            free(self._subscriber)

    cdef int write(self, bytes data) except -1:
        if self.state == STATE_CLOSED:
            return 0
        return append(&self.output, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def data_to_send(self):
        """The bytes for the device since the last call; empty when there are none."""
        if not self.output.size:
            return b""
        cdef bytes data = PyBytes_FromStringAndSize(<char*>self.output.data, self.output.size)
        release(&self.output)
        return data

    @property
    def output_bytes(self):
        """How much `data_to_send` would return."""
        return self.output.size

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
            self._need_subscriber()
            is_queued = (
                self._subscriber.queued.size != 0
                or self._subscriber.window.count >= self.settings.in_flight_max
            )
            if is_queued:
                buffer = &self._subscriber.queued
        if buffer.size - buffer.start + remaining > self.settings.queued_bytes_max and buffer.size:
            return 0
        start = reserve(buffer, <uint64_t>remaining + 5 + QUEUED_HEADER_BYTES)
        target = start + QUEUED_HEADER_BYTES if is_queued else start
        target = put_fixed_header(target, <uint8_t>(PACKET_PUBLISH << 4 | qos << 1), remaining)
        put_u16(target, topic_size)
        memcpy(target + 2, topic, topic_size)
        target += 2 + topic_size
        if qos:
            if is_queued:
                put_u32(start + 4, <uint32_t>(target - start))
            else:
                put_u16(target, take_new(&self._subscriber.window, awaited_for(qos)))
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
            self._subscriber == NULL
            or self._subscriber.window.count < self.settings.in_flight_max
            and not self._subscriber.queued.size
        )

    cdef bint has_output_room(self) noexcept:
        """The same for a message that has its packet id already."""
        return (
            self.state == STATE_CONNECTED
            and not self.is_write_paused
            and self.output.size < self.settings.queued_bytes_max // 4
        )

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
        cdef uint8_t* start = reserve(&self.output, <uint64_t>remaining + 5)
        cdef uint8_t* target
        target = put_fixed_header(
            start, <uint8_t>(PACKET_PUBLISH << 4 | is_duplicate << 3 | qos << 1 | is_retained), remaining
        )
        put_u16(target, topic_size)
        memcpy(target + 2, topic, topic_size)
        target += 2 + topic_size
        if qos:
            self._need_subscriber()
            if packet_id == 0:
                packet_id = take_new(&self._subscriber.window, awaited_for(qos))
            else:
                self.reserve_packet_id(packet_id)
                self._slot_of(packet_id).awaited = awaited_for(qos)
            put_u16(target, packet_id)
            target += 2
        memcpy(target, payload, payload_size)
        self.output.size += <uint32_t>(target + payload_size - start)
        return packet_id

    cdef int _release_queued(self) except -1:
        """Move queued packets to the output while the window is open."""
        cdef ByteBuffer* queued = &self._subscriber.queued
        cdef uint8_t* packet
        cdef uint32_t size
        while queued.start < queued.size and self._subscriber.window.count < self.settings.in_flight_max:
            packet = queued.data + queued.start
            size = get_u32(packet)
            put_u16(
                packet + get_u32(packet + 4),
                take_new(&self._subscriber.window, awaited_for(packet[QUEUED_HEADER_BYTES] >> 1 & 3)),
            )
            append(&self.output, packet + QUEUED_HEADER_BYTES, size - QUEUED_HEADER_BYTES)
            queued.start += size
        if queued.start == queued.size:
            release(queued)
        elif queued.start > queued.size // 2:
            memmove(queued.data, queued.data + queued.start, queued.size - queued.start)
            queued.size -= queued.start
            queued.start = 0
        return 0

    # Packet ids

    cdef int reserve_packet_id(self, uint16_t packet_id) except -1:
        """A packet id of an earlier connection means its message until that is done; no other gets it."""
        self._need_subscriber()
        if packet_id and self._slot_of(packet_id) == NULL:
            occupy(&self._subscriber.window, packet_id, PACKET_PUBREC)
        return 0

    cdef int free_packet_id(self, uint16_t packet_id) except -1:
        """The message of a reserved packet id does not exist any more."""
        cdef InFlightSlot* slot = self._slot_of(packet_id)
        if slot != NULL:
            end_flight(&self._subscriber.window, slot)
        return 0

    cdef uint16_t take_packet_id(self) except 0:
        """A packet id for a message of QoS 2 that `send_message` will send; in flight from now on."""
        self._need_subscriber()
        return take_new(&self._subscriber.window, PACKET_PUBREC)

    cdef int send_pubrel(self, uint16_t packet_id) except -1:
        """Release a message the device has taken; also after a resume, when only its packet id is known."""
        cdef InFlightSlot* slot
        self._need_subscriber()
        slot = self._slot_of(packet_id)
        if slot == NULL:
            occupy(&self._subscriber.window, packet_id, PACKET_PUBCOMP)
        else:
            slot.awaited = PACKET_PUBCOMP
        self.write(packets.encode_acknowledgement(packets.PUBREL, packet_id))
        return 0

    cdef int message_done(self, uint16_t packet_id) except -1:
        return 0

    cdef int message_received(self, uint16_t packet_id) except -1:
        return 1

    cdef int _need_subscriber(self) except -1:
        if self._subscriber == NULL:
            self._subscriber = <Subscriber*>calloc(1, sizeof(Subscriber))
            if self._subscriber == NULL:
                raise MemoryError
        return 0

    cdef InFlightSlot* _slot_of(self, uint16_t packet_id) noexcept:
        """The slot of a packet id that is in flight, else NULL."""
        return NULL if self._subscriber == NULL else find_slot(&self._subscriber.window, packet_id)

    # What the device answers

    cdef int handle_puback(self, uint16_t packet_id) except -1:
        # An acknowledgement of nothing is harmless, and clients do send them after a resume.
        cdef InFlightSlot* slot = self._slot_of(packet_id)
        if slot != NULL and slot.awaited == PACKET_PUBACK:
            return self._end_flight(slot)
        return 0

    cdef int handle_pubrec(self, uint16_t packet_id) except -1:
        cdef InFlightSlot* slot = self._slot_of(packet_id)
        if slot == NULL:
            # What is not known any more is released, so that the device can forget it [MQTT-4.3.3-1].
            if packet_id and self.state == STATE_CONNECTED:
                self.write(packets.encode_acknowledgement(packets.PUBREL, packet_id))
        elif slot.awaited == PACKET_PUBCOMP or slot.awaited == PACKET_PUBREC and self.message_received(packet_id):
            self.send_pubrel(packet_id)
        return 0

    cdef int handle_pubcomp(self, uint16_t packet_id) except -1:
        cdef InFlightSlot* slot = self._slot_of(packet_id)
        if slot != NULL and slot.awaited == PACKET_PUBCOMP:
            return self._end_flight(slot)
        return 0

    cdef int _end_flight(self, InFlightSlot* slot) except -1:
        cdef uint16_t packet_id = slot.packet_id
        end_flight(&self._subscriber.window, slot)
        if self._subscriber.queued.size:
            self._release_queued()
        return self.message_done(packet_id)

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
