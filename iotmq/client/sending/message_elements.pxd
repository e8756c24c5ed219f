cdef bytes batch_element(message, const char* unique_key, Py_ssize_t body_bytes_max)
cdef str unique_key_text(const char* unique_key)

cdef enum:
    UNIQUE_KEY_BYTES = 32
