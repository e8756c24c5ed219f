"""Name what bridges between gateways tell each other, as user properties of MQTT 5."""

from __future__ import annotations

from typing import Final

# The names of all of them begin so; other user properties are the publisher's.
PREFIX: Final = "iotmq-"
CLIENT_ID_PROPERTY: Final = "iotmq-client-id"
"""The client id of the device that has published the message."""
USER_PROPERTY: Final = "iotmq-user"
"""The user name of that device."""
MESSAGE_PROPERTY: Final = "iotmq-message"
"""The message's place in the log of the gateway that sends it: the same when it is sent again."""
HOPS_PROPERTY: Final = "iotmq-hops"
"""The names of the gateways the message has passed, with a comma between two."""
GATEWAY_PROPERTY: Final = "iotmq-gateway"
"""In a CONNACK: the name of the gateway that answers."""
