"""MQTT load engine for 3.1.1 and 5: many client connections in one epoll loop, no Python per message.

One ``Engine`` owns an array of connections of three kinds: publishers, subscribers and idle ones.
It knows nothing of options and reports; ``loadtest.swarm`` builds the packets, drives the phases and
adds up. ``Sink`` is the opposite end, the cheapest server that keeps a swarm busy: it tells how fast
the engine itself is, and stands in for a server in tests.

How a message costs next to nothing: every publisher has a ring of ready-made PUBLISH packets, one
slot for each message of its window. Sending is patching packet id, sequence and time into the next
slots and handing the whole run to one ``writev``; a slot is free again when its PUBACK came (QoS 0:
when its bytes were taken by the socket). Packet ids count 1..65,535 in order, so an expected PUBACK
is one comparison, and all that arrive in one read are counted in one pass.

Payloads of at least 24 bytes carry a stamp (big-endian): magic u32, publisher u32, sequence u64,
CLOCK_MONOTONIC nanoseconds u64. Paced messages carry the time they were due, not the time they were
sent, so a stalled server is charged for everything that had to wait.
"""

from libc.errno cimport EAGAIN, EINTR, EPROTO, errno
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset

from cpython.exc cimport PyErr_CheckSignals

from iotmq.message.records.layout cimport get_u16, get_u32, get_u64, put_u16, put_u32, put_u64
from iotmq.mqtt.codec.framing cimport read_variable_integer

import os
import socket as _socket

