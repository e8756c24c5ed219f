from libc.stdint cimport uint8_t, uint16_t, uint32_t


cdef struct InFlightSlot:
    uint16_t packet_id      # 0 = free
    uint8_t awaited         # PUBACK, PUBREC or PUBCOMP


cdef struct InFlightWindow:
    InFlightSlot* slots     # per packet id modulo capacity
    uint32_t count
    uint32_t capacity
    uint16_t last_packet_id


# The slot of a packet id that is in flight, else NULL.
cdef InFlightSlot* find_slot(const InFlightWindow* window, uint16_t packet_id) noexcept
# Put a packet id that is not in flight into flight.
cdef int occupy(InFlightWindow* window, uint16_t packet_id, uint8_t awaited) except -1
# Put a new packet id into flight; not all 65,535 may be.
cdef uint16_t take_new(InFlightWindow* window, uint8_t awaited) except 0


cdef inline void end_flight(InFlightWindow* window, InFlightSlot* slot) noexcept:
    slot.packet_id = 0
    window.count -= 1
