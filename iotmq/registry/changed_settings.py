"""Settings of a registry that operators change while it runs (318), and registrySettings.json.

A change is kept in the file and holds after a restart, unless the configuration says something else by then:
the later word wins. The file: ``{"changes":{"broker_timeout_s":{"configured":"120.0","value":"30.0"}}}``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from iotmq.errors import RequestError, StoreCorruptError
from iotmq.files import make_directory, replace_file
from iotmq.registry.settings import RegistrySettings
from iotmq.remoting.codes import ResponseCode

logger = logging.getLogger("iotmq.registry")

CHANGEABLE: Final = ("broker_memory_s", "broker_timeout_s", "scan_interval_s")


class _Change(msgspec.Struct, frozen=True):
    """Record a changed setting: its new value, and that of the configuration then, both as text."""

    configured: str
    value: str


class _Document(msgspec.Struct):
    changes: dict[str, _Change] = {}


def setting_texts(settings: RegistrySettings) -> dict[str, str]:
    """Return every setting as request 319 shows it."""
    return {name: str(value) for name, value in msgspec.structs.asdict(settings).items()}


def changed(settings: RegistrySettings, values: Mapping[str, str]) -> RegistrySettings:
    """Change settings to `values`. RequestError (1) names the first invalid one."""
    current = setting_texts(settings)
    wanted = {name: value for name, value in values.items() if current.get(name) != value}
    for name in wanted:
        if name not in CHANGEABLE:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"{name} cannot change while the registry runs: configure it and restart"
                if name in current
                else f"there is no setting {name[:60]!r}; a registry has {', '.join(current)}",
            )
    try:
        return msgspec.convert({**msgspec.structs.asdict(settings), **wanted}, RegistrySettings, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"a setting cannot be: {error}") from None


class ChangedSettingsFile:
    """registrySettings.json; all methods block and may be called from a thread, one at a time."""

    def __init__(self, path: Path, configured: RegistrySettings) -> None:
        self._path = path
        self._configured = configured

    def load(self) -> RegistrySettings:
        """The configured settings with the changes that still hold. StoreCorruptError names a broken file."""
        try:
            changes = msgspec.json.decode(self._path.read_bytes(), type=_Document).changes
        except FileNotFoundError:
            return self._configured
        except msgspec.DecodeError as error:
            raise StoreCorruptError(
                f"{self._path}: {error}. Delete it to start with the configured settings"
            ) from None
        configured = setting_texts(self._configured)
        settings = self._configured
        for name, change in changes.items():
            if configured.get(name) != change.configured:
                logger.warning(
                    "%s = %s of a changed setting gives way to the configuration", name, change.value
                )
                continue
            try:
                settings = changed(settings, {name: change.value})
            except RequestError as error:
                logger.warning("a changed setting is left out: %s", error)
                continue
            logger.warning("%s is %s, changed while the registry ran", name, change.value)
        return settings

    def save(self, settings: RegistrySettings) -> None:
        """Keep what differs from the configuration. OSError when the disk refuses."""
        configured, texts = setting_texts(self._configured), setting_texts(settings)
        changes = {
            name: _Change(configured[name], texts[name])
            for name in CHANGEABLE
            if texts[name] != configured[name]
        }
        make_directory(self._path.parent)
        replace_file(self._path, msgspec.json.encode(_Document(changes)))
