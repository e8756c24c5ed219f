"""Compare the logs of the members of a replicated broker, piece by piece, down to the record that differs.

Everything below the smallest confirmed position is the same in all members, from the largest oldest position
on. One member says where records end (the first of `members` that can), and the others give the checksum of
the same bytes. Pieces that differ are halved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from iotmq import limits
from iotmq.errors import BrokerError, StoreCorruptError
from iotmq.member.log_checksums import LogChecksum
from iotmq.member.peers import PeerConnector
from iotmq.remoting.codes import RequestCode, ResponseCode

# A request is answered within so much more time than its bytes take at the rate that was asked for.
_PATIENCE_S: Final = 15.0
# Pieces take about so long.
_PIECE_S: Final = 2.0
# So many differences are looked for down to the record; behind them a piece is one difference.
DIFFERENCES_MAX: Final = 20


class Opinion(NamedTuple):
    """State what some members, which agree with each other, have at a place."""

    members: tuple[int, ...]
    found: str


class Difference(NamedTuple):
    """A range of the log in which members differ."""

    start_position: int
    end_position: int
    opinions: tuple[Opinion, ...]

    def in_minority(self) -> tuple[int, ...]:
        """Return the members that most of them contradict; none where no opinion is that of most."""
        counts = [len(opinion.members) for opinion in self.opinions]
        largest = max(counts)
        if 2 * largest <= sum(counts):
            return ()
        return tuple(
            sorted(n for opinion in self.opinions if len(opinion.members) < largest for n in opinion.members)
        )


class LogComparison:
    """One comparison of some positions, which all members have and have confirmed."""

    def __init__(
        self,
        connector: PeerConnector,
        members: Sequence[int],
        *,
        positions: range,
        bytes_per_s: int,
        progress: Callable[[int], None] = lambda position: None,
        piece_bytes: int = limits.REPLICATION_CHECKSUM_BYTES_MAX,
    ) -> None:
        """Compare two members or more, the one first whose records are believed."""
        assert len(members) > 1, "nothing can be compared"
        self._connector = connector
        self._members = list(members)
        self._positions = positions
        self._bytes_per_s = bytes_per_s
        self._progress = progress
        self._piece_bytes = max(1, min(piece_bytes, int(bytes_per_s * _PIECE_S)))
        self.differences: list[Difference] = []
        self.deleted_bytes = 0
        """Bytes that retention deleted before they were compared."""

    async def run(self) -> None:
        """Compare everything. BrokerError, ConnectionClosedError, RequestTimeoutError; StoreCorruptError when
        no member has a record where the one before it ends."""
        position = self._positions.start
        while position < self._positions.stop:
            try:
                position = await self._compare(position, self._piece_bytes)
            except (BrokerError, StoreCorruptError):
                oldest = await self._oldest()
                if oldest <= position:
                    raise
                # Retention was faster: the rest is compared.
                self.deleted_bytes += oldest - position
                position = oldest
            self._progress(min(position, self._positions.stop))

    async def _oldest(self) -> int:
        statuses = [await self._connector.status(each, timeout_s=_PATIENCE_S) for each in self._members]
        return max(int(status["oldest"]) for status in statuses)

    async def _compare(self, position: int, bytes_max: int) -> int:
        """Compare a piece, and its halves if it differs; return where the next one begins."""
        guide, piece = await self._piece(position, bytes_max)
        others = [member for member in self._members if member != guide]
        answers = await asyncio.gather(*(self._ask(member, position, piece.end) for member in others))
        checksums = {guide: piece, **dict(zip(others, answers, strict=True))}
        if len({answer.crc32 for answer in answers} | {piece.crc32}) == 1:
            return piece.next_position
        if piece.count > 1 and len(self.differences) < DIFFERENCES_MAX:
            half = max(1, (piece.end - position) // 2)
            while position < piece.end:
                position = await self._compare(position, min(half, piece.end - position))
            return piece.next_position
        self._note(position, piece, checksums)
        return piece.next_position

    def _note(self, position: int, piece: LogChecksum, checksums: dict[int, LogChecksum]) -> None:
        by_bytes: dict[int, list[int]] = {}
        for member in self._members:
            by_bytes.setdefault(checksums[member].crc32, []).append(member)
        opinions = tuple(
            Opinion(
                tuple(sorted(members)),
                _text(checksums[members[0]]) if piece.count == 1 else f"{piece.count} records, not looked at",
            )
            for members in by_bytes.values()
        )
        self.differences.append(Difference(position, piece.end, opinions))

    async def _piece(self, position: int, bytes_max: int) -> tuple[int, LogChecksum]:
        """Return the member that has whole records there, and their checksum."""
        problems = []
        for member in self._members:
            try:
                return member, await self._ask(member, position, self._positions.stop, bytes_max)
            except BrokerError as error:
                if error.code != ResponseCode.SYSTEM_ERROR:
                    raise
                problems.append(f"member {member}: {error}")
        raise StoreCorruptError("; ".join(problems))

    async def _ask(self, member: int, position: int, end: int, bytes_max: int = 0) -> LogChecksum:
        fields = {
            "position": str(position),
            "end": str(end),
            "bytesMax": str(bytes_max),
            "bytesPerSecond": str(self._bytes_per_s),
        }
        size = bytes_max + limits.RECORD_BYTES_MAX if bytes_max else end - position
        answer = await self._connector.request(
            member,
            RequestCode.GET_LOG_CHECKSUM,
            fields,
            timeout_s=_PATIENCE_S + size / self._bytes_per_s,
        )
        try:
            return msgspec.json.decode(answer.body_bytes(), type=LogChecksum)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BrokerError(
                ResponseCode.SYSTEM_ERROR, f"the checksum of member {member} cannot be read: {error}"
            ) from None


def _text(checksum: LogChecksum) -> str:
    found = checksum.found
    if found is None:
        return "not looked at"
    where = f" of {found.topic}/{found.queue_id}, offset {found.offset}" if found.topic else ""
    return f"{found.kind}{where} (CRC-32 {checksum.crc32:08x})"
