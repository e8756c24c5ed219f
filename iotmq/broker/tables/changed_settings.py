"""Settings that operators change while the broker runs (codes 25 and 26), and brokerSettings.json.

They are named as in the configuration file (``broker.auto_create_topics``), or as tools of the RocketMQ
family know them (``autoCreateTopicEnable``). A change is kept in the file and holds after a restart, unless
the configuration file says something else by then: the later word wins.

The file: ``{"dataVersion":{...},"changes":{"broker.is_writable":{"configured":"true","value":"false"}}}``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from iotmq.broker.broker_role import BrokerRole
from iotmq.broker.settings import BrokerSettings
from iotmq.broker.tables.config_files import ConfigFile, DataVersion
from iotmq.broker.tables.topics import TRACE_TOPIC
from iotmq.errors import RefusedError, RequestError
from iotmq.secret_text import SECRET_SHOWN, Secret
from iotmq.store.settings import StoreSettings

logger = logging.getLogger(__name__)

CHANGEABLE: Final = frozenset(
    {
        "broker.is_writable",
        "broker.is_readable",
        "broker.auto_create_topics",
        "broker.auto_create_groups",
        "broker.default_topic_queues",
        "broker.is_tracing_allowed",
        "broker.client_expiry_s",
        "broker.offsets_interval_s",
        "broker.held_pulls_max",
        "store.retention_hours",
        "store.delete_hour",
        "store.disk_delete_percent",
        "store.disk_force_percent",
        "store.disk_full_percent",
        "store.protect_unconsumed",
    }
)

_MASTER_FACTS: Final = BrokerRole().facts()
_PERMISSION_READ: Final = 4
_PERMISSION_WRITE: Final = 2
_PERMISSIONS: Final = "brokerPermission"


class _Alias(NamedTuple):
    """A setting under its RocketMQ name; `unit` of its numbers are one of ours."""

    name: str
    unit: int = 1


_ALIASES: Final = {
    "autoCreateTopicEnable": _Alias("broker.auto_create_topics"),
    "autoCreateSubscriptionGroup": _Alias("broker.auto_create_groups"),
    "defaultTopicQueueNums": _Alias("broker.default_topic_queues"),
    "traceOn": _Alias("broker.is_tracing_allowed"),
    "flushConsumerOffsetInterval": _Alias("broker.offsets_interval_s", 1_000),
    "fileReservedTime": _Alias("store.retention_hours"),
    "deleteWhen": _Alias("store.delete_hour"),
    "diskMaxUsedSpaceRatio": _Alias("store.disk_delete_percent"),
    "brokerName": _Alias("broker.name"),
    "brokerClusterName": _Alias("broker.cluster"),
    "brokerId": _Alias("broker.broker_id"),
    "brokerIP1": _Alias("broker.advertised_host"),
    "listenPort": _Alias("broker.listen_port"),
    "namesrvAddr": _Alias("broker.registries"),
    "mapedFileSizeCommitLog": _Alias("store.segment_bytes"),
    "mappedFileSizeCommitLog": _Alias("store.segment_bytes"),
    "maxMessageSize": _Alias("store.record_bytes_max"),
    "messageDelayLevel": _Alias("broker.delay_levels"),
}


class Change(msgspec.Struct, frozen=True):
    """Record a changed setting: its new value, and that of the configuration file then, both as text."""

    configured: str
    value: str


class ChangedSettingsTable(msgspec.Struct, kw_only=True, rename="camel"):
    """The shape of brokerSettings.json."""

    data_version: DataVersion = DataVersion()
    changes: dict[str, Change] = {}


class ChangedSettings:
    """The settings in effect: those configured, and the changes to them."""

    def __init__(
        self,
        path: Path,
        broker: BrokerSettings,
        store: StoreSettings,
        *,
        role_facts: Mapping[str, str] = _MASTER_FACTS,
    ) -> None:
        """Take what `path` has; a change the configuration file has overtaken, or cannot be, is dropped.

        `role_facts` are shown among the settings; they say whether this is a master or a slave.
        """
        self._role_facts = role_facts
        self._file = ConfigFile(path)
        self._configured = _as_texts(broker, store)
        self.broker = broker
        self.store = store
        table = self._file.read(ChangedSettingsTable) or ChangedSettingsTable()
        self.version = table.data_version
        self._listeners: list[Callable[[], None]] = []
        self._changes: dict[str, Change] = {}
        for name, change in table.changes.items():
            if name not in CHANGEABLE or self._configured[name] != change.configured:
                logger.warning(
                    "%s = %s of a changed setting gives way to the configuration", name, change.value
                )
                continue
            try:
                self._set({name: change.value})
            except RequestError as error:
                logger.warning("a changed setting is left out: %s", error)
                continue
            self._changes[name] = change
            logger.warning("%s is %s, changed while the broker ran", name, change.value)

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Tell whenever a setting has changed."""
        self._listeners.append(listener)

    def as_texts(self) -> dict[str, str]:
        """Return every setting under its RocketMQ name, where it has one, and under its own."""
        texts = _as_texts(self.broker, self.store)
        return {
            _PERMISSIONS: str(
                _PERMISSION_READ * self.broker.is_readable + _PERMISSION_WRITE * self.broker.is_writable
            ),
            **{name: _alias_text(texts[alias.name], alias.unit) for name, alias in _ALIASES.items()},
            **_facts(self.broker, self.store),
            **self._role_facts,
            **texts,
        }

    def change(self, values: Mapping[str, str], now_ms: int) -> None:
        """Take settings under either name, all or none; a listener has the file written.

        RequestError (1) names the first that cannot be.
        """
        current = self.as_texts()
        wanted: dict[str, str] = {}
        for name, value in values.items():
            if current.get(name) != value:
                wanted.update(_our_names(name, value, is_known=name in current))
        if not wanted:
            return
        self._set(wanted)
        texts = _as_texts(self.broker, self.store)
        changes = dict(self._changes)
        for name in wanted:
            if texts[name] == self._configured[name]:
                changes.pop(name, None)
            else:
                changes[name] = Change(self._configured[name], texts[name])
        self._changes = changes
        self.version = self.version.next(now_ms)
        for listener in self._listeners:
            listener()

    # What followers are sent, and take (copied_table.WholeTable)

    @property
    def stamp(self) -> DataVersion:
        return self.version

    def copied_entries(self) -> list[tuple[str, Change]]:
        return list(self._changes.items())

    def replace(self, changes: Sequence[tuple[str, Change]], version: DataVersion) -> None:
        """Have the values that changed at a master, and of the others those configured here.

        Listeners are told nothing. RequestError (1) for one that cannot be; then nothing has changed.
        """
        wanted = {name: self._configured[name] for name in self._changes}
        for name, change in changes:
            if name not in CHANGEABLE:
                raise RefusedError(f"the setting {name[:60]!r} cannot change while the broker runs")
            wanted[name] = change.value
        self._set(wanted)
        self._changes = {
            name: Change(self._configured[name], value)
            for name, value in wanted.items()
            if value != self._configured[name]
        }
        self.version = version

    def encoder(self) -> Callable[[], bytes]:
        """Return the encoder of the file's present contents, to be called in any thread."""
        table = ChangedSettingsTable(data_version=self.version, changes=self._changes)
        return partial(msgspec.json.encode, table)

    def write(self, data: bytes) -> None:
        """Write the file and wait for the disk; touches nothing else, so that a thread may do it."""
        self._file.write(data, is_synced=True)

    def _set(self, wanted: Mapping[str, str]) -> None:
        broker = _changed(self.broker, wanted, "broker")
        self.store = _changed(self.store, wanted, "store")
        self.broker = broker


