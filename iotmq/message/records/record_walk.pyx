"""Going through a stretch of a log, record by record; the loop itself is in the .pxd, to be compiled in.

Operations: everything derived from the log looks at every record of it once. Goal: nothing per record but
taking it apart. Plan: a struct on the caller's stack; one Python buffer per stretch.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t

from iotmq.message.records.fields cimport FORMAT_OK

from iotmq.errors import StoreCorruptError
from iotmq.message.records.record import problem_text


cdef int begin_walk(RecordWalk* walk, view) except -1:
    PyObject_GetBuffer(view, &walk.view, PyBUF_SIMPLE)
    walk.at = <const uint8_t*> walk.view.buf
    walk.end = walk.at + walk.view.len
    walk.problem = FORMAT_OK
    return 0


cdef int end_walk(RecordWalk* walk) except -1:
    PyBuffer_Release(&walk.view)
    return 0


cdef int check_walk(const RecordWalk* walk) except -1:
    if walk.problem != FORMAT_OK:
        raise StoreCorruptError(f"not a record where the log has one: {problem_text(walk.problem)}")
    return 0
