"""The shell of a device's connection: moves bytes between a transport and the MQTT core, nothing else.

Operations: a read callback per readable device and loop turn, one write per device and turn. Goals: no copy
between kernel and core; an idle device holds no buffer; a device that sends without pause cannot keep the
others, or the subscribers, waiting. Plan: buffered asyncio protocols on uvloop that all read into one buffer,
because the core uses up what it gets before it returns, or SocketLinks (listen/sockets.pyx) that do the same
without asyncio's calls. A turn has a number of bytes to give: each device may
take its share, and one that has used it up is read again in the next turn, so that what was published can
leave before more comes. CONNECT, SUBSCRIBE and the like, which cost a hundred times as much, have a number of
their own per turn; a device with more of them is not read until they are done, nor is more of what was read
decoded. The number of bytes shrinks while subscribers that still have room take less than they are sent, and
grows again when they keep up; one whose room is used up is not waited for. Reading stops for longer while the
group is congested, while the device does not take its own answers, or while something that has to stay behind
a SUBSCRIBE or UNSUBSCRIBE waits for the answer to that.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from iotmq.message.records.fields cimport FORMAT_OK, RecordParts
from iotmq.message.records.record cimport parse_record
from iotmq.mqtt.codec.packet_types cimport (
    LEVEL_5, NO_LOCAL, OPTIONS_QOS, RETAIN_AS_PUBLISHED, STATE_AUTHENTICATING, STATE_CLOSED, STATE_CONNECTED,
    STATE_OPENING,
)
from iotmq.mqtt.server.connection cimport ServerConnection
from iotmq.mqtt.server.connection_settings cimport ConnectionSettings
from iotmq.mqtt.server.outbound cimport DeliveryOptions, OutboundHalf, OutboundMessage
from iotmq.mqtt.server.publish_sink cimport PublishSink
from iotmq.mqtt_front.connection.device_calls cimport hook_message
from iotmq.mqtt_front.connection.limited cimport LimitedConnection
from iotmq.mqtt_front.connection.outgoing cimport OutgoingMessage

from collections import deque

from iotmq import limits
from iotmq.clock import SystemClock
from iotmq.limits import MQTT_ANSWER_TIMEOUT_S
from iotmq.mqtt import reason_codes
from iotmq.mqtt.codec.properties import NO_PROPERTIES
from iotmq.supervised import FAILURES

cdef double ANSWER_TIMEOUT_S = MQTT_ANSWER_TIMEOUT_S

cdef enum:
    UNREAD_BYTES_MAX = 256 * 1024   # answers a device may leave unread before it is not read either
    READ_BYTES_MIN = 1024
    READ_SIZES = 9                  # 1 KiB to 256 KiB
    TURN_BYTES_MIN = 64 * 1024
    EVENTS_PER_TURN = 2             # CONNECT and SUBSCRIBE, some 30 us each: a message takes three turns
    EVENTS_MAX = 8                  # of a device that are decoded and wait
    TURN_BYTES_MAX = 1024 * 1024
    UNFINISHED_BYTES_MIN = 64 * 1024    # of a packet that has not come whole: less is not counted
    WAITS_FOR_TURN = 1              # bits of Device._waits_for_turn
    WAITS_FOR_ANSWER = 2


cdef class DeviceGroup:
    """Hold what the devices of one listener share. `handler` gets session events and the end of connections."""

    def __init__(self, loop not None, PublishSink sink not None, handler not None, *, double now_s, clock=None):
        self.loop = loop
        self.sink = sink
        self._handler = handler
        self.now_s = now_s
        self.clock = SystemClock() if clock is None else clock
        self._input = bytearray(READ_BYTES_MIN << (READ_SIZES - 1))
        self._input_data = <uint8_t*>PyByteArray_AS_STRING(self._input)
        whole = memoryview(self._input)
        self._views = [whole[: READ_BYTES_MIN << index] for index in range(READ_SIZES)]
        self._touched = []
        self._put_off = []
        self._yielding = []
        self._paused = set()
        self._waiting = deque()
        self._unfinished = deque()
        self.unfinished_bytes_max = limits.MQTT_UNFINISHED_BYTES_MAX
        self.packet_timeout_s = limits.MQTT_PACKET_TIMEOUT_S
        self.packet_bytes_per_s_min = limits.MQTT_PACKET_BYTES_PER_S_MIN
        self._events_left = EVENTS_PER_TURN
        self._turn_bytes = TURN_BYTES_MAX
        self.listeners = ()
        self._share_input(1)

    @property
    def paused_count(self):
        """Devices that are not being read."""
        return len(self._paused)

    cdef int schedule_turn(self) except -1:
        """Have `end_turn` called when the loop has served everything that is readable now."""
        if not self._is_turn_scheduled and not self._is_ending_turn:
            self._is_turn_scheduled = True
            self.loop.call_soon(self.end_turn)
        return 0

    def end_turn(self):
        """Hand on what was published in this turn, write what became due, and read from everybody again."""
        cdef Device device
        self._is_turn_scheduled = False
        self._is_ending_turn = True
        try:
            try:
                self.sink.end_turn()
            except Exception:
                # What is due is written, and everybody read again, all the same.
                FAILURES.note("the end of a turn")
            self.write_touched()
        finally:
            self._is_ending_turn = False
        if self._lagging_count:
            self._turn_bytes = max(self._turn_bytes // 2, TURN_BYTES_MIN)
            self._lagging_count = 0
        else:
            self._turn_bytes = min(self._turn_bytes + TURN_BYTES_MIN, TURN_BYTES_MAX)
        self._share_input(self._active_count)
        self._turn += 1
        self._active_count = 0
        if self._put_off:
            put_off, self._put_off = self._put_off, []
            for device in put_off:
                device._waits_for_turn &= ~WAITS_FOR_TURN
                if device.state == STATE_CONNECTED and device.transport is not None:
                    device.after_answer()
        if self._yielding:
            yielding, self._yielding = self._yielding, []
            for device in yielding:
                if self.is_congested and device.transport is not None:
                    self._paused.add(device)
                else:
                    device._resume()

    def _share_input(self, uint32_t active_count):
        """Choose how much a device may read in the next turn, after how many were active in the last."""
        cdef uint32_t index = 0
        while index + 1 < READ_SIZES and (<uint64_t>READ_BYTES_MIN << (index + 1)) * active_count <= self._turn_bytes:
            index += 1
        self._view = self._views[index]
        self._read_bytes = READ_BYTES_MIN << index

    cdef int handle_events(self, Device device) except -1:
        """Hand the device's events to the handler, as many as the turn has room for; the rest waits for the next.

        A connection that is over has them handled at once: the last one may say that it leaves in peace.
        """
        cdef list events
        cdef Py_ssize_t left
        while device._events is not None or device._unhandled is not None:  # opening a session may release input
            events = device._unhandled
            device._unhandled = None
            if events is None:
                events = device.events_received()
            left = self._events_left
            if device.state != STATE_CLOSED and len(events) > left:
                device._unhandled = events[left:]
                events = events[:left]
            self._events_left = max(0, left - len(events))
            self._schedule_handling()
            if events:
                self._handler.device_events(device, events)
                device._receive_behind_events()
            if device._unhandled is not None and not self._events_left:
                if not device._is_waiting:
                    device._is_waiting = True
                    self._waiting.append(device)
                if device.transport is not None and not device._is_paused:
                    device._is_paused = True
                    device.transport.pause_reading()
                return 0
        return 0

    def _handle_waiting(self):
        """A new turn: it has room for events again."""
        cdef Device device
        self._is_handling_scheduled = False
        self._events_left = EVENTS_PER_TURN
        while self._waiting and self._events_left:
            device = self._waiting.popleft()
            device._is_waiting = False
            device._after_input()
            if device in self._paused:
                device._resume_if_free()
            else:
                device._resume()
        if self._waiting:
            self._schedule_handling()

    cdef int _schedule_handling(self) except -1:
        if not self._is_handling_scheduled:
            self._is_handling_scheduled = True
            self.loop.call_soon(self._handle_waiting)
        return 0

    cdef int touch(self, Device device) except -1:
        """The device has output: it is written when the turn ends."""
        if not device._is_touched:
            device._is_touched = True
            self._touched.append(device)
            self.schedule_turn()
        return 0

    cdef int write_touched(self) except -1:
        cdef Device device
        while self._touched:
            touched = self._touched
            self._touched = []
            for device in touched:
                device._is_touched = False
                device.write_output()
        return 0

    cdef int pause(self, Device device) except -1:
        if device.transport is not None:
            self._paused.add(device)
            if not device._is_paused:
                device._is_paused = True
                device.transport.pause_reading()
        return 0

    cdef int watch_unfinished(self, Device device) except -1:
        """A device has sent the beginning of a packet."""
        device._unfinished_since_s = self.now_s
        if not device._is_unfinished:
            device._is_unfinished = True
            self._unfinished.append(device)
        return 0

    def slow_packets(self, double now_s):
        """Return the devices whose packet takes too long to come; called every second."""
        cdef Device device
        cdef list late = []
        for _ in range(len(self._unfinished)):
            device = self._unfinished.popleft()
            if device.transport is None or not device._input.size or device.state != STATE_CONNECTED:
                device._is_unfinished = False
                device._unfinished_since_s = 0
            elif not device._unfinished_since_s or device._is_paused or device._is_waiting_for_events:
                # Another one has begun meanwhile, or it is us who do not read.
                device._unfinished_since_s = now_s
                self._unfinished.append(device)
            elif now_s > (
                device._unfinished_since_s + self.packet_timeout_s + device._input.size / self.packet_bytes_per_s_min
            ):
                device._is_unfinished = False
                late.append(device)
            else:
                self._unfinished.append(device)
        return late

    cpdef int congest(self, uint8_t cause) except -1:
        """Read nothing more from devices until `relieve` is called for each cause."""
        self._congested_by |= cause
        self.is_congested = True
        return 0

    def read_no_more(self):
        """Read nothing from devices any more: the front end ends."""
        self.congest(CONGESTED_STOP)

    cpdef int relieve(self, uint8_t cause) except -1:
        """Take back a cause of congestion. With the last one devices are read again, except those that leave their answers
        unread or that wait for their session or an answer: what they send is kept meanwhile."""
        cdef Device device
        self._congested_by &= ~cause
        if self._congested_by or not self.is_congested:
            return 0
        self.is_congested = False
        waiting = self._paused
        self._paused = set()
        for device in waiting:
            if device.is_write_paused or device._is_held():
                self._paused.add(device)
            else:
                device._resume()
        return 0


cdef class Device(LimitedConnection):
    """One device's connection as an asyncio protocol; sessions are the handler's business."""

    def __init__(self, DeviceGroup group not None, ConnectionSettings settings not None, peer=None):
        ServerConnection.__init__(self, settings, group.sink, group.now_s)
        self._events_max = EVENTS_MAX
        self.group = group
        self.peer = peer

    def connection_made(self, transport):
        self.transport = transport
        if self.group.tracing is not None:
            self.group.tracing.connected(self)
        self.group._handler.device_connected(self)

    def get_buffer(self, size_hint):
        if self.limits is not None:
            return self.group._views[self._view_index(READ_BYTES_MIN, self.group._read_bytes)]
        return self.group._view

    cdef uint32_t read_bytes_max(self) except 0:
        """Return how much may be read at once."""
        if self.limits is not None:
            return READ_BYTES_MIN << self._view_index(READ_BYTES_MIN, self.group._read_bytes)
        return self.group._read_bytes

    def buffer_updated(self, uint32_t size):
        self.received(size)

    cdef int received(self, uint32_t size) except -1:
        """Take what was read into the group's buffer: so many bytes."""
        self.count_input(size)
        self.last_received_s = self.group.now_s
        self.receive(self.group._input_data, size)
        return self.after_read()

    cdef int wait_for_turn(self) except -1:
        """Leave what else has come undecoded until the next turn, and read nothing more: it costs too much."""
        if self.state == STATE_CONNECTED and not self._waits_for_turn and not self._is_over:
            self._waits_for_turn = WAITS_FOR_TURN
            self._is_waiting_for_events = True
            self.group._put_off.append(self)
            self.group.schedule_turn()
        return 0

    cdef int wait_for_answer(self) except -1:
        """Leave what else has come undecoded until `answer_came`: somebody is asked whether it may do the last."""
        if self.state == STATE_CONNECTED and not self._is_over:
            self._waits_for_turn |= WAITS_FOR_ANSWER
            self._is_waiting_for_events = True
        return 0

    def answer_came(self):
        """Go on after `wait_for_answer`, maybe of a connection that is over."""
        self._waits_for_turn &= ~WAITS_FOR_ANSWER
        if self.transport is not None:
            self.after_answer()

    cdef int count_input(self, uint32_t size) except -1:
        """Bytes have come; they count for the device's share of the turn."""
        cdef DeviceGroup group = self.group
        group.received_bytes += size
        if self._turn != group._turn or not self._turn_bytes:
            self._turn = group._turn
            self._turn_bytes = 0
            group._active_count += 1
            group.schedule_turn()
        self._turn_bytes += size
        if self.limits is not None:
            self.take_bytes(size)
        return 0

    cdef int input_allowed(self) except -1:
        if self.transport is not None:
            self.after_answer()
        return 0

    cdef int output_allowed(self) except -1:
        if self.output.size:
            self.group.touch(self)
        return self._room_again()

    cdef int after_read(self) except -1:
        """Handle what was received, and read no more in this turn past the share."""
        self._after_input()
        if self._turn_bytes >= self.group._read_bytes and not self._is_paused and self.state != STATE_CLOSED:
            self._is_paused = True
            self.transport.pause_reading()
            self.group._yielding.append(self)
        return 0

    cdef int _count_unopened(self) except -1:
        """Count what is held for a device that is not connected, and close it when that is too much for all."""
        cdef DeviceGroup group = self.group
        cdef uint32_t held = 0
        if self.state != STATE_CONNECTED and self.state != STATE_CLOSED:
            held = self._input.capacity + self.unparsed_bytes
        group.unopened_bytes += held
        group.unopened_bytes -= self._unopened_bytes
        self._unopened_bytes = held
        if held and group.unopened_bytes > <uint64_t>limits.MQTT_UNOPENED_BYTES_MAX:
            self.close(reason_codes.SERVER_BUSY, "too many connections have sent a part of their CONNECT")
            return self._count_unopened()
        return 0

    cdef int _count_unfinished(self) except -1:
        """Count a large packet that has not come whole, and close the device when that is too much for all."""
        cdef DeviceGroup group = self.group
        cdef uint32_t held = 0
        if self.state == STATE_CONNECTED and self._input.size and not self._is_waiting_for_events:
            held = self._input.capacity if self._input.capacity >= UNFINISHED_BYTES_MIN else 0
        group.unfinished_bytes += held
        group.unfinished_bytes -= self._unfinished_bytes
        self._unfinished_bytes = held
        if held and group.unfinished_bytes > group.unfinished_bytes_max:
            self.close(reason_codes.QUOTA_EXCEEDED, "mqtt.device_limits.unfinished_bytes_max is reached")
            return self._count_unfinished()
        return 0

    cdef int _after_input(self) except -1:
        self._receive_behind_events()
        if self.state != STATE_CONNECTED or self._unopened_bytes:
            self._count_unopened()
        if self._unfinished_bytes or self._input.capacity >= UNFINISHED_BYTES_MIN:
            self._count_unfinished()
        if self._input.size and not self._unfinished_since_s and self.state == STATE_CONNECTED:
            self.group.watch_unfinished(self)
        if self._events is not None or self._unhandled is not None:
            self.group.handle_events(self)
        if self._has_acknowledged:
            self._has_acknowledged = False
            self._room_again()
        if self.output.size:
            self.group.touch(self)
        if self.state == STATE_CLOSED:
            self.finish()
        elif (
            self._is_held()                         # what comes now waits in the kernel
            or self.group.is_congested
            and self.state == STATE_CONNECTED       # a CONNECT that came in part is read to its end
            or self.is_write_paused
            and self.output.size > UNREAD_BYTES_MAX
        ):
            self.group.pause(self)
        return 0

    cdef bint _is_held(self) noexcept:
        """Return whether what the device sends has to wait for its session, or for an answer to what it sent before."""
        if self.state == STATE_OPENING or self._waits_for_turn or self._lacks_tokens:
            return True
        if self.is_answer_due and self._is_waiting_for_events:
            if not self._held_since_s:
                self._held_since_s = self.group.now_s
            return True
        self._held_since_s = 0
        return False

    @property
    def is_held(self):
        """Return whether it is not read because a broker has not answered a SUBSCRIBE or UNSUBSCRIBE of its."""
        return self._held_since_s != 0

    def next_deadline(self):
        """As of the core, but while it is us who do not read, whose silence that is not, only that of an answer.

        A connection that ends with its token does so whatever it sends.
        """
        if self._is_paused and not self.is_write_paused:
            deadline = self._held_since_s + ANSWER_TIMEOUT_S if self._held_since_s else None
        else:
            deadline = ServerConnection.next_deadline(self)
        if self.expires_s and self.state == STATE_CONNECTED and (deadline is None or self.expires_s < deadline):
            return self.expires_s
        return deadline

    def after_answer(self):
        """To be called when the handler answered outside of `device_events`."""
        self._after_input()
        self._resume_if_free()

    def finish(self):
        """Write what is left and close the transport, when the core is closed."""
        if self.transport is not None and not self.transport.is_closing():
            if self.peer is not None and self.close_reason is not None and self.close_reason.is_peer_fault:
                self.peer = self.peer.with_address(self.transport)  # for the log; a closed socket does not know it any more
            self.write_output()
            self.transport.close()

    def abort(self):
        """Drop the transport at once, unwritten output included."""
        if self.transport is not None:
            self.transport.abort()

    def eof_received(self):
        self.receive_eof()
        return False

    def connection_lost(self, error):
        self.transport = self._room_callback = None
        self.group._paused.discard(self)
        self.receive_eof()
        self._count_unopened()
        self._count_unfinished()
        self.group.handle_events(self)
        self.group._handler.device_lost(self)
        self.end_limits()
        if not self.has_session:
            # Brokers know how far they came; the device and they refer to each other, and nobody else to them.
            self.session = self.shares = None
        self.forget_output()

    def pause_writing(self):
        self.is_write_paused = True

    def resume_writing(self):
        self.is_write_paused = False
        self.write_output()
        self._room_again()
        self._resume_if_free()

    cdef int _resume_if_free(self) except -1:
        """Read again, unless there is still a reason not to."""
        if (
            self in self.group._paused
            and not self._is_held() and not self.group.is_congested and not self.is_write_paused
        ):
            self.group._paused.discard(self)
            self._resume()
        return 0

    def open(self, *, bint session_present, properties=NO_PROPERTIES):
        """Accept the CONNECT, and read what came behind it."""
        if not self.open_session(session_present=session_present, properties=properties):
            # A will is one only when its CONNECT was accepted [MQTT-3.1.2-8].
            self.will = None
        else:
            self.opened_ms = self.group.clock.now_ms()
            for listener in self.group.listeners:
                listener.opened(self, bool(session_present))
        if self._unopened_bytes:
            self._count_unopened()
        if not self.group.is_congested:
            self.group._paused.discard(self)
            self._resume()

    def ask_authentication(self, data=None):
        """Go on with the exchange, and read the answer."""
        ServerConnection.ask_authentication(self, data)
        if self.state == STATE_AUTHENTICATING:
            self.group._paused.discard(self)
            self._resume()

    @property
    def address(self):
        """Return the IP address, as a proxy said it or that of the socket; None where there is none."""
        return None if self.peer is None else self.peer.address_on(self.transport)

    @property
    def client_id(self):
        """None until the session opens."""
        return self._client_id

    @client_id.setter
    def client_id(self, str client_id):
        self._client_id = client_id
        self.client_id_utf8 = None if client_id is None else client_id.encode()

    def send_record(self, const uint8_t[::1] record not None, uint64_t options, *, bint is_retained):
        """Write one record; False when the device has no room for it now, None when it gets none of it.

        `options` as in `ports.sessions.SessionSubscription`.
        """
        cdef RecordParts parts
        cdef OutgoingMessage message = OutgoingMessage(self.group.clock)
        cdef uint32_t identifier = <uint32_t>(options >> 8)
        cdef DeliveryOptions delivery
        if not self.has_room():
            return False
        if (
            record.shape[0] == 0
            or parse_record(&record[0], &record[0] + record.shape[0], &parts) != FORMAT_OK
            or not message.read(&parts)
        ):
            return None
        if not self.is_for_device(message, &delivery, <uint8_t>options, &identifier, identifier != 0):
            return None
        if is_retained:
            delivery.is_retained = True     # section 3.3.1.3
        if delivery.qos == 2 and self.session is not None:
            return self.session.send_beside_queues(message, &delivery, identifier)
        self.send_message(&message.view, &delivery, 0)
        self.note_delivered(message, &delivery)
        self.group.touch(self)
        return True

    def call_when_room(self, callback not None):
        """Once the device may take more than now: to be asked after `send_record` said that it has no room."""
        self._room_callback = callback

    cdef int room_comes(self) except -1:
        """There is room without an answer of the device: who waits for it hears of it in the next turn."""
        if not self._has_acknowledged:
            self._has_acknowledged = True
            self.group.loop.call_soon(self.after_answer)
        return 0

    cdef int _room_again(self) except -1:
        """Acknowledgements have come, or the socket has taken something: there may be room."""
        callback = self._room_callback
        if self.session is not None:
            self.session.room_again()
        if self.shares is not None:
            self.shares.room_again()
        if callback is not None:
            self._room_callback = None
            callback()
        return 0

    cdef bint is_for_device(
        self, OutgoingMessage message, DeliveryOptions* delivery, uint8_t options,
        const uint32_t* identifiers, uint32_t identifiers_count,
    ) except -1:
        """How the device gets a message, by the options of a subscription; False when it does not get it."""
        if message.is_expired:
            self.group.expired += 1
            self.note_lost("it has expired", &message.view)
            return False
        if options & NO_LOCAL and message.is_from(self.client_id_utf8, len(self.client_id_utf8)):   # [MQTT-3.8.3-3]
            return False
        delivery.qos = <uint8_t>min(message.qos, <int>(options & OPTIONS_QOS))
        delivery.is_retained = message.is_retained and options & RETAIN_AS_PUBLISHED
        delivery.is_duplicate = False
        delivery.identifiers = identifiers
        delivery.identifiers_count = identifiers_count if self.protocol_level == LEVEL_5 else 0
        if self.protocol_level == LEVEL_5 and not message.is_encoded:
            message.encode_properties()
        if self._sent_bytes_max != 0xFFFFFFFF and not self.fits(&message.view, delivery):
            self.group.too_large += 1
            self.note_lost("it is larger than the client takes", &message.view)
            return False
        return self.group.may_deliver is None or self.group.may_deliver(
            hook_message(self._client_id, message, delivery)
        )

    cdef int note_delivered(self, OutgoingMessage message, const DeliveryOptions* delivery) except -1:
        """A message was handed to the device: users' programs are told at the end of the turn."""
        self.traffic.count_delivered(message.view.payload_size)
        if self.group.delivered is not None:
            self.group.delivered.append(hook_message(self._client_id, message, delivery))
            self.group.schedule_turn()
        if message.is_sampled:
            message.note_traced(self.client_id, delivery.qos)
        return 0

    cdef int deliver(self, const OutboundMessage* message, const DeliveryOptions* options) except -1:
        cdef OutboundMessage mounted
        if self.bridge is None:
            return OutboundHalf.deliver(self, message, options)
        mounted = message[0]
        self.bridge.unmount(&mounted)
        return OutboundHalf.deliver(self, &mounted, options)

    cdef uint16_t send_message(
        self, const OutboundMessage* message, const DeliveryOptions* options, uint16_t packet_id
    ) except? 0:
        cdef OutboundMessage mounted
        if self.bridge is None:
            return OutboundHalf.send_message(self, message, options, packet_id)
        mounted = message[0]
        self.bridge.unmount(&mounted)
        return OutboundHalf.send_message(self, &mounted, options, packet_id)

    cdef int released(self, uint16_t packet_id, object broker, bint is_known) except -1:
        """As of the core; the packet id of a session that is kept is released where the log has it first."""
        # Restored ones are no broker's but the session's, and nobody has what is not stored yet.
        if self.session is None or not isinstance(broker, str) and (is_known or not self.is_resumed):
            return ServerConnection.released(self, packet_id, broker, is_known)
        return self.group.sink.on_release(self, packet_id, broker)

    cdef int message_dropped(self) except -1:
        self.group.dropped += 1
        self.note_lost("the oldest message made room for a newer one", NULL)
        return 0

    cdef int message_expired(self) except -1:
        self.group.expired += 1
        self.note_lost("it expired while it waited", NULL)
        return 0

    cdef int message_done(self, uint16_t packet_id, uint32_t place) except -1:
        self._has_acknowledged = True
        if self.shares is not None and self.shares.message_done(packet_id, place):
            return 0
        return 0 if self.session is None else self.session.message_done(packet_id, place)

    cdef int message_received(self, uint16_t packet_id, uint32_t place) except -1:
        if self.shares is not None and self.shares.message_received(packet_id, place):
            return 1
        return 1 if self.session is None else self.session.message_received(packet_id, place)

    cdef int _resume(self) except -1:
        if self._is_paused and self._unhandled is None:
            self._is_paused = False
            self.last_received_s = self.group.now_s
            if self.transport is not None and not self.transport.is_closing():
                self.transport.resume_reading()
        return 0

    cdef int write_output(self) except -1:
        if not self.output.size or self.transport is None:
            return 0
        if self.is_write_paused:
            self.group._lagging_count += self.output.size < self.settings.queued_bytes_max // 4 * 3
            return 0
        cdef bint had_room = self.has_output_room()
        self.group.sent_bytes += self.output.size
        self.counts.bytes_sent += self.output.size
        self.hand_over(self.transport)
        if not had_room and self.state == STATE_CONNECTED and not self.is_write_paused:
            # The socket took all of it: nobody says `resume_writing`.
            self._room_again()
        return 0