_Settings = TypeVar("_Settings", bound=msgspec.Struct)


def _changed(settings: _Settings, wanted: Mapping[str, str], section: str) -> _Settings:
    """`settings` with every value of the section that is wanted; RequestError (1) for one it cannot have."""
    values = {
        key: value
        for name, value in wanted.items()
        for part, _, key in [name.partition(".")]
        if part == section
    }
    if not values:
        return settings
    try:
        fresh = msgspec.convert(values, type(settings), strict=False)
        return msgspec.structs.replace(settings, **{key: getattr(fresh, key) for key in values})
    except (msgspec.ValidationError, ValueError) as error:
        problem = str(error)
        for key in values:
            problem = problem.replace(f"`$.{key}`", f"{section}.{key}")
        raise RefusedError(f"a setting cannot be: {problem}") from None


def _our_names(name: str, value: str, *, is_known: bool) -> dict[str, str]:
    """A wanted setting under our name; RequestError (1) unless it may change while the broker runs."""
    if name == _PERMISSIONS:
        if value not in ("0", "2", "4", "6"):
            raise RefusedError(f"{name} is {value[:40]!r}, not one of 6 (all), 4 (read), 2 (write), 0")
        return {
            "broker.is_readable": "true" if int(value) & _PERMISSION_READ else "false",
            "broker.is_writable": "true" if int(value) & _PERMISSION_WRITE else "false",
        }
    alias = _ALIASES.get(name, _Alias(name))
    if alias.name not in CHANGEABLE:
        raise RefusedError(
            f"{name} cannot change while the broker runs: set it in the configuration file and restart"
            if is_known
            else f"there is no setting {name[:60]!r}; code 26 (iotmq admin broker config) lists them"
        )
    if alias.unit == 1:
        return {alias.name: value}
    try:
        return {alias.name: repr(float(value) / alias.unit)}
    except ValueError:
        raise RefusedError(f"{name} is {value[:40]!r}, not a number") from None


def _as_texts(broker: BrokerSettings, store: StoreSettings) -> dict[str, str]:
    texts: dict[str, str] = {}
    for section, settings in (("broker", broker), ("store", store)):
        for key, value in msgspec.structs.asdict(settings).items():
            texts[f"{section}.{key}"] = _text(value)
    return texts


def _facts(broker: BrokerSettings, store: StoreSettings) -> dict[str, str]:
    """Return the facts that tools of the RocketMQ family expect among the settings of a broker."""
    return {
        "filterServerNums": "0",
        "flushDiskType": "SYNC_FLUSH" if store.flush == "sync" else "ASYNC_FLUSH",
        "msgTraceTopicName": TRACE_TOPIC,
        "traceTopicEnable": "true",
        "useTLS": "true" if broker.tls_certificate_file else "false",
    }


def _text(value: object) -> str:
    if isinstance(value, Secret):
        return SECRET_SHOWN
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ";".join(map(str, value))
    return str(value)


def _alias_text(text: str, unit: int) -> str:
    return text if unit == 1 else f"{float(text) * unit:g}"
