from libc.stdint cimport uint8_t, uint32_t

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer
from iotmq.mqtt.codec.publish_properties cimport PublishProperties


# Add the properties of a PUBLISH as the record of its message has them.
cdef int append_record_properties(ByteBuffer* target, const PublishProperties* found) except -1
# Add the properties of a record as a PUBLISH has them, without its expiry interval.
cdef int append_publish_properties(ByteBuffer* target, const uint8_t* properties, Py_ssize_t size) except -1

# A user property of a PUBLISH; one whose value is no text of MQTT is left out.
cdef int append_user_property(ByteBuffer* target, bytes name, const uint8_t* value, Py_ssize_t size) except -1

# One of those properties, `at` to `end`, if MQTT 5 has it.
cdef int append_publish_property(ByteBuffer* target, const uint8_t* at, const uint8_t* end) except -1
