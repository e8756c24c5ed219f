"""One file of a log: fixed size, mapped whole, disk blocks allocated ahead of whoever writes.

A store into a page without a disk block kills the process when the disk is full (SIGBUS), and on some
file systems so does a load. Hence the one rule of this module: nobody touches bytes at or past
`allocated_bytes`, which grows only by `allocate`, where a full disk is an OSError.
"""

import os

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from libc.errno cimport EINTR, ENXIO, errno
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport strerror

from iotmq.errors import StoreCorruptError

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t size, int protection, int flags, int descriptor, int64_t offset)
    int munmap(void* address, size_t size)
    int madvise(void* address, size_t size, int advice)
    int PROT_READ
    int PROT_WRITE
    int MAP_SHARED
    int MADV_DONTNEED
    int MADV_NORMAL
    int MADV_RANDOM
    int MADV_WILLNEED
    void* MAP_FAILED

cdef extern from "<fcntl.h>" nogil:
    int posix_fallocate(int descriptor, int64_t offset, int64_t size)

cdef extern from "<unistd.h>" nogil:
    int64_t lseek(int descriptor, int64_t offset, int whence)
    int64_t pwrite(int descriptor, const void* buffer, size_t size, int64_t offset)
    int close(int descriptor)
    # Defined by <unistd.h> under _GNU_SOURCE, which Python.h sets.
    int SEEK_DATA
    int SEEK_HOLE

cdef enum:
    PAGE_BYTES = 4096
    ZEROS_BYTES = 131072

cdef uint8_t[ZEROS_BYTES] _zeros

NAME_DIGITS = 20
# Ends of files, and of records that begin in them, can be counted from here.
POSITION_MAX = 1 << 62


def segment_name(int64_t start_position):
    """Return the file name of the segment that starts there: 20 digits, so that names sort like positions."""
    return f"{start_position:0{NAME_DIGITS}d}"


