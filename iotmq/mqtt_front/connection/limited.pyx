"""The part of a device's connection that keeps to limits on messages and bytes (limiting.buckets).

A connection without limits pays one comparison for each message and each read. One past a limit on what it sends
has its input left where it is: undecoded, and behind that in the kernel. One past a limit on what it gets has its
window closed, so that messages of QoS 1 and 2 wait as for a slow device.
"""

from libc.stdint cimport int64_t, uint32_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from iotmq.mqtt.codec.framing cimport Packet
from iotmq.mqtt.codec.packet_types cimport STATE_CLOSED
from iotmq.mqtt.server.connection cimport ServerConnection
from iotmq.mqtt_front.connection.client_traffic cimport ClientTraffic
from iotmq.mqtt_front.connection.traced cimport TracedConnection
from iotmq.mqtt_front.limiting.buckets cimport BYTES_IN, BYTES_OUT, MESSAGES_IN, MESSAGES_OUT, DeviceLimits

from iotmq.mqtt_front.connection.client_traffic import UNNAMED

cdef ClientTraffic _UNNAMED = UNNAMED


cdef class LimitedConnection(TracedConnection):
    """Use Device."""

    def __cinit__(self):
        self.traffic = _UNNAMED

    def limit(self, DeviceLimits new):
        """Have a connection keep to these limits from now on; None for no limits."""
        if self.limits is not None:
            self.limits.close()
        self.limits = new
        self.is_metered = new is not None and new.is_output_limited
        if self._lacks_tokens or self.is_output_held:
            # It waited in the former ones, and will again.
            self.tokens_came(False)
            self.tokens_came(True)

    cdef double precise_s(self) noexcept:
        cdef timespec now
        clock_gettime(CLOCK_MONOTONIC, &now)
        return now.tv_sec + now.tv_nsec * 1e-9

    cdef int end_limits(self) except -1:
        """The connection is over."""
        if self.tap is not None:
            self.end_trace()
        if self.limits is not None:
            self.limits.close()
            self.limits = None
            self.is_metered = self._lacks_tokens = False
        return 0

    def tokens_came(self, bint is_output):
        """Go on: the limits allow something again (limiting.buckets)."""
        if is_output:
            self.is_output_held = False
            self.output_released()
            self.output_allowed()
        else:
            self._lacks_tokens = False
            self._waits_for_turn &= ~WAITS_FOR_TOKENS
            self.input_allowed()

    cdef int input_allowed(self) except -1:
        return 0

    cdef int output_allowed(self) except -1:
        return 0

    cdef int _view_index(self, uint32_t least, uint32_t most) except -1:
        """Return how often `least` is doubled for what may be read at once: `most`, or what the limits have left."""
        cdef int64_t left = min(self.limits.bytes_at_once(), <int64_t>most)
        cdef int index = 0
        while <int64_t>least << (index + 1) <= left:
            index += 1
        return index

    cdef int take_bytes(self, uint32_t size) except -1:
        """Count what was read; the caller has seen that there are limits."""
        self.limits.pacer.look()
        if self.limits.take(BYTES_IN, size):
            self._wait_for_tokens()
        return 0

    cdef int _handle_publish(self, const Packet* packet) except -1:
        if self.limits is not None and self.limits.take(MESSAGES_IN, 1):
            self._wait_for_tokens()
            if self._lacks_tokens:
                # What else has come stays undecoded.
                self._waits_for_turn |= WAITS_FOR_TOKENS
                self._is_waiting_for_events = True
        return ServerConnection._handle_publish(self, packet)

    cdef int _wait_for_tokens(self) except -1:
        """Read no more until there are tokens."""
        if not self._lacks_tokens and not self._is_over and self.state != STATE_CLOSED:
            self._lacks_tokens = True
            self.note("quota", direction="from the client", result="it is not read for a while")
            self.limits.wait(MESSAGES_IN)
        return 0

    cdef int message_sent(self, uint32_t size) except -1:
        self.limits.pacer.look()
        if self.limits.take(MESSAGES_OUT, 1) | self.limits.take(BYTES_OUT, size) and not self.is_output_held:
            self.is_output_held = True
            self.note("quota", direction="to the client", result="messages wait for a while")
            self.limits.wait(MESSAGES_OUT)
        return 0

    cdef int message_withheld(self) except -1:
        self.note_lost("a message of QoS 0 past a limit of the client", NULL)
        return self.limits.note_dropped()
