from libc.stdint cimport uint8_t, uint32_t, uint64_t

from iotmq.mqtt.codec.publish_properties cimport PublishProperties
from iotmq.mqtt_front.routing.checksum cimport Checksum


cdef class RouteRules:
    cdef readonly str route             # its name, or its place
    cdef readonly Checksum checksum     # None without one
    cdef readonly str quarantine_topic
    cdef readonly bint refuses          # devices of MQTT 5 hear that their payload is put aside
    cdef readonly bint is_dropped
    cdef readonly uint8_t qos_max
    cdef readonly uint32_t sample_one_in         # by count; 0 or 1 takes all
    cdef uint32_t expiry_s
    cdef uint32_t expiry_s_max
    cdef uint64_t _seen                 # messages that were counted for the sample

    cdef bint takes_next(self) noexcept
    cdef int set_expiry(self, PublishProperties* properties) noexcept
