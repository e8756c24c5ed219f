"""Ask the consensus store what the state machine wants to know or to have changed.

A store that does not answer is nobody's failure: it is counted and said once, and whoever asked asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

import msgspec

from iotmq.errors import ConsensusUnavailableError, StoreError
from iotmq.replication.cluster_state import ClusterState, Identity, MemberAddress, decode_state
from iotmq.replication.consensus.port import ConsensusStore, SignOfLife
from iotmq.replication.messages import ReplaceState

logger = logging.getLogger("iotmq.replication")

_BEAT_S: Final = 0.5
_WITHDRAW_S: Final = 0.5
# Members that begin together are all there before one of them makes the first state.
_FRESH_S: Final = 1.5
# Requests that have not been answered yet.
_REQUESTS_MAX: Final = 16


class BeatValue(msgspec.Struct, frozen=True, kw_only=True):
    """A member's sign of life, as JSON in the consensus store."""

    incarnation: str
    address: str
    leads: int
    """The epoch it can acknowledge something in; 0 for none."""
    end: int
    confirmed: int
    promised: int
    takes_records: bool = True
    """False while its disk is full or broken."""


Beats = Mapping[int, tuple[SignOfLife, BeatValue]]
"""Member -> its sign of life, and what it says of itself."""


class ConsensusAnswers(Protocol):
    """Hear what the consensus store has answered; nothing once the run is over."""

    def state_read(self, number: int, version: int, state: ClusterState) -> None:
        """The state, read after request `number` was made."""

    def state_missing(self) -> ClusterState | None:
        """There is no state: return the first one, if this member is to make it."""

    def state_replaced(self, number: int, version: int | None) -> None:
        """The new version of the state, None for a refusal."""

    def poked(self) -> None:
        """The state may have changed."""

    def beaten(self, beats: Beats) -> None:
        """The signs of life of all members."""

    def alarm(self, text: str) -> None:
        """The operator has to know this."""


class ConsensusRequests:
    """The requests of one run of a member, from its start to its stop."""

    def __init__(self, store: ConsensusStore, member: int, answers: ConsensusAnswers) -> None:
        self._store = store
        self._member = member
        self._answers = answers
        self._open_count = 0
        self._is_away = False
        # What was asked to be recorded last, for the log.
        self._asked_for = ""
        self.failures_count = 0

    async def read(self, number: int) -> None:
        """Read the state; a missing one is made if this is the member to do it."""
        if self._open_count >= _REQUESTS_MAX:
            return
        first: ClusterState | None = None
        # Also ends the block, without an error, where the consensus store does not answer.
        with self._asking():
            found = await self._store.read()
            if found is not None:
                try:
                    state = decode_state(found.value)
                except StoreError as error:
                    # Nothing to follow, and no reason to stop what goes on.
                    self._answers.alarm(str(error))
                    return
                self._answers.state_read(number, found.version, state)
                return
            first = self._answers.state_missing()
            if first is None:
                return
            if await self._store.create(first.encode()) is not None:
                logger.warning("the first state of this broker is made: member %d is master", first.master)
            self._answers.poked()

    async def replace(self, action: ReplaceState) -> None:
        """Replace the state."""
        state = action.state
        in_sync = ", ".join(str(identity.member) for identity in state.in_sync)
        # Asked for again until it is answered, so not with each request.
        if (text := f"{state.reason}: in sync are {in_sync}") != self._asked_for:
            self._asked_for = text
            logger.info("%s", text, extra={"epoch": state.epoch, "master": state.master})
        with self._asking():
            version = await self._store.replace(action.version, state.encode())
            self._answers.state_replaced(action.number, version)

    async def watch(self) -> None:
        """Tell of changes, until cancelled."""
        await self._store.watch(self._answers.poked)

    async def beat_repeatedly(self, value: Callable[[], BeatValue]) -> None:
        """Give signs of life, and look at those of the others, until cancelled."""
        while True:
            with self._asking():
                await self._store.beat(self._member, msgspec.json.encode(value()))
                self._answers.beaten(_decoded(await self._store.beats()))
            await asyncio.sleep(_BEAT_S)

    async def label_pod(self, *, is_master: bool) -> None:
        """Say where services of Kubernetes look who is master."""
        with self._asking():
            await self._store.label_pod(is_master=is_master)

    async def withdraw(self) -> None:
        """Remove the sign of life, so that nobody waits for it."""
        try:
            async with asyncio.timeout(_WITHDRAW_S):
                await self._store.withdraw(self._member)
        except (ConsensusUnavailableError, TimeoutError) as error:
            logger.debug("the sign of life stays until it is too old: %s", error)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        self._open_count += 1
        try:
            yield
            if self._is_away:
                self._is_away = False
                logger.warning("the consensus store answers again")
        except ConsensusUnavailableError as error:
            self.failures_count += 1
            if not self._is_away:
                self._is_away = True
                logger.warning("the consensus store does not answer, so nobody else can be master: %s", error)
        finally:
            self._open_count -= 1


def first_state(members: tuple[MemberAddress, ...], beats: Beats) -> ClusterState | None:
    """Return the state for members that have never been replicated; None while it is not clear.

    All members must be there. One of them may have a log already, of a broker that was not replicated: it
    becomes master, and the others get its log.
    """
    fresh = {number: value for number, (beat, value) in beats.items() if beat.age_s < _FRESH_S}
    if set(fresh) != set(dict(members)) or any(value.promised for value in fresh.values()):
        return None
    with_log = [number for number, value in fresh.items() if value.end]
    if len(with_log) > 1:
        return None
    master = with_log[0] if with_log else min(fresh)
    in_sync = with_log or sorted(fresh)
    return ClusterState(
        epoch=1,
        master=master,
        in_sync=tuple(Identity(number, fresh[number].incarnation) for number in in_sync),
        members=members,
        reason="first start",
    )


def _decoded(beats: Mapping[int, SignOfLife]) -> Beats:
    found: dict[int, tuple[SignOfLife, BeatValue]] = {}
    for number, beat in beats.items():
        try:
            found[number] = (beat, msgspec.json.decode(beat.value, type=BeatValue))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            logger.debug("invalid sign of life of member %d: %s", number, error)
    return found
