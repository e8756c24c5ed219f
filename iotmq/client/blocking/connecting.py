"""Make a blocking client from a URL, keyword arguments and the environment."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Unpack

from iotmq.client.blocking.classes import SyncClient
from iotmq.client.connecting import ConnectOptions, client_settings
from iotmq.client.transport.interceptors import Interceptor


def connect_sync(
    url: str = "", *, interceptors: Iterable[Interceptor] = (), **options: Unpack[ConnectOptions]
) -> SyncClient:
    """Make a blocking client: `with iotmq.connect_sync("iotmq://10.0.0.5") as client`. As `connect`."""
    return SyncClient(client_settings(url, options, os.environ), interceptors=interceptors)
