"""Have brokers forget the packet ids of QoS 2 that devices release.

Operations: one call per PUBREL, one hand-over per broker and loop turn. Goals: PUBCOMP only when the log has the
release; a body that brokers take. Plan: what a turn brings is collected for each broker, and offered again until it
is confirmed.
"""

from libc.stdint cimport uint16_t

from iotmq.mqtt.codec.packet_types cimport STATE_CLOSED, STATE_CONNECTED
from iotmq.mqtt_front.connection.device cimport Device

from iotmq import limits

cdef Py_ssize_t BODY_BYTES_MAX = limits.RELEASED_BODY_BYTES_MAX - 1024


cdef bytes _encoded(Device device, uint16_t packet_id):
    cdef bytes client_id = device.client_id_utf8
    return len(client_id).to_bytes(2) + client_id + packet_id.to_bytes(2)


cdef class Release:
    """Packet ids of one turn for one broker, and the devices that wait for it."""

    def __init__(self, Releases releases not None, broker):
        self.releases = releases
        self.broker = broker
        self.waiters = []

    cdef int add(self, Device device, uint16_t packet_id) except -1:
        self.body_bytes += 4 + <Py_ssize_t>len(device.client_id_utf8)
        self.waiters.append((device, packet_id))
        return 0

    def offer(self):
        """Hand it to the broker (again), for those who wait for it still.

        Who has gone may have had its answer elsewhere, and use the packet id for another message.
        """
        if self.releases.is_closed:
            return
        body = b"".join([
            _encoded(device, packet_id)
            for device, packet_id in self.waiters
            if (<Device>device).state != STATE_CLOSED
        ])
        if body:
            self.releases._port.release(self.broker, body, self.completed)
        else:
            self.completed(0, "")

    def completed(self, int code, str remark):
        """Take the broker's answer (ports.gateway.AppendDone)."""
        if code:
            self.releases._loop.call_later(self.releases._retry_interval_s, self.offer)
        else:
            self.releases.completed(self)


cdef class Releases:
    """The releases of a front end's devices; `done(count)` is called when so many are confirmed."""

    def __init__(self, port not None, loop not None, double retry_interval_s, done not None):
        self._port = port
        self._loop = loop
        self._retry_interval_s = retry_interval_s
        self._done = done
        self._of_turn = {}

    cdef int add(self, Device device, uint16_t packet_id, object broker) except -1:
        cdef Release release = self._of_turn.get(broker)
        if release is None:
            release = self._of_turn[broker] = Release(self, broker)
        release.add(device, packet_id)
        if release.body_bytes > BODY_BYTES_MAX:
            del self._of_turn[broker]
            release.offer()
        return 0

    cdef int end_turn(self) except -1:
        """Hand over what the turn has brought."""
        if self._of_turn:
            releases, self._of_turn = self._of_turn, {}
            for release in releases.values():
                release.offer()
        return 0

    cdef int completed(self, Release release) except -1:
        cdef Device device
        for device, packet_id in release.waiters:
            if device.state == STATE_CONNECTED:
                device.complete(packet_id, 0)
                device.group.touch(device)
        self._done(len(release.waiters))
        return 0
