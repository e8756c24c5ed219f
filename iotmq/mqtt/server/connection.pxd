from libc.stdint cimport uint8_t, uint16_t, uint32_t

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer
from iotmq.mqtt.codec.framing cimport Packet
from iotmq.mqtt.server.acknowledgements cimport AcknowledgementRing
from iotmq.mqtt.server.outbound cimport OutboundHalf
from iotmq.mqtt.server.publish_sink cimport Publication, PublishSink
from iotmq.mqtt.topics.topic_aliases cimport InboundAliases


cdef class ServerConnection(OutboundHalf):
    cdef PublishSink sink
    cdef ByteBuffer _input              # a packet that has begun; all input while the session opens, or events wait
    cdef AcknowledgementRing _acks      # what the device waits for
    # Packet ids between PUBLISH and PUBREL, with the broker that has the message, or None; None until the first.
    cdef dict _qos2_received
    cdef uint32_t _resumed_count        # of those at most, how many came in an earlier connection
    cdef uint32_t _receive_max          # what the device may have sent without an answer
    cdef InboundAliases _inbound_aliases    # None until the device uses one
    cdef object _authentication         # of a CONNECT with an authentication method, else None
    cdef list _events                   # None while there are none
    cdef double _connect_deadline_s
    cdef double _unfinished_since_s     # the owner's: when a packet began that has not come whole; 0 when that came
    cdef bint _is_bridge                # from CONNECT
    cdef uint8_t _wants_reasons         # reason strings, in SUBACK too [MQTT-3.1.2-29]
    cdef public uint16_t keep_alive_s   # from CONNECT; the owner may shorten it
    cdef uint8_t _events_max            # packets are left alone while so many events wait; 0: never
    cdef uint8_t _is_waiting_for_events  # that is so now, or what is in `_input` is behind what has no answer yet
    cdef readonly uint8_t is_answer_due  # a SUBSCRIBE or UNSUBSCRIBE has no answer yet; never without _events_max
    cdef uint8_t _waits_for_turn        # its owner lets what has come wait, as for events
    cdef uint8_t _is_over               # the connection has ended, what came before is looked through
    cdef public uint32_t session_expiry_s   # of a device of MQTT 5, from CONNECT; the owner may shorten it
    cdef readonly object close_reason   # None until the connection is to end
    cdef readonly str close_detail

    cdef int receive(self, const uint8_t* data, Py_ssize_t size) except -1
    cdef int acknowledge(self, uint32_t sequence, uint32_t count) except -1
    cdef int refuse_published(self, uint32_t sequence, uint32_t count, uint8_t code) except -1

    cdef int _receive_packets(self, const uint8_t* data, Py_ssize_t size) except -1
    cdef int _check_length_form(self, const Packet* packet) except -1
    cdef int _check_whole_size(self, Py_ssize_t size) except -1
    cdef int _check_first_byte(self, uint8_t first) except -1
    cdef int _check_empty(self, Py_ssize_t size, str name) except -1
    cdef int _add_event(self, object event) except -1
    cdef int _handle_packet(self, const Packet* packet) except -1
    cdef int _handle_publish(self, const Packet* packet) except -1
    cdef int _handle_rare(self, uint8_t first, const uint8_t* body, Py_ssize_t size) except -1
    cdef int _handle_connect(self, bytes body) except -1
    cdef int _handle_receipt(self, int packet_type, bytes body) except -1
    cdef int _handle_disconnect(self, bytes body) except -1
    cdef int _handle_auth(self, bytes body) except -1
    cdef int _receive_waiting(self) except -1
    cdef int _receive_behind_events(self) except -1
    cdef int _begin_qos2(self, Publication* publication) except -1
    cdef int _refuse_payload(self, const Publication* publication) except -1
    cdef int _check_receive_max(self) except -1
    cdef bint _are_flags_right(self, int packet_type, int flags) except -1
    cdef int _release(self, uint16_t packet_id) except -1
    cdef int released(self, uint16_t packet_id, object broker, bint is_known) except -1
    cdef int complete(self, uint16_t packet_id, int code) except -1
    cdef int note_stored(self, uint32_t sequence, uint32_t count, object broker) except -1
    cdef void _fail(self, object reason, str detail)
