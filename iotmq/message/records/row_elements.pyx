"""Rows of columns into batches for brokers, one for each queue, without a Python object per row.

Operations: 10,000 rows at a time, of 100 bytes with a key and a few properties, to the queues of their keys. Goal: at
least 3 million rows/s on one core. Plan: one pass in the order of the rows; a row is measured, and written as an
element (layout.pxd) behind what its lane has. A lane is what goes to one queue. A batch is complete when the next
row would make it too large. So where batches end depends on the rows alone, not on how many are given at a time.

Columns are Arrow's: validity bits, offsets and data. In front of each batch is room, into which its first element
moves when `marked` gives it one more property.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy, memmove

from iotmq.message.records.crc cimport crc32
from iotmq.message.records.layout cimport ELEMENT_FIXED_BYTES, PROPERTY_END, get_u32, put_u16, put_u32

from iotmq.limits import PROPERTIES_BYTES_MAX
from iotmq.message.errors import RowError

cdef enum:
    FIRST_CAPACITY_BYTES = 16384
    AT_ELEMENT_BODY_SIZE = 16
    AT_ELEMENT_BODY = 20
    PROPERTIES_MAX = 32767
    # Left for what brokers add: the name of their cluster.
    ADDED_BYTES_MAX = 512
    ROW_BYTES_MAX = 1 << 30

assert PROPERTIES_MAX == PROPERTIES_BYTES_MAX

# Kinds of columns: how a value becomes a property.
TEXT = 0
# A topic name of MQTT, without wildcards.
MQTT_NAME = 1
# Properties, as they are stored.
ENCODED = 2
# Any bytes, in base64.
BASE64 = 3
# A text, and the row goes alone.
ALONE = 4

cdef enum:
    K_TEXT = 0
    K_MQTT_NAME = 1
    K_ENCODED = 2
    K_BASE64 = 3
    K_ALONE = 4

cdef const char* BASE64_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


cdef class TextColumn:
    """One column of binary or text values; of properties with their name and what ends it in `prefix`."""

    cdef const uint8_t[::1] validity
    cdef const int32_t[::1] offsets
    cdef const uint8_t[::1] data
    cdef Py_ssize_t first
    cdef readonly Py_ssize_t count
    cdef readonly str name
    cdef readonly bytes prefix
    cdef int kind

    def __init__(
        self, str name, tuple buffers not None, *, Py_ssize_t first, Py_ssize_t count, bytes prefix=b"", int kind=TEXT
    ):
        """Take the buffers of an Arrow array of int32 offsets; `first` is the array's own offset in them."""
        self.name = name
        validity, self.offsets, self.data = buffers
        self.validity = validity
        self.first = first
        self.count = count
        self.prefix = prefix
        self.kind = kind
        if first < 0 or count < 0 or self.offsets.shape[0] <= first + count:
            raise ValueError(f"column {name} has fewer than {count} values")
        if validity is not None and 8 * self.validity.shape[0] < first + count:
            raise ValueError(f"column {name} has too few validity bits")
        self.check_offsets()

    cdef int check_offsets(self) except -1:
        cdef Py_ssize_t i
        cdef int32_t before = self.offsets[self.first]
        if before < 0:
            raise ValueError(f"column {self.name} begins before its data")
        for i in range(self.first + 1, self.first + self.count + 1):
            if self.offsets[i] < before:
                raise ValueError(f"column {self.name} has offsets that do not grow")
            before = self.offsets[i]
        if before > (0 if self.data is None else self.data.shape[0]):
            raise ValueError(f"column {self.name} ends behind its data")
        return 0

    cdef inline Py_ssize_t value(self, Py_ssize_t row, const uint8_t** out) noexcept:
        """The size of a value, -1 for a null."""
        cdef Py_ssize_t at = self.first + row
        cdef Py_ssize_t size
        if self.validity is not None and not self.validity[at >> 3] >> (at & 7) & 1:
            return -1
        size = self.offsets[at + 1] - self.offsets[at]
        out[0] = &self.data[self.offsets[at]] if size else NULL
        return size


