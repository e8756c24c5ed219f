# Finding a record whose queue entry is damaged.

from libc.stdint cimport int64_t, uint8_t

from iotmq.message.records.fields cimport RecordParts
from iotmq.store.log.commit_log cimport CommitLog
from iotmq.store.log.queue cimport Queue

# Whether the record of `offset` stands in the log where its neighbours' entries say it must; then `out` has its parts.
cdef bint find_offset(CommitLog log, Queue queue, int64_t offset, RecordParts* out) except -1
