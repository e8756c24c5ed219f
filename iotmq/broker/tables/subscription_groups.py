"""Keep the configuration of consumer groups, and subscriptionGroup.json."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from iotmq import limits
from iotmq.broker.tables.config_files import ConfigFile, DataVersion
from iotmq.broker.tables.copied_table import ChangedKeys, apply_named
from iotmq.broker.tables.topics import is_ephemeral, is_legal_name
from iotmq.clock import Clock
from iotmq.errors import RefusedError, RequestError
from iotmq.metrics import Metric, samples
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.command import Command

# Groups made at start: tools and gateways of the RocketMQ family use them without asking.
SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
)
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"


class SubscriptionGroupConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One group's configuration with the defaults of wire document 5.4."""

    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    group_name: str
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    which_broker_when_consume_slowly: int = 1


class SubscriptionGroupTable(msgspec.Struct, kw_only=True, rename="camel"):
    """The shape of subscriptionGroup.json and of the answer to code 201."""

    data_version: DataVersion = DataVersion()
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}


class CopiedGroup(NamedTuple):
    """A group of a master, None when there is none of that name any more."""

    name: str
    config: SubscriptionGroupConfig | None


class SubscriptionGroups:
    """All configured groups of this broker; `on_change` listeners save the file."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        may_create: bool,
        groups_max: int = limits.GROUPS_MAX,
        ephemeral_max: int = limits.EPHEMERAL_GROUPS_MAX,
    ) -> None:
        self._file = ConfigFile(path)
        self._clock = clock
        self.may_create = may_create
        self._groups_max = groups_max
        self._ephemeral_max = ephemeral_max
        self._listeners: list[Callable[[str], None]] = []
        # Groups that were changed, and deleted.
        self.changed: ChangedKeys[str] = ChangedKeys(2 * groups_max)
        stored = self._file.read(SubscriptionGroupTable) or SubscriptionGroupTable()
        self._groups = stored.subscription_group_table
        self.version = stored.data_version
        for name in SYSTEM_GROUPS:
            self._groups.setdefault(name, SubscriptionGroupConfig(group_name=name))

    def __len__(self) -> int:
        return len(self._groups)

    def names(self) -> list[str]:
        return list(self._groups)

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        return self._groups.get(name)

    def find_or_create(self, name: str) -> SubscriptionGroupConfig | None:
        """Return the group's configuration, made by default where that is allowed; None where it is not."""
        found = self._groups.get(name)
        if found is not None:
            return found
        if not self.may_create and not name.startswith(SYSTEM_GROUP_PREFIX):
            return None
        return self.put(SubscriptionGroupConfig(group_name=name))

    def put(self, config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Add or replace a group. Raises RequestError (1) for a bad name or too many groups."""
        name = config.group_name
        if self._groups.get(name) == config:
            return config
        if name not in self._groups:
            check_group_name(name)
            if len(self._groups) >= self._groups_max:
                raise RefusedError(
                    f"group {name} cannot be made: this broker has its maximum of {self._groups_max} groups"
                )
            if is_ephemeral(name) and sum(map(is_ephemeral, self._groups)) >= self._ephemeral_max:
                raise RefusedError(
                    f"group {name} cannot be made: this broker has its maximum of {self._ephemeral_max} "
                    "ephemeral groups"
                )
        self._groups[name] = config
        self._changed(name)
        return config

    def adopt(self, table: SubscriptionGroupTable) -> None:
        """Have a master's groups in place of those here, with its data version."""
        former, self._groups = self._groups, table.subscription_group_table
        self.version = table.data_version
        for name in [*former, *(self._groups.keys() - former.keys())]:
            if former.get(name) != self._groups.get(name):
                for listener in self._listeners:
                    listener(name)

    def delete(self, name: str) -> bool:
        """Forget a group's configuration; False when there was none. A live member makes it again."""
        if self._groups.pop(name, None) is None:
            return False
        self._changed(name)
        return True

    def add_listener(self, listener: Callable[[str], None]) -> None:
        self._listeners.append(listener)

    def count_up(self) -> None:
        """Have another data version, for what a new master says from here on."""
        self.version = self.version.next(self._clock.now_ms())

    # What followers are sent, and take (copied_table.KeyedTable)

    def copied_entries(self) -> Iterator[CopiedGroup]:
        """Yield the groups of this moment that are still there, as they are when they are asked for."""
        for name in list(self._groups):
            config = self._groups.get(name)
            if config is not None:
                yield CopiedGroup(name, config)

    def entries_of(self, keys: set[str]) -> Iterator[CopiedGroup]:
        """Yield what the groups are now, and take them out of `keys`."""
        while keys:
            name = keys.pop()
            yield CopiedGroup(name, self._groups.get(name))

    def new_copy(self) -> dict[str, SubscriptionGroupConfig]:
        return {}

    def apply(self, entries: Sequence[CopiedGroup], copy: dict[str, SubscriptionGroupConfig] | None) -> None:
        """Change a copy, or the table. Listeners are told nothing.

        RequestError (1) for what `put` would refuse, and then nothing has changed.
        """
        for name, config in entries:
            check_group_name(name)
            if config is not None and config.group_name != name:
                raise RefusedError(f"group {name} has the name {config.group_name!r}")
        apply_named(self._groups if copy is None else copy, entries, self._groups_max, "groups")

    def replace(self, copy: dict[str, SubscriptionGroupConfig]) -> None:
        """Hold what a copy has."""
        self._groups = copy

    def _changed(self, name: str) -> None:
        self.changed.note(name)
        self.version = self.version.next(self._clock.now_ms())
        for listener in self._listeners:
            listener(name)

    def encode(self) -> bytes:
        return msgspec.json.encode(
            SubscriptionGroupTable(data_version=self.version, subscription_group_table=self._groups)
        )

    def encoder(self) -> Callable[[], bytes]:
        """`encode` of the table as it is now, to be called in any thread."""
        table = SubscriptionGroupTable(data_version=self.version, subscription_group_table=dict(self._groups))
        return partial(msgspec.json.encode, table)

    def write(self, data: bytes) -> None:
        """Write the file and wait for the disk; touches nothing else, so that a thread may do it."""
        self._file.write(data, is_synced=True)

    def check_invariants(self) -> None:
        """Assert what must always be true; for tests."""
        for name, config in self._groups.items():
            assert config.group_name == name
            check_group_name(name)

    def metrics(self) -> Iterable[Metric]:
        return samples(("iotmq_broker_subscription_groups", "Consumer groups configured.", len(self._groups)))


def known_group(groups: SubscriptionGroups, name: str, field: str) -> SubscriptionGroupConfig:
    """Return the group that a field names, made where that is allowed. Raises RequestError (26) without."""
    group = groups.find_or_create(name)
    if group is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"the field {field} names the group {name}, which does not exist",
        )
    return group


def group_of(request: Command, field: str) -> str:
    """Return the group that a field names. Raises RequestError (1) naming the field when it cannot be one."""
    name = request.text(field)
    check_group_name(name, field)
    return name


def check_group_name(name: str, field: str = "") -> None:
    """Raise RequestError (1) unless `name` may be a group: the characters of topics, up to 255 bytes."""
    group = f"the group in the field {field}" if field else "the group"
    if not name:
        raise RefusedError(f"{group} is empty")
    if len(name.encode()) > limits.GROUP_BYTES_MAX:
        raise RefusedError(f"{group} has {len(name.encode())} bytes, more than {limits.GROUP_BYTES_MAX}")
    if not is_legal_name(name):
        raise RefusedError(f"{group} has characters other than letters, digits, %, |, _ and -: {name!r}")
