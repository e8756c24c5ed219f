from iotmq.mqtt.server.publish_sink cimport Publication, PublishSink
from iotmq.mqtt_front.connection.device cimport Device
from iotmq.mqtt_front.permissions.rights cimport Rights
from iotmq.mqtt_front.publish.targets cimport Target, Targets


cdef class Waiting:
    cdef list messages                  # as Publication has them, in order
    cdef Py_ssize_t size                # bytes of them


cdef class PublishGuard:
    cdef object _permissions
    cdef object _refusals
    cdef bint _disconnects
    cdef PublishSink sink               # gets what waited, where it has come to; set once, by the sink itself
    cdef readonly Py_ssize_t waiting_bytes  # of messages behind questions

    cdef bint lets_pass(self, Device device, Targets targets, const Target* target,
            const Publication* publication) except -1
    cdef bint lets_answer_pass(self, Device device, str topic, const Publication* publication) except -1
    cdef int _look_up(self, Device device, Targets targets, const Target* target,
            const Publication* publication) except -1
    cdef int _refuse(self, Device device, const Publication* publication, str topic, decision) except -1
    cdef int _tell(self, Device device, const Publication* publication, object reason) except -1
    cdef int _keep(self, Device device, const Publication* publication, str topic) except -1
    cdef int _hand_on(self, Device device, tuple message) except -1
