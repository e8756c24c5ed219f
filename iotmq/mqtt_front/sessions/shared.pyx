"""Shared subscriptions, as a front end has them: messages brokers hand out to members, and what comes of each.

Operations: one call per push with any number of messages; one per acknowledgement; one report per broker and
turn of the loop. Goals: a message is written from where it lies when its device can take it; what a device
cannot take is bounded by the credit it was given and by the bytes a broker lets one client hold, and there is
one copy of it for all that wait; a broker hears of every message once it is done, and with it how many more
the member takes. Plan: for each member and broker a *source*: its credit, and the positions that
are held. A message is done when it was written (QoS 0), at PUBACK (QoS 1) or at PUBCOMP (QoS 2).
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from iotmq.message.records.fields cimport FORMAT_OK, RecordParts
from iotmq.message.records.record cimport parse_record
from iotmq.mqtt.server.outbound cimport DeliveryOptions
from iotmq.mqtt_front.connection.device cimport Device, DeviceGroup, DeviceSession
from iotmq.mqtt_front.connection.held_message cimport HeldMessage, MessageCopy
from iotmq.mqtt_front.connection.outgoing cimport OutgoingMessage

import logging
from collections import OrderedDict
from functools import partial
from weakref import WeakValueDictionary

from iotmq.ports.sessions import HANDOUT_REPEATED, ShareJoin, ShareReport

_log = logging.getLogger("iotmq.mqtt")

# A broker that refuses a member, or does not hear what is done, is asked again after so long.
RETRY_S = 1.0


cdef class SharedSubscription:
    """A device as a member of one group."""

    def __init__(self, SharedSession session not None, str topic_filter not None, uint32_t number, uint64_t options):
        self.session = session
        self.topic_filter = topic_filter
        self.number = number
        self.change(options)
        self.sources = {}

    cdef int change(self, uint64_t options) except -1:
        self.options = options
        self.identifier = <uint32_t>(options >> 8)
        return 0


cdef class Source:
    """One broker as the source of a member's messages."""

    def __init__(self, SharedSubscription member not None, uint32_t number, int64_t granted):
        self.member = member
        self.number = number
        self.granted = granted
        self.held = set()
        self.done = []
        self.telling = []


cdef class SharedSession(DeviceSession):
    """The memberships of one connected device. Made by `SharedEgress.join`."""

    def __init__(self, SharedEgress egress not None, Device device not None, str client_id not None, int64_t epoch):
        self.egress = egress
        self.device = device
        self.client_id = client_id
        self.epoch = epoch
        self.members = {}
        self._flights = {}
        self._waiting = OrderedDict()

    # From brokers

    cdef int receive(self, Source source, int64_t position, OutgoingMessage message, bint is_repeated) except -1:
        """A message for one of the memberships: to the device now, or when it has room."""
        cdef SharedSubscription member = source.member
        cdef DeliveryOptions delivery
        cdef uint16_t packet_id
        if position in source.held:
            # Handed out again to the same device, which still has it.
            source.completed += 1
            self.egress.note(source)
            return 0
        source.held.add(position)
        if not self.device.is_for_device(
            message, &delivery, <uint8_t>member.options, &member.identifier, member.identifier != 0
        ):
            return self.egress.finish(source, position, True)
        delivery.is_duplicate = is_repeated and delivery.qos
        if not self._waiting and self.device.has_room():
            packet_id = self.device.send_message(&message.view, &delivery, 0)
            self.device.note_delivered(message, &delivery)
            return self.sent(source, position, packet_id)
        self._waiting[source, position] = HeldMessage.of(
            self.egress.copy_of(source.number, position, message), &delivery, member.identifier
        )
        return 0

    cdef int sent(self, Source source, int64_t position, uint16_t packet_id) except -1:
        """A message was written; with QoS 0 it is done."""
        self.egress.delivered += 1
        self.egress.group.touch(self.device)
        if packet_id:
            self._flights[packet_id] = (source, position)
            return 0
        return self.egress.finish(source, position, True)

    def withdraw(self, Source source not None, int64_t position):
        """A message is for somebody else: if it was not written, it is not."""
        if self._waiting.pop((source, position), None) is not None:
            self.egress.withdrawn += 1
            self.egress.finish(source, position, False)

    def forget(self, SharedSubscription member not None):
        """The device is no member any more: what it was not sent is for others."""
        member.is_ended = True
        del self.members[member.topic_filter]
        for place in [place for place in self._waiting if (<Source>place[0]).member is member]:
            del self._waiting[place]

    # From the device

    cdef int message_done(self, uint16_t packet_id, uint32_t place) except -1:
        """1 when the message was one of ours."""
        flight = self._flights.pop(packet_id, None)
        if flight is None:
            return 0
        self.egress.finish(<Source>flight[0], flight[1], True)
        return 1

    cdef int message_received(self, uint16_t packet_id, uint32_t place) except -1:
        return packet_id in self._flights

    cdef int room_again(self) except -1:
        cdef HeldMessage message
        while self._waiting and self.device.has_room():
            (source, position), message = self._waiting.popitem(last=False)
            if message.is_expired(self.egress.group.now_s):
                self.egress.group.expired += 1
                self.egress.finish(<Source>source, position, True)
                continue
            self.sent(<Source>source, position, message.send(self.device, 0))
        return 0

    def check_invariants(self):
        """Raise when the books disagree; for tests."""
        cdef Source source
        away = set(self._waiting) | set(self._flights.values())
        assert len(away) == len(self._waiting) + len(self._flights), "a message waits and is in flight"
        for source, position in away:
            assert position in source.held or source.member.is_ended
        for topic_filter, member in self.members.items():
            assert member.topic_filter == topic_filter and not (<SharedSubscription>member).is_ended
            for source in (<SharedSubscription>member).sources.values():
                assert {(source, position) for position in source.held} <= away, "a message is nowhere"


