"""Choose a page of connections: those that fit a filter, in an order, behind a place.

Operations: one look per connection and question, at tens of thousands of connections, while these are served.
Goals: no Python object for a connection that is not on the page, bounded memory, and pieces as short as the caller
likes. Plan: a heap is too much work for Python objects and a sorted copy is too much memory, so what is better
than the worst of the page so far is collected, and cut down to the page whenever there is twice as much.
"""

cimport cython
from cpython.dict cimport PyDict_Next
from cpython.ref cimport PyObject
from libc.math cimport INFINITY
from libc.stdint cimport int64_t
from libc.string cimport memset

from iotmq.mqtt.codec.packet_types cimport STATE_CONNECTED
from iotmq.mqtt.server.outbound cimport ConnectionCounts
from iotmq.mqtt_front.connection.device cimport Device

from iotmq.errors import RefusedError
from iotmq.ports.client_pages import CLIENT_COLUMNS, NUMBER_COLUMNS, ORDER_CHARACTERS, TEXT_COLUMNS, name_order

cdef Py_ssize_t CHARACTERS = ORDER_CHARACTERS
cdef double RATE_WINDOW_S = 5.0

# The places of columns in the tables of ports.client_pages.
cdef enum:
    CLIENT_ID, USER, ADDRESS, LISTENER
cdef enum:
    VERSION, KEEP_ALIVE_S, CONNECTED_MS, SUBSCRIPTIONS, IN_FLIGHT, QUEUED, QUEUED_BYTES, UNSENT_BYTES
    DROPPED, LATENCY_MS, MESSAGES_RECEIVED, MESSAGES_SENT, BYTES_RECEIVED, BYTES_SENT
    MESSAGES_RECEIVED_PER_S, MESSAGES_SENT_PER_S, BYTES_RECEIVED_PER_S, BYTES_SENT_PER_S
    NUMBERS

cdef struct _Bound:
    int column
    double least
    double most

if len(NUMBER_COLUMNS) != NUMBERS or TEXT_COLUMNS != ("client_id", "user", "address", "listener"):
    raise ImportError("the columns are not those of ports.client_pages")


cdef class ConnectionLook:
    """The part of a connection that costs something to find, once somebody has looked for it.

    Rates are of the time between two looks, of five seconds at least.
    """

    cdef ConnectionCounts before
    cdef double before_s                # 0: nobody has looked at rates yet
    cdef double[4] per_s
    cdef str address                    # None: nobody has looked at it yet; asking the kernel takes two microseconds

    cdef int look_at_rates(self, Device device, double now_s, int64_t now_ms) except -1:
        cdef ConnectionCounts* now = &device.counts
        cdef double passed_s
        if not self.before_s:
            # The first who looks gets the rates since it connected; of the first seconds they are too low.
            passed_s = max(<double>(now_ms - device.opened_ms) / 1000, RATE_WINDOW_S)
        else:
            passed_s = now_s - self.before_s
            if passed_s < RATE_WINDOW_S:
                return 0
        self.per_s[0] = (now.messages_received - self.before.messages_received) / passed_s
        self.per_s[1] = (now.messages_sent - self.before.messages_sent) / passed_s
        self.per_s[2] = (now.bytes_received - self.before.bytes_received) / passed_s
        self.per_s[3] = (now.bytes_sent - self.before.bytes_sent) / passed_s
        self.before = device.counts
        self.before_s = now_s
        return 0


cdef ConnectionLook _look(Device device):
    cdef ConnectionLook look = device.look
    if look is None:
        look = device.look = ConnectionLook()
        memset(&look.before, 0, sizeof(look.before))
        memset(&look.per_s, 0, sizeof(look.per_s))
    return look


cdef str _address(Device device):
    cdef ConnectionLook look = _look(device)
    if look.address is None:
        look.address = device.address or ""
    return look.address


cdef double _rate(Device device, int place, double now_s, int64_t now_ms) except? -1:
    cdef ConnectionLook look = _look(device)
    look.look_at_rates(device, now_s, now_ms)
    return look.per_s[place]


