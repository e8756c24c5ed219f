from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer
from iotmq.mqtt.server.connection_settings cimport ConnectionSettings
from iotmq.mqtt.server.outbound_in_flight cimport InFlightSlot, InFlightWindow
from iotmq.mqtt.topics.topic_aliases cimport OutboundAliases


cdef struct OutboundMessage:
    # A message as it lies somewhere; valid during a call.
    const uint8_t* topic
    uint16_t topic_size
    const uint8_t* payload
    uint32_t payload_size
    # For MQTT 5: the properties without their length, an expiry interval first; not those of a connection.
    const uint8_t* properties
    uint32_t properties_size
    bint has_expiry
    double expires_s            # when, by the clock of `ServerConnection.last_received_s`


cdef struct DeliveryOptions:
    # How one device gets it.
    uint8_t qos
    bint is_retained
    bint is_duplicate
    const uint32_t* identifiers     # of the subscriptions that match
    uint32_t identifiers_count


cdef struct Subscriber:
    # QoS 1 and 2 towards a device; made by its first delivery.
    InFlightWindow window
    ByteBuffer queued       # packets that wait for the window: a QueuedPacket each, then its bytes
    uint32_t queued_count
    # How long the device takes for its acknowledgement: one message at a time is timed, and no more than one for
    # each time that the device has sent something.
    uint16_t timed_packet_id    # 0: none
    double timed_since_s
    double timed_received_s     # `last_received_s` then
    float latency_s             # smoothed; 0: not known


cdef struct ConnectionCounts:
    # What has passed over a connection, for those who look at it.
    uint64_t messages_received
    uint64_t messages_sent
    uint64_t bytes_received
    uint64_t bytes_sent
    uint32_t messages_dropped   # because the device is slow


cdef class OutboundHalf:
    cdef readonly ConnectionSettings settings
    cdef ByteBuffer output
    cdef Subscriber* _subscriber
    cdef ConnectionCounts counts
    cdef OutboundAliases _aliases       # None for a device that takes none
    cdef uint32_t _sent_bytes_max       # the largest packet the device takes
    cdef uint16_t _window_max           # messages of QoS 1 and 2 it may hold unacknowledged
    cdef readonly uint8_t state
    cdef readonly uint8_t protocol_level    # 3.1.1 until a CONNECT has said another
    cdef public bint is_write_paused    # set by the shell while the socket takes no more
    cdef uint8_t is_metered             # set by the shell: `message_sent` is called for every message
    cdef uint8_t is_output_held         # set by the shell: no message is to be sent for now
    cdef public double last_received_s

    cdef int write(self, bytes data) except -1
    # The time by a finer clock than that of `last_received_s`, if the shell has one.
    cdef double precise_s(self) noexcept
    # Messages
    cdef int deliver(self, const OutboundMessage* message, const DeliveryOptions* options) except -1
    cdef bint fits(self, const OutboundMessage* message, const DeliveryOptions* options) noexcept
    cdef bint _fits_with(
        self, const OutboundMessage* message, const DeliveryOptions* options, uint32_t alias_bytes
    ) noexcept
    cdef bint has_room(self) noexcept
    cdef uint32_t room_count(self) noexcept
    cdef bint has_room_to_repeat(self) noexcept
    cdef bint has_output_room(self) noexcept
    cdef uint16_t send_message(self, const OutboundMessage* message, const DeliveryOptions* options,
            uint16_t packet_id) except? 0
    cdef int message_expired(self) except -1
    cdef int message_dropped(self) except -1
    cdef int message_sent(self, uint32_t size) except -1
    cdef int message_withheld(self) except -1
    cdef int output_released(self) except -1
    # Packet ids
    cdef int begin_packet_ids(self, uint16_t packet_id) except -1
    cdef int reserve_packet_id(self, uint16_t packet_id) except -1
    cdef int begin_repeat(self, uint16_t packet_id) except -1
    cdef int free_packet_id(self, uint16_t packet_id) except -1
    cdef uint16_t take_packet_id(self) except 0
    cdef int send_pubrel(self, uint16_t packet_id) except -1
    # For sessions that outlive the connection: the device has it (PUBACK, PUBCOMP); the device has taken it and
    # wants the release (PUBREC), which is sent at once when 1 is returned. `place` is what `set_place` was given.
    cdef int message_done(self, uint16_t packet_id, uint32_t place) except -1
    cdef int message_received(self, uint16_t packet_id, uint32_t place) except -1
    cdef int set_place(self, uint16_t packet_id, uint32_t place) except -1
    # What the device answers; a code of 0x80 and above ends a message
    cdef int handle_puback(self, uint16_t packet_id) except -1
    cdef int handle_pubrec(self, uint16_t packet_id, uint8_t code) except -1
    cdef int handle_pubcomp(self, uint16_t packet_id) except -1

    cdef uint32_t _properties_size(self, const OutboundMessage* message, const DeliveryOptions* options) noexcept
    cdef int _need_subscriber(self) except -1
    cdef InFlightSlot* _slot_of(self, uint16_t packet_id) noexcept
    cdef InFlightSlot* _answered(self, uint16_t packet_id, uint8_t packet_type, uint8_t code) except? NULL
    cdef int _end_flight(self, InFlightSlot* slot) except -1
    cdef bint _make_room(self, uint64_t size) except -1
    cdef int _release_queued(self) except -1
