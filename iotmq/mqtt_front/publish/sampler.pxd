from libc.stdint cimport uint64_t

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer
from iotmq.mqtt.server.publish_sink cimport Publication
from iotmq.mqtt_front.connection.device cimport Device


cdef class Sampler:
    cdef object _tracing                # telemetry.tracing.Tracing
    cdef bint _trusts_devices           # go on with traces that they name
    cdef uint64_t _sample_below         # of 2^64: the share of messages that begin a trace; 0: none
    cdef uint64_t _random               # xorshift64

    # Return the span of a message; None of one that is not sampled.
    cdef object trace(
        self, Device device, const Publication* publication, str topic, ByteBuffer* properties
    )
    cdef bint _draw(self) noexcept
