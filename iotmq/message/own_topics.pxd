# Which topics are the brokers' own: a record there is on its way to somewhere else, or nobody's message.

from libc.stdint cimport uint8_t
from libc.string cimport memcmp


cdef inline bint is_brokers_own(const uint8_t* topic, Py_ssize_t size) noexcept nogil:
    """Names of the format's: %RETRY%, %DLQ%, the delays, transactions and other system topics.

    Such a record keeps the properties of the message it stands for, which was, or will be, seen in its topic.
    """
    if size == 0 or topic[0] == c"%":
        return True
    if topic[0] == c"S":
        return size == 19 and memcmp(topic, "SCHEDULE_TOPIC_XXXX", 19) == 0
    return size >= 8 and (memcmp(topic, "RMQ_SYS_", 8) == 0 or memcmp(topic, "rmq_sys_", 8) == 0)
