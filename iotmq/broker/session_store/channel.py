"""One front end's way to the sessions of a broker."""

from __future__ import annotations

from iotmq.broker.light_queues.light_queues import LightChannel
from iotmq.ports.sessions import SessionReceiver, ShareOutlet


class SessionChannel:
    """One front end. `name` tells it from others, also when it comes back."""

    def __init__(
        self, name: str, receiver: SessionReceiver, light: LightChannel, shares: ShareOutlet
    ) -> None:
        self.name = name
        self.receiver = receiver
        self.light = light
        # Where the messages of shared subscriptions go.
        self.shares = shares
        self.is_open = True
        # As it was told, or says.
        self.is_draining = False
