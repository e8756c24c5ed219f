"""Sessions that outlive their connection, as a front end has them: what a device still has to get.

Operations: one call per push of the broker with any number of records; one per acknowledgement; now and then
a stretch of a queue that is read because a device fell behind, or came back. Goals: a record a device can take
at once is written from where it lies; a device that cannot costs nothing but a position; what is in flight is
known by position, so that the broker can be told "everything before" seldom. Plan: every subscription is
either up to date, and gets what is pushed, or behind, and reads from its position while the device has room.
It is up to date again when a read says that there is nothing more, and nothing was pushed meanwhile.

QoS 2 goes in two steps, because a packet id must mean the same message on any front end: the broker learns the
packet id before the message is sent, and learns of PUBREC before PUBREL is.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from iotmq.message.records.fields cimport FORMAT_OK, RecordParts
from iotmq.message.records.record cimport parse_record
from iotmq.mqtt.codec.packet_types cimport OPTIONS_QOS, STATE_CONNECTED
from iotmq.mqtt.server.outbound cimport DeliveryOptions
from iotmq.mqtt_front.connection.device cimport Device
from iotmq.mqtt_front.connection.held_message cimport HeldMessage, MessageCopy
from iotmq.mqtt_front.connection.outgoing cimport OutgoingMessage
from iotmq.mqtt_front.sessions.durable_egress cimport READ_RECORDS_MAX, DurableEgress
from iotmq.mqtt_front.sessions.flight_ring cimport (
    FLIGHT_DONE,
    FLIGHT_RELEASED,
    FLIGHT_SENT,
    Flight,
    add_flight,
    check_flights,
    done_past_cursors,
    drop_done,
    flight_of,
    forget_ended,
    free_flights,
    in_flight,
    settle_cursors,
)
from iotmq.mqtt_front.sessions.kept_session cimport KeptSession, QueueSubscription

import logging
from functools import partial

from iotmq import limits
from iotmq.mqtt.topics.topics import is_shared
from iotmq.mqtt_front.sessions.reports import RETRY_S
from iotmq.ports.sessions import (
    NO_QUEUE_ID,
    QUEUE_ID_BITS,
    QueueRead,
    Refused,
    SessionProgress,
)

_log = logging.getLogger("iotmq.mqtt")

cdef enum:
    READ_RECORDS_MIN = 16       # of messages with a window: as many as there is room for, and these at least
    READ_BYTES_MAX = 256 * 1024
    READS_PER_TURN = 64         # of one session: a millisecond's work where nothing is found
    PACKET_ID_BITS = 16
    PACKET_ID_MASK = 0xFFFF


# What a session has in flight at most, and what of it is done behind something that is not.
cdef Py_ssize_t FLIGHTS_MAX = limits.MQTT_FLIGHTS_MAX


cdef bint is_replay(QueueSubscription subscription, int64_t position) noexcept:
    """Return True for a record that had waited for the device to come back."""
    return subscription.live_from < 0 or position < subscription.live_from


cdef bint has_no_queue(flight) except -1:
    """Return True for a packet id whose filter was unsubscribed."""
    return (flight.queue_id & NO_QUEUE_ID) == NO_QUEUE_ID


cdef class DurableSession(KeptSession):
    """One connected device with a durable session. Made by `open_session`."""

    def __init__(self, DurableEgress egress not None, Device device not None, str client_id not None, opened):
        self.egress = egress
        self.device = device
        self.client_id = client_id
        self.epoch = opened.epoch
        self.subscriptions = ()
        self._repeated = {
            (flight.queue_id, flight.position): flight for flight in opened.in_flight if not has_no_queue(flight)
        } or None
        self._done = set(opened.done) or None
        self.had_received = bool(opened.received)

    def __dealloc__(self):
        free_flights(&self._flights)

    # From the handler

    def start(self, opened, lost=()):
        """The CONNECT is answered: go on with what was in flight, then with what came meanwhile.

        Nothing is sent for the filters `lost`, which the session is about to lose.
        """
        cdef QueueSubscription subscription
        self.add(opened.subscriptions, is_resumed=True)
        by_id = self._by_id() if opened.in_flight else {}
        for flight in opened.in_flight:
            if not flight.is_released:
                continue
            # First, because the packet id keeps the place of its flight.
            self.device.send_pubrel(flight.packet_id)
            subscription = by_id.get(flight.queue_id)
            if has_no_queue(flight):
                self._keep_packet_id(flight.queue_id, flight.position, flight.packet_id, FLIGHT_RELEASED)
            elif subscription is not None:
                # Taken by the device, and passed over when the queue is read.
                self._add_flight(subscription, flight.position, flight.packet_id, 2, FLIGHT_RELEASED)
        if lost:
            self.remove(lost)
        self.room_again()
        self.egress.group.touch(self.device)

    def add(self, found, *, bint is_resumed=False):
        """Subscriptions the broker has: new ones, and known ones with other options."""
        cdef QueueSubscription subscription
        by_id = self._by_id()
        for entry in found:
            if is_shared(entry.topic_filter):
                # Its messages are handed out, not read.
                continue
            subscription = by_id.get(entry.queue_id)
            if subscription is not None:
                subscription.change(entry.options)
                continue
            subscription = QueueSubscription(self, entry)
            by_id[entry.queue_id] = subscription
            self.egress.queues.put(subscription)
            # What came between the broker's answer and now was pushed to nobody.
            self.fall_behind(subscription)
        self.subscriptions = tuple(by_id.values())
        if not is_resumed:
            self.egress.schedule(self)

    def remove(self, filters):
        """Filters that were unsubscribed."""
        unwanted = set(filters)
        cdef QueueSubscription subscription
        cdef list kept = []
        cdef set ended = set()
        for subscription in self.subscriptions:
            if subscription.topic_filter in unwanted:
                self._remove(subscription)
                self.move(subscription)
                ended.add(subscription.queue_id)
            else:
                kept.append(subscription)
        if ended:
            self._release_repeated(ended)
        forget_ended(&self._flights)
        self.subscriptions = tuple(kept)

    cdef int _remove(self, QueueSubscription subscription) except -1:
        subscription.is_ended = True
        return self.egress.queues.discard(subscription)

    cdef int _release_repeated(self, set queue_ids) except -1:
        """Give up messages of unsubscribed filters in flight: not sent again, though the device may have taken them."""
        for queue_id, position in [place for place in self._repeated or () if place[0] in queue_ids]:
            repeated = self._repeated.pop((queue_id, position))
            if not repeated.is_released:
                self._keep_packet_id(queue_id, position, repeated.packet_id, FLIGHT_RELEASED)
                self.device.send_pubrel(repeated.packet_id)
                self.egress.group.touch(self.device)
        self._repeated = self._repeated or None
        self._done = {place for place in self._done or () if place[0] not in queue_ids} or None
        # The broker is told what stays of it: packet ids.
        self.has_moved_flights = True
        return 0

    def _by_id(self):
        return {(<QueueSubscription>subscription).queue_id: subscription for subscription in self.subscriptions}

    def end(self):
        """The connection is over: what the broker has to know of it, as a SessionProgress."""
        cdef QueueSubscription subscription
        # What is under way to the broker may be refused, and nobody says it again then.
        cdef bint is_all = self.reports_under_way > 0
        if self.is_ended:
            return None
        self.is_ended = True
        settle_cursors(&self._flights, self.subscriptions)
        progress = SessionProgress(
            self.client_id,
            self.epoch,
            [self._place(subscription) for subscription in self.subscriptions if is_all or subscription.is_moved],
            self.device.received_packet_ids,
            self._in_flight(1),
            self._done_past_cursors(),
        )
        free_flights(&self._flights)
        for subscription in self.subscriptions:
            self._remove(subscription)
        self.subscriptions = ()
        self._behind = None
        self._held = None
        return progress

    def check_invariants(self):
        """Raise AssertionError when what is in flight, held and read do not agree."""
        cdef QueueSubscription subscription
        check_flights(&self._flights, self.subscriptions)
        if self.is_ended:
            assert not self._flights.capacity and not self.subscriptions and not self._behind and not self._held
            return
        queue_ids = {(<QueueSubscription>subscription).queue_id for subscription in self.subscriptions}
        assert len(queue_ids) == len(self.subscriptions)
        behind = self._behind or {}
        for subscription in self.subscriptions:
            assert not subscription.is_ended and subscription.session is self
            # Those that have ended leave when they would be read.
            assert subscription.is_behind == (subscription in behind)
            assert self.egress.queues.find(subscription.queue_id)[subscription.place] is subscription
        assert {queue_id for queue_id, _ in (*(self._done or ()), *(self._repeated or ()))} <= queue_ids
        flying = {flight.packet_id for flight in self._in_flight(2)}
        assert {packet_id for packet_id, _ in self._held or ()} <= flying
        assert {waiting & PACKET_ID_MASK for waiting in self._to_release or ()} <= flying

    @property
    def behind_count(self):
        """Subscriptions that are not up to date."""
        return 0 if self._behind is None else len(self._behind)

    # From the broker

    cdef int offer(self, QueueSubscription subscription, int64_t position, OutgoingMessage message) except -1:
        if subscription.is_behind:
            subscription.pushed_position = position
            if subscription.live_from < 0:
                subscription.live_from = position
        elif position >= subscription.next_position:
            if not self.send(subscription, position, message):
                subscription.pushed_position = position
                self.fall_behind(subscription)
        return 0

    cdef bint send(self, QueueSubscription subscription, int64_t position, OutgoingMessage message) except -1:
        """Write a record to the device; False when it takes no more now."""
        cdef Device device = self.device
        cdef uint16_t packet_id = 0
        cdef DeliveryOptions delivery
        cdef bint is_duplicate = position < subscription.repeated_before
        cdef bint is_expired = message.is_expired
        cdef bint is_for_device
        if self._held is not None and not self.is_persisting or not device.has_output_room():
            return False
        if self._done and (subscription.queue_id, position) in self._done:
            self._done.discard((subscription.queue_id, position))
            # Known as long as something older is in flight.
            self._add_flight(subscription, position, 0, 1, FLIGHT_DONE)
            drop_done(&self._flights)
            subscription.next_position = position + 1
            self.move(subscription)
            return True
        # What went out once goes out again however old it is [MQTT-4.3.3-7], [MQTT-4.4.0-1].
        message.is_expired = is_expired and not is_duplicate
        is_for_device = device.is_for_device(
            message, &delivery, <uint8_t>subscription.options, &subscription.identifier, subscription.identifier != 0
        )
        message.is_expired = is_expired
        if not is_for_device or is_duplicate and not delivery.qos:     # at most once, section 4.3.1
            subscription.next_position = position + 1
            self.move(subscription)
            return True
        if self._held is not None and delivery.qos != 2:
            return False    # it would overtake them
        repeated = self._repeated.get((subscription.queue_id, position)) if self._repeated else None
        if repeated is None:
            if not self._has_room():
                return False
        elif not repeated.is_released and not device.has_room_to_repeat():
            return False
        else:
            del self._repeated[subscription.queue_id, position]
            if repeated.is_released:
                # It has its PUBREL; the flight was put back in `start`.
                subscription.next_position = position + 1
                return True
            packet_id = repeated.packet_id
            device.begin_repeat(packet_id)
        delivery.is_duplicate = is_duplicate and delivery.qos
        if delivery.qos == 2:
            if packet_id == 0:
                packet_id = device.take_packet_id()
            self._add_flight(subscription, position, packet_id, 2, FLIGHT_SENT)
            self._hold(packet_id, HeldMessage.of(MessageCopy.of(message), &delivery, subscription.identifier))
        else:
            packet_id = device.send_message(&message.view, &delivery, packet_id)
            if delivery.qos:
                self._add_flight(subscription, position, packet_id, 1, FLIGHT_SENT)
            self.egress.group.touch(device)
        self.egress.delivered += 1
        device.note_delivered(message, &delivery)
        subscription.next_position = position + 1
        self.move(subscription)
        return True

    cdef int _hold(self, uint16_t packet_id, HeldMessage held) except -1:
        """Send a message of QoS 2 once the broker knows its packet id."""
        if self._held is None or self.is_held_told:
            # Another list, because the broker is being told of those in the one before.
            self._held = [*(self._held or ())]
            self.is_held_told = False
        self._held.append((packet_id, held))
        return self.egress.reports.persist(self)

    cdef bint send_beside_queues(
        self, OutgoingMessage message, const DeliveryOptions* delivery, uint32_t identifier
    ) except -1:
        """As of DeviceSession; of what is not acknowledged when the connection ends, the packet id is kept."""
        cdef uint16_t packet_id
        if not self.subscriptions:
            return True     # unsubscribed meanwhile
        if not self._has_room():
            return False
        packet_id = self.device.take_packet_id()
        self._keep_packet_id((<QueueSubscription>self.subscriptions[0]).queue_id, 0, packet_id, FLIGHT_SENT)
        self._hold(packet_id, HeldMessage.of(MessageCopy.of(message), delivery, identifier))
        return True

    cdef int missed(self, QueueSubscription subscription) except -1:
        # Its broker may have come back without what it was told last.
        subscription.is_moved = True
        self.fall_behind(subscription)
        return self.egress.schedule(self)

    cdef bint _has_room(self) except -1:
        """Return whether the device takes a new message, and is not too far ahead of one it does not acknowledge."""
        cdef Py_ssize_t count = self._flights.count
        if self._done is not None:
            count += len(self._done)
        if self._repeated is not None:
            count += len(self._repeated)
        return count < max(FLIGHTS_MAX, <Py_ssize_t>self.device._window_max) and self.device.has_room()

    cdef int fall_behind(self, QueueSubscription subscription) except -1:
        if not subscription.is_behind:
            subscription.is_behind = True
            if self._behind is None:
                self._behind = {}
            self._behind[subscription] = None
        return 0

    # From the device

    cdef int message_done(self, uint16_t packet_id, uint32_t place) except -1:
        cdef Flight* flight = flight_of(&self._flights, place, packet_id)
        if flight != NULL:
            self.has_moved_flights = self.has_moved_flights or flight.qos == 2
            flight.state = FLIGHT_DONE
            if flight.subscription != NULL:
                (<QueueSubscription>flight.subscription).is_moved = True
                if self._repeated:
                    self._note_done_early(flight.queue_id, flight.position)
            self.egress.reports.note_moved(self)
            drop_done(&self._flights)
        return 0

    cdef int _note_done_early(self, uint32_t queue_id, int64_t position) except -1:
        """Of what was put back in `start` the queue may not be read so far: then it is not sent again."""
        if self._repeated.pop((queue_id, position), None) is not None:
            self._repeated = self._repeated or None
            if self._done is None:
                self._done = set()
            self._done.add((queue_id, position))
        return 0

    cdef int message_received(self, uint16_t packet_id, uint32_t place) except -1:
        cdef Flight* flight = flight_of(&self._flights, place, packet_id)
        if flight == NULL:
            return 1
        flight.state = FLIGHT_RELEASED
        self._received_count += 1
        if self._to_release is None:
            self._to_release = []
        self._to_release.append(<uint64_t>self._received_count << PACKET_ID_BITS | packet_id)
        self.egress.reports.persist(self)
        return 0

    cdef int room_again(self) except -1:
        """Read on for subscriptions that are behind, while the device takes more."""
        cdef QueueSubscription subscription
        cdef int left = READS_PER_TURN
        if self._behind is None or self.is_ended:
            return 0
        for subscription in tuple(self._behind):
            if self._held is not None or not (self._has_room() or self._repeated and self.device.has_room_to_repeat()):
                break
            if not subscription.is_reading and not (self.is_pausing and is_replay(subscription, subscription.next_position)):
                if not left:
                    # A session may have ten thousand filters, and a broker in this process answers at once.
                    self.egress.schedule(self)
                    break
                left -= 1
                self.read(subscription)
        return 0

    cdef int _records_wanted(self, QueueSubscription subscription) except -1:
        cdef int wanted = READ_RECORDS_MAX
        if is_replay(subscription, subscription.next_position):
            wanted = self.egress.replay_records_max
        if subscription.options & OPTIONS_QOS and not self._repeated and not self._done:
            wanted = min(wanted, max(READ_RECORDS_MIN, self.device.room_count()))
        return wanted

    cdef int read(self, QueueSubscription subscription) except -1:
        if subscription.is_ended:
            self._caught_up(subscription)
            return 0
        subscription.is_reading = True
        self.egress.port.read_queue(
            QueueRead(
                queue_id=subscription.queue_id,
                position=subscription.next_position,
                records_max=self._records_wanted(subscription),
                bytes_max=READ_BYTES_MAX,
                client_id=self.client_id,
            ),
            partial(self._read, subscription),
        )
        return 0

    def _read(self, QueueSubscription subscription, found):
        """Take the records of a read."""
        cdef OutgoingMessage message = self.egress._message
        cdef RecordParts record
        cdef const uint8_t[::1] data
        cdef bint is_paced
        subscription.is_reading = False
        if self.is_ended or subscription.is_ended:
            return
        if isinstance(found, Refused):
            _log.warning("a session's queue cannot be read", extra={"client": self.client_id, "detail": found.remark})
            self.egress.group.loop.call_later(RETRY_S, self._try_again)
            return
        for view in found.records:
            data = view
            self.egress.read_records += 1
            if data.shape[0] == 0 or parse_record(&data[0], &data[0] + data.shape[0], &record) != FORMAT_OK:
                self.egress.malformed += 1
                continue
            if record.position < subscription.next_position:
                continue
            is_paced = self.egress.has_pace and is_replay(subscription, record.position)
            if not message.read(&record):
                self.egress.malformed += 1
            elif is_paced and not self.may_replay() or not self.send(subscription, record.position, message):
                return      # room_again goes on
            elif is_paced:
                self._pace.count(record.size, self.egress.group.loop.time())
        if found.next_position > subscription.next_position:
            subscription.next_position = found.next_position
            self.move(subscription)
        if self._repeated or self._done:
            self.forget_repeated(subscription)
        if found.is_end and subscription.pushed_position < subscription.next_position:
            subscription.is_behind = False
            subscription.live_from = 0
            self._caught_up(subscription)
        else:
            if len(self._behind) > READS_PER_TURN:
                # It has had its turn.
                del self._behind[subscription]
                self._behind[subscription] = None
            self.egress.schedule(self)

    cdef bint may_replay(self) except -1:
        """Return whether more of what had waited may go now; if not, it is seen to that it goes on."""
        if self.is_pausing:
            return False
        if self._pace is None:
            self._pace = self.egress._pace_limits.begin()
        pause_s = self._pace.pause_s(self.egress.group.loop.time())
        if pause_s > 0:
            self.is_pausing = True
            self.egress.group.loop.call_later(pause_s, self._replay)
        return pause_s <= 0

    def _replay(self):
        self.is_pausing = False
        self._try_again()

    cdef int _caught_up(self, QueueSubscription subscription) except -1:
        del self._behind[subscription]
        if not self._behind:
            self._behind = None
        return 0

    cdef int forget_repeated(self, QueueSubscription subscription) except -1:
        """Messages the log has lost meanwhile are not sent again."""
        for queue_id, position in list(self._repeated or ()):
            if queue_id == subscription.queue_id and position < subscription.next_position:
                repeated = self._repeated.pop((queue_id, position))
                if not repeated.is_released:
                    self.device.free_packet_id(repeated.packet_id)
                    self.device.room_comes()
        for queue_id, position in list(self._done or ()):
            if queue_id == subscription.queue_id and position < subscription.next_position:
                self._done.discard((queue_id, position))
        self._repeated = self._repeated or None
        self._done = self._done or None
        return 0

    def _try_again(self):
        if not self.is_ended:
            self.room_again()

    # What is in flight

    cdef int _add_flight(
        self, QueueSubscription subscription, int64_t position, uint16_t packet_id, uint8_t qos, uint8_t state
    ) except -1:
        if qos == 2:
            self.has_moved_flights = True
        cdef Flight flight = Flight(NULL, position, subscription.queue_id, packet_id, qos, state)
        self.device.set_place(packet_id, <uint32_t>add_flight(&self._flights, subscription, flight))
        return 0

    cdef int _keep_packet_id(self, uint32_t queue_id, int64_t position, uint16_t packet_id, uint8_t state) except -1:
        """Of a message of QoS 2 only the packet id counts; the broker of the queue remembers it."""
        cdef Flight flight = Flight(NULL, position, queue_id, packet_id, 2, state)
        self.has_moved_flights = True
        self.device.set_place(packet_id, <uint32_t>add_flight(&self._flights, None, flight))
        return 0

    cdef list _in_flight(self, int qos_min):
        cdef list found = in_flight(&self._flights, qos_min)
        # Not sent again yet in this connection.
        if self._repeated is not None:
            found += [repeated for repeated in self._repeated.values() if not repeated.is_released]
        return found

    cdef list _done_past_cursors(self):
        cdef list found = done_past_cursors(&self._flights)
        if self._done is not None:
            found += self._done
        return found

    # What the broker is told

    cdef int move(self, QueueSubscription subscription) except -1:
        subscription.is_moved = True
        return self.egress.reports.note_moved(self)

    def _place(self, QueueSubscription subscription):
        subscription.is_moved = False
        return (
            subscription.queue_id,
            subscription.cursor,
            max(subscription.next_position, subscription.repeated_before),
        )

    cdef object progress(self):
        cdef QueueSubscription subscription
        has_moved_flights, self.has_moved_flights = self.has_moved_flights, False
        received = self.device.received_packet_ids
        had_received, self.had_received = self.had_received, bool(received)
        self.is_moved = False
        settle_cursors(&self._flights, self.subscriptions)
        return SessionProgress(
            self.client_id,
            self.epoch,
            [self._place(subscription) for subscription in self.subscriptions if subscription.is_moved],
            received if received or had_received else None,
            self._in_flight(2) if has_moved_flights else None,
            self._done_past_cursors(),
        )

    cdef tuple begin_persisting(self):
        self.is_held_told = self.has_moved_flights = True
        # All that wait, also those of reports under way: each report says everything that is in flight.
        return self._held, tuple(self._to_release or ())

    cdef int not_persisted(self) except -1:
        cdef QueueSubscription subscription
        # What the refused report said the next has to say, also that no packet id is left.
        self.has_moved_flights = self.had_received = True
        for subscription in self.subscriptions:
            subscription.is_moved = True
        return 0

    cdef bint partly_persisted(self, held, to_release, brokers) except -1:
        cdef set refused = {
            flight.packet_id for flight in self._in_flight(2) if flight.queue_id >> QUEUE_ID_BITS in brokers
        }
        cdef bint is_held = held is not None and self._held is held and any([pair[0] in refused for pair in held])
        cdef list known = [waiting for waiting in to_release if waiting & PACKET_ID_MASK not in refused]
        # Messages keep their order: none of them goes before those that wait.
        self.persisted(None if is_held else held, known)
        self.not_persisted()
        return is_held or len(known) < len(to_release)

    cdef int persisted(self, held, to_release) except -1:
        """Send messages that waited for the broker to know their packet ids."""
        if held is None or self._held is not held:
            # Sent when an earlier answer came.
            held = ()
        else:
            self._held = None
        if self.is_ended or self.device.state != STATE_CONNECTED:
            return 0
        for packet_id, message in held:
            (<HeldMessage>message).send(self.device, packet_id)
        if self._to_release and to_release:
            # In the order of PUBREC [MQTT-4.6.0-4], whichever report is answered first.
            known_now = set(to_release)
            still_waiting = []
            for waiting in self._to_release:
                if waiting in known_now:
                    self.device.send_pubrel(waiting & PACKET_ID_MASK)
                else:
                    still_waiting.append(waiting)
            self._to_release = still_waiting or None
        self.egress.group.touch(self.device)
        return self.room_again()


def open_session(DurableEgress egress not None, Device device not None, str client_id not None, opened):
    """Return the session of a device, which `opened` (OpenedSession) describes; `start` follows its CONNACK."""
    device.session = DurableSession(egress, device, client_id, opened)
    device.is_resumed = opened.is_present
    # Before what the device sent behind its CONNECT is handled.
    device.restore_received(opened.received)
    if opened.packet_ids_from:
        device.begin_packet_ids(opened.packet_ids_from)
    queue_ids = {entry.queue_id for entry in opened.subscriptions}
    for flight in opened.in_flight:
        if not flight.is_released and (flight.queue_id in queue_ids or has_no_queue(flight)):
            device.reserve_packet_id(flight.packet_id)
    return device.session
