"""Give kept sessions of a front end what brokers push, and their turns of reading on."""

from libc.stdint cimport int64_t, uint8_t

from iotmq.message.records.fields cimport FORMAT_OK, RecordParts
from iotmq.message.records.layout cimport get_u32
from iotmq.message.records.record cimport parse_record
from iotmq.mqtt.server.outbound cimport DeliveryOptions
from iotmq.mqtt_front.connection.device cimport Device, DeviceGroup
from iotmq.mqtt_front.connection.outgoing cimport OutgoingMessage
from iotmq.mqtt_front.sessions.kept_session cimport KeptSession, QueueSubscription
from iotmq.mqtt_front.sessions.queue_subscriptions cimport QueueSubscriptions
from iotmq.mqtt_front.sessions.reports cimport SessionReports

from collections import deque

from iotmq.event_loop import LoopSlice
from iotmq.mqtt_front.connection.replay_pace import PaceLimits

cdef enum:
    READ_ON_PER_TURN = 64       # sessions


cdef class DurableEgress:
    """The durable sessions of one front end (ports.sessions.SessionReceiver).

    `handler.session_fenced(client_id, epoch, reason)` is told of sessions that belong to somebody else.
    """

    def __init__(self, DeviceGroup group not None, port not None, handler not None, *, pace=PaceLimits()):
        self.group = group
        self._pace_limits = pace
        self.has_pace = pace.begin() is not None
        self.replay_records_max = pace.records_at_once(READ_RECORDS_MAX)
        self.port = port
        self._handler = handler
        self.queues = QueueSubscriptions()
        self.reports = SessionReports(group.loop, port)
        self._scheduled = deque()
        self._message = OutgoingMessage(group.clock)

    def stop(self):
        """Tell the broker nothing more by itself."""
        self.reports.stop()

    def tell_progress(self):
        """Tell the broker how far sessions have come; a timer does it anyway."""
        self.reports.tell_progress()

    @property
    def queue_count(self):
        """Light queues that local sessions subscribe."""
        return len(self.queues)

    @property
    def refused_progress(self):
        """Times a broker refused to know how far sessions have come."""
        return self.reports.refused

    # ports.sessions.SessionReceiver

    def deliver_queued(self, const uint8_t[::1] records not None, const uint8_t[::1] pushes not None):
        """Write each pushed record to the sessions of its queue that are up to date."""
        cdef Py_ssize_t at, size = pushes.shape[0]
        cdef Py_ssize_t records_size = records.shape[0]
        cdef int64_t place, last_place = -1
        cdef bint is_message = False
        cdef RecordParts record
        cdef QueueSubscription subscription
        if size % 8:
            self.malformed += 1
        for at in range(0, size - 7, 8):
            place = get_u32(&pushes[0] + at)
            subscriptions = self.queues.find(get_u32(&pushes[0] + at + 4))
            if not subscriptions:
                continue
            if place != last_place:
                last_place = place
                is_message = (
                    place < records_size
                    and parse_record(&records[0] + place, &records[0] + records_size, &record) == FORMAT_OK
                    and self._message.read(&record)
                )
                if not is_message:
                    self.malformed += 1
            if is_message:
                for subscription in subscriptions:
                    if record.position >= 0:
                        subscription.session.offer(subscription, record.position, self._message)
                    else:
                        self._pass_on(subscription)

    cdef int _pass_on(self, QueueSubscription subscription) except -1:
        """A message that is stored nowhere: to a device that takes it now, or to nobody."""
        cdef Device device = subscription.session.device
        cdef DeliveryOptions delivery
        if not device.is_for_device(
            self._message, &delivery, <uint8_t>subscription.options,
            &subscription.identifier, subscription.identifier != 0,
        ):
            return 0
        if device.deliver(&self._message.view, &delivery):
            self.delivered += 1
            self.group.touch(device)
        else:
            self.dropped += 1
        return 0

    def missed(self, queue_ids):
        """Records of these queues were not pushed."""
        cdef QueueSubscription subscription
        for queue_id in queue_ids:
            for subscription in self.queues.find(queue_id):
                subscription.session.missed(subscription)

    def fenced(self, str client_id not None, int64_t epoch, str reason not None):
        """Tell the handler that another front end has the session soon."""
        self._handler.session_fenced(client_id, epoch, reason)

    cdef int schedule(self, KeptSession session) except -1:
        """Let the session read on in the next turn of the loop, so that a long backlog leaves room for others."""
        if not session.is_scheduled:
            session.is_scheduled = True
            self._scheduled.append(session)
            if not self._is_going_on:
                self._is_going_on = True
                self.group.loop.call_soon(self._go_on)
        return 0

    def _go_on(self):
        """Let sessions that wait for it read on, as many as a turn has time for: those of a broker come at once."""
        cdef KeptSession session
        loop_slice = LoopSlice(READ_ON_PER_TURN)
        try:
            # Those that it brings back wait for the next turn.
            for _ in range(len(self._scheduled)):
                if not loop_slice.take():
                    break
                session = self._scheduled.popleft()
                session.is_scheduled = False
                session.room_again()
        finally:
            self._is_going_on = bool(self._scheduled)
            if self._is_going_on:
                self.group.loop.call_soon(self._go_on)
