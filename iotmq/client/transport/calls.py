"""Find a broker's address, and ask one broker or the masters of all."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from iotmq.client.transport.client import ClientTransport, expect_success
from iotmq.client.transport.routes import MASTER_ID, MessageQueue
from iotmq.errors import (
    BrokerError,
    ConnectionClosedError,
    RequestError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from iotmq.remoting.codes import ResponseCode
from iotmq.remoting.command import Command


@contextmanager
def asking(doing: str) -> Iterator[None]:
    """Say in errors of a connection what was asked for; BrokerError for an answer with wrong fields."""
    try:
        yield
    except (ConnectionClosedError, RequestTimeoutError) as error:
        raise type(error)(f"{doing}: {error}") from error
    except RequestError as error:
        raise BrokerError(
            ResponseCode.SYSTEM_ERROR, f"{doing}: the broker's answer cannot be read: {error}"
        ) from error


async def broker_address(client: ClientTransport, queue: MessageQueue, broker_id: int = MASTER_ID) -> str:
    """Find HOST:PORT of the broker that has `queue`; RouteNotFoundError when it has none now."""
    route = await client.routes.find(queue.topic)
    address = None if route is None else route.reader(queue.broker_name, broker_id)
    if address is None:
        raise RouteNotFoundError(
            f"no route to broker {queue.broker_name} of topic {queue.topic}: is it registered with "
            f"{client.registries.addresses_text}?"
        )
    return address


async def master_addresses(client: ClientTransport, broker_names: Collection[str] = ()) -> dict[str, str]:
    """Look up the masters of the named brokers, or of all: broker name -> HOST:PORT.

    RouteNotFoundError when one is unknown or none is registered.
    """
    brokers = await client.registries.cluster()
    unknown = sorted(set(broker_names) - set(brokers))
    if unknown:
        raise RouteNotFoundError(
            f"no broker named {', '.join(unknown)}: registered are {', '.join(sorted(brokers)) or 'none'}"
        )
    masters = {
        name: client.masters.present(name, by_id[MASTER_ID])
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
    client: ClientTransport,
    address: str,
    code: int,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
    *,
    doing: str,
    timeout_s: float | None = None,
) -> Command:
    """Ask the broker at HOST:PORT; BrokerError when it does not answer with success."""
    with asking(doing):
        response = await client.request(address, Command.request(code, ext, body), timeout_s=timeout_s)
    return expect_success(response, doing)


async def ask_masters(
    client: ClientTransport,
    code: int,
    ext: Mapping[str, str] | None = None,
    *,
    doing: str,
    broker_names: Collection[str] = (),
    none_codes: Collection[int] = (),
) -> dict[str, Command]:
    """Ask all masters; their answers by broker name, without those with one of `none_codes`.

    BrokerError when one refuses for another reason, ConnectionClosedError when one cannot be reached.
    """

    async def one(name: str, address: str) -> tuple[str, Command] | None:
        with asking(f"{doing} at broker {name}"):
            response = await client.request(address, Command.request(code, ext))
        if response.code in none_codes:
            return None
        return name, expect_success(response, f"{doing} at broker {name}")

    masters = await master_addresses(client, broker_names)
    answers = await asyncio.gather(*(one(name, address) for name, address in sorted(masters.items())))
    return dict(answer for answer in answers if answer is not None)
