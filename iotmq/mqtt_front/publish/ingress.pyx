"""From PUBLISH to broker: every message is copied once into the batch of its queue.

Operations: one call per PUBLISH (from the MQTT core, as pointers), one hand-over per queue and loop turn, one
call per batch when the broker kept its promise. Goals: no Python object and no Python call per message; order
per queue; acknowledged only what is stored; bounded memory. Plan: `targets` caches what a topic maps to;
a *lane* per queue fills a batch, hands it over at the end of the turn, and keeps at most one under way, so
that a slow broker makes batches larger instead of more numerous, and a repeated one cannot overtake. What a
batch holds for whom is kept as runs (device, first sequence, count). When `pending_bytes_max` wait, reading
from devices stops until half of it is gone.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy

from iotmq.message.records.layout cimport ELEMENT_FIXED_BYTES, RECORD_FIXED_BYTES, put_u16, put_u32
from iotmq.message.records.short_bytes cimport copy_short
from iotmq.mqtt.codec.byte_buffer cimport append
from iotmq.mqtt.codec.packet_types cimport LEVEL_5
from iotmq.mqtt.server.publish_sink cimport Publication, PublishSink
from iotmq.mqtt_front.connection.device cimport CONGESTED_INGRESS, Device
from iotmq.mqtt_front.connection.message_properties cimport append_record_properties
from iotmq.mqtt_front.publish.batch cimport Batch, BatchOwner, Settling, Waiter
from iotmq.mqtt_front.publish.guard cimport PublishGuard
from iotmq.mqtt_front.publish.releases cimport Releases
from iotmq.mqtt_front.publish.sampler cimport Sampler
from iotmq.mqtt_front.publish.targets cimport TARGET_REFUSED, TARGET_RESOLVED, Ruling, Target, Targets, topic_of

import logging
from contextlib import nullcontext

from iotmq import limits
from iotmq.message.message_ids import UniqueKeys
from iotmq.message.properties import (
    MQTT_PACKET_ID,
    MQTT_QOS,
    MQTT_RETAIN,
    UNIQ_KEY,
    encode_properties,
)
from iotmq.message.records.record import encode_batch
from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.reason_codes import (
    NOT_AUTHORIZED,
    NOT_STORED,
    PACKET_TOO_LARGE,
    PAYLOAD_FORMAT_INVALID,
    QUOTA_EXCEEDED,
    TOPIC_NAME_INVALID,
)
from iotmq.mqtt.topics.reply import REPLY_PREFIX, read_reply_topic
from iotmq.mqtt.topics.topics import BRIDGE_PREFIX, decode_topic_name
from iotmq.mqtt_front.routing.topic_rewrite import TopicRewrites
from iotmq.ports.sessions import Will as KeptWill
from iotmq.remoting.codes import ResponseCode
from iotmq.supervised import FAILURES
from iotmq.telemetry.tracing import tracing

_log = logging.getLogger("iotmq.mqtt")

cdef enum:
    SPARE_BATCHES_MAX = 16
    NOTIFICATION_BYTES_MAX = 2      # of which one is right
    SPARE_BYTES = 128               # what brokers add to the properties of a record
    UNIQUE_KEY_BYTES = 72           # and what finds a batch again to its first message
    DELAYED_SPARE_BYTES = 384       # and to those of one that waits: where it goes, and when
    RECORD_AND_TOPIC_BYTES = RECORD_FIXED_BYTES + 127   # a record without body and properties, at the longest topic
    RELEASE_BYTES = 256             # a packet id that is being released, among what waits for brokers

cdef bytes _PACKET_ID = MQTT_PACKET_ID.encode() + b"\x01"
cdef bytes _UNIQUE_KEY = UNIQ_KEY.encode() + b"\x01"
cdef uint32_t BATCH_RECORDS_MAX = limits.BATCH_RECORDS_MAX
cdef Py_ssize_t PROPERTIES_BYTES_MAX = limits.PROPERTIES_BYTES_MAX

cdef bytes _REPLY_PREFIX = REPLY_PREFIX.encode()
cdef bytes _BRIDGE_PREFIX = BRIDGE_PREFIX.encode()

# The broker understood and will say no again; anything else may be over in a moment.
cdef frozenset _FINAL_CODES = frozenset({
    ResponseCode.MESSAGE_ILLEGAL, ResponseCode.NO_PERMISSION, ResponseCode.TOO_MANY_WAITING
})

# What a device of MQTT 5 is told of them, where there is a code.
cdef dict _REASON_OF = {
    ResponseCode.NO_PERMISSION: NOT_AUTHORIZED.v5_code,
    ResponseCode.TOO_MANY_WAITING: QUOTA_EXCEEDED.v5_code,
}

# The last properties of a record, per QoS and retain flag.
cdef list _FLAG_PROPERTIES = [
    encode_properties({MQTT_QOS: str(qos)} | ({MQTT_RETAIN: "1"} if retain else {}))
    for qos in range(3)
    for retain in range(2)
]
cdef const uint8_t* _flag_properties[6]
cdef Py_ssize_t _flag_properties_size[6]
for _index in range(6):
    _flag_properties[_index] = <const uint8_t*><bytes>_FLAG_PROPERTIES[_index]
    _flag_properties_size[_index] = len(_FLAG_PROPERTIES[_index])


cdef class Lane(BatchOwner):
    """The way of one broker queue: a batch that fills, full ones that wait, one that is under way."""

    def __init__(
        self, Ingress ingress not None, str topic not None, int queue_id, *, bint is_stored, bint is_delayed
    ):
        self.ingress = ingress
        self.topic = topic
        self.queue_id = queue_id
        self.is_stored = is_stored
        self.is_delayed = is_delayed
        self.spare_bytes = SPARE_BYTES
        self.spare_bytes += UNIQUE_KEY_BYTES if ingress._unique_keys is not None else 0
        self.spare_bytes += DELAYED_SPARE_BYTES if is_delayed else 0
        self.waiting = []
        self.filling = ingress._take_batch(self)

    cdef int batch_done(self, Batch batch, int code, str remark) except -1:
        return self.ingress._batch_done(self, batch, code, remark)

    cdef int send(self) except -1:
        """Hand the oldest batch to the broker, if none is under way."""
        cdef Batch batch
        if self.under_way is not None:
            return 0
        if self.waiting:
            batch = self.waiting.pop(0)
        elif self.filling.count:
            batch = self.filling
            self.filling = self.ingress._take_batch(self)
        else:
            return 0
        self.under_way = batch
        self.offered_s = self.ingress.group.clock.monotonic_s()
        self.offer()
        return 0

    cdef Batch newest(self):
        """Return the batch whose end is that of everything in the lane now; None when there is nothing."""
        if self.filling.count:
            return self.filling
        return self.waiting[-1] if self.waiting else self.under_way

    def offer(self):
        """Offer the batch under way (again)."""
        cdef Batch batch = self.under_way
        if self.ingress._is_closed:
            return
        batch.is_done = False
        is_repeat, batch.was_offered = batch.was_offered, True
        try:
            if self.is_delayed:
                self.ingress._port.append_delayed(
                    self.topic, self.queue_id, batch, count=batch.count, has_packet_ids=batch.has_packet_ids,
                    is_repeat=is_repeat, done=batch.completed,
                )
            else:
                self.ingress._port.append(
                    self.topic, self.queue_id, batch, count=batch.count, is_stored=self.is_stored,
                    has_packet_ids=batch.has_packet_ids, is_repeat=is_repeat, done=batch.completed,
                )
        except Exception:
            if self.under_way is batch and not batch.is_done:
                # Nobody answers for it any more.
                self.ingress._loop.call_later(self.ingress._retry_interval_s, self.offer)
            raise


cdef class Ingress(PublishSink):
    """The sink of all devices of a front end. `router` resolves topics, `port` is the way to the brokers.

    Topics that `rewrites` (TopicRewrites) has other names for are known by the device's own, so that a message
    costs no more than any other. `guard` decides about devices that have rights.
    """

    def __init__(
        self,
        router not None,
        port not None,
        loop not None,
        settings not None,
        *,
        rewrites=None,
        PublishGuard guard=None,
    ):
        self._port = port
        self._loop = loop
        self.guard = guard
        if guard is not None:
            guard.sink = self
        self._targets = Targets(router, TopicRewrites() if rewrites is None else rewrites, port, self._lane_at)
        self._lanes = []
        self._lane_of = {}
        self._active = []
        self._spare = []
        self._batch_bytes_max = settings.batch_bytes_max
        self._pending_bytes_max = settings.pending_bytes_max
        self._record_bytes_max = port.record_bytes_max
        self._retry_interval_s = settings.retry_interval_s
        # For brokers that may have to be asked whether they have a batch.
        self._unique_keys = UniqueKeys() if port.may_lose_answers else None
        self._sampler = None if tracing() is None else Sampler(tracing())
        self._releases = Releases(port, loop, settings.retry_interval_s, self._released)

    def __dealloc__(self):
        free(self._own_properties.data)

    @property
    def pending_bytes(self):
        """Bytes of messages the broker has not confirmed."""
        return self._pending_bytes

    @property
    def rewrites_refused(self):
        """Messages whose topic has no name after rewriting."""
        return self._targets.rewrites_refused

    @property
    def targets(self):
        """Return what counts the messages that routes keep from going where others go."""
        return self._targets

    @property
    def lanes(self):
        """The ways to queues, with None at places that are free again."""
        return tuple(self._lanes)

    @property
    def is_idle(self):
        """Return whether nothing waits for the broker."""
        return self._pending_bytes == 0

    @property
    def waited_s(self):
        """Return how long the oldest batch that a broker was handed has had no answer; 0 without one."""
        now_s = self.group.clock.monotonic_s()
        offered = [
            (<Lane>lane).offered_s
            for lane in self._lanes
            if lane is not None and (<Lane>lane).under_way is not None
        ]
        return now_s - min(offered, default=now_s)

    def forget_routes(self):
        """Resolve every topic anew: routes, numbers of queues or the brokers' limits changed."""
        cdef Lane lane
        cdef uint32_t place
        self._targets.drop()
        for kind, place in tuple(self._lane_of.items()):
            lane = <Lane>self._lanes[place]
            if lane.newest() is None and not lane.is_active:
                # Its queue may have gone; where it has not, the next message makes another.
                del self._lane_of[kind]
                self._lanes[place] = None
        self._record_bytes_max = self._port.record_bytes_max

    def when_settled(self, Device device not None, callback not None):
        """Return whether all that the device has published is stored, delivered or refused.

        If not, call back when it is.
        """
        cdef uint64_t published = device.published_lanes
        cdef Settling settling = None
        cdef Lane lane
        cdef Batch batch
        cdef uint32_t place
        device.published_lanes = 0
        if published:
            settling = Settling(callback)
            for place, lane in enumerate(self._lanes):
                if lane is None or not published >> (place & 63) & 1:
                    continue
                batch = lane.newest()
                if batch is not None:
                    batch.add_settling(settling)
        return settling is None or not settling.left

    # One message

    cdef int on_publish(self, object connection, const Publication* publication) except -1:
        cdef Publication mounted
        if (<Device>connection).bridge is None:
            return self._publish(<Device>connection, publication)
        mounted = publication[0]
        return self._of_bridge(<Device>connection, &mounted)

    cdef int _of_bridge(self, Device device, Publication* publication) except -1:
        """Take a message under the name it has here, of the device that the bridge says has published it."""
        if (
            publication.topic_size > len(_BRIDGE_PREFIX)
            and memcmp(publication.topic, <const char*>_BRIDGE_PREFIX, len(_BRIDGE_PREFIX)) == 0
        ):
            return self._take_notification(device, publication.topic[:publication.topic_size], publication)
        device.bridge.mount(publication)
        self._publisher = device.bridge.publisher(publication.properties, &self._publisher_size)
        if self._publisher == NULL:
            return self._publish(device, publication)
        own = device.names
        if self._targets.asks_names:
            # Keys and tags of routes may be those of the device.
            device.names = device.bridge.names(publication.properties)
        try:
            return self._publish(device, publication)
        finally:
            self._publisher = NULL
            device.names = own

    cdef int _publish(self, Device device, const Publication* publication) except -1:
        cdef Target* target = <Target*>self._targets.topics.find(publication.topic, publication.topic_size)
        cdef bytes topic
        if target == NULL:
            self._targets.count_new(device)
            topic = publication.topic[:publication.topic_size]
            if topic.startswith(_REPLY_PREFIX):
                return self._reply(device, topic, publication)
            if topic.startswith(_BRIDGE_PREFIX):
                return self._take_notification(device, topic, publication)
            target = self._targets.resolve(publication.topic, publication.topic_size)
        if self.sheds and not publication.qos:
            self.shed += 1
            return 0
        if target.kind != TARGET_RESOLVED:
            target = self._targets.of_device(device, publication.topic, publication.topic_size)
            if target.kind == TARGET_REFUSED:
                return self._refuse_rewritten(device, publication)
        if device.rights is not None:
            if not self.guard.lets_pass(device, self._targets, target, publication):
                return 0
        if target.kind != TARGET_RESOLVED:
            return self._publish_ruled(target, device, publication)
        self._own_properties.size = 0
        if publication.properties != NULL:
            append_record_properties(&self._own_properties, publication.properties)
        if self._sampler is not None:
            self._sample(device, publication, target)
        if publication.qos == 2 and device.session is not None:
            self._mark(<Lane>self._lanes[target.lane], publication)
        return self.add(
            target, device, publication.payload, publication.payload_size,
            publication.qos, publication.is_retained, publication.qos != 0, publication.sequence,
        )

    cdef int _publish_ruled(self, Target* target, Device device, const Publication* publication) except -1:
        """Publish a message by the rules of its route."""
        cdef Ruling ruling
        self._targets.rule(target, device, publication, &ruling)
        if ruling.target == NULL:
            if publication.qos:
                device.acknowledge(publication.sequence, 1)
            return 0
        self._own_properties.size = 0
        append_record_properties(&self._own_properties, &ruling.properties)
        if self._sampler is not None:
            self._sample(device, publication, ruling.target)
        if publication.qos == 2 and device.session is not None and not ruling.is_put_aside:
            self._mark(<Lane>self._lanes[ruling.target.lane], publication)
        self.add(
            ruling.target, device, publication.payload, publication.payload_size, ruling.qos, ruling.is_retained,
            publication.qos != 0 and not ruling.is_refused, publication.sequence,
        )
        if ruling.is_refused:
            device.refuse_published(publication.sequence, 1, PAYLOAD_FORMAT_INVALID.v5_code)
        return 0

    cdef int _mark(self, Lane lane, const Publication* publication) except -1:
        """Add the packet id to a stored message of QoS 2 from a kept session, and have its batch say so."""
        cdef bytes mark
        if not lane.is_stored:
            return 0
        mark = _PACKET_ID + str(publication.packet_id).encode() + b"\x02"
        self._is_marked = True
        append(&self._own_properties, <const uint8_t*>mark, len(mark))
        return 0

    cdef int _sample(self, Device device, const Publication* publication, const Target* target) except -1:
        topic = (<Lane>self._lanes[target.lane]).topic
        self._traced = self._sampler.trace(device, publication, topic, &self._own_properties)
        return 0

    def publish_will(self, Device device not None, will not None):
        """Store a device's will; nobody waits for it. A will that is past a limit is dropped and counted."""
        cdef bytes payload = will.payload
        cdef Ruling ruling
        try:
            self._targets.rule_will(device, will, &ruling, &self._own_properties)
            if ruling.target != NULL:
                self.add(ruling.target, device, payload, len(payload), ruling.qos, ruling.is_retained, False, 0)
        except MqttProtocolError as error:
            self.not_stored += 1
            _log.warning("will not stored", extra={"client": device.client_id, "detail": str(error)})

    def will_topic(self, Device device not None, will not None):
        """Return the topic of a device's will after rewriting, and whether it waits for a time.

        Raises MqttProtocolError as `encode_will` does.
        """
        cdef bytes topic = will.topic.encode()
        cdef Target* target = self._targets.of_device(device, topic, len(topic))
        if target.kind == TARGET_REFUSED:
            raise MqttProtocolError(TOPIC_NAME_INVALID, "the topic of the will cannot be rewritten")
        return topic_of(target), bool(target.is_delayed)

    def encode_will(self, Device device not None, will not None):
        """A device's will as brokers keep it (ports.sessions.Will), None for one that its route drops.

        Raises MqttProtocolError for one that could not be stored.
        """
        cdef Ruling ruling
        self._targets.rule_will(device, will, &ruling, &self._own_properties)
        if ruling.target == NULL:
            return None
        cdef Lane lane = <Lane>self._lanes[ruling.target.lane]
        cdef bytes properties = (
            ruling.target.properties[:ruling.target.properties_size]
            + device.properties
            + <bytes>_FLAG_PROPERTIES[ruling.qos * 2 + ruling.is_retained]
        )
        if self._own_properties.size:
            properties += self._own_properties.data[:self._own_properties.size]
        if (
            len(will.payload) + len(properties) + RECORD_AND_TOPIC_BYTES + lane.spare_bytes > self._record_bytes_max
            or len(properties) + lane.spare_bytes > PROPERTIES_BYTES_MAX
        ):
            raise MqttProtocolError(
                PACKET_TOO_LARGE,
                f"a will of {len(will.payload)} bytes; store.record_bytes_max is {self._record_bytes_max}",
            )
        elements = encode_batch([(will.payload, properties, 0)])
        return KeptWill(
            lane.topic, lane.queue_id, elements, lane.is_stored,
            delay_s=will.properties.will_delay_s or 0, is_delayed=lane.is_delayed,
        )

    cdef int add(
        self,
        Target* target,
        Device device,
        const uint8_t* payload,
        Py_ssize_t payload_size,
        int qos,
        bint retain,
        bint is_waiting,
        uint32_t sequence,
    ) except -1:
        cdef Lane lane = <Lane>self._lanes[target.lane]
        cdef Batch batch = lane.filling
        cdef bytes own_properties = device.properties
        cdef const uint8_t* own = self._publisher
        cdef int flags = qos * 2 + retain
        cdef Py_ssize_t own_size = self._publisher_size
        if own == NULL:
            own = own_properties
            own_size = len(own_properties)
        cdef Py_ssize_t properties_size = (
            target.properties_size + own_size + _flag_properties_size[flags] + self._own_properties.size
        )
        cdef Py_ssize_t size = ELEMENT_FIXED_BYTES + payload_size + properties_size
        cdef uint8_t* at
        cdef bint is_full
        cdef bytes key
        cdef Py_ssize_t key_size
        cdef bint is_marked = self._is_marked
        self._is_marked = False
        if (
            size + RECORD_AND_TOPIC_BYTES + lane.spare_bytes > self._record_bytes_max
            or properties_size + lane.spare_bytes > PROPERTIES_BYTES_MAX
        ):
            raise MqttProtocolError(
                PACKET_TOO_LARGE, f"a message of {payload_size} bytes; store.record_bytes_max is {self._record_bytes_max}"
            )
        is_full = batch.count and (batch.size + size > self._batch_bytes_max or batch.count == BATCH_RECORDS_MAX)
        if is_full:
            lane.waiting.append(batch)
            lane.filling = batch = self._take_batch(lane)
        batch.has_packet_ids |= is_marked
        if not batch.has_key and self._unique_keys is not None and lane.is_stored:
            # By it the broker finds the batch again.
            key_size = self._own_properties.size
            key = _UNIQUE_KEY + self._unique_keys.next().encode() + b"\x02"
            append(&self._own_properties, <const uint8_t*>key, len(key))
            batch.has_key = True
            properties_size += self._own_properties.size - key_size
            size += self._own_properties.size - key_size
        at = batch.reserve(size)
        put_u32(at, <uint32_t>size)
        put_u32(at + 4, 0)
        put_u32(at + 8, 0)
        put_u32(at + 12, 0)
        put_u32(at + 16, <uint32_t>payload_size)
        at += 20
        copy_short(at, payload, payload_size)
        at += payload_size
        put_u16(at, <uint32_t>properties_size)
        at += 2
        copy_short(at, target.properties, target.properties_size)
        at += target.properties_size
        copy_short(at, own, own_size)
        at += own_size
        copy_short(at, _flag_properties[flags], _flag_properties_size[flags])
        if self._own_properties.size:
            memcpy(at + _flag_properties_size[flags], self._own_properties.data, self._own_properties.size)
        batch.size += size
        batch.count += 1
        device.published_lanes |= <uint64_t>1 << (target.lane & 63)
        self.messages += 1
        self.message_bytes += payload_size
        device.traffic.count_published(payload_size)
        self._pending_bytes += size
        if is_waiting:
            batch.add_waiter(device, sequence)
        if self._traced is not None:
            if batch.traced is None:
                batch.traced = []
            batch.traced.append(self._traced)
            self._traced = None
        if not lane.is_active:
            lane.is_active = True
            self._active.append(lane)
            self.group.schedule_turn()
        if self._pending_bytes > self._pending_bytes_max:
            self.group.congest(CONGESTED_INGRESS)
        if is_full:
            lane.send()     # last, because its answer may come at once and change anything, `target` included
        return 0

    cdef int _reply(self, Device device, bytes topic, const Publication* publication) except -1:
        """Hand on an answer to a request: it is for one client, now or never, so nothing is waited for."""
        name = decode_topic_name(topic)
        address = read_reply_topic(name)
        if device.rights is not None and not self.guard.lets_answer_pass(device, name, publication):
            return 0
        cdef Py_ssize_t size = publication.payload_size + RECORD_AND_TOPIC_BYTES + SPARE_BYTES
        if size + 2 * publication.topic_size > self._record_bytes_max:
            raise MqttProtocolError(
                PACKET_TOO_LARGE,
                f"an answer of {publication.payload_size} bytes; store.record_bytes_max is {self._record_bytes_max}",
            )
        self.replies += 1
        self._port.reply(
            address.broker, name, device.client_id, publication.payload[:publication.payload_size]
        )
        if publication.qos:
            device.acknowledge(publication.sequence, 1)
        return 0

    cdef int _take_notification(self, Device device, bytes topic, const Publication* publication) except -1:
        """Hand on what a bridge says about its own connection; it is no message, and is acknowledged at once."""
        cdef bytes payload = publication.payload[:min(publication.payload_size, NOTIFICATION_BYTES_MAX)]
        name = decode_topic_name(topic)
        if self.bridges is None or not self.bridges.notified(device, name, payload):
            self.bridge_notifications += 1
        if publication.qos:
            device.acknowledge(publication.sequence, 1)
        return 0

    cdef int _refuse_rewritten(self, Device device, const Publication* publication) except -1:
        """Refuse a message whose topic has no valid name after rewriting."""
        self._targets.rewrites_refused += 1
        if not publication.qos:
            return 0
        if device.protocol_level != LEVEL_5:
            raise MqttProtocolError(TOPIC_NAME_INVALID, "the topic cannot be rewritten; see mqtt.rewrites")
        return device.refuse_published(publication.sequence, 1, TOPIC_NAME_INVALID.v5_code)

    def _lane_at(self, str topic not None, int queue_id, *, bint is_stored, bint is_delayed):
        """Return the place of the lane to a queue, a new one if need be."""
        kind = (topic, queue_id, is_stored, is_delayed)
        place = self._lane_of.get(kind)
        if place is None:
            lane = Lane(self, topic, queue_id, is_stored=is_stored, is_delayed=is_delayed)
            if len(self._lane_of) < len(self._lanes):
                place = self._lanes.index(None)
                self._lanes[place] = lane
            else:
                place = len(self._lanes)
                self._lanes.append(lane)
            self._lane_of[kind] = place
        return place

    # One turn

    cdef int end_turn(self) except -1:
        """Hand every lane's messages to the broker."""
        cdef Lane lane
        self._targets.begin_turn()
        while self._active:
            active = self._active
            self._active = []
            for lane in active:
                lane.is_active = False
                try:
                    lane.send()
                except Exception:
                    # The other queues go on.
                    FAILURES.note("batches of devices' messages")
        return self._releases.end_turn()

    def flush(self):
        """`end_turn` now, when the front end stops."""
        self.group.end_turn()

    def close(self):
        """Offer nothing again: what the broker has not confirmed by now stays unacknowledged."""
        self._is_closed = self._releases.is_closed = True

    cdef Batch _take_batch(self, Lane lane):
        cdef Batch batch = self._spare.pop() if self._spare else Batch()
        batch.owner = lane
        return batch

    # Packet ids that are released

    cdef int on_release(self, object connection, uint16_t packet_id, object broker) except -1:
        self._pending_bytes += RELEASE_BYTES
        if self._pending_bytes > self._pending_bytes_max:
            self.group.congest(CONGESTED_INGRESS)
        self.group.schedule_turn()
        # Last, because its answer may come at once.
        return self._releases.add(<Device>connection, packet_id, broker)

    def _released(self, Py_ssize_t count):
        self._pending_bytes -= RELEASE_BYTES * count
        self._after_answer()

    cdef int _after_answer(self) except -1:
        if self.group.is_congested and self._pending_bytes * 2 <= self._pending_bytes_max:
            self.group.relieve(CONGESTED_INGRESS)
        return 0

    # One batch

    cdef int _batch_done(self, Lane lane, Batch batch, int code, str remark) except -1:
        cdef Py_ssize_t index
        if code != 0 and code not in _FINAL_CODES:
            self.retries += 1
            if self.retries == 1 or self.retries % 100 == 0:
                _log.warning(
                    "broker does not take messages, publishers wait",
                    extra={"topic": lane.topic, "queue": lane.queue_id, "code": code, "detail": remark},
                )
            self._loop.call_later(self._retry_interval_s, lane.offer)
            return 0
        self.batches += 1
        if code != 0:
            self.not_stored += batch.count
            with nullcontext() if batch.traced is None else batch.traced[0].current():
                _log.error(
                    "batch refused by the broker",
                    extra={"topic": lane.topic, "queue": lane.queue_id, "code": code, "detail": remark},
                )
        broker = None
        if batch.has_packet_ids and code == 0:
            broker = self._port.broker_of(lane.topic, lane.queue_id, is_delayed=lane.is_delayed)
        for index in range(batch.waiters_count):
            try:
                self._answer(&batch.waiters[index], code, remark, broker)
            except Exception:
                # The others are answered, and the queue goes on.
                FAILURES.note("answers to devices")
        if batch.traced is not None:
            for span in batch.traced:
                span.end(f"the broker has refused it: {code} {remark}" if code != 0 else "")
        lane.under_way = None
        self._pending_bytes -= batch.size
        batch.settle(self._loop)
        batch.clear()
        batch.owner = None
        if batch.exports == 0 and batch.capacity <= 2 * self._batch_bytes_max and len(self._spare) < SPARE_BATCHES_MAX:
            self._spare.append(batch)
        if (lane.waiting or lane.filling.count) and not lane.is_active:
            lane.is_active = True
            self._active.append(lane)
            self.group.schedule_turn()
        self._after_answer()
        return 0

    cdef int _answer(self, const Waiter* waiter, int code, str remark, object broker) except -1:
        """Tell a device what became of a run of its messages."""
        cdef Device device = <Device>waiter.device
        if code == 0:
            if broker is not None:
                device.note_stored(waiter.sequence, waiter.count, broker)
            device.acknowledge(waiter.sequence, waiter.count)
        elif device.protocol_level == LEVEL_5:
            device.refuse_published(waiter.sequence, waiter.count, _REASON_OF.get(code, NOT_STORED.v5_code))
        else:
            device.close(NOT_STORED, remark)
            device.after_answer()
        if device.output.size:
            self.group.touch(device)
        return 0
