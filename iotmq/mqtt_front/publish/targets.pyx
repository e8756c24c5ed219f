"""Map MQTT topics to the lane of a queue, and to properties that all records of the topic have.

Operations: find per message, resolve per new topic, in Python. Goals: a message of a known topic costs one
look-up; no device makes the others wait by new topics. Plan: targets are C data in a `TopicCache`, dropped
whole when it is full. Where the name depends on the device there are two: one of the topic that says so, and
one of the device's names and the topic. What a route asks of each message is asked in C (`rule`), but for the
choice of a route by properties or payload, and for messages that are put aside.
"""

cimport cython
from cpython.ref cimport Py_INCREF, Py_XDECREF, PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer, append
from iotmq.mqtt.codec.packet_types cimport LEVEL_5
from iotmq.mqtt.codec.publish_properties cimport PublishProperties, named_properties, read_publish_properties
from iotmq.mqtt.server.publish_sink cimport Publication
from iotmq.mqtt.topics.topic_cache cimport TopicCache
from iotmq.mqtt_front.connection.device cimport Device
from iotmq.mqtt_front.connection.message_properties cimport append_record_properties
from iotmq.mqtt_front.routing.checksum cimport FRAME_RIGHT
from iotmq.mqtt_front.routing.route_rules cimport RouteRules

import logging

from iotmq import limits
from iotmq.client.transport.routes import queue_of_key
from iotmq.message.properties import (
    KEYS,
    MQTT_QUARANTINE_REASON,
    MQTT_QUARANTINE_ROUTE,
    MQTT_QUARANTINED_TOPIC,
    MQTT_TOPIC,
    TAGS,
    TIMER_DELAY_S,
    encode_properties,
)
from iotmq.mqtt.codec.properties import encode_message_properties
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import TOPIC_NAME_INVALID
from iotmq.mqtt.topics.delayed import split_delayed
from iotmq.mqtt.topics.topics import decode_topic_name
from iotmq.mqtt_front.routing.device_names import DeviceNames, names_of_key
from iotmq.mqtt_front.publish.publishable import check_publishable
from iotmq.mqtt_front.routing.routes import MessageRoutes

_log = logging.getLogger("iotmq.mqtt")

cdef enum:
    CACHED_TOPICS_MAX = 65536
    NEW_TOPICS_PER_TURN = 256       # some 10 us each, and more at brokers: who has more waits for the next turn
    ASKING_BYTES = 512              # an Asking beside its texts, by estimate
    LEVEL_BYTES = 96                # and a level of its topic
    LOGGED_EACH = 1_000             # messages that are put aside, after the first

cdef Py_ssize_t PROPERTIES_BYTES_MAX = limits.PROPERTIES_BYTES_MAX


cdef str topic_of(const Target* target):
    """Of those that messages are asked with it is known; else MQTT_TOPIC is the first of the properties."""
    if target.asking != NULL:
        return (<Asking>target.asking).name
    cdef bytes properties = target.properties[:target.properties_size]
    return properties.partition(b"\x02")[0].partition(b"\x01")[2].decode()


cdef class Asking:
    """The part of a target that its messages are asked with."""


