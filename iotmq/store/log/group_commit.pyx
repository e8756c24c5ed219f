"""Group commit without the GIL: one fdatasync after another, for as long as appends ask for it.

A flush thread in Python has to get the GIL back after each sync before it can begin the next, and the
owner's thread, busy with the answers of the last commit, gives it up only every 5 ms: the disk idles while
there is something to do. Here the thread takes the next position from a mutex and goes on. Waiting for
what it did is for another thread (`wait_flushed`), which may take its time over the GIL.

Nobody waits for the GIL while holding the mutex.
"""

from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from iotmq.store.log.segment cimport Segment

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_condattr_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, void* attributes)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)
    int pthread_condattr_init(pthread_condattr_t* attributes)
    int pthread_condattr_setclock(pthread_condattr_t* attributes, int clock)
    int pthread_cond_init(pthread_cond_t* condition, pthread_condattr_t* attributes)
    int pthread_cond_signal(pthread_cond_t* condition)
    int pthread_cond_broadcast(pthread_cond_t* condition)
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex)
    int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* deadline)
    int pthread_cond_destroy(pthread_cond_t* condition)

cdef extern from "<unistd.h>" nogil:
    int fdatasync(int descriptor)

cdef enum:
    NS_PER_S = 1000000000

# What `wait` returned for. ASKED: a flush that takes more than a sync of the file it knows.
cdef enum Outcome:
    TIMED_OUT_
    ASKED_
    STOPPED_
    FAILED_

TIMED_OUT = TIMED_OUT_
ASKED = ASKED_
STOPPED = STOPPED_
FAILED = FAILED_


