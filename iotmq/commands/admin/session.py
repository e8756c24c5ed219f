"""Start the client an action works with, and say where its output goes."""

from __future__ import annotations

import sys
from typing import BinaryIO

from iotmq.client.admin.admin import Admin
from iotmq.client.admin.scheduled import WaitingMessages
from iotmq.client.transport.client import ClientTransport


class Session:
    """The client of one action, and its output."""

    def __init__(self, client: ClientTransport, *, is_quiet: bool) -> None:
        """`is_quiet` keeps progress lines back."""
        self.client = client
        self.admin = Admin(client)
        self.waiting = WaitingMessages(client)
        self.output: BinaryIO = sys.stdout.buffer
        """Where an action writes bytes."""
        self._is_quiet = is_quiet
        self._progress_width = 0

    def progress(self, text: str, *, is_last: bool = False) -> None:
        """Say how far it is: on a terminal in one line that changes, elsewhere a line each time."""
        if self._is_quiet:
            return
        if not sys.stderr.isatty():
            print(text, file=sys.stderr, flush=True)
            return
        padding = " " * max(0, self._progress_width - len(text))
        self._progress_width = len(text)
        print(f"\r{text}{padding}", end="\n" if is_last else "", file=sys.stderr, flush=True)
