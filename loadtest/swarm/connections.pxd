# The connections of one process to one server: how they are opened, written to, lost and opened again.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from loadtest.swarm.histogram cimport Histogram
from loadtest.swarm.secure cimport Secure

cdef enum:
    PORTS_LARGEST = 8

cdef enum:
    IDLE, PUBLISHER, SUBSCRIBER

# NEW -> OPENING (TCP) -> SECURING (TLS only) -> UPGRADING (WebSockets only) -> GREETED (CONNECT sent)
# -> SUBSCRIBING (subscribers only) -> READY -> GONE
cdef enum:
    NEW, OPENING, SECURING, UPGRADING, GREETED, SUBSCRIBING, READY, GONE

# Why a connection ended, beside the numbers of errno; 0 is the end of the stream.
cdef enum:
    NO_ANSWER = 200     # the handshake, CONNACK or SUBACK did not come in time
    SILENT              # a connection that was ready did not answer in time
    NO_PROTOCOL         # the server sent what is no MQTT, or what it may not send here
    NO_SECURITY         # TLS failed
    NOT_LET_IN          # CONNACK or SUBACK with a refusal
    SENT_AWAY           # a DISCONNECT of MQTT 5 from the server
    NO_MEMORY           # ours
    ENDS_LARGEST

cdef struct Field:
    uint32_t at
    uint8_t kind

cdef struct Connection:
    int fd
    uint8_t kind
    uint8_t state
    uint8_t events_out         # 1 while EPOLLOUT is asked for
    uint8_t reading            # 0 while EPOLLIN is off because our own acknowledgements are stuck
    uint8_t port_index         # which of the engine's ports it is connected to
    uint8_t resubscribing      # 1: UNSUBSCRIBE is sent, 2: the SUBSCRIBE after it
    uint8_t is_probing         # PINGREQ is sent and not answered
    uint8_t has_been_away      # subscribers: messages may have gone by without it
    uint8_t granted_qos        # subscribers: the highest QoS that messages may have
    uint32_t number            # which publisher, or which subscriber
    const uint8_t* greeting    # CONNECT
    uint32_t greeting_size
    uint32_t subscribe_size
    const uint8_t* subscribe
    const uint8_t* unsubscribe
    uint32_t unsubscribe_size
    uint32_t group             # subscribers: 1 + the number of their shared subscription; 0 for none
    int64_t began_at_ns        # when this connection was begun
    int64_t asked_at_ns        # when the request was sent that is not answered; 0 when all are
    int64_t wrote_at_ns        # for keep-alive
    uint64_t acked_at_look     # value of acked when it was last looked at
    int64_t stuck_at_ns        # since when it is that
    int64_t lost_at_ns         # when the connection was lost that is being made anew; 0 when none is
    # Control bytes that the socket did not take yet (PUBACKs of a subscriber, CONNECT); with TLS any bytes.
    uint8_t* pending
    uint32_t pending_size
    uint32_t pending_capacity
    # The beginning of a packet whose rest has not arrived.
    uint8_t* partial
    uint32_t partial_size
    uint32_t partial_capacity
    # WebSocket: what of the server's frame has not come, and the beginning of its header.
    uint64_t frame_left
    uint8_t[10] frame_header
    uint8_t frame_header_size
    uint8_t frame_opcode
    # Publisher: messages are numbered from 0; acked <= released <= received <= written <= created <= acked + slots.
    uint8_t* ring
    uint8_t* early             # one flag a slot: acknowledged before its turn; made on first need
    uint32_t slots
    uint32_t window            # messages that may be unacknowledged; at most `slots`
    uint32_t packet_size       # of each; with packets of different sizes the mean
    uint32_t* bodies           # packets of different sizes: where behind its header each begins; else NULL
    uint64_t* starts           # and where each slot begins, with the size of the ring at the end
    uint64_t whole             # and how many messages were written whole
    uint32_t id_at             # 0 for QoS 0
    uint32_t stamp_at          # 0 when the payload has no stamp in bytes
    uint32_t text_stamp_at     # 0 when it has none in hexadecimal digits
    uint32_t digits_at         # where the number in the topic is, when there are several topics
    Field* fields              # where else packets are filled in
    uint32_t field_count
    uint32_t slot              # created % slots
    uint64_t created
    uint64_t acked             # QoS 1, 2: every message below it is acknowledged; QoS 0: written whole
    uint64_t received          # QoS 2: PUBREC came for every message below it
    uint64_t released          # QoS 2: PUBREL was sent for every message below it
    uint64_t written_bytes
    uint64_t owed              # paced: due and not yet created
    uint64_t paced_from        # created when pacing began, less what it missed since
    uint64_t arrived           # with a lead: every message below it was delivered or given up
    uint8_t has_moved          # with a lead: listed in moved, because arrived went up
    # Subscriber: next sequence expected of each publisher; made at the first delivery. With several topics to a
    # publisher there is one number: how many times the subscriber's own topic has come.
    uint64_t* expected
    # Subscriber: a bit for each packet id of QoS 2 that is received and not released.
    uint8_t* held_ids
    uint32_t held_bytes

cdef struct Counters:
    uint64_t opened
    uint64_t connected
    uint64_t resumed
    uint64_t reconnected
    uint64_t refused
    uint64_t failed
    uint64_t lost
    uint64_t left
    uint64_t resubscribed
    uint64_t published
    uint64_t acknowledged
    uint64_t acks_unknown
    uint64_t acks_out_of_order
    uint64_t acks_refused
    uint64_t abandoned
    uint64_t delivered
    uint64_t delivered_payload_bytes
    uint64_t delivered_unstamped
    uint64_t redelivered
    uint64_t sequence_gaps
    uint64_t sequence_repeats
    uint64_t misdelivered
    uint64_t deliveries_acknowledged
    uint64_t pings
    uint64_t protocol_errors
    uint64_t bytes_sent
    uint64_t bytes_received
    uint64_t paced_missed


