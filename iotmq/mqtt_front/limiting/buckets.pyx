"""Token buckets: how many messages and bytes may pass, by client, user, address and listener.

Operations: one count per message and one per read or sent piece of bytes, for devices that have a limit; for
others nothing. Goals: integer arithmetic, no Python object per message, no timer per device; thousands of
devices over their limits cost a fraction of a core. Plan: a bucket is filled when it is looked at. What has
passed is taken from it, even when that leaves it owing; then the device waits until the bucket has something
again. Scopes with devices that wait stand in a wheel of ticks, with one timer for all. A scope that many share
wakes as many as it has tokens for, those that wait longest first, so that a flood is no herd.

A bucket's tokens are millionths, so that a rate per second is one per microsecond.
"""

from libc.stdint cimport int64_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from collections import deque

from iotmq import limits

cdef int64_t ONE = 1_000_000            # token, and second
cdef int64_t ELAPSED_MAX_US = 1 << 30   # times the highest rate this fits 63 bits
cdef int64_t TICK_US = 25_000
cdef int64_t PAUSE_US = 200_000         # a device that waits gets tokens for so long at once
cdef int64_t FAR_TICKS = 40             # of what is due later it is looked at again then
cdef int64_t BYTES_AT_ONCE = 1_024      # the least that a device reads

if limits.MQTT_RATE_MAX > 1 << 32:
    raise ImportError("ELAPSED_MAX_US is for rates up to 1 << 32")

NAMES = ("client", "user", "address", "listener")
"""Those of scopes."""
KIND_NAMES = ("messages_in_per_s", "bytes_in_per_s", "messages_out_per_s", "bytes_out_per_s", "connects_per_s")
"""Those of the settings of each kind."""


cdef inline void _fill(Bucket* bucket, int64_t now_us) noexcept:
    cdef int64_t elapsed_us = now_us - bucket.at_us
    if elapsed_us <= 0:
        return
    bucket.at_us = now_us
    if elapsed_us > ELAPSED_MAX_US:
        elapsed_us = ELAPSED_MAX_US
    if elapsed_us * bucket.rate >= bucket.most - bucket.left:
        bucket.left = bucket.most
    else:
        bucket.left += elapsed_us * bucket.rate


cdef inline int64_t _least(const Bucket* bucket) noexcept:
    """Return what a bucket needs for those who wait to go on: a good part of a pause's worth, one token at least."""
    cdef int64_t worth = bucket.rate * PAUSE_US
    if worth > bucket.most // 2:
        worth = bucket.most // 2
    return worth if worth > ONE else ONE


