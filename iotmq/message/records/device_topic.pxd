# The MQTT topic of a record, for those who serve MQTT.

from libc.stdint cimport uint8_t
from libc.string cimport memcmp

from iotmq.message.records.layout cimport SYS_FLAG_TRANSACTION_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from iotmq.message.records.fields cimport RecordParts
from iotmq.message.records.record cimport find_property


cdef inline bint is_brokers_own(const uint8_t* topic, Py_ssize_t size) noexcept nogil:
    """Names of the format's: %RETRY%, %DLQ%, the delays, transactions and other system topics.

    Such a record keeps the properties of the message it stands for, which was, or will be, seen in its topic.
    """
    if size == 0 or topic[0] == c"%":
        return True
    if topic[0] == c"S":
        return size == 19 and memcmp(topic, "SCHEDULE_TOPIC_XXXX", 19) == 0
    return size >= 8 and (memcmp(topic, "RMQ_SYS_", 8) == 0 or memcmp(topic, "rmq_sys_", 8) == 0)


cdef inline Py_ssize_t device_topic(const RecordParts* parts, const uint8_t** topic) noexcept:
    """Size of the MQTT topic (properties.MQTT_TOPIC), which is above 0; -1 for what is no device's message.

    That is a record without one, half of a transaction or its rollback, or a copy that waits in a topic of
    the brokers' own (retries, dead letters, delays): it was seen, or will be, in its real topic.
    """
    cdef int transaction = parts.sys_flag & SYS_FLAG_TRANSACTION_MASK
    cdef Py_ssize_t size
    if (
        is_brokers_own(parts.topic, parts.topic_size)
        or transaction == TRANSACTION_PREPARED
        or transaction == TRANSACTION_ROLLBACK
    ):
        return -1
    size = find_property(parts.properties, parts.properties_size, "MQTT_TOPIC", 10, topic)
    return size if size > 0 else -1