cdef class Connections:
    cdef Connection* connections
    cdef uint32_t count
    cdef uint32_t capacity
    cdef list packets                  # keeps the memory behind greeting and subscribe alive
    cdef uint32_t host
    cdef uint16_t[PORTS_LARGEST] ports  # in network order: the first, and those to fall back to
    cdef uint32_t port_count
    cdef list source_addresses
    cdef uint32_t* sources
    cdef uint32_t source_count
    cdef Secure secure                 # None for bare TCP
    cdef bint is_secure
    cdef bytes upgrade                 # the request for a WebSocket; empty for TCP
    cdef bint is_websocket
    cdef const uint8_t* upgrade_data
    cdef Py_ssize_t upgrade_size
    cdef uint8_t* framed               # a frame that is sent at once
    cdef int qos
    cdef int64_t keep_alive_ns
    cdef int64_t answer_timeout_ns     # 0: no answer is waited for in vain
    cdef int epoll
    cdef int timer
    cdef int wakeup
    cdef int64_t now                   # read once a turn
    cdef int64_t swept_at_ns
    cdef uint32_t* lost                # connections to be made anew, a ring as large as `capacity`
    cdef uint32_t lost_count
    cdef uint32_t lost_first
    cdef uint32_t lost_capacity
    cdef int64_t return_after_ns       # how long those that lost their connection stay away
    cdef double reopen_credit          # connections that may be made anew now
    cdef int64_t reopened_at_ns
    cdef bint returns                  # every lost connection is made anew, those of publishers, too
    cdef bint forgets                  # a connection made anew has no session: what came while it was away is no gap
    cdef double leave_per_s            # connections that go away and come back
    cdef double leave_credit
    cdef bint leaves_rudely            # without DISCONNECT, so that servers publish their wills
    cdef double resubscribe_per_s      # subscribers that unsubscribe and subscribe again
    cdef double resubscribe_credit
    cdef int64_t changed_at_ns         # when the two credits were last added to
    cdef uint32_t next_to_leave
    cdef uint32_t next_to_resubscribe
    cdef uint32_t next_to_open
    cdef int64_t open_from_ns
    cdef double open_rate_per_s
    cdef uint32_t opening_from         # connections opened before this call's pace began
    cdef uint32_t in_progress
    cdef uint32_t in_progress_max
    cdef uint32_t unsettled            # neither ready nor gone
    cdef uint32_t ready
    cdef readonly int last_error       # errno of the latest connection that failed or was lost; 0: closed
    cdef readonly int last_refusal     # CONNACK code of the latest refusal, 0x80 for a subscription
    cdef uint64_t outstanding          # created, neither acknowledged nor abandoned
    cdef uint64_t owed                 # paced: due and not yet created, of all publishers
    cdef Counters counters
    cdef uint64_t[256] failed_by       # by why: connections that never were ready
    cdef uint64_t[256] lost_by         # and those that were
    cdef uint64_t[256] refused_by      # reason codes of refusals
    cdef Histogram connection          # connect() to CONNACK
    cdef Histogram subscription        # SUBSCRIBE to SUBACK
    cdef Histogram reconnection

    cdef Connection* _new(self, int kind, bytes greeting) except NULL
    cdef bint _open_due(self) noexcept nogil
    cdef void _reopen_due(self) noexcept nogil
    cdef bint _may_reopen(self, Connection* c) noexcept nogil
    cdef void _open(self, uint32_t index) noexcept nogil
    cdef void _on_opened(self, Connection* c) noexcept nogil
    cdef void _on_secured(self, Connection* c) noexcept nogil
    cdef void _drop(self, Connection* c, int reason) noexcept nogil
    cdef void _refuse(self, Connection* c, int code) noexcept nogil
    cdef void _ask(self, Connection* c, bint reading, bint writing) noexcept nogil
    cdef void _on_ready(self, Connection* c) noexcept nogil
    cdef void _change_due(self) noexcept nogil
    cdef void _leave(self, Connection* c) noexcept nogil
    cdef bint _may_change(self, Connection* c) noexcept nogil
    cdef void _look_for_silence(self, Connection* c) noexcept nogil
    cdef bint _send_control(self, Connection* c, const uint8_t* data, Py_ssize_t size) noexcept nogil
    cdef bint _send_bytes(self, Connection* c, const uint8_t* data, Py_ssize_t size) noexcept nogil
    cdef bint _send_raw(self, Connection* c, const uint8_t* data, Py_ssize_t size) noexcept nogil
    cdef void _say_good_bye(self, Connection* c) noexcept nogil


# How many messages of a publisher were written whole.
cdef inline uint64_t whole_messages(Connection* c) noexcept nogil:
    if c.starts == NULL:
        return c.written_bytes // c.packet_size
    while byte_of(c, c.whole + 1) <= c.written_bytes:
        c.whole += 1
    return c.whole


# Where a message begins in the stream of a publisher.
cdef inline uint64_t byte_of(const Connection* c, uint64_t sequence) noexcept nogil:
    if c.starts == NULL:
        return sequence * c.packet_size
    return sequence // c.slots * c.starts[c.slots] + c.starts[sequence % c.slots]
