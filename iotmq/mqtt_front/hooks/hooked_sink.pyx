"""Between devices and the ingress where users' programs decide about messages, or are told of them.

Operations: one call per PUBLISH, one question per turn of the loop with all messages of all devices. Goals:
order per device; bounded memory; devices without such programs have the ingress itself for a sink. Plan: what
came in a turn is copied and asked about together; batches go on in the order in which they came, whichever is
answered first. While too much is held nothing is read from devices.
"""

from libc.stdint cimport uint16_t, uint32_t, uint8_t
from libc.string cimport memset

from iotmq.mqtt.codec.packet_types cimport LEVEL_5
from iotmq.mqtt.codec.publish_properties cimport PublishProperties, read_publish_properties
from iotmq.mqtt.server.publish_sink cimport Publication, PublishSink
from iotmq.mqtt_front.connection.device cimport CONGESTED_HOOKS, Device, DeviceGroup

from collections import deque
from functools import partial

from iotmq import limits
from iotmq.hooks import Message
from iotmq.mqtt.codec.framing import encode_variable_integer
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import NOT_AUTHORIZED
from iotmq.supervised import FAILURES

cdef enum:
    EACH_BYTES = 512    # what is held of a message beside its topic, payload and properties

cdef Py_ssize_t HELD_BYTES_MAX = limits.HOOK_HELD_BYTES_MAX
cdef uint8_t NOT_AUTHORIZED_CODE = NOT_AUTHORIZED.v5_code


cdef class HeldPublication:
    """A PUBLISH that waits for an answer."""

    cdef Device device
    cdef bytes topic
    cdef bytes payload
    cdef bytes properties       # with their length; None for none
    cdef uint32_t sequence
    cdef uint16_t packet_id
    cdef uint8_t qos
    cdef bint is_retained
    cdef bint is_duplicate

    cdef Py_ssize_t size(self):
        return EACH_BYTES + len(self.topic) + len(self.payload) + (0 if self.properties is None else len(self.properties))

    def message(self):
        """Return it as programs see it."""
        return Message(
            client_id=self.device.client_id,
            topic=self.topic.decode("utf-8", "replace"),
            payload=self.payload,
            qos=self.qos,
            is_retained=self.is_retained,
        )


cdef class HeldBatch:
    """The messages of one turn, in their order."""

    cdef list publications
    cdef object verdicts        # None until they are there
    cdef set devices
    cdef list passed            # called when the batch has gone on
    cdef Py_ssize_t size

    def __init__(self):
        self.publications = []
        self.devices = set()
        self.passed = []


