"""The part of a device's connection that tells a trace of its packets, and of what is decided about it.

Operations: a look at a pointer for each packet that comes and for each write. Goals: nothing else while nobody
traces, and with traces of topics little for messages of other topics. Plan: a connection that is traced has a Tap.
One that takes all packets is its own; for traces of topics alone there is one for all connections, which
remembers of each topic whether it is wanted. How many packets are looked at in a second has a limit, because each
costs some 20 us.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

from iotmq.message.records.layout cimport get_u16
from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer
from iotmq.mqtt.codec.framing cimport Packet, PublishHead, read_publish_head, read_variable_integer
from iotmq.mqtt.codec.packet_types cimport (
    LEVEL_5, MESSAGE_EXPIRY, PACKET_CONNECT, PACKET_PUBLISH, PAYLOAD_FORMAT, SUBSCRIPTION_IDENTIFIER, TOPIC_ALIAS,
    USER_PROPERTY,
)
from iotmq.mqtt.codec.publish_properties cimport PublishProperties, read_publish_properties
from iotmq.mqtt.server.connection cimport ServerConnection
from iotmq.mqtt.server.outbound cimport OutboundMessage
from iotmq.mqtt.topics.topic_aliases cimport AliasedTopic
from iotmq.mqtt_front.connection.device_calls cimport DeviceLink

from iotmq import limits
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.supervised import FAILURES

cdef enum:
    TOPICS_MAX = 4096       # that a Tap remembers

cdef Py_ssize_t BODY_BYTES_MAX = limits.MQTT_TRACE_PACKET_BYTES_MAX


cdef class TraceBudget:
    """Count the packets that all traces of a front end may look at; its owner gives it more each second."""

    def __init__(self, int64_t left):
        self.left = left


cdef class Tap:
    """Where the packets of a connection go that is traced: `tracer` is told of them (traced.Tracer)."""

    def __init__(self, tracer not None, TraceBudget budget not None, *, bint takes_all):
        self._tracer = tracer
        self._budget = budget
        self._takes_all = takes_all
        self._is_wanted = {}

    cdef int received(self, TracedConnection connection, const Packet* packet) except -1:
        """A packet came, and is handled next."""
        cdef bytes topic = None
        if packet.first >> 4 == PACKET_PUBLISH:
            topic = _topic_of(connection, packet, False)
        elif not self._takes_all:
            return 0
        if self._takes_all or topic is not None and self.wants(topic):
            self._tell(connection, False, packet, topic)
        return 0

    cdef int sent(self, TracedConnection connection, const uint8_t* data, Py_ssize_t size) except -1:
        """Whole packets go to the socket."""
        cdef Py_ssize_t at = 0
        cdef Packet packet
        cdef uint32_t body_size
        cdef int taken
        cdef bytes topic
        while at < size:
            taken = read_variable_integer(data + at + 1, size - at - 1, &body_size)
            assert taken > 0 and body_size <= size - at - 1 - taken, "output is whole packets"
            packet.first = data[at]
            packet.body = data + at + 1 + taken
            packet.size = body_size
            packet.memory = NULL
            at += 1 + taken + <Py_ssize_t>body_size
            topic = None
            if packet.first >> 4 == PACKET_PUBLISH:
                topic = _topic_of(connection, &packet, True)
                if topic == b"":
                    topic = _alias_in(connection, &packet, data + at, size - at)
            elif not self._takes_all:
                continue
            if self._takes_all or topic is not None and self.wants(topic):
                self._tell(connection, True, &packet, topic)
        return 0

    cdef int ended(self, TracedConnection connection) except -1:
        """The connection is over."""
        try:
            self._tracer.ended(connection)
        except Exception:
            FAILURES.note("traces")
        return 0

    cdef bint wants(self, bytes topic) except -1:
        """Return whether a trace of topics is for this one."""
        cdef object known = self._is_wanted.get(topic)
        if known is None:
            if len(self._is_wanted) >= TOPICS_MAX:
                self._is_wanted.clear()
            known = self._is_wanted[topic] = bool(self._tracer.wants(topic.decode("utf-8", "replace")))
        return known

    cdef int _tell(self, TracedConnection connection, bint is_sent, const Packet* packet, bytes topic) except -1:
        cdef Py_ssize_t kept = packet.size
        if self._budget.left <= 0:
            self._budget.skipped += 1
            return 0
        self._budget.left -= 1
        if packet.first >> 4 != PACKET_CONNECT:     # which has a limit of its own
            kept = min(kept, BODY_BYTES_MAX)
        try:
            self._tracer.packet(
                connection, bool(is_sent), packet.first, packet.body[:kept], packet.size,
                None if topic is None else topic.decode("utf-8", "replace"),
            )
        except Exception:
            # The connection goes on.
            FAILURES.note("traces")
        return 0


cdef class TracedConnection(ServerConnection):
    """Use Device."""

    def trace(self, Tap tap):
        """Tell `tap` of everything from now on; None for nobody."""
        self.tap = tap

    def note(self, str kind not None, str topic=None, **fields):
        """Tell a trace, if there is one, what was decided about this connection."""
        cdef Tap tap = self.tap
        if tap is None:
            return
        try:
            tap._tracer.decided(self, kind, topic, fields)
        except Exception:
            FAILURES.note("traces")

    cdef int note_lost(self, str why, const OutboundMessage* message) except -1:
        """A message was not sent to the device."""
        if self.tap is None:
            return 0
        topic = None
        if message != NULL:
            raw = message.topic[:message.topic_size]
            topic = raw.decode("utf-8", "replace")
            if not self.tap._takes_all and not self.tap.wants(raw):
                return 0
        elif not self.tap._takes_all:
            return 0
        if self.tap._budget.left <= 0:
            self.tap._budget.skipped += 1
            return 0
        self.tap._budget.left -= 1
        self.note("drop", topic, direction="to the client", reason=why)
        return 0

    cdef int end_trace(self) except -1:
        """The connection is over."""
        cdef Tap tap = self.tap
        tap.ended(self)
        self.tap = None
        return 0

    cdef int _handle_packet(self, const Packet* packet) except -1:
        if self.tap is not None:
            _received(self, packet)
        return ServerConnection._handle_packet(self, packet)

    cdef int hand_over(self, object transport) except -1:
        """Give the output to the transport."""
        if self.tap is not None:
            _sent(self)
        if isinstance(transport, DeviceLink):
            return (<DeviceLink>transport).take(&self.output)
        transport.write(self.data_to_send())
        return 0

    cdef bytes _known_topic(self, bint is_sent, uint16_t alias):
        """Return the topic that an alias means now; None for one that means nothing."""
        cdef AliasedTopic* entry
        if is_sent:
            if self._aliases is None or not 1 <= alias <= self._aliases.count_max:
                return None
            entry = &self._aliases._topics[alias - 1]
        else:
            if self._inbound_aliases is None or not 1 <= alias <= self._inbound_aliases.count_max:
                return None
            entry = &self._inbound_aliases._topics[alias - 1]
        return None if entry.topic == NULL else entry.topic[:entry.topic_size]


# A tap may be replaced while it is told of something: these hold it.

cdef int _received(TracedConnection connection, const Packet* packet) except -1:
    cdef Tap tap = connection.tap
    return tap.received(connection, packet)


cdef int _sent(TracedConnection connection) except -1:
    cdef Tap tap = connection.tap
    cdef ByteBuffer* output = &connection.output
    return tap.sent(connection, output.data + output.start, output.size - output.start)


cdef bytes _topic_of(TracedConnection connection, const Packet* packet, bint is_sent):
    """Return the topic of a PUBLISH; b"" for an alias towards the device, None for what cannot be read."""
    cdef PublishHead head
    cdef PublishProperties properties
    try:
        read_publish_head(packet, connection.protocol_level, &head)
        if head.topic_size:
            return head.topic[:head.topic_size]
        if is_sent:
            return b""
        if connection.protocol_level != LEVEL_5:
            return None
        read_publish_properties(packet.body + head.size, packet.size - head.size, &properties)
        return connection._known_topic(False, properties.topic_alias)
    except MqttProtocolError:
        # It ends the connection next, which is told.
        return None


cdef bytes _alias_in(TracedConnection connection, const Packet* packet, const uint8_t* rest, Py_ssize_t rest_size):
    """Return the topic of a PUBLISH to the device that has an alias alone.

    The alias may have been given to another topic behind it, in `rest`: then nobody knows any more what it meant.
    """
    cdef uint16_t alias = _alias_of(packet)
    cdef Py_ssize_t at = 0
    cdef uint32_t body_size
    cdef int taken
    cdef Packet later
    if not alias:
        return None
    while at < rest_size:
        taken = read_variable_integer(rest + at + 1, rest_size - at - 1, &body_size)
        later.first = rest[at]
        later.body = rest + at + 1 + taken
        later.size = body_size
        at += 1 + taken + <Py_ssize_t>body_size
        if later.first >> 4 == PACKET_PUBLISH and get_u16(later.body) and _alias_of(&later) == alias:
            return None
    return connection._known_topic(True, alias)


cdef uint16_t _alias_of(const Packet* packet) noexcept:
    """Return the topic alias of a PUBLISH that the server has made for a device of MQTT 5; 0 for none."""
    cdef const uint8_t* at = packet.body + 2 + get_u16(packet.body) + (2 if packet.first & 6 else 0)
    cdef uint32_t size
    at += read_variable_integer(at, packet.body + packet.size - at, &size)
    cdef const uint8_t* end = at + size
    cdef uint8_t identifier
    while at < end:
        identifier = at[0]
        at += 1
        if identifier == TOPIC_ALIAS:
            return <uint16_t>get_u16(at)
        if identifier == PAYLOAD_FORMAT:
            at += 1
        elif identifier == MESSAGE_EXPIRY:
            at += 4
        elif identifier == SUBSCRIPTION_IDENTIFIER:
            at += read_variable_integer(at, end - at, &size)
        else:
            at += 2 + get_u16(at)
            if identifier == USER_PROPERTY:
                at += 2 + get_u16(at)
    return 0
