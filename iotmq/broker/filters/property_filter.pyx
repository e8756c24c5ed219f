"""The filter a SQL92 expression becomes: evaluated over records as they stand in the log.

Operations: one `accepts` per record that a pull looks at, some hundred in a row. Goals: nothing is made per
record, and the cost of an expression somebody else wrote is bounded. Plan: the tree becomes an array of
nodes linked by index; a record's properties are walked once, from the back, and those that the expression
names are noted as pointers into the record; then the nodes are evaluated. Measured beside decoding each
record's properties to a dictionary: tests/property/test_property_filter_properties.py has the slow twin.

Truth has three values, as in SQL: a comparison with a property that is missing, or with a text that is no
number where a number is needed, is unknown, and a record passes only when the whole is true.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.conversion cimport PyOS_string_to_double
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy

from iotmq.message.records.layout cimport NAME_END, PROPERTY_END
from iotmq.message.records.fields cimport FORMAT_OK, RecordParts
from iotmq.message.records.record cimport parse_record
from iotmq.message.records.record_filter cimport RecordFilter

from iotmq import limits
from iotmq.broker.filters.sql_tree import (
    And,
    Compare,
    Constant,
    In,
    IsNull,
    Not,
    Or,
    Property,
    Sample,
    Search,
    property_names,
)

cdef extern from "<string.h>" nogil:
    void* memmem(const void* haystack, size_t haystack_size, const void* needle, size_t needle_size)
    void* memrchr(const void* text, int value, size_t size)

cdef enum:
    FALSE = 0
    TRUE = 1
    UNKNOWN = 2

cdef enum Kind:
    NOTHING = 0
    TEXT
    INTEGER
    REAL
    TRUTH

cdef enum Operation:
    PROPERTY = 0
    CONSTANT
    EQUAL
    GREATER
    GREATER_EQUAL
    LESS
    LESS_EQUAL
    IS_NULL
    IN
    CONTAINS
    STARTS_WITH
    ENDS_WITH
    SAMPLE
    NOT
    AND
    OR

cdef enum:
    PROPERTIES_MAX = 64
    # Longer texts are no numbers.
    NUMBER_BYTES_MAX = 64

_COMPARISONS = {"=": EQUAL, ">": GREATER, ">=": GREATER_EQUAL, "<": LESS, "<=": LESS_EQUAL}
_SEARCHES = {"contains": CONTAINS, "startswith": STARTS_WITH, "endswith": ENDS_WITH}


cdef struct Value:
    int kind
    bint truth
    int64_t integer
    double real
    const uint8_t* text
    Py_ssize_t size


# `child` and `next` are indices of nodes, -1 for none; `constant` is what CONSTANT and the texts of searches
# hold, for IN each text is a CONSTANT child, and SAMPLE has the share of 2^32.
cdef struct Node:
    int operation
    int32_t child
    int32_t next
    int32_t number                 # of the property
    Value constant


cdef struct Name:
    const char* text
    Py_ssize_t size


assert limits.FILTER_PROPERTIES_MAX <= PROPERTIES_MAX


cdef class PropertyFilter(RecordFilter):
    """A tree of iotmq.broker.filters.sql_tree, ready to be asked."""

    cdef Node* nodes
    cdef int32_t node_count
    cdef int32_t root
    cdef Name names[PROPERTIES_MAX]
    cdef Py_ssize_t name_count
    # Of the record that is looked at.
    cdef int64_t position
    # What the pointers of `nodes` and `names` point into.
    cdef list kept
    cdef readonly tuple properties

    def __cinit__(self):
        self.nodes = NULL

    def __init__(self, tree):
        cdef Py_ssize_t number
        if self.nodes != NULL:
            raise RuntimeError("a filter is made once")
        names = property_names(tree)
        if len(names) > PROPERTIES_MAX:
            raise ValueError(f"{len(names)} properties are more than {PROPERTIES_MAX}")
        self.kept = []
        self.properties = tuple(names)
        self.name_count = len(names)
        for number in range(self.name_count):
            name = self.keep(names[number])
            self.names[number].text = PyBytes_AS_STRING(name)
            self.names[number].size = PyBytes_GET_SIZE(name)
        count = count_nodes(tree)
        self.nodes = <Node*> calloc(count, sizeof(Node))
        if self.nodes == NULL:
            raise MemoryError
        self.root = self.add(tree)
        assert self.node_count == count

    def __dealloc__(self):
        free(self.nodes)

    def evaluate(self, const uint8_t[::1] properties not None):
        """Return the truth of the expression for a record's raw properties; None when it is unknown."""
        cdef int truth
        self.position = 0
        truth = self.judge(&properties[0] if properties.shape[0] else NULL, properties.shape[0])
        return None if truth == UNKNOWN else truth == TRUE

    def matches(self, const uint8_t[::1] record not None):
        """Return whether an encoded record passes."""
        return record.shape[0] > 0 and self.accepts(&record[0], record.shape[0])

    @property
    def work_done(self):
        """Bytes looked at so far, for tests of what an expression costs."""
        return self.work_bytes

    cdef bint accepts(self, const uint8_t* record, Py_ssize_t size) noexcept:
        cdef RecordParts parts
        if parse_record(record, record + size, &parts) != FORMAT_OK:
            return False
        self.position = parts.position
        return self.judge(parts.properties, parts.properties_size) == TRUE

    cdef int judge(self, const uint8_t* properties, Py_ssize_t size) noexcept:
        cdef Value values[PROPERTIES_MAX]
        cdef Py_ssize_t number
        for number in range(self.name_count):
            values[number].kind = NOTHING
        self.work_bytes += size + self.node_count
        self.find(properties, size, values)
        return self.truth(self.root, values)

    cdef void find(self, const uint8_t* properties, Py_ssize_t size, Value* values) noexcept:
        # From the back, because the last of several with one name counts.
        cdef const uint8_t* end = properties + size
        cdef const uint8_t* start
        cdef const uint8_t* found
        cdef Py_ssize_t number
        cdef Py_ssize_t missing = self.name_count
        cdef Name* name
        while end > properties and missing:
            found = <const uint8_t*> memrchr(properties, PROPERTY_END, end - properties)
            start = properties if found == NULL else found + 1
            for number in range(self.name_count):
                name = &self.names[number]
                if (
                    values[number].kind == NOTHING
                    and end - start > name.size
                    and start[name.size] == NAME_END
                    and memcmp(start, name.text, name.size) == 0
                ):
                    values[number].kind = TEXT
                    values[number].text = start + name.size + 1
                    values[number].size = end - start - name.size - 1
                    missing -= 1
                    break
            if found == NULL:
                return
            end = found

    cdef int truth(self, int32_t index, const Value* values) noexcept:
        cdef const Node* node = &self.nodes[index]
        cdef const Value* value
        cdef Value left, right
        cdef int32_t child = node.child
        cdef int result, one
        if node.operation == CONSTANT:
            return node.constant.truth if node.constant.kind == TRUTH else UNKNOWN
        if node.operation == SAMPLE:
            return <int64_t> (mixed(<uint64_t> self.position) >> 32) < node.constant.integer
        if node.operation == NOT:
            one = self.truth(child, values)
            return UNKNOWN if one == UNKNOWN else 1 - one
        if node.operation == AND or node.operation == OR:
            # The value that decides ends the search: FALSE for AND, TRUE for OR.
            result = 1 if node.operation == AND else 0
            while child >= 0:
                one = self.truth(child, values)
                if one == UNKNOWN:
                    result = UNKNOWN
                elif one == node.operation - AND:
                    return one
                child = self.nodes[child].next
            return result
        if node.operation == IS_NULL:
            self.operand(child, values, &left)
            return left.kind == NOTHING
        if node.operation >= IN and node.operation <= ENDS_WITH:
            value = &values[node.number]
            if value.kind == NOTHING:
                return UNKNOWN
            if node.operation == IN:
                while child >= 0:
                    if is_text(value, &self.nodes[child].constant):
                        return TRUE
                    child = self.nodes[child].next
                return FALSE
            self.work_bytes += value.size
            return has_text(node.operation, value, &node.constant)
        self.operand(child, values, &left)
        self.operand(self.nodes[child].next, values, &right)
        if left.kind == NOTHING or right.kind == NOTHING:
            return UNKNOWN
        return equal(&left, &right) if node.operation == EQUAL else ordered(node.operation, &left, &right)

    cdef void operand(self, int32_t index, const Value* values, Value* out) noexcept:
        cdef const Node* node = &self.nodes[index]
        cdef int truth
        if node.operation == PROPERTY:
            out[0] = values[node.number]
        elif node.operation == CONSTANT:
            out[0] = node.constant
        else:
            truth = self.truth(index, values)
            out.kind = NOTHING if truth == UNKNOWN else TRUTH
            out.truth = truth == TRUE

    cdef bytes keep(self, str text):
        encoded = text.encode("utf-8", "surrogatepass")
        self.kept.append(encoded)
        return encoded

    cdef int32_t add(self, tree) except -1:
        """Write the node of `tree` and those below it; returns its index."""
        cdef int32_t index = self.node_count
        cdef Node* node = &self.nodes[index]
        self.node_count += 1
        node.child = node.next = -1
        if isinstance(tree, Property):
            node.operation = PROPERTY
            node.number = self.properties.index(tree.name)
        elif isinstance(tree, Constant):
            node.operation = CONSTANT
            self.hold(node, tree.value)
        elif isinstance(tree, In):
            node.operation = IN
            node.number = self.properties.index(tree.name)
            self.add_children(index, [Constant(text) for text in tree.texts])
        elif isinstance(tree, Search):
            node.operation = _SEARCHES[tree.kind]
            node.number = self.properties.index(tree.name)
            self.hold(node, tree.text)
        elif isinstance(tree, Sample):
            node.operation = SAMPLE
            node.constant.integer = max(1, round(tree.percent / 100 * 2**32))
        elif isinstance(tree, Compare):
            node.operation = _COMPARISONS[tree.operator]
            self.add_children(index, (tree.left, tree.right))
        elif isinstance(tree, IsNull):
            node.operation = IS_NULL
            self.add_children(index, (tree.operand,))
        elif isinstance(tree, Not):
            node.operation = NOT
            self.add_children(index, (tree.operand,))
        else:
            node.operation = AND if isinstance(tree, And) else OR
            self.add_children(index, tree.operands)
        return index

    cdef int add_children(self, int32_t index, children) except -1:
        cdef int32_t last = -1
        cdef int32_t child
        for each in children:
            child = self.add(each)
            if last < 0:
                self.nodes[index].child = child
            else:
                self.nodes[last].next = child
            last = child
        return 0

    cdef int hold(self, Node* node, constant) except -1:
        cdef bytes text
        if isinstance(constant, bool):
            node.constant.kind = TRUTH
            node.constant.truth = constant
        elif isinstance(constant, str):
            text = self.keep(constant)
            node.constant.kind = TEXT
            node.constant.text = <const uint8_t*> PyBytes_AS_STRING(text)
            node.constant.size = PyBytes_GET_SIZE(text)
        elif isinstance(constant, int):
            node.constant.kind = INTEGER
            node.constant.integer = constant
        elif isinstance(constant, float):
            node.constant.kind = REAL
            node.constant.real = constant
        else:
            node.constant.kind = NOTHING
        return 0


