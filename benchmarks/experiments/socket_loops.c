/* A server that only acknowledges MQTT 3.1.1, with epoll or with io_uring: `socket_loops MODE CORE`, MODE one of
 * epoll, uring. Prints its port; ends when its standard input does, and prints system calls and microseconds then.
 * For socket_loops.py, which says what is compared. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { CONNECTIONS = 4096, INPUT = 262144, OUTPUT = 65536, CARRIED = 4096, BUFFERS = 256, BUFFER = 16384, ENTRIES = 1024 };

struct connection {
    int is_open, is_dirty, is_sending;
    size_t carried, out, sending;
    uint8_t carry[CARRIED];
    uint8_t output[2][OUTPUT];      /* what fills, and what is on its way */
    int side;
};

static struct connection *connections[CONNECTIONS];
static int dirty[CONNECTIONS], dirty_count;
static long calls, messages;

static void fail(const char *what) { perror(what); exit(1); }

static void answer(int fd, const void *data, size_t size) {
    struct connection *c = connections[fd];
    if (c->out + size > OUTPUT) { fprintf(stderr, "output is full\n"); exit(1); }
    memcpy(c->output[c->side] + c->out, data, size);
    c->out += size;
    if (!c->is_dirty) { c->is_dirty = 1; dirty[dirty_count++] = fd; }
}

/* Handles whole packets; returns the bytes taken. */
static size_t packets(int fd, const uint8_t *data, size_t size) {
    size_t at = 0;
    while (size - at >= 2) {
        size_t length = 0, head = 1; int shift = 0;
        do {
            if (at + head >= size) return at;
            length |= (size_t)(data[at + head] & 127) << shift;
            shift += 7;
        } while (data[at + head++] & 128);
        if (at + head + length > size) return at;
        const uint8_t *body = data + at + head;
        switch (data[at] >> 4) {
        case 1: answer(fd, "\x20\x02\0\0", 4); break;
        case 3:
            messages++;
            if (data[at] & 6) {
                const uint8_t *id = body + 2 + (body[0] << 8 | body[1]);
                uint8_t ack[4] = {0x40, 2, id[0], id[1]};
                answer(fd, ack, 4);
            }
            break;
        case 12: answer(fd, "\xd0\0", 2); break;
        }
        at += head + length;
    }
    return at;
}

static void feed(int fd, uint8_t *data, size_t size) {
    struct connection *c = connections[fd];
    size_t taken;
    while (c->carried && size) {
        /* A packet that was cut: byte by byte would do, a piece is faster. */
        size_t piece = size < CARRIED - c->carried ? size : CARRIED - c->carried;
        size_t before = c->carried;
        memcpy(c->carry + before, data, piece);
        taken = packets(fd, c->carry, before + piece);
        if (!taken) { c->carried += piece; if (c->carried == CARRIED) { fprintf(stderr, "packet too large\n"); exit(1); } return; }
        c->carried = 0;
        data += taken - before;
        size -= taken - before;
        break;
    }
    taken = packets(fd, data, size);
    if (size > taken) { memcpy(c->carry, data + taken, size - taken); c->carried = size - taken; }
}

static void opened(int fd) {
    int one = 1;
    if (fd >= CONNECTIONS) { fprintf(stderr, "too many\n"); exit(1); }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!connections[fd]) connections[fd] = malloc(sizeof(struct connection));
    memset(connections[fd], 0, offsetof(struct connection, carry));
    connections[fd]->is_open = 1;
    connections[fd]->side = 0;
}

static int listening(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(fd, (void *)&address, size) || listen(fd, 1024) || getsockname(fd, (void *)&address, &size)) fail("listen");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return fd;
}

static void told(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("%ld %ld %.6f %.6f\n", messages, calls, used.ru_utime.tv_sec + used.ru_utime.tv_usec / 1e6,
           used.ru_stime.tv_sec + used.ru_stime.tv_usec / 1e6);
    exit(0);
}

