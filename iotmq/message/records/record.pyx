"""The record codec: one message as it stands in the log, on the wire and in a batch body.

`layout.pxd` has the layouts, `record.pxd` the compiled interface; what follows first is for Python.
Numbers are big-endian. Sizes and positions are bytes, timestamps milliseconds since 1970.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from iotmq.message.records.crc cimport crc32
from iotmq.message.records.fields cimport (
    BAD_BODY_CRC, BAD_BODY_SIZE, BAD_MAGIC, BAD_PROPERTIES_SIZE, BAD_SIZE, BAD_TOPIC_SIZE, FORMAT_OK, NO_ROOM,
    PROPERTIES_TOO_LONG, RECORD_TOO_LONG, SIZES_DISAGREE, TOPIC_TOO_LONG, TRUNCATED_HEAD, Element,
    RecordParts, element_fields, parse_fields,
)
from iotmq.message.records.layout cimport (
    AT_BODY, AT_BODY_CRC, AT_BORN_HOST, AT_BORN_TIMESTAMP, AT_FLAG, AT_MAGIC, AT_POSITION,
    AT_QUEUE_ID, AT_QUEUE_OFFSET, AT_SIZE, AT_SYS_FLAG, ELEMENT_FIXED_BYTES, HOST_V6_EXTRA_BYTES,
    NAME_END, PROPERTY_END, RECORD_FIXED_BYTES, RECORD_MAGIC, SYS_FLAG_BORN_HOST_V6, SYS_FLAG_STORE_HOST_V6,
    put_u16, put_u32, put_u64,
)
from iotmq.message.records.short_bytes cimport copy_short, find_byte
from iotmq.message.records.text cimport java_hash

from iotmq.limits import BATCH_RECORDS_MAX, PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX
from iotmq.message.errors import MessageFormatError

cdef extern from "string.h" nogil:
    void* memrchr(const void* data, int byte, size_t size)

# The limits as C numbers: widths of fields, which cannot move.
cdef enum:
    TOPIC_SIZE_MAX = 127
    PROPERTIES_SIZE_MAX = 32767

assert TOPIC_BYTES_MAX == TOPIC_SIZE_MAX
assert PROPERTIES_BYTES_MAX == PROPERTIES_SIZE_MAX

cdef int32_t BATCH_COUNT_MAX = BATCH_RECORDS_MAX

# 0.0.0.0:0, for records of nobody in particular.
cdef bytes _NO_HOST = bytes(8)

_PROBLEMS = {
    TRUNCATED_HEAD: "fewer bytes left than its fixed part has",
    BAD_SIZE: "its size field is too small or runs past the end",
    BAD_MAGIC: "wrong magic",
    BAD_BODY_SIZE: "its body runs past its end",
    BAD_TOPIC_SIZE: "its topic runs past its end",
    BAD_PROPERTIES_SIZE: "its properties run past its end",
    SIZES_DISAGREE: "its parts do not add up to its size",
    BAD_BODY_CRC: "its body does not match its CRC",
    TOPIC_TOO_LONG: f"topic longer than {TOPIC_BYTES_MAX} bytes",
    PROPERTIES_TOO_LONG: f"properties longer than {PROPERTIES_BYTES_MAX} bytes",
    RECORD_TOO_LONG: "longer than a record can be",
    NO_ROOM: "no room for it",
}


cdef class Record:
    """One decoded record; all fields are copies, so it outlives the buffer it came from.

    `size` is the record's size in bytes (the next record starts that much later), `position` its byte
    in the log, `queue_offset` its number in the queue. `body` is as stored (see `iotmq.message.bodies`
    for compressed ones), `properties` raw (see `decode_properties`); hosts are 8 or 20 bytes
    (see `decode_host`). A topic that is not UTF-8 has U+FFFD in place of the wrong bytes.
    """

    cdef readonly int size
    cdef readonly unsigned int magic
    cdef readonly unsigned int body_crc
    cdef readonly int queue_id
    cdef readonly int flag
    cdef readonly int64_t queue_offset
    cdef readonly int64_t position
    cdef readonly int sys_flag
    cdef readonly int64_t born_timestamp_ms
    cdef readonly bytes born_host
    cdef readonly int64_t store_timestamp_ms
    cdef readonly bytes store_host
    cdef readonly int reconsume_times
    cdef readonly int64_t prepared_position
    cdef readonly bytes body
    cdef readonly str topic
    cdef readonly bytes properties

    def __repr__(self):
        return (
            f"<Record {self.topic!r} queue {self.queue_id} offset {self.queue_offset} "
            f"position {self.position} body {len(self.body)} B>"
        )


def encode_batch(elements):
    """Encode the body of a batch request: one element for each (body, properties, flag).

    Raises MessageFormatError when properties or a whole element are too long for their size fields.
    """
    cdef list parts = []
    cdef bytes body, properties, head
    cdef uint8_t* at
    cdef Py_ssize_t size
    cdef int32_t flag
    cdef uint8_t properties_size[2]
    for body, properties, flag in elements:
        if len(properties) > PROPERTIES_SIZE_MAX:
            raise MessageFormatError(f"batch element {len(parts) // 4}: {_PROBLEMS[PROPERTIES_TOO_LONG]}")
        size = ELEMENT_FIXED_BYTES + len(body) + len(properties)
        if size > INT32_MAX:
            raise MessageFormatError(f"batch element {len(parts) // 4}: {_PROBLEMS[RECORD_TOO_LONG]}")
        head = PyBytes_FromStringAndSize(NULL, 20)
        at = <uint8_t*> PyBytes_AS_STRING(head)
        put_u32(at, <uint32_t> size)
        put_u64(at + 4, 0)
        put_u32(at + 12, <uint32_t> flag)
        put_u32(at + 16, <uint32_t> len(body))
        put_u16(properties_size, <uint16_t> len(properties))
        parts += (head, body, properties_size[:2], properties)
    return b"".join(parts)


def check_batch(buffer):
    """Count the elements of a batch body after checking every length in it.

    Raises MessageFormatError for an empty batch, more than BATCH_RECORDS_MAX elements, and any element
    whose sizes do not add up. The elements' magic and CRC fields are not looked at: senders leave them 0.
    """
    cdef Py_buffer view
    cdef Element element
    cdef const uint8_t* start
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef int problem = FORMAT_OK
    cdef int32_t count = 0
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        start = <const uint8_t*> view.buf
        at = start
        end = start + view.len
        with nogil:
            while at < end and count < BATCH_COUNT_MAX:
                problem = parse_element(at, end, &element)
                if problem != FORMAT_OK:
                    break
                at += element.size
                count += 1
        if problem != FORMAT_OK:
            raise MessageFormatError(
                f"batch element {count} at byte {at - start}: {_PROBLEMS[problem]}", at - start
            )
        if at < end:
            raise MessageFormatError(f"batch of more than {BATCH_RECORDS_MAX} elements", at - start)
        if count == 0:
            raise MessageFormatError("batch without elements")
        return count
    finally:
        PyBuffer_Release(&view)


def decode_record(buffer, Py_ssize_t at=0):
    """Return the record that starts at byte `at` of `buffer`; raises MessageFormatError. Ignores the body CRC."""
    cdef Py_buffer view
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        return _decode(&view, at)
    finally:
        PyBuffer_Release(&view)


def iter_records(buffer):
    """Return the records of `buffer` one after another, as a pull response holds them.

    Raises MessageFormatError on reaching bytes that are not a record. For many records
    `iotmq.message.records.columns` is several times faster, and makes no objects.
    """
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t size = memoryview(buffer).nbytes
    cdef Record record
    while at < size:
        record = decode_record(buffer, at)
        at += record.size
        yield record


def encode_record(*, str topic, bytes body, bytes properties=b"", int flag=0, int64_t queue_offset=0,
                  int64_t position=0, **shared_fields):
    """One record. Further fields are those of `encode_records`, except `batch_properties`.

    Raises MessageFormatError for a topic, properties or record that are too long, ValueError for a
    host that has neither 8 nor 20 bytes.
    """
    cdef SharedFields fields = SharedFields(topic, b"", **shared_fields)
    cdef Element element
    cdef Py_ssize_t size
    cdef bytes record
    element.body = <const uint8_t*> PyBytes_AS_STRING(body)
    element.body_size = <int32_t> min(len(body), INT32_MAX)
    element.properties = <const uint8_t*> PyBytes_AS_STRING(properties)
    element.properties_size = <int32_t> min(len(properties), PROPERTIES_SIZE_MAX + 1)
    element.flag = flag
    element.size = 0
    size = element_record_size(&element, &fields.shared)
    if size < 0:
        raise MessageFormatError(f"record: {_PROBLEMS[size]}")
    record = PyBytes_FromStringAndSize(NULL, size)
    write_record(<uint8_t*> PyBytes_AS_STRING(record), size, &element, &fields.shared, queue_offset, position)
    return record


def encode_records(batch, *, str topic, bytes batch_properties=b"", int64_t queue_offset=0,
                   int64_t position=0, **shared_fields):
    """Return the records a batch body becomes: one after another, the first at `queue_offset` and `position`.

    Further fields, the same for all, by keyword: queue_id, sys_flag, born_timestamp_ms, born_host,
    store_timestamp_ms, store_host, reconsume_times, prepared_position. Hosts are 8 or 20 bytes and
    set their bits of `sys_flag`. `batch_properties` follow each element's own.
    Raises as `check_batch` and `encode_record` do.
    """
    cdef SharedFields fields = SharedFields(topic, batch_properties, **shared_fields)
    cdef Py_ssize_t count = check_batch(batch)
    cdef Py_buffer view
    cdef Element element
    cdef RecordTemplate template
    cdef Py_ssize_t index, size
    cdef Py_ssize_t total = 0
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef uint8_t* target
    cdef bytes records
    PyObject_GetBuffer(batch, &view, PyBUF_SIMPLE)
    try:
        at = <const uint8_t*> view.buf
        end = at + view.len
        for index in range(count):
            if parse_element(at, end, &element) != FORMAT_OK:
                raise MessageFormatError("batch changed while it was read")
            size = element_record_size(&element, &fields.shared)
            if size < 0:
                raise MessageFormatError(f"batch element {index}: {_PROBLEMS[size]}")
            total += size
            at += element.size
        records = PyBytes_FromStringAndSize(NULL, total)
        target = <uint8_t*> PyBytes_AS_STRING(records)
        at = <const uint8_t*> view.buf
        make_template(&template, &fields.shared)
        with nogil:
            for index in range(count):
                if element_fields(at, end, &element) != FORMAT_OK:
                    break
                size = write_like(
                    target, total, &element, &fields.shared, &template, queue_offset + index, position
                )
                if size < 0:
                    break
                target += size
                total -= size
                position += size
                at += element.size
        if total:
            raise MessageFormatError("batch changed while it was read")
        return records
    finally:
        PyBuffer_Release(&view)


def check_record(buffer, Py_ssize_t at=0, *, position=None):
    """Check the record at byte `at` of `buffer` in full, body CRC included, and return its size.

    With `position` the record's own position must be that one too. Raises MessageFormatError.
    """
    cdef Py_buffer view
    cdef RecordParts parts
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        _parse(&view, at, &parts)
        if body_crc(parts.body, parts.body_size) != parts.body_crc:
            raise MessageFormatError(f"record at byte {at}: {_PROBLEMS[BAD_BODY_CRC]}", at)
        if position is not None and parts.position != position:
            raise MessageFormatError(
                f"record at byte {at}: says position {parts.position}, expected {position}", at
            )
        return parts.size
    finally:
        PyBuffer_Release(&view)


def problem_text(int problem):
    """Return the words for a Problem code of the compiled interface, to follow "record ...: "."""
    return _PROBLEMS[problem]


def hash_text(const uint8_t[::1] text):
    """`tag_hash` of UTF-8 bytes; `iotmq.message.tags.tag_hash` takes str."""
    return <int32_t> java_hash(0, &text[0], text.shape[0]) if text.shape[0] else 0


def properties_tags_code(const uint8_t[::1] properties):
    """Return the tags code a queue entry holds for a record with these raw properties; 0 without a TAGS."""
    return tags_code(&properties[0], properties.shape[0]) if properties.shape[0] else 0


def property_value(const uint8_t[::1] properties, bytes name):
    """Return the raw value of property `name`, or None; the last of several wins. For one or two properties
    of a record; `decode_properties` gives all."""
    cdef const uint8_t* value = NULL
    cdef Py_ssize_t size
    if properties.shape[0] == 0:
        return None
    size = find_property(&properties[0], properties.shape[0], PyBytes_AS_STRING(name), len(name), &value)
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*> value, size)


def body_checksum(const uint8_t[::1] body):
    """Return the CRC a record holds for this stored body: CRC-32 without its top bit."""
    return body_crc(&body[0], body.shape[0]) if body.shape[0] else 0


cdef class SharedFields:
    """A RecordShared filled from Python values, and the bytes its pointers point into."""

    cdef RecordShared shared
    cdef bytes topic
    cdef bytes properties
    cdef bytes born_host
    cdef bytes store_host

    def __cinit__(self, str topic, bytes properties, *, int queue_id=0, int sys_flag=0,
                  int64_t born_timestamp_ms=0, bytes born_host=_NO_HOST, int64_t store_timestamp_ms=0,
                  bytes store_host=_NO_HOST, int reconsume_times=0, int64_t prepared_position=0):
        self.topic = topic.encode()
        self.properties = properties
        self.born_host = born_host
        self.store_host = store_host
        self.shared.sys_flag = (
            sys_flag & ~(SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6)
            | _host_bit(born_host, SYS_FLAG_BORN_HOST_V6)
            | _host_bit(store_host, SYS_FLAG_STORE_HOST_V6)
        )
        self.shared.topic = <const uint8_t*> PyBytes_AS_STRING(self.topic)
        self.shared.topic_size = len(self.topic)
        self.shared.properties = <const uint8_t*> PyBytes_AS_STRING(properties)
        self.shared.properties_size = len(properties)
        self.shared.born_host = <const uint8_t*> PyBytes_AS_STRING(born_host)
        self.shared.store_host = <const uint8_t*> PyBytes_AS_STRING(store_host)
        self.shared.born_timestamp_ms = born_timestamp_ms
        self.shared.store_timestamp_ms = store_timestamp_ms
        self.shared.prepared_position = prepared_position
        self.shared.queue_id = queue_id
        self.shared.reconsume_times = reconsume_times


cdef int _host_bit(bytes host, int bit) except -1:
    if len(host) == 8:
        return 0
    if len(host) == 8 + HOST_V6_EXTRA_BYTES:
        return bit
    raise ValueError(f"a host has 8 or 20 bytes, not {len(host)}")


cdef int _parse(Py_buffer* view, Py_ssize_t at, RecordParts* parts) except -1:
    cdef const uint8_t* start = <const uint8_t*> view.buf
    cdef int problem
    if at < 0 or at > view.len:
        raise MessageFormatError(f"no record at byte {at} of {view.len}", at)
    problem = parse_record(start + at, start + view.len, parts)
    if problem != FORMAT_OK:
        raise MessageFormatError(f"record at byte {at}: {_PROBLEMS[problem]}", at)
    return 0


cdef Record _decode(Py_buffer* view, Py_ssize_t at):
    cdef RecordParts parts
    cdef Record record
    _parse(view, at, &parts)
    record = Record.__new__(Record)
    record.size = parts.size
    record.magic = parts.magic
    record.body_crc = parts.body_crc
    record.queue_id = parts.queue_id
    record.flag = parts.flag
    record.queue_offset = parts.queue_offset
    record.position = parts.position
    record.sys_flag = parts.sys_flag
    record.born_timestamp_ms = parts.born_timestamp_ms
    record.born_host = parts.born_host[:parts.born_host_size]
    record.store_timestamp_ms = parts.store_timestamp_ms
    record.store_host = parts.store_host[:parts.store_host_size]
    record.reconsume_times = parts.reconsume_times
    record.prepared_position = parts.prepared_position
    record.body = parts.body[:parts.body_size]
    record.topic = parts.topic[:parts.topic_size].decode("utf-8", "replace")
    record.properties = parts.properties[:parts.properties_size]
    return record


# The compiled interface. Bounds: every pointer is compared as "bytes left" before it is used, and sizes
# read from the bytes are first narrowed to 0..INT32_MAX, so no sum below can overflow a Py_ssize_t.

cdef int parse_element(const uint8_t* at, const uint8_t* end, Element* out) noexcept nogil:
    return element_fields(at, end, out)


cdef int parse_record(const uint8_t* at, const uint8_t* end, RecordParts* out) noexcept nogil:
    return parse_fields(at, end, out)


cdef inline Py_ssize_t joined_properties_size(const Element* element, const RecordShared* shared) noexcept nogil:
    cdef Py_ssize_t size = element.properties_size
    if shared.properties_size:
        if size and element.properties[size - 1] != PROPERTY_END:
            size += 1
        size += shared.properties_size
    return size


cdef inline Py_ssize_t record_size(const Element* element, const RecordShared* shared,
                                   Py_ssize_t properties_size) noexcept nogil:
    cdef Py_ssize_t size
    if shared.topic_size > TOPIC_SIZE_MAX:
        return TOPIC_TOO_LONG
    if properties_size > PROPERTIES_SIZE_MAX:
        return PROPERTIES_TOO_LONG
    size = RECORD_FIXED_BYTES + <Py_ssize_t> element.body_size + shared.topic_size + properties_size
    if shared.sys_flag & SYS_FLAG_BORN_HOST_V6:
        size += HOST_V6_EXTRA_BYTES
    if shared.sys_flag & SYS_FLAG_STORE_HOST_V6:
        size += HOST_V6_EXTRA_BYTES
    return size if size <= INT32_MAX else <Py_ssize_t> RECORD_TOO_LONG


cdef Py_ssize_t element_record_size(const Element* element, const RecordShared* shared) noexcept nogil:
    return record_size(element, shared, joined_properties_size(element, shared))


cdef Py_ssize_t write_record(uint8_t* target, Py_ssize_t room, const Element* element,
                             const RecordShared* shared, int64_t queue_offset,
                             int64_t position) noexcept nogil:
    cdef RecordTemplate template
    if shared.topic_size > TOPIC_SIZE_MAX:
        return TOPIC_TOO_LONG
    make_template(&template, shared)
    return write_like(target, room, element, shared, &template, queue_offset, position)


cdef void make_template(RecordTemplate* template, const RecordShared* shared) noexcept nogil:
    cdef Py_ssize_t host_size
    cdef uint8_t* head = template.head
    cdef uint8_t* at
    put_u32(head + AT_MAGIC, <uint32_t> RECORD_MAGIC)
    put_u32(head + AT_QUEUE_ID, <uint32_t> shared.queue_id)
    put_u32(head + AT_SYS_FLAG, <uint32_t> shared.sys_flag)
    put_u64(head + AT_BORN_TIMESTAMP, <uint64_t> shared.born_timestamp_ms)
    at = head + AT_BORN_HOST
    host_size = 8 + HOST_V6_EXTRA_BYTES if shared.sys_flag & SYS_FLAG_BORN_HOST_V6 else 8
    memcpy(at, shared.born_host, host_size)
    at += host_size
    put_u64(at, <uint64_t> shared.store_timestamp_ms)
    at += 8
    host_size = 8 + HOST_V6_EXTRA_BYTES if shared.sys_flag & SYS_FLAG_STORE_HOST_V6 else 8
    memcpy(at, shared.store_host, host_size)
    at += host_size
    put_u32(at, <uint32_t> shared.reconsume_times)
    put_u64(at + 4, <uint64_t> shared.prepared_position)
    template.head_size = at + 16 - head
    template.topic[0] = <uint8_t> shared.topic_size
    memcpy(template.topic + 1, shared.topic, shared.topic_size)


cdef Py_ssize_t write_like(uint8_t* target, Py_ssize_t room, const Element* element, const RecordShared* shared,
                           const RecordTemplate* template, int64_t queue_offset,
                           int64_t position) noexcept nogil:
    cdef Py_ssize_t properties_size = joined_properties_size(element, shared)
    cdef Py_ssize_t size = record_size(element, shared, properties_size)
    cdef uint8_t* at
    if size < 0:
        return size
    if size > room:
        return NO_ROOM
    if template.head_size == AT_BODY:
        memcpy(target, template.head, AT_BODY)
    else:
        memcpy(target, template.head, template.head_size)
    put_u32(target + AT_SIZE, <uint32_t> size)
    put_u32(target + AT_BODY_CRC, body_crc(element.body, element.body_size))
    put_u32(target + AT_FLAG, <uint32_t> element.flag)
    put_u64(target + AT_QUEUE_OFFSET, <uint64_t> queue_offset)
    put_u64(target + AT_POSITION, <uint64_t> position)
    at = target + template.head_size
    put_u32(at - 4, <uint32_t> element.body_size)
    copy_short(at, element.body, element.body_size)
    at += element.body_size
    copy_short(at, template.topic, 1 + shared.topic_size)
    at += 1 + shared.topic_size
    put_u16(at, <uint16_t> properties_size)
    at += 2
    copy_short(at, element.properties, element.properties_size)
    if shared.properties_size:
        # The shared part ends where the record ends; a byte between the two is the missing separator.
        if properties_size > element.properties_size + shared.properties_size:
            at[element.properties_size] = PROPERTY_END
        memcpy(at + properties_size - shared.properties_size, shared.properties, shared.properties_size)
    return size


cdef uint32_t body_crc(const uint8_t* body, Py_ssize_t size) noexcept nogil:
    return crc32(body, <size_t> size) & 0x7FFFFFFF


cdef Py_ssize_t find_property(const uint8_t* properties, Py_ssize_t size, const char* key,
                              Py_ssize_t key_size, const uint8_t** value) noexcept nogil:
    # From the back, so that the last of several is met first.
    cdef const uint8_t* end = properties + size
    cdef const uint8_t* start
    cdef const uint8_t* found
    while end > properties:
        found = <const uint8_t*> memrchr(properties, PROPERTY_END, end - properties)
        start = properties if found == NULL else found + 1
        if end - start > key_size and start[key_size] == NAME_END and memcmp(start, key, key_size) == 0:
            value[0] = start + key_size + 1
            return end - start - key_size - 1
        if found == NULL:
            return -1
        end = found
    return -1


cdef int64_t tags_code(const uint8_t* properties, Py_ssize_t size) noexcept nogil:
    cdef const uint8_t* value = NULL
    cdef const uint8_t* end = properties + size
    cdef const uint8_t* at = properties + 2
    cdef Py_ssize_t value_size
    # Most records of devices have no tag and no G either: one pass says so in a third of the time it takes
    # to look at each property.
    while end - at > 2:
        at = find_byte(properties, at, end - 2, 71)
        if at == end - 2:
            return 0
        if memcmp(at - 2, "TAGS\x01", 5) == 0:
            value_size = find_property(properties, size, "TAGS", 4, &value)
            return <int32_t> java_hash(0, value, value_size) if value_size > 0 else 0
        at += 1
    return 0
