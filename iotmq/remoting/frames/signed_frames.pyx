"""Find the signed bytes of a usual send or pull in received bytes, without a `Command`.

Operations: give access control the account, the signature, the signed bytes and the names that permissions
are about. Goal: one object per request. Plan: the fields are read as the fast paths read them and sorted
where they stand; what is unusual in any way is not read, and `broker/access/acl.py` leaves it to the general
way, which checks the signature itself. `tests/property/test_signed_path.py` compares the two.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t
from libc.string cimport memcmp, memcpy

from iotmq.remoting.frames.frame_header cimport Head, Text, is_text, read_head
from iotmq.remoting.frames.send_frames cimport put_text

from iotmq.limits import TOPIC_BYTES_MAX

cdef enum:
    SEND_LONG = 10
    PULL = 11
    SEND_SHORT = 310
    SEND_BATCH = 320
    IS_RESPONSE = 1
    # As many as `read_head` reads.
    FIELDS_MAX = 64

cdef Py_ssize_t NAME_SIZE_MAX = TOPIC_BYTES_MAX


cdef struct Field:
    Text name
    Text value


cdef struct Fields:
    Field by_name[FIELDS_MAX]
    int count


cdef class SignedRequest:
    """A signed send or pull. Its signature is not checked here."""

    cdef readonly str access_key
    cdef readonly bytes signature
    cdef readonly bytes content              # what was signed: the fields' values, then the body
    cdef readonly str topic
    cdef readonly str group                  # who pulls; None for a send


def read_signed(bytes data not None, Py_ssize_t at):
    """Return the request whose frame begins at `at`; None when it is not a usual and signed send or pull."""
    cdef const uint8_t* start = <const uint8_t*> PyBytes_AS_STRING(data)
    cdef Head head
    cdef Fields fields
    cdef SignedRequest request
    if at < 0:
        raise ValueError("bytes before the first")
    fields.count = 0
    if not read_head(start, at, PyBytes_GET_SIZE(data), &head, note_field, &fields) or head.flag & IS_RESPONSE:
        return None
    request = SignedRequest.__new__(SignedRequest)
    if head.code == PULL:
        request.topic = name_in(&fields, b"topic", 5)
        request.group = name_in(&fields, b"consumerGroup", 13)
        if request.group is None:
            return None
    elif head.code == SEND_LONG:
        request.topic = name_in(&fields, b"topic", 5)
        if not has_plain_body(find(&fields, b"batch", 5), find(&fields, b"sysFlag", 7), False):
            return None
    elif head.code == SEND_SHORT or head.code == SEND_BATCH:
        request.topic = name_in(&fields, b"b", 1)
        if not has_plain_body(find(&fields, b"m", 1), find(&fields, b"f", 1), head.code == SEND_BATCH):
            return None
    else:
        return None
    request.access_key = name_in(&fields, b"AccessKey", 9)
    cdef const Field* signature = find(&fields, b"Signature", 9)
    if request.topic is None or request.access_key is None or signature == NULL or not signature.value.is_plain:
        return None
    request.signature = PyBytes_FromStringAndSize(<const char*> signature.value.at, signature.value.size)
    request.content = content_of(&fields, signature, &head)
    return None if request.content is None else request


cdef bint note_field(void* context, const Head* head, const Text* name, const Text* value) except -1:
    """Put a field where its name belongs; False when there is one with that name."""
    cdef Fields* fields = <Fields*> context
    cdef int at = fields.count
    cdef int order
    if at == FIELDS_MAX:
        return False
    while at > 0:
        order = compare(&fields.by_name[at - 1].name, name)
        if order == 0:
            return False
        if order < 0:
            break
        fields.by_name[at] = fields.by_name[at - 1]
        at -= 1
    fields.by_name[at].name = name[0]
    fields.by_name[at].value = value[0]
    fields.count += 1
    return True


cdef int compare(const Text* one, const Text* other) noexcept:
    cdef int order = memcmp(one.at, other.at, min(one.size, other.size))
    if order == 0:
        return (one.size > other.size) - (one.size < other.size)
    return order


cdef const Field* find(const Fields* fields, const char* name, Py_ssize_t size) noexcept:
    cdef int at
    for at in range(fields.count):
        if is_text(&fields.by_name[at].name, name, size):
            return &fields.by_name[at]
    return NULL


cdef str name_in(const Fields* fields, const char* name, Py_ssize_t size):
    """A field that is a name: plain, not empty and not overlong; None when it is not."""
    cdef const Field* field = find(fields, name, size)
    if field == NULL or not field.value.is_plain or not 0 < field.value.size <= NAME_SIZE_MAX:
        return None
    return PyBytes_FromStringAndSize(<const char*> field.value.at, field.value.size).decode("ascii")


cdef bint has_plain_body(const Field* batch, const Field* sys_flag, bint is_batch) noexcept:
    """Return whether the body is what was sent, not packed, and whether it is a batch is written as usual."""
    if not is_batch and batch != NULL:
        if is_text(&batch.value, b"true", 4) or is_text(&batch.value, b"1", 1):
            is_batch = True
        elif not (is_text(&batch.value, b"false", 5) or is_text(&batch.value, b"0", 1)):
            return False
    return not is_batch or sys_flag != NULL and is_text(&sys_flag.value, b"0", 1)


cdef bytes content_of(const Fields* fields, const Field* signature, const Head* head):
    cdef Py_ssize_t size = head.body_size
    cdef Py_ssize_t put
    cdef int at
    cdef const Field* field
    for at in range(fields.count):
        size += fields.by_name[at].value.size
    cdef bytes content = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* start = <uint8_t*> PyBytes_AS_STRING(content)
    cdef uint8_t* target = start
    for at in range(fields.count):
        field = &fields.by_name[at]
        if field == signature:
            continue
        put = put_text(target, &field.value, not head.is_binary)
        if put < 0:
            return None
        target += put
    memcpy(target, head.body, head.body_size)
    target += head.body_size
    return content[:target - start]