# Its memory is freed by what a collection of cycles would clear before.
@cython.no_gc_clear
cdef class Targets:
    """The targets of all devices' topics. `port` knows how many queues topics have.

    `lane_at(topic, queue id, is_stored=, is_delayed=)` returns the place of the lane to a queue.
    """

    def __init__(self, router not None, rewrites not None, port not None, lane_at not None):
        self.topics = TopicCache(CACHED_TOPICS_MAX, limits.MQTT_TOPIC_CACHE_BYTES_MAX)
        self._router = router
        self._rewrites = rewrites
        self._port = port
        self._lane_at = lane_at
        self.begin_turn()

    @property
    def asks_names(self):
        """Return whether some route needs to know the device."""
        return self._router.has_names

    def __dealloc__(self):
        if self.topics is not None:
            self.drop()
        free(self._personal_topic.data)

    cdef void begin_turn(self) noexcept:
        self._new_topics_left = NEW_TOPICS_PER_TURN

    cdef int count_new(self, Device device) except -1:
        """Count a topic that has to be resolved in Python; past the turn's share the device waits."""
        self._new_topics_left -= 1
        if self._new_topics_left <= 0:
            device.wait_for_turn()
        return 0

    cdef Target* of_device(self, Device device, const uint8_t* topic, Py_ssize_t size) except NULL:
        """Find the target of a device's topic, which is never TARGET_PERSONAL."""
        cdef Target* target = <Target*>self.topics.find(topic, size)
        if target == NULL:
            target = self.resolve(topic, size)
        if target.kind == TARGET_PERSONAL:
            return self._resolve_personal(device, topic, size)
        return target

    cdef Target* _resolve_personal(self, Device device, const uint8_t* topic, Py_ssize_t size) except NULL:
        cdef bytes names = device.names
        cdef Target* target
        if names is None:
            # Routes have changed since it connected.
            names = device.names = DeviceNames(device.client_id, device.user).key()
        # No topic begins with what ends in NUL.
        self._personal_topic.size = 0
        append(&self._personal_topic, <const uint8_t*>names, len(names))
        append(&self._personal_topic, topic, size)
        target = <Target*>self.topics.find(self._personal_topic.data, self._personal_topic.size)
        if target != NULL:
            return target
        self.count_new(device)
        delay_s, name = split_delayed(topic[:size].decode())
        return self._resolve_name(
            self._personal_topic.data, self._personal_topic.size, delay_s, name, names_of_key(names)
        )

    cdef Target* resolve(self, const uint8_t* topic, Py_ssize_t size) except NULL:
        """Validate a topic that is new here, and remember what it maps to."""
        cdef bytes raw = topic[:size]
        delay_s, name = split_delayed(decode_topic_name(raw))
        check_publishable(name)
        if self._rewrites.is_personal(name):
            return self._remember_kind(topic, size, TARGET_PERSONAL)
        return self._resolve_name(topic, size, delay_s, name, None)

    cdef Target* _resolve_name(
        self, const uint8_t* key, Py_ssize_t size, object delay_s, str name, object names
    ) except NULL:
        """Remember under `key` where what is published to a valid topic goes."""
        try:
            own = self._rewrites.published(name, names)
            if own != name:
                if not delay_s:
                    delay_s, own = split_delayed(own)
                check_publishable(own)
                name = own
        except MqttProtocolError as error:
            _log.debug("topic not rewritten", extra={"topic": name, "detail": str(error)})
            return self._remember_kind(key, size, TARGET_REFUSED)
        if names is None and self._router.is_personal(name):
            return self._remember_kind(key, size, TARGET_PERSONAL)
        cdef Target target
        cdef Asking asking = Asking()
        asking.name = name
        asking.delay_s = delay_s
        target.is_delayed = delay_s > 0
        route = self._router.plan(name, names)
        if isinstance(route, MessageRoutes):
            asking.routes = route
            target.kind = TARGET_BY_MESSAGE
            target.lane = 0
            return self._remember(key, size, &target, b"", asking)
        cdef bytes properties = self._lead(&target, asking, route)
        return self._remember(key, size, &target, properties, None if asking.rules is None else asking)

    cdef bytes _lead(self, Target* target, Asking asking, object route):
        """Set the lane of a target for which `route` (routes.Target) was chosen, and return its properties."""
        cdef bint is_delayed = asking.delay_s > 0
        asking.key = route.key
        asking.rules = route.rules
        asking.is_left_out = route.is_left_out
        asking.put_aside = route.put_aside
        target.kind = TARGET_RESOLVED if asking.rules is None else TARGET_RULED
        target.lane = 0
        if asking.rules is not None and asking.rules.is_dropped:
            return b""
        queue_id = queue_of_key(route.key, self._port.queue_count(route.topic))
        asking.broker_topic = route.topic
        asking.queue_id = queue_id
        # To wait is to be in the log, whatever the route says.
        target.lane = self._lane_at(
            route.topic, queue_id, is_stored=route.is_stored or is_delayed, is_delayed=is_delayed
        )
        named = {MQTT_TOPIC: asking.name, KEYS: route.key}
        if route.tags:
            named[TAGS] = route.tags
        if route.properties:
            named.update(route.properties)
        if is_delayed:
            named[TIMER_DELAY_S] = str(asking.delay_s)
        cdef bytes properties = encode_properties(named)
        if len(properties) + 1024 > PROPERTIES_BYTES_MAX:
            raise MqttProtocolError(TOPIC_NAME_INVALID, "the topic makes properties that are too long for a record")
        return properties

    # What a route asks of each message

    cdef int rule(self, Target* target, Device device, const Publication* publication, Ruling* ruling) except -1:
        """Say what becomes of a message of a target that is TARGET_RULED or TARGET_BY_MESSAGE."""
        self._rule(target, device, publication, ruling)
        if device.tap is not None:
            self._note(device, publication, ruling)
        return 0

    cdef int _note(self, Device device, const Publication* publication, const Ruling* ruling) except -1:
        """Tell a trace of a message that its route has asked something of."""
        cdef Asking asking = None
        if ruling.target != NULL and ruling.target.asking != NULL:
            asking = <Asking>ruling.target.asking
        elif ruling.target != NULL and ruling.target == &self._single:
            asking = self._single_asking
        topic = publication.topic[:publication.topic_size].decode("utf-8", "replace")
        if ruling.target == NULL:
            device.note("routing", topic, result="dropped by its route")
        else:
            device.note(
                "routing", topic, result="put aside by its route" if ruling.is_put_aside else "goes to a queue",
                broker_topic=None if asking is None else asking.broker_topic,
                queue=None if asking is None else asking.queue_id, qos=ruling.qos,
            )
        return 0

    def explain(self, Device device not None, bytes topic not None):
        """Return (name after rewriting, place of the lane, whether it waits) of what a device publishes, for traces.

        The name is None of a topic that cannot be rewritten, the place of one whose route asks something of each
        message. MqttProtocolError for a topic that is none.
        """
        cdef Target* target = self.of_device(device, topic, len(topic))
        if target.kind == TARGET_REFUSED:
            return None, None, False
        return topic_of(target), target.lane if target.kind == TARGET_RESOLVED else None, bool(target.is_delayed)

    cdef int _rule(self, Target* target, Device device, const Publication* publication, Ruling* ruling) except -1:
        cdef Asking asking = <Asking>target.asking
        cdef RouteRules rules
        cdef uint64_t has, gives
        cdef str wrong
        ruling.target = target
        ruling.qos = publication.qos
        ruling.is_retained = publication.is_retained
        ruling.is_put_aside = ruling.is_refused = False
        if publication.properties != NULL:
            ruling.properties = publication.properties[0]
        else:
            memset(&ruling.properties, 0, sizeof(ruling.properties))
        if target.kind == TARGET_BY_MESSAGE:
            self._choose(asking, publication)
            ruling.target = &self._single
            asking = self._single_asking
        rules = asking.rules
        if rules is None:
            return 0
        if rules.is_dropped:
            self.route_dropped += 1
            ruling.target = NULL
            return 0
        wrong = asking.put_aside
        if publication.is_retained and not publication.payload_size:
            # Deletes a retained message (3.3.1.3), and has no content that could be wrong.
            wrong = ""
        elif (
            not wrong and rules.checksum is not None
            and rules.checksum.check(publication.payload, publication.payload_size, &has, &gives) != FRAME_RIGHT
        ):
            wrong = rules.checksum.wrong(publication.payload, publication.payload_size)
        if wrong:
            self._put_aside(asking, wrong, device)
            ruling.target = &self._single
            ruling.is_put_aside = True
            ruling.is_retained = False
            ruling.is_refused = rules.refuses and publication.qos and device.protocol_level == LEVEL_5
        elif asking.is_left_out or not rules.takes_next():
            self.left_out += 1
            ruling.target = NULL
        else:
            ruling.qos = min(ruling.qos, rules.qos_max)
            rules.set_expiry(&ruling.properties)
        return 0

    cdef int rule_will(self, Device device, object will, Ruling* ruling, ByteBuffer* own) except -1:
        """Say what becomes of a will; `own` is then the properties that only this message has.

        MqttProtocolError when its topic has no name.
        """
        cdef PublishProperties found
        cdef Publication publication
        cdef bytes topic = will.topic.encode()
        cdef bytes payload = will.payload
        cdef bytes encoded = encode_message_properties(will.properties)
        cdef Target* target = self.of_device(device, topic, len(topic))
        if target.kind == TARGET_REFUSED:
            self.rewrites_refused += 1
            raise MqttProtocolError(TOPIC_NAME_INVALID, "the topic of the will cannot be rewritten")
        read_publish_properties(<const uint8_t*>encoded, len(encoded), &found)
        memset(&publication, 0, sizeof(publication))
        publication.payload = payload
        publication.payload_size = len(payload)
        publication.qos = will.qos
        publication.is_retained = will.retain
        publication.properties = &found
        if target.kind == TARGET_RESOLVED:
            ruling.target = target
            ruling.properties = found
            ruling.qos = publication.qos
            ruling.is_retained = publication.is_retained
        else:
            self.rule(target, device, &publication, ruling)
        own.size = 0
        return append_record_properties(own, &ruling.properties)

    cdef int _choose(self, Asking asking, const Publication* publication) except -1:
        """Have the route of a message chosen by its properties and payload: `_single` is its target."""
        cdef bytes payload = b""
        cdef dict properties = {}
        if asking.routes.asks_json:
            payload = publication.payload[:publication.payload_size]
        if asking.routes.asks_properties and publication.properties != NULL:
            properties = named_properties(publication.properties)
        cdef Asking single = Asking()
        single.name = asking.name
        single.delay_s = asking.delay_s
        self._put_single(self._lead(&self._single, single, asking.routes.decide(payload, properties)), single)
        return 0

    cdef int _put_aside(self, Asking asking, str reason, Device device) except -1:
        """Lead a message to quarantine. No device gets it: its record has the MQTT topic under another name."""
        cdef RouteRules rules = asking.rules
        topic = rules.quarantine_topic
        queue_id = queue_of_key(asking.key, self._port.queue_count(topic))
        self._single.kind = TARGET_RESOLVED
        self._single.lane = self._lane_at(topic, queue_id, is_stored=True, is_delayed=False)
        self._put_single(
            encode_properties({
                MQTT_QUARANTINED_TOPIC: asking.name,
                KEYS: asking.key,
                MQTT_QUARANTINE_REASON: reason,
                MQTT_QUARANTINE_ROUTE: rules.route,
            }),
            asking,
        )
        self.put_aside += 1
        if self.put_aside % LOGGED_EACH == 1:
            _log.warning(
                "message put aside",
                extra={
                    "route": rules.route, "topic": asking.name, "client": device.client_id, "detail": reason,
                    "count": self.put_aside,
                },
            )
        return 0

    cdef int _put_single(self, bytes properties, Asking asking) except -1:
        """Set what `_single` points to."""
        self._single_properties = properties
        self._single_asking = asking
        self._single.properties = <uint8_t*>properties
        self._single.properties_size = <uint32_t>len(properties)
        self._single.asking = NULL
        return 0

    def pace(self, list topics not None, bytes payload not None, Py_ssize_t times):
        """Find the target of a message for each of the topics, so many times, and ask what its route asks.

        Returns how many go somewhere. For benchmarks; nothing is put aside, or asked of a device.
        """
        cdef Publication publication
        cdef Ruling ruling
        cdef Target* target
        cdef bytes topic
        cdef Py_ssize_t sent = 0
        memset(&publication, 0, sizeof(publication))
        publication.payload = payload
        publication.payload_size = len(payload)
        for _ in range(times):
            for topic in topics:
                target = <Target*>self.topics.find(topic, len(topic))
                if target == NULL:
                    target = self.resolve(topic, len(topic))
                if target.kind == TARGET_RULED or target.kind == TARGET_BY_MESSAGE:
                    self.rule(target, None, &publication, &ruling)
                    target = ruling.target
                sent += target != NULL
        return sent

    # The cache

    cdef Target* _remember_kind(self, const uint8_t* key, Py_ssize_t size, TargetKind kind) except NULL:
        cdef Target target
        target.kind = kind
        target.lane = 0
        target.is_delayed = False
        return self._remember(key, size, &target, b"", None)

    cdef Target* _remember(
        self, const uint8_t* key, Py_ssize_t size, const Target* found, bytes properties, Asking asking
    ) except NULL:
        """Add a target with the kind and lane of `found`."""
        cdef uint64_t value_bytes = sizeof(Target) + len(properties)
        if asking is not None:
            value_bytes += ASKING_BYTES + 2 * size + LEVEL_BYTES * <uint64_t>asking.name.count("/")
        if not self.topics.has_room(size + value_bytes):
            self.drop()
        cdef Target* target = <Target*>malloc(sizeof(Target))
        if target == NULL:
            raise MemoryError
        target.kind = found.kind
        target.lane = found.lane
        target.asking = NULL
        target.properties = <uint8_t*>malloc(len(properties) or 1)
        if target.properties == NULL:
            free(target)
            raise MemoryError
        memcpy(target.properties, <const uint8_t*>properties, len(properties))
        target.properties_size = <uint32_t>len(properties)
        target.is_delayed = found.is_delayed
        self._last_id += 1
        target.id = self._last_id
        self.topics.insert(key, size, target, value_bytes)
        if asking is not None:
            Py_INCREF(asking)
            target.asking = <void*>asking
        return target

    cdef void drop(self) noexcept:
        cdef uint64_t index
        cdef Target* target
        for index in range(<uint64_t>self.topics.mask + 1):
            if self.topics.slots[index].topic != NULL:
                target = <Target*>self.topics.slots[index].value
                free(target.properties)
                Py_XDECREF(<PyObject*>target.asking)
                free(target)
        self.topics.clear_topics()
