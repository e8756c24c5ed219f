"""The file `replication` of a data directory: who the member is, what it has promised, what was confirmed.

JSON, and behind it the CRC-32 of it (4 bytes, big-endian). The file is replaced whole, and synced.

The confirmed position moves all the time, and an earlier one does no harm. So beside that file there is
`replication.confirmed`, with the incarnation and the position as JSON and a CRC-32, which is written every
second without waiting for the disk. It counts while its incarnation is that of the file.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from iotmq import limits
from iotmq.errors import StoreCorruptError, StoreError
from iotmq.files import replace_file
from iotmq.replication.cluster_state import Identity, MemberAddress
from iotmq.replication.epochs import EpochStart
from iotmq.store.files.state_record import sealed, unsealed

FILE_NAME: Final = "replication"
CONFIRMED_NAME: Final = "replication.confirmed"
FORMAT: Final = 1
# Of a log whose beginning was deleted, only the newest of those before its beginning are of use.
EPOCHS_MAX: Final = limits.REPLICATION_EPOCHS_MAX

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class _Content(msgspec.Struct, kw_only=True):
    """The fields of the file."""

    format: int = FORMAT
    cluster: str
    broker: str
    member: int
    incarnation: str
    boot_id: str
    """Names the run of the kernel: its page cache has what a killed process wrote."""
    is_clean: bool = False
    """True after a stop that brought everything to the disk."""
    promised_epoch: int = 0
    confirmed: int = 0
    epochs: tuple[EpochStart, ...] = ()
    members: tuple[MemberAddress, ...] = ()
    """All members as they were recorded last, for the day the consensus store has lost its data."""


class _Confirmed(msgspec.Struct):
    """The fields of the file beside it."""

    incarnation: str
    confirmed: int


class MemberFile:
    """A member's file, as `iotmq.replication.ports.MemberFile` has it. One process writes it."""

    def __init__(self, path: Path, content: _Content) -> None:
        """Use `open_member_file`."""
        self._path = path
        self._content = content
        self._saved_confirmed = content.confirmed

    @property
    def identity(self) -> Identity:
        """Return the member's number and the incarnation of its log."""
        return Identity(self._content.member, self._content.incarnation)

    @property
    def promised_epoch(self) -> int:
        """Return the latest epoch promised; nothing of an earlier one is accepted."""
        return self._content.promised_epoch

    @property
    def confirmed(self) -> int:
        """Return the confirmed position that is known; after a crash it may be an earlier one."""
        return self._content.confirmed

    @property
    def epochs(self) -> tuple[EpochStart, ...]:
        """Return where epochs began, as far as was noted: those before the log's beginning are only here."""
        return self._content.epochs

    @property
    def members(self) -> tuple[MemberAddress, ...]:
        """Return all members as they were recorded last; none before that was known."""
        return self._content.members

    def promise(self, epoch: int) -> None:
        """Remember a later epoch; it is on the disk when this returns. Raises StoreError."""
        assert epoch > self._content.promised_epoch
        self._change(promised_epoch=epoch)

    def note_confirmed(self, position: int) -> None:
        """Remember a later confirmed position; `save` writes it."""
        assert position > self._content.confirmed
        self._content.confirmed = position

    def note_epochs(self, epochs: Iterable[EpochStart]) -> None:
        """Replace the known beginnings of epochs, oldest first, by others, on the disk. Raises StoreError."""
        self._change(epochs=tuple(epochs)[-EPOCHS_MAX:])

    def note_members(self, members: tuple[MemberAddress, ...]) -> None:
        """Remember who the members are, on the disk. Raises StoreError."""
        if members != self._content.members:
            self._change(members=members)

    def renew(self, *, confirmed: int) -> None:
        """Take a new incarnation, for a log that may have lost what was acknowledged. Raises StoreError."""
        self._change(incarnation=_new_incarnation(), confirmed=confirmed)

    def save(self) -> None:
        """Note the confirmed position if there is a new one; to be called every second or so.

        Does not wait for the disk. Raises StoreError.
        """
        if self._content.confirmed == self._saved_confirmed:
            return
        path = self._path.with_name(CONFIRMED_NAME)
        noted = _Confirmed(self._content.incarnation, self._content.confirmed)
        try:
            path.write_bytes(sealed(msgspec.json.encode(noted)))
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error}") from error
        self._saved_confirmed = self._content.confirmed

    def close(self) -> None:
        """Write that everything is on the disk, the log too. Raises StoreError."""
        self._change(is_clean=True)

    def _change(self, **fields: object) -> None:
        """Write the file with some fields changed; they hold when the disk has them."""
        content = msgspec.structs.replace(self._content, **fields)
        try:
            replace_file(self._path, sealed(msgspec.json.encode(content)))
        except OSError as error:
            raise StoreError(f"cannot write {self._path}: {error}") from error
        self._content = content
        self._saved_confirmed = content.confirmed


