"""A record of the log as the message it is for subscribers."""

from libc.stdint cimport uint8_t

from iotmq.message.layout cimport SYS_FLAG_COMPRESSED
from iotmq.message.record cimport RecordParts, find_property

from iotmq.message import properties as names
from iotmq.message.bodies import inflate_body
from iotmq.message.errors import MessageFormatError

cdef bytes _TOPIC = names.MQTT_TOPIC.encode()
cdef bytes _QOS = names.MQTT_QOS.encode()
cdef const char* _topic_key = _TOPIC
cdef const char* _qos_key = _QOS
cdef Py_ssize_t _topic_key_size = len(_TOPIC)
cdef Py_ssize_t _qos_key_size = len(_QOS)


cdef class OutgoingMessage:

    cdef bint read(self, const RecordParts* record) except -1:
        """Look at a record; False when it is no message for devices."""
        cdef const uint8_t* value = NULL
        cdef Py_ssize_t value_size
        self.topic_size = find_property(
            record.properties, record.properties_size, _topic_key, _topic_key_size, &self.topic
        )
        if not 0 < self.topic_size <= 65535:
            return False
        value_size = find_property(record.properties, record.properties_size, _qos_key, _qos_key_size, &value)
        # A record without the property comes from a native producer: as reliable as the subscriber asked.
        self.qos = value[0] - 48 if value_size == 1 and 48 <= value[0] <= 50 else 2
        self.body = record.body
        self.body_size = record.body_size
        if record.sys_flag & SYS_FLAG_COMPRESSED:
            try:
                self._inflated = inflate_body(record.body[:record.body_size], record.sys_flag)
            except MessageFormatError:
                return False
            self.body = self._inflated
            self.body_size = len(self._inflated)
        return True
