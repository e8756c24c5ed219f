"""Which messages of devices are traced, and the context in their records.

What a device itself has sent stays as it is, but for the id of the span before where that is trusted.
"""

from libc.stdint cimport uint8_t, uint64_t
from libc.string cimport memcpy

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer, append
from iotmq.mqtt.server.publish_sink cimport Publication
from iotmq.mqtt_front.connection.device cimport Device
from iotmq.telemetry.trace_context cimport TRACEPARENT_BYTES, find_value, is_sampled, is_traceparent

import os

from iotmq.message.properties import MQTT_USER_PREFIX

cdef double ALL = 18446744073709549568.0    # the greatest double below 2^64

cdef bytes _USER_TRACEPARENT = f"{MQTT_USER_PREFIX}traceparent".encode() + b"\x01"
cdef bytes _USER_TRACESTATE = f"{MQTT_USER_PREFIX}tracestate".encode() + b"\x01"
cdef bytes _TRACEPARENT = b"traceparent\x01"
cdef bytes _TRACESTATE = b"tracestate\x01"


cdef class Sampler:
    """Decides for each message, and writes its context into the properties that its record has of MQTT 5."""

    def __init__(self, tracing not None):
        self._tracing = tracing
        self._trusts_devices = tracing.trusts_devices
        self._sample_below = <uint64_t>min(tracing.sample_ratio * 2.0 ** 64, ALL)
        self._random = int.from_bytes(os.urandom(8)) | 1

    cdef object trace(
        self, Device device, const Publication* publication, str topic, ByteBuffer* properties
    ):
        cdef const uint8_t* parent = NULL
        cdef const uint8_t* state = NULL
        cdef Py_ssize_t size = 0, state_size = 0
        cdef bytes context = None, added
        span = None
        if self._trusts_devices and properties.size:
            parent = find_value(properties.data, properties.size, _USER_TRACEPARENT, &size)
            if parent != NULL and not is_traceparent(parent, size):
                parent = NULL
        if parent != NULL:
            context = parent[:TRACEPARENT_BYTES]
            state = find_value(properties.data, properties.size, _USER_TRACESTATE, &state_size)
        elif self._sample_below == 0 or not self._draw():
            return None
        if parent == NULL or is_sampled(parent):
            span = self._tracing.received(
                context, device.client_id, publication.topic[:publication.topic_size], topic,
                publication.qos, publication.payload_size,
            )
            context = span.traceparent
            if parent != NULL:
                memcpy(<uint8_t*>parent, <const char*>context, TRACEPARENT_BYTES)
        added = _TRACEPARENT + context + b"\x02"
        if state != NULL:
            added += _TRACESTATE + state[:state_size] + b"\x02"
        append(properties, <const uint8_t*>added, len(added))
        return span

    cdef bint _draw(self) noexcept:
        """Return whether the next message begins a trace."""
        self._random ^= self._random << 13
        self._random ^= self._random >> 7
        self._random ^= self._random << 17
        return self._random <= self._sample_below