cdef double _number(Device device, int column, double now_s, int64_t now_ms) except? -1:
    if column == VERSION:
        return device.protocol_level
    if column == KEEP_ALIVE_S:
        return device.keep_alive_s
    if column == CONNECTED_MS:
        return <double>device.opened_ms
    if column == SUBSCRIPTIONS:
        return 0 if device.subscriptions is None else len(device.subscriptions)
    if column == UNSENT_BYTES:
        return device.output.size
    if column == DROPPED:
        return device.counts.messages_dropped
    if column == MESSAGES_RECEIVED:
        return <double>device.counts.messages_received
    if column == MESSAGES_SENT:
        return <double>device.counts.messages_sent
    if column == BYTES_RECEIVED:
        return <double>device.counts.bytes_received
    if column == BYTES_SENT:
        return <double>device.counts.bytes_sent
    if column >= MESSAGES_RECEIVED_PER_S:
        return _rate(device, column - MESSAGES_RECEIVED_PER_S, now_s, now_ms)
    if device._subscriber == NULL:
        return 0
    if column == IN_FLIGHT:
        return device._subscriber.window.count
    if column == QUEUED:
        return device._subscriber.queued_count
    if column == QUEUED_BYTES:
        return device._subscriber.queued.size - device._subscriber.queued.start
    # LATENCY_MS
    if device._subscriber.timed_packet_id:
        return max(
            device._subscriber.latency_s, <float>(device.precise_s() - device._subscriber.timed_since_s)
        ) * 1000
    return device._subscriber.latency_s * 1000


cdef object _text(Device device, int column):
    """Return a text, empty where there is none."""
    if column == CLIENT_ID:
        return device._client_id
    if column == USER:
        return device.user or ""
    if column == ADDRESS:
        return _address(device)
    return "" if device.peer is None else device.peer.listener


cdef class _TextTest:
    """A text that is compared whole, or its beginning, end or middle."""

    cdef int column
    cdef str wanted
    cdef bint is_open_before, is_open_behind

    cdef bint fits(self, str text) except -1:
        if self.is_open_before and self.is_open_behind:
            return self.wanted in text
        if self.is_open_before:
            return text.endswith(self.wanted)
        if self.is_open_behind:
            return text.startswith(self.wanted)
        return text == self.wanted


@cython.final
cdef class ValueSteps:
    """The values of a dict that may change meanwhile, some at a time: a list of them all takes too long to make.

    What comes meanwhile may be among them. When the dict is made anew, which happens as it grows, the place in it is
    lost.
    """

    cdef dict _values
    cdef Py_ssize_t _place
    cdef object _last_key               # None: nothing was taken yet

    def __init__(self, dict values not None):
        self._values = values

    def take(self, Py_ssize_t count):
        """Return the next values, none at the end; None when the place is lost."""
        cdef PyObject* key = NULL
        cdef PyObject* value = NULL
        cdef Py_ssize_t place = self._place - 1
        cdef list taken = []
        if self._last_key is not None and not (
            PyDict_Next(self._values, &place, &key, &value)
            and place == self._place and <object>key is self._last_key
        ):
            return None
        while len(taken) < count and PyDict_Next(self._values, &self._place, &key, &value):
            taken.append(<object>value)
        if taken:
            self._last_key = <object>key
        return taken