cdef class SharedEgress:
    """The members of one front end (ports.sessions.ShareReceiver).

    A broker may hand out `credit` messages to each that are not done.
    """

    def __init__(self, DeviceGroup group not None, port not None, *, uint32_t credit):
        self.group = group
        self.port = port
        self.credit = credit
        self._members = {}
        self._noted = []
        self._message = OutgoingMessage(group.clock)
        self._copies = WeakValueDictionary()

    @property
    def copy_count(self):
        """Messages that some device waits for, each once however many do."""
        return len(self._copies)

    @property
    def member_count(self):
        """Local members of groups."""
        return len(self._members)

    def join(self, Device device not None, str client_id not None, subscriptions, done):
        """Make a device a member of groups: pairs of `$share/GROUP/FILTER` and options.

        `done` gets the filters that brokers refuse, with the reason of each; they are no members then.
        """
        cdef SharedSession session
        cdef SharedSubscription member
        if device.shares is None:
            device.shares = SharedSession(self, device, client_id, device.epoch)
        session = device.shares
        new = []
        for topic_filter, options in subscriptions:
            member = session.members.get(topic_filter)
            if member is not None:
                member.change(options)
                continue
            self._last_number = self._last_number + 1 & 0xFFFFFFFF
            member = SharedSubscription(session, topic_filter, self._last_number, options)
            session.members[topic_filter] = self._members[member.number] = member
            new.append(member)

        def joined(outcomes):
            cdef SharedSubscription one
            refused = {}
            for one, outcome in zip(new, outcomes, strict=True):
                if outcome is not None:
                    refused[one.topic_filter] = outcome
                    self.refused_joins += 1
                    if not one.is_ended:
                        self._end(one)
            done(refused)

        if new:
            self.port.join_shares(None, [self._join_of(member, None) for member in new], joined)
        else:
            done({})

    def leave(self, Device device not None, filters=None):
        """A device is no member any more, of these groups or of any: brokers hear first what it has done."""
        cdef SharedSession session = device.shares
        if session is None:
            return
        self.flush()
        for topic_filter in list(session.members) if filters is None else filters:
            member = session.members.get(topic_filter)
            if member is not None:
                self._end(member)
        if filters is None:
            # Nobody asks what becomes of them any more.
            session._flights.clear()

    cdef int _end(self, SharedSubscription member) except -1:
        member.session.forget(member)
        del self._members[member.number]
        # They know the member, and who has a message in flight knows them.
        member.sources.clear()
        return 0

    # ports.sessions.ShareReceiver

    def hand_out(self, uint32_t number, handouts not None, records not None):
        """Give each record to the member it is for."""
        cdef const uint8_t[::1] data
        cdef RecordParts record
        cdef SharedSubscription member
        cdef Source source
        for (member_number, flags), view in zip(handouts, records, strict=True):
            member = self._members.get(member_number)
            if member is None:
                # It has left, and the broker hears of it.
                continue
            source = self._source(member, number)
            data = view
            if data.shape[0] == 0 or parse_record(&data[0], &data[0] + data.shape[0], &record) != FORMAT_OK:
                self.malformed += 1
                continue
            if self._message.read(&record):
                member.session.receive(source, record.position, self._message, flags & HANDOUT_REPEATED)
            else:
                # Nobody can be sent it.
                self.malformed += 1
                self.finish(source, record.position, True)

    def withdraw(self, uint32_t number, positions not None):
        """Withdraw messages held too long: they go to other members."""
        cdef SharedSubscription member
        for member_number, position in positions:
            member = self._members.get(member_number)
            if member is not None:
                member.session.withdraw(self._source(member, number), position)

    def rejoin(self, uint32_t number, client_id):
        """A broker knows nothing of the members any more: it is told what they hold."""
        cdef SharedSubscription member
        members = [
            member
            for member in self._members.values()
            if client_id is None or member.session.client_id == client_id
        ]
        if members:
            self.port.join_shares(
                number, [self._join_of(member, number) for member in members], partial(self._rejoined, number, members)
            )
            for member in members:
                self.note(self._source(member, number))

    def _rejoined(self, uint32_t number, members, outcomes):
        cdef SharedSubscription member
        for member, outcome in zip(members, outcomes, strict=True):
            if outcome is not None and not member.is_ended:
                self.refused_joins += 1
                _log.warning(
                    "no member of the group any more",
                    extra={"client": member.session.client_id, "filter": member.topic_filter, "detail": outcome.remark},
                )
                self.group.loop.call_later(RETRY_S, self._try_again, number, member)

    def _try_again(self, uint32_t number, SharedSubscription member not None):
        if not member.is_ended:
            self.port.join_shares(number, [self._join_of(member, number)], partial(self._rejoined, number, [member]))

    def _join_of(self, SharedSubscription member, number):
        """A request for one broker, which counts the credit anew, or (None) for all of them, which know nothing."""
        cdef Source source
        cdef int64_t credit = self.credit
        held = []
        if number is not None:
            source = self._source(member, number)
            credit = max(0, credit - <int64_t>len(source.held))
            source.granted = credit
            source.completed = 0
            held = sorted({*source.held, *source.done, *source.telling})
        return ShareJoin(
            client_id=member.session.client_id,
            epoch=member.session.epoch,
            topic_filter=member.topic_filter,
            member=member.number,
            credit=credit,
            held=held,
        )

    cdef Source _source(self, SharedSubscription member, uint32_t number):
        source = member.sources.get(number)
        if source is None:
            source = member.sources[number] = Source(member, number, self.credit)
        return source

    cdef MessageCopy copy_of(self, uint32_t number, int64_t position, OutgoingMessage message):
        """Return the one copy that all who wait for a message have."""
        cdef MessageCopy copy = self._copies.get((number, position))
        if copy is None or not copy.is_of(message):
            copy = self._copies[number, position] = MessageCopy.of(message)
        return copy

    # What brokers are told

    cdef int finish(self, Source source, int64_t position, bint is_done) except -1:
        """A message is not with the member any more."""
        source.held.discard(position)
        source.completed += 1
        if is_done:
            self.done += 1
            source.done.append(position)
        return self.note(source)

    cdef int note(self, Source source) except -1:
        if not source.is_noted:
            source.is_noted = True
            if not self._noted:
                self.group.loop.call_soon(self.flush)
            self._noted.append(source)
        return 0

    def flush(self):
        """Report what is done; the turn of the loop does it anyway."""
        cdef Source source
        noted, self._noted = self._noted, []
        by_number = {}
        for source in noted:
            source.is_noted = False
            if not source.member.is_ended:
                by_number.setdefault(source.number, []).append(source)
        for number, sources in by_number.items():
            reports = []
            for source in sources:
                told, source.done = source.done, []
                source.telling += told
                reports.append(ShareReport(
                    member=source.member.number, limit=source.granted + source.completed, done=told
                ))
            self.port.report_shares(number, reports, partial(self._told, sources, reports))

    def _told(self, sources, reports, refused):
        cdef Source source
        for source, report in zip(sources, reports, strict=True):
            told = set(report.done)
            source.telling = [position for position in source.telling if position not in told]
            if refused is not None:
                source.done += report.done
        if refused is not None:
            self.refused_reports += 1
            self.group.loop.call_later(RETRY_S, self._tell_again, sources)

    def _tell_again(self, sources):
        cdef Source source
        for source in sources:
            if source.done:
                self.note(source)
