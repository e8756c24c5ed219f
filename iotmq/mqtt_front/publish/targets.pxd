from libc.stdint cimport uint8_t, uint32_t, uint64_t

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer
from iotmq.mqtt.topics.topic_cache cimport TopicCache
from iotmq.mqtt_front.connection.device cimport Device


cdef enum TargetKind:
    TARGET_RESOLVED = 0
    TARGET_PERSONAL = 1         # depends on the device: there is another for its names and the topic
    TARGET_REFUSED = 2          # its new name (`[[mqtt.rewrites]]`) is none


cdef struct Target:
    # What one MQTT topic resolved to; value of the topic cache. The rest says nothing unless TARGET_RESOLVED.
    TargetKind kind
    uint8_t* properties         # MQTT_TOPIC, KEYS and TAGS of its records, owned
    uint32_t properties_size
    uint32_t lane               # place of the lane, as `lane_at` gave it
    uint64_t id                 # of no other target, now or later
    bint is_delayed             # its messages wait for a time of their own


# The MQTT topic of a target, after rewriting.
cdef str topic_of(const Target* target)


cdef class Targets:
    cdef TopicCache topics              # values are Target*
    cdef object _router
    cdef object _rewrites
    cdef object _port
    cdef object _lane_at
    cdef ByteBuffer _personal_topic     # a device's names and the topic that is looked for
    cdef int _new_topics_left           # that this turn has room for
    cdef uint64_t _last_id              # of a target

    cdef void begin_turn(self) noexcept
    cdef int count_new(self, Device device) except -1
    cdef Target* of_device(self, Device device, const uint8_t* topic, Py_ssize_t size) except NULL
    cdef Target* resolve(self, const uint8_t* topic, Py_ssize_t size) except NULL
    cdef void drop(self) noexcept
    cdef Target* _resolve_personal(self, Device device, const uint8_t* topic, Py_ssize_t size) except NULL
    cdef Target* _resolve_name(self, const uint8_t* key, Py_ssize_t size, object delay_s, str name,
            object names) except NULL
    cdef Target* _remember(self, const uint8_t* key, Py_ssize_t size, TargetKind kind, bytes properties,
            uint32_t lane) except NULL
