"""One dead or garbled registry among several harms neither brokers nor clients."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from broker_site import WAIT_S, Site

from iotmq.client.admin.admin import Admin
from iotmq.client.client import IotmqClient
from iotmq.client.sending.producer import Producer
from iotmq.client.transport.message import Message
from iotmq.client.transport.settings import ClientSettings
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.remoting.codes import RequestCode
from iotmq.remoting.command import Command

Answer = Callable[[bytes], bytes]


def noise(_asked: bytes) -> bytes:
    return random.Random(7).randbytes(4_000)


def endless_frame(_asked: bytes) -> bytes:
    return b"\x7f\xff\xff\xff" + b"x" * 1_000


def half_frame(_asked: bytes) -> bytes:
    return b"\x00\x00\x01\x00\x00\x00\x00\x20{"


def header_of_another_kind(_asked: bytes) -> bytes:
    header = b'{"code":"zero","opaque":[],"flag":1}'
    return (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


def silence(_asked: bytes) -> bytes:
    return b""


def success_with_a_broken_body(asked: bytes) -> bytes:
    """The answer every request hopes for, with a body that says nothing."""
    opaque = int(asked.partition(b'"opaque":')[2].partition(b",")[0].rstrip(b"}"))
    header = b'{"code":0,"flag":1,"language":"JAVA","opaque":%d,"version":0}' % opaque
    body = b"\xff\x00{]"
    return (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


@asynccontextmanager
async def garbled(answer: Answer) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while asked := await reader.read(65_536):
                writer.write(answer(asked))
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    yield f"{host}:{port}"
    server.close()


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    registry = Registry(RegistrySettings(listen_port=0))
    await registry.start()
    yield registry
    await registry.stop()


@pytest.mark.parametrize(
    "answer",
    [noise, endless_frame, half_frame, header_of_another_kind, silence, success_with_a_broken_body],
    ids=lambda answer: answer.__name__,
)
async def test_brokers_and_clients_go_by_the_one_that_works(
    registry: Registry, tmp_path: Path, answer: Answer
) -> None:
    async with garbled(answer) as bad:
        registries = (bad, closed_port(), f"127.0.0.1:{registry.port}")
        site = Site(tmp_path, registries=registries, registration_timeout_s=0.3)
        await site.start()
        await site.broker.wait_registered(WAIT_S)
        settings = ClientSettings(registries=registries, request_timeout_ms=300)
        async with IotmqClient(settings) as client, Producer(client, "pg") as producer:
            assert list(await Admin(client).brokers()) == ["broker-a"]
            assert (await producer.send(Message("T", b"x"))).queue.broker_name == "broker-a"
        await site.stop()


async def test_a_broker_takes_any_success_of_a_registry_and_registers_with_the_others(
    registry: Registry, tmp_path: Path
) -> None:
    async with garbled(success_with_a_broken_body) as bad:
        site = Site(tmp_path, registries=(bad, f"127.0.0.1:{registry.port}"))
        await site.start()
        async with asyncio.timeout(WAIT_S):
            while not registry.routes.broker_count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await site.stop()


async def test_garbage_to_a_registry_closes_only_the_connection_it_came_on(registry: Registry) -> None:
    for answer in (noise, endless_frame, half_frame, header_of_another_kind):
        reader, writer = await asyncio.open_connection("127.0.0.1", registry.port)
        writer.write(answer(b""))
        writer.write_eof()
        async with asyncio.timeout(WAIT_S):
            await reader.read()
        writer.close()
    async with IotmqClient(ClientSettings(registries=(f"127.0.0.1:{registry.port}",))) as client:
        response = await client.request(
            f"127.0.0.1:{registry.port}", Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        )
        assert response.code == 0