def count_nodes(tree):
    """Return how many nodes a tree takes."""
    if isinstance(tree, In):
        return 1 + len(tree.texts)
    if isinstance(tree, Compare):
        return 1 + count_nodes(tree.left) + count_nodes(tree.right)
    if isinstance(tree, (Not, IsNull)):
        return 1 + count_nodes(tree.operand)
    if isinstance(tree, (And, Or)):
        return 1 + sum([count_nodes(operand) for operand in tree.operands])
    return 1


cdef uint64_t mixed(uint64_t number) noexcept nogil:
    """Spread a number over all 64 bits: neighbours have nothing in common (the end of SplitMix64)."""
    number += <uint64_t> 0x9E3779B97F4A7C15
    number = (number ^ (number >> 30)) * <uint64_t> 0xBF58476D1CE4E5B9
    number = (number ^ (number >> 27)) * <uint64_t> 0x94D049BB133111EB
    return number ^ (number >> 31)


cdef bint is_text(const Value* one, const Value* other) noexcept nogil:
    return one.size == other.size and memcmp(one.text, other.text, one.size) == 0


cdef bint has_text(int operation, const Value* value, const Value* searched) noexcept nogil:
    if searched.size > value.size:
        return False
    if operation == STARTS_WITH:
        return memcmp(value.text, searched.text, searched.size) == 0
    if operation == ENDS_WITH:
        return memcmp(value.text + value.size - searched.size, searched.text, searched.size) == 0
    return memmem(value.text, value.size, searched.text, searched.size) != NULL


