"""Hold the settings that the connections of a listener share."""

from libc.stdint cimport uint16_t, uint32_t

from iotmq import limits


cdef class ConnectionSettings:
    """Hold the settings that all connections of a listener share.

    `packet_bytes_max` bounds the remaining length of what a device sends; `in_flight_max` (1 to 65,535) the
    messages of QoS 1 and 2 a subscriber may hold unacknowledged; `queued_bytes_max` what waits for a slow subscriber,
    `queued_messages_max` how many of QoS 1 and 2 (0 = any number), of which `drops_oldest` takes the oldest
    for a new one;
    `receive_max` (1 to 65,535) and `topic_aliases_max` are what MQTT 5 devices are told they may send, the latter
    also what they get. With `checks_payload_format` a payload that says it is UTF-8 has to be.
    `authentication_methods` are those a CONNECT of MQTT 5 may name; others are refused (0x8C).
    """

    def __init__(
        self,
        *,
        uint32_t packet_bytes_max=limits.MQTT_PACKET_BYTES_MAX,
        uint32_t in_flight_max=limits.MQTT_IN_FLIGHT_MAX,
        uint32_t queued_bytes_max=limits.MQTT_QUEUED_BYTES_MAX,
        uint32_t queued_messages_max=0,
        bint drops_oldest=False,
        uint16_t receive_max=limits.MQTT_RECEIVE_MAX,
        uint16_t topic_aliases_max=limits.MQTT_TOPIC_ALIASES_MAX,
        bint checks_payload_format=False,
        double connect_timeout_s=limits.MQTT_CONNECT_TIMEOUT_S,
        authentication_methods=(),
    ):
        if not 1 <= in_flight_max <= 65535:
            raise ValueError("in_flight_max must be between 1 and 65,535")
        if not receive_max:
            raise ValueError("receive_max must be between 1 and 65,535")
        self.packet_bytes_max = packet_bytes_max
        self.in_flight_max = in_flight_max
        self.queued_bytes_max = queued_bytes_max
        self.queued_messages_max = queued_messages_max
        self.drops_oldest = drops_oldest
        self.receive_max = receive_max
        self.topic_aliases_max = topic_aliases_max
        self.checks_payload_format = checks_payload_format
        self.connect_timeout_s = connect_timeout_s
        self.authentication_methods = frozenset(authentication_methods)
