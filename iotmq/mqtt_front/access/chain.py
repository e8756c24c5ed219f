"""The authentication chain of a listener: links that are asked in their order, and what its end means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from iotmq.mqtt.reason_codes import BAD_USER_NAME_OR_PASSWORD, NOT_AUTHORIZED
from iotmq.mqtt_front.access.answers import Answer
from iotmq.mqtt_front.access.chain_link import ChainLink
from iotmq.mqtt_front.access.exchanges import Exchange
from iotmq.mqtt_front.access.identity import Identity
from iotmq.mqtt_front.access.verdicts import Accepted, Credentials, Denied, NotMine

ANONYMOUS: Final = Identity(decided_by="anonymous")
"""The identity of a device that nobody knows, where such ones are taken."""


class Decision:
    """Gather what is found out about one device, on its way through the chain."""

    __slots__ = ("_kept", "asked", "at", "done", "how", "is_given_up", "links", "verdict")

    def __init__(
        self, asked: Credentials, links: Sequence[ChainLink], done: Callable[[Decision], None]
    ) -> None:
        self.asked = asked
        self.links = links
        self.done = done
        """To be called on the loop of the front end, once there is a verdict."""
        self.at = 0
        """The link whose turn it is."""
        self.is_given_up = False
        """Set on the thread of the front end when the device has gone."""
        self.verdict: Accepted | Denied | None = None
        """Set when the chain is through; None before, and when the device has gone."""
        self.how = ""
        """Set with the verdict: who decided."""
        # What links have answered, to be remembered by the thread of the front end.
        self._kept: list[tuple[ChainLink, bytes, Answer]] = []

    @property
    def is_through(self) -> bool:
        """Return whether all links were asked, or one has decided."""
        return self.verdict is not None or self.at == len(self.links)

    def is_wanted(self) -> bool:
        """Return whether somebody waits for the verdict."""
        return not self.is_given_up

    def give_up(self) -> None:
        """The device is known, or has gone; on the thread of the front end.

        Its CONNECT, maybe with a large will, does not wait for the turn of a question of nobody.
        """
        self.is_given_up = True
        self.done = _nobody_waits

    def look(self) -> bool:
        """Go on as far as answers are remembered. False when a link has to be asked."""
        while self.at < len(self.links):
            link = self.links[self.at]
            if link.is_asked_about(self.asked):
                key = link.key_of(self.asked)
                answer = None if key is None else link.remembered(key)
                if answer is None:
                    return False
                link.count_remembered()
                if self._take(answer, "remembered"):
                    return True
            self.at += 1
        return True

    async def ask(self) -> None:
        """Go on to the end, on the loop of the chain."""
        while not self.look():
            link = self.links[self.at]
            key = link.key_of(self.asked)
            answer = await link.ask(self.asked, self.is_wanted)
            if answer is None:
                return
            if key is not None:
                self._kept.append((link, key, answer))
            if self._take(answer, link.how):
                return
            self.at += 1

    def _take(self, answer: Answer, how: str) -> bool:
        """Return whether the answer ends the chain."""
        if isinstance(answer, NotMine):
            return False
        self.verdict, self.how = answer, how
        return True

    def remember(self) -> None:
        """Have the links remember what they have answered; on the thread of the front end."""
        for link, key, answer in self._kept:
            link.keep(key, answer)


def _nobody_waits(_decision: Decision) -> None:
    """Stand for who has gone."""


class Chain:
    """The links of one listener."""

    def __init__(self, links: Sequence[ChainLink], *, allow_anonymous: bool) -> None:
        self.links = tuple(links)
        self._allow_anonymous = allow_anonymous

    def decision(self, asked: Credentials, done: Callable[[Decision], None]) -> Decision:
        """Begin to decide about a device."""
        return Decision(asked, self.links, done)

    def exchange(self, method: str, asked: Credentials) -> Exchange | None:
        """Begin an exchange of this method of MQTT 5; None when no link has it for such devices."""
        for link in self.links:
            if link.is_asked_about(asked) and (exchange := link.exchange(method)) is not None:
                return exchange
        return None

    def end(self, asked: Credentials) -> Accepted | Denied:
        """Decide about a device of which no link knows anything."""
        if asked.token is not None:
            return Denied(NOT_AUTHORIZED, "chain", "no link of the chain knows the token")
        if asked.user_name is not None:
            return Denied(BAD_USER_NAME_OR_PASSWORD, "chain", "no link of the chain knows the device")
        if asked.password is not None:
            return Denied(BAD_USER_NAME_OR_PASSWORD, "credentials", "no user name")
        if self._allow_anonymous:
            return Accepted(ANONYMOUS)
        return Denied(NOT_AUTHORIZED, "anonymous", "no user name")
