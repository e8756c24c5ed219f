# Frames as clients usually write them, read without an object. Nothing is refused here: what is unusual, wrong
# or not whole is just not read, and the general decoder in frame.py says what it is.

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp

# A text in the received bytes. `is_plain`: no escapes in it, and only ASCII.
cdef struct Text:
    const uint8_t* at
    Py_ssize_t size
    bint is_plain

cdef struct Head:
    Py_ssize_t end                 # of the frame, in the received bytes
    const uint8_t* body
    int32_t body_size
    int32_t code
    int32_t opaque
    int32_t flag
    int32_t version
    bint is_binary

# Called for each field; the code is known by then. False leaves the frame to the general decoder.
ctypedef bint (*TakeField)(void* context, const Head* head, const Text* name, const Text* value) except -1

# Read the frame at `at`; False when it is not usual, with `head` undefined and some fields taken.
cdef bint read_head(const uint8_t* start, Py_ssize_t at, Py_ssize_t end, Head* head, TakeField take,
                    void* context) except -1

# The text as a number if it is decimal digits, perhaps with a minus, and nothing else.
cdef bint read_decimal(const Text* text, int64_t* number) noexcept

cdef inline bint is_text(const Text* text, const char* word, Py_ssize_t size) noexcept:
    return text.size == size and not memcmp(text.at, word, size)