def open_member_file(
    directory: Path,
    *,
    cluster: str,
    broker: str,
    member: int,
    keeps_acknowledged: bool,
    boot_id: str | None = None,
) -> MemberFile:
    """Open the file of a data directory, made when missing, and write that a run has begun.

    The incarnation is a new one when the last run may have lost what it acknowledged: it was not stopped,
    the kernel is another one since, and not all that was acknowledged was on the disk
    (`keeps_acknowledged`). Raises StoreError when the directory is another member's, StoreCorruptError when
    the file is damaged.
    """
    path = directory / FILE_NAME
    boot_id = _BOOT_ID.read_text().strip() if boot_id is None else boot_id
    content = _read(path)
    if content is not None:
        content.confirmed = max(content.confirmed, _noted_confirmed(directory, content.incarnation))
    else:
        content = _Content(
            cluster=cluster, broker=broker, member=member, incarnation=_new_incarnation(), boot_id=boot_id
        )
    found = (content.cluster, content.broker, content.member)
    if found != (cluster, broker, member):
        raise StoreError(
            f"{directory} belongs to member {found[2]} of broker {found[1]} in cluster {found[0]}, not to "
            f"member {member} of broker {broker} in cluster {cluster}: correct replication.member, or the "
            "data directory"
        )
    if not content.is_clean and content.boot_id != boot_id and not keeps_acknowledged:
        content.incarnation = _new_incarnation()
    file = MemberFile(path, content)
    file._change(boot_id=boot_id, is_clean=False)
    return file


def write_file_of_copy(
    path: Path, target: Path, *, confirmed: int, epochs: Iterable[EpochStart]
) -> tuple[Identity, bool]:
    """Write the file of a member that takes a copy of another's log: of its own it keeps number and promise.

    `path` is its file until then; return who it was, and whether something in its log may have been
    confirmed. Raises StoreError, OSError.
    """
    content = _read(path)
    if content is None:
        raise StoreError(f"{path} is not there")
    copied = msgspec.structs.replace(
        content,
        incarnation=_new_incarnation(),
        # All of the copy is on the disk.
        is_clean=True,
        confirmed=confirmed,
        epochs=tuple(epochs)[-EPOCHS_MAX:],
    )
    replace_file(target, sealed(msgspec.json.encode(copied)))
    # After a crash it may not know what was confirmed, but always where epochs began.
    return Identity(content.member, content.incarnation), bool(content.confirmed or content.epochs)


def _read(path: Path) -> _Content | None:
    try:
        data = unsealed(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error}") from error
    try:
        if data is None:
            raise msgspec.DecodeError("its checksum is wrong")
        content = msgspec.json.decode(data, type=_Content)
    except msgspec.DecodeError as error:
        raise StoreCorruptError(
            f"{path} is damaged ({error}): delete it, and the member catches up before it counts again"
        ) from None
    if content.format != FORMAT:
        raise StoreError(f"{path} has format {content.format}, not {FORMAT}: start a later version of iotmq")
    return content


def _noted_confirmed(directory: Path, incarnation: str) -> int:
    """Return the position in the file beside the member's; 0 when it has none that counts."""
    path = directory / CONFIRMED_NAME
    try:
        data = unsealed(path.read_bytes())
        if data is None:
            # A crash of the machine has torn it.
            return 0
        noted = msgspec.json.decode(data, type=_Confirmed)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error}") from error
    except msgspec.DecodeError as error:
        raise StoreCorruptError(f"{path} is damaged ({error}): delete it") from None
    return noted.confirmed if noted.incarnation == incarnation else 0


def _new_incarnation() -> str:
    return secrets.token_hex(8)
