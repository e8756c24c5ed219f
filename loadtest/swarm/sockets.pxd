# Sockets, epoll and clocks of Linux, as the load engine calls them: no Python object, no exception.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

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

    static inline int64_t swarm_wall_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
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
    int bit_count "__builtin_popcountll"(uint64_t v) noexcept
    int64_t now_ns "swarm_now_ns"() noexcept
    int64_t wall_ns "swarm_wall_ns"() noexcept
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
    void* memmem(const void* where, size_t where_size, const void* what, size_t what_size)
    const int EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CLOEXEC
    const int EFD_NONBLOCK, EFD_CLOEXEC, TFD_NONBLOCK, TFD_CLOEXEC, CLOCK_MONOTONIC
    const int MSG_NOSIGNAL, SOCK_NONBLOCK, SOCK_CLOEXEC
