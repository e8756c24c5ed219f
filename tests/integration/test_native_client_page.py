"""The examples of docs/reference/native-client.md run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "native-client.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)

GATEWAY = """
import asyncio, sys
from pathlib import Path
from iotmq.broker.broker import Broker
from iotmq.broker.registration.advertised_address import resolve_store_host
from iotmq.broker.settings import BrokerSettings
from iotmq.registry.server import Registry
from iotmq.registry.settings import RegistrySettings
from iotmq.store.settings import StoreSettings
from iotmq.store.store import Store

async def main(directory):
    registry = Registry(RegistrySettings(listen_port=0), directory=directory / "registry")
    await registry.start()
    address = f"127.0.0.1:{registry.port}"
    settings = BrokerSettings(listen_port=0, registries=(address,))
    store = Store.open(
        directory / "data", StoreSettings(segment_bytes=4 << 20), store_host=resolve_store_host(settings)
    )
    broker = Broker(settings, store, directory=directory / "data")
    await broker.start()
    print(address, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await broker.stop()
    store.close()
    await registry.stop()

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def registry() -> Iterator[str]:
    """The address of a registry with one broker, in a process of their own."""
    with (
        tempfile.TemporaryDirectory() as directory,
        subprocess.Popen(
            [sys.executable, "-c", GATEWAY, directory],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address
        yield address
        process.communicate(timeout=10)


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) == PAGE.read_text().count("```python") >= 9


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_an_example_runs(example: str, registry: str) -> None:
    assert '"127.0.0.1:9876"' in example
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example.replace("127.0.0.1:9876", registry)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout
