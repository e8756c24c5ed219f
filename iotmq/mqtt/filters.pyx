"""Which of many topic filters match a topic.

Operations: add and remove a filter (thousands a second), find the filters of a topic (millions a second).
Goals: a million filters of one form (`dev/ID/cmd/#`) cost one look-up and some 60 bytes each, not a million
trie nodes; nothing is slow after a change, because devices come and go all the time. Plan: filters are grouped
by *shape* (which levels are literal, which `+`, whether `#` ends it), and one hash table holds all of them by
shape and literal levels; a topic's levels are hashed once and looked up for each shape. Filters without a
wildcard are one more shape, looked up by the whole text. A trie takes the filters whose shape comes after
`shapes_max` others, so that odd shapes cannot slow every topic down. Matches of a topic are cached; any change
of the index makes the cached ones stale by version.
"""

from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy

from iotmq.mqtt.keyed_hash cimport fold, keyed_hash
from iotmq.mqtt.topic_table cimport TopicTable

import os

from iotmq import limits

if LEVELS_MAX != limits.MQTT_TOPIC_LEVELS_MAX:
    raise ImportError("LEVELS_MAX of mqtt/filters.pxd is not limits.MQTT_TOPIC_LEVELS_MAX")

_TRIE_ID = object()     # key of a trie node's own filter id; no level is equal to it

cdef enum:
    EXACT = 0xFFFE      # places in `shapes` no shape has
    IN_TRIE = 0xFFFF
    TABLE_SIZE_MIN = 64
    FILTERS_MIN = 64

cdef uint32_t NO_ID = 0xFFFFFFFF
cdef Py_ssize_t _TOPIC_BYTES_MAX = limits.MQTT_TOPIC_BYTES_MAX


