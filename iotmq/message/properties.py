"""The properties of a record: text pairs in one string, and the names with a meaning of their own.

On disk and on the wire: `name \\x01 value \\x02`, repeated; some senders leave out the last \\x02.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Final

NAME_END: Final = "\x01"
PROPERTY_END: Final = "\x02"

# Set by producers.
KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
TIMER_DELAY_S: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
# Takes back the waiting message with this unique key.
TIMER_CANCELS: Final = "TIMER_DEL_UNIQKEY"
UNIQ_KEY: Final = "UNIQ_KEY"
PRODUCER_GROUP: Final = "PGROUP"
TRANSACTION_PREPARED: Final = "TRAN_MSG"
CHECK_IMMUNITY_TIME_S: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
INSTANCE_ID: Final = "INSTANCE_ID"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
REPLY_TTL: Final = "TTL"
MSG_TYPE: Final = "MSG_TYPE"
# What MSG_TYPE says of a reply.
REPLY_TYPE: Final = "reply"
# Milliseconds from its store time on after which a record is passed over by reads.
TIME_TO_LIVE_MS: Final = "MSG_TTL_MS"
# Which batch of its producer it is the first message of (docs/reference/wire-protocol.md).
BATCH_NUMBER: Final = "BATCH_NUMBER"
# Of a dead letter: the change that it makes to what its group has popped (broker.pop.states).
POP_DONE: Final = "POP_DONE"

# Set by brokers.
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE_ID: Final = "REAL_QID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
TRANSACTION_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
CLUSTER: Final = "CLUSTER"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"

# Set by consumers on what they received; never stored.
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"

# Set by the MQTT front end.
MQTT_TOPIC: Final = "MQTT_TOPIC"
MQTT_QOS: Final = "MQTT_QOS"
MQTT_CLIENT_ID: Final = "MQTT_CLIENT_ID"
MQTT_RETAIN: Final = "MQTT_RETAIN"
# The client id of the bridge that a message has come over, behind MQTT_CLIENT_ID.
MQTT_BRIDGE: Final = "MQTT_BRIDGE"
# The packet id, in decimal, of a message of QoS 2 whose session is kept.
MQTT_PACKET_ID: Final = "MQTT_PACKET_ID"
# Of a message that a route put aside: its MQTT topic (it has no MQTT_TOPIC, so that no device gets it), why,
# and the name of the route.
MQTT_QUARANTINED_TOPIC: Final = "MQTT_QUARANTINED_TOPIC"
MQTT_QUARANTINE_REASON: Final = "MQTT_QUARANTINE_REASON"
MQTT_QUARANTINE_ROUTE: Final = "MQTT_QUARANTINE_ROUTE"
# What an MQTT 5 message has beside. Its message expiry interval is TIME_TO_LIVE_MS, and each user property
# one with the prefix before its name, in order.
MQTT_PAYLOAD_FORMAT: Final = "MQTT_PAYLOAD_FORMAT"
MQTT_CONTENT_TYPE: Final = "MQTT_CONTENT_TYPE"
MQTT_USER_PREFIX: Final = "MQTT_USER."
# Where an answer is published, and what it has to repeat (encode_correlation_data).
MQTT_RESPONSE_TOPIC: Final = "MQTT_RESPONSE_TOPIC"
MQTT_CORRELATION_DATA: Final = "MQTT_CORRELATION_DATA"


def encode_correlation_data(data: bytes) -> str:
    """Any bytes as the value of MQTT_CORRELATION_DATA: base64."""
    return base64.b64encode(data).decode()


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the pairs as a record holds them, each one ended, in the mapping's order.

    Raises ValueError for an empty name and for \\x01 or \\x02 in a name or value: the format cannot
    hold them, and a value that could would let its sender forge other properties.
    """
    parts: list[str] = []
    for name, value in properties.items():
        if not name:
            raise ValueError("a property needs a name")
        parts += (name, NAME_END, value, PROPERTY_END)
    text = "".join(parts)
    if text.count(NAME_END) != len(properties) or text.count(PROPERTY_END) != len(properties):
        raise ValueError("a property's name or value contains \\x01 or \\x02")
    return text.encode()


def decode_properties(properties: bytes) -> dict[str, str]:
    """Return all pairs of a record's raw properties; the last of several with one name wins.

    Lenient, as stored records must stay readable: pieces without a name or without \\x01 are skipped,
    bytes that are not UTF-8 become U+FFFD.
    """
    pairs: dict[str, str] = {}
    for piece in properties.split(b"\x02"):
        name, separator, value = piece.partition(b"\x01")
        if name and separator:
            pairs[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return pairs
