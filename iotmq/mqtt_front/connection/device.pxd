from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from iotmq.mqtt.codec.byte_buffer cimport ByteBuffer
from iotmq.mqtt.server.outbound cimport DeliveryOptions, OutboundMessage
from iotmq.mqtt.server.publish_sink cimport PublishSink
from iotmq.mqtt_front.connection.bridge_role cimport BridgeRole
from iotmq.mqtt_front.connection.device_calls cimport DeviceSession
from iotmq.mqtt_front.connection.limited cimport LimitedConnection
from iotmq.mqtt_front.connection.outgoing cimport OutgoingMessage


# Whose work may pile up (DeviceGroup.congest).
cdef enum:
    CONGESTED_INGRESS = 1   # messages wait for a broker
    CONGESTED_EGRESS = 2    # messages wait to be written to subscribers
    CONGESTED_STOP = 4      # what there is goes out, nothing more comes in
    CONGESTED_HOOKS = 8     # messages wait for users' programs


cdef class DeviceGroup:
    cdef readonly object loop
    cdef readonly PublishSink sink
    cdef object _handler
    cdef public object tracing          # told of connections; None while nothing is traced
    cdef public tuple listeners         # told of sessions and subscriptions: users' programs and plug-ins
    cdef public object may_deliver      # asked whether a device gets a message; None without such a program
    cdef public list delivered          # messages that were handed to devices in this turn; None for nobody
    cdef readonly object clock
    cdef public double now_s            # what devices are stamped with; never behind the clock
    cdef bytearray _input               # what every device reads into, one after the other
    cdef uint8_t* _input_data
    cdef list _views                    # writable views of _input, of READ_BYTES_MIN << index bytes
    cdef object _view                   # the one devices get in this turn
    cdef uint32_t _read_bytes           # its size: a device's share of a turn
    cdef uint32_t _turn_bytes           # what all devices together may send in the next turn
    cdef uint32_t _lagging_count        # subscribers that were sent more while they did not take the last
    cdef uint32_t _turn                 # number of the turn, for devices to know a new one
    cdef uint32_t _active_count         # devices that sent something in this turn
    cdef bint _is_turn_scheduled
    cdef bint _is_ending_turn
    cdef readonly bint is_congested     # reading from devices is to stop
    cdef uint8_t _congested_by          # whose work piles up, a bit for each
    cdef list _touched                  # devices with output, each once
    cdef list _put_off                  # devices that have more that costs much than this turn has room for
    cdef list _yielding                 # devices that used up their share of this turn
    cdef set _paused                    # devices whose reading stopped for longer
    cdef object _waiting                # deque of devices with events for which this turn had no room
    cdef uint32_t _events_left          # events that may still be handled in this turn
    cdef bint _is_handling_scheduled
    cdef readonly uint64_t unopened_bytes   # held for devices that are not connected yet
    cdef public uint64_t unfinished_bytes_max
    cdef readonly uint64_t unfinished_bytes  # of packets of connected devices that have not come whole, if large
    cdef object _unfinished             # deque of devices with the beginning of a packet
    cdef public double packet_timeout_s
    cdef public double packet_bytes_per_s_min
    cdef readonly uint64_t received_bytes
    cdef readonly uint64_t sent_bytes
    cdef public uint64_t dropped            # the oldest of what waited for a window, for something new
    cdef public uint64_t expired            # messages that nobody got in time
    cdef public uint64_t too_large          # messages that a device does not take, for their size

    cdef int schedule_turn(self) except -1
    cdef int touch(self, Device device) except -1
    cdef int write_touched(self) except -1
    cdef int pause(self, Device device) except -1
    cdef int watch_unfinished(self, Device device) except -1
    cdef int handle_events(self, Device device) except -1
    cpdef int congest(self, uint8_t cause) except -1
    cpdef int relieve(self, uint8_t cause) except -1
    cdef int _schedule_handling(self) except -1


cdef class Device(LimitedConnection):
    cdef readonly DeviceGroup group
    cdef readonly object transport      # asyncio's, a SocketLink or a WebSocketLink; None unless connected
    cdef public object peer             # peer.Peer; None in tests that have no listener
    cdef str _client_id
    cdef bytes client_id_utf8           # set with client_id
    cdef public bytes names             # device_names.DeviceNames.key(); None unless some setting asks for it
    cdef public bytes properties        # the record properties of everything it publishes
    cdef public dict subscriptions      # filter -> options with the QoS granted; None while it has none
    cdef public uint32_t expiry_s       # how long its session outlives it; set when the session opens
    cdef public str user                # who it proved to be; shared between connections, None for anybody
    cdef public BridgeRole bridge       # None for a connection that speaks for itself alone
    cdef public object identity         # what else is known of that (access.identity.Identity); None: nobody was asked
    cdef public double expires_s        # when its connection ends, as its token does; 0: never
    cdef readonly int64_t opened_ms     # when its CONNECT was accepted, in milliseconds since 1970; 0 before
    cdef object look                    # views.connection_walk.ConnectionLook; None while nobody has looked
    cdef public uint32_t watched_s      # second of the bucket of connection.deadlines that it is in
    cdef public object will             # None when there is none, or it was dropped by DISCONNECT
    cdef public bint has_session        # the broker has given it one, in `epoch`, and was not told of its end
    cdef public int64_t epoch
    cdef public bint is_resumed         # its session was there before it connected
    cdef public DeviceSession session   # None for one that ends with the connection
    cdef public DeviceSession shares    # its part in shared subscriptions; None while it has none
    cdef object _room_callback          # what waits beside those two for room; None while nothing does
    cdef public object rights           # what it may do (permissions.rights.Rights); None: everything
    cdef public uint64_t published_lanes    # those of the ingress it has published to, by place modulo 64
    cdef double _held_since_s           # when it was first not read because of an answer that is due; 0 while it is
    cdef list _unhandled                # events that wait for the next turn; None while there are none
    cdef uint32_t unparsed_bytes        # in a buffer beside _input, as its transport says before it is connected
    cdef uint32_t _unopened_bytes       # what of it counts in the group: 0 once it is connected, or closed
    cdef uint32_t _unfinished_bytes     # the same, of a large packet of a connected device that has not come whole
    cdef uint32_t _turn                 # the turn _turn_bytes counts
    cdef uint32_t _turn_bytes
    # True or not, in a byte each: there is a device for every connection.
    cdef uint8_t _has_acknowledged      # since the last time the session was told
    cdef uint8_t _is_touched
    cdef uint8_t _is_waiting            # in the group's queue, because of _unhandled
    cdef uint8_t _is_paused             # reading stopped, for the rest of the turn or for longer
    cdef uint8_t _is_unfinished         # it stands in the group's queue of those

    cdef bint is_for_device(self, OutgoingMessage message, DeliveryOptions* delivery, uint8_t options,
            const uint32_t* identifiers, uint32_t identifiers_count) except -1
    cdef int note_delivered(self, OutgoingMessage message, const DeliveryOptions* delivery) except -1
    cdef int wait_for_turn(self) except -1
    cdef int wait_for_answer(self) except -1
    cdef int count_input(self, uint32_t size) except -1
    cdef int received(self, uint32_t size) except -1
    cdef int after_read(self) except -1
    cdef int _after_input(self) except -1
    cdef int _count_unopened(self) except -1
    cdef int _count_unfinished(self) except -1
    cdef uint32_t read_bytes_max(self) except 0
    cdef int room_comes(self) except -1
    cdef int _room_again(self) except -1
    cdef bint _is_held(self) noexcept
    cdef int _resume_if_free(self) except -1
    cdef int _resume(self) except -1
    cdef int write_output(self) except -1
