cdef bytes batch_element(message, const char* unique_key, Py_ssize_t body_bytes_max)
cdef int check_message(message) except -1
cdef str topic_of(message)
cdef str key_of(message)
cdef str unique_key_text(const char* unique_key)

cdef enum:
    UNIQUE_KEY_BYTES = 32
