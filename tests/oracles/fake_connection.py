"""A connection of a client to a server, without a socket: it keeps what the client is told."""

from __future__ import annotations

from iotmq.remoting.command import Command


class FakeConnection:
    """Takes what the broker says to a client."""

    def __init__(self, peer: tuple[str, int] = ("127.0.0.1", 5000)) -> None:
        self.peer = peer
        self.is_closed = False
        self.is_congested = False
        self.replies: list[Command] = []
        self.said: list[Command] = []

    def reply(self, response: Command) -> None:
        self.replies.append(response)

    def send_oneway(self, command: Command) -> None:
        self.said.append(command)
