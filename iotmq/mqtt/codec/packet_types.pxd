"""Control packet types and connection states as the compiled core has them (iotmq.mqtt.codec.packets for
people)."""


cdef enum:
    PACKET_CONNECT = 1
    PACKET_PUBLISH = 3
    PACKET_PUBACK = 4
    PACKET_PUBREC = 5
    PACKET_PUBREL = 6
    PACKET_PUBCOMP = 7
    PACKET_SUBSCRIBE = 8
    PACKET_UNSUBSCRIBE = 10
    PACKET_PINGREQ = 12
    PACKET_DISCONNECT = 14
    PACKET_AUTH = 15

cdef enum:
    LEVEL_3_1 = 3
    LEVEL_3_1_1 = 4
    LEVEL_5 = 5

cdef enum:
    STATE_AWAITING_CONNECT = 0
    STATE_OPENING = 1
    STATE_CONNECTED = 2
    STATE_CLOSED = 3
    STATE_AUTHENTICATING = 4