static void by_epoll(int listener) {
    static uint8_t input[INPUT];
    static struct epoll_event events[1024];
    int poll = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN, .data.fd = listener};
    fcntl(listener, F_SETFL, O_NONBLOCK);
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &wanted);
    wanted.data.fd = 0;
    epoll_ctl(poll, EPOLL_CTL_ADD, 0, &wanted);
    for (;;) {
        int count = epoll_wait(poll, events, 1024, -1);
        calls++;
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == 0) told();
            if (fd == listener) {
                int new = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
                if (new < 0) continue;
                opened(new);
                wanted.data.fd = new;
                epoll_ctl(poll, EPOLL_CTL_ADD, new, &wanted);
                continue;
            }
            ssize_t size = recv(fd, input, INPUT, 0);
            calls++;
            if (size <= 0) { if (size < 0 && errno == EAGAIN) continue; close(fd); connections[fd]->is_open = 0; continue; }
            feed(fd, input, size);
        }
        for (int i = 0; i < dirty_count; i++) {
            struct connection *c = connections[dirty[i]];
            c->is_dirty = 0;
            if (!c->is_open) continue;
            calls++;
            if (send(dirty[i], c->output[0], c->out, MSG_NOSIGNAL) != (ssize_t)c->out) { close(dirty[i]); c->is_open = 0; }
            c->out = 0;
        }
        dirty_count = 0;
    }
}

/* io_uring without a library. */
static struct { int fd; unsigned *sq_head, *sq_tail, sq_mask, *cq_head, *cq_tail, cq_mask, pending; struct io_uring_sqe *sqes; struct io_uring_cqe *cqes; } ring;

static int enter(unsigned wanted) {
    unsigned submitted = ring.pending;
    ring.pending = 0;
    calls++;
    return syscall(SYS_io_uring_enter, ring.fd, submitted, wanted, IORING_ENTER_GETEVENTS, NULL, 0);
}

static struct io_uring_sqe *entry(int opcode, int fd, uint64_t data) {
    if (ring.pending == ENTRIES) enter(0);
    unsigned tail = *ring.sq_tail;
    struct io_uring_sqe *sqe = &ring.sqes[tail & ring.sq_mask];
    memset(sqe, 0, sizeof *sqe);
    sqe->opcode = opcode;
    sqe->fd = fd;
    sqe->user_data = data << 32 | (uint32_t)fd;
    __atomic_store_n(ring.sq_tail, tail + 1, __ATOMIC_RELEASE);
    ring.pending++;
    return sqe;
}

enum { ACCEPT = 1, RECEIVE, SEND, INPUT_ENDS };

static void receive(int fd) {
    struct io_uring_sqe *sqe = entry(IORING_OP_RECV, fd, RECEIVE);
    sqe->flags = IOSQE_BUFFER_SELECT;
    sqe->ioprio = IORING_RECV_MULTISHOT;
}

