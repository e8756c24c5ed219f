from libc.stdint cimport uint8_t

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer
from iotmq.mqtt.codec.publish_properties cimport PublishProperties
from iotmq.mqtt.server.outbound cimport OutboundMessage
from iotmq.mqtt.server.publish_sink cimport Publication


cdef class BridgeRole:
    cdef readonly bytes prefix          # of its topics here; empty
    cdef readonly bint is_trusted       # its word for who published is taken
    cdef bint is_mounted                # the message at hand has its prefix already: it has waited for an answer
    cdef bytes _mark                    # the property of everything that comes over it
    cdef ByteBuffer _topic              # of the message that is looked at, with the prefix
    cdef bytes _own                     # properties of what it publishes itself
    cdef ByteBuffer _publisher          # and of what it says another has
    cdef const uint8_t* _client_id      # of that one, in the message that is looked at
    cdef Py_ssize_t _client_id_size

    # The message's topic as it is here; valid until the next call.
    cdef int mount(self, Publication* publication) except -1
    # The other way; what is not below the prefix stays as it is.
    cdef void unmount(self, OutboundMessage* message) noexcept
    # device_names.DeviceNames.key() of the device that `publisher` has found.
    cdef bytes names(self, const PublishProperties* properties)
    # Properties of a record that say who published it, valid until the next call; NULL: the connection did.
    cdef const uint8_t* publisher(self, const PublishProperties* properties, Py_ssize_t* size) except? NULL
