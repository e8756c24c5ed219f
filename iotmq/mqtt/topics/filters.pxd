from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from iotmq.mqtt.topics.topic_cache cimport TopicCache

cdef enum:
    # limits.MQTT_TOPIC_LEVELS_MAX, which is checked when the module is loaded.
    LEVELS_MAX = 128


cdef struct Matches:
    uint64_t version        # of the index when the ids were found
    uint32_t count
    uint32_t* ids


cdef packed struct Filter:  # there are millions
    uint8_t* text           # owned UTF-8; NULL marks a free id, whose `hash` is then the next free one
    uint32_t hash           # of the shape and the literal levels
    uint32_t shape          # place in `shapes`, or EXACT
    uint16_t size


cdef struct Shape:
    uint64_t seed           # start of the hash, so that the same literals differ by shape
    uint8_t* wildcards      # per level 1 for `+`, 0 for a literal
    uint32_t filter_count   # 0 marks a free place
    uint32_t before         # neighbours in the chain of those as deep; NO_ID at its ends
    uint32_t behind         # of a free place the next free one
    uint16_t level_count    # without a closing `#`
    bint is_open            # ends in `#`


cdef struct Level:
    const uint8_t* text
    Py_ssize_t size
    uint64_t hash


cdef class FilterIndex:
    cdef Filter* filters                # by id
    cdef uint32_t filters_end           # ids below were given out at some time
    cdef uint32_t filters_capacity
    cdef uint32_t free_id               # head of the chain of free ids, NO_ID when there is none
    cdef uint32_t filter_count
    cdef uint32_t* table                # open addressing: id + 1, 0 for nobody
    cdef uint32_t table_mask
    cdef uint32_t exact_count
    cdef Shape* shapes
    cdef uint32_t shapes_end            # places below were given out at some time
    cdef uint32_t shapes_capacity
    cdef uint32_t free_shape            # head of the chain of free places, NO_ID when there is none
    cdef dict shape_places              # levels of a shape, as `pattern` has them -> its place
    cdef uint32_t open_shapes[LEVELS_MAX + 1]   # heads of the chains, by the number of levels: with `#` at the end
    cdef uint32_t closed_shapes[LEVELS_MAX + 1]  # and without
    cdef uint8_t pattern[LEVELS_MAX]    # per level of the filter at hand 1 for `+`, 2 for `#`, 0 for a literal
    cdef uint64_t text_bytes
    cdef uint64_t version
    cdef uint64_t multiplier
    cdef uint64_t exact_seed
    cdef TopicCache cache
    cdef Matches uncached               # what was found last and is not in the cache; its ids are `found`
    cdef Level levels[LEVELS_MAX]       # of the topic or filter at hand
    cdef uint32_t* found                # the matches being collected
    cdef uint32_t found_count
    cdef uint32_t found_capacity

    cdef const Matches* find(self, const uint8_t* topic, Py_ssize_t size) except NULL
    cdef int split(self, const uint8_t* text, Py_ssize_t size) noexcept nogil
    cdef void hash_levels(self, int count) noexcept nogil
    cdef uint32_t hash_of(self, const Shape* shape) noexcept nogil
    cdef uint32_t hash_of_exact(self, const uint8_t* text, Py_ssize_t size) noexcept nogil
    cdef int64_t shape_of(self, int level_count) except -3
    cdef uint32_t new_shape(self, int level_count) except? 0
    cdef void link(self, uint32_t place) noexcept nogil
    cdef int drop_shape(self, uint32_t place) except -1
    cdef uint32_t* chain_of(self, const Shape* shape) noexcept nogil
    cdef int collect_chain(self, uint32_t place, bint is_system) except -1
    cdef int split_filter(self, bytes raw) except -1
    cdef int64_t known_id(self, bytes raw, int64_t shape) except -2
    cdef bint has_literals(self, const Filter* entry, const Shape* shape) noexcept nogil
    cdef int collect(self, const uint8_t* topic, Py_ssize_t size) except -1
    cdef Matches* remember(self, const uint8_t* topic, Py_ssize_t size, uint64_t value_bytes) except NULL
    cdef int copy_found(self, Matches* found) except -1
    cdef int add_found(self, uint32_t filter_id) except -1
    cdef int append_free(self) except -1
    cdef void put_in_table(self, uint32_t filter_id) noexcept nogil
    cdef int grow_table(self) except -1
    cdef void take_from_table(self, uint32_t filter_id) noexcept nogil
    cdef uint32_t take_id(self, const uint8_t* text, Py_ssize_t size, uint32_t hash, uint32_t shape) except? 0
    cdef void drop_cache(self) noexcept


cdef bint is_topic(const uint8_t* topic, Py_ssize_t size) except -1