static void by_uring(int listener) {
    struct io_uring_params p = {.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE, .cq_entries = 8192};
    ring.fd = syscall(SYS_io_uring_setup, ENTRIES, &p);
    if (ring.fd < 0) fail("io_uring_setup");
    size_t size = p.sq_off.array + p.sq_entries * 4 > p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe) ? p.sq_off.array + p.sq_entries * 4 : p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    uint8_t *rings = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQ_RING);
    ring.sqes = mmap(NULL, p.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQES);
    if (rings == MAP_FAILED || ring.sqes == MAP_FAILED) fail("mmap");
    ring.sq_head = (void *)(rings + p.sq_off.head), ring.sq_tail = (void *)(rings + p.sq_off.tail);
    ring.cq_head = (void *)(rings + p.cq_off.head), ring.cq_tail = (void *)(rings + p.cq_off.tail);
    ring.sq_mask = *(unsigned *)(rings + p.sq_off.ring_mask), ring.cq_mask = *(unsigned *)(rings + p.cq_off.ring_mask);
    ring.cqes = (void *)(rings + p.cq_off.cqes);
    for (unsigned i = 0; i < p.sq_entries; i++) ((unsigned *)(rings + p.sq_off.array))[i] = i;
    struct io_uring_buf_ring *buffers = mmap(NULL, BUFFERS * sizeof(struct io_uring_buf), PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE | MAP_POPULATE, -1, 0);
    uint8_t *memory = mmap(NULL, BUFFERS * BUFFER, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE | MAP_POPULATE, -1, 0);
    struct io_uring_buf_reg reg = {.ring_addr = (uint64_t)(uintptr_t)buffers, .ring_entries = BUFFERS, .bgid = 0};
    if (syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_PBUF_RING, &reg, 1)) fail("buffers");
    uint16_t tail = 0;
    for (int i = 0; i < BUFFERS; i++) {
        struct io_uring_buf *b = &buffers->bufs[tail++ & (BUFFERS - 1)];
        b->addr = (uint64_t)(uintptr_t)(memory + i * BUFFER), b->len = BUFFER, b->bid = i;
    }
    __atomic_store_n(&buffers->tail, tail, __ATOMIC_RELEASE);
    entry(IORING_OP_ACCEPT, listener, ACCEPT)->ioprio = IORING_ACCEPT_MULTISHOT;
    entry(IORING_OP_POLL_ADD, 0, INPUT_ENDS)->poll32_events = 1;
    for (;;) {
        enter(1);
        unsigned head = *ring.cq_head;
        while (head != __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE)) {
            struct io_uring_cqe *cqe = &ring.cqes[head++ & ring.cq_mask];
            int fd = (uint32_t)cqe->user_data;
            switch (cqe->user_data >> 32) {
            case INPUT_ENDS: told(); break;
            case ACCEPT:
                if (cqe->res >= 0) { opened(cqe->res); receive(cqe->res); }
                if (!(cqe->flags & IORING_CQE_F_MORE)) entry(IORING_OP_ACCEPT, listener, ACCEPT)->ioprio = IORING_ACCEPT_MULTISHOT;
                break;
            case SEND:
                connections[fd]->is_sending = 0;
                if (cqe->res != (int)connections[fd]->sending && connections[fd]->is_open) { close(fd); connections[fd]->is_open = 0; }
                break;
            case RECEIVE:
                if (cqe->flags & IORING_CQE_F_BUFFER) {
                    int id = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
                    if (cqe->res > 0) feed(fd, memory + id * BUFFER, cqe->res);
                    struct io_uring_buf *b = &buffers->bufs[tail++ & (BUFFERS - 1)];
                    b->addr = (uint64_t)(uintptr_t)(memory + id * BUFFER), b->len = BUFFER, b->bid = id;
                    __atomic_store_n(&buffers->tail, tail, __ATOMIC_RELEASE);
                }
                if (cqe->res <= 0 && cqe->res != -ENOBUFS) { if (connections[fd]->is_open) { close(fd); connections[fd]->is_open = 0; } }
                else if (!(cqe->flags & IORING_CQE_F_MORE)) receive(fd);
                break;
            }
        }
        __atomic_store_n(ring.cq_head, head, __ATOMIC_RELEASE);
        int left = 0;
        for (int i = 0; i < dirty_count; i++) {
            struct connection *c = connections[dirty[i]];
            if (!c->is_open) { c->is_dirty = 0; continue; }
            if (c->is_sending) { dirty[left++] = dirty[i]; continue; }
            struct io_uring_sqe *sqe = entry(IORING_OP_SEND, dirty[i], SEND);
            sqe->addr = (uint64_t)(uintptr_t)c->output[c->side];
            sqe->len = c->sending = c->out;
            sqe->msg_flags = MSG_WAITALL | MSG_NOSIGNAL;
            c->is_sending = 1, c->is_dirty = 0, c->out = 0, c->side ^= 1;
        }
        dirty_count = left;
    }
}

int main(int argc, char **argv) {
    cpu_set_t set;
    if (argc != 3) return 2;
    CPU_ZERO(&set);
    CPU_SET(atoi(argv[2]), &set);
    sched_setaffinity(0, sizeof set, &set);
    if (!strcmp(argv[1], "epoll")) by_epoll(listening());
    else if (!strcmp(argv[1], "uring")) by_uring(listening());
    return 2;
}