cdef class Encoded:
    """A batch for the queue of `lane`, or a row that goes alone. The buffer belongs to it."""

    cdef readonly int lane
    cdef readonly Py_ssize_t count
    cdef readonly int64_t first_row
    cdef readonly bint is_alone
    cdef bytearray buffer
    cdef Py_ssize_t start
    cdef Py_ssize_t end
    cdef Py_ssize_t first_size

    @property
    def size(self):
        return self.end - self.start

    @property
    def checksum(self):
        """Return the CRC-32 of what it has; before it is marked."""
        return crc32(<const uint8_t*> PyByteArray_AS_STRING(self.buffer) + self.start, <size_t> (self.end - self.start))

    def marked(self, bytes mark not None):
        """Return the batch, with the properties `mark` added to its first element; to be called once."""
        cdef uint8_t* data = <uint8_t*> PyByteArray_AS_STRING(self.buffer)
        cdef Py_ssize_t mark_size = len(mark)
        cdef uint8_t* target
        cdef Py_ssize_t body_size
        if mark_size > self.start:
            raise ValueError(f"there is room for {self.start} bytes before the batch, not for {mark_size}")
        target = data + self.start - mark_size
        memmove(target, data + self.start, self.first_size)
        memcpy(target + self.first_size, <const char*> mark, mark_size)
        body_size = <int32_t> get_u32(target + AT_ELEMENT_BODY_SIZE)
        put_u32(target, <uint32_t> (self.first_size + mark_size))
        put_u16(
            target + AT_ELEMENT_BODY + body_size,
            <unsigned short> (self.first_size + mark_size - ELEMENT_FIXED_BYTES - body_size),
        )
        self.start -= mark_size
        self.first_size += mark_size
        return memoryview(self.buffer)[self.start:self.end]

    def parts(self):
        """Return body and properties of the first element."""
        cdef uint8_t* data = <uint8_t*> PyByteArray_AS_STRING(self.buffer) + self.start
        cdef Py_ssize_t body_size = <int32_t> get_u32(data + AT_ELEMENT_BODY_SIZE)
        return (
            (data + AT_ELEMENT_BODY)[:body_size],
            (data + ELEMENT_FIXED_BYTES + body_size)[:self.first_size - ELEMENT_FIXED_BYTES - body_size],
        )


cdef class Lane:
    """Hold what is on its way to one queue."""

    cdef int index
    cdef bytearray buffer
    cdef Py_ssize_t capacity
    cdef Py_ssize_t size
    cdef Py_ssize_t first_size
    cdef Py_ssize_t count
    cdef int64_t first_row