cdef int equal(Value* left, Value* right) noexcept:
    if left.kind == TRUTH or right.kind == TRUTH:
        as_truth(left)
        as_truth(right)
        return left.truth == right.truth
    if left.kind == TEXT and right.kind == TEXT:
        return is_text(left, right)
    if not as_number(left) or not as_number(right):
        return UNKNOWN
    return compare(left, right) == 0


cdef int ordered(int operation, Value* left, Value* right) noexcept:
    cdef int order
    if not as_number(left) or not as_number(right):
        return UNKNOWN
    order = compare(left, right)
    if operation == GREATER:
        return order > 0
    if operation == GREATER_EQUAL:
        return order >= 0
    if operation == LESS:
        return order < 0
    return order <= 0


cdef int compare(const Value* left, const Value* right) noexcept nogil:
    cdef double one, other
    if left.kind == INTEGER and right.kind == INTEGER:
        return (left.integer > right.integer) - (left.integer < right.integer)
    one = left.real if left.kind == REAL else <double> left.integer
    other = right.real if right.kind == REAL else <double> right.integer
    return (one > other) - (one < other)


cdef void as_truth(Value* value) noexcept nogil:
    """A text is true when it is `true` in any case, as Java reads it."""
    cdef Py_ssize_t at
    if value.kind != TEXT:
        return
    value.kind = TRUTH
    value.truth = value.size == 4
    for at in range(value.size if value.truth else 0):
        if (value.text[at] | 0x20) != (<const uint8_t*> b"true")[at]:
            value.truth = False
            return