cdef class Segment:
    """A mapped file. Exports itself as a read-only buffer; a view keeps the mapping alive.

    `keep_descriptor` holds the file open for `sync` and `allocate`, which otherwise open it by its path
    each time: thousands of queue files must not use up the process's descriptors.
    """

    def __cinit__(self):
        self.data = NULL
        self.descriptor = -1

    def __init__(self, str path, int64_t start_position, int64_t size_bytes, *, bint keep_descriptor=False,
                 bint is_small=False):
        """Map the file at `path`, made with no blocks when missing and grown to `size_bytes` when shorter.

        What the file already holds counts as allocated, up to the end of its last block of data; holes
        before that are filled. Raises OSError (a full disk when holes need filling included).

        `is_small` is for one file of very many with little in it: `page_singly` for all of it.
        """
        cdef void* data
        cdef int descriptor
        if size_bytes <= 0 or start_position < 0:
            raise ValueError(f"segment of {size_bytes} bytes at {start_position}")
        self.path = path
        self.start_position = start_position
        self.size_bytes = size_bytes
        self.end_position = start_position + size_bytes
        self.is_descriptor_kept = keep_descriptor
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.descriptor = descriptor
        if os.fstat(descriptor).st_size < size_bytes:
            os.ftruncate(descriptor, size_bytes)
        data = mmap(NULL, <size_t> size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)
        if data == MAP_FAILED:
            raise OSError(errno, strerror(errno).decode(), path)
        self.data = <uint8_t*> data
        if is_small:
            self.page_singly(0)
        self.allocated_bytes = self.claim_data(descriptor)
        self.done_with(descriptor)

    def __dealloc__(self):
        # The last reference to a deleted file: giving back a gigabyte takes its time.
        with nogil:
            if self.data != NULL:
                munmap(self.data, <size_t> self.size_bytes)
            if self.descriptor >= 0:
                close(self.descriptor)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        if flags & PyBUF_WRITABLE == PyBUF_WRITABLE:
            raise BufferError("segments are written only by their log")
        PyBuffer_FillInfo(buffer, self, self.data, <Py_ssize_t> self.size_bytes, 1, flags)

    def __repr__(self):
        return f"<Segment {self.path} {self.start_position}..{self.end_position}>"

    cpdef int allocate(self, int64_t end_bytes) except -1:
        """Give disk blocks to the first `end_bytes` of the file; raises OSError (ENOSPC, EDQUOT, EROFS, EIO)."""
        cdef int problem = EINTR
        cdef int descriptor
        cdef int64_t allocated = self.allocated_bytes
        if end_bytes > self.size_bytes:
            raise ValueError(f"{end_bytes} bytes of a segment of {self.size_bytes}")
        if end_bytes <= allocated:
            return 0
        descriptor = self.open_descriptor()
        with nogil:
            while problem == EINTR:
                problem = posix_fallocate(descriptor, allocated, end_bytes - allocated)
        self.done_with(descriptor)
        if problem:
            raise OSError(problem, strerror(problem).decode(), self.path)
        self.allocated_bytes = end_bytes
        return 0

    cdef int write_zeros(self, int64_t start_bytes, int64_t end_bytes) except -1:
        """Have the whole pages of [start_bytes, end_bytes) in memory, zeroed, dirty, and in large pieces.

        For the writer, of bytes it has not come to yet: half of what the page faults would cost. When it fails
        those come.
        """
        cdef int descriptor
        cdef int64_t at = whole_steps(start_bytes, PAGE_BYTES)
        cdef int64_t end = min(end_bytes, self.allocated_bytes)
        cdef int64_t written
        try:
            descriptor = self.open_descriptor()
        except OSError:
            return 0
        while at < end:
            written = pwrite(descriptor, _zeros, <size_t> min(end - at, <int64_t> ZEROS_BYTES), at)
            if written <= 0:
                break
            at += written
        self.done_with(descriptor)
        return 0

    cdef void bring_in(self, int64_t start_bytes, int64_t end_bytes) noexcept:
        """As `write_zeros`, not dirty and page by page: waits for nobody who has the file in hand."""
        cdef int64_t at = start_bytes & ~<int64_t> (PAGE_BYTES - 1)
        cdef int64_t end = min(end_bytes, self.allocated_bytes)
        if at < end:
            madvise(self.data + at, <size_t> (end - at), MADV_WILLNEED)

    def page_singly(self, int64_t start_bytes):
        """Have the kernel bring in one page, from `start_bytes` on, when one is touched.

        Otherwise it reads and zeroes all around it that its read-ahead allows. Where that is 8 MiB the thread
        that wrote the first byte of a page stood still for 2 ms, and for 25 where a hypervisor gave the memory.
        """
        cdef int64_t start = start_bytes & ~<int64_t> (PAGE_BYTES - 1)
        if start < self.size_bytes:
            self.is_paged_singly = True
            madvise(self.data + start, <size_t> (self.size_bytes - start), MADV_RANDOM)

    def page_in_runs(self):
        """Leave the file to the kernel's own read-ahead: it is only read from now on."""
        self.is_paged_singly = False
        madvise(self.data, <size_t> self.size_bytes, MADV_NORMAL)

    def forget_pages(self):
        """Take its pages out of this process; they stay in the page cache, and come back when touched."""
        with nogil:
            madvise(self.data, <size_t> self.size_bytes, MADV_DONTNEED)

    cpdef object view(self, int64_t start_position, int64_t end_position):
        """Read-only view of [start_position, end_position), which must be inside what is allocated."""
        if not (
            self.start_position <= start_position <= end_position <= self.start_position + self.allocated_bytes
        ):
            raise ValueError(f"no bytes {start_position}..{end_position} in {self!r}")
        return memoryview(self)[start_position - self.start_position:end_position - self.start_position]

    def sync(self, sync_file):
        """Call `sync_file` (os.fdatasync, or a test's stand-in) on the file; its OSError passes through."""
        cdef int descriptor = self.open_descriptor()
        try:
            sync_file(descriptor)
        finally:
            self.done_with(descriptor)

    def truncate(self, int64_t start_position):
        """Make everything from `start_position` on zero and give its blocks back."""
        cdef int64_t kept_bytes = start_position - self.start_position
        cdef int descriptor
        if not 0 <= kept_bytes <= self.size_bytes:
            raise ValueError(f"position {start_position} is not in {self!r}")
        descriptor = self.open_descriptor()
        try:
            # Nobody may touch the mapping past kept_bytes in between; allocated_bytes says so first.
            self.allocated_bytes = min(self.allocated_bytes, kept_bytes)
            os.ftruncate(descriptor, kept_bytes)
            os.ftruncate(descriptor, self.size_bytes)
        finally:
            self.done_with(descriptor)

    def release_descriptor(self):
        """Close the file if it is held open; later calls open it by its path. Only for whoever calls `sync`."""
        cdef int descriptor = self.descriptor
        self.is_descriptor_kept = False
        self.descriptor = -1
        if descriptor >= 0:
            os.close(descriptor)

    cdef int open_descriptor(self) except -1:
        if self.descriptor >= 0:
            return self.descriptor
        return os.open(self.path, os.O_RDWR | os.O_CLOEXEC)

    cdef int done_with(self, int descriptor) except -1:
        if self.is_descriptor_kept:
            self.descriptor = descriptor
        else:
            self.descriptor = -1
            os.close(descriptor)
        return 0

    cdef int64_t claim_data(self, int descriptor) except -1:
        """End of the last data in the file, after filling the holes before it."""
        cdef int64_t data_end = 0
        cdef int64_t at = 0
        cdef bint has_holes = False
        cdef int problem
        while True:
            at = lseek(descriptor, data_end, SEEK_DATA)
            if at < 0:
                if errno == ENXIO:
                    break
                raise OSError(errno, strerror(errno).decode(), self.path)
            has_holes |= at > data_end
            data_end = lseek(descriptor, at, SEEK_HOLE)
            if data_end < 0:
                raise OSError(errno, strerror(errno).decode(), self.path)
            if data_end >= self.size_bytes:
                data_end = self.size_bytes
                break
        if has_holes:
            problem = posix_fallocate(descriptor, 0, data_end)
            if problem:
                raise OSError(problem, strerror(problem).decode(), self.path)
        return data_end