cdef class ConnectionWalk:
    """A page of connections. Give `take` all of them, in any pieces, then ask for `page`."""

    cdef list _texts                    # of _TextTest
    cdef _Bound[NUMBERS] _bounds
    cdef int _bounds_count
    cdef int _is_kept                   # -1: it does not matter
    cdef bint _is_text_order
    cdef int _order
    cdef bint _is_descending
    cdef Py_ssize_t _count_max
    cdef tuple _behind                  # the order of what the page begins behind; None: from the first on
    cdef tuple _worst                   # nothing that comes after it is on the page; None: not known yet
    cdef double _worst_number
    cdef list _found                    # (order of it, device)
    cdef double _now_s
    cdef int64_t _now_ms
    cdef readonly Py_ssize_t matched    # those that fit the filter, on this page or not
    cdef readonly Py_ssize_t looked_at

    def __init__(self, asked not None, *, double now_s, int64_t now_ms):
        """`asked` is a ClientsQuestion. RefusedError for columns that there are not, or another list's place."""
        cdef str sort_by = asked.sort_by
        self._is_text_order = sort_by in TEXT_COLUMNS
        if not self._is_text_order and sort_by not in NUMBER_COLUMNS:
            raise RefusedError(f"{sort_by[:40]!r} is no column: {', '.join(CLIENT_COLUMNS)}")
        self._behind = asked.behind
        if self._behind is not None and isinstance(self._behind[0], str) != self._is_text_order:
            raise RefusedError(f"the place to go on from is none of a list by {sort_by}")
        self._order = (TEXT_COLUMNS if self._is_text_order else NUMBER_COLUMNS).index(sort_by)
        self._is_descending = asked.is_descending
        self._count_max = asked.limit
        self._texts = [_text_test(TEXT_COLUMNS.index(column), pattern) for column, pattern in asked.wanted.texts()]
        for column, least, most in asked.wanted.bounds():
            assert self._bounds_count < NUMBERS, "one for each column at most"
            self._bounds[self._bounds_count].column = NUMBER_COLUMNS.index(column)
            self._bounds[self._bounds_count].least = -INFINITY if least is None else least
            self._bounds[self._bounds_count].most = INFINITY if most is None else most
            self._bounds_count += 1
        self._is_kept = -1 if asked.wanted.is_kept is None else asked.wanted.is_kept
        self._found = []
        self._now_s = now_s
        self._now_ms = now_ms

    def take(self, list devices not None, Py_ssize_t start, Py_ssize_t end):
        """Look at some of the connections."""
        cdef Device device
        cdef Py_ssize_t index
        end = min(end, len(devices))
        for index in range(start, end):
            device = devices[index]
            # Not its property `client_id`: the text itself is looked at only where something depends on it.
            if device.state != STATE_CONNECTED or device._client_id is None:
                continue
            self.looked_at += 1
            if self._fits(device):
                self.matched += 1
                self._offer(device)

    cdef bint _fits(self, Device device) except -1:
        cdef _TextTest test
        cdef double number
        cdef int index
        if self._is_kept >= 0 and (device.expiry_s != 0) != self._is_kept:
            return False
        for index in range(self._bounds_count):
            number = _number(device, self._bounds[index].column, self._now_s, self._now_ms)
            if number < self._bounds[index].least or number > self._bounds[index].most:
                return False
        for test in self._texts:
            if not test.fits(_text(device, test.column)):
                return False
        return True

    cdef int _offer(self, Device device) except -1:
        cdef object key
        cdef double number
        # Nearly all come after the worst, and most of these are found here, without an object for them.
        if self._is_text_order:
            key = _text(device, self._order)
            if len(key) > CHARACTERS:
                key = key[:CHARACTERS]
            if self._worst is not None:
                worst_key = self._worst[0]
                if key == worst_key:
                    if self._comes_after_worst(device._client_id):
                        return 0
                elif (key < worst_key) == self._is_descending:
                    return 0
        else:
            number = _number(device, self._order, self._now_s, self._now_ms)
            if self._worst is not None:
                if number == self._worst_number:
                    if self._comes_after_worst(device._client_id):
                        return 0
                elif (number < self._worst_number) == self._is_descending:
                    return 0
            key = number
        cdef str client_id = device._client_id
        cdef tuple order = (key, client_id, 0) if len(client_id) <= CHARACTERS else (key, *name_order(client_id))
        if self._behind is not None and not self._comes_first(self._behind, order):
            return 0
        if self._worst is not None and not self._comes_first(order, self._worst):
            return 0
        self._found.append((order, device))
        if len(self._found) >= 2 * self._count_max + 64:
            self._cut()
        return 0

    cdef bint _comes_after_worst(self, str client_id) except -1:
        """Return whether a connection with the key of the worst surely comes after it."""
        cdef str worst_id = self._worst[1]
        if len(client_id) > CHARACTERS or len(worst_id) >= CHARACTERS:
            return False
        return client_id < worst_id if self._is_descending else client_id > worst_id

    cdef bint _comes_first(self, tuple one, tuple other) except -1:
        return one > other if self._is_descending else one < other

    cdef int _cut(self) except -1:
        """Keep one more than the page has, so that `page` knows whether there is more."""
        self._found.sort(key=_order_of, reverse=self._is_descending)
        del self._found[self._count_max + 1:]
        if len(self._found) > self._count_max:
            self._worst = self._found[self._count_max][0]
            if not self._is_text_order:
                self._worst_number = self._worst[0]
        return 0

    def page(self):
        """Return (order, device) of the page, and whether there is more behind it."""
        self._cut()
        return self._found[: self._count_max], len(self._found) > self._count_max

    def address(self, Device device not None):
        """Return the IP address of a connection, empty where it has none."""
        return _address(device)

    def numbers(self, Device device not None):
        """Return the numbers of a connection, in the order of NUMBER_COLUMNS."""
        return [_number(device, column, self._now_s, self._now_ms) for column in range(NUMBERS)]


def _order_of(found):
    return found[0]


cdef _TextTest _text_test(int column, str pattern):
    cdef _TextTest test = _TextTest()
    test.column = column
    test.is_open_before = pattern.startswith("*")
    test.is_open_behind = len(pattern) > 1 and pattern.endswith("*")
    test.wanted = pattern[test.is_open_before : len(pattern) - test.is_open_behind]
    return test
