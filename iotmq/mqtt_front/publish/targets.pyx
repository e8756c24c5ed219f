"""Map MQTT topics to the lane of a queue, and to properties that all records of the topic have.

Operations: find per message, resolve per new topic, in Python. Goals: a message of a known topic costs one
look-up; no device makes the others wait by new topics. Plan: targets are C data in a `TopicCache`, dropped
whole when it is full. Where the name depends on the device there are two: one of the topic that says so, and
one of the device's names and the topic.
"""

cimport cython
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from iotmq.mqtt.codec.byte_buffer cimport append
from iotmq.mqtt.topics.topic_cache cimport TopicCache
from iotmq.mqtt_front.connection.device cimport Device

import logging

from iotmq import limits
from iotmq.client.transport.routes import queue_of_key
from iotmq.message.properties import KEYS, MQTT_TOPIC, TAGS, TIMER_DELAY_S, encode_properties
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import TOPIC_NAME_INVALID
from iotmq.mqtt.topics.delayed import split_delayed
from iotmq.mqtt.topics.reply import REPLY_PREFIX
from iotmq.mqtt.topics.topics import PRIVATE_PREFIX, SYS_PREFIX, decode_topic_name
from iotmq.mqtt_front.publish.device_names import names_of_key

_log = logging.getLogger("iotmq.mqtt")

cdef enum:
    CACHED_TOPICS_MAX = 65536
    NEW_TOPICS_PER_TURN = 256       # some 10 us each, and more at brokers: who has more waits for the next turn

cdef Py_ssize_t PROPERTIES_BYTES_MAX = limits.PROPERTIES_BYTES_MAX


def _check_publishable(str name):
    """Raise MqttProtocolError for a topic that is no device's."""
    if name.startswith(SYS_PREFIX):
        raise MqttProtocolError(TOPIC_NAME_INVALID, "what is below $SYS/ is published by the server alone")
    if name.startswith(PRIVATE_PREFIX):
        raise MqttProtocolError(TOPIC_NAME_INVALID, f"what is below {PRIVATE_PREFIX} is the server's own")
    if name.startswith(REPLY_PREFIX):
        # Of a will, or behind a delay or another name: who asked would not wait for it.
        raise MqttProtocolError(TOPIC_NAME_INVALID, "an answer to a request is published at once")


# Its memory is freed by what a collection of cycles would clear before.
@cython.no_gc_clear
cdef class Targets:
    """The targets of all devices' topics. `port` knows how many queues topics have.

    `lane_at(topic, queue id, is_stored=, is_delayed=)` returns the place of the lane to a queue.
    """

    def __init__(self, router not None, rewrites not None, port not None, lane_at not None):
        self.topics = TopicCache(CACHED_TOPICS_MAX, limits.MQTT_TOPIC_CACHE_BYTES_MAX)
        self._router = router
        self._rewrites = rewrites
        self._port = port
        self._lane_at = lane_at
        self.begin_turn()

    def __dealloc__(self):
        if self.topics is not None:
            self.drop()
        free(self._personal_topic.data)

    cdef void begin_turn(self) noexcept:
        self._new_topics_left = NEW_TOPICS_PER_TURN

    cdef int count_new(self, Device device) except -1:
        """Count a topic that has to be resolved in Python; past the turn's share the device waits."""
        self._new_topics_left -= 1
        if self._new_topics_left <= 0:
            device.wait_for_turn()
        return 0

    cdef Target* of_device(self, Device device, const uint8_t* topic, Py_ssize_t size) except NULL:
        """Find the target of a device's topic: TARGET_RESOLVED or TARGET_REFUSED, never TARGET_PERSONAL."""
        cdef Target* target = <Target*>self.topics.find(topic, size)
        if target == NULL:
            target = self.resolve(topic, size)
        if target.kind == TARGET_PERSONAL:
            return self._resolve_personal(device, topic, size)
        return target

    cdef Target* _resolve_personal(self, Device device, const uint8_t* topic, Py_ssize_t size) except NULL:
        cdef bytes names = device.names
        cdef Target* target
        # No topic begins with what ends in NUL.
        self._personal_topic.size = 0
        append(&self._personal_topic, <const uint8_t*>names, len(names))
        append(&self._personal_topic, topic, size)
        target = <Target*>self.topics.find(self._personal_topic.data, self._personal_topic.size)
        if target != NULL:
            return target
        self.count_new(device)
        delay_s, name = split_delayed(topic[:size].decode())
        return self._resolve_name(
            self._personal_topic.data, self._personal_topic.size, delay_s, name, names_of_key(names)
        )

    cdef Target* resolve(self, const uint8_t* topic, Py_ssize_t size) except NULL:
        """Validate a topic that is new here, and remember what it maps to."""
        cdef bytes raw = topic[:size]
        delay_s, name = split_delayed(decode_topic_name(raw))
        _check_publishable(name)
        if self._rewrites.is_personal(name):
            return self._remember(topic, size, TARGET_PERSONAL, b"", 0)
        return self._resolve_name(topic, size, delay_s, name, None)

    cdef Target* _resolve_name(
        self, const uint8_t* key, Py_ssize_t size, object delay_s, str name, object names
    ) except NULL:
        """Remember under `key` where what is published to a valid topic goes."""
        try:
            own = self._rewrites.published(name, names)
            if own != name:
                if not delay_s:
                    delay_s, own = split_delayed(own)
                _check_publishable(own)
                name = own
        except MqttProtocolError as error:
            _log.debug("topic not rewritten", extra={"topic": name, "detail": str(error)})
            return self._remember(key, size, TARGET_REFUSED, b"", 0)
        cdef bint is_delayed = delay_s > 0
        route = self._router.resolve(name)
        queue_id = queue_of_key(route.key, self._port.queue_count(route.topic))
        # To wait is to be in the log, whatever the route says.
        place = self._lane_at(
            route.topic, queue_id, is_stored=route.is_stored or is_delayed, is_delayed=is_delayed
        )
        named = {MQTT_TOPIC: name, KEYS: route.key}
        if route.tags:
            named[TAGS] = route.tags
        if is_delayed:
            named[TIMER_DELAY_S] = str(delay_s)
        cdef bytes properties = encode_properties(named)
        if len(properties) + 1024 > PROPERTIES_BYTES_MAX:
            raise MqttProtocolError(TOPIC_NAME_INVALID, "the topic makes properties that are too long for a record")
        return self._remember(key, size, TARGET_RESOLVED, properties, place)

    cdef Target* _remember(
        self, const uint8_t* key, Py_ssize_t size, TargetKind kind, bytes properties, uint32_t lane
    ) except NULL:
        cdef uint64_t value_bytes = sizeof(Target) + len(properties)
        if not self.topics.has_room(size + value_bytes):
            self.drop()
        cdef Target* target = <Target*>malloc(sizeof(Target))
        if target == NULL:
            raise MemoryError
        target.kind = kind
        target.properties = <uint8_t*>malloc(len(properties) or 1)
        if target.properties == NULL:
            free(target)
            raise MemoryError
        memcpy(target.properties, <const uint8_t*>properties, len(properties))
        target.properties_size = <uint32_t>len(properties)
        target.lane = lane
        self.topics.insert(key, size, target, value_bytes)
        return target

    cdef void drop(self) noexcept:
        cdef uint64_t index
        cdef Target* target
        for index in range(<uint64_t>self.topics.mask + 1):
            if self.topics.slots[index].topic != NULL:
                target = <Target*>self.topics.slots[index].value
                free(target.properties)
                free(target)
        self.topics.clear_topics()
