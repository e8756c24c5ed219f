from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer
from iotmq.mqtt.server.publish_sink cimport Publication, PublishSink
from iotmq.mqtt_front.connection.device cimport Device, DeviceGroup
from iotmq.mqtt_front.publish.batch cimport Batch, BatchOwner, Waiter
from iotmq.mqtt_front.publish.guard cimport PublishGuard
from iotmq.mqtt_front.publish.releases cimport Releases
from iotmq.mqtt_front.publish.sampler cimport Sampler
from iotmq.mqtt_front.publish.targets cimport Ruling, Target, Targets


cdef class Lane(BatchOwner):
    cdef Ingress ingress
    cdef readonly str topic
    cdef readonly int queue_id
    cdef readonly bint is_stored
    cdef readonly bint is_delayed       # its messages wait for a time of their own, and then go to the queue
    cdef Py_ssize_t spare_bytes         # what a record of it needs beside body and properties
    cdef Batch filling                  # where the next message goes
    cdef list waiting                   # full batches behind the one under way, oldest first
    cdef Batch under_way                # handed to the broker; None while the lane is idle
    cdef bint is_active                 # in Ingress._active
    cdef double offered_s               # when the batch under way was handed over first

    cdef int send(self) except -1
    cdef Batch newest(self)


cdef class Ingress(PublishSink):
    cdef object _port
    cdef object _loop
    cdef Sampler _sampler               # None while messages are not traced
    cdef object _traced                 # the span of the message that is being added; None of one not sampled
    cdef public DeviceGroup group       # set once, by the front end that owns both
    cdef Targets _targets
    cdef readonly PublishGuard guard    # of devices with rights; None where nobody has any
    cdef list _lanes                    # None at places that are free again
    cdef dict _lane_of                  # (broker topic, queue id, is stored, is delayed) -> place in _lanes
    cdef list _active                   # lanes with something to send at the end of the turn
    cdef list _spare                    # empty batches with their memory
    cdef ByteBuffer _own_properties     # of the message that is being added: what only MQTT 5 has
    cdef Py_ssize_t _batch_bytes_max
    cdef Py_ssize_t _pending_bytes_max
    cdef Py_ssize_t _record_bytes_max
    cdef double _retry_interval_s
    cdef Py_ssize_t _pending_bytes      # in batches of any kind
    cdef object _unique_keys            # None where no answer of a broker can get lost
    cdef Releases _releases
    cdef bint _is_marked                # the message that is being added has its packet id
    cdef bint _is_closed                # nothing is offered again
    cdef public bint sheds              # messages of QoS 0 are dropped, because of overload
    cdef readonly uint64_t shed
    cdef readonly uint64_t messages
    cdef readonly uint64_t message_bytes
    cdef readonly uint64_t batches
    cdef readonly uint64_t retries
    cdef readonly uint64_t replies      # answers to requests of native clients
    cdef readonly uint64_t not_stored   # messages the broker refused for good
    cdef public object bridges          # told what bridges say about themselves; None where there are none
    cdef const uint8_t* _publisher      # of the message that is being added: properties of a device behind a bridge
    cdef Py_ssize_t _publisher_size
    cdef readonly uint64_t bridge_notifications  # of these, what goes nowhere

    cdef int _reply(self, Device device, bytes topic, const Publication* publication) except -1
    cdef int _publish_ruled(self, Target* target, Device device, const Publication* publication) except -1
    cdef int _take_notification(self, Device device, bytes topic, const Publication* publication) except -1
    cdef int _of_bridge(self, Device device, Publication* publication) except -1
    cdef int _publish(self, Device device, const Publication* publication) except -1
    cdef int _refuse_rewritten(self, Device device, const Publication* publication) except -1
    cdef int add(self, Target* target, Device device, const uint8_t* payload, Py_ssize_t payload_size, int qos,
            bint retain, bint is_waiting, uint32_t sequence) except -1
    cdef int _sample(self, Device device, const Publication* publication, const Target* target) except -1
    cdef int _mark(self, Lane lane, const Publication* publication) except -1
    cdef int _after_answer(self) except -1
    cdef int _answer(self, const Waiter* waiter, int code, str remark, object broker) except -1
    cdef Batch _take_batch(self, Lane lane)
    cdef int _batch_done(self, Lane lane, Batch batch, int code, str remark) except -1
