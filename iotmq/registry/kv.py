"""Key-value settings by namespace, kept in one JSON file: ``{"configTable":{namespace:{key:value}}}``."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import msgspec

from iotmq.errors import RequestError, StoreCorruptError
from iotmq.files import make_directory, replace_file
from iotmq.limits import KV_BYTES_MAX, KV_TEXT_BYTES_MAX
from iotmq.remoting import lenient_json
from iotmq.remoting.codes import ResponseCode

Table: TypeAlias = dict[str, dict[str, str]]

ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"


class KeyValues:
    """An immutable state of all namespaces; a change gives a new one, to be saved before it is used."""

    __slots__ = ("_size", "_table")

    def __init__(self, table: Table | None = None) -> None:
        self._table: Table = {} if table is None else table
        # Bytes of all keys and values, which the limit is about.
        self._size = sum(
            _text_size(key) + _text_size(value)
            for namespace in self._table.values()
            for key, value in namespace.items()
        )

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, name: str) -> dict[str, str]:
        """Return all keys of a namespace; empty when it has none."""
        return self._table.get(name, {})

    @property
    def count(self) -> int:
        return sum(map(len, self._table.values()))

    def put(self, namespace: str, key: str, value: str) -> KeyValues:
        """Return the state with `key` set; RequestError when a text or all of them are past their limit."""
        check_texts(namespace=namespace, key=key, value=value)
        fresh = KeyValues({**self._table, namespace: {**self.namespace(namespace), key: value}})
        if fresh._size + sum(map(_text_size, fresh._table)) > KV_BYTES_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"with the field value all values together are past the maximum of {KV_BYTES_MAX} bytes",
            )
        return fresh

    def delete(self, namespace: str, key: str) -> KeyValues:
        """Return the state without `key`; itself when there is none."""
        keys = self._table.get(namespace)
        if keys is None or key not in keys:
            return self
        rest = {name: value for name, value in keys.items() if name != key}
        table = {name: values for name, values in self._table.items() if name != namespace}
        return KeyValues({**table, namespace: rest} if rest else table)

    def to_json(self) -> bytes:
        return msgspec.json.encode({"configTable": self._table})


class _Document(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = {}


class KeyValueFile:
    """The file behind a KeyValues; all methods block and may be called from a thread, one at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> KeyValues:
        """Load what was saved last; nothing without a file. StoreCorruptError names a file that is broken."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return KeyValues()
        try:
            return KeyValues(lenient_json.decode(data, _Document, lenient_bytes_max=len(data)).config_table)
        except RequestError as error:
            raise StoreCorruptError(f"{self._path}: {error}") from None

    def save(self, values: KeyValues) -> None:
        """Replace the file: after a crash it has either state, whole. OSError when the disk refuses."""
        make_directory(self._path.parent)
        replace_file(self._path, values.to_json())


def check_texts(**texts: str) -> None:
    """Raise RequestError naming the field when one of the texts is past `KV_TEXT_BYTES_MAX`."""
    for field, text in texts.items():
        if _text_size(text) > KV_TEXT_BYTES_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the field {field} has {_text_size(text)} bytes, past the maximum of {KV_TEXT_BYTES_MAX}",
            )


def _text_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
