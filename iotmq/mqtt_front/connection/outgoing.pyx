"""A record of the log as the message it is for subscribers."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memset

from iotmq.message.records.layout cimport SYS_FLAG_COMPRESSED, put_u32
from iotmq.message.records.fields cimport RecordParts
from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer, reserve
from iotmq.mqtt.codec.packet_types cimport MESSAGE_EXPIRY
from iotmq.mqtt_front.connection.message_properties cimport append_publish_properties, append_user_property
from iotmq.telemetry.trace_context cimport TRACEPARENT_BYTES, find_value, is_sampled, is_traceparent

import time

from iotmq import limits
from iotmq.message import properties as names
from iotmq.message.bodies import inflate_body
from iotmq.message.errors import MessageFormatError
from iotmq.telemetry.tracing import tracing

cdef enum:
    PROPERTY_END = 2
    EXPIRY_PROPERTY_BYTES = 5

cdef int SPANS_OF_A_MESSAGE_MAX = limits.SPANS_OF_A_MESSAGE_MAX
cdef bytes _TOPIC = names.MQTT_TOPIC.encode() + b"\x01"
cdef bytes _QOS = names.MQTT_QOS.encode() + b"\x01"
cdef bytes _RETAIN = names.MQTT_RETAIN.encode() + b"\x01"
cdef bytes _CLIENT_ID = names.MQTT_CLIENT_ID.encode() + b"\x01"
cdef bytes _BRIDGE = names.MQTT_BRIDGE.encode() + b"\x01"
cdef bytes _USER_TRACEPARENT = f"{names.MQTT_USER_PREFIX}traceparent".encode() + b"\x01"
cdef bytes _TRACEPARENT = b"traceparent\x01"
cdef bytes _TRACESTATE = b"tracestate\x01"
cdef bytes _TTL = names.TIME_TO_LIVE_MS.encode() + b"\x01"


cdef inline Py_ssize_t _value_at(const uint8_t* at, const uint8_t* end, bytes name) noexcept:
    """Return where the value begins, when the property is this one; else 0."""
    cdef Py_ssize_t size = len(name)
    return size if end - at >= size and memcmp(at, <const char*>name, size) == 0 else 0


cdef class OutgoingMessage:

    def __init__(self, clock not None):
        self._clock = clock
        self._tracing = tracing()

    def __dealloc__(self):
        free(self._properties.data)

    cdef bint read(self, const RecordParts* record) except -1:
        """Look at a record; False when it is no message for devices."""
        cdef const uint8_t* at = record.properties
        cdef const uint8_t* end = at + record.properties_size
        cdef const uint8_t* stop
        cdef int64_t time_to_live_ms = -1
        memset(&self.view, 0, sizeof(self.view))
        # A record without the property comes from a native producer: as reliable as the subscriber asked.
        self.qos = 2
        self.is_retained = self.is_expired = self._has_v5 = self.is_encoded = False
        self.publisher_size = self.client_id_size = 0
        self.has_come_over_bridge = False
        self._raw = at
        self._raw_size = record.properties_size
        if self._tracing is not None:
            self._look_for_context()
        # Forward, so that the last of several wins.
        while at < end:
            stop = <const uint8_t*>memchr(at, PROPERTY_END, end - at)
            if stop == NULL:
                stop = end
            if at[0] == 77:     # M
                self._look(at, stop, &time_to_live_ms)
            at = stop + 1
        if not self.view.topic_size:
            if not self.takes_any_record:
                return False
            self.view.topic = record.topic
            self.view.topic_size = <uint16_t>record.topic_size
        self.view.payload = record.body
        self.view.payload_size = <uint32_t>record.body_size
        if record.sys_flag & SYS_FLAG_COMPRESSED:
            try:
                self._inflated = inflate_body(record.body[:record.body_size], record.sys_flag)
            except MessageFormatError:
                return False
            self.view.payload = self._inflated
            self.view.payload_size = <uint32_t>len(self._inflated)
        if time_to_live_ms >= 0:
            self._left_s = <double>(record.store_timestamp_ms + time_to_live_ms - <int64_t>self._clock.now_ms()) / 1000
            self.is_expired = self._left_s <= 0
            self.view.has_expiry = True
            self.view.expires_s = <double>self._clock.monotonic_s() + self._left_s
        return True

    cdef int _look_for_context(self) except -1:
        """Find the trace of the message, in a process that traces."""
        cdef Py_ssize_t size
        self.is_sampled = False
        self._traced_count = 0
        self._tracestate = NULL
        self._traceparent = find_value(self._raw, self._raw_size, _TRACEPARENT, &size)
        if self._traceparent == NULL:
            return 0
        if not is_traceparent(self._traceparent, size):
            self._traceparent = NULL
            return 0
        self._has_user_context = find_value(self._raw, self._raw_size, _USER_TRACEPARENT, &size) != NULL
        self._tracestate = find_value(self._raw, self._raw_size, _TRACESTATE, &self._tracestate_size)
        if is_sampled(self._traceparent):
            self.is_sampled = True
            self._begun_ns = time.time_ns()
        return 0

    cdef int note_traced(self, client_id, int qos) except -1:
        """A sampled message was handed to a device; the first of many are spans."""
        if self._traced_count < SPANS_OF_A_MESSAGE_MAX:
            self._traced_count += 1
            self._tracing.delivered(self._traceparent[:TRACEPARENT_BYTES], client_id, qos, self._begun_ns)
        return 0

    cdef int _look(self, const uint8_t* at, const uint8_t* end, int64_t* time_to_live_ms) except -1:
        """A property whose name begins with M."""
        cdef Py_ssize_t place
        if (place := _value_at(at, end, _TOPIC)):
            if end - at - place <= 65535:
                self.view.topic = at + place
                self.view.topic_size = <uint16_t>(end - at - place)
        elif (place := _value_at(at, end, _QOS)):
            if end - at == place + 1 and 48 <= at[place] <= 50:
                self.qos = at[place] - 48
        elif (place := _value_at(at, end, _CLIENT_ID)):
            self.client_id = self.publisher = at + place
            self.client_id_size = self.publisher_size = end - at - place
        elif (place := _value_at(at, end, _BRIDGE)):
            # Behind the client id: what a bridge has brought does not go back to it.
            self.publisher = at + place
            self.publisher_size = end - at - place
            self.has_come_over_bridge = True
        elif _value_at(at, end, _RETAIN):
            self.is_retained = True
        elif (place := _value_at(at, end, _TTL)):
            time_to_live_ms[0] = _number(at + place, end)
        else:
            self._has_v5 = True
        return 0

    cdef int encode_properties(self) except -1:
        """Make `view.properties` for devices of MQTT 5; once per record, until `is_encoded`."""
        self.is_encoded = True
        self._properties.size = 0
        self.append_expiry(&self._properties)
        if self._has_v5:
            append_publish_properties(&self._properties, self._raw, self._raw_size)
        if self._traceparent != NULL and not self._has_user_context:
            # Of a native producer, or begun here.
            append_user_property(&self._properties, b"traceparent", self._traceparent, TRACEPARENT_BYTES)
            if self._tracestate != NULL:
                append_user_property(&self._properties, b"tracestate", self._tracestate, self._tracestate_size)
        self.view.properties = self._properties.data
        self.view.properties_size = self._properties.size
        return 0

    cdef int append_expiry(self, ByteBuffer* target) except -1:
        """The time left, as a whole number of seconds [MQTT-3.3.2-6]; nothing for a message without an end."""
        cdef uint8_t* at
        if self.view.has_expiry:
            at = reserve(target, EXPIRY_PROPERTY_BYTES)
            at[0] = MESSAGE_EXPIRY
            put_u32(at + 1, <uint32_t>max(1.0, min(self._left_s + 0.999, 4294967295.0)))
            target.size += EXPIRY_PROPERTY_BYTES
        return 0

    cdef bint is_from(self, const uint8_t* client_id, Py_ssize_t size) noexcept:
        """Return whether this client published it."""
        return size == self.publisher_size and memcmp(client_id, self.publisher, size) == 0


cdef int64_t _number(const uint8_t* at, const uint8_t* end) noexcept:
    """A decimal number; -1 for what is none."""
    cdef int64_t value = 0
    if not 0 < end - at <= 15:
        return -1
    while at < end:
        if not 48 <= at[0] <= 57:
            return -1
        value = value * 10 + at[0] - 48
        at += 1
    return value
