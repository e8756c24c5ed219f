from libc.stdint cimport uint64_t

from iotmq.mqtt.connection cimport PublishSink, ServerConnection


cdef class DeviceGroup:
    cdef readonly object loop
    cdef readonly PublishSink sink
    cdef object _handler
    cdef public double now_s
    cdef bint _is_write_scheduled
    cdef public bint is_congested       # reading from devices is to stop
    cdef list _touched                  # devices with output, each once
    cdef set _paused                    # devices whose reading stopped
    cdef readonly uint64_t received_bytes
    cdef readonly uint64_t sent_bytes

    cdef int touch(self, Device device) except -1
    cdef int write_touched(self) except -1
    cdef int pause(self, Device device) except -1


cdef class Device(ServerConnection):
    cdef readonly DeviceGroup group
    cdef readonly object transport      # None before connection_made and after connection_lost
    cdef public str client_id           # None until the session is open
    cdef public bytes properties        # the record properties of everything it publishes
    cdef public dict subscriptions      # filter -> granted QoS; None while it has none
    cdef public object will             # None when there is none, or it was dropped by DISCONNECT
    cdef bint _is_touched
    cdef bint _is_paused

    cdef int _after_input(self) except -1
    cdef int write_output(self) except -1
