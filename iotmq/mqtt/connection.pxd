from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef struct ByteBuffer:
    uint8_t* data
    uint32_t start          # first byte still wanted
    uint32_t size           # end of what was written
    uint32_t capacity


cdef struct Acknowledgement:
    uint16_t packet_id
    uint8_t packet_type     # PUBACK or PUBREC
    uint8_t is_due          # set when the message is as durable as promised


cdef struct InFlightSlot:
    uint16_t packet_id      # 0 = free
    uint8_t awaited         # PUBACK, PUBREC or PUBCOMP


cdef struct Outbound:
    # QoS 1 and 2 towards a subscriber; made by its first delivery.
    InFlightSlot* in_flight # per packet id modulo capacity
    uint32_t in_flight_count
    uint32_t in_flight_capacity
    uint16_t last_packet_id
    ByteBuffer queued       # packets that wait for the window: size 4, place of the packet id 4, bytes


cdef class ConnectionSettings:
    cdef readonly uint32_t packet_bytes_max
    cdef readonly uint32_t in_flight_max
    cdef readonly uint32_t queued_bytes_max
    cdef readonly double connect_timeout_s


cdef class PublishSink:
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
    ) except -1
    cdef int end_turn(self) except -1


cdef class ServerConnection:
    cdef readonly ConnectionSettings settings
    cdef PublishSink sink
    cdef ByteBuffer _input              # a packet that has begun; all input while the session opens
    cdef ByteBuffer output
    cdef Acknowledgement* _acks         # ring of what the device waits for, oldest first
    cdef uint32_t _acks_capacity
    cdef uint32_t _acks_count
    cdef uint32_t _acks_first           # sequence number of the oldest
    cdef Outbound* _outbound
    cdef set _qos2_received             # packet ids between PUBLISH and PUBREL; None until the first
    cdef list _events                   # None while there are none
    cdef public double last_received_s
    cdef double _connect_deadline_s
    cdef public uint16_t keep_alive_s   # from CONNECT; the owner may shorten it
    cdef readonly uint8_t state
    cdef public bint is_write_paused    # set by the shell while the socket takes no more
    cdef readonly object close_reason   # None until the connection is to end
    cdef readonly str close_detail

    cdef int _receive_guarded(self, const uint8_t* data, Py_ssize_t size) except -1
    cdef int _receive(self, const uint8_t* data, Py_ssize_t size) except -1
    cdef int _check_first_byte(self, uint8_t first) except -1
    cdef int _check_packet_size(self, uint64_t remaining) except -1
    cdef int _check_empty(self, Py_ssize_t size, str name) except -1
    cdef int _add_event(self, object event) except -1
    cdef int _write(self, bytes data) except -1
    cdef int _need_outbound(self) except -1
    cdef uint16_t _take_packet_id(self, int qos) except 0
    cdef int _occupy(self, uint16_t packet_id, uint8_t awaited) except -1
    cdef int _grow_in_flight(self) except -1
    cdef InFlightSlot* _slot_of(self, uint16_t packet_id) noexcept
    cdef int _end_flight(self, InFlightSlot* slot) except -1
    cdef bint has_room(self) noexcept
    cdef bint has_output_room(self) noexcept
    cdef int reserve_packet_id(self, uint16_t packet_id) except -1
    cdef int free_packet_id(self, uint16_t packet_id) except -1
    cdef uint16_t send_message(self, const uint8_t* topic, uint16_t topic_size, const uint8_t* payload, uint32_t payload_size, int qos, bint is_retained, bint is_duplicate, uint16_t packet_id) except? 0
    cdef uint16_t take_packet_id(self) except 0
    cdef int send_pubrel(self, uint16_t packet_id) except -1
    # For sessions that outlive the connection: the device has it (PUBACK, PUBCOMP); the device has taken it and
    # wants the release (PUBREC), which is sent at once when 1 is returned.
    cdef int message_done(self, uint16_t packet_id) except -1
    cdef int message_received(self, uint16_t packet_id) except -1
    cdef Py_ssize_t _complete_input(self, const uint8_t* data, Py_ssize_t size) except -1
    cdef int _handle_packet(self, uint8_t first, const uint8_t* body, Py_ssize_t size) except -1
    cdef int _handle_publish(self, uint8_t first, const uint8_t* body, Py_ssize_t size) except -1
    cdef int _handle_rare(self, uint8_t first, const uint8_t* body, Py_ssize_t size) except -1
    cdef int _handle_puback(self, uint16_t packet_id) except -1
    cdef int _handle_pubrec(self, uint16_t packet_id) except -1
    cdef int _handle_pubcomp(self, uint16_t packet_id) except -1
    cdef uint32_t _expect_acknowledgement(self, uint16_t packet_id, uint8_t packet_type) except? 0
    cdef int acknowledge(self, uint32_t sequence, uint32_t count) except -1
    cdef int deliver(self, const uint8_t* topic, uint16_t topic_size, const uint8_t* payload, uint32_t payload_size, int qos) except -1
    cdef int _release_queued(self) except -1
    cdef void _fail(self, object reason, str detail)
