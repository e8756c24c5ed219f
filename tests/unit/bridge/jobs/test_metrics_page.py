"""The page of a job's metrics."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest
from gateway_process import free_port

from iotmq.bridge.jobs.metrics_page import metrics_page


def test_the_page_is_there_for_as_long_as_its_block() -> None:
    port = free_port()
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": "text/x"})
    with metrics_page(lambda accepted: (f"for {accepted}".encode(), "text/y"), port):
        with urllib.request.urlopen(asked, timeout=30) as answer:
            assert (answer.read(), answer.headers["Content-Type"]) == (b"for text/x", "text/y")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/other", timeout=30)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(asked, timeout=30)


def test_a_port_that_is_taken_is_the_callers_matter() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match="in use"),
        metrics_page(lambda _: (b"", ""), taken.getsockname()[1]),
    ):
        pass
