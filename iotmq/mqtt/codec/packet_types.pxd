"""Control packet types, property identifiers, subscription options and connection states for the compiled core.

For people: iotmq.mqtt.codec.packets, properties and subscription_options.
"""


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

cdef enum:      # properties of a PUBLISH
    PAYLOAD_FORMAT = 0x01
    MESSAGE_EXPIRY = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    TOPIC_ALIAS = 0x23
    USER_PROPERTY = 0x26

cdef enum:      # options of a subscription
    OPTIONS_QOS = 0x03
    NO_LOCAL = 0x04
    RETAIN_AS_PUBLISHED = 0x08
