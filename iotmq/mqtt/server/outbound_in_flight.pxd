from libc.stdint cimport uint8_t, uint16_t, uint32_t


cdef enum:
    AWAITS_NOTHING = 0      # it is not sent yet
    AWAITS_REPEAT = 1       # of an earlier connection, not sent again in this one


cdef struct InFlightSlot:
    uint16_t packet_id      # 0 = free
    uint8_t awaited         # PUBACK, PUBREC or PUBCOMP; PUBREL = ours, which may not be sent yet
    uint32_t place          # where a session has its message


cdef struct InFlightWindow:
    InFlightSlot* slots     # per packet id modulo capacity
    uint32_t count
    uint32_t repeats_count  # of these, AWAITS_REPEAT
    uint32_t capacity
    uint16_t last_packet_id


# The slot of a packet id that is in flight, else NULL.
cdef InFlightSlot* find_slot(const InFlightWindow* window, uint16_t packet_id) noexcept
# Put a packet id that is not in flight into flight.
cdef int occupy(InFlightWindow* window, uint16_t packet_id, uint8_t awaited) except -1
# Put a new packet id into flight; not all 65,535 may be.
cdef uint16_t take_new(InFlightWindow* window, uint8_t awaited) except 0


cdef inline void await_answer(InFlightWindow* window, InFlightSlot* slot, uint8_t awaited) noexcept:
    window.repeats_count -= slot.awaited == AWAITS_REPEAT
    slot.awaited = awaited


cdef inline void end_flight(InFlightWindow* window, InFlightSlot* slot) noexcept:
    await_answer(window, slot, AWAITS_NOTHING)
    slot.packet_id = 0
    window.count -= 1
