"""%c and %u in templates of topics: the client id and the user name of a device.

A name that has a wildcard or a slash would choose more of the topic than its place in the template is for,
such as everybody's messages with the client id `#`, and so would one that begins with `$`: `%c/g/#` of the
client `$share` is `#`, shared in the group `g`. For such a device, and with %u for one without a user name,
there is no topic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from iotmq.mqtt_front.connection.device import Device

CLIENT_ID: Final = "%c"
USER_NAME: Final = "%u"

_FORBIDDEN: Final = frozenset("+#/")


class DeviceNames(NamedTuple):
    """Hold the names of a device that templates may use."""

    client_id: str
    user_name: str | None

    def key(self) -> bytes:
        """Tells devices with other names apart; has its end in itself, because names have no NUL."""
        user_name = "" if self.user_name is None else self.user_name
        return f"{self.client_id}\0{user_name}\0".encode()


def names_of_key(key: bytes) -> DeviceNames:
    """Split the key of `DeviceNames.key` into its names; an empty user name means none."""
    client_id, user_name, _ = key.decode().split("\0")
    return DeviceNames(client_id, user_name or None)


def names_of(device: Device) -> DeviceNames | None:
    """A device's, when some setting asked for them before its session was opened."""
    return None if device.names is None else names_of_key(device.names)


def has_names(template: str) -> bool:
    """Return whether what a template gives depends on the device."""
    return CLIENT_ID in template or USER_NAME in template


def with_names(template: str, names: DeviceNames) -> str:
    """A template with the device's names in it; ValueError when a name is not one for a topic."""
    if CLIENT_ID in template:
        _check(names.client_id, "client id")
    if USER_NAME in template:
        if not names.user_name:
            raise ValueError("a topic with %u is for devices that have a user name")
        _check(names.user_name, "user name")
    # One after the other would find %u in a client id.
    parts = template.split(CLIENT_ID)
    return names.client_id.join(part.replace(USER_NAME, names.user_name or "") for part in parts)


def _check(name: str, what: str) -> None:
    if name.startswith("$") or not _FORBIDDEN.isdisjoint(name):
        raise ValueError(f"a {what} with +, # or /, or with $ in front, is not put into a topic")