cdef bint as_number(Value* value) noexcept:
    """Make a text the number it says: digits with an optional sign, fraction and exponent, in ASCII."""
    cdef const uint8_t* text = value.text
    cdef char copy[NUMBER_BYTES_MAX + 1]
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t digits = 0
    cdef uint64_t number = 0
    cdef bint is_integer = True
    cdef bint is_negative
    if value.kind == INTEGER or value.kind == REAL:
        return True
    if value.kind != TEXT or not 0 < value.size <= NUMBER_BYTES_MAX:
        return False
    is_negative = text[0] == c"-"
    if is_negative or text[0] == c"+":
        at = 1
    while at < value.size and c"0" <= text[at] <= c"9":
        if number > (<uint64_t> 0x7FFFFFFFFFFFFFFF) // 10:
            is_integer = False
        number = number * 10 + (text[at] - c"0")
        if number > <uint64_t> 0x7FFFFFFFFFFFFFFF + is_negative:
            is_integer = False
        digits += 1
        at += 1
    if at == value.size and is_integer and digits:
        value.kind = INTEGER
        value.integer = <int64_t> (0 - number if is_negative else number)
        return True
    if at < value.size and text[at] == c".":
        at += 1
        while at < value.size and c"0" <= text[at] <= c"9":
            digits += 1
            at += 1
    if digits == 0:
        return False
    if at < value.size and (text[at] | 0x20) == c"e":
        at += 1
        if at < value.size and (text[at] == c"-" or text[at] == c"+"):
            at += 1
        digits = at
        while at < value.size and c"0" <= text[at] <= c"9":
            at += 1
        if at == digits:
            return False
    if at != value.size:
        return False
    memcpy(copy, text, value.size)
    copy[value.size] = 0
    value.kind = REAL
    value.real = PyOS_string_to_double(copy, NULL, NULL)
    return True
