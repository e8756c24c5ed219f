from libc.stdint cimport uint8_t

# Whether the text stands anywhere in there.
cdef bint has_text(const uint8_t* at, Py_ssize_t size, const char* text, Py_ssize_t text_size) noexcept

# The first element of a batch from `at` on whose properties name a time of delivery; NULL for none, and where
# something stands that can be no element.
cdef const uint8_t* next_wish(const uint8_t* at, const uint8_t* end) noexcept

# Copy properties, without WAIT where they may have it; the size of the copy.
cdef Py_ssize_t put_properties(uint8_t* target, const uint8_t* at, Py_ssize_t size, bint has_wait) noexcept
