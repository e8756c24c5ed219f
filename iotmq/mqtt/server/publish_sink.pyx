"""Define the sink that connections hand their PUBLISH packets to."""

from libc.stdint cimport uint16_t

from iotmq.mqtt.topics.topics import decode_topic_name


cdef class PublishSink:
    """Define the calls that a front end overrides.

    The topic is as it came: the sink validates it, once per topic it does not know yet, and raises
    MqttProtocolError when it is not legal.
    """

    cdef int on_publish(self, object connection, const Publication* publication) except -1:
        """`connection` is the ServerConnection that received it."""
        raise NotImplementedError("a PublishSink overrides on_publish")

    cdef int on_release(self, object connection, uint16_t packet_id, object broker) except -1:
        """PUBREL came for a message with a packet id that a broker keeps: `broker`, or any when it is None."""
        raise NotImplementedError("a PublishSink overrides on_release")

    cdef int end_turn(self) except -1:
        """Nothing more comes in this turn of the loop; what was collected may go on."""
        return 0


cdef class CollectingSink(PublishSink):
    """Keeps every PUBLISH as a tuple (topic, payload, qos, retain, sequence); for tests and tools."""

    cdef readonly list published

    def __init__(self):
        self.published = []

    cdef int on_publish(self, object connection, const Publication* publication) except -1:
        self.published.append((
            decode_topic_name(publication.topic[:publication.topic_size]),
            publication.payload[:publication.payload_size],
            publication.qos,
            bool(publication.is_retained),
            publication.sequence,
        ))
        return 0


cdef class CountingSink(PublishSink):
    """Counts what is published and forgets it; for benchmarks."""

    cdef int on_publish(self, object connection, const Publication* publication) except -1:
        self.messages += 1
        self.payload_bytes += publication.payload_size
        return 0
