"""Stands between devices with restricted rights and the batches: what may not be published is refused here.

Operations: one question per PUBLISH to the device's `Rights`; Python only for a topic that is new to the connection
and for what is refused. A message whose topic others have to be asked about waits here, and with it all that the
device sends behind it, within bounds.
"""

from libc.stdint cimport uint8_t

from iotmq.mqtt.codec.packet_types cimport LEVEL_5, STATE_CLOSED
from iotmq.mqtt.codec.publish_properties cimport PublishProperties, read_publish_properties
from iotmq.mqtt.server.publish_sink cimport Publication
from iotmq.mqtt_front.connection.device cimport Device
from iotmq.mqtt_front.permissions.rights cimport RIGHT_ALLOWED, RIGHT_REFUSED, RIGHT_UNKNOWN, Rights
from iotmq.mqtt_front.publish.targets cimport Target, Targets, topic_of

from functools import partial

from iotmq import limits
from iotmq.mqtt.codec.framing import encode_variable_integer
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import NOT_AUTHORIZED, QUOTA_EXCEEDED
from iotmq.mqtt_front.permissions.questions import AskedPolicy
from iotmq.mqtt_front.permissions.rule import PUBLISH, Use

cdef Py_ssize_t WAITING_BYTES_MAX = limits.MQTT_PERMISSION_WAITING_BYTES_MAX
cdef enum:
    MESSAGE_BYTES = 512         # of objects that hold one, beside its own


cdef class Waiting:
    """Messages of one connection behind a question."""

    def __init__(self):
        self.messages = []


