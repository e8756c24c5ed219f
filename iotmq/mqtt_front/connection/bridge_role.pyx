"""A connection that speaks for other devices: its place in the tree of topics, and who it says has published.

Operations: one call per message of a bridge, either way; other devices pay for one comparison. Plan: a topic
with its prefix is put together in one buffer, and found in the same cache as any other.
"""

from libc.stdint cimport uint8_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp

from iotmq.message.records.layout cimport get_u16
from iotmq.mqtt.codec.byte_buffer cimport append
from iotmq.mqtt.codec.publish_properties cimport PublishProperties, next_user_property

from iotmq import limits
from iotmq.message.properties import MQTT_BRIDGE, MQTT_CLIENT_ID, MQTT_USER_PREFIX, encode_properties
from iotmq.mqtt.codec.bridge_names import CLIENT_ID_PROPERTY, HOPS_PROPERTY, USER_PROPERTY
from iotmq.mqtt.topics.delayed import DELAYED_PREFIX
from iotmq.mqtt.topics.reply import REPLY_PREFIX

cdef bytes _DELAYED = DELAYED_PREFIX.encode()
cdef bytes _REPLY = REPLY_PREFIX.encode()
cdef bytes _CLIENT_ID = CLIENT_ID_PROPERTY.encode()
cdef bytes _USER = USER_PROPERTY.encode()
cdef bytes _PUBLISHER = MQTT_CLIENT_ID.encode() + b"\x01"
cdef bytes _END = b"\x02"
cdef Py_ssize_t CLIENT_ID_BYTES_MAX = limits.MQTT_CLIENT_ID_BYTES_MAX


cdef class BridgeRole:
    """The role of one connection. `prefix` stands before every topic of it, and is taken off what it is sent."""

    def __init__(self, str client_id not None, *, str prefix="", bint is_trusted=False, str passed=""):
        """`passed` is the gateway where what comes over it has been last; empty when that is not known."""
        self.prefix = prefix.encode()
        self.is_trusted = is_trusted
        self._mark = encode_properties({MQTT_BRIDGE: client_id})
        if passed:
            self._mark += encode_properties({MQTT_USER_PREFIX + HOPS_PROPERTY: passed})
        self._own = encode_properties({MQTT_CLIENT_ID: client_id}) + self._mark

    def __dealloc__(self):
        free(self._topic.data)
        free(self._publisher.data)

    @property
    def properties(self):
        """Properties of the records of what the bridge itself publishes."""
        return self._own

    def mounted(self, str topic not None):
        """`mount` of a topic of a will."""
        cdef bytes raw = topic.encode()
        cdef Publication publication
        publication.topic = raw
        publication.topic_size = len(raw)
        self.mount(&publication)
        return publication.topic[:publication.topic_size].decode()

    cdef int mount(self, Publication* publication) except -1:
        cdef Py_ssize_t at = 0
        cdef const uint8_t* found
        if not self.prefix or self.is_mounted or _begins(publication.topic, publication.topic_size, _REPLY):
            return 0
        if _begins(publication.topic, publication.topic_size, _DELAYED):
            # $delayed/SECONDS/TOPIC: the topic is what the prefix is for.
            at = len(_DELAYED)
            found = <const uint8_t*>memchr(publication.topic + at, 47, publication.topic_size - at)
            if found == NULL:
                return 0    # refused as it is; a prefix of digits would become a part of the seconds
            at = found + 1 - publication.topic
        self._topic.size = 0
        append(&self._topic, publication.topic, at)
        append(&self._topic, <const uint8_t*>self.prefix, len(self.prefix))
        append(&self._topic, publication.topic + at, publication.topic_size - at)
        publication.topic = self._topic.data
        publication.topic_size = self._topic.size
        return 0

    cdef void unmount(self, OutboundMessage* message) noexcept:
        if _begins(message.topic, message.topic_size, self.prefix) and message.topic_size > len(self.prefix):
            message.topic += len(self.prefix)
            message.topic_size -= len(self.prefix)

    cdef bytes names(self, const PublishProperties* properties):
        return self._client_id[:self._client_id_size] + b"\0" + _user_of(properties) + b"\0"

    cdef const uint8_t* publisher(self, const PublishProperties* properties, Py_ssize_t* size) except? NULL:
        cdef const uint8_t* at
        cdef const uint8_t* end
        cdef Py_ssize_t length
        if not self.is_trusted or properties == NULL or not properties.user_count:
            return NULL
        end = properties.raw + properties.raw_size
        at = next_user_property(properties.raw, end)
        while at != NULL:
            length = get_u16(at)
            if length == len(_CLIENT_ID) and memcmp(at + 2, <const char*>_CLIENT_ID, length) == 0:
                at += 2 + length
                length = get_u16(at)
                if not 0 < length <= CLIENT_ID_BYTES_MAX:
                    return NULL
                self._client_id = at + 2
                self._client_id_size = length
                self._publisher.size = 0
                append(&self._publisher, <const uint8_t*>_PUBLISHER, len(_PUBLISHER))
                append(&self._publisher, at + 2, length)
                append(&self._publisher, <const uint8_t*>_END, 1)
                append(&self._publisher, <const uint8_t*>self._mark, len(self._mark))
                size[0] = self._publisher.size
                return self._publisher.data
            at += 2 + length
            at = next_user_property(at + 2 + get_u16(at), end)
        return NULL


cdef bytes _user_of(const PublishProperties* properties):
    cdef const uint8_t* end = properties.raw + properties.raw_size
    cdef const uint8_t* at = next_user_property(properties.raw, end)
    cdef Py_ssize_t length
    while at != NULL:
        length = get_u16(at)
        if length == len(_USER) and memcmp(at + 2, <const char*>_USER, length) == 0:
            at += 2 + length
            return at[2:2 + get_u16(at)]
        at += 2 + length
        at = next_user_property(at + 2 + get_u16(at), end)
    return b""


cdef bint _begins(const uint8_t* text, Py_ssize_t size, bytes start) noexcept:
    return size >= len(start) and memcmp(text, <const char*>start, len(start)) == 0
