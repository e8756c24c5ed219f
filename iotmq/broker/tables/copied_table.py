"""The two ways in which tables are copied to followers: whole after each change, or key by key.

Tables that are small, or change seldom, go whole. Of the others only the keys that changed are sent, each
with all that holds for it now: so it does not matter how often one changed, and a key is sent the same way
whether it is part of a copy or a change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from iotmq.broker.tables.config_files import DataVersion
from iotmq.broker.tables.table_pieces import TablePiece, decode_body
from iotmq.errors import RefusedError, RequestError, TableCopyError

E = TypeVar("E")
K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")


class Entries(NamedTuple):
    """Entries of a table to be sent; they, and its version, are read while they are sent."""

    entries: Iterable[object]
    is_whole: bool
    version: Callable[[], DataVersion]


class CopiedTable(ABC):
    """A table as both sides of a copy see it."""

    def __init__(self, name: str) -> None:
        self.name = name

    # At a master

    @abstractmethod
    def track(self) -> None:
        """Note what changes from now on."""

    @abstractmethod
    def untrack(self) -> None:
        """Note nothing any more: nobody follows."""

    @abstractmethod
    def whole(self) -> Entries:
        """Return the table."""

    @abstractmethod
    def take_changes(self) -> Callable[[], Entries] | None:
        """Return what changed since the last call, to be called when it is sent; None for nothing."""

    # At a follower

    @abstractmethod
    def begin_copy(self) -> Copy:
        """Return a copy to be filled."""

    @abstractmethod
    def update(self, piece: TablePiece) -> None:
        """Apply what changed. Raises TableCopyError, and then nothing of the piece was applied."""


class Copy(Protocol):
    """A table that is not complete yet."""

    def add(self, piece: TablePiece) -> None:
        """Take entries, also those that changed meanwhile. Raises TableCopyError."""
        ...

    def finish(self, version: DataVersion) -> None:
        """Put it in the place of what the follower has. Raises TableCopyError, and then that stays."""
        ...


class WholeTable(Protocol[E]):
    """A table that is sent whole after each change."""

    @property
    def stamp(self) -> object:
        """Return something that is another after each change; a DataVersion is sent with the entries."""
        ...

    def copied_entries(self) -> Sequence[E]:
        """Return everything in it."""
        ...

    def replace(self, entries: Sequence[E], version: DataVersion) -> None:
        """Hold exactly these. RequestError, and then nothing has changed."""
        ...


class CopiedWhole(CopiedTable, Generic[E]):
    """Copies a `WholeTable`."""

    def __init__(
        self,
        name: str,
        table: WholeTable[E],
        entry_type: type[E],
        *,
        entries_max: int,
        replaced: Callable[[], None] = lambda: None,
    ) -> None:
        """`replaced` is called when a follower's table has been."""
        super().__init__(name)
        self._table = table
        self._entry_type = entry_type
        self._entries_max = entries_max
        self._replaced = replaced
        # What followers have been sent, or are being.
        self._sent: object = None

    def track(self) -> None:
        self._sent = self._table.stamp

    def untrack(self) -> None:
        self._sent = None

    def whole(self) -> Entries:
        stamp = self._table.stamp
        version = stamp if isinstance(stamp, DataVersion) else DataVersion()
        return Entries(self._table.copied_entries(), True, lambda: version)

    def take_changes(self) -> Callable[[], Entries] | None:
        stamp = self._table.stamp
        if stamp == self._sent:
            return None
        self._sent = stamp
        return self.whole

    def begin_copy(self) -> Copy:
        return _WholeCopy(self)

    def update(self, piece: TablePiece) -> None:
        raise TableCopyError(f"the table {self.name} is copied whole, not by what changed")

    def read(self, piece: TablePiece, entries: list[E]) -> None:
        """Add the entries of a piece."""
        more = decode_body(piece, self._entry_type)
        if len(entries) + len(more) > self._entries_max:
            raise TableCopyError(f"the table {self.name} has more than {self._entries_max} entries")
        entries += more

    def replace(self, entries: list[E], version: DataVersion) -> None:
        """Hold what was copied."""
        try:
            self._table.replace(entries, version)
        except RequestError as error:
            raise TableCopyError(f"the table {self.name} cannot be taken: {error}") from None
        self._replaced()


class _WholeCopy(Generic[E]):
    def __init__(self, table: CopiedWhole[E]) -> None:
        self._table = table
        self._entries: list[E] = []

    def add(self, piece: TablePiece) -> None:
        self._table.read(piece, self._entries)

    def finish(self, version: DataVersion) -> None:
        self._table.replace(self._entries, version)


