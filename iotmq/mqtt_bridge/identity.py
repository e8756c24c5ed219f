"""Describe a bridge to its connections: what does not change from one to the next."""

from __future__ import annotations

from typing import NamedTuple


class BridgeIdentity(NamedTuple):
    """Names of a bridge, and how it does its work."""

    gateway: str
    """The name of this gateway, among those a message has passed."""
    mark: str
    """The client id of what comes over this bridge, which does not go back."""
    adds_properties: bool
    """Tell the other broker who has published a message, and where it has been."""
    forwards_bridged: bool
    """Send what came over another bridge, too."""
    drops_qos0_offline: bool
    """Leave out messages of QoS 0 that were stored before the connection."""
    takes_any_record: bool
    """Send records without an MQTT topic under the name of their broker topic."""
