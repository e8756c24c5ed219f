"""Which of many topic filters match a topic.

Operations: add and remove a filter (thousands a second), find the filters of a topic (millions a second).
Goals: a million filters of one form (`dev/ID/cmd/#`) cost one look-up, not a million trie nodes; the common
case is one cached look-up without a Python object. Plan: filters without wildcards in a dict; wildcard
filters grouped by *shape* (`l` literal, `+`, `#`), each shape a dict keyed by its literal levels; a trie
takes the filters whose shape comes after `shapes_max` others, so that odd shapes cannot slow every topic
down. Matches of a topic are cached; any change of the index makes the cached ones stale by version.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from iotmq.mqtt.topic_table cimport TopicTable

from iotmq.mqtt.errors import MqttProtocolError
from iotmq.mqtt.topics import decode_topic_name

_TRIE_ID = object()     # key of a trie node's own filter id; no level is equal to it


cdef class FilterIndex:
    """Numbers filters and finds those that match a topic. Filters are taken as valid (mqtt.topics)."""

    def __init__(self, *, int shapes_max=32, uint32_t cached_topics_max=65_536):
        self._ids = {}
        self._filters = []
        self._free_ids = []
        self._exact = {}
        self._shapes = {}
        self._trie = {}
        self.shapes_max = shapes_max
        self._version = 1
        self._cache = TopicTable(cached_topics_max)

    def __dealloc__(self):
        if self._cache is not None:
            self._drop_cache()

    def __len__(self):
        return len(self._ids)

    def __contains__(self, str topic_filter):
        return topic_filter in self._ids

    @property
    def is_empty(self):
        """True when no filter is known."""
        return not self._ids

    def id_of(self, str topic_filter not None):
        """The filter's id, or None."""
        return self._ids.get(topic_filter)

    def add(self, str topic_filter not None):
        """The filter's id: the one it has, or a new one (those that became free are used again)."""
        known = self._ids.get(topic_filter)
        if known is not None:
            return known
        if self._free_ids:
            filter_id = self._free_ids.pop()
            self._filters[filter_id] = topic_filter
        else:
            filter_id = len(self._filters)
            self._filters.append(topic_filter)
        self._ids[topic_filter] = filter_id
        levels = topic_filter.split("/")
        shape, literals = _shape_of(levels)
        if shape is None:
            self._exact[topic_filter] = filter_id
        elif shape in self._shapes or len(self._shapes) < self.shapes_max:
            self._shapes.setdefault(shape, {})[literals] = filter_id
        else:
            node = self._trie
            for level in levels:
                node = node.setdefault(level, {})
            node[_TRIE_ID] = filter_id
        self._version += 1
        return filter_id

    def remove(self, str topic_filter not None):
        """Forget a filter; returns the id it had. Raises KeyError when it is unknown."""
        filter_id = self._ids.pop(topic_filter)
        self._filters[filter_id] = None
        self._free_ids.append(filter_id)
        levels = topic_filter.split("/")
        shape, literals = _shape_of(levels)
        if shape is None:
            del self._exact[topic_filter]
        elif literals in self._shapes.get(shape, ()):
            group = self._shapes[shape]
            del group[literals]
            if not group:
                del self._shapes[shape]
        else:
            _remove_from_trie(self._trie, levels)
        self._version += 1
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
        cdef Matches* found = <Matches*>self._cache.find(topic, size)
        cdef bint is_new = found == NULL
        cdef uint32_t* ids = NULL
        cdef Py_ssize_t index
        if not is_new and found.version == self._version:
            return found
        try:
            matches = self._match(decode_topic_name(topic[:size]))
        except MqttProtocolError:
            matches = []
        if matches:
            ids = <uint32_t*>malloc(len(matches) * sizeof(uint32_t))
            if ids == NULL:
                raise MemoryError
            for index in range(len(matches)):
                ids[index] = matches[index]
        if is_new:
            if self._cache.count == self._cache.count_max:
                self._drop_cache()
            found = <Matches*>calloc(1, sizeof(Matches))
            if found == NULL:
                free(ids)
                raise MemoryError
            try:
                self._cache.insert(topic, size, found)
            except BaseException:
                free(found)
                free(ids)
                raise
        free(found.ids)
        found.ids = ids
        found.count = <uint32_t>len(matches)
        found.version = self._version
        return found

    cdef list _match(self, str topic):
        cdef list levels = topic.split("/")
        cdef list matches = []
        cdef Py_ssize_t count = len(levels)
        cdef Py_ssize_t fixed
        cdef bint is_system = topic.startswith("$")
        exact = self._exact.get(topic)
        if exact is not None:
            matches.append(exact)
        for shape, group in self._shapes.items():
            if is_system and shape[0] != "l":     # [MQTT-4.7.2-1]
                continue
            fixed = len(shape)
            if shape[fixed - 1] == "#":
                fixed -= 1                        # `a/#` matches `a`, too (section 4.7.1.2)
                if count < fixed:
                    continue
            elif count != fixed:
                continue
            found = group.get(tuple([level for kind, level in zip(shape, levels) if kind == "l"]))
            if found is not None:
                matches.append(found)
        if self._trie:
            _match_trie(self._trie, levels, is_system, matches)
        return matches

    cdef void _drop_cache(self) noexcept:
        cdef uint64_t index
        cdef Matches* found
        for index in range(<uint64_t>self._cache.mask + 1):
            if self._cache.slots[index].topic != NULL:
                found = <Matches*>self._cache.slots[index].value
                free(found.ids)
                free(found)
        self._cache.clear_topics()


def _shape_of(list levels):
    """(shape, literal levels) of a wildcard filter, or (None, None)."""
    if "+" not in levels and "#" not in levels:
        return None, None
    shape = "".join([level if level in ("+", "#") else "l" for level in levels])
    return shape, tuple([level for level in levels if level not in ("+", "#")])


def _remove_from_trie(dict root, list levels):
    path = [root]
    for level in levels:
        path.append(path[-1][level])
    del path[-1][_TRIE_ID]
    for node, level in zip(reversed(path[:-1]), reversed(levels)):
        if node[level]:
            break
        del node[level]


def _match_trie(dict root, list levels, bint is_system, list matches):
    """Breadth first: only nodes whose path matches the topic so far are looked at."""
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
            return
    for node in nodes:
        if _TRIE_ID in node:
            matches.append(node[_TRIE_ID])
        if "#" in node:
            matches.append(node["#"][_TRIE_ID])
