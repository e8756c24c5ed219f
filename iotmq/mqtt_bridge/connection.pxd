from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from iotmq.message.records.fields cimport RecordParts
from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer
from iotmq.mqtt.server.publish_sink cimport Publication, PublishSink
from iotmq.mqtt.topics.topic_cache cimport TopicCache
from iotmq.mqtt_front.connection.device cimport Device
from iotmq.mqtt_front.connection.outgoing cimport OutgoingMessage
from iotmq.mqtt_front.publish.ingress cimport Ingress


cdef struct Sent:
    # A message without its acknowledgement, or one behind such a message.
    int64_t offset
    int64_t stored_ms
    uint32_t progress           # place in BridgeConnection._progress
    bint is_done


cdef struct SentTarget:
    # Where messages of one topic go; value of the topic cache.
    uint8_t* topic              # owned; NULL for a topic that stays
    uint16_t topic_size
    uint8_t qos_min
    uint8_t qos_max
    bint is_retain_kept


cdef class SentTopics:
    cdef TopicCache _topics
    cdef object _find

    cdef SentTarget* find(self, const uint8_t* topic, Py_ssize_t size) except NULL
    cdef void _drop(self) noexcept


cdef class Progress:
    cdef readonly bytes label       # of the queue, in iotmq-message
    cdef public int64_t acked       # below it everything is at the other broker
    cdef public int64_t sent        # behind the last record that was looked at
    cdef uint32_t _in_flight        # of these, what has no acknowledgement
    cdef uint32_t _place            # of the connection, plus one; 0 for none
    cdef int64_t _suspect           # the message that may be why connections end; -1 for none
    cdef uint32_t _tries            # connections in a row that have ended so
    cdef int64_t _left_out          # the last message that was given up because of them; -1 for none

    cdef str place(self, int64_t offset)


cdef class BridgeCounts:
    cdef readonly uint64_t sent
    cdef readonly uint64_t sent_bytes
    cdef readonly uint64_t acknowledged
    cdef readonly uint64_t refused
    cdef readonly uint64_t skipped      # for what they are: of no rule, or no message of a device
    cdef readonly uint64_t looped       # would have come to where they have been
    cdef readonly uint64_t not_forwarded    # came over another bridge
    cdef readonly uint64_t expired
    cdef readonly uint64_t dropped      # of QoS 0, stored while there was no connection
    cdef readonly uint64_t too_large
    cdef readonly uint64_t put_aside    # after some tries in vain
    cdef readonly uint64_t unreadable
    cdef readonly uint64_t received


cdef class BridgeIngress(Ingress):
    cdef bytes _gateway
    cdef BridgeCounts _counts

    cdef bint _has_passed(self, const Publication* publication) noexcept


cdef class BridgeConnection(Device):
    # Of the bridge (identity.BridgeIdentity).
    cdef bytes _gateway
    cdef bytes _mark
    cdef bint _adds_properties
    cdef bint _forwards_bridged
    cdef bint _drops_qos0_offline
    cdef bint _is_retain_available  # at the other broker
    cdef SentTopics _topics
    cdef BridgeCounts _counts
    cdef OutgoingMessage _message
    cdef list _progress             # of the queues that this connection sends
    cdef Sent* _ring                # in the order in which they were sent
    cdef uint32_t _ring_mask
    cdef uint32_t _head             # the oldest
    cdef uint32_t _tail
    cdef ByteBuffer _extra          # properties of the message that is being sent
    cdef ByteBuffer _passed         # gateways it has passed
    cdef bytes _remote              # the gateway at the other end; empty when it has not said
    cdef int64_t _connected_ms
    cdef readonly uint64_t acknowledged     # messages, on this connection
    cdef public list left_out       # messages since somebody has emptied it (LeftOut)
    cdef int64_t _refused           # place of a message that was not taken, and ends the connection; -1 for none
    cdef bint _is_careful
    cdef uint16_t _window_goal      # where _window_max grows to

    cdef int _send(self, Progress progress, const RecordParts* record) except -1
    cdef Py_ssize_t _pass_unreadable(self, Progress progress, const uint8_t* at, Py_ssize_t left) except -1
    cdef int _tell(self, Progress progress, int64_t offset, str why) except -1
    cdef int _put_properties(self, Progress progress, const RecordParts* record) except -1
    cdef int _put_user(self, bytes name, const uint8_t* value, Py_ssize_t size) except -1
    cdef bint _loops(self) noexcept
    cdef int _advance(self) except -1
    cdef int _take_connack(self, bytes body) except -1
