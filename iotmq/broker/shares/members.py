"""The members of one group of a shared subscription, and the messages they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iotmq import limits


class Holder:
    """Limits the bytes that one client holds as a member of all its groups at a broker."""

    __slots__ = ("_room_again", "client_id", "held_bytes")

    def __init__(self, client_id: str, room_again: Callable[[], None]) -> None:
        """`room_again()` is called when it had no room and has: any of its groups may go on."""
        self.client_id = client_id
        self.held_bytes = 0
        self._room_again = room_again

    @property
    def has_room(self) -> bool:
        """Return whether it may be handed one message more, however large that is."""
        return self.held_bytes < limits.SHARE_CLIENT_BYTES_MAX

    def hold(self, size: int) -> None:
        """Count a message handed to the client."""
        self.held_bytes += size

    def release(self, size: int) -> None:
        """Count off a message that the client no longer holds."""
        had_room = self.has_room
        self.held_bytes -= size
        if not had_room and self.has_room:
            self._room_again()


class Member:
    """One client in one group.

    `is_slow` and `is_away` are no states of one machine: a device is slow or not whether its front end is
    connected or not, and each is undone by something else.
    """

    __slots__ = (
        "claimed", "client_id", "handed", "held", "holder", "is_away", "is_slow", "limit", "member_id",
        "place",
    )  # fmt: skip

    def __init__(self, member_id: int, holder: Holder, place: str, limit: int) -> None:
        self.member_id = member_id
        self.holder = holder
        self.client_id = holder.client_id
        # Its front end.
        self.place = place
        # How many messages it may be handed in all since it joined, and how many it was.
        self.limit = limit
        self.handed = 0
        self.held: dict[int, Message] = {}
        # Positions it said it holds, and that were not read then.
        self.claimed: list[int] = []
        # It let a message's time pass, and has acknowledged nothing since.
        self.is_slow = False
        # Its front end is not connected now.
        self.is_away = False

    @property
    def has_credit(self) -> bool:
        return self.handed < self.limit and not self.is_away and self.holder.has_room


class Message:
    """One message that was read and not acknowledged; it is at a member, or waits."""

    __slots__ = ("due_s", "key", "last_client_id", "member", "position", "size")

    def __init__(self, position: int, size: int, key: str) -> None:
        self.position = position
        self.size = size
        self.key = key
        # Who holds it, and until when; None while it waits.
        self.member: Member | None = None
        self.due_s = 0.0
        self.last_client_id: str | None = None


class Members(dict[int, Member]):
    """The members of a group by their id, and which of them messages go to."""

    def __init__(self) -> None:
        super().__init__()
        # Somebody is neither slow nor away, as of the last change.
        self.has_active = False

    def active(self) -> list[Member]:
        """List those that are neither slow nor away."""
        return [member for member in self.values() if not member.is_slow and not member.is_away]

    def candidates(self) -> Sequence[Member]:
        """List the members messages go to: slow ones only where there are no others."""
        return self.active() or [member for member in self.values() if not member.is_away]

    def is_candidate(self, member: Member) -> bool:
        """Return whether messages go to a member."""
        return not member.is_away and (not member.is_slow or not self.has_active)