cdef class Scope:
    """Hold what some connections share: those of a client, a user, an address or a listener.

    `rates` has for each kind (tokens a second, burst); 0 a second is no limit, a burst of 0 that of a second.
    """

    def __init__(self, str name not None, key, rates not None, Pacer pacer not None):
        self.name = name
        self.key = key
        cdef Bucket* bucket
        for kind, (rate, burst) in enumerate(rates):
            bucket = &self.buckets[<int>kind]
            bucket.rate = rate
            bucket.most = bucket.left = (<int64_t>burst or <int64_t>rate) * ONE
            bucket.at_us = pacer.now_us

    @property
    def is_limiting(self):
        """Return whether messages or bytes have a limit here."""
        return any(self.buckets[kind].rate for kind in range(CONNECTS))

    def takes_connect(self, Pacer pacer not None):
        """Count a new connection, and return whether it may come."""
        cdef Bucket* bucket = &self.buckets[CONNECTS]
        if not bucket.rate:
            return True
        pacer.look()
        _fill(bucket, pacer.now_us)
        if bucket.left < ONE:
            pacer.note_held(self, CONNECTS)
            return False
        bucket.left -= ONE
        return True

    def left(self, int kind):
        """Return the whole tokens of a bucket when it was looked at last; for tests."""
        return self.buckets[kind].left // ONE

    @property
    def waiting_count(self):
        """Return how many devices wait for tokens."""
        return len(self._waiting_in or ()) + len(self._waiting_out or ())

    cdef int64_t _missing_us(self, Pacer pacer, int first) except? -1:
        """Return how long until both buckets of a direction have enough to go on."""
        cdef Bucket* bucket
        cdef int kind
        cdef int64_t missing_us, most_us = 0
        for kind in range(first, first + 2):
            bucket = &self.buckets[kind]
            if bucket.rate:
                _fill(bucket, pacer.now_us)
                missing_us = (_least(bucket) - bucket.left + bucket.rate - 1) // bucket.rate
                most_us = max(most_us, missing_us)
        return most_us

    cdef int wait(self, DeviceLimits device, Pacer pacer, int first) except -1:
        """Have a device look again when there are tokens."""
        if first == MESSAGES_IN:
            if self._waiting_in is None:
                self._waiting_in = deque()
            self._waiting_in.append(device)
            if not self._is_due_in:
                self._is_due_in = True
                pacer._put(self, first, self._missing_us(pacer, first))
        else:
            if self._waiting_out is None:
                self._waiting_out = deque()
            self._waiting_out.append(device)
            if not self._is_due_out:
                self._is_due_out = True
                pacer._put(self, first, self._missing_us(pacer, first))
        return 0

    cdef int serve(self, Pacer pacer, int first) except -1:
        """Wake as many as there are tokens for, or wait on."""
        cdef object waiting = self._waiting_in if first == MESSAGES_IN else self._waiting_out
        cdef int64_t missing_us = self._missing_us(pacer, first)
        cdef int64_t room = len(waiting)
        cdef int64_t tries
        cdef Bucket* messages = &self.buckets[first]
        cdef Bucket* data = &self.buckets[first + 1]
        if missing_us > 0:
            return pacer._put(self, first, missing_us)
        if messages.rate:
            room = min(room, max(1, messages.left // ONE))
        if data.rate:
            room = min(room, max(1, data.left // (ONE * BYTES_AT_ONCE)))
        tries = len(waiting)
        while room > 0 and tries > 0 and waiting:
            if messages.rate and messages.left < ONE or data.rate and data.left < ONE:
                break
            device = waiting.popleft()
            tries -= 1
            # Some have gone meanwhile, or lack tokens of another scope.
            room -= (<DeviceLimits>device).came(first)
        if waiting:
            return pacer._put(self, first, max(TICK_US, self._missing_us(pacer, first)))
        if first == MESSAGES_IN:
            self._waiting_in = None
            self._is_due_in = False
        else:
            self._waiting_out = None
            self._is_due_out = False
        return 0


cdef class Pacer:
    """The time of all limits of a front end, and who waits for it. `noted(scope, kind name)` hears what is held."""

    def __init__(self, loop not None, noted not None, clock=None):
        """`clock` is for tests; without one it is the machine's."""
        self._loop = loop
        self._clock = clock
        self._noted = noted
        self._wheel = {}
        self.look()
        self._next_tick = self.now_us // TICK_US

    cdef int look(self) except -1:
        """Look at the clock."""
        cdef timespec now
        if self._clock is not None:
            self.now_us = <int64_t>(<double>self._clock.monotonic_s() * 1e6)
        else:
            clock_gettime(CLOCK_MONOTONIC, &now)
            self.now_us = <int64_t>now.tv_sec * ONE + now.tv_nsec // 1_000
        return 0

    cdef int _put(self, Scope scope, int first, int64_t pause_us) except -1:
        cdef int64_t tick = (self.now_us + pause_us) // TICK_US + 1
        tick = min(max(tick, self._next_tick), self._next_tick + FAR_TICKS)
        due = self._wheel.get(tick)
        if due is None:
            due = self._wheel[tick] = []
        due.append((scope, first))
        if not self._is_ticking:
            self._is_ticking = True
            self._loop.call_later(TICK_US / 1e6, self._tick)
        return 0

    def _tick(self):
        """Serve what is due by now."""
        cdef int64_t tick
        self.look()
        tick = self.now_us // TICK_US
        due = []
        # Of a clock that leaps, no more than the wheel has.
        for number in sorted(self._wheel):
            if number > tick:
                break
            due += self._wheel.pop(number)
        self._next_tick = tick + 1
        try:
            for scope, first in due:
                (<Scope>scope).serve(self, first)
        finally:
            self._is_ticking = bool(self._wheel)
            if self._is_ticking:
                self._loop.call_later(TICK_US / 1e6, self._tick)

    cdef int note_held(self, Scope scope, int kind) except -1:
        self._held[NAMES.index(scope.name) * KINDS + kind] += 1
        self._noted(scope, KIND_NAMES[kind])
        return 0

    def held(self):
        """Return how often devices had to wait, or connections were closed, by the name of the setting."""
        return {
            f"{name}.{kind_name}": self._held[place * KINDS + kind]
            for place, name in enumerate(NAMES)
            for kind, kind_name in enumerate(KIND_NAMES)
            if kind < CONNECTS or place >= 2
        }

    def dropped(self):
        """Return how many messages of QoS 0 were dropped, by the name of the scope that had no room."""
        return {name: self._dropped[place] for place, name in enumerate(NAMES)}


cdef class DeviceLimits:
    """The limits of one connection: those of its client, its user, its address and its listener.

    `device` is told by `tokens_came(is_output)`. A device that waits is in one scope at a time; when that has
    tokens the others are asked.
    """

    def __init__(self, Pacer pacer not None, device, scopes not None):
        cdef Scope scope
        cdef int kind
        self.pacer = pacer
        self._device = device
        self.scopes = tuple(scopes)
        if len(self.scopes) > SCOPES_MAX:
            raise ValueError(f"{len(self.scopes)} scopes; a device has {SCOPES_MAX} at most")
        for scope in self.scopes:
            for kind in range(CONNECTS):
                if scope.buckets[kind].rate:
                    self._of_kind[kind][self._counts[kind]] = &scope.buckets[kind]
                    self._counts[kind] += 1

    @property
    def is_output_limited(self):
        """Return whether anything that is sent has a limit."""
        return bool(self._counts[MESSAGES_OUT] or self._counts[BYTES_OUT])

    cdef bint take(self, int kind, int64_t count) except -1:
        """Count what has passed, at the time the pacer has; return whether nothing more may pass for now."""
        cdef Bucket* bucket
        cdef int index
        cdef bint is_empty = False
        for index in range(self._counts[kind]):
            bucket = self._of_kind[kind][index]
            _fill(bucket, self.pacer.now_us)
            bucket.left -= count * ONE
            is_empty = is_empty or bucket.left < ONE
        return is_empty

    cdef int64_t bytes_at_once(self) noexcept:
        """Return how much may be read now without a debt."""
        cdef int64_t left, least = 1 << 62
        cdef int index
        for index in range(self._counts[BYTES_IN]):
            left = self._of_kind[BYTES_IN][index].left // ONE
            least = min(least, left)
        return least

    cdef Scope _lacking(self, int first):
        """Return the scope that lacks tokens for the longest time; None when all have some."""
        cdef Scope scope, found = None
        cdef Bucket* bucket
        cdef int kind
        cdef int64_t missing_us, most_us = 0
        for scope in self.scopes:
            for kind in range(first, first + 2):
                bucket = &scope.buckets[kind]
                if bucket.rate:
                    _fill(bucket, self.pacer.now_us)
                    if bucket.left < ONE:
                        missing_us = (ONE - bucket.left) // bucket.rate
                        if found is None or missing_us > most_us:
                            found, most_us = scope, missing_us
        return found

    cdef int wait(self, int first) except -1:
        """The device waits for tokens of the kind `first` and the next one."""
        cdef Scope scope = self._lacking(first)
        cdef int kind
        if scope is None:
            # They came while it was looked at.
            self._tell(first)
            return 0
        if first == MESSAGES_IN:
            self._is_waiting_in = True
        else:
            self._is_waiting_out = True
        kind = first if scope.buckets[first].rate and scope.buckets[first].left < ONE else first + 1
        self.pacer.note_held(scope, kind)
        return scope.wait(self, self.pacer, first)

    cdef bint came(self, int first) except -1:
        """A scope has tokens: return whether the device takes some of them."""
        cdef Scope scope
        if self._device is None:
            return False
        scope = self._lacking(first)
        if scope is not None:
            scope.wait(self, self.pacer, first)
            return False
        self._tell(first)
        return True

    def _tell(self, int first):
        if first == MESSAGES_IN:
            self._is_waiting_in = False
        else:
            self._is_waiting_out = False
        self._device.tokens_came(first == MESSAGES_OUT)

    cdef int note_dropped(self) except -1:
        """A message of QoS 0 was not sent, because there were no tokens for it."""
        cdef Scope scope = self._lacking(MESSAGES_OUT)
        if scope is None and self.scopes:
            scope = self.scopes[0]
        self.pacer._dropped[NAMES.index(scope.name)] += 1
        return 0

    def close(self):
        """The connection is over: it waits no more, and nothing refers to it."""
        self._device = None

    # For tests and tools

    def take_message(self, int64_t size, *, bint is_output):
        """Count a message in Python; return whether nothing more may pass."""
        self.pacer.look()
        cdef int first = MESSAGES_OUT if is_output else MESSAGES_IN
        return self.take(first, 1) | self.take(first + 1, size)

    def wait_for_tokens(self, *, bint is_output):
        self.wait(MESSAGES_OUT if is_output else MESSAGES_IN)
