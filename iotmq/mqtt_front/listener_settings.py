"""Settings of the further places devices connect to (`[[mqtt.listeners]]` of the configuration)."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from iotmq import limits

TCP_NAME: Final = "tcp"
"""The name of the listener of `mqtt.listen_port`."""
WORKER_PLACE: Final = "{worker}"
"""Stands in a socket's path for the number of the worker, because no two processes can listen on one."""


class ListenerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One more place where devices connect.

    ValueError when its settings do not belong together.
    """

    name: Annotated[
        str,
        Meta(
            pattern=r"^[a-z][a-z0-9_-]*$",
            max_length=limits.MQTT_LISTENER_NAME_BYTES_MAX,
            description=f'What logs and metrics call it; each has another one, and none is "{TCP_NAME}".',
        ),
    ]
    transport: Annotated[
        Literal["tcp", "unix"],
        Meta(
            description='How MQTT is carried: by TCP, or by a Unix socket for this machine only ("unix").'
        ),
    ]
    listen_host: Annotated[
        str, Meta(min_length=1, description="Address to listen on; loopback unless told otherwise.")
    ] = "127.0.0.1"
    listen_port: Annotated[int, Meta(ge=0, le=65_535, description="TCP port; 0 takes a free one.")] = 0
    socket_path: Annotated[
        str,
        Meta(
            max_length=limits.UNIX_SOCKET_PATH_BYTES_MAX,
            description=(
                'Where a "unix" listener has its socket. With mqtt.workers above 1 it has to have '
                f"{WORKER_PLACE} in it, for the number of the worker."
            ),
        ),
    ] = ""
    socket_mode: Annotated[
        str,
        Meta(
            pattern=r"^0?[0-7]{3}$",
            description="Permissions of that socket in octal digits: who may write to it may connect.",
        ),
    ] = "0660"

    def __post_init__(self) -> None:
        if (self.transport == "unix") != bool(self.socket_path):
            raise ValueError('socket_path is for transport = "unix", which has to have one')

    @property
    def is_on_network(self) -> bool:
        """Whether it has a host and a port."""
        return self.transport != "unix"

    @property
    def shown_address(self) -> str:
        """HOST:PORT, with brackets around a host of IPv6; or the path."""
        if not self.is_on_network:
            return self.socket_path
        host = f"[{self.listen_host}]" if ":" in self.listen_host else self.listen_host
        return f"{host}:{self.listen_port}"


def tcp_listener(host: str, port: int) -> ListenerSettings:
    """The listener of `mqtt.listen_host` and `mqtt.listen_port`, as one of those beside it."""
    return ListenerSettings(name=TCP_NAME, transport="tcp", listen_host=host, listen_port=port)
