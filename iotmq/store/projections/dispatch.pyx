"""Dispatch: what was appended goes to the queues and the projections, and then readers may see it.

What the hot path does: per batch one call, which goes to queues and key index without an object made. The
other projections get a view of the same range, made when there are any.
"""

import logging

from libc.stdint cimport int64_t, uint8_t

from iotmq.store.log.commit_log cimport CommitLog
from iotmq.store.log.segment cimport Segment
from iotmq.store.projections.key_index.key_index cimport KeyIndex
from iotmq.store.queues.consume_queue cimport ConsumeQueue

from iotmq.store.projections.catch_up import CATCH_UP_BYTES, CatchUpReport, catch_up

cdef int64_t PIECE_BYTES_MAX = CATCH_UP_BYTES

logger = logging.getLogger("iotmq.store")


cdef class Dispatch:
    """Keeps queues and `projections` level with the log. For the store's thread alone.

    `confirmed_position`: below it everything is in its queue, and readers may see it. `failed_count`
    projections stay behind, because their last `apply` failed.
    """

    cdef readonly int64_t confirmed_position
    cdef readonly list projections
    cdef CommitLog log
    cdef ConsumeQueue queues
    cdef object verify                       # proves the log from a position on, up to the one it returns
    cdef set failed                          # the projections that stay behind, by identity

    def __init__(self, CommitLog log not None, ConsumeQueue queues not None, list projections not None,
                 int64_t confirmed_position, verify):
        """`verify` is asked where the log has not been checked yet, and returns up to where it may be given."""
        self.verify = verify
        self.log = log
        self.queues = queues
        self.projections = projections
        self.confirmed_position = confirmed_position
        self.failed = set()

    @property
    def failed_count(self):
        return len(self.failed)

    def start_at(self, int64_t position):
        """An empty log begins at `position`."""
        self.confirmed_position = position

    cpdef int run(self, int64_t end_position, progress=None) except -1:
        """Give queues and projections everything up to `end_position`, then let readers see it.

        A projection that fails fails nobody else: it stays behind and is tried again. Raises what the
        queues raise: StoreCorruptError, OSError.
        """
        cdef int64_t position = self.queues.applied_position
        cdef int64_t start_position, next_position, limit_position
        cdef Segment segment = None
        cdef const uint8_t* at
        while position < end_position:
            limit_position = end_position
            if position < self.log.checked_position:
                limit_position = min(end_position, <int64_t> self.verify(position))
            self.log.find_records(position, limit_position, PIECE_BYTES_MAX, &start_position, &next_position)
            if start_position < next_position:
                segment = self.log.segment_at(start_position)
                at = segment.data + (start_position - segment.start_position)
                self.queues.apply_bytes(at, at + (next_position - start_position))
            self.queues.applied_position = next_position
            if self.projections:
                self.apply_all(segment, position, start_position, next_position, end_position, progress)
            position = next_position
            if progress is not None:
                progress(self.queues.name, position, end_position)
        for projection in self.projections:
            if projection.applied_position < end_position:
                self.keep_up(projection, end_position, progress)
        self.confirmed_position = end_position
        return 0

    cdef int apply_all(self, Segment segment, int64_t position, int64_t start_position, int64_t next_position,
                       int64_t end_position, progress) except -1:
        """Give the piece, while it is warm, to the projections that are level with the queues."""
        cdef const uint8_t* at
        view = None
        for projection in self.projections:
            if type(projection) is KeyIndex:
                if (<KeyIndex> projection).applied_position != position:
                    continue
                try:
                    at = NULL
                    if start_position < next_position:
                        at = segment.data + (start_position - segment.start_position)
                    (<KeyIndex> projection).apply_range(at, start_position, next_position)
                except Exception:
                    self.note_failure(projection)
            elif projection.applied_position == position:
                try:
                    if view is None:
                        view = self.log.view(start_position, next_position)
                    projection.apply(view, start_position, next_position)
                except Exception:
                    self.note_failure(projection)
            else:
                continue
            if progress is not None:
                progress(projection.name, projection.applied_position, end_position)
        return 0

    cdef int keep_up(self, projection, int64_t end_position, progress) except -1:
        start_position = max(projection.applied_position, self.log.min_position)
        report = CatchUpReport(projection.name, start_position, end_position, progress)
        try:
            catch_up(self.log, projection, end_position, verify=self.verify, progress=report)
            self.failed.discard(id(projection))
        except Exception:
            self.note_failure(projection)
        return 0

    cdef int note_failure(self, projection) except -1:
        """In an `except` block: says it once."""
        if id(projection) not in self.failed:
            self.failed.add(id(projection))
            logger.exception("projection %s stopped at %d", projection.name, projection.applied_position)
        return 0
