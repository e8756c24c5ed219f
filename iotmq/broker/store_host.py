"""The host a broker's records carry as the one they were stored at."""

from __future__ import annotations

import socket

from iotmq.broker.settings import BrokerSettings
from iotmq.errors import ConfigError
from iotmq.message.hosts import encode_host


def resolve_store_host(settings: BrokerSettings) -> bytes:
    """The advertised address as records carry it, for opening the store. ConfigError for an unknown name."""
    port = settings.advertised_port or settings.listen_port
    try:
        return encode_host(settings.advertised_host, port)
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(settings.advertised_host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"broker.advertised_host {settings.advertised_host!r} cannot be resolved: {error}"
        ) from error
    addresses = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)
    return encode_host(str(addresses[0][4][0]), port)
