"""The connections of a master's followers, by their numbers, and who is not taken as a follower."""

from __future__ import annotations

from collections.abc import Iterable

from iotmq.member.wire import Introduction
from iotmq.remoting.command import Command
from iotmq.remoting.server import ServerConnection
from iotmq.replication.member import Member


class FollowerLinks:
    """One connection of each follower."""

    def __init__(self, member: Member, introduction: Introduction) -> None:
        """`introduction` is this member's."""
        self._member = member
        self._introduction = introduction
        self._links: dict[int, ServerConnection] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._links

    def is_of(self, number: int, connection: ServerConnection) -> bool:
        """Return whether that is the connection of a follower."""
        return self._links.get(number) is connection

    def number_of(self, connection: ServerConnection) -> int | None:
        """Return whose connection that is; None for one that is no follower's."""
        return next((number for number, link in self._links.items() if link is connection), None)

    def links_of(self, numbers: Iterable[int]) -> list[ServerConnection]:
        """Return the connections of those followers that have one."""
        return [self._links[number] for number in numbers if number in self._links]

    def refusal(
        self, connection: ServerConnection, introduction: Introduction, number: int, now_s: float
    ) -> str | None:
        """Return why a member is not taken as a follower; None for one that is."""
        own = self._member.number
        if introduction != self._introduction:
            return (
                f"member {number} has {_text(introduction)}, and member {own} has "
                f"{_text(self._introduction)}: they cannot be copies of each other"
            )
        if number == own:
            return f"two members have the number {number}: correct replication.member of one of them"
        if not self._member.is_member(number):
            return (
                f"member {number} follows, and is no member: stop it, or "
                f"`iotmq replication add {number}=HOST:PORT`"
            )
        if self._is_heard(number, now_s) and not self.is_of(number, connection):
            # Or the two would take the place of each other again and again.
            return (
                f"member {number} follows already, by another connection: does a second process have that "
                "number? Correct replication.member of one of them"
            )
        return None

    def take(self, number: int, connection: ServerConnection) -> None:
        """Take a connection for that of a follower, in place of a former one."""
        old = self._links.get(number)
        if old is not None and old is not connection:
            old.close("replaced")
        self._links[number] = connection

    def forget(self, number: int) -> None:
        """Forget a connection that has ended."""
        del self._links[number]

    def close(self, number: int, reason: str) -> None:
        """End the connection of a follower, if it has one."""
        link = self._links.pop(number, None)
        if link is not None:
            link.close(reason)

    def close_all(self, reason: str) -> None:
        """End all connections."""
        for link in list(self._links.values()):
            link.close(reason)

    def send(self, number: int, command: Command) -> None:
        """Send something to a follower, if it has a connection."""
        link = self._links.get(number)
        if link is not None:
            link.send_oneway(command)

    def _is_heard(self, number: int, now_s: float) -> bool:
        """Return whether a follower was heard just now on a connection that stands."""
        leading = self._member.leading
        if number not in self._links or leading is None or number not in leading.followers:
            return False
        follower = leading.followers[number]
        return follower.is_connected and now_s - follower.heard_s < self._member.settings.beat_stale_s


def _text(introduction: Introduction) -> str:
    return (
        f"broker {introduction.broker} of cluster {introduction.cluster}, store.segment_bytes "
        f"{introduction.segment_bytes} and format {introduction.format}"
    )