cdef class RowEncoder:
    """Encodes the rows of one sender, in their order."""

    cdef list lanes
    cdef list ready
    cdef Py_ssize_t batch_bytes
    cdef Py_ssize_t batch_rows
    cdef Py_ssize_t room
    cdef Py_ssize_t buffered_max
    cdef readonly Py_ssize_t buffered_bytes
    cdef readonly int64_t row_count
    # Of each topic, in the order in which they were added: its first lane, and how many queues it has.
    cdef list first_lanes
    cdef list queue_counts

    def __init__(self, *, Py_ssize_t batch_bytes, Py_ssize_t batch_rows, Py_ssize_t room, Py_ssize_t buffered_bytes_max):
        """Make batches of at most so many bytes and rows; a larger row is a batch of its own.

        `room` is for a mark. Past `buffered_bytes_max` in all lanes all batches are complete.
        """
        self.lanes = []
        self.ready = []
        self.first_lanes = []
        self.queue_counts = []
        self.batch_bytes = batch_bytes
        self.batch_rows = batch_rows
        self.room = room
        self.buffered_max = buffered_bytes_max

    def add_topic(self, int queue_count):
        """Add a topic; return its first lane. It has one for each queue, and one for rows of any queue."""
        cdef int first = len(self.lanes)
        cdef Lane lane
        if queue_count < 1:
            raise ValueError("a topic without queues")
        for _ in range(queue_count + 1):
            lane = Lane.__new__(Lane)
            lane.index = len(self.lanes)
            self.lanes.append(lane)
        self.first_lanes.append(first)
        self.queue_counts.append(queue_count)
        return first

    def encode(
        self,
        TextColumn body not None,
        list columns not None,
        TextColumn keys,
        const int32_t[::1] topics,
        const int32_t[::1] queues,
    ):
        """Encode rows; return the batches that are complete.

        `columns` become properties. The queue is `queues`, the place among its topic's, where that is not
        negative, else that of the CRC-32 of the key, else any. `topics` are numbers of topics. Raises RowError
        for a row that cannot be sent; nothing can be encoded after that.
        """
        cdef Py_ssize_t row
        cdef Py_ssize_t count = body.count
        cdef TextColumn column
        if topics.shape[0] != count or queues is not None and queues.shape[0] != count:
            raise ValueError("the columns are of different lengths")
        for column in columns:
            if column.count != count:
                raise ValueError("the columns are of different lengths")
        if keys is not None and keys.count != count:
            raise ValueError("the columns are of different lengths")
        for row in range(count):
            self.encode_row(
                row, body, columns, self.lane_of(row, keys, topics[row], -1 if queues is None else queues[row])
            )
            self.row_count += 1
        return self.take_ready()

    def finish(self):
        """Return the batches that are not complete, in the order of their lanes."""
        self.complete_all()
        return self.take_ready()

    cdef list take_ready(self):
        cdef list ready = self.ready
        self.ready = []
        return ready

    cdef int lane_of(self, Py_ssize_t row, TextColumn keys, int32_t topic, int32_t queue) except -1:
        cdef const uint8_t* key
        cdef Py_ssize_t key_size = -1
        cdef int queue_count
        if not 0 <= topic < len(self.first_lanes):
            raise ValueError(f"there is no topic {topic}")
        queue_count = self.queue_counts[topic]
        if queue >= queue_count:
            raise ValueError(f"topic {topic} has no queue {queue}")
        if queue < 0:
            if keys is not None:
                key_size = keys.value(row, &key)
            queue = <int32_t> (crc32(key, <size_t> key_size) % <uint32_t> queue_count) if key_size > 0 else queue_count
        return self.first_lanes[topic] + queue

    cdef int encode_row(self, Py_ssize_t row, TextColumn body, list columns, int lane_index) except -1:
        cdef const uint8_t* value
        cdef Py_ssize_t body_size = body.value(row, &value)
        cdef Py_ssize_t properties_size = 0
        cdef Py_ssize_t size, value_size
        cdef bint is_alone = False
        cdef TextColumn column
        cdef Lane lane = <Lane> self.lanes[lane_index]
        cdef uint8_t* at
        cdef uint8_t* properties
        if body_size < 0:
            raise RowError(self.row_count, body.name, "is null")
        for column in columns:
            value_size = column.value(row, &value)
            if value_size < 0 or column.kind == K_ENCODED and value_size == 0:
                continue
            if column.kind == K_ALONE:
                is_alone = True
            elif column.kind == K_BASE64:
                value_size = (value_size + 2) // 3 * 4
            properties_size += len(column.prefix) + value_size + (column.kind != K_ENCODED)
        if properties_size > PROPERTIES_MAX - self.room - ADDED_BYTES_MAX:
            raise RowError(
                self.row_count, "",
                f"has {properties_size} bytes of properties, more than {PROPERTIES_MAX - self.room - ADDED_BYTES_MAX}",
            )
        size = ELEMENT_FIXED_BYTES + body_size + properties_size
        if size > ROW_BYTES_MAX:
            raise RowError(self.row_count, body.name, f"has {body_size} bytes")
        if lane.count and (
            is_alone or lane.size - self.room + size > self.batch_bytes or lane.count >= self.batch_rows
        ):
            self.complete(lane, False)
        at = self.reserve(lane, size)
        put_u32(at, <uint32_t> size)
        put_u32(at + 4, 0)
        put_u32(at + 8, 0)
        put_u32(at + 12, 0)
        put_u32(at + AT_ELEMENT_BODY_SIZE, <uint32_t> body_size)
        if body_size:
            body.value(row, &value)
            memcpy(at + AT_ELEMENT_BODY, value, body_size)
        put_u16(at + AT_ELEMENT_BODY + body_size, <unsigned short> properties_size)
        properties = at + ELEMENT_FIXED_BYTES + body_size
        for column in columns:
            value_size = column.value(row, &value)
            if value_size < 0 or column.kind == K_ENCODED and value_size == 0:
                continue
            memcpy(properties, <const char*> column.prefix, len(column.prefix))
            properties += len(column.prefix)
            if column.kind == K_BASE64:
                properties = put_base64(properties, value, value_size)
            else:
                if not put_text(properties, value, value_size, column.kind):
                    raise RowError(self.row_count, column.name, PROBLEMS[column.kind])
                properties += value_size
            if column.kind != K_ENCODED:
                properties[0] = PROPERTY_END
                properties += 1
        if not lane.count:
            lane.first_size = size
            lane.first_row = self.row_count
        lane.count += 1
        lane.size += size
        self.buffered_bytes += size
        if is_alone:
            self.complete(lane, True)
        elif self.buffered_bytes > self.buffered_max:
            self.complete_all()
        return 0

    cdef uint8_t* reserve(self, Lane lane, Py_ssize_t size) except NULL:
        cdef Py_ssize_t needed
        if lane.buffer is None:
            lane.capacity = max(FIRST_CAPACITY_BYTES, self.room + size)
            lane.buffer = PyByteArray_FromStringAndSize(NULL, lane.capacity)
            lane.size = self.room
        needed = lane.size + size
        if needed > lane.capacity:
            lane.capacity = max(needed, min(2 * lane.capacity, self.room + self.batch_bytes))
            PyByteArray_Resize(lane.buffer, lane.capacity)
        return <uint8_t*> PyByteArray_AS_STRING(lane.buffer) + lane.size

    cdef int complete(self, Lane lane, bint is_alone) except -1:
        cdef Encoded batch = Encoded.__new__(Encoded)
        batch.lane = lane.index
        batch.count = lane.count
        batch.first_row = lane.first_row
        batch.is_alone = is_alone
        batch.buffer = lane.buffer
        batch.start = self.room
        batch.end = lane.size
        batch.first_size = lane.first_size
        self.ready.append(batch)
        self.buffered_bytes -= lane.size - self.room
        lane.buffer = None
        lane.size = lane.count = 0
        return 0

    cdef int complete_all(self) except -1:
        cdef Lane lane
        for lane in self.lanes:
            if lane.count:
                self.complete(lane, False)
        return 0


