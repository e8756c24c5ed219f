from libc.stdint cimport uint8_t, uint32_t, uint64_t

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer
from iotmq.mqtt.codec.publish_properties cimport PublishProperties
from iotmq.mqtt.server.publish_sink cimport Publication
from iotmq.mqtt.topics.topic_cache cimport TopicCache
from iotmq.mqtt_front.connection.device cimport Device
from iotmq.mqtt_front.routing.route_rules cimport RouteRules


cdef enum TargetKind:
    TARGET_RESOLVED = 0
    TARGET_PERSONAL = 1         # depends on the device: there is another for its names and the topic
    TARGET_REFUSED = 2          # its new name (`[[mqtt.rewrites]]`) is none
    TARGET_RULED = 3            # resolved, and its route asks something of each message: see `rule`
    TARGET_BY_MESSAGE = 4       # each message is asked which route it has: see `rule`


cdef struct Target:
    # What one MQTT topic resolved to; value of the topic cache. The rest says nothing unless TARGET_RESOLVED.
    TargetKind kind
    uint8_t* properties         # MQTT_TOPIC, KEYS and TAGS of its records, owned
    uint32_t properties_size
    uint32_t lane               # place of the lane, as `lane_at` gave it
    uint64_t id                 # of no other target, now or later
    bint is_delayed             # its messages wait for a time of their own
    void* asking                # an owned reference to its Asking; NULL unless TARGET_RULED or TARGET_BY_MESSAGE


cdef struct Ruling:
    # What becomes of one message, by the rules of its route.
    Target* target              # where it goes, until the next call of `rule`; NULL: nowhere
    PublishProperties properties
    uint8_t qos                 # that it goes on with
    bint is_retained
    bint is_put_aside
    bint is_refused             # and the device hears so


cdef class Asking:
    cdef str name               # the MQTT topic
    cdef str key
    cdef str broker_topic       # of the route, with the next one for traces
    cdef int queue_id
    cdef object delay_s
    cdef RouteRules rules       # None: the route asks nothing of a message
    cdef object routes          # MessageRoutes of TARGET_BY_MESSAGE
    cdef bint is_left_out       # of its sample
    cdef str put_aside          # why; empty for what is not


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
    cdef Target _single                 # of the message at hand, with the next two; `_single_asking` may be None
    cdef bytes _single_properties
    cdef Asking _single_asking
    cdef uint64_t rewrites_refused          # messages whose topic has no name after rewriting
    cdef readonly uint64_t route_dropped    # messages that their route drops
    cdef readonly uint64_t left_out         # that are not in the sample of their route
    cdef readonly uint64_t put_aside        # that are in quarantine

    cdef void begin_turn(self) noexcept
    cdef int count_new(self, Device device) except -1
    cdef Target* of_device(self, Device device, const uint8_t* topic, Py_ssize_t size) except NULL
    cdef Target* resolve(self, const uint8_t* topic, Py_ssize_t size) except NULL
    cdef int _rule(self, Target* target, Device device, const Publication* publication, Ruling* ruling) except -1
    cdef int _note(self, Device device, const Publication* publication, const Ruling* ruling) except -1
    cdef int rule(self, Target* target, Device device, const Publication* publication, Ruling* ruling) except -1
    cdef int rule_will(self, Device device, object will, Ruling* ruling, ByteBuffer* own) except -1
    cdef void drop(self) noexcept
    cdef int _choose(self, Asking asking, const Publication* publication) except -1
    cdef int _put_aside(self, Asking asking, str reason, Device device) except -1
    cdef int _put_single(self, bytes properties, Asking asking) except -1
    cdef bytes _lead(self, Target* target, Asking asking, object route)
    cdef Target* _resolve_personal(self, Device device, const uint8_t* topic, Py_ssize_t size) except NULL
    cdef Target* _resolve_name(self, const uint8_t* key, Py_ssize_t size, object delay_s, str name,
            object names) except NULL
    cdef Target* _remember_kind(self, const uint8_t* key, Py_ssize_t size, TargetKind kind) except NULL
    cdef Target* _remember(self, const uint8_t* key, Py_ssize_t size, const Target* target,
            bytes properties, Asking asking) except NULL
