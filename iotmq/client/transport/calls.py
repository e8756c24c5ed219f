"""Ask brokers, one of them or the masters of all, for what is not part of sending and consuming."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from iotmq.client.transport.client import IotmqClient, expect_success
from iotmq.client.transport.routes import MASTER_ID
from iotmq.errors import RouteNotFoundError
from iotmq.remoting.command import Command


async def master_addresses(client: IotmqClient, broker_names: Collection[str] = ()) -> dict[str, str]:
    """Broker name -> HOST:PORT of its master; of those named, or of all.

    RouteNotFoundError when one is unknown or none is registered.
    """
    brokers = await client.registries.cluster()
    unknown = sorted(set(broker_names) - set(brokers))
    if unknown:
        raise RouteNotFoundError(
            f"no broker named {', '.join(unknown)}: registered are {', '.join(sorted(brokers)) or 'none'}"
        )
    masters = {
        name: by_id[MASTER_ID]
        for name, by_id in brokers.items()
        if MASTER_ID in by_id and (not broker_names or name in broker_names)
    }
    if not masters:
        raise RouteNotFoundError(
            f"no broker is registered with {client.registries.addresses_text}: start one that "
            "names this registry (broker.registries)"
        )
    return masters


async def ask(
    client: IotmqClient,
    address: str,
    code: int,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    doing: str,
    timeout_s: float | None = None,
) -> Command:
    """The answer of the broker at HOST:PORT; BrokerError when it is not success."""
    response = await client.request(address, Command.request(code, ext, body), timeout_s=timeout_s)
    return expect_success(response, doing)


async def ask_masters(
    client: IotmqClient,
    code: int,
    ext: Mapping[str, str] | None = None,
    *,
    doing: str,
    broker_names: Collection[str] = (),
    none_codes: Collection[int] = (),
    timeout_s: float | None = None,
) -> dict[str, Command]:
    """The answers of all masters by broker name, without those with one of `none_codes`: they have nothing.

    BrokerError when one refuses for another reason, ConnectionClosedError when one cannot be reached.
    """

    async def one(name: str, address: str) -> tuple[str, Command] | None:
        response = await client.request(address, Command.request(code, ext), timeout_s=timeout_s)
        if response.code in none_codes:
            return None
        return name, expect_success(response, f"{doing} at broker {name}")

    masters = await master_addresses(client, broker_names)
    answers = await asyncio.gather(*(one(name, address) for name, address in sorted(masters.items())))
    return dict(answer for answer in answers if answer is not None)