PROBLEMS = {
    TEXT: "contains \\x01 or \\x02, which a property cannot hold",
    ALONE: "contains \\x01 or \\x02, which a property cannot hold",
    ENCODED: "is no list of properties",
    MQTT_NAME: "is no MQTT topic: it is empty, or contains one of + # and \\x00 to \\x02",
}


cdef bint put_text(uint8_t* target, const uint8_t* value, Py_ssize_t size, int kind) noexcept:
    """Copy a value; False for one that the property cannot hold."""
    cdef Py_ssize_t i
    cdef uint8_t each
    cdef int bad = 0
    if kind == K_ENCODED:
        memcpy(target, value, size)
        return target[size - 1] == PROPERTY_END
    if kind == K_MQTT_NAME:
        for i in range(size):
            each = value[i]
            bad |= (each < 3) | (each == c"+") | (each == c"#")
            target[i] = each
        return size > 0 and not bad
    for i in range(size):
        each = value[i]
        bad |= (each == 1) | (each == 2)
        target[i] = each
    return not bad


cdef uint8_t* put_base64(uint8_t* target, const uint8_t* value, Py_ssize_t size) noexcept:
    cdef Py_ssize_t i = 0
    cdef uint32_t three
    while i + 2 < size:
        three = value[i] << 16 | value[i + 1] << 8 | value[i + 2]
        target[0] = BASE64_LETTERS[three >> 18]
        target[1] = BASE64_LETTERS[three >> 12 & 63]
        target[2] = BASE64_LETTERS[three >> 6 & 63]
        target[3] = BASE64_LETTERS[three & 63]
        target += 4
        i += 3
    if i < size:
        three = value[i] << 16
        if i + 1 < size:
            three |= value[i + 1] << 8
        target[0] = BASE64_LETTERS[three >> 18]
        target[1] = BASE64_LETTERS[three >> 12 & 63]
        target[2] = BASE64_LETTERS[three >> 6 & 63] if i + 1 < size else c"="
        target[3] = c"="
        target += 4
    return target
