"""The shell of a device's connection: moves bytes between a transport and the MQTT core, nothing else.

An asyncio protocol made for uvloop. Output is written once per loop turn and device; reading stops while the
group is congested, or while the device does not take its own answers.
"""

from libc.stdint cimport uint64_t

from iotmq.mqtt.connection cimport ConnectionSettings, PublishSink, ServerConnection

from iotmq.mqtt import connection as core

cdef enum:
    STATE_CLOSED = 3
    UNREAD_BYTES_MAX = 256 * 1024   # answers a device may leave unread before it is not read either


cdef class DeviceGroup:
    """What the devices of one listener share. `handler` gets session events and the end of connections."""

    def __init__(self, loop not None, PublishSink sink not None, handler not None, *, double now_s):
        self.loop = loop
        self.sink = sink
        self._handler = handler
        self.now_s = now_s
        self._touched = []
        self._paused = set()

    @property
    def paused_count(self):
        """Devices that are not being read."""
        return len(self._paused)

    cdef int touch(self, Device device) except -1:
        """The device has output: it is written when the loop turn ends."""
        if not device._is_touched:
            device._is_touched = True
            self._touched.append(device)
            if not self._is_write_scheduled:
                self._is_write_scheduled = True
                self.loop.call_soon(self._write_scheduled)
        return 0

    def _write_scheduled(self):
        self.write_touched()

    cdef int write_touched(self) except -1:
        cdef Device device
        touched = self._touched
        self._is_write_scheduled = False
        if not touched:
            return 0
        self._touched = []
        for device in touched:
            device._is_touched = False
            device.write_output()
        return 0

    cdef int pause(self, Device device) except -1:
        if not device._is_paused and device.transport is not None:
            device._is_paused = True
            device.transport.pause_reading()
            self._paused.add(device)
        return 0

    def resume_all(self):
        """Read again from the devices that were paused, except those that leave their answers unread."""
        cdef Device device
        self.is_congested = False
        waiting = self._paused
        self._paused = set()
        for device in waiting:
            if device.is_write_paused:
                self._paused.add(device)
            elif device.transport is not None:
                device._is_paused = False
                device.transport.resume_reading()


cdef class Device(ServerConnection):
    """One device's connection as an asyncio protocol; sessions are the handler's business."""

    def __init__(self, DeviceGroup group not None, ConnectionSettings settings not None):
        ServerConnection.__init__(self, settings, group.sink, group.now_s)
        self.group = group

    def connection_made(self, transport):
        self.transport = transport
        self.group._handler.device_connected(self)

    def data_received(self, bytes data not None):
        cdef const unsigned char* pointer = data
        self.last_received_s = self.group.now_s
        self.group.received_bytes += len(data)
        if len(data):
            self._receive_guarded(pointer, len(data))
        self._after_input()

    cdef int _after_input(self) except -1:
        while self._events is not None:     # opening a session may release more input
            self.group._handler.device_events(self, self.events_received())
        if self.output.size:
            self.group.touch(self)
        if self.state == STATE_CLOSED:
            self.finish()
        elif self.group.is_congested or (self.is_write_paused and self.output.size > UNREAD_BYTES_MAX):
            self.group.pause(self)
        return 0

    def after_answer(self):
        """To be called when the handler answered outside of `device_events`."""
        self._after_input()

    def finish(self):
        """Write what is left and close the transport, when the core is closed."""
        if self.transport is not None and not self.transport.is_closing():
            self.write_output()
            self.transport.close()

    def abort(self):
        """Drop the transport at once, unwritten output included."""
        if self.transport is not None:
            self.transport.abort()

    def eof_received(self):
        self.receive_eof()
        return False

    def connection_lost(self, error):
        self.transport = None
        self.group._paused.discard(self)
        self.receive_eof()
        self.group._handler.device_lost(self)

    def pause_writing(self):
        self.is_write_paused = True

    def resume_writing(self):
        self.is_write_paused = False
        self.write_output()
        if self._is_paused and not self.group.is_congested and not self.is_write_paused and self.transport is not None:
            self._is_paused = False
            self.group._paused.discard(self)
            self.transport.resume_reading()

    cdef int write_output(self) except -1:
        if self.output.size and not self.is_write_paused and self.transport is not None:
            self.group.sent_bytes += self.output.size
            self.transport.write(self.data_to_send())
        return 0
