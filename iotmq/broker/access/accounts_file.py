"""The file of accounts, in the format of RocketMQ's conf/plain_acl.yml, and reading and writing it.

    globalWhiteRemoteAddresses: [10.10.103.*, 192.168.0.*]
    accounts:
      - accessKey: rocketmq1
        secretKey: 12345678
        whiteRemoteAddress: 192.168.1.*
        admin: false
        defaultTopicPerm: DENY          # DENY, PUB, SUB or PUB|SUB
        defaultGroupPerm: SUB
        topicPerms: [topicA=DENY, topicB=PUB|SUB]
        groupPerms: [groupA=SUB]
        defaultMqttTopicPerm: DENY      # DENY or PUB: messages to devices, by the property MQTT_TOPIC
        mqttTopicPerms: [devices/+/admin=DENY, devices/+/commands=PUB]    # the first that matches decides

Keys that are not known here are kept when the broker writes the file; comments are not.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from iotmq import limits
from iotmq.broker.access.addresses import AddressPattern, parse_address_pattern
from iotmq.broker.access.rules import DENY, PUB, SUB
from iotmq.broker.tables.config_files import DataVersion
from iotmq.broker.tables.topics import SCHEDULE_TOPIC
from iotmq.errors import IotmqError
from iotmq.message.properties import MQTT_TOPIC
from iotmq.mqtt.topics.filters import FilterIndex
from iotmq.mqtt.topics.topics import is_shared, is_valid_filter

WHITE_ADDRESSES: Final = "globalWhiteRemoteAddresses"
ACCOUNTS: Final = "accounts"
DATA_VERSION: Final = "dataVersion"
_KEY_CHARACTERS_MIN: Final = 7
# Topics of devices whose rights are remembered, for each account that lists some.
_DEVICE_TOPICS_CACHED: Final = 1_024
_PERMISSIONS: Final = {"DENY": DENY, "PUB": PUB, "SUB": SUB, "PUB|SUB": PUB | SUB, "SUB|PUB": PUB | SUB}


_INTERNAL_TOPICS: Final = frozenset({SCHEDULE_TOPIC, "TRANS_CHECK_MAX_TIME_TOPIC", "OFFSET_MOVED_EVENT"})


class AclFileError(IotmqError):
    """The file of accounts, or a change to it, breaks a rule; the text says which account and what."""


class AccountDocument(msgspec.Struct, kw_only=True, rename="camel"):
    """One account as the file holds it. Keys that look like numbers are read as text."""

    access_key: str | int | float | None = None
    secret_key: str | int | float | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None
    default_mqtt_topic_perm: str | None = None
    mqtt_topic_perms: list[str] | None = None


class AclDocument(msgspec.Struct, kw_only=True, rename="camel"):
    global_white_remote_addresses: list[str] | None = None
    accounts: list[AccountDocument] | None = None
    data_version: list[DataVersion] | None = None


class DeviceRights:
    """To which MQTT topics an account may send. The first filter that matches decides."""

    __slots__ = ("_allows", "_default", "_filters")

    def __init__(self, rules: Iterable[tuple[str, bool]], *, default: bool) -> None:
        self._default = default
        # By the number of its filter; most accounts have none.
        self._allows: dict[int, bool] = {}
        self._filters: FilterIndex | None = None
        for topic_filter, is_allowed in rules:
            filters = self._filters = self._filters or FilterIndex(cached_topics_max=_DEVICE_TOPICS_CACHED)
            if topic_filter not in filters:
                self._allows[filters.add(topic_filter)] = is_allowed

    def allows(self, topic: str) -> bool:
        """Return whether the account may send to devices under this topic."""
        matching = () if self._filters is None else self._filters.match(topic)
        # Ids are in the order of the file.
        return self._allows[matching[0]] if matching else self._default


class Account:
    """An account, ready to be asked. Topics and groups that are not listed have the default permission."""

    __slots__ = (
        "access_key",
        "address",
        "default_group_permission",
        "default_topic_permission",
        "devices",
        "group_permissions",
        "is_admin",
        "secret_key",
        "topic_permissions",
    )

    def __init__(self, document: AccountDocument) -> None:
        """AclFileError naming the account and what is wrong with it."""
        self.access_key = _key(document.access_key, "accessKey", document.access_key)
        self.secret_key = _key(document.secret_key, "secretKey", document.access_key).encode()
        self.is_admin = document.admin
        self.address: AddressPattern = _pattern(document.white_remote_address or "", self.access_key)
        self.default_topic_permission = self._permission(document.default_topic_perm, "defaultTopicPerm")
        self.default_group_permission = self._permission(document.default_group_perm, "defaultGroupPerm")
        self.topic_permissions = self._permissions(document.topic_perms or (), "topicPerms")
        self.group_permissions = self._permissions(document.group_perms or (), "groupPerms")
        self.devices = self._device_rights(document)

    def permission(self, name: str, *, is_group: bool) -> int:
        """Return the account's permission for a topic or group; an administrator has all that are not listed.

        The default does not hold for topics of the broker's own, where everybody's delayed messages and
        unfinished transactions are.
        """
        if is_group:
            listed, default = self.group_permissions, self.default_group_permission
        else:
            listed = self.topic_permissions
            default = DENY if _is_internal(name) else self.default_topic_permission
        return listed.get(name, PUB | SUB if self.is_admin else default)

    def _device_rights(self, document: AccountDocument) -> DeviceRights:
        """Return the rights to speak to devices.

        No default for topics has them: with it an account that may send to every topic of services would
        command every device. The name MQTT_TOPIC among the topics is the default of older files.
        """
        word = document.default_mqtt_topic_perm
        if word is not None:
            default = self._device_permission(word, "defaultMqttTopicPerm")
        else:
            default = bool(self.topic_permissions.get(MQTT_TOPIC, PUB if self.is_admin else DENY) & PUB)
        entries = document.mqtt_topic_perms or ()
        if len(entries) > limits.ACL_DEVICE_FILTERS_MAX:
            raise AclFileError(
                f"account {self.access_key}: {len(entries)} filters in mqttTopicPerms; "
                f"{limits.ACL_DEVICE_FILTERS_MAX} are the maximum"
            )
        rules: list[tuple[str, bool]] = []
        for entry in entries:
            topic_filter, _, word = entry.rpartition("=")
            topic_filter = topic_filter.strip()
            if not topic_filter or not is_valid_filter(topic_filter) or is_shared(topic_filter):
                raise AclFileError(
                    f"account {self.access_key}: {entry!r} in mqttTopicPerms is not FILTER=PUB or FILTER=DENY"
                )
            rules.append((topic_filter, self._device_permission(word, "mqttTopicPerms")))
        return DeviceRights(rules, default=default)

    def _device_permission(self, word: str, field: str) -> bool:
        permission = self._permission(word, field)
        if permission not in (PUB, DENY):
            raise AclFileError(f"account {self.access_key}: {word!r} in {field} is none of PUB, DENY")
        return permission == PUB

    def _permissions(self, entries: Iterable[str], field: str) -> dict[str, int]:
        permissions: dict[str, int] = {}
        for entry in entries:
            name, separator, word = entry.partition("=")
            if not separator or not name.strip():
                raise AclFileError(f"account {self.access_key}: {entry!r} in {field} is not NAME=PERMISSION")
            permissions[name.strip()] = self._permission(word, field)
        return permissions

    def _permission(self, word: str | None, field: str) -> int:
        if word is None:
            return DENY
        found = _PERMISSIONS.get(word.replace(" ", ""))
        if found is None:
            raise AclFileError(
                f"account {self.access_key}: {word!r} in {field} is none of DENY, PUB, SUB, PUB|SUB"
            )
        return found


class Accounts:
    """Everything the file says. Never changed: a change makes a new one."""

    def __init__(self, document: AclDocument) -> None:
        """AclFileError when something in it breaks a rule."""
        self.white_addresses = [
            _pattern(text, WHITE_ADDRESSES) for text in document.global_white_remote_addresses or ()
        ]
        entries = document.accounts or ()
        if len(entries) > limits.ACL_ACCOUNTS_MAX:
            raise AclFileError(f"{len(entries)} accounts; {limits.ACL_ACCOUNTS_MAX} are the maximum")
        self.by_key: dict[str, Account] = {}
        for entry in entries:
            account = Account(entry)
            if account.access_key in self.by_key:
                raise AclFileError(f"account {account.access_key} is in the file twice")
            self.by_key[account.access_key] = account
        versions = document.data_version or [DataVersion()]
        self.version = versions[0]
        # Address -> whether it is on the global white list; forgotten with this object.
        self._white: dict[str, bool] = {}

    def is_white(self, address: str) -> bool:
        """Return whether requests from the address are not looked at any further."""
        if not self.white_addresses:
            return False
        found = self._white.get(address)
        if found is None:
            if len(self._white) >= limits.ACL_ADDRESSES_REMEMBERED_MAX:
                self._white.clear()
            found = self._white[address] = any(each.matches(address) for each in self.white_addresses)
        return found


def read_accounts(path: Path) -> Accounts:
    """The accounts of a file. AclFileError when it is too large, no YAML of this shape, or breaks a rule."""
    return parse_accounts(read_bytes(path))


def read_bytes(path: Path) -> bytes:
    """Return the file. OSError when it cannot be read, AclFileError when it is too large."""
    with path.open("rb") as file:
        data = file.read(limits.ACL_FILE_BYTES_MAX + 1)
    if len(data) > limits.ACL_FILE_BYTES_MAX:
        raise AclFileError(f"{path} has more than {limits.ACL_FILE_BYTES_MAX} bytes")
    return data


def parse_accounts(data: bytes) -> Accounts:
    """Return the accounts that the bytes of a file say."""
    return Accounts(_convert(_decode(data)))


def changed(data: bytes, change: dict[str, Any], *, now_ms: int) -> bytes:
    """The bytes of the file with its top-level entries replaced by `change`, and its version one further."""
    document = _decode(data)
    document.update(change)
    versions = _convert(document).data_version or [DataVersion()]
    document[DATA_VERSION] = [msgspec.to_builtins(versions[0].next(now_ms))]
    # What is written has to be read again.
    Accounts(_convert(document))
    return msgspec.yaml.encode(document)


def with_account(data: bytes, account: dict[str, Any], *, now_ms: int) -> bytes:
    """Return the bytes with the fields of one account set; a new one when its access key is not there."""
    entries = _entries(data)
    for entry in entries:
        if str(entry.get("accessKey")) == account["accessKey"]:
            entry.update(account)
            break
    else:
        entries.append(account)
    return changed(data, {ACCOUNTS: entries}, now_ms=now_ms)


def without_account(data: bytes, access_key: str, *, now_ms: int) -> bytes:
    """Return the bytes without one account. AclFileError when it is not there."""
    entries = _entries(data)
    left = [entry for entry in entries if str(entry.get("accessKey")) != access_key]
    if len(left) == len(entries):
        raise AclFileError(f"there is no account {access_key[:64]!a}")
    return changed(data, {ACCOUNTS: left}, now_ms=now_ms)


def _entries(data: bytes) -> list[dict[str, Any]]:
    document = _decode(data)
    _convert(document)
    entries: list[dict[str, Any]] = document.get(ACCOUNTS) or []
    return entries


def _decode(data: bytes) -> dict[str, Any]:
    try:
        document = msgspec.yaml.decode(data) if data.strip() else None
    except msgspec.DecodeError as error:
        raise AclFileError(f"it is no YAML: {error}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise AclFileError(f"it holds no mapping with {ACCOUNTS} in it")
    return document


def _convert(document: dict[str, Any]) -> AclDocument:
    try:
        return msgspec.convert(document, AclDocument)
    except msgspec.ValidationError as error:
        raise AclFileError(str(error)) from None


def _is_internal(topic: str) -> bool:
    return topic in _INTERNAL_TOPICS or topic.lower().startswith("rmq_sys_")


def _key(value: str | float | None, field: str, access_key: str | float | None) -> str:
    text = "" if value is None else str(value)
    size = len(text.encode())
    if len(text) < _KEY_CHARACTERS_MIN or size > limits.ACL_KEY_BYTES_MAX:
        whose = "an account" if field == "accessKey" else f"account {access_key}"
        raise AclFileError(
            f"the {field} of {whose} has {len(text)} characters; {_KEY_CHARACTERS_MIN} to "
            f"{limits.ACL_KEY_BYTES_MAX} are allowed"
        )
    return text


def _pattern(text: str, where: str) -> AddressPattern:
    try:
        return parse_address_pattern(text)
    except ValueError as error:
        raise AclFileError(f"{where}: {error}") from None