class ChangedKeys(Generic[K]):
    """The keys that changed since they were last taken. Nothing is noted while nobody follows.

    Whoever changes an entry adds its key to `keys` unless that is None, and calls `bound` when it adds keys
    of entries that were not there before.
    """

    __slots__ = ("_are_too_many", "_keys_max", "keys")

    def __init__(self, keys_max: int) -> None:
        """Past `keys_max` the whole table counts as changed."""
        self._keys_max = keys_max
        self.keys: set[K] | None = None
        self._are_too_many = False

    def track(self) -> None:
        """Note changes from now on; what was noted before stays."""
        if self.keys is None:
            self.keys = set()

    def untrack(self) -> None:
        """Forget what was noted, and note nothing."""
        self.keys = None
        self._are_too_many = False

    def note(self, key: K) -> None:
        """Note that an entry has changed, which may be new."""
        if self.keys is not None:
            self.keys.add(key)
            self.bound()

    def bound(self) -> None:
        """Keep to the maximum."""
        if self.keys is not None and len(self.keys) > self._keys_max:
            self.keys.clear()
            self._are_too_many = True

    def take(self) -> set[K] | None:
        """Return the keys, and note anew; None when there were too many."""
        if self.keys is None:
            return set()
        taken, self.keys = self.keys, set()
        are_too_many, self._are_too_many = self._are_too_many, False
        return None if are_too_many else taken


class KeyedTable(Protocol[K, E, T]):
    """A table that is sent key by key; an entry has everything that holds for its key, or that nothing does.

    `T` is the table as such, without what is around it. `version` is the same at followers as at the master,
    so that it grows whoever is the master; tables without one have always the first.
    """

    changed: ChangedKeys[K]
    version: DataVersion

    def entries_of(self, keys: set[K]) -> Iterator[E]:
        """Yield what holds now for the keys; taken out one by one, because to free very many takes long."""
        ...

    def copied_entries(self) -> Iterator[E]:
        """Yield the table, each key with what holds when it is asked for: what changes later is noted.

        What comes meanwhile may be left out.
        """
        ...

    def new_copy(self) -> T:
        """Return a table with nothing in it."""
        ...

    def apply(self, entries: Sequence[E], copy: T | None) -> None:
        """Change a copy, or (None) the table itself. RequestError, and then nothing has changed."""
        ...

    def replace(self, copy: T) -> None:
        """Hold what a copy has."""
        ...


class CopiedByKey(CopiedTable, Generic[K, E, T]):
    """Copies a `KeyedTable`."""

    def __init__(
        self,
        name: str,
        table: KeyedTable[K, E, T],
        entry_type: type[E],
        *,
        replaced: Callable[[], None] = lambda: None,
    ) -> None:
        """`replaced` is called when a follower's table has changed."""
        super().__init__(name)
        self._table = table
        self._entry_type = entry_type
        self._replaced = replaced
        # What followers have been sent, or are being.
        self._sent = DataVersion()

    def track(self) -> None:
        self._sent = self._table.version
        self._table.changed.track()

    def untrack(self) -> None:
        self._table.changed.untrack()

    def whole(self) -> Entries:
        return Entries(self._table.copied_entries(), True, self._version)

    def take_changes(self) -> Callable[[], Entries] | None:
        keys = self._table.changed.take()
        was_sent, self._sent = self._sent, self._table.version
        if keys is None:
            return self.whole
        return partial(self._changes, keys) if keys or was_sent != self._sent else None

    def _changes(self, keys: set[K]) -> Entries:
        return Entries(self._table.entries_of(keys), False, self._version)

    def _version(self) -> DataVersion:
        return self._table.version

    def begin_copy(self) -> Copy:
        return _KeyedCopy(self)

    def update(self, piece: TablePiece) -> None:
        self.apply(piece, None)
        self._table.version = piece.version
        self._replaced()

    def new_copy(self) -> T:
        """Return a table with nothing in it."""
        return self._table.new_copy()

    def replace(self, copy: T, version: DataVersion) -> None:
        """Hold what was copied."""
        self._table.replace(copy)
        self._table.version = version
        self._replaced()

    def apply(self, piece: TablePiece, copy: T | None) -> None:
        """Apply a piece to a copy, or to the table."""
        entries = decode_body(piece, self._entry_type)
        try:
            self._table.apply(entries, copy)
        except RequestError as error:
            raise TableCopyError(f"a piece of the table {self.name} cannot be taken: {error}") from None


class _KeyedCopy(Generic[K, E, T]):
    def __init__(self, table: CopiedByKey[K, E, T]) -> None:
        self._table = table
        self._copy = table.new_copy()

    def add(self, piece: TablePiece) -> None:
        self._table.apply(piece, self._copy)

    def finish(self, version: DataVersion) -> None:
        self._table.replace(self._copy, version)


def apply_named(
    table: dict[str, V], entries: Sequence[tuple[str, V | None]], entries_max: int, what: str
) -> None:
    """Change a table by name. RequestError (1) past `entries_max`, and then nothing has changed."""
    changed = dict(entries)
    gone = [name for name, value in changed.items() if value is None]
    come_count = sum(name not in table for name in changed)
    if len(table) + come_count - len(gone) > entries_max:
        raise RefusedError(f"more than {entries_max} {what}, the maximum of this broker")
    table.update((name, value) for name, value in changed.items() if value is not None)
    for name in gone:
        table.pop(name, None)
