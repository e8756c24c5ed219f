"""Pull requests (code 11) as clients usually write them, read from received bytes into one object each.

What is unusual or wrong is left to the general decoder, as in `send_frames.pyx`, and what is read means the
same there; `tests/property/test_pull_path.py` compares the two.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t

from iotmq.remoting.frames.frame_header cimport Head, Text, is_text, read_decimal, read_head

cdef enum:
    PULL = 11
    IS_RESPONSE = 1
    QUEUE_ID = 4
    OFFSET = 5
    RECORDS_MAX = 6
    SYS_FLAG = 7
    COMMIT_OFFSET = 8
    SUSPEND = 9
    VERSION = 10
    BYTES_MAX = 11
    UNKNOWN = 12
    # All but the subscription's texts and the bytes.
    REQUIRED = 0x7F3

cdef int64_t INT32_MIN = -(2**31)
cdef int64_t INT32_MAX = 2**31 - 1


cdef class PullFrame:
    """One pull. Looks to a connection like a run of one."""

    @property
    def count(self):
        return 1

    def start_of(self, int number):
        """Return where its frame begins in `data`."""
        return self.start

    def facts(self):
        """Return the fields that were read, for tests."""
        cdef int number
        texts = [
            self.text[number][:self.text_size[number]].decode() if self.fields & 1 << number else None
            for number in range(TEXTS)
        ]
        return {
            "opaque": self.opaque,
            "flag": self.flag,
            "is_binary": bool(self.is_binary),
            "group": texts[GROUP],
            "topic": texts[TOPIC],
            "subscription": texts[SUBSCRIPTION],
            "expression_type": texts[EXPRESSION_TYPE],
            "queue_id": self.queue_id,
            "offset": self.offset,
            "records_max": self.records_max,
            "sys_flag": self.sys_flag,
            "commit_offset": self.commit_offset,
            "suspend_ms": self.suspend_ms,
            "subscription_version": self.subscription_version,
            "bytes_max": self.bytes_max,
        }


def read_pull(bytes data not None, Py_ssize_t at):
    """Return the pull whose frame begins at `at`; None when there is none, or not a whole and usual one."""
    cdef const uint8_t* start = <const uint8_t*> PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data)
    cdef Head head
    cdef PullFrame frame
    if at < 0:
        raise ValueError("bytes before the first")
    # Most that is no pull is seen to be none from its first field, but that takes an object to read into.
    if end - at < 32:
        return None
    frame = PullFrame.__new__(PullFrame)
    if not read_head(start, at, end, &head, note_field, <void*> frame):
        return None
    if frame.fields & REQUIRED != REQUIRED or head.flag & IS_RESPONSE:
        return None
    frame.data = data
    frame.start = at
    frame.end = head.end
    frame.opaque = head.opaque
    frame.flag = head.flag
    frame.is_binary = head.is_binary
    return frame


cdef bint note_field(void* context, const Head* head, const Text* name, const Text* value) except -1:
    cdef PullFrame frame = <PullFrame> context
    cdef int field
    cdef int64_t number = 0
    if head.code != PULL or not value.is_plain:
        return False
    field = field_of(name)
    if field == UNKNOWN:
        # What readers with offsets of their own ask for.
        return not (is_text(name, b"tellGaps", 8) or is_text(name, b"generation", 10))
    if frame.fields & 1 << field:
        return False
    frame.fields |= 1 << field
    if field < TEXTS:
        frame.text[field] = value.at
        frame.text_size[field] = value.size
        return True
    if not read_decimal(value, &number):
        return False
    if field == OFFSET:
        frame.offset = number
    elif field == COMMIT_OFFSET:
        frame.commit_offset = number
    elif field == SUSPEND:
        frame.suspend_ms = number
    elif field == VERSION:
        frame.subscription_version = number
    elif not INT32_MIN <= number <= INT32_MAX:
        return False
    elif field == QUEUE_ID:
        frame.queue_id = <int32_t> number
    elif field == SYS_FLAG:
        frame.sys_flag = <int32_t> number
        return number >= 0
    elif field == RECORDS_MAX:
        frame.records_max = <int32_t> number
        return number >= 1
    else:
        frame.bytes_max = <int32_t> number
        return number >= 1
    return True


cdef int field_of(const Text* name) noexcept:
    if is_text(name, b"consumerGroup", 13):
        return GROUP
    if is_text(name, b"topic", 5):
        return TOPIC
    if is_text(name, b"subscription", 12):
        return SUBSCRIPTION
    if is_text(name, b"expressionType", 14):
        return EXPRESSION_TYPE
    if is_text(name, b"queueId", 7):
        return QUEUE_ID
    if is_text(name, b"queueOffset", 11):
        return OFFSET
    if is_text(name, b"maxMsgNums", 10):
        return RECORDS_MAX
    if is_text(name, b"sysFlag", 7):
        return SYS_FLAG
    if is_text(name, b"commitOffset", 12):
        return COMMIT_OFFSET
    if is_text(name, b"suspendTimeoutMillis", 20):
        return SUSPEND
    if is_text(name, b"subVersion", 10):
        return VERSION
    if is_text(name, b"maxMsgBytes", 11):
        return BYTES_MAX
    return UNKNOWN
