from libc.stdint cimport uint8_t, uint16_t, uint32_t

from iotmq.mqtt.byte_buffer cimport ByteBuffer
from iotmq.mqtt.connection_settings cimport ConnectionSettings
from iotmq.mqtt.in_flight cimport InFlightSlot, InFlightWindow


cdef struct Subscriber:
    # QoS 1 and 2 towards a device; made by its first delivery.
    InFlightWindow window
    ByteBuffer queued       # packets that wait for the window: size 4, place of the packet id 4, bytes


cdef class OutboundHalf:
    cdef readonly ConnectionSettings settings
    cdef ByteBuffer output
    cdef Subscriber* _subscriber
    cdef readonly uint8_t state
    cdef public bint is_write_paused    # set by the shell while the socket takes no more

    cdef int write(self, bytes data) except -1
    # Messages
    cdef int deliver(self, const uint8_t* topic, uint16_t topic_size, const uint8_t* payload, uint32_t payload_size, int qos) except -1
    cdef bint has_room(self) noexcept
    cdef bint has_output_room(self) noexcept
    cdef uint16_t send_message(self, const uint8_t* topic, uint16_t topic_size, const uint8_t* payload, uint32_t payload_size, int qos, bint is_retained, bint is_duplicate, uint16_t packet_id) except? 0
    # Packet ids
    cdef int reserve_packet_id(self, uint16_t packet_id) except -1
    cdef int free_packet_id(self, uint16_t packet_id) except -1
    cdef uint16_t take_packet_id(self) except 0
    cdef int send_pubrel(self, uint16_t packet_id) except -1
    # For sessions that outlive the connection: the device has it (PUBACK, PUBCOMP); the device has taken it and
    # wants the release (PUBREC), which is sent at once when 1 is returned.
    cdef int message_done(self, uint16_t packet_id) except -1
    cdef int message_received(self, uint16_t packet_id) except -1
    # What the device answers
    cdef int handle_puback(self, uint16_t packet_id) except -1
    cdef int handle_pubrec(self, uint16_t packet_id) except -1
    cdef int handle_pubcomp(self, uint16_t packet_id) except -1

    cdef int _need_subscriber(self) except -1
    cdef InFlightSlot* _slot_of(self, uint16_t packet_id) noexcept
    cdef int _end_flight(self, InFlightSlot* slot) except -1
    cdef int _release_queued(self) except -1