cdef class HookedSink(PublishSink):
    """A sink of devices. `calls` (HookCalls) has the programs, `sink` gets what they let pass."""

    cdef PublishSink _sink
    cdef object _calls
    cdef public DeviceGroup group       # set once, by the front end that owns both
    cdef bint _is_asking
    cdef bint _is_telling
    cdef HeldBatch _filling
    cdef object _batches                # deque of those that were asked about
    cdef list _told                     # messages of this turn that passed
    cdef readonly Py_ssize_t held_bytes
    cdef readonly object denied

    def __init__(self, PublishSink sink not None, calls not None):
        self._sink = sink
        self._calls = calls
        self._is_asking = calls.has("before_publish")
        self._is_telling = calls.has("after_publish")
        self._filling = HeldBatch()
        self._batches = deque()
        self._told = []
        self.denied = 0

    cdef int on_publish(self, object connection, const Publication* publication) except -1:
        cdef HeldPublication held
        if not self._is_asking and not self._is_telling:
            return self._sink.on_publish(connection, publication)
        held = _held(<Device>connection, publication)
        if not self._is_asking:
            self._sink.on_publish(connection, publication)
            self._tell(held)
            return 0
        self._filling.publications.append(held)
        self._filling.devices.add(connection)
        self._filling.size += held.size()
        self.held_bytes += held.size()
        self.group.schedule_turn()
        if self.held_bytes > HELD_BYTES_MAX:
            self.group.congest(CONGESTED_HOOKS)
        return 0

    cdef int on_release(self, object connection, uint16_t packet_id, object broker) except -1:
        return self._sink.on_release(connection, packet_id, broker)

    cdef int end_turn(self) except -1:
        cdef HeldBatch batch = self._filling
        if batch.publications:
            self._filling = HeldBatch()
            self._batches.append(batch)
            messages = [(<HeldPublication>held).message() for held in batch.publications]
            self._calls.ask("before_publish", (messages,), partial(self._answered, batch), count=len(messages))
        if self._told:
            told, self._told = self._told, []
            self._calls.tell("after_publish", told)
        if self.group.delivered:
            told, self.group.delivered = self.group.delivered, []
            self._calls.tell("after_deliver", told)
        return self._sink.end_turn()

    def when_passed(self, Device device not None, callback not None):
        """Return whether nothing that the device has published waits here; else `callback` is called then."""
        cdef HeldBatch batch, last = None
        for batch in (*self._batches, self._filling):
            if device in batch.devices:
                last = batch
        if last is None:
            return True
        last.passed.append(callback)
        return False

    cdef int _tell(self, HeldPublication held) except -1:
        self._told.append(held.message())
        self.group.schedule_turn()
        return 0

    def _answered(self, HeldBatch batch not None, verdicts):
        batch.verdicts = verdicts
        while self._batches and (<HeldBatch>self._batches[0]).verdicts is not None:
            self._go_on(self._batches.popleft())
        if self.group.is_congested and self.held_bytes * 2 <= HELD_BYTES_MAX:
            self.group.relieve(CONGESTED_HOOKS)
        self.group.schedule_turn()

    cdef int _go_on(self, HeldBatch batch) except -1:
        """The oldest batch has its answers."""
        cdef HeldPublication held
        self.held_bytes -= batch.size
        for held, verdict in zip(batch.publications, batch.verdicts):
            try:
                if verdict is None:
                    self._publish(held)
                else:
                    self._deny(held, verdict)
            except MqttProtocolError as error:
                held.device.close(error.reason, str(error))
                held.device.finish()
            except Exception:
                # The others go on.
                FAILURES.note("messages that hooks let pass")
        for callback in batch.passed:
            callback()
        return 0

    cdef int _publish(self, HeldPublication held) except -1:
        cdef Publication publication
        cdef PublishProperties properties
        memset(&publication, 0, sizeof(publication))
        publication.topic = held.topic
        publication.topic_size = len(held.topic)
        publication.payload = held.payload
        publication.payload_size = len(held.payload)
        publication.sequence = held.sequence
        publication.packet_id = held.packet_id
        publication.qos = held.qos
        publication.is_retained = held.is_retained
        publication.is_duplicate = held.is_duplicate
        if held.properties is not None:
            read_publish_properties(held.properties, len(held.properties), &properties)
            publication.properties = &properties
        self._sink.on_publish(held.device, &publication)
        if self._is_telling:
            self._tell(held)
        return 0

    cdef int _deny(self, HeldPublication held, verdict) except -1:
        """With a code before which MQTT 5 has none, a message is acknowledged and dropped."""
        self.denied += 1
        if held.qos:
            if held.device.protocol_level == LEVEL_5:
                held.device.refuse_published(held.sequence, 1, NOT_AUTHORIZED_CODE)
            else:
                held.device.acknowledge(held.sequence, 1)
            self.group.touch(held.device)
        return 0


cdef HeldPublication _held(Device device, const Publication* publication):
    cdef HeldPublication held = HeldPublication()
    held.device = device
    held.topic = publication.topic[:publication.topic_size]
    held.payload = publication.payload[:publication.payload_size]
    held.sequence = publication.sequence
    held.packet_id = publication.packet_id
    held.qos = publication.qos
    held.is_retained = publication.is_retained
    held.is_duplicate = publication.is_duplicate
    if publication.properties != NULL:
        raw = publication.properties.raw[:publication.properties.raw_size]
        held.properties = encode_variable_integer(len(raw)) + raw
    return held