cdef class PublishGuard:
    """The guard of a front end; `permissions` (permissions.Permissions) knows the rules."""

    def __init__(self, permissions not None):
        self._permissions = permissions
        self._refusals = permissions.refusals
        self._disconnects = permissions.settings.deny_action == "disconnect"

    cdef bint lets_pass(
        self, Device device, Targets targets, const Target* target, const Publication* publication
    ) except -1:
        """Return whether a device with rights may publish this now; if not it is refused, or waits."""
        cdef Rights rights = <Rights?>device.rights
        cdef int flags = publication.qos * 2 + publication.is_retained
        cdef int right = RIGHT_UNKNOWN
        if rights.waiting is None:
            right = rights.may_publish(target.id, flags, publication.payload_size)
            if right == RIGHT_ALLOWED:
                return True
        if right == RIGHT_UNKNOWN:
            right = self._look_up(device, targets, target, publication)
        if right == RIGHT_REFUSED:
            self._refuse(device, publication, topic_of(target), rights.refusing(target.id, flags))
        return right == RIGHT_ALLOWED

    cdef int _look_up(
        self, Device device, Targets targets, const Target* target, const Publication* publication
    ) except -1:
        """Have the rules decide; RIGHT_UNKNOWN when the message waits."""
        cdef Rights rights = device.rights
        cdef str topic = topic_of(target)
        targets.count_new(device)
        policy = rights.policy
        if rights.waiting is not None:
            self._keep(device, publication, topic)
            return RIGHT_UNKNOWN
        if isinstance(policy, AskedPolicy) and not policy.is_known(PUBLISH, topic):
            rights.waiting = Waiting()
            if self._keep(device, publication, topic):
                device.wait_for_answer()
                self._permissions.questions.ask(
                    rights.subject, "publish", topic, partial(self._answered, device, policy, topic)
                )
            else:
                rights.waiting = None
            return RIGHT_UNKNOWN
        rights.learn(target.id, policy.rooms(topic, is_delayed=target.is_delayed))
        return rights.may_publish(target.id, publication.qos * 2 + publication.is_retained, publication.payload_size)

    cdef bint lets_answer_pass(self, Device device, str topic, const Publication* publication) except -1:
        """As `lets_pass`, for an answer to a request, which has no target. It is for the rules alone."""
        cdef Rights rights = <Rights?>device.rights
        policy = rights.policy
        if isinstance(policy, AskedPolicy):
            policy = policy.rules
        decision = policy.may_publish(topic, Use(
            PUBLISH, qos=publication.qos, is_retained=bool(publication.is_retained),
            payload_bytes=publication.payload_size,
        ))
        if not decision.is_allowed:
            self._refuse(device, publication, topic, decision)
        return decision.is_allowed

    cdef int _refuse(self, Device device, const Publication* publication, str topic, decision) except -1:
        cdef Rights rights = device.rights
        self._refusals.note(rights.subject, "publish", topic, rule=decision.rule, detail=decision.detail)
        if self._disconnects:
            raise MqttProtocolError(NOT_AUTHORIZED, "it may not publish that")
        return self._tell(device, publication, NOT_AUTHORIZED)

    cdef int _tell(self, Device device, const Publication* publication, object reason) except -1:
        """Give a message up, with the code that MQTT 5 has for it."""
        if not publication.qos:
            return 0
        if device.protocol_level == LEVEL_5:
            return device.refuse_published(publication.sequence, 1, reason.v5_code)
        return device.acknowledge(publication.sequence, 1)

    # Messages that wait

    cdef int _keep(self, Device device, const Publication* publication, str topic) except -1:
        """Return 1 when a copy waits, 0 when there is no room and it is refused."""
        cdef Rights rights = device.rights
        cdef Waiting waiting = rights.waiting
        cdef Py_ssize_t size = MESSAGE_BYTES + publication.topic_size + publication.payload_size
        cdef bytes properties = None
        if publication.properties != NULL:
            size += publication.properties.raw_size
        if self.waiting_bytes + size > WAITING_BYTES_MAX:
            self._refusals.note(rights.subject, "publish", topic, rule="too many questions")
            self._tell(device, publication, QUOTA_EXCEEDED)
            return 0
        if publication.properties != NULL:
            properties = publication.properties.raw[:publication.properties.raw_size]
            properties = encode_variable_integer(len(properties)) + properties
        waiting.messages.append((
            publication.topic[:publication.topic_size], publication.payload[:publication.payload_size], properties,
            publication.sequence, publication.packet_id, publication.qos, bool(publication.is_retained),
            bool(publication.is_duplicate),
        ))
        waiting.size += size
        self.waiting_bytes += size
        return 1

    def _answered(self, Device device not None, policy not None, topic not None, answer not None):
        """The deciders have said something about the first message that waits."""
        cdef Rights rights = device.rights
        cdef Waiting waiting = rights.waiting
        cdef tuple message
        policy.tell(PUBLISH, topic, answer)
        rights.waiting = None
        self.waiting_bytes -= waiting.size
        try:
            for message in waiting.messages:
                # Behind one that has to be asked about again the others wait again.
                self._hand_on(device, message)
        except MqttProtocolError as error:
            device.close(error.reason, str(error))
            device.finish()
        if rights.waiting is None:
            device.answer_came()
        elif device.output.size:
            device.group.touch(device)

    cdef int _hand_on(self, Device device, tuple message) except -1:
        cdef Publication publication
        cdef PublishProperties properties
        cdef bytes topic = message[0]
        cdef bytes payload = message[1]
        cdef bytes raw = message[2]
        publication.qos = message[5]
        if device.state == STATE_CLOSED and publication.qos:
            return 0    # it has had no receipt, and comes again
        publication.topic = topic
        publication.topic_size = len(topic)
        publication.payload = payload
        publication.payload_size = len(payload)
        publication.properties = NULL
        if raw is not None:
            read_publish_properties(<const uint8_t*>raw, len(raw), &properties)
            publication.properties = &properties
        publication.sequence = message[3]
        publication.packet_id = message[4]
        publication.is_retained = message[6]
        publication.is_duplicate = message[7]
        if device.bridge is None:
            return self.sink.on_publish(device, &publication)
        device.bridge.is_mounted = True
        try:
            return self.sink.on_publish(device, &publication)
        finally:
            device.bridge.is_mounted = False
