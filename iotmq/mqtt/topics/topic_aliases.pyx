"""Topic aliases of one MQTT 5 connection, one class for each direction (section 3.3.2.3.4).

Towards the device the aliases are ours to give. Operations: one look-up per PUBLISH. Goals: aliases go to topics
that are long and come often; a device that is sent ever new topics costs a look and no copies. Plan: a topic
that is not worth the three bytes of an alias is passed over. One that was seen again lately (64 counters by
hash), or is long, gets a free alias, or, when it was seen often, that of the first topic in turn that was
not used since the last look.
"""

import os

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy

from iotmq.mqtt.topics.keyed_hash cimport keyed_hash

from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import PROTOCOL_ERROR, TOPIC_ALIAS_INVALID

cdef enum:
    WORTH_BYTES_MIN = 8         # an alias takes three bytes of every packet
    LONG_BYTES_MIN = 64         # worth a free alias at first sight: one more use saves twenty times what it costs
    CANDIDATES = 64
    SEEN_FOR_FREE = 2
    SEEN_FOR_TAKING = 8

cdef uint64_t _seed = int.from_bytes(os.urandom(8), "little")
cdef uint64_t _multiplier = int.from_bytes(os.urandom(8), "little") | 1


cdef int _set(AliasedTopic* entry, const uint8_t* topic, Py_ssize_t topic_size) except -1:
    cdef uint8_t* copy = <uint8_t*>malloc(topic_size)
    if copy == NULL:
        raise MemoryError
    memcpy(copy, topic, topic_size)
    free(entry.topic)
    entry.topic = copy
    entry.topic_size = <uint32_t>topic_size
    return 0


cdef void _free(AliasedTopic* topics, uint16_t count) noexcept:
    cdef uint16_t index
    if topics != NULL:
        for index in range(count):
            free(topics[index].topic)
        free(topics)


cdef class InboundAliases:
    """Resolve the aliases that the device has set."""

    def __cinit__(self, uint16_t count_max):
        self.count_max = count_max
        self._topics = <AliasedTopic*>calloc(count_max if count_max else 1, sizeof(AliasedTopic))
        if self._topics == NULL:
            raise MemoryError

    def __dealloc__(self):
        _free(self._topics, self.count_max)

    cdef int resolve(self, uint16_t alias, const uint8_t** topic, Py_ssize_t* topic_size) except -1:
        """Remember a topic that came with its alias, or put the topic in that the alias means."""
        cdef AliasedTopic* entry
        if not 1 <= alias <= self.count_max:    # [MQTT-3.3.2-9]
            raise MqttProtocolError(
                TOPIC_ALIAS_INVALID, f"PUBLISH has topic alias {alias}, {self.count_max} are allowed"
            )
        entry = &self._topics[alias - 1]
        if topic_size[0]:
            if entry.topic == NULL or entry.topic_size != topic_size[0] or memcmp(entry.topic, topic[0], topic_size[0]):
                _set(entry, topic[0], topic_size[0])
        elif entry.topic == NULL:
            raise MqttProtocolError(PROTOCOL_ERROR, f"PUBLISH has topic alias {alias}, which means nothing yet")
        else:
            topic[0] = entry.topic
            topic_size[0] = entry.topic_size
        return 0


cdef class OutboundAliases:
    """Choose the aliases that the server sets."""

    def __cinit__(self, uint16_t count_max):
        self.count_max = count_max
        self._topics = <AliasedTopic*>calloc(count_max if count_max else 1, sizeof(AliasedTopic))
        self._candidates = <Candidate*>calloc(CANDIDATES, sizeof(Candidate))
        if self._topics == NULL or self._candidates == NULL:
            raise MemoryError

    def __dealloc__(self):
        _free(self._topics, self.count_max)
        free(self._candidates)

    cdef uint16_t find(self, const uint8_t* topic, Py_ssize_t topic_size, bint* is_known) except? 0:
        cdef uint64_t hash
        cdef uint16_t index
        cdef Candidate* candidate
        is_known[0] = False
        if topic_size < WORTH_BYTES_MIN or not self.count_max:
            return 0
        hash = keyed_hash(_seed, _multiplier, topic, topic_size)
        for index in range(self.count):
            if (
                self._topics[index].hash == hash
                and self._topics[index].topic_size == topic_size
                and memcmp(self._topics[index].topic, topic, topic_size) == 0
            ):
                is_known[0] = True
                self._topics[index].uses += 1
                return index + 1
        candidate = &self._candidates[hash & (CANDIDATES - 1)]
        if candidate.hash == <uint32_t>(hash >> 32):
            candidate.seen += 1
        elif candidate.seen > 1:
            candidate.seen -= 1
            return 0
        else:
            candidate.hash = <uint32_t>(hash >> 32)
            candidate.seen = 1
        index = self._place_for(max(candidate.seen, SEEN_FOR_FREE) if topic_size >= LONG_BYTES_MIN else candidate.seen)
        if index == self.count_max:
            return 0
        _set(&self._topics[index], topic, topic_size)
        self._topics[index].hash = hash
        self._topics[index].uses = 1
        return index + 1

    cdef uint16_t _place_for(self, uint32_t seen) noexcept:
        """A place for a topic seen so often; `count_max` when there is none."""
        cdef uint16_t index
        if seen < SEEN_FOR_FREE:
            return self.count_max
        if self.count < self.count_max:
            self.count += 1
            return self.count - 1
        if seen < SEEN_FOR_TAKING:
            return self.count_max
        index = self._hand
        self._hand = (self._hand + 1) % self.count_max
        if self._topics[index].uses:
            self._topics[index].uses = 0
            return self.count_max
        return index

    def alias_of(self, bytes topic not None):
        """(alias or 0, whether the device knows it) of the next PUBLISH; for tests."""
        cdef const uint8_t* data = topic
        cdef bint is_known
        cdef uint16_t alias = self.find(data, len(topic), &is_known)
        return alias, bool(is_known)
