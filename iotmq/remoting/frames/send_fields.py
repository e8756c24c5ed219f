"""Fields of our own in the header of sends; brokers that do not know them pass them over."""

from __future__ import annotations

from typing import Final

# The sender does not know whether the message, or batch, is stored already.
REPEAT_FIELD: Final = "isRepeat"
# Messages of the batch have MQTT_PACKET_ID.
PACKET_IDS_FIELD: Final = "hasPacketIds"
