"""Find the topic filters that match a topic, among many.

Operations: add and remove a filter (thousands a second), find the filters of a topic (millions a second).
Goals: a million filters of one form (`dev/ID/cmd/#`) cost one look-up and some 60 bytes each, not a million
trie nodes; nothing is slow after a change, because devices come and go all the time. Plan: filters are grouped
by *shape* (which levels are literal, which `+`, whether `#` ends it), and one hash table holds all of them by
shape and literal levels; a topic's levels are hashed once and looked up for each shape that topics as deep can
match. Filters without a wildcard are one more shape, looked up by the whole text. So a filter costs the same
however odd it is, and of odd shapes only topics notice something that are as deep: 10,000 of them, all of 32
levels, make one look-up of such a topic take a millisecond. Matches of a topic are cached, as many as a number
of bytes has room for; any change of the index makes the cached ones stale by version.
"""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy

from iotmq.mqtt.topics.keyed_hash cimport fold, keyed_hash
from iotmq.mqtt.topics.topic_cache cimport TopicCache

import os

from iotmq import limits

if LEVELS_MAX != limits.MQTT_TOPIC_LEVELS_MAX:
    raise ImportError("LEVELS_MAX of mqtt/topics/filters.pxd is not limits.MQTT_TOPIC_LEVELS_MAX")

cdef enum:
    TABLE_SIZE_MIN = 64
    FILTERS_MIN = 64
    SHAPES_MIN = 16
    IS_ONE_LEVEL = 1    # of `pattern`
    IS_REST = 2

cdef uint32_t NO_ID = 0xFFFFFFFF
cdef uint32_t EXACT = 0xFFFFFFFE    # place in `shapes` of filters without a wildcard
cdef Py_ssize_t _TOPIC_BYTES_MAX = limits.MQTT_TOPIC_BYTES_MAX