cdef class FilterIndex:
    """Numbers filters and finds those that match a topic. Filters are taken as valid (mqtt.topics)."""

    def __cinit__(self, *, int shapes_max=32, uint32_t cached_topics_max=65_536):
        if not 0 <= shapes_max < EXACT:
            raise ValueError(f"shapes_max is {shapes_max}, must be in 0..{EXACT - 1}")
        self.shapes = <Shape*>calloc(max(1, shapes_max), sizeof(Shape))
        self.table = <uint32_t*>calloc(TABLE_SIZE_MIN, sizeof(uint32_t))
        if self.shapes == NULL or self.table == NULL:
            raise MemoryError
        self.table_mask = TABLE_SIZE_MIN - 1
        self.shapes_max = shapes_max
        self.free_id = NO_ID
        self.trie = {}
        self.trie_ids = {}
        self.version = 1
        self.multiplier = int.from_bytes(os.urandom(8), "little") | 1
        self.exact_seed = int.from_bytes(os.urandom(8), "little")
        self.cache = TopicTable(cached_topics_max)

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
        """True when no filter is known."""
        return self.filter_count == 0

    @property
    def memory_bytes(self):
        """What the filters take, without the cache of matches and without the trie."""
        return (
            self.filters_capacity * sizeof(Filter)
            + (<uint64_t>self.table_mask + 1) * sizeof(uint32_t)
            + self.text_bytes
        )

    def id_of(self, str topic_filter not None):
        """The filter's id, or None."""
        raw = topic_filter.encode()
        found = self.known_id(raw, self.split_filter(raw), topic_filter)
        return None if found < 0 else found

    def filter_of(self, uint32_t filter_id):
        """The filter that has this id, or None."""
        if filter_id >= self.filters_end or self.filters[filter_id].text == NULL:
            return None
        return self.filters[filter_id].text[:self.filters[filter_id].size].decode()

    def add(self, str topic_filter not None):
        """The filter's id: the one it has, or a new one (those that became free are used again).

        Raises ValueError for a filter past limits.MQTT_TOPIC_BYTES_MAX or MQTT_TOPIC_LEVELS_MAX.
        """
        raw = topic_filter.encode()
        cdef const uint8_t* text = raw
        cdef Py_ssize_t size = len(raw)
        cdef int count = self.split_filter(raw)
        cdef int place
        cdef uint32_t filter_id
        known = self.known_id(raw, count, topic_filter)
        if known >= 0:
            return known
        if self.is_exact(count):
            filter_id = self.take_id(text, size, self.hash_of_exact(text, size), EXACT)
            self.put_in_table(filter_id)
            self.exact_count += 1
        else:
            place = self.shape_of_levels(count)
            if place < 0:
                place = self.new_shape(count)
            if place >= 0:
                self.hash_levels(count)
                filter_id = self.take_id(text, size, self.hash_of(&self.shapes[place]), <uint16_t>place)
                self.put_in_table(filter_id)
                self.shapes[place].filter_count += 1
            else:
                filter_id = self.take_id(text, size, 0, IN_TRIE)
                self.trie_ids[topic_filter] = filter_id
                node = self.trie
                for level in topic_filter.split("/"):
                    node = node.setdefault(level, {})
                node[_TRIE_ID] = filter_id
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
        known = self.known_id(raw, self.split_filter(raw), topic_filter)
        if known < 0:
            raise KeyError(topic_filter)
        cdef uint32_t filter_id = known
        cdef Filter* entry = &self.filters[filter_id]
        if entry.shape == IN_TRIE:
            del self.trie_ids[topic_filter]
            _remove_from_trie(self.trie, topic_filter.split("/"))
        else:
            self.take_from_table(filter_id)
            if entry.shape == EXACT:
                self.exact_count -= 1
            else:
                self.shapes[entry.shape].filter_count -= 1
        self.text_bytes -= entry.size
        free(entry.text)
        entry.text = NULL
        entry.hash = self.free_id
        self.free_id = filter_id
        self.filter_count -= 1
        self.version += 1
        return filter_id

    def match(self, str topic not None):
        """The ids of the filters that match, ascending; none for what is not a topic name."""
        raw = topic.encode()
        cdef const uint8_t* data = raw
        cdef const Matches* found = self.find(data, len(raw))
        return sorted([found.ids[index] for index in range(found.count)])

    cdef const Matches* find(self, const uint8_t* topic, Py_ssize_t size) except NULL:
        """The matches of a topic; valid until the next call of any method.

        What is not a legal topic name matches nothing: native producers can put anything into a record, and
        a device would have to hang up on a PUBLISH with a wildcard in its topic [MQTT-3.3.2-2].
        """
        cdef Matches* found = <Matches*>self.cache.find(topic, size)
        cdef bint is_new = found == NULL
        cdef uint32_t* ids = NULL
        if not is_new and found.version == self.version:
            return found
        self.found_count = 0
        if _is_topic_name(topic, size):
            self.collect(topic, size)
        if self.found_count:
            ids = <uint32_t*>malloc(self.found_count * sizeof(uint32_t))
            if ids == NULL:
                raise MemoryError
            memcpy(ids, self.found, self.found_count * sizeof(uint32_t))
        if is_new:
            if self.cache.count == self.cache.count_max:
                self.drop_cache()
            found = <Matches*>calloc(1, sizeof(Matches))
            if found == NULL:
                free(ids)
                raise MemoryError
            try:
                self.cache.insert(topic, size, found)
            except BaseException:
                free(found)
                free(ids)
                raise
        free(found.ids)
        found.ids = ids
        found.count = self.found_count
        found.version = self.version
        return found

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
        """How many levels there are; -1 when there are more than LEVELS_MAX."""
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
        """Of the literal levels of what is in `levels`, as `shape` has them."""
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

    cdef bint is_exact(self, int level_count) noexcept nogil:
        cdef int index
        for index in range(level_count):
            if _is(&self.levels[index], b"+") or _is(&self.levels[index], b"#"):
                return False
        return True

    cdef int shape_of_levels(self, int level_count) noexcept nogil:
        """The place of the shape of the filter in `levels`, -1 when there is none."""
        cdef bint is_open = _is(&self.levels[level_count - 1], b"#")
        cdef int fixed = level_count - is_open
        cdef uint32_t place
        cdef int index
        cdef Shape* shape
        for place in range(self.shapes_end):
            shape = &self.shapes[place]
            if shape.filter_count == 0 or shape.is_open != is_open or shape.level_count != fixed:
                continue
            for index in range(fixed):
                if shape.wildcards[index] != _is(&self.levels[index], b"+"):
                    break
            else:
                return <int>place
        return -1

    cdef int new_shape(self, int level_count) except -2:
        """Make room for the shape of the filter in `levels`; -1 when there are too many."""
        cdef bint is_open = _is(&self.levels[level_count - 1], b"#")
        cdef int fixed = level_count - is_open
        cdef uint32_t place = 0
        cdef int index
        cdef uint8_t* wildcards
        while place < self.shapes_end and self.shapes[place].filter_count:
            place += 1
        if place == <uint32_t>self.shapes_max:
            return -1
        wildcards = <uint8_t*>malloc(max(1, fixed))
        if wildcards == NULL:
            raise MemoryError
        for index in range(fixed):
            wildcards[index] = _is(&self.levels[index], b"+")
        free(self.shapes[place].wildcards)
        self.shapes[place].wildcards = wildcards
        self.shapes[place].level_count = <uint16_t>fixed
        self.shapes[place].is_open = is_open
        self.shapes[place].seed = fold(self.exact_seed + place + 1, self.multiplier)
        self.shapes_end = max(self.shapes_end, place + 1)
        return <int>place

    # Looking up.

    cdef int64_t known_id(self, bytes raw, int level_count, str topic_filter) except -2:
        """The id of the filter, which is in `levels`; -1 when it is unknown."""
        cdef const uint8_t* text = raw
        cdef Py_ssize_t size = len(raw)
        cdef uint16_t shape = EXACT
        cdef uint32_t hash, at
        cdef int place
        cdef Filter* entry
        if self.trie_ids:
            in_trie = self.trie_ids.get(topic_filter)
            if in_trie is not None:
                return in_trie
        if self.is_exact(level_count):
            hash = self.hash_of_exact(text, size)
        else:
            place = self.shape_of_levels(level_count)
            if place < 0:
                return -1
            shape = <uint16_t>place
            self.hash_levels(level_count)
            hash = self.hash_of(&self.shapes[place])
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
        cdef int count
        cdef uint32_t place, hash, at
        cdef Filter* entry
        cdef Shape* shape
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
        if self.table_count != self.exact_count:
            count = self.split(topic, size)
            self.hash_levels(count)
            for place in range(self.shapes_end):
                shape = &self.shapes[place]
                if shape.filter_count == 0:
                    continue
                if is_system and (shape.level_count == 0 or shape.wildcards[0]):    # [MQTT-4.7.2-1]
                    continue
                # `a/#` matches `a`, too (section 4.7.1.2).
                if count < shape.level_count or (count != shape.level_count and not shape.is_open):
                    continue
                hash = self.hash_of(shape)
                at = hash & self.table_mask
                while self.table[at]:
                    entry = &self.filters[self.table[at] - 1]
                    if entry.hash == hash and entry.shape == place and self.has_literals(entry, shape):
                        self.add_found(self.table[at] - 1)
                        break
                    at = (at + 1) & self.table_mask
        if self.trie:
            for filter_id in _match_trie(self.trie, topic[:size].decode().split("/"), is_system):
                self.add_found(filter_id)
        return 0

    cdef bint has_literals(self, const Filter* entry, const Shape* shape) noexcept nogil:
        """Whether the literal levels of a filter of `shape` are those of the topic in `levels`."""
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

    # The table of all filters but those in the trie.

    cdef uint32_t take_id(
        self, const uint8_t* text, Py_ssize_t size, uint32_t hash, uint16_t shape
    ) except? 0:
        cdef uint32_t filter_id
        cdef uint8_t* copy
        # Before anything changes, so that no failure leaves half a filter behind.
        if shape != IN_TRIE and (<uint64_t>self.table_count + 1) * 10 > (<uint64_t>self.table_mask + 1) * 7:
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
        self.filters[filter_id] = Filter(copy, hash, <uint16_t>size, shape)
        self.text_bytes += size
        self.filter_count += 1
        return filter_id

    cdef int append_free(self) except -1:
        """One more id, of no filter and not in the chain of free ones."""
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
        self.table_count += 1

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
        self.table_count = 0
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
        self.table_count -= 1

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


cdef bint _is_topic_name(const uint8_t* topic, Py_ssize_t size) except -1:
    """What mqtt.topics.decode_topic_name takes, without making the text."""
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


def _remove_from_trie(dict root, list levels):
    path = [root]
    for level in levels:
        path.append(path[-1][level])
    del path[-1][_TRIE_ID]
    for node, level in zip(reversed(path[:-1]), reversed(levels)):
        if node[level]:
            break
        del node[level]


def _match_trie(dict root, list levels, bint is_system):
    """The ids of the filters that match. Breadth first: only nodes whose path matches so far are looked at."""
    matches = []
    nodes = [root]
    for depth, level in enumerate(levels):
        following = []
        for node in nodes:
            if not (is_system and depth == 0):
                if "#" in node:
                    matches.append(node["#"][_TRIE_ID])
                if "+" in node:
                    following.append(node["+"])
            if level in node:
                following.append(node[level])
        nodes = following
        if not nodes:
            return matches
    for node in nodes:
        if _TRIE_ID in node:
            matches.append(node[_TRIE_ID])
        if "#" in node:
            matches.append(node["#"][_TRIE_ID])
    return matches