from iotmq.mqtt.codec.framing import append_publish, encode_variable_integer

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <netinet/in.h>
    #include <netinet/tcp.h>
    #include <poll.h>
    #include <stdint.h>
    #include <string.h>
    #include <sys/epoll.h>
    #include <sys/eventfd.h>
    #include <sys/socket.h>
    #include <sys/timerfd.h>
    #include <sys/uio.h>
    #include <time.h>
    #include <unistd.h>

    static inline int64_t swarm_now_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }

    /* Position of the highest set bit; v is never 0. */
    static inline int swarm_top_bit(uint64_t v) { return 63 - __builtin_clzll(v); }

    /* A non-blocking TCP socket on its way to host:port, or -errno. source is 0 for any address. */
    static int swarm_connect(uint32_t host, uint16_t port, uint32_t source, int send_buffer_bytes) {
        struct sockaddr_in address;
        int one = 1;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) return -errno;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (send_buffer_bytes)
            setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer_bytes, sizeof send_buffer_bytes);
        memset(&address, 0, sizeof address);
        address.sin_family = AF_INET;
        if (source) {
            /* The port is chosen at connect, when the peer is known: 28,000 of them for each source. */
            setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
            address.sin_addr.s_addr = source;
            if (bind(fd, (struct sockaddr *)&address, sizeof address) < 0) goto failed;
        }
        address.sin_addr.s_addr = host;
        address.sin_port = port;
        if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0 || errno == EINPROGRESS) return fd;
    failed:
        {
            int reason = errno;
            close(fd);
            return -reason;
        }
    }

    static int swarm_socket_error(int fd) {
        int reason = 0;
        socklen_t size = sizeof reason;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &size) < 0) return errno;
        return reason;
    }

    static int swarm_watch(int epoll, int operation, int fd, uint32_t events, uint32_t token) {
        struct epoll_event event;
        event.events = events;
        event.data.u64 = token;
        return epoll_ctl(epoll, operation, fd, &event);
    }

    static void swarm_arm(int timer, int64_t at_ns) {
        struct itimerspec when;
        memset(&when, 0, sizeof when);
        when.it_value.tv_sec = at_ns / 1000000000;
        when.it_value.tv_nsec = at_ns % 1000000000;
        timerfd_settime(timer, TFD_TIMER_ABSTIME, &when, NULL);
    }

    /* The bytes [from, to) of a ring in one call; numbers count from the ring's first lap. */
    static ssize_t swarm_write_ring(int fd, uint8_t *ring, size_t ring_bytes, uint64_t from, uint64_t to) {
        struct iovec pieces[2];
        size_t start = from % ring_bytes, size = to - from;
        if (start + size <= ring_bytes) return send(fd, ring + start, size, MSG_NOSIGNAL);
        pieces[0].iov_base = ring + start;
        pieces[0].iov_len = ring_bytes - start;
        pieces[1].iov_base = ring;
        pieces[1].iov_len = size - pieces[0].iov_len;
        return writev(fd, pieces, 2);
    }

    static int swarm_wait_writable(int fd, int timeout_ms) {
        struct pollfd one = {fd, POLLOUT, 0};
        return poll(&one, 1, timeout_ms);
    }
    """
    int64_t now_ns "swarm_now_ns"() noexcept
    int top_bit "swarm_top_bit"(uint64_t v) noexcept
    int open_connection "swarm_connect"(uint32_t host, uint16_t port, uint32_t source, int send_buffer_bytes) noexcept
    int socket_error "swarm_socket_error"(int fd) noexcept
    int watch "swarm_watch"(int epoll, int operation, int fd, uint32_t events, uint32_t token) noexcept
    void arm "swarm_arm"(int timer, int64_t at_ns) noexcept
    Py_ssize_t write_ring "swarm_write_ring"(
        int fd, uint8_t* ring, size_t ring_bytes, uint64_t start, uint64_t end) noexcept
    int wait_writable "swarm_wait_writable"(int fd, int timeout_ms) noexcept

    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_wait(int epoll, epoll_event* events, int size, int timeout_ms)
    int eventfd(unsigned int value, int flags)
    int timerfd_create(int clock, int flags)
    Py_ssize_t recv(int fd, void* buffer, size_t size, int flags)
    Py_ssize_t send(int fd, const void* buffer, size_t size, int flags)
    int accept4(int fd, void* address, void* size, int flags)
    Py_ssize_t read(int fd, void* buffer, size_t size)
    Py_ssize_t write(int fd, const void* buffer, size_t size)
    int close(int fd)
    const int EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CLOEXEC
    const int EFD_NONBLOCK, EFD_CLOEXEC, TFD_NONBLOCK, TFD_CLOEXEC, CLOCK_MONOTONIC
    const int MSG_NOSIGNAL, SOCK_NONBLOCK, SOCK_CLOEXEC

cdef enum:
    STAMP_MAGIC_C = 0x53574D31
    STAMP_BYTES_C = 24
    READ_BYTES = 256 * 1024
    READS_PER_EVENT = 4
    PACKET_BYTES_LARGEST = 1024 * 1024 + 1024
    EVENTS_PER_TURN = 512
    QOS0_RING_BYTES = 16 * 1024
    QOS0_SEND_BUFFER_BYTES = 128 * 1024
    HISTOGRAM_BUCKETS = 128 + 57 * 64
    REASONS = 256              # errno, and reason codes of CONNACK and SUBACK
    IDS = 65_535
    WAKE_TOKEN = 0xFFFFFFFE
    TIMER_TOKEN = 0xFFFFFFFF
    SINK_FDS = 65_536
    SPIN_NS = 60_000
    TRACKED_BYTES_LARGEST = 256 * 1024 * 1024
    TOPIC_DIGITS_C = 7
    TOPICS_PER_PUBLISHER_LARGEST = 1_000_000
    PORTS_LARGEST = 8
    FRAME_HEADER_BYTES = 14     # of a frame to the server; those from it have no mask
    HEADERS_BYTES_LARGEST = 8 * 1024

cdef enum:
    IDLE, PUBLISHER, SUBSCRIBER

# NEW -> OPENING (TCP) -> UPGRADING (WebSockets only) -> GREETED (CONNECT sent) -> SUBSCRIBING (subscribers only)
# -> READY -> GONE
cdef enum:
    NEW, OPENING, UPGRADING, GREETED, SUBSCRIBING, READY, GONE

cdef enum:
    GOAL_TIME, GOAL_CONNECTED, GOAL_SENT, GOAL_DELIVERED

STAMP_MAGIC = STAMP_MAGIC_C
STAMP_BYTES = STAMP_BYTES_C
WINDOW_MAX = IDS
PAYLOAD_BYTES_MAX = 1024 * 1024
RING_BYTES_MAX = 2 * 1024 ** 3
TRACKED_BYTES_MAX = TRACKED_BYTES_LARGEST
TOPIC_DIGITS = TOPIC_DIGITS_C
TOPICS_PER_PUBLISHER_MAX = TOPICS_PER_PUBLISHER_LARGEST
PORTS_MAX = PORTS_LARGEST

cdef struct Connection:
    int fd
    uint8_t kind
    uint8_t state
    uint8_t events_out         # 1 while EPOLLOUT is asked for
    uint8_t reading            # 0 while EPOLLIN is off because our own acknowledgements are stuck
    uint8_t port_index         # which of the engine's ports it is connected to
    uint32_t number            # which publisher, or which subscriber
    const uint8_t* greeting    # CONNECT
    uint32_t greeting_size
    uint32_t subscribe_size
    const uint8_t* subscribe
    int64_t wrote_at_ns        # for keep-alive
    int64_t opened_at_ns       # when the latest connection was begun
    int64_t lost_at_ns         # when the connection was lost that is being made anew; 0 when none is
    # Control bytes that the socket did not take yet (PUBACKs of a subscriber, CONNECT).
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
    # Publisher: messages are numbered from 0; acked <= written <= created <= acked + slots.
    uint8_t* ring
    uint8_t* early             # one flag a slot: acknowledged before its turn; made on first need
    uint32_t packet_size
    uint32_t id_at             # 0 for QoS 0
    uint32_t stamp_at          # 0 when the payload has no stamp
    uint32_t digits_at         # where the number in the topic is, when there are several topics
    uint32_t slot              # created % slots
    uint64_t created
    uint64_t acked             # QoS 1: every message below it is acknowledged; QoS 0: written whole
    uint64_t written_bytes
    uint64_t owed              # paced: due and not yet created
    uint64_t paced_from        # value of created when pacing began
    uint64_t arrived           # with a lead: every message below it was delivered or given up
    uint8_t has_moved          # with a lead: listed in moved, because arrived went up
    # Subscriber: next sequence expected of each publisher; made at the first delivery. With several topics to a
    # publisher there is one number: how many times the subscriber's own topic has come.
    uint64_t* expected

cdef struct Counters:
    uint64_t opened
    uint64_t connected
    uint64_t resumed
    uint64_t reconnected
    uint64_t refused
    uint64_t failed
    uint64_t lost
    uint64_t published
    uint64_t acknowledged
    uint64_t acks_unknown
    uint64_t acks_out_of_order
    uint64_t abandoned
    uint64_t delivered
    uint64_t delivered_payload_bytes
    uint64_t delivered_unstamped
    uint64_t sequence_gaps
    uint64_t sequence_repeats
    uint64_t misdelivered
    uint64_t deliveries_acknowledged
    uint64_t pings
    uint64_t protocol_errors
    uint64_t bytes_sent
    uint64_t bytes_received
    uint64_t paced_missed

cdef struct Histogram:
    uint64_t counts[3776]
    uint64_t count
    uint64_t largest
    double total

assert HISTOGRAM_BUCKETS == 3776


cdef inline void record(Histogram* histogram, int64_t value) noexcept nogil:
    """Buckets are exact below 128 ns and 1/64 wide above: at most 1.6 % off."""
    cdef uint64_t v = <uint64_t>value if value > 0 else 0
    cdef int shift
    if v < 128:
        histogram.counts[v] += 1
    else:
        shift = top_bit(v) - 6
        histogram.counts[128 + (shift - 1) * 64 + (<int>(v >> shift) - 64)] += 1
    histogram.count += 1
    histogram.total += v
    if v > histogram.largest:
        histogram.largest = v


cdef uint64_t percentile(const Histogram* histogram, double fraction) noexcept nogil:
    """Upper edge of the bucket that holds the value at this fraction; never more than the largest value."""
    cdef uint64_t seen = 0, edge
    cdef uint64_t rank = <uint64_t>(fraction * histogram.count)
    cdef int i
    if rank >= histogram.count:
        return histogram.largest
    for i in range(HISTOGRAM_BUCKETS):
        seen += histogram.counts[i]
        if seen > rank:
            edge = bucket_edge(i)
            return edge if edge < histogram.largest else histogram.largest
    return histogram.largest


cdef uint64_t bucket_edge(int bucket) noexcept nogil:
    """The largest value of a bucket."""
    cdef int shift
    if bucket < 128:
        return bucket
    shift = (bucket - 128) // 64 + 1
    return ((<uint64_t>(64 + (bucket - 128) % 64 + 1)) << shift) - 1


cdef dict histogram_buckets(const Histogram* histogram):
    cdef int i
    return {
        "total_ns": histogram.total,
        "max_ns": histogram.largest,
        "counts": {bucket_edge(i): histogram.counts[i] for i in range(HISTOGRAM_BUCKETS) if histogram.counts[i]},
    }


cdef void put_digits(uint8_t* target, uint64_t number) noexcept nogil:
    """TOPIC_DIGITS decimal digits."""
    cdef int i
    for i in range(TOPIC_DIGITS_C - 1, -1, -1):
        target[i] = <uint8_t>(48 + number % 10)
        number //= 10


cdef dict histogram_summary(const Histogram* histogram):
    return {
        "count": histogram.count,
        "mean_ns": histogram.total / histogram.count if histogram.count else 0.0,
        "p50_ns": percentile(histogram, 0.50),
        "p90_ns": percentile(histogram, 0.90),
        "p99_ns": percentile(histogram, 0.99),
        "p999_ns": percentile(histogram, 0.999),
        "max_ns": histogram.largest,
    }


cdef inline Py_ssize_t packet_length(const uint8_t* data, Py_ssize_t size, Py_ssize_t* header) noexcept nogil:
    """Bytes of the packet that starts here, 0 when its length is not all there yet, -1 when malformed.

    ``header`` becomes the size of the fixed header [MQTT 2.2].
    """
    cdef uint32_t remaining
    cdef int taken = read_variable_integer(data + 1, size - 1, &remaining)
    if taken <= 0:
        return taken
    cdef Py_ssize_t at = 1 + taken
    header[0] = at
    if at + remaining > PACKET_BYTES_LARGEST:
        return -1
    return at + remaining


cdef inline Py_ssize_t past_properties(const uint8_t* packet, Py_ssize_t at, Py_ssize_t length) noexcept nogil:
    """Where the properties that begin at `at` end [MQTT 5, 2.2.2]; past the packet when they do not."""
    cdef uint32_t size
    cdef int taken = read_variable_integer(packet + at, length - at, &size)
    return at + taken + size if taken > 0 else length + 1


cdef uint32_t put_frame_header(uint8_t* target, uint64_t size) noexcept nogil:
    """The header of a binary frame to the server, with a mask that changes nothing [RFC 6455 section 5.2].

    Any server unmasks with it as with another. Returns its length.
    """
    cdef uint32_t at = 2
    target[0] = 0x82
    if size < 126:
        target[1] = 0x80 | <uint8_t>size
    elif size < 1 << 16:
        target[1] = 0x80 | 126
        put_u16(target + 2, <uint16_t>size)
        at = 4
    else:
        target[1] = 0x80 | 127
        put_u64(target + 2, size)
        at = 10
    memset(target + at, 0, 4)
    return at + 4


cdef bint keep(uint8_t** target, uint32_t* capacity, uint32_t* size, const uint8_t* data,
               Py_ssize_t count) noexcept nogil:
    """Replaces the bytes a connection keeps; False without memory. ``data`` may lie inside the target."""
    cdef uint8_t* grown
    if <Py_ssize_t>capacity[0] < count:
        grown = <uint8_t*>malloc(count)
        if grown == NULL:
            return False
        if count:
            memcpy(grown, data, count)
        free(target[0])
        target[0] = grown
        capacity[0] = <uint32_t>count
    elif count:
        memmove(target[0], data, count)
    size[0] = <uint32_t>count
    return True


def read_stamp(payload):
    """(publisher, sequence, time_ns) of a stamped payload, None for any other."""
    cdef const uint8_t[::1] view = payload
    if view.shape[0] < STAMP_BYTES_C or get_u32(&view[0]) != STAMP_MAGIC_C:
        return None
    return get_u32(&view[4]), get_u64(&view[8]), get_u64(&view[16])


cdef class Engine:
    """The connections of one process to one server. All calls come from one thread, except ``wake``.

    ``host`` is a dotted IPv4 address. QoS, window and payload hold for all publishers; ``window`` means
    nothing for QoS 0. ``lead_max`` bounds how far a publisher may be ahead of the subscribers of this engine (0:
    not at all); QoS 0 that a server dropped is given up after 0.2 s without a delivery. ``number_base`` is
    added to the numbers of publishers in stamps and to those of subscribers, so that several processes can share
    the work; ``publishers_tracked`` is how many of the publishers subscribers follow by sequence.

    With ``topics_per_publisher`` T above 1 publisher p sends in turn to the topics numbered p x T to
    (p + 1) x T - 1, and subscriber n is to have topic n alone: what is not for it is counted as misdelivered.

    Subscribers and idle connections that lose their connection connect again, at the pace of ``connect``, when
    there are ``fallback_ports``: to the next of the ports in turn, after ``return_after_s``. A subscriber
    whose session is still there (session present in CONNACK) does not subscribe again.
    """
    cdef Connection* connections
    cdef uint32_t count
    cdef uint32_t capacity
    cdef list packets                  # keeps the memory behind greeting and subscribe alive
    cdef bytes payload
    cdef bytes publish_properties      # with their length; empty for 3.1.1
    cdef bint is_v5
    cdef bytes upgrade                 # the request for a WebSocket; empty for TCP
    cdef bint is_websocket
    cdef const uint8_t* upgrade_data
    cdef Py_ssize_t upgrade_size
    cdef uint8_t* framed               # a frame that is sent at once
    cdef uint32_t host
    cdef uint16_t[8] ports             # in network order: the first, and those to fall back to
    cdef uint32_t port_count
    cdef uint32_t topics_per_publisher
    cdef uint32_t* lost                # connections to be made anew, a ring as large as `capacity`
    cdef uint32_t lost_count
    cdef uint32_t lost_first
    cdef uint32_t lost_capacity
    cdef int64_t return_after_ns       # how long those that lost their connection stay away
    cdef double reopen_credit          # connections that may be made anew now
    cdef int64_t reopened_at_ns
    cdef list source_addresses
    cdef uint32_t* sources
    cdef uint32_t source_count
    cdef int qos
    cdef uint32_t window
    cdef int64_t keep_alive_ns
    cdef bint measures_acks
    cdef uint32_t number_base
    cdef uint32_t publishers_tracked
    cdef uint64_t ring_bytes_total
    cdef uint32_t publisher_count
    cdef uint32_t subscriber_count
    cdef uint32_t* publishers          # indexes of the publisher connections
    cdef uint64_t lead_max             # messages a publisher may be ahead of the subscribers; 0: any
    cdef uint32_t* moved               # publishers that may go on after this read
    cdef uint32_t moved_count
    cdef uint64_t delivered_at_look    # value of delivered when leads were last looked at
    cdef int64_t looked_at_ns

    cdef int epoll
    cdef int timer
    cdef int wakeup
    cdef uint8_t* buffer               # one read, behind the kept beginning of a packet
    cdef uint8_t* acks                 # acknowledgements of what one read delivered
    cdef Py_ssize_t acks_size

    cdef int64_t now                   # read once a turn
    cdef int64_t swept_at_ns
    cdef int64_t timer_at_ns
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

    cdef bint publishing
    cdef bint kick                     # publishers have to be started at the next turn
    cdef uint64_t remaining            # messages that may still be created
    cdef uint64_t outstanding          # created, neither acknowledged nor abandoned
    cdef uint64_t rate_per_s           # 0: as fast as windows allow
    cdef int64_t paced_from_ns
    cdef uint64_t paced                # messages that became due since then
    cdef int64_t measure_from_ns       # older stamps are not measured
    cdef int64_t oldest_repeat_ns      # the earliest stamp that came twice; 0 when none did
    cdef uint64_t delivered_goal

    cdef Counters counters
    cdef Histogram delivery
    cdef Histogram acknowledgement
    cdef Histogram send_delay
    cdef Histogram reconnection
    cdef Histogram connection
    cdef uint64_t[256] failed_by       # connections that were not ready yet, by errno; 0: closed by the server
    cdef uint64_t[256] lost_by         # connections that were
    cdef uint64_t[256] refused_by      # CONNECT, SUBSCRIBE or PUBLISH, by the server's code
    cdef bint is_refusing              # the drop that follows is counted by the refusal's code

    def __cinit__(self):
        self.epoll = self.timer = self.wakeup = -1

    def __init__(self, host, port, *, qos=1, window=100, payload=b"\x00" * 100, keep_alive_s=60.0,
                 lead_max=0, measures_acks=False, number_base=0, publishers_tracked=0, topics_per_publisher=1,
                 fallback_ports=(), return_after_s=0.0, source_addresses=(), publish_properties=None,
                 bytes upgrade=b""):
        """`publish_properties` are the encoded ones of every message of MQTT 5; None for 3.1.1.

        `upgrade` is the HTTP request for a WebSocket, each packet or run of acknowledgements then being a frame.
        """
        if self.epoll >= 0:
            raise RuntimeError("an engine is initialised once")
        if qos not in (0, 1):
            raise ValueError(f"qos must be 0 or 1, not {qos}")
        if not 1 <= window <= WINDOW_MAX:
            raise ValueError(f"window must be 1..{WINDOW_MAX}, not {window}")
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise ValueError(f"a payload is at most {PAYLOAD_BYTES_MAX} bytes, not {len(payload)}")
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
        self.qos = qos
        self.window = window
        self.payload = bytes(payload)
        self.keep_alive_ns = int(keep_alive_s * 1e9)
        self.lead_max = lead_max
        self.measures_acks = measures_acks
        self.number_base = number_base
        self.publishers_tracked = publishers_tracked
        self.packets = []
        self.in_progress_max = 64
        self.open_rate_per_s = 2_000.0
        self.buffer = <uint8_t*>malloc(PACKET_BYTES_LARGEST + READ_BYTES)
        self.acks = <uint8_t*>malloc(PACKET_BYTES_LARGEST + READ_BYTES)
        self.framed = <uint8_t*>malloc(FRAME_HEADER_BYTES + PACKET_BYTES_LARGEST + READ_BYTES)
        if self.buffer == NULL or self.acks == NULL or self.framed == NULL:
            raise MemoryError
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
        self.wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.epoll < 0 or self.timer < 0 or self.wakeup < 0:
            raise OSError(errno, os.strerror(errno))
        watch(self.epoll, EPOLL_CTL_ADD, self.timer, EPOLLIN, TIMER_TOKEN)
        watch(self.epoll, EPOLL_CTL_ADD, self.wakeup, EPOLLIN, WAKE_TOKEN)
        self.now = now_ns()
        self.swept_at_ns = self.now

    def __dealloc__(self):
        cdef uint32_t i
        cdef Connection* c
        for i in range(self.count):
            c = &self.connections[i]
            if c.fd >= 0:
                close(c.fd)
            free(c.pending)
            free(c.partial)
            free(c.ring)
            free(c.early)
            free(c.expected)
        free(self.connections)
        free(self.publishers)
        free(self.moved)
        free(self.lost)
        free(self.sources)
        free(self.buffer)
        free(self.acks)
        free(self.framed)
        for fd in (self.epoll, self.timer, self.wakeup):
            if fd >= 0:
                close(fd)

    # Setting up

    cdef Connection* _new(self, int kind, bytes greeting) except NULL:
        cdef Connection* grown
        cdef Connection* c
        if self.count == self.capacity:
            grown = <Connection*>realloc(self.connections, (self.capacity * 2 + 64) * sizeof(Connection))
            if grown == NULL:
                raise MemoryError
            self.connections = grown
            self.capacity = self.capacity * 2 + 64
        c = &self.connections[self.count]
        memset(c, 0, sizeof(Connection))
        c.fd = -1
        c.kind = kind
        c.reading = 1
        c.greeting = <const uint8_t*>greeting
        c.greeting_size = len(greeting)
        self.packets.append(greeting)
        self.count += 1
        self.unsettled += 1
        return c

    def add_idle(self, bytes connect):
        """A connection that only keeps itself alive. ``connect`` is its CONNECT packet."""
        self._new(IDLE, connect)

    def add_subscriber(self, bytes connect, bytes subscribe):
        """A connection that counts what it is sent. ``subscribe`` is its SUBSCRIBE packet."""
        cdef Connection* c = self._new(SUBSCRIBER, connect)
        c.subscribe = <const uint8_t*>subscribe
        c.subscribe_size = len(subscribe)
        c.number = self.number_base + self.subscriber_count
        self.subscriber_count += 1
        self.packets.append(subscribe)

    def add_publisher(self, bytes connect, bytes topic, *, uint32_t number_at=0):
        """A connection that publishes to one topic. Returns its number in stamps.

        With several topics to a publisher `number_at` says where in the topic the seven digits are that
        are replaced by the number of each.
        """
        cdef bytearray packet = bytearray()
        if not 1 <= len(topic) <= 65_535:
            raise ValueError(f"a topic has 1..65535 bytes, not {len(topic)}")
        append_publish(packet, self.qos << 1, topic, 0, self.publish_properties, self.payload)
        if self.topics_per_publisher > 1 and number_at + TOPIC_DIGITS_C > len(topic):
            raise ValueError(f"a topic for many needs {TOPIC_DIGITS_C} digits at {number_at}")
        cdef uint32_t payload_at = len(packet) - len(self.payload)
        cdef uint32_t behind_topic = payload_at - len(self.publish_properties) - (2 if self.qos else 0)
        cdef uint32_t digits_at = behind_topic - len(topic) + number_at
        cdef uint32_t id_at = behind_topic if self.qos else 0
        cdef uint32_t size, slots, i, stamp_at = 0
        cdef uint8_t[FRAME_HEADER_BYTES] header
        cdef uint32_t header_size = 0
        if self.is_websocket:
            header_size = put_frame_header(header, len(packet))
            packet[:0] = header[:header_size]
            id_at += header_size if id_at else 0
            digits_at += header_size
            payload_at += header_size
        cdef uint32_t number = self.number_base + self.publisher_count
        if (<uint64_t>number + 1) * self.topics_per_publisher > 10 ** TOPIC_DIGITS_C and self.topics_per_publisher > 1:
            raise ValueError(f"the numbers of topics have {TOPIC_DIGITS_C} digits")
        if len(self.payload) >= STAMP_BYTES_C:
            stamp_at = payload_at
            packet[payload_at:payload_at + 8] = (<int>STAMP_MAGIC_C).to_bytes(4, "big") + number.to_bytes(4, "big")
        size = len(packet)
        slots = self.window if self.qos else max(1, QOS0_RING_BYTES // size)
        if self.ring_bytes_total + <uint64_t>size * slots > <uint64_t>RING_BYTES_MAX:
            raise ValueError(f"publishers x window x packet size is more than {RING_BYTES_MAX} bytes")
        cdef uint8_t* ring = <uint8_t*>malloc(<size_t>size * slots)
        cdef uint32_t* grown = <uint32_t*>realloc(self.publishers, (self.publisher_count + 1) * 4)
        if ring == NULL or grown == NULL:
            free(ring)
            raise MemoryError
        self.publishers = grown
        grown = <uint32_t*>realloc(self.moved, (self.publisher_count + 1) * 4)
        if grown == NULL:
            free(ring)
            raise MemoryError
        self.moved = grown
        cdef bytes template = bytes(packet)
        for i in range(slots):
            memcpy(ring + <size_t>i * size, <const uint8_t*>template, size)
        cdef Connection* c = self._new(PUBLISHER, connect)
        c.ring = ring
        c.packet_size = size
        c.id_at = id_at
        c.stamp_at = stamp_at
        c.digits_at = digits_at if self.topics_per_publisher > 1 else 0
        c.number = number
        self.publishers[self.publisher_count] = self.count - 1
        self.publisher_count += 1
        self.ring_bytes_total += <uint64_t>size * slots
        return number

    # Phases

    def connect(self, *, rate_per_s=2_000.0, in_progress_max=64, timeout_s=30.0):
        """Opens every added connection at this pace; True when all are ready or gone before the time is up."""
        if rate_per_s <= 0 or in_progress_max < 1:
            raise ValueError("connections need a positive rate and at least one in progress")
        self.open_rate_per_s = rate_per_s
        self.in_progress_max = in_progress_max
        self.open_from_ns = now_ns()
        self.opening_from = self.next_to_open
        return self._run(timeout_s, GOAL_CONNECTED)

    def start(self, *, messages_max, rate_per_s=0):
        """Lets publishers publish: as fast as their windows allow, or paced at a rate over all of them."""
        if messages_max < 0 or rate_per_s < 0:
            raise ValueError("counts and rates are not negative")
        cdef uint32_t i
        self.remaining = messages_max
        self.rate_per_s = rate_per_s
        self.publishing = True
        self.kick = True
        self.paced = 0
        self.paced_from_ns = now_ns()
        for i in range(self.publisher_count):
            self.connections[self.publishers[i]].paced_from = self.connections[self.publishers[i]].created
            self.connections[self.publishers[i]].owed = 0

    def stop(self):
        """No new messages; what was created is still sent and acknowledged by ``run`` and ``drain``."""
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
        memset(&self.delivery, 0, sizeof(Histogram))
        memset(&self.acknowledgement, 0, sizeof(Histogram))
        memset(&self.send_delay, 0, sizeof(Histogram))
        self.measure_from_ns = now_ns()

    def wake(self):
        """Ends the running phase soon; the one call that may come from another thread."""
        cdef uint64_t one = 1
        write(self.wakeup, &one, 8)

    def close(self):
        """Says DISCONNECT where possible and closes every connection."""
        cdef uint32_t i
        cdef Connection* c
        cdef bytes packet = b"\x82\x82\0\0\0\0\xe0\x00" if self.is_websocket else b"\xe0\x00"
        cdef const uint8_t* disconnect = packet
        cdef size_t disconnect_size = len(packet)
        for i in range(self.count):
            c = &self.connections[i]
            if c.fd < 0:
                continue
            if c.state == READY and c.pending_size == 0 and c.written_bytes % max(1, c.packet_size) == 0:
                send(c.fd, disconnect, disconnect_size, MSG_NOSIGNAL)
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
        return named

    @property
    def oldest_repeat_at_ns(self):
        """CLOCK_MONOTONIC of the earliest stamp that a subscriber got twice; None when none did."""
        return self.oldest_repeat_ns or None

    def latencies(self):
        """Summaries in nanoseconds: delivery (stamp to subscriber), acknowledgement (stamp to PUBACK), send_delay
        (how late this engine itself was with paced messages) and reconnection (connection lost to session back).
        """
        return {
            "delivery": histogram_summary(&self.delivery),
            "acknowledgement": histogram_summary(&self.acknowledgement),
            "send_delay": histogram_summary(&self.send_delay),
            "reconnection": histogram_summary(&self.reconnection),
        }

    def histograms(self):
        """The histograms behind `latencies`, and connection (begun to ready): total_ns, max_ns, and counts by the
        largest value of each bucket that is not empty.
        """
        return {
            "delivery": histogram_buckets(&self.delivery),
            "acknowledgement": histogram_buckets(&self.acknowledgement),
            "send_delay": histogram_buckets(&self.send_delay),
            "reconnection": histogram_buckets(&self.reconnection),
            "connection": histogram_buckets(&self.connection),
        }

    def faults(self):
        """Connections that failed (before they were ready) and were lost (after), by errno, 0 being a server that
        closed; and what a server refused, by its code.
        """
        return {
            "failed": {i: self.failed_by[i] for i in range(REASONS) if self.failed_by[i]},
            "lost": {i: self.lost_by[i] for i in range(REASONS) if self.lost_by[i]},
            "refused": {i: self.refused_by[i] for i in range(REASONS) if self.refused_by[i]},
        }

    def publisher_progress(self):
        """(number, messages written whole, messages acknowledged without a hole) of each publisher."""
        cdef uint32_t i
        cdef Connection* c
        progress = []
        for i in range(self.publisher_count):
            c = &self.connections[self.publishers[i]]
            progress.append((c.number, c.written_bytes // c.packet_size, c.acked if c.id_at else 0))
        return progress

    @property
    def tracks_sequences(self):
        """Whether subscribers check sequences; not when the tables for it would not fit in memory."""
        return 0 < 8 * self.publishers_tracked * self.subscriber_count <= TRACKED_BYTES_MAX

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
            return self.outstanding == 0 and (not self.publishing or self.remaining == 0)
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
            if self.rate_per_s and self.publishing and self.remaining:
                due = self._send_due()
                # A sleeping core wakes up tens of microseconds late: sleep short of the time, then look.
                if due - self.now <= SPIN_NS:
                    timeout_ms = 0
                elif due != self.timer_at_ns:
                    arm(self.timer, due - SPIN_NS)
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
            if self.keep_alive_ns and self.now - self.swept_at_ns > 1_000_000_000:
                self._keep_alive()
            if self.lead_max and not self.qos and self.publishing and self.now - self.looked_at_ns > 200_000_000:
                self._give_up_lost()

    cdef bint _open_due(self) noexcept nogil:
        """Opens connections that are due; True while some are still to be opened."""
        cdef uint32_t due = self.opening_from + 1 + <uint32_t>min(
            <double>self.count, (self.now - self.open_from_ns) / 1e9 * self.open_rate_per_s)
        while self.next_to_open < self.count and self.next_to_open < due and self.in_progress < self.in_progress_max:
            self._open(self.next_to_open)
            self.next_to_open += 1
        return self.next_to_open < self.count

    cdef void _reopen_due(self) noexcept nogil:
        """Connects again those that lost their connection, at the pace of `connect`."""
        cdef uint32_t index
        self.reopen_credit = min(
            self.reopen_credit + (self.now - self.reopened_at_ns) / 1e9 * self.open_rate_per_s, 64.0)
        self.reopened_at_ns = self.now
        while self.lost_count and self.reopen_credit >= 1.0 and self.in_progress < self.in_progress_max:
            index = self.lost[self.lost_first]
            if self.now - self.connections[index].lost_at_ns < self.return_after_ns:
                return
            self.lost_first = (self.lost_first + 1) % self.lost_capacity
            self.lost_count -= 1
            self.reopen_credit -= 1.0
            self._open(index)

    cdef bint _may_reopen(self, Connection* c) noexcept nogil:
        """Puts a lost connection in line to be made again, unless it is one that does not come back."""
        cdef uint32_t i
        cdef uint32_t* grown
        if self.port_count < 2 or c.kind == PUBLISHER:
            return False
        if self.lost_capacity < self.count:
            grown = <uint32_t*>malloc(self.count * sizeof(uint32_t))
            if grown == NULL:
                return False
            for i in range(self.lost_count):
                grown[i] = self.lost[(self.lost_first + i) % self.lost_capacity]
            free(self.lost)
            self.lost = grown
            self.lost_first = 0
            self.lost_capacity = self.count
        self.lost[(self.lost_first + self.lost_count) % self.lost_capacity] = <uint32_t>(c - self.connections)
        self.lost_count += 1
        c.port_index = <uint8_t>((c.port_index + 1) % self.port_count)
        c.state = NEW
        c.reading = 1
        c.events_out = 0
        c.pending_size = c.partial_size = 0
        c.frame_left = c.frame_header_size = 0
        if not c.lost_at_ns:
            c.lost_at_ns = self.now
        self.unsettled += 1
        return True

    cdef void _open(self, uint32_t index) noexcept nogil:
        cdef Connection* c = &self.connections[index]
        cdef uint32_t source = self.sources[index % self.source_count] if self.source_count else 0
        cdef int fd = open_connection(
            self.host, self.ports[c.port_index], source,
            QOS0_SEND_BUFFER_BYTES if c.kind == PUBLISHER and self.qos == 0 else 0)
        self.counters.opened += 1
        self.in_progress += 1
        c.opened_at_ns = now_ns()
        c.state = OPENING
        if fd < 0:
            self._drop(c, -fd)
            return
        c.fd = fd
        c.events_out = 1
        if watch(self.epoll, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT, index) < 0:
            self._drop(c, errno)

    cdef void _drop(self, Connection* c, int reason) noexcept nogil:
        """The connection is over: failed when it was not ready yet, else lost."""
        cdef bint was_ready = c.state == READY
        if c.state == GONE:
            return
        if was_ready:
            self.counters.lost += 1
            self.lost_by[reason & 0xFF] += not self.is_refusing
            self.ready -= 1
        else:
            self.counters.failed += 1
            self.failed_by[reason & 0xFF] += not self.is_refusing
            self.unsettled -= 1
            self.in_progress -= 1
        self.is_refusing = False
        self.last_error = reason
        if c.kind == PUBLISHER:
            self.counters.abandoned += c.created - c.acked
            self.outstanding -= c.created - c.acked
        c.state = GONE
        if c.fd >= 0:
            close(c.fd)
            c.fd = -1
        # One that was never let in is not asked again.
        if was_ready or c.lost_at_ns:
            self._may_reopen(c)

    cdef void _ask(self, Connection* c, bint reading, bint writing) noexcept nogil:
        if c.fd < 0 or (c.reading == reading and c.events_out == writing):
            return
        c.reading = reading
        c.events_out = writing
        watch(self.epoll, EPOLL_CTL_MOD, c.fd, (EPOLLIN if reading else 0) | (EPOLLOUT if writing else 0),
              <uint32_t>(c - self.connections))

    cdef void _on_event(self, Connection* c, uint32_t events) noexcept nogil:
        cdef int reason
        if c.fd < 0:
            return
        if c.state == OPENING:
            reason = socket_error(c.fd)
            if reason:
                self._drop(c, reason)
                return
            if not events & EPOLLOUT:
                return
            if self.is_websocket:
                c.state = UPGRADING
                self._send_bytes(c, self.upgrade_data, self.upgrade_size)
                return
            c.state = GREETED
            self._send_control(c, c.greeting, c.greeting_size)
            return
        if c.pending_size and events & (EPOLLERR | EPOLLHUP):
            self._drop(c, socket_error(c.fd))
            return
        if events & (EPOLLIN | EPOLLERR | EPOLLHUP):
            self._read(c)
        if events & EPOLLOUT and c.fd >= 0:
            if c.pending_size and not self._send_control(c, NULL, 0):
                return
            if c.kind == PUBLISHER and c.state == READY:
                self._pump(c)
            else:
                self._ask(c, True, False)

    # Sending

    cdef bint _send_control(self, Connection* c, const uint8_t* data, Py_ssize_t size) noexcept nogil:
        """Sends what is kept, or else this packet or these; keeps the rest and stops reading until it is gone."""
        cdef uint32_t header_size
        if data != NULL and self.is_websocket:
            header_size = put_frame_header(self.framed, size)
            memcpy(self.framed + header_size, data, size)
            return self._send_bytes(c, self.framed, header_size + size)
        return self._send_bytes(c, data, size)

    cdef bint _send_bytes(self, Connection* c, const uint8_t* data, Py_ssize_t size) noexcept nogil:
        cdef Py_ssize_t sent
        if data == NULL:
            data = c.pending
            size = c.pending_size
        sent = send(c.fd, data, size, MSG_NOSIGNAL)
        if sent < 0:
            if errno != EAGAIN and errno != EINTR:
                self._drop(c, errno)
                return False
            sent = 0
        self.counters.bytes_sent += sent
        c.wrote_at_ns = self.now
        if not keep(&c.pending, &c.pending_capacity, &c.pending_size, data + sent, size - sent):
            self._drop(c, 12)
            return False
        self._ask(c, c.pending_size == 0, c.pending_size != 0)
        return c.pending_size == 0

    cdef void _start_publishers(self) noexcept nogil:
        cdef uint32_t i
        self.kick = False
        if self.rate_per_s:
            return
        for i in range(self.publisher_count):
            self._pump(&self.connections[self.publishers[i]])

    cdef int64_t _due_ns(self, uint64_t index) noexcept nogil:
        return self.paced_from_ns + <int64_t>(index * <uint64_t>1_000_000_000 // self.rate_per_s)

    cdef int64_t _send_due(self) noexcept nogil:
        """Hands every due message to its publisher, in turn; returns when the next one is due."""
        cdef Connection* c
        cdef int64_t due
        cdef uint32_t quota = 4096     # the rest comes after a look at the sockets
        while True:
            due = self._due_ns(self.paced)
            if due > self.now or quota == 0 or self.remaining == 0:
                return due
            c = &self.connections[self.publishers[self.paced % self.publisher_count]]
            self.paced += 1
            quota -= 1
            if c.state == READY:
                c.owed += 1
                self._pump(c)
            else:
                self.counters.paced_missed += 1
                self.remaining -= 1

    cdef void _pump(self, Connection* c) noexcept nogil:
        """Creates what window, pace and count allow, and writes it."""
        if c.state != READY or c.pending_size:
            return
        if self.publishing and self.remaining:
            self._create(c)
        self._write(c)

    cdef void _create(self, Connection* c) noexcept nogil:
        cdef uint32_t slots = self.window if c.id_at else <uint32_t>max(1, QOS0_RING_BYTES // c.packet_size)
        cdef uint64_t room = c.acked + slots - c.created
        cdef uint64_t sequence, i
        cdef uint32_t slot, id_at = c.id_at, stamp_at = c.stamp_at, packet_size = c.packet_size
        cdef uint32_t packet_id
        cdef uint8_t* packet
        cdef int64_t stamp, clock
        cdef bint paced = self.rate_per_s != 0
        if room > self.remaining:
            room = self.remaining
        if paced and room > c.owed:
            room = c.owed
        if self.lead_max:
            room = min(room, self._lead_left(c))
        if room == 0:
            return
        stamp = clock = now_ns() if stamp_at else 0
        sequence = c.created
        packet_id = <uint32_t>(sequence % IDS) + 1
        slot = c.slot
        packet = c.ring + <size_t>slot * packet_size
        for i in range(room):  # no-cython-lint
            if id_at:
                put_u16(packet + id_at, <uint16_t>packet_id)
                packet_id = 1 if packet_id == IDS else packet_id + 1
            if stamp_at:
                if paced:
                    stamp = self._due_ns(
                        (sequence - c.paced_from) * self.publisher_count + (c.number - self.number_base))
                    if stamp >= self.measure_from_ns:
                        record(&self.send_delay, clock - stamp)
                put_u64(packet + stamp_at + 8, sequence)
                put_u64(packet + stamp_at + 16, <uint64_t>stamp)
            if c.digits_at:
                put_digits(
                    packet + c.digits_at,
                    <uint64_t>c.number * self.topics_per_publisher + sequence % self.topics_per_publisher)
            sequence += 1
            slot += 1
            packet += packet_size
            if slot == slots:
                slot = 0
                packet = c.ring
        c.slot = slot
        c.created = sequence
        self.remaining -= room
        self.outstanding += room
        self.counters.published += room
        if paced:
            c.owed -= room

    cdef void _write(self, Connection* c) noexcept nogil:
        cdef uint64_t end = c.created * c.packet_size, whole
        cdef uint32_t slots = self.window if c.id_at else <uint32_t>max(1, QOS0_RING_BYTES // c.packet_size)
        cdef Py_ssize_t sent
        if c.written_bytes < end:
            sent = write_ring(c.fd, c.ring, <size_t>slots * c.packet_size, c.written_bytes, end)
            if sent < 0:
                if errno != EAGAIN and errno != EINTR:
                    self._drop(c, errno)
                    return
                sent = 0
            c.written_bytes += sent
            c.wrote_at_ns = self.now
            self.counters.bytes_sent += sent
            if c.id_at == 0:
                whole = c.written_bytes // c.packet_size
                self.outstanding -= whole - c.acked
                c.acked = whole
        # QoS 0 without a pace has always more to send: the socket says when.
        self._ask(c, True, c.written_bytes < end or (
            c.id_at == 0 and self.publishing and self.remaining != 0 and (self.rate_per_s == 0 or c.owed != 0)
            and (self.lead_max == 0 or self._lead_left(c) != 0)))

    cdef uint64_t _lead_left(self, Connection* c) noexcept nogil:
        return c.arrived + self.lead_max - c.created if c.created < c.arrived + self.lead_max else 0

    cdef void _move_on(self) noexcept nogil:
        """Lets publishers go on whose messages arrived in the read that is over."""
        cdef uint32_t i
        cdef Connection* c
        for i in range(self.moved_count):
            c = &self.connections[self.moved[i]]
            c.has_moved = 0
            self._pump(c)
        self.moved_count = 0

    cdef void _give_up_lost(self) noexcept nogil:
        """QoS 0 may be dropped: where nothing comes any more, nothing more is waited for."""
        cdef uint32_t i
        cdef Connection* c
        self.looked_at_ns = self.now
        if self.counters.delivered == self.delivered_at_look:
            for i in range(self.publisher_count):
                c = &self.connections[self.publishers[i]]
                c.arrived = c.created
                self._pump(c)
        self.delivered_at_look = self.counters.delivered

    cdef void _keep_alive(self) noexcept nogil:
        """PINGREQ where nothing was written for half the keep-alive; never inside a half-written packet."""
        cdef uint32_t i
        cdef Connection* c
        cdef uint8_t[2] ping
        ping[0] = 0xC0
        ping[1] = 0
        self.swept_at_ns = self.now
        for i in range(self.count):
            c = &self.connections[i]
            if c.state != READY or self.now - c.wrote_at_ns < self.keep_alive_ns // 2:
                continue
            if c.pending_size == 0 and (c.kind != PUBLISHER or c.written_bytes == c.created * c.packet_size):
                self.counters.pings += 1
                if self._send_control(c, ping, 2) and c.kind == PUBLISHER:
                    self._pump(c)

    # Receiving

    cdef void _read(self, Connection* c) noexcept nogil:
        cdef Py_ssize_t got, held, size, used
        cdef int rounds
        for rounds in range(READS_PER_EVENT):  # no-cython-lint
            held = c.partial_size
            if held:
                memcpy(self.buffer, c.partial, held)
            got = recv(c.fd, self.buffer + held, READ_BYTES, 0)
            if got < 0:
                if errno != EAGAIN and errno != EINTR:
                    self._drop(c, errno)
                return
            if got == 0:
                self._drop(c, 0)
                return
            self.counters.bytes_received += got
            self.acks_size = 0
            size = held + got
            if self.is_websocket:
                size = self._unframe(c, held, size)
                if c.fd < 0 or size == 0 and c.state == UPGRADING:
                    return
            used = self._parse(c, size) if size >= 0 else -1
            if c.fd < 0:
                return
            if used < 0:
                self.counters.protocol_errors += 1
                self._drop(c, EPROTO)
                return
            if held or used < size:
                if not keep(&c.partial, &c.partial_capacity, &c.partial_size, self.buffer + used, size - used):
                    self._drop(c, 12)
                    return
            if self.acks_size and not self._send_control(c, self.acks, self.acks_size):
                return
            if c.kind == PUBLISHER:
                self._pump(c)
                return
            if self.moved_count:
                self._move_on()
            if got < READ_BYTES:
                return

    cdef Py_ssize_t _unframe(self, Connection* c, Py_ssize_t at, Py_ssize_t size) noexcept nogil:
        """Leaves packets without frames in the buffer, from `at` on, and returns where they end; -1 for no
        WebSocket."""
        cdef uint8_t* data = self.buffer
        cdef Py_ssize_t end = at, part
        cdef uint32_t needed
        if c.state == UPGRADING:
            at = self._past_upgrade(data, size)
            if at <= 0:
                # The whole answer is needed; none of it is packets.
                return -1 if at < 0 or not keep(
                    &c.partial, &c.partial_capacity, &c.partial_size, data, size) else 0
            end = 0
            c.partial_size = 0
            c.state = GREETED
            self._send_control(c, c.greeting, c.greeting_size)
            if c.fd < 0:
                return 0
        while at < size:
            if c.frame_left:
                part = min(size - at, <Py_ssize_t>c.frame_left)
                if c.frame_opcode <= 2:
                    memmove(data + end, data + at, part)
                    end += part
                at += part
                c.frame_left -= part
                continue
            c.frame_header[c.frame_header_size] = data[at]
            c.frame_header_size += 1
            at += 1
            if c.frame_header_size < 2:
                continue
            needed = 4 if c.frame_header[1] == 126 else 10 if c.frame_header[1] == 127 else 2
            if c.frame_header_size < needed:
                continue
            c.frame_header_size = 0
            c.frame_opcode = c.frame_header[0] & 0x0F
            if c.frame_header[1] & 0x80 or c.frame_opcode not in (0, 2, 9, 10):
                return -1
            c.frame_left = (
                get_u16(c.frame_header + 2) if needed == 4
                else get_u64(c.frame_header + 2) if needed == 10
                else c.frame_header[1]
            )
        return end

    cdef Py_ssize_t _past_upgrade(self, const uint8_t* data, Py_ssize_t size) noexcept nogil:
        """Where the answer that grants a WebSocket ends; 0 when it is not all there, -1 when it is another answer."""
        cdef Py_ssize_t at
        if size >= 12 and memcmp(data, b"HTTP/1.1 101", 12):
            return -1
        for at in range(0, size - 3):
            if get_u32(data + at) == 0x0D0A0D0A:
                return at + 4
        return -1 if size > HEADERS_BYTES_LARGEST else 0

    cdef Py_ssize_t _parse(self, Connection* c, Py_ssize_t size) noexcept nogil:
        """Handles the whole packets in the buffer; returns the bytes they took, -1 for what is no MQTT."""
        cdef const uint8_t* data = self.buffer
        cdef Py_ssize_t at = 0, length, header = 0
        cdef int64_t clock = 0
        if c.kind == PUBLISHER and c.id_at and c.state == READY:
            at = self._count_acks(c, size)
        elif c.kind == SUBSCRIBER:
            clock = now_ns()
        while at < size:
            length = packet_length(data + at, size - at, &header)
            if length < 0:
                return -1
            if length == 0 or length > size - at:
                break
            if data[at] >> 4 == 3:
                if not self._on_publish(c, data + at, length, header, clock):
                    return -1
            elif not self._on_packet(c, data + at, length, header):
                return -1
            if c.fd < 0:
                return at
            at += length
        return at

    cdef Py_ssize_t _count_acks(self, Connection* c, Py_ssize_t size) noexcept nogil:
        """Takes the run of PUBACKs at the front of the buffer, each compared with the one that is due.

        The first one out of turn ends the run: the slow way sorts it out.
        """
        cdef const uint8_t* data = self.buffer
        cdef Py_ssize_t at = 0
        cdef uint64_t acked = c.acked
        cdef uint64_t sent = c.written_bytes // c.packet_size
        cdef uint32_t expected = <uint32_t>(acked % IDS) + 1
        cdef int64_t clock
        cdef uint64_t i
        if c.early != NULL:
            return 0
        while at + 4 <= size and get_u32(data + at) == (<uint32_t>0x40020000 | expected) and acked < sent:
            at += 4
            acked += 1
            expected = 1 if expected == IDS else expected + 1
        if self.measures_acks and c.stamp_at and acked > c.acked:
            clock = now_ns()
            for i in range(c.acked, acked):
                self._measure_ack(c, i, clock)
        self.counters.acknowledged += acked - c.acked
        self.outstanding -= acked - c.acked
        c.acked = acked
        return at

    cdef void _measure_ack(self, Connection* c, uint64_t sequence, int64_t clock) noexcept nogil:
        """The slot of an outstanding message still holds its stamp."""
        cdef int64_t stamp = <int64_t>get_u64(
            c.ring + <size_t>(sequence % self.window) * c.packet_size + c.stamp_at + 16)
        if stamp >= self.measure_from_ns:
            record(&self.acknowledgement, clock - stamp)

    cdef bint _on_ack(self, Connection* c, uint32_t packet_id) noexcept nogil:
        """One PUBACK the slow way. [MQTT-4.6.0-2]: PUBACKs come in the order of their PUBLISHes."""
        cdef uint64_t sent = c.written_bytes // c.packet_size
        cdef uint64_t ahead = (packet_id - 1 + IDS - c.acked % IDS) % IDS     # how many are due before it
        cdef uint64_t sequence = c.acked + ahead
        cdef uint32_t slot = <uint32_t>(sequence % self.window)
        if packet_id == 0 or c.id_at == 0 or sequence >= sent or (c.early != NULL and c.early[slot]):
            self.counters.acks_unknown += 1
            return True
        if c.early == NULL and ahead:
            c.early = <uint8_t*>calloc(self.window, 1)
            if c.early == NULL:
                return False
        if ahead:
            self.counters.acks_out_of_order += 1
        if self.measures_acks and c.stamp_at:
            self._measure_ack(c, sequence, now_ns())
        self.counters.acknowledged += 1
        if ahead:
            c.early[slot] = 1
            return True
        while True:
            c.acked += 1
            self.outstanding -= 1
            slot = <uint32_t>(c.acked % self.window)
            if c.early == NULL or not c.early[slot]:
                return True
            c.early[slot] = 0

    cdef bint _on_packet(self, Connection* c, const uint8_t* packet, Py_ssize_t length,
                         Py_ssize_t header) noexcept nogil:
        """Anything but PUBLISH; False for what a server may not send here."""
        cdef int first = packet[0]
        if first == 0x40 and c.state == READY and (length == 4 or self.is_v5 and length > 4):
            if length > 4 and packet[header + 2] >= 0x80:
                self.counters.refused += 1
                self.refused_by[packet[header + 2]] += 1
                self.last_refusal = packet[header + 2]
            return self._on_ack(c, get_u16(packet + header))
        if first == 0xD0 and length == 2:
            return True
        if first == 0x20 and (length >= header + 3 if self.is_v5 else length == 4) and c.state == GREETED:
            if packet[header + 1]:
                self._refuse(c, packet[header + 1])
            elif c.kind == SUBSCRIBER and not packet[header] & 1:
                c.state = SUBSCRIBING
                self._send_control(c, c.subscribe, c.subscribe_size)
            else:
                self.counters.resumed += packet[header] & 1
                self._on_ready(c)
            return True
        if first == 0x90 and length >= 5 and c.state == SUBSCRIBING:
            if packet[length - 1] >= 0x80:
                self._refuse(c, packet[length - 1])
            else:
                self._on_ready(c)
            return True
        return False

    cdef void _refuse(self, Connection* c, int code) noexcept nogil:
        self.counters.refused += 1
        self.refused_by[code] += 1
        self.last_refusal = code
        self.is_refusing = True
        self._drop(c, 0)

    cdef void _on_ready(self, Connection* c) noexcept nogil:
        c.state = READY
        self.counters.connected += 1
        record(&self.connection, now_ns() - c.opened_at_ns)
        if c.lost_at_ns:
            self.counters.reconnected += 1
            record(&self.reconnection, self.now - c.lost_at_ns)
            c.lost_at_ns = 0
        self.ready += 1
        self.unsettled -= 1
        self.in_progress -= 1

    cdef bint _on_publish(self, Connection* c, const uint8_t* packet, Py_ssize_t length, Py_ssize_t header,
                          int64_t clock) noexcept nogil:
        cdef int qos = packet[0] >> 1 & 3
        cdef Py_ssize_t payload_at = header + 2
        cdef const uint8_t* payload
        cdef uint32_t publisher
        cdef uint64_t sequence
        cdef int64_t stamp
        cdef Connection* from_us
        if c.kind != SUBSCRIBER or c.state < SUBSCRIBING or qos > 1 or payload_at > length:
            return False
        payload_at += get_u16(packet + header)
        if qos:
            payload_at += 2
        if payload_at > length:
            return False
        if qos:
            self.acks[self.acks_size] = 0x40
            self.acks[self.acks_size + 1] = 2
            memcpy(self.acks + self.acks_size + 2, packet + payload_at - 2, 2)
            self.acks_size += 4
            self.counters.deliveries_acknowledged += 1
        if self.is_v5:
            payload_at = past_properties(packet, payload_at, length)
            if payload_at > length:
                return False
        self.counters.delivered += 1
        self.counters.delivered_payload_bytes += length - payload_at
        payload = packet + payload_at
        if length - payload_at < STAMP_BYTES_C or get_u32(payload) != STAMP_MAGIC_C:
            self.counters.delivered_unstamped += 1
            return True
        publisher = get_u32(payload + 4)
        sequence = get_u64(payload + 8)
        stamp = <int64_t>get_u64(payload + 16)
        if stamp >= self.measure_from_ns:
            record(&self.delivery, clock - stamp)
        if self.lead_max and 0 <= <int64_t>publisher - self.number_base < self.publisher_count:
            from_us = &self.connections[self.publishers[publisher - self.number_base]]
            if sequence >= from_us.arrived and sequence < from_us.created:
                from_us.arrived = sequence + 1
                if not from_us.has_moved:
                    from_us.has_moved = 1
                    self.moved[self.moved_count] = self.publishers[publisher - self.number_base]
                    self.moved_count += 1
        if self.topics_per_publisher > 1:
            return self._follow_own_topic(c, publisher, sequence, stamp)
        if publisher >= self.publishers_tracked:
            return True
        if c.expected == NULL:
            if <uint64_t>8 * self.publishers_tracked * self.subscriber_count > <uint64_t>TRACKED_BYTES_LARGEST:
                return True
            c.expected = <uint64_t*>calloc(self.publishers_tracked, 8)
            if c.expected == NULL:
                return False
        self._follow(&c.expected[publisher], sequence, stamp)
        return True

    cdef bint _follow_own_topic(self, Connection* c, uint32_t publisher, uint64_t sequence,
                                int64_t stamp) noexcept nogil:
        if <uint64_t>publisher * self.topics_per_publisher + sequence % self.topics_per_publisher != c.number:
            self.counters.misdelivered += 1
            return True
        if c.expected == NULL:
            c.expected = <uint64_t*>calloc(1, 8)
            if c.expected == NULL:
                return False
        self._follow(c.expected, sequence // self.topics_per_publisher, stamp)
        return True

    cdef void _follow(self, uint64_t* expected, uint64_t sequence, int64_t stamp) noexcept nogil:
        if sequence < expected[0]:
            self.counters.sequence_repeats += 1
            if not self.oldest_repeat_ns or stamp < self.oldest_repeat_ns:
                self.oldest_repeat_ns = stamp
        else:
            self.counters.sequence_gaps += sequence - expected[0]
            expected[0] = sequence + 1


cdef struct SinkConnection:
    uint8_t state              # 0 unused, 1 open
    uint8_t subscriber
    uint8_t events_out
    uint8_t* partial
    uint32_t partial_size
    uint32_t partial_capacity
    uint8_t* pending
    uint32_t pending_size
    uint32_t pending_capacity


cdef class Sink:
    """A server that accepts everything and keeps nothing, for measuring the engine and for tests.

    It answers CONNECT, SUBSCRIBE, PINGREQ and QoS 1 PUBLISH, and discards payloads. With ``relay`` each
    PUBLISH goes to every subscriber as it came, whatever its filter and packet id. Listens on 127.0.0.1.
    ``run`` blocks with the interpreter lock released; ``stop`` comes from another thread.
    """
    cdef readonly int port
    cdef object listener
    cdef int listener_fd
    cdef int epoll
    cdef int wakeup
    cdef bint relay
    cdef SinkConnection* table         # by file descriptor
    cdef int* subscribers
    cdef int subscriber_count
    cdef uint8_t* buffer
    cdef uint8_t* answers
    cdef Py_ssize_t answers_size
    cdef readonly uint64_t connects
    cdef readonly uint64_t messages
    cdef readonly uint64_t protocol_errors
    cdef bint stopping

    def __cinit__(self):
        self.epoll = self.wakeup = -1

    def __init__(self, port=0, *, relay=False):
        if self.epoll >= 0:
            raise RuntimeError("a sink is initialised once")
        self.listener = _socket.create_server(("127.0.0.1", port), backlog=1024)
        self.listener.setblocking(False)
        self.listener_fd = self.listener.fileno()
        self.port = self.listener.getsockname()[1]
        self.relay = relay
        self.table = <SinkConnection*>calloc(SINK_FDS, sizeof(SinkConnection))
        self.subscribers = <int*>calloc(SINK_FDS, sizeof(int))
        self.buffer = <uint8_t*>malloc(PACKET_BYTES_LARGEST + READ_BYTES)
        self.answers = <uint8_t*>malloc(PACKET_BYTES_LARGEST + READ_BYTES)
        if self.table == NULL or self.subscribers == NULL or self.buffer == NULL or self.answers == NULL:
            raise MemoryError
        self.epoll = epoll_create1(EPOLL_CLOEXEC)
        self.wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)
        if self.epoll < 0 or self.wakeup < 0:
            raise OSError(errno, os.strerror(errno))
        watch(self.epoll, EPOLL_CTL_ADD, self.listener_fd, EPOLLIN, TIMER_TOKEN)
        watch(self.epoll, EPOLL_CTL_ADD, self.wakeup, EPOLLIN, WAKE_TOKEN)

    def __dealloc__(self):
        cdef int fd
        if self.table != NULL:
            for fd in range(SINK_FDS):
                if self.table[fd].state:
                    close(fd)
                free(self.table[fd].partial)
                free(self.table[fd].pending)
        free(self.table)
        free(self.subscribers)
        free(self.buffer)
        free(self.answers)
        if self.epoll >= 0:
            close(self.epoll)
        if self.wakeup >= 0:
            close(self.wakeup)

    def run(self):
        """Serves until ``stop``; signals are looked for ten times a second."""
        cdef bint over = False
        while not over:
            with nogil:
                over = self._serve()
            PyErr_CheckSignals()
        cdef int fd
        for fd in range(SINK_FDS):
            if self.table[fd].state:
                self._drop(fd)
        self.listener.close()

    def stop(self):
        """Ends ``run``, which closes every connection."""
        cdef uint64_t one = 1
        self.stopping = True
        write(self.wakeup, &one, 8)

    cdef bint _serve(self) noexcept nogil:
        """True when stopped, False ten times a second."""
        cdef epoll_event[512] events
        cdef int64_t until = now_ns() + 100_000_000
        cdef int got, i, fd
        cdef uint64_t token
        while now_ns() < until:
            got = epoll_wait(self.epoll, events, EVENTS_PER_TURN, 100)
            if self.stopping:
                return True
            for i in range(got):
                token = events[i].data.u64
                if token < SINK_FDS:
                    if self.table[token].state == 0:
                        continue
                    if events[i].events & EPOLLOUT:
                        self._answer(<int>token, NULL, 0)
                    elif events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP):
                        self._read(<int>token)
                elif token == TIMER_TOKEN:
                    fd = accept4(self.listener_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)
                    if fd < 0:
                        continue
                    if fd >= SINK_FDS or watch(self.epoll, EPOLL_CTL_ADD, fd, EPOLLIN, fd) < 0:
                        close(fd)
                        continue
                    self.table[fd].state = 1
                    self.table[fd].subscriber = 0
                    self.table[fd].events_out = 0
                    self.table[fd].partial_size = 0
                    self.table[fd].pending_size = 0
        return False

    cdef void _drop(self, int fd) noexcept nogil:
        cdef int i
        self.table[fd].state = 0
        if self.table[fd].subscriber:
            for i in range(self.subscriber_count):
                if self.subscribers[i] == fd:
                    self.subscriber_count -= 1
                    self.subscribers[i] = self.subscribers[self.subscriber_count]
                    break
        close(fd)

    cdef void _answer(self, int fd, const uint8_t* data, Py_ssize_t size) noexcept nogil:
        """Sends; what the socket does not take is kept, and nothing more is read until it is gone."""
        cdef SinkConnection* c = &self.table[fd]
        cdef Py_ssize_t sent
        if data == NULL:
            data = c.pending
            size = c.pending_size
        sent = send(fd, data, size, MSG_NOSIGNAL)
        if sent < 0:
            if errno != EAGAIN and errno != EINTR:
                self._drop(fd)
                return
            sent = 0
        if not keep(&c.pending, &c.pending_capacity, &c.pending_size, data + sent, size - sent):
            self._drop(fd)
            return
        if c.events_out != (c.pending_size != 0):
            c.events_out = c.pending_size != 0
            watch(self.epoll, EPOLL_CTL_MOD, fd, EPOLLOUT if c.events_out else EPOLLIN, fd)

    cdef void _relay(self, const uint8_t* data, Py_ssize_t size) noexcept nogil:
        """Hands whole packets to every subscriber and waits for slow ones: the sink has no queues."""
        cdef int i = 0, fd
        cdef Py_ssize_t at, sent
        while i < self.subscriber_count:
            fd = self.subscribers[i]
            at = 0
            while at < size and not self.stopping:
                sent = send(fd, data + at, size - at, MSG_NOSIGNAL)
                if sent >= 0:
                    at += sent
                elif errno == EAGAIN:
                    wait_writable(fd, 100)
                elif errno != EINTR:
                    break
            if at < size:
                self._drop(fd)
                continue
            i += 1

    cdef void _read(self, int fd) noexcept nogil:
        cdef SinkConnection* c = &self.table[fd]
        cdef Py_ssize_t held = c.partial_size, got, size, used
        if held:
            memcpy(self.buffer, c.partial, held)
        got = recv(fd, self.buffer + held, READ_BYTES, 0)
        if got <= 0:
            if got == 0 or (errno != EAGAIN and errno != EINTR):
                self._drop(fd)
            return
        size = held + got
        self.answers_size = 0
        used = self._parse(fd, size)
        if c.state == 0:
            return
        if used < 0:
            self.protocol_errors += 1
            self._drop(fd)
            return
        if held or used < size:
            if not keep(&c.partial, &c.partial_capacity, &c.partial_size, self.buffer + used, size - used):
                self._drop(fd)
                return
        if self.answers_size:
            self._answer(fd, self.answers, self.answers_size)

    cdef Py_ssize_t _parse(self, int fd, Py_ssize_t size) noexcept nogil:
        cdef const uint8_t* data = self.buffer
        cdef const uint8_t* packet
        cdef Py_ssize_t at = 0, length, header = 0, id_at, publish_from = -1
        cdef int kind
        while at < size:
            packet = data + at
            length = packet_length(packet, size - at, &header)
            if length < 0:
                return -1
            if length == 0 or length > size - at:
                break
            kind = packet[0] >> 4
            if kind == 3:
                if header + 2 > length:
                    return -1
                if publish_from < 0:
                    publish_from = at
                self.messages += 1
                if packet[0] & 6:
                    id_at = header + 2 + get_u16(packet + header)
                    if id_at + 2 > length:
                        return -1
                    put_u32(self.answers + self.answers_size, 0x40020000 | get_u16(packet + id_at))
                    self.answers_size += 4
            else:
                if publish_from >= 0 and self.relay:
                    self._relay(data + publish_from, at - publish_from)
                publish_from = -1
                if kind == 1:
                    self.connects += 1
                    put_u32(self.answers + self.answers_size, 0x20020000)
                    self.answers_size += 4
                elif kind == 8 and length >= 6:
                    # One filter a SUBSCRIBE; its QoS is granted as asked for.
                    put_u32(self.answers + self.answers_size, <uint32_t>0x90030000 | get_u16(packet + header))
                    self.answers[self.answers_size + 4] = packet[length - 1] & 1
                    self.answers_size += 5
                    if not self.table[fd].subscriber:
                        self.table[fd].subscriber = 1
                        self.subscribers[self.subscriber_count] = fd
                        self.subscriber_count += 1
                elif kind == 12:
                    put_u16(self.answers + self.answers_size, 0xD000)
                    self.answers_size += 2
                elif kind == 14:
                    self._drop(fd)
                    return at
                elif kind != 4:
                    return -1
            at += length
        if publish_from >= 0 and self.relay:
            self._relay(data + publish_from, at - publish_from)
        return at