cdef class FilterIndex:
    """Numbers filters and finds those that match a topic. Filters are taken as valid (mqtt.topics)."""

    def __cinit__(
        self, *, uint32_t cached_topics_max=65_536, uint64_t cached_bytes_max=limits.MQTT_TOPIC_CACHE_BYTES_MAX
    ):
        cdef int index
        self.table = <uint32_t*>calloc(TABLE_SIZE_MIN, sizeof(uint32_t))
        if self.table == NULL:
            raise MemoryError
        self.table_mask = TABLE_SIZE_MIN - 1
        self.free_id = self.free_shape = NO_ID
        self.shape_places = {}
        for index in range(LEVELS_MAX + 1):
            self.open_shapes[index] = self.closed_shapes[index] = NO_ID
        self.version = 1
        self.multiplier = int.from_bytes(os.urandom(8), "little") | 1
        self.exact_seed = int.from_bytes(os.urandom(8), "little")
        self.cache = TopicCache(cached_topics_max, cached_bytes_max)

    def __dealloc__(self):
        cdef uint32_t index
        if self.cache is not None:
            self.drop_cache()
        for index in range(self.filters_end):
            free(self.filters[index].text)
        for index in range(self.shapes_end):
            free(self.shapes[index].wildcards)
        free(self.filters)
        free(self.shapes)
        free(self.table)
        free(self.found)

    def __len__(self):
        return self.filter_count

    def __contains__(self, str topic_filter):
        return self.id_of(topic_filter) is not None

    @property
    def is_empty(self):
        """Return whether no filter is known."""
        return self.filter_count == 0

    @property
    def memory_bytes(self):
        """Return the bytes of the filters, without the cache of matches and the look-up of shapes by their levels."""
        return (
            self.filters_capacity * sizeof(Filter)
            + self.shapes_capacity * sizeof(Shape)
            + (<uint64_t>self.table_mask + 1) * sizeof(uint32_t)
            + self.text_bytes
        )

    @property
    def shape_count(self):
        """Shapes that some filter with a wildcard has."""
        return len(self.shape_places)

    def has_shape(self, bytes shape not None):
        """Return whether some filter has this shape (mqtt.topics.wildcard_shape)."""
        return shape in self.shape_places

    @property
    def cached_bytes(self):
        """Return the bytes of the cache of matches."""
        return self.cache.size_bytes

    def id_of(self, str topic_filter not None):
        """Return the filter's id, or None."""
        raw = topic_filter.encode()
        found = self.known_id(raw, self.shape_of(self.split_filter(raw)))
        return None if found < 0 else found

    def filter_of(self, uint32_t filter_id):
        """Return the filter with this id, or None."""
        if filter_id >= self.filters_end or self.filters[filter_id].text == NULL:
            return None
        return self.filters[filter_id].text[:self.filters[filter_id].size].decode()

    def add(self, str topic_filter not None):
        """Return the filter's id: the one it has, or a new one (those that became free are used again).

        Raises ValueError for a filter past limits.MQTT_TOPIC_BYTES_MAX or MQTT_TOPIC_LEVELS_MAX.
        """
        raw = topic_filter.encode()
        cdef const uint8_t* text = raw
        cdef Py_ssize_t size = len(raw)
        cdef int count = self.split_filter(raw)
        cdef int64_t found = self.shape_of(count)
        cdef uint32_t place = EXACT
        cdef uint32_t filter_id
        known = self.known_id(raw, found)
        if known >= 0:
            return known
        if found == EXACT:
            filter_id = self.take_id(text, size, self.hash_of_exact(text, size), EXACT)
            self.exact_count += 1
        else:
            place = self.new_shape(count) if found < 0 else <uint32_t>found
            self.hash_levels(count)
            try:
                filter_id = self.take_id(text, size, self.hash_of(&self.shapes[place]), place)
            except MemoryError:
                self.drop_shape(place)
                raise
            self.shapes[place].filter_count += 1
        self.put_in_table(filter_id)
        self.version += 1
        return filter_id

    def restore(self, uint32_t filter_id, str topic_filter not None):
        """Add a filter that had this id before, ids ascending; those left out are free.

        Raises ValueError for an id that is not past all others, or a filter that is known.
        """
        cdef uint32_t first_free = self.filters_end
        cdef uint32_t known_free = self.free_id
        if filter_id < self.filters_end or self.id_of(topic_filter) is not None:
            raise ValueError(f"filter {topic_filter!r} cannot have the id {filter_id}")
        self.free_id = NO_ID
        while self.filters_end < filter_id:
            self.append_free()
        try:
            self.add(topic_filter)
        finally:
            while first_free < filter_id:
                self.filters[first_free].hash = known_free
                known_free = first_free
                first_free += 1
            self.free_id = known_free

    def remove(self, str topic_filter not None):
        """Forget a filter; returns the id it had. Raises KeyError when it is unknown."""
        raw = topic_filter.encode()
        known = self.known_id(raw, self.shape_of(self.split_filter(raw)))
        if known < 0:
            raise KeyError(topic_filter)
        cdef uint32_t filter_id = known
        cdef Filter* entry = &self.filters[filter_id]
        self.take_from_table(filter_id)
        if entry.shape == EXACT:
            self.exact_count -= 1
        else:
            self.shapes[entry.shape].filter_count -= 1
            self.drop_shape(entry.shape)
        self.text_bytes -= entry.size
        free(entry.text)
        entry.text = NULL
        entry.hash = self.free_id
        self.free_id = filter_id
        self.filter_count -= 1
        self.version += 1
        return filter_id

    def match(self, str topic not None):
        """Return the ids of the filters that match, ascending; none for an invalid topic name."""
        raw = topic.encode()
        cdef const uint8_t* data = raw
        cdef const Matches* found = self.find(data, len(raw))
        return sorted([found.ids[index] for index in range(found.count)])

    cdef const Matches* find(self, const uint8_t* topic, Py_ssize_t size) except NULL:
        """Return the matches of a topic; valid until the next call of any method.

        What is not a legal topic name matches nothing: native producers can put anything into a record, and
        a device would have to hang up on a PUBLISH with a wildcard in its topic [MQTT-3.3.2-2].
        """
        cdef Matches* found = <Matches*>self.cache.find(topic, size)
        cdef uint64_t value_bytes
        cdef bint is_kept
        if found != NULL and found.version == self.version:
            return found
        self.found_count = 0
        is_kept = is_topic(topic, size)
        if is_kept:
            self.collect(topic, size)
        self.uncached = Matches(self.version, self.found_count, self.found)
        value_bytes = sizeof(Matches) + self.found_count * sizeof(uint32_t)
        if not is_kept or not self.cache.may_take(size + value_bytes):
            if found != NULL:
                self.drop_cache()
            return &self.uncached
        if found == NULL:
            if not self.cache.has_room(size + value_bytes):
                self.drop_cache()
            return self.remember(topic, size, value_bytes)
        self.cache.size_bytes += value_bytes - sizeof(Matches) - found.count * sizeof(uint32_t)
        free(found.ids)
        found.ids = NULL
        found.count = 0
        self.copy_found(found)
        if self.cache.size_bytes > self.cache.bytes_max:
            self.drop_cache()
            return &self.uncached
        return found

    cdef Matches* remember(self, const uint8_t* topic, Py_ssize_t size, uint64_t value_bytes) except NULL:
        """Put what was found into the cache."""
        cdef Matches* found = <Matches*>calloc(1, sizeof(Matches))
        if found == NULL:
            raise MemoryError
        try:
            self.copy_found(found)
            self.cache.insert(topic, size, found, value_bytes)
        except BaseException:
            free(found.ids)
            free(found)
            raise
        return found

    cdef int copy_found(self, Matches* found) except -1:
        if self.found_count:
            found.ids = <uint32_t*>malloc(self.found_count * sizeof(uint32_t))
            if found.ids == NULL:
                raise MemoryError
            memcpy(found.ids, self.found, self.found_count * sizeof(uint32_t))
        found.count = self.found_count
        found.version = self.version
        return 0

    # A filter or topic in `levels`.

    cdef int split_filter(self, bytes raw) except -1:
        cdef const uint8_t* text = raw
        cdef int count = self.split(text, len(raw))
        if count < 0 or len(raw) > _TOPIC_BYTES_MAX:
            raise ValueError(
                f"a topic filter of {len(raw)} bytes: at most {_TOPIC_BYTES_MAX}, and {LEVELS_MAX} levels"
            )
        return count

    cdef int split(self, const uint8_t* text, Py_ssize_t size) noexcept nogil:
        """Return how many levels there are; -1 when there are more than LEVELS_MAX."""
        cdef Py_ssize_t at, start = 0
        cdef int count = 0
        for at in range(size + 1):
            if at == size or text[at] == b"/":
                if count == LEVELS_MAX:
                    return -1
                self.levels[count].text = text + start
                self.levels[count].size = at - start
                count += 1
                start = at + 1
        return count

    cdef void hash_levels(self, int count) noexcept nogil:
        cdef int index
        for index in range(count):
            self.levels[index].hash = keyed_hash(
                self.exact_seed, self.multiplier, self.levels[index].text, self.levels[index].size
            )

    cdef uint32_t hash_of(self, const Shape* shape) noexcept nogil:
        """Hash the literal levels of `levels`, as `shape` has them."""
        cdef uint64_t state = shape.seed
        cdef int index
        for index in range(shape.level_count):
            if not shape.wildcards[index]:
                state = fold(state ^ self.levels[index].hash, self.multiplier)
        return <uint32_t>(state ^ (state >> 32))

    cdef uint32_t hash_of_exact(self, const uint8_t* text, Py_ssize_t size) noexcept nogil:
        cdef uint64_t state = keyed_hash(self.exact_seed, self.multiplier, text, size)
        return <uint32_t>(state ^ (state >> 32))

    # Shapes.

    cdef int64_t shape_of(self, int level_count) except -3:
        """Return the place of the shape of the filter in `levels`: EXACT without a wildcard, -1 when there is none.

        Its levels are in `pattern` then.
        """
        cdef bint is_exact = True
        cdef int index
        for index in range(level_count):
            self.pattern[index] = (
                IS_ONE_LEVEL if _is(&self.levels[index], b"+") else IS_REST if _is(&self.levels[index], b"#") else 0
            )
            is_exact = is_exact and not self.pattern[index]
        if is_exact:
            return EXACT
        place = self.shape_places.get(<bytes>self.pattern[:level_count])
        return -1 if place is None else place

    cdef uint32_t new_shape(self, int level_count) except? 0:
        """Make room for the shape whose levels are in `pattern`."""
        cdef uint32_t place = self.free_shape
        cdef uint32_t capacity
        cdef Shape* grown
        cdef Shape* shape
        cdef bint is_open = self.pattern[level_count - 1] == IS_REST
        cdef uint8_t* wildcards
        if place == NO_ID and self.shapes_end == self.shapes_capacity:
            capacity = max(SHAPES_MIN, self.shapes_capacity * 2)
            grown = <Shape*>realloc(self.shapes, capacity * sizeof(Shape))
            if grown == NULL:
                raise MemoryError
            self.shapes = grown
            self.shapes_capacity = capacity
        wildcards = <uint8_t*>malloc(level_count)
        if wildcards == NULL:
            raise MemoryError
        memcpy(wildcards, self.pattern, level_count)
        if place == NO_ID:
            place = self.shapes_end
            self.shapes_end += 1
        else:
            self.free_shape = self.shapes[place].behind
        shape = &self.shapes[place]
        shape.seed = fold(self.exact_seed + place + 1, self.multiplier)
        shape.wildcards = wildcards
        shape.filter_count = 0
        shape.level_count = <uint16_t>(level_count - is_open)
        shape.is_open = is_open
        self.shape_places[<bytes>self.pattern[:level_count]] = place
        self.link(place)
        return place

    cdef uint32_t* chain_of(self, const Shape* shape) noexcept nogil:
        return &self.open_shapes[shape.level_count] if shape.is_open else &self.closed_shapes[shape.level_count]

    cdef void link(self, uint32_t place) noexcept nogil:
        """Put a shape at the head of the chain of those as deep."""
        cdef Shape* shape = &self.shapes[place]
        cdef uint32_t* head = self.chain_of(shape)
        shape.before = NO_ID
        shape.behind = head[0]
        if head[0] != NO_ID:
            self.shapes[head[0]].before = place
        head[0] = place

    cdef int drop_shape(self, uint32_t place) except -1:
        """Forget a shape, unless some filter has it."""
        cdef Shape* shape = &self.shapes[place]
        if shape.filter_count:
            return 0
        del self.shape_places[<bytes>shape.wildcards[:shape.level_count + shape.is_open]]
        if shape.before == NO_ID:
            self.chain_of(shape)[0] = shape.behind
        else:
            self.shapes[shape.before].behind = shape.behind
        if shape.behind != NO_ID:
            self.shapes[shape.behind].before = shape.before
        free(shape.wildcards)
        shape.wildcards = NULL
        shape.behind = self.free_shape
        self.free_shape = place
        return 0

    # Looking up.

    cdef int64_t known_id(self, bytes raw, int64_t shape) except -2:
        """Return the id of the filter in `levels` of this shape; -1 when it is unknown."""
        cdef const uint8_t* text = raw
        cdef Py_ssize_t size = len(raw)
        cdef uint32_t hash, at
        cdef Filter* entry
        if shape < 0:
            return -1
        if shape == EXACT:
            hash = self.hash_of_exact(text, size)
        else:
            self.hash_levels(self.shapes[shape].level_count)
            hash = self.hash_of(&self.shapes[shape])
        at = hash & self.table_mask
        while self.table[at]:
            entry = &self.filters[self.table[at] - 1]
            if (
                entry.hash == hash
                and entry.shape == shape
                and entry.size == size
                and memcmp(entry.text, text, size) == 0
            ):
                return self.table[at] - 1
            at = (at + 1) & self.table_mask
        return -1

    cdef int collect(self, const uint8_t* topic, Py_ssize_t size) except -1:
        """Put the ids of all filters that match the valid topic into `found`."""
        cdef bint is_system = topic[0] == b"$"
        cdef int count, depth
        cdef uint32_t hash, at
        cdef Filter* entry
        if self.exact_count:
            hash = self.hash_of_exact(topic, size)
            at = hash & self.table_mask
            while self.table[at]:
                entry = &self.filters[self.table[at] - 1]
                if (
                    entry.hash == hash
                    and entry.shape == EXACT
                    and entry.size == size
                    and memcmp(entry.text, topic, size) == 0
                ):
                    self.add_found(self.table[at] - 1)
                    break
                at = (at + 1) & self.table_mask
        if self.filter_count != self.exact_count:
            count = self.split(topic, size)
            self.hash_levels(count)
            # `a/#` matches `a`, too (section 4.7.1.2).
            for depth in range(count + 1):
                self.collect_chain(self.open_shapes[depth], is_system)
            self.collect_chain(self.closed_shapes[count], is_system)
        return 0

    cdef int collect_chain(self, uint32_t place, bint is_system) except -1:
        """Put the filters of some shapes that match the topic in `levels` into `found`."""
        cdef uint32_t hash, at
        cdef Filter* entry
        cdef Shape* shape
        while place != NO_ID:
            shape = &self.shapes[place]
            if not is_system or not shape.wildcards[0]:     # [MQTT-4.7.2-1]
                hash = self.hash_of(shape)
                at = hash & self.table_mask
                while self.table[at]:
                    entry = &self.filters[self.table[at] - 1]
                    if entry.hash == hash and entry.shape == place and self.has_literals(entry, shape):
                        self.add_found(self.table[at] - 1)
                        break
                    at = (at + 1) & self.table_mask
            place = shape.behind
        return 0

    cdef bint has_literals(self, const Filter* entry, const Shape* shape) noexcept nogil:
        """Return whether the literal levels of a filter of `shape` are those of the topic in `levels`."""
        cdef const uint8_t* at = entry.text
        cdef const uint8_t* end = at + entry.size
        cdef const uint8_t* start
        cdef int index
        for index in range(shape.level_count):
            start = at
            while at < end and at[0] != b"/":
                at += 1
            if not shape.wildcards[index] and (
                at - start != self.levels[index].size or memcmp(start, self.levels[index].text, at - start)
            ):
                return False
            at += 1
        return True

    cdef int add_found(self, uint32_t filter_id) except -1:
        cdef uint32_t capacity
        cdef uint32_t* grown
        if self.found_count == self.found_capacity:
            capacity = max(64, self.found_capacity * 2)
            grown = <uint32_t*>realloc(self.found, capacity * sizeof(uint32_t))
            if grown == NULL:
                raise MemoryError
            self.found = grown
            self.found_capacity = capacity
        self.found[self.found_count] = filter_id
        self.found_count += 1
        return 0

    # The table of all filters.

    cdef uint32_t take_id(
        self, const uint8_t* text, Py_ssize_t size, uint32_t hash, uint32_t shape
    ) except? 0:
        cdef uint32_t filter_id
        cdef uint8_t* copy
        # Before anything changes, so that no failure leaves half a filter behind.
        if (<uint64_t>self.filter_count + 1) * 10 > (<uint64_t>self.table_mask + 1) * 7:
            self.grow_table()
        copy = <uint8_t*>malloc(max(1, size))
        if copy == NULL:
            raise MemoryError
        memcpy(copy, text, size)
        if self.free_id != NO_ID:
            filter_id = self.free_id
            self.free_id = self.filters[filter_id].hash
        else:
            filter_id = self.filters_end
            try:
                self.append_free()
            except MemoryError:
                free(copy)
                raise
        self.filters[filter_id] = Filter(copy, hash, shape, <uint16_t>size)
        self.text_bytes += size
        self.filter_count += 1
        return filter_id

    cdef int append_free(self) except -1:
        """Allocate an id that no filter has."""
        cdef uint32_t capacity
        cdef Filter* grown
        if self.filters_end == self.filters_capacity:
            capacity = max(FILTERS_MIN, self.filters_capacity * 2)
            grown = <Filter*>realloc(self.filters, capacity * sizeof(Filter))
            if grown == NULL:
                raise MemoryError
            self.filters = grown
            self.filters_capacity = capacity
        self.filters[self.filters_end].text = NULL
        self.filters_end += 1
        return 0

    cdef void put_in_table(self, uint32_t filter_id) noexcept nogil:
        cdef uint32_t at = self.filters[filter_id].hash & self.table_mask
        while self.table[at]:
            at = (at + 1) & self.table_mask
        self.table[at] = filter_id + 1

    cdef int grow_table(self) except -1:
        cdef uint64_t size = (<uint64_t>self.table_mask + 1) * 2
        cdef uint32_t* former = self.table
        cdef uint32_t former_mask = self.table_mask
        cdef uint64_t index
        cdef uint32_t* table = <uint32_t*>calloc(size, sizeof(uint32_t))
        if table == NULL:
            raise MemoryError
        self.table = table
        self.table_mask = <uint32_t>(size - 1)
        for index in range(<uint64_t>former_mask + 1):
            if former[index]:
                self.put_in_table(former[index] - 1)
        free(former)
        return 0

    cdef void take_from_table(self, uint32_t filter_id) noexcept nogil:
        """Close the gap at once, so that no look-up ever walks over removed filters."""
        cdef uint32_t mask = self.table_mask
        cdef uint32_t gap = self.filters[filter_id].hash & mask
        cdef uint32_t at, home
        while self.table[gap] != filter_id + 1:
            gap = (gap + 1) & mask
        at = (gap + 1) & mask
        while self.table[at]:
            home = self.filters[self.table[at] - 1].hash & mask
            if ((at - home) & mask) >= ((at - gap) & mask):
                self.table[gap] = self.table[at]
                gap = at
            at = (at + 1) & mask
        self.table[gap] = 0

    def check_invariants(self):
        """AssertionError when table, shapes, chains and cache disagree with the filters."""
        cdef uint32_t index, place, counted = 0, exact = 0, linked = 0
        cdef uint64_t text_bytes = 0, cached = 0
        cdef int depth
        cdef Matches* found
        shapes = {}
        for index in range(self.filters_end):
            if self.filters[index].text == NULL:
                continue
            counted += 1
            text_bytes += self.filters[index].size
            exact += self.filters[index].shape == EXACT
            if self.filters[index].shape != EXACT:
                shapes[self.filters[index].shape] = shapes.get(self.filters[index].shape, 0) + 1
            if self.id_of(self.filter_of(index)) != index:
                raise AssertionError(f"filter {index} is not found")
        for depth in range(LEVELS_MAX + 1):
            for place in (self.open_shapes[depth], self.closed_shapes[depth]):
                while place != NO_ID:
                    linked += 1
                    if self.shapes[place].level_count != depth or self.shapes[place].filter_count != shapes.get(place):
                        raise AssertionError(f"shape {place} has {self.shapes[place].filter_count} filters")
                    place = self.shapes[place].behind
        for index in range(self.cache.mask + 1):
            if self.cache.slots[index].topic != NULL:
                found = <Matches*>self.cache.slots[index].value
                cached += self.cache.slots[index].topic_size + sizeof(Matches) + found.count * sizeof(uint32_t)
        books = (counted, exact, text_bytes, linked, len(self.shape_places), cached)
        if books != (
            self.filter_count, self.exact_count, self.text_bytes, len(shapes), len(shapes), self.cache.size_bytes
        ):
            raise AssertionError(f"the filter index has lost count: {books}")

    cdef void drop_cache(self) noexcept:
        cdef uint64_t index
        cdef Matches* found
        for index in range(<uint64_t>self.cache.mask + 1):
            if self.cache.slots[index].topic != NULL:
                found = <Matches*>self.cache.slots[index].value
                free(found.ids)
                free(found)
        self.cache.clear_topics()


cdef inline bint _is(const Level* level, uint8_t wildcard) noexcept nogil:
    return level.size == 1 and level.text[0] == wildcard


cdef bint is_topic(const uint8_t* topic, Py_ssize_t size) except -1:
    """Check a topic name like mqtt.topics.topics.decode_topic_name, without making the text."""
    cdef Py_ssize_t at
    cdef int slashes = 0
    cdef uint8_t high = 0
    if not 0 < size <= _TOPIC_BYTES_MAX:
        return False
    for at in range(size):
        if topic[at] < 0x20 or topic[at] == 0x7F or topic[at] == b"+" or topic[at] == b"#":
            return False
        slashes += topic[at] == b"/"
        high |= topic[at]
    if slashes >= LEVELS_MAX:
        return False
    if high >= 0x80:
        try:
            PyUnicode_DecodeUTF8(<const char*>topic, size, NULL)
        except UnicodeDecodeError:
            return False
    return True


def is_topic_name(bytes topic not None):
    """Return whether a device can be sent something under a topic."""
    cdef const uint8_t* data = topic
    return is_topic(data, len(topic))
