"""MQTT load engine for 3.1.1 and 5: many client connections in one epoll loop, no Python per message.

One ``Engine`` owns an array of connections of three kinds: publishers, subscribers and idle ones.
It knows nothing of options and reports; ``loadtest.swarm`` builds the packets, drives the phases and
adds up. Its rooms: ``connections`` opens and writes, ``publishing`` makes and paces messages, ``receiving``
reads and checks; here are setting up, the phases and the loop.

Payloads of at least 24 bytes carry a stamp (big-endian): magic u32, publisher u32, sequence u64,
CLOCK_MONOTONIC nanoseconds u64; or somewhere the same as 48 hexadecimal digits. Paced messages carry the time
they were due, not the time they were sent, so a stalled server is charged for everything that had to wait.
"""

from libc.errno cimport errno
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc
from libc.string cimport memcpy

from cpython.exc cimport PyErr_CheckSignals

from iotmq.message.records.layout cimport get_u32, get_u64

from loadtest.swarm.connections cimport (
    ENDS_LARGEST, GONE, IDLE, NO_ANSWER, NO_MEMORY, NO_PROTOCOL, NO_SECURITY, NOT_LET_IN, PORTS_LARGEST, READY, SENT_AWAY,
    SILENT, SUBSCRIBER, Connection, whole_messages,
)
from loadtest.swarm.publishing cimport IDS, STAMP_BYTES_C, STAMP_MAGIC_C, TOPICS_PER_PUBLISHER_LARGEST
from loadtest.swarm.receiving cimport TRACKED_BYTES_LARGEST, Ledger, Receiving
from loadtest.swarm.secure cimport Secure
from loadtest.swarm.sockets cimport (
    CLOCK_MONOTONIC, EFD_CLOEXEC, EFD_NONBLOCK, EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLLIN, TFD_CLOEXEC,
    TFD_NONBLOCK, arm, close, epoll_create1, epoll_event, epoll_wait, eventfd, now_ns, read, timerfd_create, wall_ns,
    watch, write,
)
from loadtest.swarm.wire cimport EVENTS_PER_TURN, TIMER_TOKEN, TOPIC_DIGITS_C, WAKE_TOKEN

import errno as _errno
import os
import socket as _socket

from iotmq.mqtt.codec.framing import encode_variable_integer
from loadtest.swarm.connections import end_name
from loadtest.swarm.publishing import FIELD_DIGITS, FIELD_KINDS, RING_BYTES_MAX
from loadtest.swarm.sink import Sink

__all__ = ["RING_BYTES_MAX", "Engine", "Sink", "read_stamp"]

cdef enum:
    SPIN_NS = 60_000

cdef enum:
    GOAL_TIME, GOAL_CONNECTED, GOAL_SENT, GOAL_DELIVERED

_ERRNO_OF_END = {
    NO_ANSWER: _errno.ETIMEDOUT,
    SILENT: _errno.ETIMEDOUT,
    NO_PROTOCOL: _errno.EPROTO,
    NO_SECURITY: _errno.EPROTO,
    SENT_AWAY: 0,
    NO_MEMORY: _errno.ENOMEM,
}

STAMP_MAGIC = STAMP_MAGIC_C
STAMP_BYTES = STAMP_BYTES_C
WINDOW_MAX = IDS
PAYLOAD_BYTES_MAX = 1024 * 1024
TRACKED_BYTES_MAX = TRACKED_BYTES_LARGEST
TOPIC_DIGITS = TOPIC_DIGITS_C
TOPICS_PER_PUBLISHER_MAX = TOPICS_PER_PUBLISHER_LARGEST
PORTS_MAX = PORTS_LARGEST
FIELD_SIZES = {name: FIELD_DIGITS[kind] for name, kind in FIELD_KINDS.items()}


def read_stamp(payload):
    """(publisher, sequence, time_ns) of a payload that begins with a stamp of bytes, None for any other."""
    cdef const uint8_t[::1] view = payload
    if view.shape[0] < STAMP_BYTES_C or get_u32(&view[0]) != STAMP_MAGIC_C:
        return None
    return get_u32(&view[4]), get_u64(&view[8]), get_u64(&view[16])


cdef dict _by_errno(const uint64_t* ended_by):
    """Counts of ends by errno, with the nearest one for the kinds that have none."""
    cdef dict counts = {}
    cdef int i
    for i in range(ENDS_LARGEST):
        if ended_by[i] and i != NOT_LET_IN:
            number = _ERRNO_OF_END.get(i, i)
            counts[number] = counts.get(number, 0) + ended_by[i]
    return counts