def open_segments(str directory, int64_t size_bytes, *, bint keep_descriptor=False, bint is_small=False):
    """Map the segments found in `directory`, lowest first; other files are left alone.

    A file shorter than `size_bytes` is grown to it, or to the start of the next; a longer one keeps its
    size, so that a change of the setting does no harm. Raises StoreCorruptError when two overlap, or one begins
    where no position can be.
    """
    cdef list starts = sorted(
        int(name)
        for name in os.listdir(directory)
        if len(name) == NAME_DIGITS and name.isascii() and name.isdecimal()
    )
    cdef list segments = []
    if starts and starts[-1] > POSITION_MAX:
        raise StoreCorruptError(f"{directory}: a file of the name {starts[-1]:0{NAME_DIGITS}d} begins past all positions")
    for number, start_position in enumerate(starts):
        path = os.path.join(directory, segment_name(start_position))
        size = max(size_bytes, os.stat(path).st_size)
        if number + 1 < len(starts):
            room = starts[number + 1] - start_position
            if os.stat(path).st_size > room:
                raise StoreCorruptError(f"{path} reaches into the next file, which starts at {starts[number + 1]}")
            size = min(size, room)
        segments.append(Segment(path, start_position, size, keep_descriptor=keep_descriptor, is_small=is_small))
    return segments


def write_again(Segment segment not None, int64_t start_bytes, int64_t end_bytes):
    """Have the pages of [start_bytes, end_bytes), as far as they have blocks, written by the next sync.

    After a sync that failed the kernel takes what it could not write for written, and no later one would.
    """
    cdef int64_t at = start_bytes & ~<int64_t> (PAGE_BYTES - 1)
    cdef volatile uint8_t* data = <volatile uint8_t*> segment.data
    end_bytes = min(end_bytes, segment.allocated_bytes)
    with nogil:
        while at < end_bytes:
            data[at] = data[at]
            at += PAGE_BYTES