cdef class GroupCommit:
    """Hold the log positions that appends wait for, and the one that is flushed."""

    cdef pthread_mutex_t mutex
    cdef pthread_cond_t asked
    cdef pthread_cond_t done
    cdef int64_t requested_position
    cdef int64_t requested_ms
    cdef int64_t flushed_position
    cdef int64_t flushed_ms
    # The file that may be synced without asking, kept open by the reference; None before the first.
    cdef Segment segment
    cdef int descriptor
    cdef int64_t start_position
    cdef int64_t end_position
    cdef bint is_waiting                     # the flush thread sleeps in `wait`
    cdef bint is_stopping
    cdef int64_t flush_count
    cdef int64_t flush_ns
    cdef readonly int error                  # errno of the sync that failed; 0 before

    def __cinit__(self):
        cdef pthread_condattr_t attributes
        pthread_condattr_init(&attributes)
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC)
        pthread_mutex_init(&self.mutex, NULL)
        pthread_cond_init(&self.asked, &attributes)
        pthread_cond_init(&self.done, &attributes)
        self.descriptor = -1

    def __dealloc__(self):
        pthread_cond_destroy(&self.asked)
        pthread_cond_destroy(&self.done)
        pthread_mutex_destroy(&self.mutex)

    def __init__(self, int64_t flushed_position, int64_t flushed_ms):
        """Everything before `flushed_position` is on the disk; its last record was stored at `flushed_ms`."""
        self.requested_position = self.flushed_position = flushed_position
        self.requested_ms = self.flushed_ms = flushed_ms

    def request(self, int64_t position, int64_t timestamp_ms):
        """Have everything before `position` on the disk soon; `timestamp_ms` is its last record's. Any thread."""
        pthread_mutex_lock(&self.mutex)
        if position > self.requested_position:
            self.requested_position = position
            self.requested_ms = timestamp_ms
        if self.is_waiting:
            self.is_waiting = False
            pthread_cond_signal(&self.asked)
        pthread_mutex_unlock(&self.mutex)

    def flushed(self):
        """(position, store time in ms of the last record before it) of what is on the disk."""
        cdef int64_t position, timestamp_ms
        pthread_mutex_lock(&self.mutex)
        position = self.flushed_position
        timestamp_ms = self.flushed_ms
        pthread_mutex_unlock(&self.mutex)
        return position, timestamp_ms

    def set_flushed(self, int64_t position, int64_t timestamp_ms, Segment segment):
        """A flush by other means ended. What comes next in `segment` may be synced by `wait` itself."""
        pthread_mutex_lock(&self.mutex)
        self.flushed_position = position
        self.flushed_ms = timestamp_ms
        if position > self.requested_position:
            self.requested_position = position
            self.requested_ms = timestamp_ms
        self.descriptor = -1
        if segment is not None and segment.descriptor >= 0 and segment.start_position <= position:
            self.descriptor = segment.descriptor
            self.start_position = segment.start_position
            self.end_position = segment.end_position
        pthread_cond_broadcast(&self.done)
        pthread_mutex_unlock(&self.mutex)
        # Outside the mutex: the last reference may have been the old one's.
        self.segment = segment

    def wait(self, double timeout_s):
        """Sync as asked, in the flush thread, until the time is over or another thread has to act."""
        cdef timespec deadline
        cdef int result
        clock_gettime(CLOCK_MONOTONIC, &deadline)
        deadline.tv_sec += <int64_t> timeout_s
        deadline.tv_nsec += <int64_t> ((timeout_s - <double> <int64_t> timeout_s) * NS_PER_S)
        if deadline.tv_nsec >= NS_PER_S:
            deadline.tv_nsec -= NS_PER_S
            deadline.tv_sec += 1
        with nogil:
            result = self.wait_and_sync(&deadline)
        return result

    def wait_flushed(self, int64_t seen_position):
        """Return the flushed position once it is another than `seen_position`; -1 when the end has come."""
        cdef int64_t position
        with nogil:
            pthread_mutex_lock(&self.mutex)
            while self.flushed_position == seen_position and not self.is_stopping:
                pthread_cond_wait(&self.done, &self.mutex)
            position = -1 if self.is_stopping else self.flushed_position
            pthread_mutex_unlock(&self.mutex)
        return position

    def stop(self):
        """End both waits, for good."""
        pthread_mutex_lock(&self.mutex)
        self.is_stopping = True
        pthread_cond_broadcast(&self.asked)
        pthread_cond_broadcast(&self.done)
        pthread_mutex_unlock(&self.mutex)

    @property
    def flushes(self):
        """Syncs made by `wait`."""
        return self.flush_count

    @property
    def flush_s(self):
        """Time they took."""
        return self.flush_ns / 1e9

    cdef int wait_and_sync(self, const timespec* deadline) noexcept nogil:
        cdef int result = 0
        cdef int descriptor
        cdef int64_t position, timestamp_ms
        cdef timespec began, ended
        pthread_mutex_lock(&self.mutex)
        while True:
            if self.is_stopping:
                result = STOPPED_
                break
            if self.requested_position > self.flushed_position:
                position = self.requested_position
                timestamp_ms = self.requested_ms
                descriptor = self.descriptor
                if descriptor < 0 or self.flushed_position < self.start_position or position > self.end_position:
                    result = ASKED_
                    break
                pthread_mutex_unlock(&self.mutex)
                clock_gettime(CLOCK_MONOTONIC, &began)
                result = fdatasync(descriptor)
                while result < 0 and errno == EINTR:
                    result = fdatasync(descriptor)
                if result < 0:
                    self.error = errno
                    return FAILED_
                clock_gettime(CLOCK_MONOTONIC, &ended)
                pthread_mutex_lock(&self.mutex)
                self.flush_count += 1
                self.flush_ns += (ended.tv_sec - began.tv_sec) * NS_PER_S + ended.tv_nsec - began.tv_nsec
                self.flushed_position = position
                self.flushed_ms = timestamp_ms
                pthread_cond_broadcast(&self.done)
                continue
            self.is_waiting = True
            result = pthread_cond_timedwait(&self.asked, &self.mutex, deadline)
            self.is_waiting = False
            if result != 0 and self.requested_position <= self.flushed_position and not self.is_stopping:
                result = TIMED_OUT_
                break
        pthread_mutex_unlock(&self.mutex)
        return result
