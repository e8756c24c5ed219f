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

WHITE_ADDRESSES: Final = "globalWhiteRemoteAddresses"
ACCOUNTS: Final = "accounts"
DATA_VERSION: Final = "dataVersion"
_KEY_CHARACTERS_MIN: Final = 7
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


class AclDocument(msgspec.Struct, kw_only=True, rename="camel"):
    global_white_remote_addresses: list[str] | None = None
    accounts: list[AccountDocument] | None = None
    data_version: list[DataVersion] | None = None


class Account:
    """An account, ready to be asked. Topics and groups that are not listed have the default permission."""

    __slots__ = (
        "access_key",
        "address",
        "default_group_permission",
        "default_topic_permission",
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