cdef class Engine(Receiving):
    """The connections of one process to one server. All calls come from one thread, except ``wake``.

    ``host`` is a dotted IPv4 address. QoS, window and payload hold for all publishers; ``window`` means
    nothing for QoS 0. ``lead_max`` bounds how far a publisher may be ahead of the subscribers of this engine (0:
    not at all); QoS 0 that a server dropped is given up after 0.2 s without a delivery. ``number_base`` is
    added to the numbers of publishers in stamps and ``subscriber_base`` (or else the same) to those of subscribers,
    so that several processes can share the work; ``publishers_tracked`` is how many of the publishers subscribers
    follow by sequence.

    With ``topics_per_publisher`` T above 1 publisher p sends in turn to the topics numbered p x T to
    (p + 1) x T - 1, and subscriber n is to have topic n alone: what is not for it is counted as misdelivered.

    Subscribers and idle connections that lose their connection connect again, at the pace of ``connect``, when
    there are ``fallback_ports``: to the next of the ports in turn, after ``return_after_s``. A subscriber
    whose session is still there (session present in CONNACK) does not subscribe again. With ``returns`` publishers
    connect again, too; what of theirs was not acknowledged is abandoned. With ``forgets`` a connection made anew
    has no session, so that what came while it was away is no gap.

    A server that does not answer within ``answer_timeout_s`` loses the connection; 0 waits for ever. ``sizes`` are
    those of the payloads of following messages, in the place of one size. ``tls`` are contexts of Python's `ssl`,
    used in turn, and the name of the server that its certificate has to have. Where payloads have stamps of digits,
    ``has_text_stamps`` has to be set. ``spin_ns`` is how long before a planned time the engine is awake.
    """
    cdef dict groups                   # numbers of shared subscriptions by their names
    cdef uint32_t subscriber_base
    cdef int64_t sweep_ns              # how often connections are looked at
    cdef int64_t timer_at_ns
    cdef public int64_t spin_ns
    cdef uint64_t delivered_goal

    def __init__(self, host, port, *, qos=1, window=100, payload=b"\x00" * 100, keep_alive_s=60.0,
                 lead_max=0, measures_acks=False, number_base=0, publishers_tracked=0, topics_per_publisher=1,
                 fallback_ports=(), return_after_s=0.0, source_addresses=(), publish_properties=None,
                 bytes upgrade=b"", tls=None, sizes=(), answer_timeout_s=0.0, returns=False, forgets=False,
                 subscriber_base=None):
        """`publish_properties` are the encoded ones of every message of MQTT 5; None for 3.1.1.

        `upgrade` is the HTTP request for a WebSocket, each packet or run of acknowledgements then being a frame.
        """
        if self.epoll >= 0:
            raise RuntimeError("an engine is initialised once")
        if qos not in (0, 1, 2):
            raise ValueError(f"qos must be 0, 1 or 2, not {qos}")
        if not 1 <= window <= WINDOW_MAX:
            raise ValueError(f"window must be 1..{WINDOW_MAX}, not {window}")
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise ValueError(f"a payload is at most {PAYLOAD_BYTES_MAX} bytes, not {len(payload)}")
        if sizes and not 0 <= min(sizes) <= max(sizes) <= len(payload):
            raise ValueError(f"sizes of payloads must be 0..{len(payload)}")
        if answer_timeout_s < 0:
            raise ValueError(f"the time for an answer must not be negative, and is {answer_timeout_s}")
        if lead_max < 0 or (lead_max and topics_per_publisher > 1):
            raise ValueError("a lead must be positive, and for publishers with one topic")
        if not 1 <= topics_per_publisher <= TOPICS_PER_PUBLISHER_LARGEST:
            raise ValueError(
                f"topics per publisher must be 1..{TOPICS_PER_PUBLISHER_LARGEST}, not {topics_per_publisher}")
        if len(fallback_ports) >= PORTS_LARGEST:
            raise ValueError(f"at most {PORTS_LARGEST - 1} ports to fall back to, not {len(fallback_ports)}")
        for number in (port, *fallback_ports):
            if not 1 <= number <= 65_535:
                raise ValueError(f"port must be 1..65535, not {number}")
        cdef bytes packed = _socket.inet_pton(_socket.AF_INET, host)
        memcpy(&self.host, <const uint8_t*>packed, 4)
        for number in (port, *fallback_ports):
            self.ports[self.port_count] = _socket.htons(number)
            self.port_count += 1
        self.topics_per_publisher = topics_per_publisher
        self.return_after_ns = int(return_after_s * 1e9)
        self.source_addresses = list(source_addresses)
        self.source_count = len(self.source_addresses)
        self.sources = <uint32_t*>calloc(self.source_count + 1, 4)
        for i, address in enumerate(self.source_addresses):
            packed = _socket.inet_pton(_socket.AF_INET, address)
            memcpy(&self.sources[<int>i], <const uint8_t*>packed, 4)
        self.upgrade = upgrade
        self.is_websocket = len(upgrade) > 0
        self.upgrade_data = <const uint8_t*>self.upgrade
        self.upgrade_size = len(upgrade)
        self.is_v5 = publish_properties is not None
        self.publish_properties = (
            encode_variable_integer(len(publish_properties)) + publish_properties if self.is_v5 else b""
        )
        self.secure = None if tls is None else Secure(*tls)
        self.is_secure = tls is not None
        self.sizes = list(sizes)
        self.answer_timeout_ns = int(answer_timeout_s * 1e9)
        self.sweep_ns = 1_000_000_000 if not answer_timeout_s else int(min(1.0, answer_timeout_s / 4) * 1e9)
        self.returns = returns
        self.forgets = forgets
        self.groups = {}
        self.qos = qos
        self.window = window
        self.payload = bytes(payload)
        self.spin_ns = SPIN_NS
        self.keep_alive_ns = int(keep_alive_s * 1e9)
        self.lead_max = lead_max
        self.measures_acks = measures_acks
        self.number_base = number_base
        self.subscriber_base = number_base if subscriber_base is None else subscriber_base
        self.publishers_tracked = publishers_tracked
        self.in_progress_max = 64
        self.open_rate_per_s = 2_000.0
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        self.wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.epoll < 0 or self.timer < 0 or self.wakeup < 0:
            raise OSError(errno, os.strerror(errno))
        watch(self.epoll, EPOLL_CTL_ADD, self.timer, EPOLLIN, TIMER_TOKEN)
        watch(self.epoll, EPOLL_CTL_ADD, self.wakeup, EPOLLIN, WAKE_TOKEN)
        self.now = now_ns()
        self.swept_at_ns = self.now

    # Setting up

    def add_idle(self, bytes connect):
        """A connection that only keeps itself alive. ``connect`` is its CONNECT packet."""
        self._new(IDLE, connect)

    def add_subscriber(self, bytes connect, bytes subscribe, *, bytes unsubscribe=b"", str group=""):
        """A connection that counts what it is sent. ``subscribe`` is its SUBSCRIBE packet.

        ``unsubscribe`` takes it back, where that is to happen. Subscribers of one ``group`` share their messages.
        """
        cdef Connection* c = self._new(SUBSCRIBER, connect)
        c.subscribe = <const uint8_t*>subscribe
        c.subscribe_size = len(subscribe)
        c.unsubscribe = <const uint8_t*>unsubscribe
        c.unsubscribe_size = len(unsubscribe)
        c.number = self.subscriber_base + self.subscriber_count
        if group:
            c.group = 1 + self.groups.setdefault(group, len(self.groups))
            self.group_count = len(self.groups)
        self.subscriber_count += 1
        self.packets += (subscribe, unsubscribe)

    # Phases

    def connect(self, *, rate_per_s=2_000.0, in_progress_max=64, timeout_s=30.0, goes_on=False):
        """Opens every added connection at this pace; True when all are ready or gone before the time is up.

        Another call ``goes_on`` with the pace of the one before, whose time was up.
        """
        if rate_per_s <= 0 or in_progress_max < 1:
            raise ValueError("connections need a positive rate and at least one in progress")
        self.open_rate_per_s = rate_per_s
        self.in_progress_max = in_progress_max
        if not goes_on:
            self.open_from_ns = now_ns()
            self.opening_from = self.next_to_open
        return self._run(timeout_s, GOAL_CONNECTED)

    def change(self, *, leave_per_s=0.0, leaves_rudely=False, resubscribe_per_s=0.0):
        """From now on so many subscribers and idle ones leave, and so many unsubscribe and subscribe again.

        Those that leave come back after ``return_after_s``. The rude ones say no DISCONNECT.
        """
        if leave_per_s < 0 or resubscribe_per_s < 0:
            raise ValueError("rates of changes are not negative")
        if leave_per_s and not self.returns:
            raise ValueError("who leaves has to return")
        self.leave_per_s = leave_per_s
        self.leaves_rudely = leaves_rudely
        self.resubscribe_per_s = resubscribe_per_s
        self.leave_credit = self.resubscribe_credit = 0.0
        self.changed_at_ns = now_ns()

    def start(self, *, messages_max, rate_per_s=0, rate_from_per_s=0, ramp_s=0.0):
        """Lets publishers publish: as fast as their windows allow, or paced at a rate over all of them.

        With ``ramp_s`` the rate begins at ``rate_from_per_s`` and changes evenly for so long.
        """
        if messages_max < 0 or rate_per_s < 0 or rate_from_per_s < 0 or ramp_s < 0:
            raise ValueError("counts and rates are not negative")
        if ramp_s and not rate_per_s:
            raise ValueError("a ramp needs a rate")
        cdef uint32_t i
        self.rate_from_per_s = rate_from_per_s
        self.ramp_ns = int(ramp_s * 1e9) if rate_from_per_s != rate_per_s else 0
        self.ramp_count = int((rate_from_per_s + rate_per_s) / 2 * ramp_s)
        self.wall_ahead_ns = wall_ns() - now_ns()
        self.remaining = messages_max
        self.rate_per_s = rate_per_s
        self.publishing = True
        self.kick = True
        self.paced = self.owed = 0
        self.paced_from_ns = now_ns()
        self.paced_until_ns = INT64_MAX
        self.pacing = rate_per_s > 0
        for i in range(self.publisher_count):
            self.connections[self.publishers[i]].paced_from = self.connections[self.publishers[i]].created
            self.connections[self.publishers[i]].owed = 0

    def stop(self):
        """No new messages. What was created, or due, is still sent and acknowledged by ``run`` and ``drain``."""
        if self.publishing:
            self.paced_until_ns = now_ns()
        self.publishing = False

    def run(self, seconds):
        """Runs the loop this long; True when it ended early: all messages are out and acknowledged."""
        return self._run(seconds, GOAL_SENT if self.publishing else GOAL_TIME)

    def drain(self, timeout_s, *, delivered=0):
        """Runs until nothing is outstanding and this many messages were delivered in all; False when time ran out."""
        cdef int64_t deadline = now_ns() + <int64_t>(timeout_s * 1e9)
        if not self._run(timeout_s, GOAL_SENT):
            return False
        self.delivered_goal = delivered
        return self._run(max(0.0, (deadline - now_ns()) / 1e9), GOAL_DELIVERED)

    def measure(self):
        """Forgets latencies so far and leaves out messages stamped before now."""
        self.delivery.clear()
        self.acknowledgement.clear()
        self.send_delay.clear()
        self.measure_from_ns = now_ns()

    def wake(self):
        """Ends the running phase soon; the one call that may come from another thread."""
        cdef uint64_t one = 1
        write(self.wakeup, &one, 8)

    def close(self):
        """Says DISCONNECT where possible and closes every connection."""
        cdef uint32_t i
        cdef Connection* c
        for i in range(self.count):
            c = &self.connections[i]
            if c.fd < 0:
                continue
            if c.state == READY and c.pending_size == 0 and self._is_between_packets(c):
                self._say_good_bye(c)
            if c.state == READY:
                self.ready -= 1
            elif c.state != GONE:
                self.unsettled -= 1
            close(c.fd)
            c.fd = -1
            c.state = GONE
        self.lost_count = 0

    def counters_now(self):
        """Every counter since the engine was made, by name."""
        cdef dict named = self.counters
        named["ready"] = self.ready
        named["outstanding"] = self.outstanding
        named["unsent"] = self._unsent()
        named["sequence_gaps"] += self._open_gaps()
        return named

    def ends(self):
        """Why connections failed and were lost, and with which reason codes the server refused: each with its count."""
        cdef int i
        return {
            "failed": {end_name(i): self.failed_by[i] for i in range(256) if self.failed_by[i]},
            "lost": {end_name(i): self.lost_by[i] for i in range(256) if self.lost_by[i]},
            "refused": {f"0x{i:02x}": self.refused_by[i] for i in range(256) if self.refused_by[i]},
        }

    def faults(self):
        """`ends` by number: errno, 0 being a server that closed, and reason codes. Who was refused is there alone."""
        return {
            "failed": _by_errno(self.failed_by),
            "lost": _by_errno(self.lost_by),
            "refused": {i: self.refused_by[i] for i in range(256) if self.refused_by[i]},
        }

    @property
    def last_tls_error(self):
        """What TLS failed with latest; empty when it never did."""
        return self.secure.last_error if self.is_secure else ""

    @property
    def oldest_repeat_at_ns(self):
        """CLOCK_MONOTONIC of the earliest stamp that a subscriber got twice; None when none did."""
        return self.oldest_repeat_ns or None

    def latencies(self):
        """Summaries of `histograms` in nanoseconds."""
        return {name: histogram.summary() for name, histogram in self.histograms().items()}

    def histograms(self):
        """The times so far: delivery (stamp to subscriber), acknowledgement (stamp to PUBACK, with QoS 2 to PUBCOMP),
        send_delay (how late this engine itself was with paced messages), reconnection (connection lost to session
        back), connection (connect to CONNACK) and subscription (SUBSCRIBE to SUBACK).
        """
        return {
            "delivery": self.delivery,
            "acknowledgement": self.acknowledgement,
            "send_delay": self.send_delay,
            "reconnection": self.reconnection,
            "connection": self.connection,
            "subscription": self.subscription,
        }

    def publisher_progress(self):
        """(number, messages written whole, messages acknowledged without a hole) of each publisher."""
        cdef uint32_t i
        cdef Connection* c
        progress = []
        for i in range(self.publisher_count):
            c = &self.connections[self.publishers[i]]
            progress.append((c.number, whole_messages(c), c.acked if c.id_at else 0))
        return progress

    @property
    def tracks_sequences(self):
        """Whether subscribers check sequences; not when the tables for it would not fit in memory."""
        if not self.publishers_tracked or not self.subscriber_count:
            return False
        if self.topics_per_publisher > 1:
            return True
        if self.group_count:
            return self.group_count * self.publishers_tracked * sizeof(Ledger) <= TRACKED_BYTES_MAX
        return 8 * self.publishers_tracked * self.subscriber_count <= TRACKED_BYTES_MAX

    # The loop

    cdef bint _run(self, double seconds, int goal) except *:
        """Turns until the goal or the time; lets Python look for signals in between."""
        cdef int64_t deadline = now_ns() + <int64_t>(seconds * 1e9)
        cdef int64_t slice_ns
        cdef int ended
        if self.epoll < 0:
            raise RuntimeError("the engine was not initialised")
        while True:
            slice_ns = min(deadline, now_ns() + 100_000_000)
            with nogil:
                ended = self._turn_until(slice_ns, goal)
            PyErr_CheckSignals()
            if ended:
                return ended == 1
            if now_ns() >= deadline:
                return self._is_reached(goal)

    cdef bint _is_reached(self, int goal) noexcept nogil:
        if goal == GOAL_CONNECTED:
            return self.unsettled == 0
        if goal == GOAL_SENT:
            return self.outstanding == 0 and self.owed == 0 and not self.pacing and (
                not self.publishing or self.remaining == 0)
        if goal == GOAL_DELIVERED:
            return self.counters.delivered >= self.delivered_goal
        return False

    cdef int _turn_until(self, int64_t deadline, int goal) noexcept nogil:
        """1: the goal is reached; 2: woken, or nobody is left; 0: time is up or a signal came."""
        cdef epoll_event[512] events
        cdef int got, i, timeout_ms
        cdef int64_t due
        cdef uint64_t token, discarded
        self.now = now_ns()
        while True:
            if self._is_reached(goal):
                return 1
            if self.ready == 0 and goal != GOAL_CONNECTED and not self.lost_count and not self.in_progress:
                return 2
            if self.now >= deadline:
                return 0
            if self.kick:
                self._start_publishers()
            timeout_ms = <int>((deadline - self.now + 999_999) // 1_000_000)
            if goal == GOAL_CONNECTED and self._open_due():
                timeout_ms = 1
            if self.lost_count:
                self._reopen_due()
                timeout_ms = min(timeout_ms, 1)
            if self.leave_per_s or self.resubscribe_per_s:
                self._change_due()
                timeout_ms = min(timeout_ms, 1)
            if self.pacing:
                due = self._send_due()
                # A sleeping core wakes up tens of microseconds late: sleep short of the time, then look.
                if due - self.now <= self.spin_ns and self.pacing:
                    timeout_ms = 0
                elif due != self.timer_at_ns:
                    arm(self.timer, due - self.spin_ns)
                    self.timer_at_ns = due
            got = epoll_wait(self.epoll, events, EVENTS_PER_TURN, timeout_ms)
            self.now = now_ns()
            if got < 0:
                return 0
            for i in range(got):
                token = events[i].data.u64
                if token < self.count:
                    self._on_event(&self.connections[token], events[i].events)
                elif token == TIMER_TOKEN:
                    read(self.timer, &discarded, 8)
                else:
                    read(self.wakeup, &discarded, 8)
                    return 2
            if self.now - self.swept_at_ns > self.sweep_ns:
                self._sweep()
            if self.lead_max and not self.qos and (self.publishing or self.owed):
                if self.now - self.looked_at_ns > 200_000_000:
                    self._give_up_lost()
