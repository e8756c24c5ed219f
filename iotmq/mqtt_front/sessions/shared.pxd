from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from iotmq.mqtt_front.connection.device cimport Device, DeviceGroup, DeviceSession
from iotmq.mqtt_front.connection.held_message cimport MessageCopy
from iotmq.mqtt_front.connection.outgoing cimport OutgoingMessage


cdef class SharedSubscription:
    cdef readonly SharedSession session
    cdef readonly str topic_filter
    cdef readonly uint32_t number
    cdef readonly uint64_t options      # as in ports.sessions.SessionSubscription
    cdef uint32_t identifier            # of the subscription; 0 = none
    cdef dict sources                   # number of a broker -> Source
    cdef bint is_ended

    cdef int change(self, uint64_t options) except -1


cdef class Source:
    cdef readonly SharedSubscription member
    cdef readonly uint32_t number
    cdef int64_t granted                # messages it may hand out, without those that are done since it was told
    cdef int64_t completed              # since then
    cdef set held                       # positions that are with the device, or wait for it
    cdef list done                      # positions the broker is to be told of
    cdef list telling                   # those it is being told of
    cdef bint is_noted


cdef class SharedSession(DeviceSession):
    cdef SharedEgress egress
    cdef readonly Device device
    cdef readonly str client_id
    cdef readonly int64_t epoch
    cdef readonly dict members          # filter -> SharedSubscription
    cdef dict _flights                  # packet id -> (Source, position)
    cdef object _waiting                # (Source, position) -> HeldMessage, the oldest first

    cdef int receive(self, Source source, int64_t position, OutgoingMessage message, bint is_repeated) except -1
    cdef int sent(self, Source source, int64_t position, uint16_t packet_id) except -1


cdef class SharedEgress:
    cdef readonly DeviceGroup group
    cdef object port                    # ports.sessions.SharePort
    cdef uint32_t credit
    cdef dict _members                  # number -> SharedSubscription
    cdef uint32_t _last_number
    cdef list _noted                    # sources a broker is to be told of
    cdef OutgoingMessage _message
    cdef object _copies                 # (number of a broker, position) -> MessageCopy, while some device waits for it
    cdef readonly uint64_t delivered
    cdef readonly uint64_t done
    cdef readonly uint64_t malformed
    cdef readonly uint64_t withdrawn
    cdef readonly uint64_t refused_reports
    cdef readonly uint64_t refused_joins

    cdef int _end(self, SharedSubscription member) except -1
    cdef Source _source(self, SharedSubscription member, uint32_t number)
    cdef MessageCopy copy_of(self, uint32_t number, int64_t position, OutgoingMessage message)
    cdef int finish(self, Source source, int64_t position, bint is_done) except -1
    cdef int note(self, Source source) except -1
