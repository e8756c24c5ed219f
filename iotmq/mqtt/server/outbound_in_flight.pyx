"""Packet ids towards a subscriber: which are in flight, and what each waits for.

Operations: take, find and free one per message of QoS 1 and 2. Plan: a table indexed by packet id, because ids
are given out in order and mostly acknowledged in order; two that meet in one place make it twice as large.
"""

from libc.stdint cimport uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free


cdef InFlightSlot* find_slot(const InFlightWindow* window, uint16_t packet_id) noexcept:
    cdef InFlightSlot* slot
    if packet_id == 0 or window.capacity == 0:
        return NULL
    slot = &window.slots[packet_id & (window.capacity - 1)]
    return slot if slot.packet_id == packet_id else NULL


cdef int occupy(InFlightWindow* window, uint16_t packet_id, uint8_t awaited) except -1:
    cdef InFlightSlot* slot
    while True:
        if window.capacity:
            slot = &window.slots[packet_id & (window.capacity - 1)]
            if slot.packet_id == 0:
                slot.packet_id = packet_id
                slot.awaited = awaited
                slot.place = 0
                window.count += 1
                window.repeats_count += awaited == AWAITS_REPEAT
                return 0
        _grow(window)


cdef uint16_t take_new(InFlightWindow* window, uint8_t awaited) except 0:
    cdef InFlightSlot* slot
    if window.count == window.capacity:
        _grow(window)
    while True:
        window.last_packet_id = <uint16_t>(window.last_packet_id + 1)
        slot = &window.slots[window.last_packet_id & (window.capacity - 1)]
        if window.last_packet_id and slot.packet_id == 0:
            break
    slot.packet_id = window.last_packet_id
    slot.awaited = awaited
    slot.place = 0
    window.count += 1
    return window.last_packet_id


cdef int _grow(InFlightWindow* window) except -1:
    cdef uint32_t capacity = window.capacity * 2 if window.capacity else 16
    cdef uint32_t index
    cdef InFlightSlot* slots = <InFlightSlot*>calloc(capacity, sizeof(InFlightSlot))
    if slots == NULL:
        raise MemoryError
    for index in range(window.capacity):
        if window.slots[index].packet_id:
            slots[window.slots[index].packet_id & (capacity - 1)] = window.slots[index]
    free(window.slots)
    window.slots = slots
    window.capacity = capacity
    return 0
